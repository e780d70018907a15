//! How a doubt ends: undone, confirmed, or left to people; by itself and by an operator's call.

use std::time::Duration;

use gwanmun::failure::Failure;
use gwanmun::routes::Kind;
use mock_core_banking::{BookingState, Fault, FaultRule, FaultSchedule};
use serde_json::{Value, json};

use crate::client::{AUDITOR, Answer, CLIENT, OPERATOR, get, post, transfer};
use crate::harness::{TestGateway, config_text, eventually};
use crate::taxonomy::compare_answer;

const MUTATION: Kind = Kind::Mutation;

/// A gateway that resolves by itself, quickly.
const BY_ITSELF: [(&str, &str); 3] =
    [("RESOLVER__ENABLED", "true"), ("RESOLVER__WAIT_MIN", "50ms"), ("RESOLVER__POLL", "50ms")];

async fn gateway(on_doubt: &str, settings: &[(&str, &str)]) -> TestGateway {
    let text = config_text()
        .replace("amount = \"amount\"", &format!("amount = \"amount\"\non_doubt = \"{on_doubt}\""))
        .replace("deadline = \"8s\"", "deadline = \"1500ms\"");
    TestGateway::start_with(&text, Duration::from_secs(2), settings).await
}

async fn doubt(gateway: &TestGateway, key: &str, account: &str) -> String {
    let answer = gateway.call(&transfer(key, account, 5)).await;
    assert_eq!((answer.status, answer.code()), (504, "RESULT_UNKNOWN".to_owned()), "{}", answer.text);
    answer.transaction_id()
}

async fn row(gateway: &TestGateway, id: &str) -> Value {
    gateway.get(&format!("/api/ledger/{id}"), AUDITOR).await
}

async fn resolution(gateway: &TestGateway, id: &str, wanted: &str) -> Value {
    eventually(wanted, async || row(gateway, id).await["resolution"] == wanted).await;
    row(gateway, id).await
}

fn booking(gateway: &TestGateway, id: &str) -> Option<BookingState> {
    assert_eq!(gateway.simulator.host().bank(mock_core_banking::Bank::delta), 0);
    gateway.simulator.host().bank(|bank| bank.booking(id).map(|booking| booking.state))
}

/// Asks for one step now.
async fn resolve(gateway: &TestGateway, id: &str) -> Answer {
    let call = post(&format!("/api/gateway/resolve/{id}"), OPERATOR, "");
    gateway.call(&call.replace("content-type: application/json\r\n", "")).await
}

async fn by_hand(gateway: &TestGateway, id: &str, state: &str) -> Answer {
    let body = json!({"as": state, "note": "statement of the bank"}).to_string();
    gateway.call(&post(&format!("/api/gateway/resolve/{id}"), OPERATOR, &body)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_in_doubt_is_undone_by_itself_and_the_money_is_back() {
    let gateway = gateway("net-cancel", &BY_ITSELF).await;
    let id = doubt(&gateway, "k", "44444444444444").await;
    let row = resolution(&gateway, &id, "CANCELED").await;
    assert_eq!(row["status"], "UNKNOWN", "what its caller was told stands");
    assert_eq!((&row["resolutionMethod"], &row["resolvedBy"]), (&"net-cancel".into(), &"resolver".into()));
    assert_eq!(row["resolutionSteps"][0]["answered"], "cancelled", "{row}");
    assert_eq!(booking(&gateway, &id), Some(BookingState::Cancelled));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_original_is_refused_by_the_tombstone_whatever_its_delay() {
    let mut refused_late = 0;
    for delay in [1_400, 1_600, 2_500] {
        let gateway = gateway("net-cancel", &BY_ITSELF).await;
        gateway.fault_with("0600", Fault::LateOriginal, 1.0, Some(delay), None);
        let answer = gateway.call(&transfer("k", "1", 5)).await;
        let id = answer.transaction_id();
        if answer.status == 200 {
            assert_eq!(booking(&gateway, &id), Some(BookingState::Applied));
            continue;
        }
        let resolved = async || row(&gateway, &id).await["resolution"].as_str().unwrap().to_owned();
        eventually("it is resolved", async || resolved().await != "PENDING").await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let (resolved, booked) = (resolved().await, booking(&gateway, &id));
        let good = match booked {
            Some(BookingState::Tombstone) => resolved == "CONFIRMED_FAILED",
            Some(BookingState::Cancelled) => resolved == "CANCELED",
            Some(BookingState::Applied | BookingState::Declined) | None => false,
        };
        assert!(good, "{delay} ms: {resolved}, {booked:?}");
        refused_late += gateway.simulator.host().counters().refused.get("0091").copied().unwrap_or_default();
    }
    assert!(refused_late >= 1, "no original came after its cancel");
}

#[tokio::test(flavor = "multi_thread")]
async fn confirm_asks_first_and_makes_not_processed_final_by_a_net_cancel() {
    let gateway = gateway("confirm", &BY_ITSELF).await;
    let id = doubt(&gateway, "applied", "44444444444444").await;
    let applied = resolution(&gateway, &id, "CONFIRMED_SUCCESS").await;
    assert_eq!(applied["resolutionSteps"].as_array().unwrap().len(), 1, "{applied}");
    assert_eq!(booking(&gateway, &id), Some(BookingState::Applied));
    let id = doubt(&gateway, "not", "88888888888888").await;
    let not = resolution(&gateway, &id, "CONFIRMED_FAILED").await;
    let asked: Vec<_> = not["resolutionSteps"].as_array().unwrap().iter().map(|step| &step["asked"]).collect();
    assert_eq!(asked, ["status", "net-cancel"]);
    assert_eq!(booking(&gateway, &id), Some(BookingState::Tombstone));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_without_tombstones_says_it_twice_a_settle_time_apart() {
    for (on_doubt, asked) in [("net-cancel", "0420"), ("confirm", "0400")] {
        let weak =
            [("INSTITUTION__CORE_TRANSFER__TOMBSTONES", "false"), ("INSTITUTION__CORE_TRANSFER__SETTLE_TIME", "700ms")];
        let settings: Vec<_> = BY_ITSELF.into_iter().chain(weak).collect();
        let gateway = gateway(on_doubt, &settings).await;
        let began = std::time::Instant::now();
        let id = doubt(&gateway, "k", "88888888888888").await;
        eventually("it was asked once", async || {
            row(&gateway, &id).await["resolutionSteps"].as_array().is_some_and(|steps| steps.len() == 1)
        })
        .await;
        // However often it is asked in between, only time makes the answer final.
        let at_once = resolve(&gateway, &id).await;
        assert_eq!(at_once.json()["resolution"], "PENDING", "{}", at_once.text);
        let row = resolution(&gateway, &id, "CONFIRMED_FAILED").await;
        assert!(began.elapsed() >= Duration::from_millis(700 + 1_500));
        assert_eq!(row["resolutionSteps"].as_array().unwrap().len(), 3, "{row}");
        let counters = gateway.simulator.host().counters();
        assert_eq!(counters.requests[asked], 3, "{on_doubt}");
        assert_eq!(counters.requests.contains_key("0420"), on_doubt == "net-cancel");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_payee_has_spent_is_left_to_people() {
    let gateway = gateway("net-cancel", &BY_ITSELF).await;
    let host = gateway.simulator.host();
    let late = FaultRule {
        message: Some("0420".into()),
        fault: Fault::LateOriginal,
        probability: 1.0,
        delay_ms: Some(300),
        code: None,
    };
    host.set_faults(FaultSchedule { seed: 1, rules: vec![late] });
    let id = doubt(&gateway, "k", "44444444444444").await;
    // The payee spends all it has while the net-cancel is on its way.
    let all = host.bank(|bank| bank.balance("20000000000002").unwrap());
    let body = json!({"fromAccount": "20000000000002", "toAccount": "3", "amount": all, "payeeName": "A"}).to_string();
    let spent = crate::client::post_with("/api/gateway/transfer", CLIENT, "idempotency-key: s\r\n", &body);
    let spent = gateway.call(&spent).await;
    assert_eq!(spent.status, 200, "{}", spent.text);
    let manual = resolution(&gateway, &id, "MANUAL").await;
    assert_eq!(manual["resolutionSteps"][0]["answered"], "cannot-undo");
    let listed = gateway.complete("/api/ledger/unknown", AUDITOR).await;
    assert_eq!(listed["items"][0]["transactionId"], id, "manual ones stay on the list");
    let closed = by_hand(&gateway, &id, "CONFIRMED_SUCCESS").await;
    assert_eq!((closed.status, &closed.json()["resolution"]), (200, &"CONFIRMED_SUCCESS".into()), "{}", closed.text);
    assert_eq!(booking(&gateway, &id), Some(BookingState::Applied), "and that is so");
    let row = row(&gateway, &id).await;
    assert_eq!((&row["resolvedBy"], &row["resolutionNote"]), (&"operator".into(), &"statement of the bank".into()));
    let own = gateway.get(&format!("/api/ledger/{id}"), CLIENT).await;
    assert!(own["resolutionNote"].is_null() && own["resolvedBy"].is_null(), "that is between operators: {own}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_host_is_asked_until_it_answers() {
    let settings: Vec<_> = BY_ITSELF
        .into_iter()
        .chain([
            ("INSTITUTION__CORE_TRANSFER__BREAKER_FAILURES", "2"),
            ("INSTITUTION__CORE_TRANSFER__BREAKER_OPEN", "200ms"),
            ("INSTITUTION__CORE_TRANSFER__RETRIES", "0"),
        ])
        .collect();
    let gateway = gateway("net-cancel", &settings).await;
    let dead = FaultRule { message: None, fault: Fault::CloseBefore, probability: 1.0, delay_ms: None, code: None };
    gateway.simulator.host().set_faults(FaultSchedule { seed: 1, rules: vec![dead] });
    let id = doubt(&gateway, "k", "1").await;
    eventually("the circuit opens by the resolver's own questions", async || {
        gateway.circuit("core-transfer").await["openedTotal"].as_u64().unwrap() >= 2
    })
    .await;
    assert_eq!(row(&gateway, &id).await["resolution"], "PENDING");
    gateway.no_faults();
    let resolved = resolution(&gateway, &id, "CONFIRMED_FAILED").await;
    let steps = resolved["resolutionSteps"].as_array().unwrap();
    assert!(steps.iter().all(|step| step["answered"] != "circuit-open"), "nothing was asked then: {resolved}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_the_host_has_seen_is_never_cancelled() {
    let gateway = gateway("net-cancel", &BY_ITSELF).await;
    gateway.fault_with("0600", Fault::Code, 1.0, None, Some("0021"));
    let id = doubt(&gateway, "k", "1").await;
    resolution(&gateway, &id, "MANUAL").await;
    compare_answer(Failure::NotResolvable, MUTATION, &resolve(&gateway, &id).await);
    tokio::time::sleep(Duration::from_millis(300)).await;
    let asked = gateway.simulator.host().counters().requests;
    assert!(!asked.contains_key("0420") && !asked.contains_key("0400"), "{asked:?}");
    assert_eq!(by_hand(&gateway, &id, "CONFIRMED_FAILED").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_makes_a_step_and_is_told_why_it_cannot_be_made() {
    let gateway = gateway("net-cancel", &[]).await;
    let good = gateway.call(&transfer("good", "1", 5)).await.transaction_id();
    compare_answer(Failure::NotResolvable, MUTATION, &resolve(&gateway, &good).await);
    compare_answer(Failure::UnknownTransaction, MUTATION, &resolve(&gateway, "GWMNU20261129000000000").await);
    let id = doubt(&gateway, "k", "44444444444444").await;
    for key in [CLIENT, AUDITOR] {
        let call = post(&format!("/api/gateway/resolve/{id}"), key, "{}");
        assert_eq!(gateway.call(&call).await.status, 403);
    }
    for body in ["{}", r#"{"as":"SUCCESS","note":"x"}"#, r#"{"as":"CANCELED","note":" "}"#] {
        let answer = gateway.call(&post(&format!("/api/gateway/resolve/{id}"), OPERATOR, body)).await;
        assert_eq!(answer.status, 400, "{body}");
    }
    let untyped = post(&format!("/api/gateway/resolve/{id}"), OPERATOR, r#"{"as":"CANCELED","note":"x"}"#);
    let untyped = gateway.call(&untyped.replace("content-type: application/json\r\n", "")).await;
    assert_eq!(untyped.status, 415, "a body that is not read must not be taken for none");
    compare_answer(Failure::NotResolvable, MUTATION, &by_hand(&gateway, &id, "CANCELED").await);
    // Another one is at it.
    gateway.fault_with("0420", Fault::LateOriginal, 1.0, Some(600), None);
    let (first, second) = tokio::join!(resolve(&gateway, &id), async {
        eventually("the host is asked", async || gateway.simulator.host().counters().requests.contains_key("0420"))
            .await;
        resolve(&gateway, &id).await
    });
    compare_answer(Failure::ResolutionInProgress, MUTATION, &second);
    assert_eq!((first.status, &first.json()["resolution"]), (200, &"CANCELED".into()), "{}", first.text);
    let again = resolve(&gateway, &id).await;
    assert_eq!((again.status, &again.json()["resolution"]), (200, &"CANCELED".into()));
    assert_eq!(again.json()["steps"].as_array().unwrap().len(), 1);
    assert_eq!(gateway.simulator.host().counters().requests["0420"], 1);
    let unknown = gateway.call(&get("/api/reconciliation/runs/nothing", AUDITOR)).await;
    compare_answer(Failure::UnknownRun, MUTATION, &unknown);
}
