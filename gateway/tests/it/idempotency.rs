//! One execution a key: what a repeat gets in each state of the first one.

use std::collections::HashSet;
use std::time::Duration;

use gwanmun::failure::Failure;
use gwanmun::routes::Kind;
use mock_core_banking::Fault;
use sqlx::Connection as _;
use tokio::task::JoinSet;

use crate::client::{AUDITOR, Answer, CLIENT, OPERATOR, OTHER_CLIENT, get, post, transfer};
use crate::harness::{TestGateway, config_text, eventually};
use crate::postgres::Postgres;
use crate::taxonomy::compare_answer;

const MUTATION: Kind = Kind::Mutation;

async fn shipped(gateway: &TestGateway, id: &str) {
    // A listing waits for what was answered before it.
    eventually("the row is in the store", async || {
        let rows = gateway.complete("/api/ledger?limit=200", AUDITOR).await;
        rows["items"].as_array().unwrap().iter().any(|row| row["transactionId"] == id)
    })
    .await;
}

fn is_same(first: &Answer, again: &Answer) {
    assert_eq!((again.status, &again.text), (first.status, &first.text));
    assert_eq!(again.headers["content-type"], first.headers["content-type"]);
    assert_eq!(again.transaction_id(), first.transaction_id());
    assert_eq!(again.headers["idempotent-replayed"], "true");
    assert!(!first.headers.contains_key("idempotent-replayed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_of_a_finished_one_gets_the_same_bytes_and_the_host_is_not_asked() {
    let gateway = TestGateway::start(&[]).await;
    for (key, account, status, frames) in [("done", "1", 200, 1), ("declined", "0", 422, 2)] {
        let first = gateway.call(&transfer(key, account, 5)).await;
        assert_eq!(first.status, status, "{}", first.text);
        is_same(&first, &gateway.call(&transfer(key, account, 5)).await);
        shipped(&gateway, &first.transaction_id()).await;
        is_same(&first, &gateway.call(&transfer(key, account, 5)).await);
        assert_eq!(gateway.simulator.host().counters().requests["0600"], frames);
    }
    assert_eq!(gateway.rows().await.len(), 2, "a repeat leaves no row");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_belongs_to_one_body_and_one_client() {
    let gateway = TestGateway::start(&[]).await;
    let first = gateway.call(&transfer("k", "1", 5)).await;
    assert_eq!(first.status, 200);
    for _ in 0..2 {
        compare_answer(Failure::IdempotencyKeyReused, MUTATION, &gateway.call(&transfer("k", "1", 6)).await);
        shipped(&gateway, &first.transaction_id()).await;
    }
    // Written otherwise, the same message.
    let spaced = transfer("k", "00000000000001", 5);
    is_same(&first, &gateway.call(&spaced).await);
    let other = gateway.call(&transfer("k", "1", 6).replace(CLIENT, OTHER_CLIENT)).await;
    assert_eq!(other.status, 200, "{}", other.text);
    assert_eq!(gateway.simulator.host().counters().processed["0600"], 2);
    // Validation comes first: a body that can't be sent is not compared, and its key is not touched.
    assert_eq!(gateway.call(&transfer("k", "1", 0)).await.status, 400);
    assert_eq!(gateway.call(&transfer("free", "x", 1)).await.status, 400);
    assert_eq!(gateway.call(&transfer("free", "1", 1)).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_of_a_running_one_is_in_progress() {
    let gateway = TestGateway::start(&[]).await;
    gateway.fault_with("0600", Fault::Late, 1.0, Some(600), None);
    let mut first = gateway.client().await;
    first.send(&transfer("k", "1", 5)).await;
    eventually("the host has it", async || gateway.simulator.host().counters().requests.contains_key("0600")).await;
    compare_answer(Failure::IdempotencyInProgress, MUTATION, &gateway.call(&transfer("k", "1", 5)).await);
    compare_answer(Failure::IdempotencyKeyReused, MUTATION, &gateway.call(&transfer("k", "1", 6)).await);
    assert_eq!(first.read().await.unwrap().status, 200);
    assert_eq!(gateway.simulator.host().counters().processed["0600"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_hundred_identical_transfers_one_is_applied() {
    let gateway = TestGateway::start(&[]).await;
    gateway.fault_with("0600", Fault::Jitter, 1.0, Some(50), None);
    let mut calls = JoinSet::new();
    for _ in 0..100 {
        let mut client = gateway.client().await;
        calls.spawn(async move { client.call(&transfer("one", "1", 5)).await });
    }
    let answers = calls.join_all().await;
    let good: HashSet<_> = answers.iter().filter(|answer| answer.status == 200).map(|answer| &answer.text).collect();
    assert_eq!(good.len(), 1, "every 200 is the same one");
    for answer in answers.iter().filter(|answer| answer.status != 200) {
        assert_eq!((answer.status, answer.code()), (409, "IDEMPOTENCY_IN_PROGRESS".to_owned()));
    }
    assert_eq!(gateway.simulator.host().counters().requests["0600"], 1);
    assert_eq!(gateway.rows().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_that_provably_never_left_frees_its_key() {
    let text = config_text().replace("deadline = \"8s\"", "deadline = \"1500ms\"");
    let settings = [
        ("INSTITUTION__CORE_TRANSFER__BREAKER_FAILURES", "1"),
        ("INSTITUTION__CORE_TRANSFER__BREAKER_OPEN", "300ms"),
        ("INSTITUTION__CORE_TRANSFER__CONNECTIONS_MAX", "1"),
        ("INSTITUTION__CORE_TRANSFER__BORROW_WAIT", "100ms"),
    ];
    let gateway = TestGateway::start_with(&text, Duration::from_millis(300), &settings).await;
    // One that keeps the only line busy, and so ends in doubt and opens the circuit.
    gateway.fault("0600", Fault::Stall, 1.0);
    let mut stalled = gateway.client().await;
    stalled.send(&transfer("stalled", "1", 5)).await;
    eventually("the host has it", async || gateway.simulator.host().counters().requests.contains_key("0600")).await;
    let jam = gateway.call(&transfer("k", "1", 5)).await;
    assert_eq!((jam.status, jam.code()), (503, "GATEWAY_SATURATED".to_owned()));
    assert_eq!(stalled.read().await.unwrap().status, 504);
    gateway.no_faults();
    let open = gateway.call(&transfer("k", "1", 5)).await;
    assert_eq!((open.status, open.code()), (503, "CIRCUIT_OPEN".to_owned()));
    assert_ne!(open.transaction_id(), jam.transaction_id(), "each try is a transaction of its own");
    let mut last = String::new();
    eventually("the circuit closes and the key runs", async || {
        let answer = gateway.call(&transfer("k", "1", 5)).await;
        last = answer.transaction_id();
        answer.status == 200
    })
    .await;
    let again = gateway.call(&transfer("k", "1", 5)).await;
    assert_eq!((again.status, again.transaction_id()), (200, last));
    assert_eq!(gateway.simulator.host().counters().processed["0600"], 1);
}

/// Leaves a transfer in doubt that the host has processed (`close-after`) or not seen (`close-before`).
async fn doubt(gateway: &TestGateway, key: &str, fault: Fault) -> Answer {
    gateway.fault("0600", fault, 1.0);
    let answer = gateway.call(&transfer(key, "1", 5)).await;
    assert_eq!((answer.status, answer.code()), (504, "RESULT_UNKNOWN".to_owned()));
    gateway.no_faults();
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_of_one_in_doubt_is_in_doubt_and_then_says_how_it_was_resolved() {
    let text = config_text();
    for (on_doubt, fault, failure) in [
        ("net-cancel", Fault::CloseAfter, Some(Failure::RepeatCanceled)),
        ("net-cancel", Fault::CloseBefore, Some(Failure::RepeatNotProcessed)),
        ("confirm", Fault::CloseBefore, Some(Failure::RepeatNotProcessed)),
        ("confirm", Fault::CloseAfter, None),
    ] {
        let text = text.replace("amount = \"amount\"", &format!("amount = \"amount\"\non_doubt = \"{on_doubt}\""));
        let gateway = TestGateway::start_with(&text, Duration::from_millis(300), &[]).await;
        let first = doubt(&gateway, "k", fault).await;
        let repeat = async || gateway.call(&transfer("k", "1", 5)).await;
        for _ in 0..2 {
            let again = repeat().await;
            compare_answer(Failure::RepeatInDoubt, MUTATION, &again);
            assert_eq!(again.transaction_id(), first.transaction_id());
            assert_eq!(again.headers["idempotent-replayed"], "true");
            shipped(&gateway, &first.transaction_id()).await;
        }
        let path = format!("/api/gateway/resolve/{}", first.transaction_id());
        let resolved = gateway.call(&post(&path, OPERATOR, "").replace("content-type: application/json\r\n", "")).await;
        assert_eq!(resolved.status, 200, "{}", resolved.text);
        let again = repeat().await;
        assert_eq!(again.transaction_id(), first.transaction_id());
        assert_eq!(again.headers["idempotent-replayed"], "true");
        match failure {
            Some(failure) => {
                compare_answer(failure, MUTATION, &again);
                assert_eq!(again.json()["ledgerStatus"], "UNKNOWN");
                assert_eq!(again.json()["resolution"], resolved.json()["resolution"]);
            }
            None => {
                let wanted = serde_json::json!({
                    "transactionId": first.transaction_id(), "status": "SUCCESS",
                    "resolution": "CONFIRMED_SUCCESS", "data": null,
                });
                assert_eq!((again.status, again.json()), (200, wanted));
            }
        }
        assert_eq!(gateway.simulator.host().counters().requests["0600"], 1, "{on_doubt} {fault:?}");
        assert_eq!(gateway.simulator.host().bank(mock_core_banking::Bank::delta), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_shared_store_is_down_what_is_known_here_is_answered_and_nothing_new_is_sent() {
    let postgres = Postgres::shared();
    let url = postgres.new_database();
    let gateway = TestGateway::start(&[("LEDGER__STORE", "postgres"), ("LEDGER__POSTGRES_URL", &url)]).await;
    let mut database = sqlx::PgConnection::connect(&url).await.unwrap();
    let first = gateway.call(&transfer("before", "1", 5)).await;
    shipped(&gateway, &first.transaction_id()).await;
    sqlx::raw_sql("BEGIN; LOCK TABLE idempotency_claim").execute(&mut database).await.unwrap();
    // The claim waits for the lock until the deadline: nothing is sent.
    let refused = gateway.call(&transfer("new", "1", 5)).await;
    compare_answer(Failure::IdempotencyUnavailable, MUTATION, &refused);
    assert_eq!(gateway.simulator.host().counters().requests["0600"], 1);
    sqlx::raw_sql("ROLLBACK").execute(&mut database).await.unwrap();
    // A claim that was committed late is released by the sweep, and the key runs.
    eventually("the key is free", async || gateway.call(&transfer("new", "1", 5)).await.status == 200).await;
    assert_eq!(gateway.simulator.host().counters().processed["0600"], 2);
    let row = gateway.call(&get(&format!("/api/ledger/{}", first.transaction_id()), AUDITOR)).await;
    assert_eq!(row.json()["status"], "SUCCESS");
}

#[tokio::test(flavor = "multi_thread")]
async fn while_our_own_store_takes_no_rows_keys_run_once_all_the_same() {
    let gateway = TestGateway::start(&[]).await;
    let url = format!("sqlite:{}/ledger.sqlite", gateway.data.path().display());
    let database = sqlx::SqlitePool::connect(&url).await.unwrap();
    let mut lock = database.acquire().await.unwrap();
    let first = gateway.call(&transfer("before", "1", 5)).await;
    shipped(&gateway, &first.transaction_id()).await;
    sqlx::query("BEGIN EXCLUSIVE").execute(&mut *lock).await.unwrap();
    let during = gateway.call(&transfer("during", "1", 5)).await;
    assert_eq!(during.status, 200, "{}", during.text);
    for (key, answered) in [("before", &first), ("during", &during)] {
        let again = gateway.call(&transfer(key, "1", 5)).await;
        assert_eq!((again.status, &again.text), (200, &answered.text), "{key}");
        let other = gateway.call(&transfer(key, "1", 6)).await;
        assert_eq!(other.code(), "IDEMPOTENCY_KEY_REUSED", "{key}");
    }
    sqlx::query("ROLLBACK").execute(&mut *lock).await.unwrap();
    shipped(&gateway, &during.transaction_id()).await;
    let again = gateway.call(&transfer("during", "1", 5)).await;
    assert_eq!((again.status, &again.text), (200, &during.text));
    assert_eq!(gateway.simulator.host().counters().requests["0600"], 2);
}
