//! Every failure that can be reached is driven once, and what the caller, the ledger, the breaker and the connection show
//! is compared with the one table.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gwanmun::failure::{Counts, Failure, Fate, Policy, Record};
use gwanmun::routes::Kind;
use mock_core_banking::Fault;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::client::{AUDITOR, Answer, CLIENT, OPERATOR, balance, get, post, post_with, transfer};
use crate::harness::{TestGateway, config_text, eventually};
use crate::scripted_host::{ScriptedHost, balance_reply, read_balance_request};
use crate::seams::{self, Switches, WRITE_NOTHING, WRITE_TEN, switched};

const BOTH: [Kind; 2] = [Kind::Inquiry, Kind::Mutation];

fn institution(kind: Kind) -> &'static str {
    if kind == Kind::Inquiry { "core-banking" } else { "core-transfer" }
}

fn message(kind: Kind) -> &'static str {
    if kind == Kind::Inquiry { "0200" } else { "0600" }
}

fn request(kind: Kind, account: &str) -> String {
    match kind {
        Kind::Inquiry => balance(account),
        Kind::Mutation => transfer(&format!("key-{}", fastrand::u64(..)), account, 1_000),
    }
}

const QUICK: [(&str, &str); 10] = [
    ("INSTITUTION__CORE_BANKING__CONNECT_TIMEOUT", "300ms"),
    ("INSTITUTION__CORE_TRANSFER__CONNECT_TIMEOUT", "300ms"),
    ("INSTITUTION__CORE_HISTORY__CONNECT_TIMEOUT", "300ms"),
    ("INSTITUTION__CORE_SETTLEMENT__CONNECT_TIMEOUT", "300ms"),
    ("INSTITUTION__CORE_BANKING__RETRIES", "0"),
    ("INSTITUTION__CORE_TRANSFER__RETRIES", "0"),
    ("INSTITUTION__CORE_HISTORY__RETRIES", "0"),
    ("INSTITUTION__CORE_BANKING__CONNECTIONS_MAX", "1"),
    ("INSTITUTION__CORE_TRANSFER__CONNECTIONS_MAX", "1"),
    ("SERVER__BODY_TIMEOUT", "300ms"),
];

/// Short deadlines, and beside each route a patient twin that keeps a line busy for longer.
fn quick_text() -> String {
    let text = config_text().replace("deadline = \"8s\"", "deadline = \"1200ms\"");
    let (institutions, routes) = text.split_at(text.find("[[route]]").unwrap());
    let twins = routes.split("[[client]]").next().unwrap().replace("name = \"", "name = \"patient-");
    let twins = twins.replace("/api/gateway/", "/api/patient/").replace(", \"/api/history\"", "");
    format!("{institutions}{}{routes}", twins.replace("1200ms", "8s"))
}

async fn quick(more: &[(&str, &str)]) -> TestGateway {
    let overrides: Vec<_> = QUICK.iter().chain(more).copied().collect();
    TestGateway::start_with(&quick_text(), Duration::from_secs(2), &overrides).await
}

async fn quick_on_switches(switches: &Arc<Switches>) -> (TestGateway, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let gateway =
        TestGateway::start_on(switched(&folder.path().join("journal"), switches), &quick_text(), &QUICK).await;
    (gateway, folder)
}

/// Two counters and a gauge before and after.
struct Before {
    failures: u64,
    destroyed: u64,
}

async fn before(gateway: &TestGateway, kind: Kind) -> Before {
    Before {
        failures: gateway.circuit(institution(kind)).await["consecutiveFailures"].as_u64().unwrap(),
        destroyed: gateway.pool(institution(kind)).await["destroyed"].as_u64().unwrap(),
    }
}

/// One counted failure on a connection that is kept: from here the breaker shows success, failure and neither apart.
async fn prime(gateway: &TestGateway, kind: Kind) {
    gateway.fault_with(message(kind), Fault::Code, 1.0, None, Some("0098"));
    assert_eq!(gateway.call(&request(kind, "1")).await.status, 502);
    gateway.no_faults();
}

pub(crate) fn compare_answer(failure: Failure, kind: Kind, answer: &Answer) -> Policy {
    let policy = failure.policy(kind);
    let body = answer.json();
    let context = format!("{failure:?} {kind:?}: {body}");
    assert_eq!(answer.status, policy.http, "{context}");
    assert_eq!(body["code"], policy.code, "{context}");
    assert_eq!(body["status"], policy.http, "{context}");
    assert_eq!(body["type"], format!("urn:gwanmun:problem:{}", policy.code), "{context}");
    assert_eq!(body["retryable"], failure.is_retryable(kind), "{context}");
    assert_eq!(answer.headers.contains_key("retry-after"), failure.is_retryable(kind), "{context}");
    assert_eq!(answer.headers["content-type"], "application/problem+json");
    assert_eq!(body["correlationId"], answer.headers["x-correlation-id"]);
    assert!(!body["detail"].as_str().unwrap().is_empty());
    policy
}

/// Compares what a driven failure shows with the table.
async fn compare(gateway: &TestGateway, failure: Failure, kind: Kind, before: &Before, answer: &Answer) {
    let policy = compare_answer(failure, kind, answer);
    let context = format!("{failure:?} {kind:?}");
    let row = gateway.call(&get(&format!("/api/ledger/{}", answer.transaction_id()), AUDITOR)).await;
    match policy.record {
        Record::None => assert!(!answer.headers.contains_key("x-transaction-id"), "{context}"),
        Record::Failed(_) | Record::Unknown => {
            let row = row.json();
            assert_eq!(row["status"], policy.record.status().unwrap().name(), "{context}: {row}");
            assert_eq!(answer.json()["ledgerStatus"], row["status"], "{context}");
            let proof = if let Record::Failed(proof) = policy.record { Value::from(proof.name()) } else { Value::Null };
            assert_eq!(row["proof"], proof, "{context}: {row}");
            assert_eq!(row["detail"], failure.name(), "{context}: {row}");
        }
    }
    let circuit = gateway.circuit(institution(kind)).await;
    let failures = circuit["consecutiveFailures"].as_u64().unwrap();
    let expected = match policy.counts {
        Counts::Never | Counts::Aborted => before.failures,
        Counts::Failure => before.failures + 1,
        Counts::Success => 0,
    };
    assert_eq!(failures, expected, "{context}: {circuit}");
    let pool = gateway.pool(institution(kind)).await;
    let destroyed = pool["destroyed"].as_u64().unwrap() - before.destroyed;
    match policy.fate {
        Fate::None => assert_eq!(destroyed, 0, "{context}: {pool}"),
        Fate::Kept => assert_eq!((destroyed, &pool["idle"]), (0, &1.into()), "{context}: {pool}"),
        // A connection that never came to be is not counted as destroyed.
        Fate::Closed if failure == Failure::HostUnreachable => assert_eq!(pool["idle"], 0, "{context}: {pool}"),
        Fate::Closed | Fate::ClosedAndFlushed => {
            assert_eq!((destroyed, &pool["idle"]), (1, &0.into()), "{context}: {pool}");
        }
    }
    assert_eq!(pool["active"], 0, "{context}: {pool}");
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_that_the_simulator_can_cause() {
    let account = |failure| match failure {
        Failure::EchoMismatch => Some("55555555555555"),
        Failure::UndecodableReply => Some("66666666666666"),
        Failure::HostDeclined => Some("0"),
        _ => None,
    };
    for kind in BOTH {
        let gateway = quick(&[]).await;
        for (failure, fault, code) in [
            (Failure::EchoMismatch, None, None),
            (Failure::UndecodableReply, None, None),
            (Failure::HostDeclined, None, None),
            (Failure::HostNotProcessed, Some(Fault::Code), Some("0098")),
            (Failure::InDoubtCode, Some(Fault::Code), Some("0099")),
            (Failure::DuplicateId, Some(Fault::Code), Some("0021")),
            (Failure::InDoubtCode, Some(Fault::Code), Some("7777")),
            (Failure::ReadTimeout, Some(Fault::Stall), None),
            (Failure::StaleConnection, Some(Fault::CloseBefore), None),
        ] {
            let good = gateway.call(&request(kind, "1")).await;
            assert_eq!(good.status, 200, "{}", good.text);
            prime(&gateway, kind).await;
            if let Some(fault) = fault {
                gateway.fault_with(message(kind), fault, 1.0, None, code);
            }
            let before = before(&gateway, kind).await;
            let answer = gateway.call(&request(kind, account(failure).unwrap_or("1"))).await;
            compare(&gateway, failure, kind, &before, &answer).await;
            gateway.no_faults();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_ends_is_lost_when_it_is_fresh_or_a_part_of_the_reply_has_come() {
    for kind in BOTH {
        let gateway = quick(&[]).await;
        for fault in [Fault::CloseBefore, Fault::CloseAfter, Fault::Half] {
            prime(&gateway, kind).await;
            if fault != Fault::Half {
                gateway.simulator.host().close_idle();
                eventually("the simulator closed its idle connections", async || {
                    gateway.simulator.host().counters().connections.open == 0
                })
                .await;
            }
            gateway.fault(message(kind), fault, 1.0);
            let mut before = before(&gateway, kind).await;
            before.destroyed += u64::from(fault != Fault::Half);
            let answer = gateway.call(&request(kind, "1")).await;
            compare(&gateway, Failure::ConnectionLost, kind, &before, &answer).await;
            gateway.no_faults();
            assert_eq!(gateway.call(&request(kind, "1")).await.status, 200);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_whose_length_makes_no_sense_is_a_bad_frame() {
    let host = ScriptedHost::start(|mut stream, _| async move {
        let mut request = [0; 124];
        if stream.read_exact(&mut request).await.is_err() {
            return;
        }
        stream.write_all(b"+012 never skipped to find a frame").await.unwrap();
        stream.read_to_end(&mut Vec::new()).await.ok();
    })
    .await;
    let address = host.address.to_string();
    let gateway = quick(&[("INSTITUTION__CORE_TRANSFER__ADDRESS", &address)]).await;
    let before = before(&gateway, Kind::Mutation).await;
    let answer = gateway.call(&request(Kind::Mutation, "1")).await;
    compare(&gateway, Failure::BadFrame, Kind::Mutation, &before, &answer).await;
    let answer = gateway.call(&post("/api/gateway/exchange-rate", CLIENT, r#"{"currency":"USD"}"#)).await;
    assert_eq!((answer.status, answer.code()), (504, "RESULT_UNKNOWN".to_owned()), "the host waits for 124 bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_drips_does_not_outlast_the_deadline() {
    let host = ScriptedHost::start(|mut stream, _| async move {
        let Some(request) = read_balance_request(&mut stream).await else { return };
        for byte in balance_reply(&request) {
            if stream.write_all(&[byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    })
    .await;
    let address = host.address.to_string();
    let gateway = quick(&[("INSTITUTION__CORE_BANKING__ADDRESS", &address)]).await;
    let before = before(&gateway, Kind::Inquiry).await;
    let began = std::time::Instant::now();
    let answer = gateway.call(&request(Kind::Inquiry, "1")).await;
    let took = began.elapsed();
    compare(&gateway, Failure::ReadTimeout, Kind::Inquiry, &before, &answer).await;
    // The deadline is 1.2 s, the whole reply would take 12 s; the rest is a busy machine's.
    assert!((Duration::from_millis(1_150)..Duration::from_millis(2_200)).contains(&took), "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_cannot_be_reached_is_failed_with_the_connection_as_proof() {
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let addresses =
        [("INSTITUTION__CORE_BANKING__ADDRESS", &*unused), ("INSTITUTION__CORE_TRANSFER__ADDRESS", &unused)];
    let gateway = quick(&addresses).await;
    for kind in BOTH {
        let before = before(&gateway, kind).await;
        let answer = gateway.call(&request(kind, "1")).await;
        compare(&gateway, Failure::HostUnreachable, kind, &before, &answer).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn our_own_jam_is_failed_before_sending_and_never_the_hosts_fault() {
    for kind in BOTH {
        let waits =
            [("INSTITUTION__CORE_BANKING__BORROW_WAIT", "100ms"), ("INSTITUTION__CORE_TRANSFER__BORROW_WAIT", "100ms")];
        let gateway = quick(&waits).await;
        gateway.fault(message(kind), Fault::Stall, 1.0);
        let mut busy = gateway.client().await;
        let patient = request(kind, "1").replacen("/api/gateway/", "/api/patient/", 1);
        busy.send(&patient).await;
        eventually("the line is busy", async || {
            gateway.simulator.host().counters().requests.contains_key(message(kind))
        })
        .await;
        let answer = gateway.call(&request(kind, "1")).await;
        let policy = compare_answer(Failure::PoolExhausted, kind, &answer);
        let row = gateway.get(&format!("/api/ledger/{}", answer.transaction_id()), AUDITOR).await;
        assert_eq!((&row["status"], &row["proof"]), (&"FAILED".into(), &"P0".into()));
        assert_eq!(row["detail"], Failure::PoolExhausted.name());
        assert_eq!(policy.counts, Counts::Aborted);
        let circuit = gateway.circuit(institution(kind)).await;
        assert_eq!(circuit["consecutiveFailures"], 0, "{circuit}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_circuit_sends_nothing() {
    for kind in BOTH {
        let gateway = quick(&[]).await;
        gateway.fault_with(message(kind), Fault::Code, 1.0, None, Some("0098"));
        for _ in 0..5 {
            assert_eq!(gateway.call(&request(kind, "1")).await.status, 502);
        }
        let sent = gateway.simulator.host().counters().requests[message(kind)];
        let mut before = before(&gateway, kind).await;
        before.failures = 0;
        let answer = gateway.call(&request(kind, "1")).await;
        compare(&gateway, Failure::CircuitOpen, kind, &before, &answer).await;
        assert!((1..=6).contains(&answer.headers["retry-after"].parse::<u64>().unwrap()));
        assert_eq!(gateway.simulator.host().counters().requests[message(kind)], sent);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_that_fail_are_told_apart_by_the_bytes_that_left() {
    for kind in BOTH {
        for (write, warm, failure) in [
            (WRITE_NOTHING, false, Failure::WroteNothingFresh),
            (WRITE_NOTHING, true, Failure::WroteNothingReused),
            (WRITE_TEN, false, Failure::WriteBroken),
        ] {
            let switches = Arc::new(Switches::default());
            let (gateway, _folder) = quick_on_switches(&switches).await;
            if warm {
                assert_eq!(gateway.call(&request(kind, "1")).await.status, 200);
            }
            switches.write.store(write, Ordering::SeqCst);
            let before = before(&gateway, kind).await;
            let answer = gateway.call(&request(kind, "1")).await;
            compare(&gateway, failure, kind, &before, &answer).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_want_of_our_own_sockets_is_our_jam_and_not_the_hosts_fault() {
    for kind in BOTH {
        let switches = Arc::new(Switches::default());
        let (gateway, _folder) = quick_on_switches(&switches).await;
        Switches::set(&switches.no_descriptors);
        for _ in 0..6 {
            let before = before(&gateway, kind).await;
            let answer = gateway.call(&request(kind, "1")).await;
            compare(&gateway, Failure::NoLocalSocket, kind, &before, &answer).await;
        }
        assert_eq!(gateway.circuit(institution(kind)).await["openedTotal"], 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_is_failed_before_sending_and_unknown_after() {
    for kind in BOTH {
        let switches = Arc::new(Switches::default());
        let (gateway, _folder) = quick_on_switches(&switches).await;
        Switches::set(&switches.disk_panics);
        let before_panic = before(&gateway, kind).await;
        let answer = gateway.call(&request(kind, "1")).await;
        compare_panic(&gateway, Failure::InternalBeforeSend, kind, &before_panic, &answer).await;
        Switches::set(&switches.read_panics);
        let before_panic = before(&gateway, kind).await;
        let answer = gateway.call(&request(kind, "1")).await;
        compare_panic(&gateway, Failure::InternalAfterSend, kind, &before_panic, &answer).await;
    }
}

/// A guard writes `panic` into the row, for it can't know the failure's name.
async fn compare_panic(gateway: &TestGateway, failure: Failure, kind: Kind, before: &Before, answer: &Answer) {
    let policy = compare_answer(failure, kind, answer);
    let row = gateway.get(&format!("/api/ledger/{}", answer.transaction_id()), AUDITOR).await;
    assert_eq!(row["status"], policy.record.status().unwrap().name(), "{failure:?}: {row}");
    assert_eq!(row["detail"], "panic");
    let circuit = gateway.circuit(institution(kind)).await;
    assert_eq!(circuit["consecutiveFailures"], before.failures, "{failure:?}: {circuit}");
    assert_eq!(gateway.pool(institution(kind)).await["active"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_intent_cannot_be_written_nothing_is_sent() {
    for kind in BOTH {
        let switches = Arc::new(Switches::default());
        let (gateway, _folder) = quick_on_switches(&switches).await;
        let mut client = gateway.client().await;
        Switches::set(&switches.disk_fails);
        let answer = client.call(&request(kind, "1")).await;
        // The journal has failed for good, so there is no row either: the process stops.
        compare_answer(Failure::IntentNotDurable, kind, &answer);
        assert!(!gateway.simulator.host().counters().requests.contains_key(message(kind)));
        assert!(gateway.serving.await.unwrap().is_err(), "the process must stop");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_that_cannot_be_written_is_in_doubt_and_the_process_stops() {
    for kind in BOTH {
        let switches = Arc::new(Switches::default());
        let (gateway, _folder) = quick_on_switches(&switches).await;
        gateway.fault_with(message(kind), Fault::Late, 1.0, Some(300), None);
        let mut client = gateway.client().await;
        client.send(&request(kind, "1")).await;
        eventually("it was sent", async || gateway.simulator.host().counters().requests.contains_key(message(kind)))
            .await;
        Switches::set(&switches.disk_fails);
        let answer = client.read().await.unwrap();
        compare_answer(Failure::OutcomeNotDurable, kind, &answer);
        assert!(gateway.serving.await.unwrap().is_err(), "the process must stop");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mutation_that_is_at_the_host_when_the_journal_fails_is_in_doubt_and_never_called_unsent() {
    let switches = Arc::new(Switches::default());
    let (gateway, _folder) = quick_on_switches(&switches).await;
    gateway.fault("0600", Fault::Stall, 1.0);
    let mut sent = gateway.client().await;
    sent.send(&request(Kind::Mutation, "1").replacen("/api/gateway/", "/api/patient/", 1)).await;
    eventually("it was sent", async || gateway.simulator.host().counters().requests.contains_key("0600")).await;
    let mut other = gateway.client().await;
    Switches::set(&switches.disk_fails);
    other.call(&request(Kind::Inquiry, "1")).await;
    let answer = sent.read().await.unwrap();
    assert_eq!((answer.status, answer.code()), (504, "RESULT_UNKNOWN".to_owned()), "{}", answer.text);
    assert!(!answer.transaction_id().is_empty());
    assert!(gateway.serving.await.unwrap().is_err(), "the process must stop");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_journal_that_does_not_sync_in_time_keeps_the_deadline_and_sends_no_mutation() {
    let switches = Arc::new(Switches::default());
    let (gateway, _folder) = quick_on_switches(&switches).await;
    assert_eq!(gateway.call(&request(Kind::Mutation, "1")).await.status, 200);
    Switches::set(&switches.disk_is_slow);
    let began = std::time::Instant::now();
    let answer = gateway.call(&request(Kind::Mutation, "1")).await;
    compare_answer(Failure::DeadlineBeforeSend, Kind::Mutation, &answer);
    // The deadline is 1.2 s and a sync takes 3 s.
    assert!(began.elapsed() < Duration::from_millis(2_900), "{:?}", began.elapsed());
    assert_eq!(gateway.call(&request(Kind::Inquiry, "1")).await.status, 200, "inquiries don't wait for syncs");
    assert_eq!(gateway.simulator.host().counters().requests["0600"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mutations_success_is_not_told_before_it_is_durable() {
    let switches = Arc::new(Switches::default());
    let (gateway, _folder) = quick_on_switches(&switches).await;
    gateway.fault_with("0600", Fault::Late, 1.0, Some(300), None);
    let mut client = gateway.client().await;
    client.send(&request(Kind::Mutation, "1")).await;
    eventually("it was sent", async || gateway.simulator.host().counters().requests.contains_key("0600")).await;
    Switches::set(&switches.disk_is_slow);
    let answer = client.read().await.unwrap();
    assert_eq!((answer.status, answer.code()), (504, "RESULT_UNKNOWN".to_owned()), "{}", answer.text);
    // It was written all the same, and is there once it is durable.
    let path = format!("/api/ledger/{}", answer.transaction_id());
    eventually("the row says what happened", async || {
        gateway.call(&get(&path, AUDITOR)).await.json()["status"] == "SUCCESS"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_behind_a_reply_close_the_line_and_make_a_reply_without_an_id_worthless() {
    for fault in [Fault::Surplus, Fault::Twice] {
        for kind in BOTH {
            let lines = [
                ("INSTITUTION__CORE_BANKING__CONNECTIONS_MAX", "2"),
                ("INSTITUTION__CORE_TRANSFER__CONNECTIONS_MAX", "2"),
            ];
            let gateway = quick(&lines).await;
            // Two idle lines; one will see the surplus, the other is older.
            gateway.fault_with(message(kind), Fault::Late, 1.0, Some(100), None);
            let (mut one, mut other) = (gateway.client().await, gateway.client().await);
            one.send(&request(kind, "1")).await;
            other.send(&request(kind, "1")).await;
            assert_eq!((one.read().await.unwrap().status, other.read().await.unwrap().status), (200, 200));
            assert_eq!(gateway.pool(institution(kind)).await["idle"], 2);
            gateway.fault(message(kind), fault, 1.0);
            let answer = gateway.call(&request(kind, "1")).await;
            // A transfer's reply echoes the id and can be nobody else's; a balance's could be.
            let wanted = if kind == Kind::Mutation { 200 } else { 502 };
            assert_eq!(answer.status, wanted, "{fault:?} {}", answer.text);
            let pool = gateway.pool(institution(kind)).await;
            assert_eq!((&pool["idle"], &pool["destroyed"]), (&0.into(), &2.into()), "{fault:?} {kind:?}: {pool}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_ends_what_does_not_end_in_time() {
    for kind in BOTH {
        let text = config_text();
        let overrides = [
            ("SERVER__DRAIN", "500ms"),
            ("INSTITUTION__CORE_BANKING__CONNECTIONS_MAX", "1"),
            ("INSTITUTION__CORE_TRANSFER__CONNECTIONS_MAX", "1"),
            ("INSTITUTION__CORE_BANKING__BORROW_WAIT", "7s"),
            ("INSTITUTION__CORE_TRANSFER__BORROW_WAIT", "7s"),
        ];
        let gateway = TestGateway::start_with(&text, Duration::from_secs(6), &overrides).await;
        gateway.fault(message(kind), Fault::Stall, 1.0);
        let (mut sent, mut waiting) = (gateway.client().await, gateway.client().await);
        sent.send(&request(kind, "1")).await;
        eventually("it was sent", async || gateway.simulator.host().counters().requests.contains_key(message(kind)))
            .await;
        waiting.send(&request(kind, "1")).await;
        eventually("one waits", async || gateway.pool(institution(kind)).await["waiting"] == 1).await;
        let mut late = gateway.client().await;
        assert_eq!(late.call(&get("/health/ready", "")).await.status, 200);
        gateway.stop.cancel();
        compare_answer(Failure::ShutdownAfterSend, kind, &sent.read().await.unwrap());
        compare_answer(Failure::ShutdownBeforeSend, kind, &waiting.read().await.unwrap());
        gateway.serving.await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_at_the_door_leave_no_row() {
    let gateway = quick(&[]).await;
    let path = "/api/gateway/balance";
    let (inquiry, mutation) = (Kind::Inquiry, Kind::Mutation);
    let payee = |name: &str| {
        let body = format!(r#"{{"fromAccount":"1","toAccount":"2","amount":1,"payeeName":"{name}"}}"#);
        post_with("/api/gateway/transfer", CLIENT, "idempotency-key: k\r\n", &body)
    };
    let big = format!(r#"{{"accountNo":"{}"}}"#, "1".repeat(20_000));
    let with_key = |key: &str| post_with("/api/gateway/transfer", CLIENT, key, "{}");
    for (failure, kind, request) in [
        (Failure::InvalidRequest, inquiry, post(path, CLIENT, r#"{"accountNo":"1""#)),
        (Failure::InvalidRequest, inquiry, post(path, CLIENT, r#"{"accountNo":"1","x":1}"#)),
        (Failure::FieldTooLong, inquiry, post(path, CLIENT, r#"{"accountNo":"123456789012345"}"#)),
        (Failure::FieldTooLong, mutation, payee("가나다라마바사아자차카")),
        (Failure::UnmappableCharacter, mutation, payee("똠")),
        (Failure::BodyTooLarge, inquiry, post(path, CLIENT, &big)),
        (Failure::UnsupportedMediaType, inquiry, post(path, CLIENT, "{}").replace("application/json", "text/plain")),
        (Failure::Unauthenticated, inquiry, post(path, "wrong", "{}")),
        (Failure::Unauthenticated, inquiry, get("/api/no/such/path", "")),
        (Failure::Forbidden, inquiry, post(path, AUDITOR, "{}")),
        (Failure::Forbidden, inquiry, get("/api/circuit/stats", CLIENT)),
        (Failure::UnknownRoute, inquiry, post("/api/gateway/nothing", CLIENT, "{}")),
        (Failure::MethodNotAllowed, inquiry, get(path, CLIENT)),
        (Failure::UnknownTransaction, inquiry, get("/api/ledger/GWMNU20261129000000000", CLIENT)),
        (Failure::IdempotencyKeyMissing, mutation, with_key("")),
        (Failure::IdempotencyKeyInvalid, mutation, with_key("idempotency-key: a b\r\n")),
        (Failure::IdempotencyKeyInvalid, mutation, with_key("idempotency-key: a\r\nidempotency-key: b\r\n")),
        (Failure::IdempotencyKeyInvalid, mutation, with_key(&format!("idempotency-key: {}\r\n", "k".repeat(256)))),
    ] {
        let answer = gateway.call(&request).await;
        compare_answer(failure, kind, &answer);
        assert!(!answer.headers.contains_key("x-transaction-id"), "{failure:?}");
    }
    let mut slow = gateway.client().await;
    slow.send(&post(path, CLIENT, "{}").replace("content-length: 2\r\n\r\n{}", "content-length: 2\r\n\r\n{")).await;
    compare_answer(Failure::RequestTimeout, inquiry, &slow.read().await.unwrap());
    assert!(slow.read().await.is_none(), "the connection is closed");

    // What a key that was used before leads to is driven in `idempotency`.
    assert_eq!(gateway.rows().await.len(), 0, "none of these is a transaction");
    assert!(!gateway.simulator.host().counters().requests.contains_key("0600"));

    let url = format!("sqlite:{}/ledger.sqlite", gateway.data.path().display());
    let database = sqlx::SqlitePool::connect(&url).await.unwrap();
    sqlx::query("DROP TABLE idempotency_claim").execute(&database).await.unwrap();
    compare_answer(Failure::IdempotencyUnavailable, mutation, &gateway.call(&transfer("new", "1", 5)).await);
    assert_eq!(gateway.call(&balance("1")).await.status, 200, "inquiries go on");
    sqlx::query("DROP TABLE ledger").execute(&database).await.unwrap();
    compare_answer(Failure::LedgerUnreadable, inquiry, &gateway.call(&get("/api/ledger", AUDITOR)).await);
    assert!(!gateway.simulator.host().counters().requests.contains_key("0600"));
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_at_the_door_answer_at_once() {
    let limits = [("CLIENT_LIMIT__BURST", "2"), ("CLIENT_LIMIT__RATE", "1")];
    let gateway = quick(&limits).await;
    for _ in 0..2 {
        assert_eq!(gateway.call(&balance("1")).await.status, 200);
    }
    let answer = gateway.call(&balance("1")).await;
    compare_answer(Failure::RateLimited, Kind::Inquiry, &answer);
    assert_eq!((&*answer.headers["ratelimit-remaining"], &*answer.headers["ratelimit-limit"]), ("0", "2"));
    gateway.complete("/api/ledger", CLIENT).await;

    let gateway = quick(&[("SERVER__ADMISSION_MAX", "1")]).await;
    gateway.fault_with("0200", Fault::Late, 1.0, Some(500), None);
    let mut first = gateway.client().await;
    first.send(&balance("1")).await;
    eventually("the place is taken", async || gateway.simulator.host().counters().requests.contains_key("0200")).await;
    compare_answer(Failure::Overloaded, Kind::Inquiry, &gateway.call(&balance("1")).await);
    let metrics = gateway.call(&get("/metrics", OPERATOR)).await.text;
    assert!(metrics.contains("gwanmun_transactions_in_flight 1\n"), "{metrics}");
    assert!(metrics.contains("gwanmun_refused_total{code=\"OVERLOADED\"} 1"), "{metrics}");
    assert_eq!(first.read().await.unwrap().status, 200);
    assert_eq!(gateway.rows().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_journal_room_nothing_is_accepted() {
    let switches = Arc::new(Switches::default());
    let folder = tempfile::tempdir().unwrap();
    let seams = seams::switched(&folder.path().join("journal"), &switches);
    // Segments of 1 MiB hold the promises of some sixty transactions.
    let overrides: Vec<_> =
        QUICK.iter().copied().chain([("LEDGER__JOURNAL_LIMIT", "16MiB"), ("SERVER__ADMISSION_MAX", "30")]).collect();
    let gateway = TestGateway::start_on(seams, &quick_text(), &overrides).await;
    eventually("the spare segment is there", async || {
        let files = std::fs::read_dir(folder.path().join("journal")).unwrap();
        files.filter(|file| file.as_ref().unwrap().path().extension().is_some()).count() == 2
    })
    .await;
    Switches::set(&switches.disk_full);
    let mut client = gateway.client().await;
    let mut last = 0;
    for _ in 0..20_000 {
        let answer = client.call(&balance("1")).await;
        last = answer.status;
        if last == 503 {
            compare_answer(Failure::NoLedgerRoom, Kind::Inquiry, &answer);
            break;
        }
        assert_eq!(last, 200);
    }
    assert_eq!(last, 503, "the disk is full, but everything was accepted");
    switches.disk_full.store(false, Ordering::SeqCst);
    eventually("room is back", async || gateway.call(&balance("1")).await.status == 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inquiry_is_tried_again_within_its_deadline_and_a_mutation_never() {
    let gateway = TestGateway::start(&[("INSTITUTION__CORE_BANKING__BREAKER_FAILURES", "100")]).await;
    for (kind, frames) in [(Kind::Inquiry, 3), (Kind::Mutation, 1)] {
        gateway.fault(message(kind), Fault::CloseAfter, 1.0);
        let answer = gateway.call(&request(kind, "1")).await;
        assert_eq!(answer.status, 504);
        assert_eq!(gateway.simulator.host().counters().requests[message(kind)], frames, "{kind:?}");
        let row = gateway.get(&format!("/api/ledger/{}", answer.transaction_id()), AUDITOR).await;
        assert_eq!(row["attempts"], frames);
        assert_eq!(row["attemptLog"][0]["outcome"], "connection-lost");
        let circuit = gateway.circuit(institution(kind)).await;
        assert_eq!(circuit["consecutiveFailures"], 1, "one transaction counts once: {circuit}");
        gateway.no_faults();
    }
}

#[test]
fn every_failure_is_driven_by_a_test() {
    // Draining is only seen by a request that comes while the gateway drains; `edge` drives it.
    let elsewhere = ["draining"];
    let source = [
        include_str!("taxonomy.rs"),
        include_str!("idempotency.rs"),
        include_str!("resolution.rs"),
        include_str!("budget.rs"),
    ]
    .concat();
    for failure in Failure::ALL {
        let driven =
            source.contains(&format!("Failure::{failure:?},")) || source.contains(&format!("Failure::{failure:?})"));
        assert!(driven || elsewhere.contains(&failure.name()), "{failure:?} is not driven");
    }
}
