//! Every fault account over HTTP, for an inquiry and a transfer: status, code, ledger, breaker, connection.

use std::time::Duration;

use gwanmun::routes::Kind;
use mock_core_banking::BookingState;

use crate::client::{AUDITOR, CLIENT, balance, post, transfer};
use crate::harness::{TestGateway, config_text, eventually};

/// What one account shows. `counted` is the breaker's consecutive failures afterwards, from 0.
struct Row {
    account: &'static str,
    inquiry: (u16, &'static str),
    mutation: (u16, &'static str),
    ledger: &'static str,
    detail: [&'static str; 2],
    counted: [u64; 2],
    kept: [bool; 2],
}

const GOOD: (u16, &str) = (200, "");
const UNKNOWN: (u16, &str) = (504, "RESULT_UNKNOWN");
const BAD_REPLY: (u16, &str) = (502, "BAD_HOST_RESPONSE");

const fn good(account: &'static str) -> Row {
    let (detail, counted, kept) = ([""; 2], [0; 2], [true; 2]);
    Row { account, inquiry: GOOD, mutation: GOOD, ledger: "SUCCESS", detail, counted, kept }
}

const fn doubt(
    account: &'static str,
    inquiry: (u16, &'static str),
    detail: [&'static str; 2],
    counted: [u64; 2],
) -> Row {
    Row { account, inquiry, mutation: UNKNOWN, ledger: "UNKNOWN", detail, counted, kept: [false; 2] }
}

const ROWS: [Row; 9] = [
    good("99999999999999"),
    good("33333333333333"),
    good("11111111111111"),
    doubt("88888888888888", UNKNOWN, ["connection-lost"; 2], [1; 2]),
    // Fixed framing waits for the missing bytes; length-prefixed framing has a whole frame that does not parse.
    doubt("77777777777777", UNKNOWN, ["read-timeout", "undecodable-reply"], [1, 0]),
    doubt("66666666666666", BAD_REPLY, ["undecodable-reply"; 2], [0; 2]),
    doubt("55555555555555", BAD_REPLY, ["echo-mismatch"; 2], [1; 2]),
    doubt("44444444444444", UNKNOWN, ["connection-lost"; 2], [1; 2]),
    doubt("22222222222222", UNKNOWN, ["connection-lost"; 2], [1; 2]),
];

async fn gateway(deadline: &str, delay: Duration) -> TestGateway {
    let text = config_text().replace("deadline = \"8s\"", &format!("deadline = \"{deadline}\""));
    let retries = ["CORE_BANKING", "CORE_TRANSFER", "CORE_HISTORY"].map(|name| format!("INSTITUTION__{name}__RETRIES"));
    let overrides: Vec<_> = retries.iter().map(|name| (name.as_str(), "0")).collect();
    TestGateway::start_with(&text, delay, &overrides).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_fault_account_shows_the_row_that_the_table_gives_it() {
    for (at, kind) in [Kind::Inquiry, Kind::Mutation].into_iter().enumerate() {
        let institution = ["core-banking", "core-transfer"][at];
        let mut rows = tokio::task::JoinSet::new();
        for row in ROWS {
            rows.spawn(async move {
                // A gateway for each, so that every breaker starts from zero and every connection is fresh.
                let gateway = gateway("2500ms", Duration::from_millis(300)).await;
                let request = match kind {
                    Kind::Inquiry => balance(row.account),
                    Kind::Mutation => transfer("key", row.account, 1_000),
                };
                let answer = gateway.call(&request).await;
                let context = format!("{} {kind:?}: {}", row.account, answer.text);
                let wanted = [row.inquiry, row.mutation][at];
                let code = answer.json()["code"].as_str().unwrap_or_default().to_owned();
                assert_eq!((answer.status, &*code), wanted, "{context}");
                let stored = gateway.get(&format!("/api/ledger/{}", answer.transaction_id()), AUDITOR).await;
                assert_eq!(stored["status"], row.ledger, "{context}: {stored}");
                assert_eq!(stored["detail"].as_str().unwrap_or_default(), row.detail[at], "{context}");
                let circuit = gateway.circuit(institution).await;
                assert_eq!(circuit["consecutiveFailures"], row.counted[at], "{context}: {circuit}");
                let pool = gateway.pool(institution).await;
                assert_eq!((&pool["idle"], &pool["active"]), (&u64::from(row.kept[at]).into(), &0.into()), "{context}");
                assert_eq!(gateway.call(&balance("1")).await.status, 200, "{context}: the next call");
            });
        }
        rows.join_all().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_original_is_unknown_and_never_called_failed_while_the_bank_books_it() {
    let gateway = gateway("1500ms", Duration::from_secs(2)).await;
    let answer = gateway.call(&transfer("late", "11111111111111", 1_000)).await;
    assert_eq!((answer.status, answer.code()), (504, "RESULT_UNKNOWN".to_owned()));
    let id = answer.transaction_id();
    eventually("the bank has booked it", async || {
        gateway.simulator.host().bank(|bank| bank.booking(&id).map(|booking| booking.state))
            == Some(BookingState::Applied)
    })
    .await;
    let row = gateway.get(&format!("/api/ledger/{id}"), AUDITOR).await;
    assert_eq!((&row["status"], &row["resolution"]), (&"UNKNOWN".into(), &"PENDING".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_history_whose_record_count_is_garbage_is_a_bad_reply() {
    let gateway = gateway("2500ms", Duration::from_millis(300)).await;
    let asked = r#"{"accountNo":"66666666666666","fromDate":"20260601","toDate":"20260630","reqCount":2}"#;
    let answer = gateway.call(&post("/api/gateway/history", CLIENT, asked)).await;
    assert_eq!((answer.status, answer.code()), (502, "BAD_HOST_RESPONSE".to_owned()));
    assert_eq!(gateway.circuit("core-history").await["consecutiveFailures"], 0);
}
