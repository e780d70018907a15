//! The ledger's routes: own rows for clients, everything for auditors, cursors that hold while rows come in.

use std::collections::HashSet;

use mock_core_banking::Fault;

use crate::client::{AUDITOR, CLIENT, OTHER_CLIENT, balance, get, post, transfer};
use crate::harness::{TestGateway, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_is_in_the_ledger_as_soon_as_it_is_answered_with_its_account_masked() {
    let gateway = TestGateway::start(&[]).await;
    let mut client = gateway.client().await;
    for number in 0..50 {
        let id = client.call(&balance("12345678901234")).await.transaction_id();
        let row = client.call(&get(&format!("/api/ledger/{id}"), CLIENT)).await;
        assert_eq!(row.status, 200, "call {number}");
        let newest = gateway.complete("/api/ledger?limit=1", AUDITOR).await["items"][0].clone();
        assert_eq!(newest["transactionId"], id);
        assert_eq!((&newest["status"], &newest["accountMasked"]), (&"SUCCESS".into(), &"123456****1234".into()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_sees_its_own_rows_and_a_foreign_id_is_like_an_unknown_one() {
    let gateway = TestGateway::start(&[]).await;
    let own = gateway.call(&balance("1")).await.transaction_id();
    let foreign = gateway.call(&balance("2").replace(CLIENT, OTHER_CLIENT)).await.transaction_id();
    let ids = async |path: &str, key: &str| {
        let page = gateway.complete(path, key).await;
        let rows = page["items"].as_array().unwrap().clone();
        rows.iter().map(|row| row["transactionId"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ids("/api/ledger", CLIENT).await, [&*own]);
    assert_eq!(ids("/api/ledger/recent", OTHER_CLIENT).await, [&*foreign]);
    assert_eq!(ids("/api/ledger", AUDITOR).await, [&*foreign, &*own]);
    assert!(ids("/api/ledger?client=fintech-b", CLIENT).await.is_empty());
    assert_eq!(ids("/api/ledger?client=fintech-b", AUDITOR).await, [&*foreign]);
    let strip = |text: String| {
        let mut body: serde_json::Value = serde_json::from_str(&text).unwrap();
        body["correlationId"] = "".into();
        body
    };
    let hidden = gateway.call(&get(&format!("/api/ledger/{foreign}"), CLIENT)).await;
    let unknown = gateway.call(&get("/api/ledger/GWMNU20200101000000000", CLIENT)).await;
    let malformed = gateway.call(&get("/api/ledger/what", CLIENT)).await;
    assert_eq!((hidden.status, strip(hidden.text)), (404, strip(unknown.text.clone())));
    assert_eq!(strip(malformed.text), strip(unknown.text));
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_cover_everything_once_while_rows_come_in() {
    let gateway = TestGateway::start(&[]).await;
    let mut client = gateway.client().await;
    let mut before = HashSet::new();
    for _ in 0..45 {
        before.insert(client.call(&balance("1")).await.transaction_id());
    }
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = gateway.complete(&format!("/api/ledger?limit=10{cursor}"), AUDITOR).await;
        for row in page["items"].as_array().unwrap() {
            seen.push(row["transactionId"].as_str().unwrap().to_owned());
        }
        client.call(&balance("1")).await;
        match page["nextCursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen.len(), 45);
    assert_eq!(seen.into_iter().collect::<HashSet<_>>(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn filters_search_summary_and_the_unknown_list() {
    let gateway = TestGateway::start(&[("INSTITUTION__CORE_TRANSFER__RETRIES", "0")]).await;
    gateway.call(&balance("12345678901234")).await;
    gateway.call(&balance("0")).await;
    gateway.call(&transfer("t1", "12345678901234", 7)).await;
    gateway.fault("0600", Fault::CloseAfter, 1.0);
    let doubt = gateway.call(&transfer("t2", "7", 7)).await;
    assert_eq!(doubt.status, 504);
    let count = async |path: &str| gateway.complete(path, AUDITOR).await["items"].as_array().unwrap().len();
    for (path, rows) in [
        ("/api/ledger?status=SUCCESS", 2),
        ("/api/ledger?status=FAILED", 1),
        ("/api/ledger?txCode=TR01", 2),
        ("/api/ledger?institution=core-banking", 2),
        ("/api/ledger?txCode=TR01&status=UNKNOWN", 1),
        ("/api/ledger?from=20200101&to=20991231", 4),
        ("/api/ledger?to=2020-01-01T00:00:00Z", 0),
        ("/api/ledger/unknown", 1),
    ] {
        assert_eq!(count(path).await, rows, "{path}");
    }
    let summary = gateway.complete("/api/ledger/summary", AUDITOR).await;
    assert_eq!(summary, serde_json::json!({"SUCCESS": 2, "FAILED": 1, "UNKNOWN": 1, "complete": true}));
    let unknown = gateway.complete("/api/ledger/unknown", CLIENT).await["items"][0].clone();
    assert_eq!(
        (&unknown["resolution"], &unknown["transactionId"]),
        (&"PENDING".into(), &doubt.transaction_id().into())
    );
    assert_eq!((&unknown["amount"], &unknown["accountMasked"]), (&7.into(), &"000000****0007".into()));
    for (account, rows) in [("12345678901234", 2), ("7", 1), ("20000000000002", 2), ("5", 0)] {
        let body = format!(r#"{{"accountNo":"{account}"}}"#);
        let found = gateway.call(&post("/api/ledger/search", AUDITOR, &body)).await.json();
        assert_eq!(found["items"].as_array().unwrap().len(), rows, "{account}");
    }
    for bad in ["limit=0", "limit=201", "status=MAYBE", "cursor=%20", "nothing=1", "from=yesterday", "limit=x"] {
        let answer = gateway.call(&get(&format!("/api/ledger?{bad}"), AUDITOR)).await;
        assert_eq!((answer.status, answer.code()), (400, "INVALID_REQUEST".to_owned()), "{bad}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_takes_no_rows_costs_inquiries_nothing_and_everything_arrives_afterwards() {
    use sqlx::Connection as _;
    let gateway = TestGateway::start(&[]).await;
    let url = format!("sqlite:{}/ledger.sqlite", gateway.data.path().display());
    let mut somebody = sqlx::SqliteConnection::connect(&url).await.unwrap();
    sqlx::query("BEGIN IMMEDIATE").execute(&mut somebody).await.unwrap();
    let mut client = gateway.client().await;
    let mut ids = HashSet::new();
    for _ in 0..200 {
        let answer = client.call(&balance("1")).await;
        assert_eq!(answer.status, 200);
        ids.insert(answer.transaction_id());
    }
    for id in &ids {
        let row = client.call(&get(&format!("/api/ledger/{id}"), CLIENT)).await;
        assert_eq!(row.json()["status"], "SUCCESS", "the journal answers for what is not shipped");
    }
    let summary = async || gateway.get("/api/ledger/summary", AUDITOR).await;
    let behind = summary().await;
    assert_eq!(behind["SUCCESS"], 0, "the store was not locked, so this shows nothing");
    assert_eq!(behind["complete"], false, "a listing says what it lacks");
    assert_eq!(client.call(&get("/health/ready", "")).await.status, 200);
    sqlx::query("ROLLBACK").execute(&mut somebody).await.unwrap();
    eventually("everything is shipped", async || summary().await["SUCCESS"] == 200).await;
    assert_eq!(summary().await["complete"], true);
    let rows: HashSet<_> =
        gateway.rows().await.iter().map(|row| row["transactionId"].as_str().unwrap().to_owned()).collect();
    assert_eq!(rows, ids);
}
