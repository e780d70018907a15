//! Several gateways on one PostgreSQL, and what becomes of the others when one of them, or the database, is gone.

use std::collections::HashSet;
use std::time::Duration;

use mock_core_banking::{Fault, FaultRule, FaultSchedule};
use sqlx::{Connection, PgConnection};
use tokio::task::JoinSet;

use crate::client::{AUDITOR, Answer, Client, OPERATOR, balance, get, post, transfer};
use crate::harness::eventually;
use crate::place::Place;
use crate::postgres::Postgres;
use crate::process::Process;

async fn call(process: &Process, request: &str) -> Answer {
    process.client().await.call(request).await
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_hundred_identical_transfers_over_two_gateways_one_is_applied() {
    let postgres = Postgres::shared();
    let place = Place::new(postgres.new_database()).await;
    let jitter = FaultRule { message: None, fault: Fault::Jitter, probability: 1.0, delay_ms: Some(80), code: None };
    place.simulator.host().set_faults(FaultSchedule { seed: 1, rules: vec![jitter] });
    let (a, b) = (place.gateway("A", &[]).await, place.gateway("B", &[]).await);
    let mut calls = JoinSet::new();
    for nth in 0..100 {
        let address = if nth % 2 == 0 { a.address } else { b.address };
        calls.spawn(async move { Client::connect(address).await.call(&transfer("one", "1", 5)).await });
    }
    let answers = calls.join_all().await;
    let good: HashSet<_> = answers.iter().filter(|answer| answer.status == 200).map(|answer| &answer.text).collect();
    assert_eq!(good.len(), 1);
    assert!(answers.iter().all(|answer| matches!(answer.status, 200 | 409)));
    assert_eq!(place.simulator.host().counters().requests["0600"], 1);
    // The other gateway knows the answer, byte for byte, as soon as it is shipped.
    for gateway in [&a, &b] {
        let mut again = call(gateway, &transfer("one", "1", 5)).await;
        eventually("the answer is there", async || {
            again = call(gateway, &transfer("one", "1", 5)).await;
            again.status == 200
        })
        .await;
        assert!(good.contains(&again.text));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_success_that_is_not_shipped_is_never_cancelled_by_another_gateway_and_answers_after_the_restart() {
    let postgres = Postgres::shared();
    let place = Place::new(postgres.new_database()).await;
    let resolving = [("RESOLVER__ENABLED", "true"), ("RESOLVER__POLL", "50ms")];
    let (a, b) = (place.gateway("A", &resolving).await, place.gateway("B", &resolving).await);
    // Nothing can be shipped; claims go on.
    let mut database = PgConnection::connect(&place.url).await.unwrap();
    sqlx::query("BEGIN").execute(&mut database).await.unwrap();
    sqlx::query("LOCK TABLE ledger IN EXCLUSIVE MODE").execute(&mut database).await.unwrap();
    let first = call(&a, &transfer("k", "1", 5)).await;
    assert_eq!(first.status, 200, "{}", first.text);
    a.kill();
    // Its lease runs: deadline and settle time. Then nobody can tell, and nobody asks.
    let running = call(&b, &transfer("k", "1", 5)).await;
    assert_eq!((running.status, running.code()), (409, "IDEMPOTENCY_IN_PROGRESS".to_owned()));
    let mut abandoned = running;
    let end = std::time::Instant::now() + Duration::from_secs(20);
    while abandoned.status != 504 {
        assert!(std::time::Instant::now() < end, "not abandoned: {}", abandoned.text);
        tokio::time::sleep(Duration::from_millis(200)).await;
        abandoned = call(&b, &transfer("k", "1", 5)).await;
    }
    assert_eq!(abandoned.transaction_id(), first.transaction_id());
    assert_eq!(abandoned.headers["idempotent-replayed"], "true");
    eventually("it is on the list", async || {
        let listed = call(&b, &get("/api/ledger/unknown", AUDITOR)).await.json();
        listed["items"][0]["transactionId"] == first.transaction_id() && listed["items"][0]["resolution"] == "ABANDONED"
    })
    .await;
    let shown = call(&b, &get(&format!("/api/ledger/{}", first.transaction_id()), AUDITOR)).await;
    assert_eq!(shown.json()["resolution"], "ABANDONED", "{}", shown.text);
    let asked = call(&b, &post(&format!("/api/gateway/resolve/{}", first.transaction_id()), OPERATOR, "")).await;
    assert_eq!((asked.status, asked.code()), (409, "NOT_RESOLVABLE".to_owned()));
    let requests = place.simulator.host().counters().requests;
    assert!(!requests.contains_key("0420") && !requests.contains_key("0400"), "{requests:?}");
    sqlx::query("ROLLBACK").execute(&mut database).await.unwrap();
    // Now B could write whatever it liked, and has time for many polls and sweeps.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let still = call(&b, &transfer("k", "1", 5)).await;
    assert_eq!((still.status, still.transaction_id()), (504, first.transaction_id()), "{}", still.text);
    let requests = place.simulator.host().counters().requests;
    assert!(!requests.contains_key("0420") && !requests.contains_key("0400"), "{requests:?}");
    let a = place.gateway("A", &resolving).await;
    for gateway in [&a, &b] {
        let mut again = call(gateway, &transfer("k", "1", 5)).await;
        eventually("its own outcome wins", async || {
            again = call(gateway, &transfer("k", "1", 5)).await;
            again.status == 200
        })
        .await;
        assert_eq!(again.text, first.text);
    }
    let requests = place.simulator.host().counters().requests;
    assert_eq!((requests["0600"], requests.contains_key("0420")), (1, false), "{requests:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_free_before_its_503_leaves_also_when_nothing_can_be_shipped() {
    let postgres = Postgres::shared();
    let place = Place::new(postgres.new_database()).await;
    // A port that nobody listens on.
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let a = place.gateway("A", &[("INSTITUTION__CORE_TRANSFER__ADDRESS", &unused)]).await;
    let mut database = PgConnection::connect(&place.url).await.unwrap();
    sqlx::query("BEGIN").execute(&mut database).await.unwrap();
    sqlx::query("LOCK TABLE ledger IN EXCLUSIVE MODE").execute(&mut database).await.unwrap();
    let mut ids = HashSet::new();
    for _ in 0..3 {
        let answer = call(&a, &transfer("k", "1", 5)).await;
        assert_eq!((answer.status, answer.code()), (503, "HOST_UNREACHABLE".to_owned()), "{}", answer.text);
        assert!(ids.insert(answer.transaction_id()), "it ran anew");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retired_journals_claims_are_asked_about_and_its_gateway_does_not_start_again() {
    let postgres = Postgres::shared();
    let place = Place::new(postgres.new_database()).await;
    let resolving = [("RESOLVER__ENABLED", "true"), ("RESOLVER__POLL", "50ms"), ("RESOLVER__WAIT_MIN", "50ms")];
    let (a, b) = (place.gateway("A", &[]).await, place.gateway("B", &resolving).await);
    // A dies while the host has its transfer and has not answered.
    let late =
        FaultRule { message: Some("0600".into()), fault: Fault::Stall, probability: 1.0, delay_ms: None, code: None };
    place.simulator.host().set_faults(FaultSchedule { seed: 1, rules: vec![late] });
    let mut caller = a.client().await;
    caller.send(&transfer("k", "1", 5)).await;
    eventually("the host has it", async || place.simulator.host().counters().requests.contains_key("0600")).await;
    a.kill();
    place.simulator.host().set_faults(FaultSchedule::default());
    let journal = journal_of(&place.url, "A").await;
    let config = place.config("B");
    let retired = std::process::Command::new(env!("CARGO_BIN_EXE_gwanmun"))
        .args(["ledger", "retire", &journal, "--config"])
        .arg(&config)
        .env("GWANMUN_LEDGER__STORE", "postgres")
        .env("GWANMUN_LEDGER__POSTGRES_URL", &place.url)
        .output()
        .unwrap();
    assert!(retired.status.success(), "{}", String::from_utf8_lossy(&retired.stderr));
    assert!(String::from_utf8_lossy(&retired.stdout).contains("1 claim"), "{:?}", retired.stdout);
    // Asked about, and never undone unasked: the status says "not processed", a net-cancel makes that final.
    let mut told = call(&b, &transfer("k", "1", 5)).await;
    eventually("it is resolved", async || {
        told = call(&b, &transfer("k", "1", 5)).await;
        told.code() == "TRANSACTION_NOT_PROCESSED"
    })
    .await;
    assert_eq!(place.simulator.host().counters().requests["0400"], 1);
    let refused = std::process::Command::new(env!("CARGO_BIN_EXE_gwanmun"))
        .args(["serve", "--config"])
        .arg(place.config("A"))
        .env("GWANMUN_LEDGER__STORE", "postgres")
        .env("GWANMUN_LEDGER__POSTGRES_URL", &place.url)
        .env("GWANMUN_LEDGER__INSTANCE", "A")
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(69), "{}", String::from_utf8_lossy(&refused.stderr));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("retired"));
}

async fn journal_of(url: &str, letter: &str) -> String {
    let mut database = PgConnection::connect(url).await.unwrap();
    let journal: Vec<u8> = sqlx::query_scalar("SELECT journal_id FROM instance_lease WHERE instance = $1")
        .bind(letter)
        .fetch_one(&mut database)
        .await
        .unwrap();
    hex::encode(journal)
}

/// `DOWN_SECONDS=60` keeps the database away for longer.
#[tokio::test(flavor = "multi_thread")]
async fn while_the_database_is_down_inquiries_go_on_and_mutations_are_refused_unsent() {
    let mut postgres = Postgres::start();
    let place = Place::new(postgres.new_database()).await;
    let gateway = place.gateway("A", &[]).await;
    let mut client = gateway.client().await;
    assert_eq!(client.call(&transfer("before", "1", 5)).await.status, 200);
    postgres.stop();
    let seconds = std::env::var("DOWN_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    let end = std::time::Instant::now() + Duration::from_secs(seconds);
    // Together they would fill the admission places if each waited for its deadline, and keep inquiries out.
    let mut transfers = JoinSet::new();
    for caller in 0..200 {
        let address = gateway.address;
        transfers.spawn(async move {
            let mut client = Client::connect(address).await;
            let mut refused = 0;
            while std::time::Instant::now() < end {
                let answer = client.call(&transfer(&format!("down-{caller}"), "1", 5)).await;
                assert_eq!((answer.status, answer.code()), (503, "IDEMPOTENCY_UNAVAILABLE".to_owned()));
                refused += 1;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            refused
        });
    }
    let mut inquiries = 0;
    while std::time::Instant::now() < end {
        let answer = client.call(&balance("1")).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        inquiries += 1;
    }
    let refused: i64 = transfers.join_all().await.iter().sum();
    // If each waited for its deadline, one caller could be refused once or twice.
    assert!(refused > 200 * 3, "they wait instead of being told: {refused}");
    assert_eq!(place.simulator.host().counters().requests["0600"], 1, "nothing was sent");
    println!("{inquiries} inquiries answered and {refused} transfers refused in {seconds} s without a database");
    postgres.start_again();
    eventually("the keys run", async || client.call(&transfer("down-0", "1", 5)).await.status == 200).await;
    // Everything that was answered gets into the database.
    let mut database = PgConnection::connect(&place.url).await.unwrap();
    let counting = std::time::Instant::now();
    let end = counting + Duration::from_secs(10 + 4 * seconds);
    let mut count: i64 = 0;
    while count < inquiries + 2 {
        assert!(std::time::Instant::now() < end, "{count} of {inquiries} rows are in the database");
        tokio::time::sleep(Duration::from_millis(100)).await;
        let counted = sqlx::query_scalar("SELECT COUNT(*) FROM ledger WHERE status = 'SUCCESS'");
        count = counted.fetch_one(&mut database).await.unwrap();
    }
    assert_eq!(count, inquiries + 2);
    println!("all {count} rows are in the database {:.1} s after it came back", counting.elapsed().as_secs_f64());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_would_lose_commits_is_refused() {
    let postgres = Postgres::shared();
    let place = Place::new(postgres.new_database()).await;
    let url = format!("{}?options[synchronous_commit]=off", place.url);
    let started = gwanmun::ledger::Store::postgres(&url).await;
    assert!(started.is_err_and(|error| error.to_string().contains("synchronous_commit")));
}
