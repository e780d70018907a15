//! kill -9 under load: what was answered or reached the host is in the ledger, and what was in flight is UNKNOWN.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mock_core_banking::{BookingState, Fault, FaultRule, FaultSchedule};
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;

use crate::client::{AUDITOR, Client, balance, get, transfer};
use crate::harness::{eventually, simulator};
use crate::process::{Process, write_config};

type Answered = Arc<Mutex<HashMap<String, String>>>;

/// Calls until the connection breaks, and notes each answer that came whole.
async fn load(address: std::net::SocketAddr, caller: usize, round: usize, answered: Answered) {
    let Ok(stream) = tokio::net::TcpStream::connect(address).await else { return };
    let mut client = Client { stream: tokio::io::BufReader::new(stream) };
    for number in 0.. {
        let account = format!("{:014}", 1 + caller);
        let request = if caller.is_multiple_of(2) {
            balance(&account)
        } else {
            transfer(&format!("{round}-{caller}-{number}"), &account, 1)
        };
        if client.stream.get_mut().write_all(request.as_bytes()).await.is_err() {
            return;
        }
        let Some(answer) = client.read().await else { return };
        let id = answer.transaction_id();
        if !id.is_empty() {
            let body = answer.json();
            let status = body["ledgerStatus"].as_str().unwrap_or("SUCCESS").to_owned();
            assert!(answered.lock().unwrap().insert(id, status).is_none(), "an id came twice");
        }
    }
}

async fn all_rows(process: &Process) -> HashMap<String, Value> {
    let mut client = process.client().await;
    let (mut rows, mut cursor) = (HashMap::new(), String::new());
    loop {
        let page = client.call(&get(&format!("/api/ledger?limit=200{cursor}"), AUDITOR)).await.json();
        for row in page["items"].as_array().unwrap() {
            let id = row["transactionId"].as_str().unwrap().to_owned();
            assert!(rows.insert(id, row.clone()).is_none(), "a row came twice");
        }
        match page["nextCursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return rows,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_was_answered_or_reached_the_host_is_missing_after_kill_9() {
    let folder = tempfile::tempdir().unwrap();
    let simulator = simulator(Duration::from_secs(5)).await;
    let jitter = FaultRule { message: None, fault: Fault::Jitter, probability: 1.0, delay_ms: Some(4), code: None };
    simulator.host().set_faults(FaultSchedule { seed: 11, rules: vec![jitter] });
    let config = write_config(folder.path(), &simulator, "admission_max = 1000");
    let text = std::fs::read_to_string(&config).unwrap();
    // One frame a transaction, so that the host's count can be compared with the ledger's.
    let text = text.replace("framing = ", "connections_max = 16\nborrow_wait = \"5s\"\nretries = 0\nframing = ");
    std::fs::write(&config, text).unwrap();

    let answered = Answered::default();
    let mut process = Process::start(&config).await;
    // `KILLS=n` goes on for longer.
    let kills = std::env::var("KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(4);
    for round in 0..kills {
        let mut callers = JoinSet::new();
        for caller in 0..24 {
            callers.spawn(load(process.address, caller, round, Arc::clone(&answered)));
        }
        tokio::time::sleep(Duration::from_millis(300 + fastrand::u64(..500))).await;
        process.kill();
        callers.join_all().await;
        process = Process::start(&config).await;
    }
    // A listing waits a moment for what was answered, and a start may have thousands of rows to carry to the store.
    let mut rows = HashMap::new();
    eventually("the rows are in the store", async || {
        rows = all_rows(&process).await;
        answered.lock().unwrap().keys().all(|id| rows.contains_key(id))
    })
    .await;
    let answered = answered.lock().unwrap();
    assert!(answered.len() > 500, "only {} answers: no load", answered.len());
    for (id, status) in &*answered {
        let row = rows.get(id).unwrap_or_else(|| panic!("{id} was answered {status} and is missing"));
        assert_eq!(row["status"], *status, "{row}");
    }
    let mut reached = 0;
    simulator.host().bank(|bank| {
        for (id, booking) in bank.bookings() {
            assert_eq!(booking.state, BookingState::Applied);
            let row = rows.get(id).unwrap_or_else(|| panic!("{id} reached the host and is missing"));
            assert!(row["status"] == "SUCCESS" || row["status"] == "UNKNOWN", "{row}");
            reached += 1;
        }
    });
    let balances = rows.values().filter(|row| row["txCode"] == "IN01").count() as u64;
    assert!(balances >= simulator.host().counters().requests["0200"], "an inquiry reached the host and is missing");
    let in_flight: Vec<_> = rows.values().filter(|row| row["detail"] == "recovered").collect();
    assert!(!in_flight.is_empty(), "nothing was in flight at any kill: no load");
    for row in &in_flight {
        assert_eq!(row["status"], "UNKNOWN");
        assert!(!answered.contains_key(row["transactionId"].as_str().unwrap()));
    }
    assert!(reached > 200, "only {reached} transfers reached the host");
    assert_eq!(simulator.host().bank(mock_core_banking::Bank::delta), 0);
}
