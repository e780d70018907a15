//! Planted keys, accounts, names and amounts must not be found in any log, metric or error. This module makes a process
//! log everything at the finest level while it meets all that can go wrong; `tests/suite_logs.rs` then scans what the
//! whole suite wrote.

use std::time::Duration;

use crate::client::{AUDITOR, CLIENT, OPERATOR, get, post, post_with};
use crate::harness::simulator;
use crate::planted;
use crate::process::{Process, write_config};

/// Values that stand nowhere else.
const ACCOUNT: &str = "48151623421084";
const COUNTER_ACCOUNT: &str = "31415926535897";
const NAME: &str = "전우치둔갑";
const MEMO: &str = "남몰래주는돈";
const AMOUNT: &str = "271828183";
const IDEMPOTENCY_KEY: &str = "planted-idempotency-key-8Yx";
const UNKNOWN_KEY: &str = "planted-unknown-key-2Vb";

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_a_signal_kills_leaves_no_file_of_its_memory() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(&write_config(folder.path(), &simulator(Duration::ZERO).await, "")).await;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", process.id())).unwrap();
    let core = limits.lines().find_map(|line| line.strip_prefix("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().collect::<Vec<_>>(), ["0", "0", "bytes"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_key_account_name_or_amount_is_in_any_log_metric_or_error() {
    let folder = tempfile::tempdir().unwrap();
    let simulator = simulator(Duration::from_millis(50)).await;
    let process = Process::start(&write_config(folder.path(), &simulator, "")).await;
    let mut client = process.client().await;
    let mut told = String::new();
    let planted_transfer = |from: &str, name: &str| {
        let body = format!(
            r#"{{"fromAccount":"{from}","toAccount":"{COUNTER_ACCOUNT}","amount":{AMOUNT},"payeeName":"{name}","memo":"{MEMO}"}}"#
        );
        post_with("/api/gateway/transfer", CLIENT, &format!("idempotency-key: {IDEMPOTENCY_KEY}{from}\r\n"), &body)
    };
    let long = format!("{ACCOUNT}{ACCOUNT}");
    let mut requests = vec![
        post("/api/gateway/balance", CLIENT, &format!(r#"{{"accountNo":"{ACCOUNT}"}}"#)),
        post("/api/gateway/balance", CLIENT, &format!(r#"{{"accountNo":"{long}"}}"#)),
        post("/api/gateway/balance", CLIENT, &format!(r#"{{"accountNo":{ACCOUNT}}}"#)),
        post("/api/gateway/balance", CLIENT, &format!(r#"{{"accountNo":"{ACCOUNT}","{ACCOUNT}":1}}"#)),
        post("/api/gateway/balance", CLIENT, &format!(r#"{{"accountNo":"{ACCOUNT}"#)),
        post("/api/gateway/balance", UNKNOWN_KEY, &format!(r#"{{"accountNo":"{ACCOUNT}"}}"#)),
        post("/api/ledger/search", AUDITOR, &format!(r#"{{"accountNo":"{ACCOUNT}"}}"#)),
        planted_transfer(ACCOUNT, NAME),
        planted_transfer(ACCOUNT, NAME),
        planted_transfer("1", &format!("{NAME}똠")),
        planted_transfer("2", &format!("{NAME}{NAME}{NAME}")),
        get("/api/ledger", AUDITOR),
    ];
    // Every fault account as payer, with the planted rest.
    for digit in 1..=9 {
        requests.push(planted_transfer(&digit.to_string().repeat(14), NAME));
    }
    for request in &requests {
        let answer = client.call(request).await;
        // A successful answer carries no account either; amounts are the ledger's business and shown to auditors.
        told.push_str(&answer.text.replace(&format!("\"amount\":{AMOUNT}"), ""));
    }
    told.push_str(&client.call(&get("/metrics", OPERATOR)).await.text);
    told.push_str(&client.call(&get("/api/circuit/stats", OPERATOR)).await.text);
    let log = process.log();
    drop(process);
    let logged = std::fs::read_to_string(log).unwrap();
    assert!(logged.len() > 2_000, "the log is empty");
    assert_eq!(planted::found(logged.as_bytes()), None);
    for planted in
        [ACCOUNT, COUNTER_ACCOUNT, NAME, MEMO, AMOUNT, IDEMPOTENCY_KEY, UNKNOWN_KEY, CLIENT, AUDITOR, OPERATOR]
    {
        assert!(!told.contains(planted), "an answer holds {planted}");
        assert!(!logged.contains(planted), "the log holds {planted}");
    }
    assert!(told.contains("481516****1084"), "the masked account is there, so the scan looked at the right thing");
}

/// In URLs and in the contract's key, of what gateways share.
const STORE_SECRET: &str = "planted-store-secret-6Wd";

#[tokio::test(flavor = "multi_thread")]
async fn no_stores_password_and_no_contracts_key_is_in_any_log_metric_or_error() {
    let (postgres, redis) = (crate::postgres::Postgres::shared(), crate::redis::Redis::shared());
    let (folder, simulator) = (tempfile::tempdir().unwrap(), simulator(Duration::from_millis(50)).await);
    let secret = |url: String, user: &str| url.replacen("//", &format!("//{user}:{STORE_SECRET}@"), 1);
    // This Redis has no password, so it refuses one; PostgreSQL takes any.
    let redis_url = secret(redis.new_database(), "default");
    let postgres_url = postgres.new_database().replacen("gwanmun@", &format!("gwanmun:{STORE_SECRET}@"), 1);
    let settings = [
        ("REDIS__URL", redis_url.as_str()),
        ("BUDGET__POSTGRES_URL", postgres_url.as_str()),
        ("INSTITUTION__CORE_BANKING__BUDGET", "redis"),
        ("INSTITUTION__CORE_BANKING__BUDGET_LIMIT", "5"),
        ("INSTITUTION__CORE_BANKING__BUDGET_KEY", STORE_SECRET),
        ("INSTITUTION__CORE_TRANSFER__BUDGET", "postgres"),
        ("INSTITUTION__CORE_TRANSFER__BUDGET_LIMIT", "5"),
        ("INSTITUTION__CORE_TRANSFER__BUDGET_KEY", STORE_SECRET),
    ];
    let config = write_config(folder.path(), &simulator, "");
    let process = Process::start_with(&config, &settings).await;
    let mut client = process.client().await;
    let mut told = String::new();
    for request in [
        post("/api/gateway/balance", CLIENT, r#"{"accountNo":"1"}"#),
        // The table is not there: refused, and the log says why.
        post("/api/gateway/exchange-rate", CLIENT, r#"{"currency":"USD"}"#),
        get("/api/limits/stats", OPERATOR),
        get("/metrics", OPERATOR),
    ] {
        told.push_str(&client.call(&request).await.text);
    }
    assert!(told.contains("BUDGET_UNAVAILABLE"), "{told}");
    let shown = crate::budget_slots::gwanmun(&["budget", "show"], &config, &settings);
    told.push_str(&String::from_utf8_lossy(&shown.stderr));
    let log = process.log();
    drop(process);
    let logged = std::fs::read_to_string(log).unwrap();
    assert!(logged.contains("no slot"), "{logged}");
    assert!(!told.contains(STORE_SECRET), "an answer holds it: {told}");
    assert!(!logged.contains(STORE_SECRET), "the log holds it");
}
