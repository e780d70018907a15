//! The day in the ledger against the day at the host.

use std::time::Duration;

use mock_core_banking::{Fault, FaultRule, FaultSchedule};
use serde_json::Value;

use crate::client::{AUDITOR, CLIENT, OPERATOR, get, post, transfer};
use crate::harness::{TestGateway, config_text, eventually, simulator};
use crate::process::{Process, write_config};

/// Reconciles a day and returns the run when it is done.
async fn reconcile(gateway: &TestGateway, day: &str) -> Value {
    let path = format!("/api/reconciliation/run?date={day}");
    let started = gateway.call(&post(&path, OPERATOR, "")).await;
    assert_eq!(started.status, 202, "{}", started.text);
    let run = started.json()["runId"].as_str().unwrap().to_owned();
    let path = format!("/api/reconciliation/runs/{run}");
    eventually("the run ends", async || gateway.get(&path, AUDITOR).await["state"] != "RUNNING").await;
    gateway.get(&path, AUDITOR).await
}

#[tokio::test(flavor = "multi_thread")]
async fn after_resolution_a_day_of_every_kind_of_end_has_no_difference() {
    let text = config_text().replace("deadline = \"8s\"", "deadline = \"1500ms\"");
    let gateway = TestGateway::start_with(&text, Duration::from_secs(2), &[]).await;
    let mut client = gateway.client().await;
    let mut day = String::new();
    // More than one page of 199.
    for nth in 0..220 {
        let answer = client.call(&transfer(&format!("k{nth}"), &format!("{}", nth + 1), 5)).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.transaction_id()[5..13].clone_into(&mut day);
    }
    for (account, status) in [("0", 422), ("44444444444444", 504), ("88888888888888", 504), ("11111111111111", 504)] {
        assert_eq!(client.call(&transfer(account, account, 5)).await.status, status);
    }
    let run = reconcile(&gateway, &day).await;
    assert_eq!(run["state"], "DONE", "{run}");
    assert_eq!(run["counts"]["MATCH"], 224, "{run}");
    assert_eq!(run["differences"].as_array().unwrap().len(), 0, "{run}");
    let again = reconcile(&gateway, &day).await;
    assert_eq!(again["counts"], run["counts"], "again, the same");
    assert_eq!(gateway.get("/api/reconciliation/runs", AUDITOR).await["items"].as_array().unwrap().len(), 2);
    let other = reconcile(&gateway, "20200101").await;
    assert_eq!((&other["state"], &other["counts"]["MATCH"]), (&"DONE".into(), &0.into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_differs_is_named_by_class() {
    let gateway = TestGateway::start(&[]).await;
    let mut client = gateway.client().await;
    let mut ids = Vec::new();
    for nth in 0..6 {
        ids.push(client.call(&transfer(&format!("k{nth}"), "1", 5)).await.transaction_id());
    }
    gateway.fault_with("0600", Fault::Code, 1.0, None, Some("0021"));
    ids.push(client.call(&transfer("doubt", "1", 5)).await.transaction_id());
    gateway.no_faults();
    let day = ids[0][5..13].to_owned();
    assert_eq!(gateway.rows().await.len(), 7);
    let url = format!("sqlite:{}/ledger.sqlite", gateway.data.path().display());
    let database = sqlx::SqlitePool::connect(&url).await.unwrap();
    let spoil = async |sql: &'static str, id: &str| {
        assert_eq!(sqlx::query(sql).bind(id).execute(&database).await.unwrap().rows_affected(), 1);
    };
    spoil("DELETE FROM ledger WHERE transaction_id = $1", &ids[1]).await;
    spoil("UPDATE ledger SET amount = 6 WHERE transaction_id = $1", &ids[2]).await;
    spoil("UPDATE ledger SET status = 'FAILED', proof = 'H' WHERE transaction_id = $1", &ids[3]).await;
    // One that the host does not have.
    let ghost = format!("{}ZZZZ", &ids[4][..18]);
    sqlx::query("UPDATE ledger SET transaction_id = $1 WHERE transaction_id = $2")
        .bind(&ghost)
        .bind(&ids[4])
        .execute(&database)
        .await
        .unwrap();
    let run = reconcile(&gateway, &day).await;
    let found: Vec<_> = run["differences"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["transactionId"].as_str().unwrap(), one["class"].as_str().unwrap()))
        .collect();
    let wanted = [
        (&*ids[1], "CORE_ONLY"),
        (&ids[2], "MISMATCH"),
        (&ids[3], "MISMATCH"),
        (&ids[4], "CORE_ONLY"),
        (&ids[6], "IN_DOUBT"),
        (&ghost, "LEDGER_ONLY"),
    ];
    assert_eq!(found, wanted, "{run}");
    assert_eq!(run["counts"]["MATCH"], 2, "{run}");
    let denied = gateway.call(&post(&format!("/api/reconciliation/run?date={day}"), CLIENT, "")).await;
    assert_eq!(denied.status, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_meanwhile_is_in_doubt_and_not_the_hosts_alone() {
    let gateway = TestGateway::start_with(&config_text(), Duration::from_secs(5), &[]).await;
    let day = gateway.call(&transfer("k", "1", 5)).await.transaction_id()[5..13].to_owned();
    assert_eq!(gateway.rows().await.len(), 1);
    // The host has it and takes its time to say so.
    gateway.fault("0600", Fault::Late, 1.0);
    let mut caller = gateway.client().await;
    caller.send(&transfer("slow", "1", 5)).await;
    let booked = async || gateway.simulator.host().counters().processed.get("0600") == Some(&2);
    eventually("the host has booked it", booked).await;
    let run = reconcile(&gateway, &day).await;
    assert_eq!((&run["counts"]["MATCH"], &run["counts"]["IN_DOUBT"]), (&1.into(), &1.into()), "{run}");
    assert_eq!(run["counts"]["CORE_ONLY"], 0, "{run}");
    assert_eq!(caller.read().await.unwrap().status, 200);
    assert_eq!(gateway.rows().await.len(), 2);
    let run = reconcile(&gateway, &day).await;
    assert_eq!(run["counts"]["MATCH"], 2, "{run}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_in_another_process_meanwhile_is_in_doubt_too() {
    let (simulator, folder) = (simulator(Duration::from_secs(7)).await, tempfile::tempdir().unwrap());
    let config = write_config(folder.path(), &simulator, "");
    let process = Process::start(&config).await;
    let mut caller = process.client().await;
    let day = caller.call(&transfer("k", "1", 5)).await.transaction_id()[5..13].to_owned();
    caller.call(&get("/api/ledger", AUDITOR)).await;
    let late = FaultRule { message: None, fault: Fault::Late, probability: 1.0, delay_ms: None, code: None };
    simulator.host().set_faults(FaultSchedule { seed: 1, rules: vec![late] });
    caller.send(&transfer("slow", "1", 5)).await;
    let booked = async || simulator.host().counters().processed.get("0600") == Some(&2);
    eventually("the host has booked it", booked).await;
    simulator.host().set_faults(FaultSchedule::default());
    let run = std::process::Command::new(env!("CARGO_BIN_EXE_gwanmun"))
        .args(["reconcile", "run", &day, "--config"])
        .arg(&config)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(["1 matched", "1 IN_DOUBT", " 0 CORE_ONLY"].iter().all(|count| said.contains(count)), "{run:?}");
    let status = caller.read().await.unwrap().status;
    assert!(matches!(status, 200 | 504), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_cannot_be_read_fails_the_run_and_invents_nothing() {
    let gateway = TestGateway::start(&[]).await;
    let id = gateway.call(&transfer("k", "1", 5)).await.transaction_id();
    gateway.fault("0500", Fault::Garbage, 1.0);
    let run = reconcile(&gateway, &id[5..13]).await;
    assert_eq!((&run["state"], run["differences"].as_array().unwrap().len()), (&"FAILED".into(), 0), "{run}");
    assert_eq!(run["detail"], "the host's list could not be read: undecodable-reply");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_the_host_refuses_is_no_empty_list() {
    let gateway = TestGateway::start(&[]).await;
    let id = gateway.call(&transfer("k", "1", 5)).await.transaction_id();
    gateway.fault_with("0500", Fault::Code, 1.0, None, Some("0001"));
    let run = reconcile(&gateway, &id[5..13]).await;
    assert_eq!((&run["state"], run["differences"].as_array().unwrap().len()), (&"FAILED".into(), 0), "{run}");
}

#[tokio::test(flavor = "multi_thread")]
async fn yesterday_is_reconciled_once_a_day_when_that_is_asked_for() {
    // Midnight has come on any day.
    let gateway = TestGateway::start(&[("RECONCILIATION__DAILY_AT", "00:00")]).await;
    let runs = async || gateway.get("/api/reconciliation/runs", AUDITOR).await["items"].as_array().unwrap().clone();
    eventually("a run is done", async || runs().await.first().is_some_and(|run| run["state"] == "DONE")).await;
    let day = gateway.call(&transfer("k", "1", 5)).await.transaction_id()[5..13].to_owned();
    let run = &runs().await[0];
    assert!(run["date"].as_str().unwrap() < day.as_str(), "{run}");
    assert_eq!(runs().await.len(), 1);
}
