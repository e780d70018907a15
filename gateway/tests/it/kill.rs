//! kill -9 and SIGTERM under a load of transfers and balances, on both databases: what was answered or reached the host is in the
//! ledger, what was in flight is UNKNOWN and then resolved, and the caller's key shows how it ended.
//!
//! `KILLS=100 cargo test --release -p gwanmun --test it kill` goes on for longer, and says how fast the load was.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mock_core_banking::{BookingState, Fault, FaultRule, FaultSchedule};
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;

use crate::client::{AUDITOR, Client, OPERATOR, balance, get, post, transfer};
use crate::harness::{eventually, simulator};
use crate::postgres::Postgres;
use crate::process::{Process, write_config};

#[derive(Default)]
struct Heard {
    /// What was said of each transaction.
    answered: Mutex<HashMap<String, String>>,
    /// Keys whose last call was not answered.
    unanswered: Mutex<Vec<(String, String)>>,
    calls: AtomicU64,
    stop: AtomicBool,
}

/// Calls until the connection breaks, and notes each answer that came whole.
async fn load(address: std::net::SocketAddr, caller: usize, round: usize, heard: Arc<Heard>) {
    let Ok(stream) = tokio::net::TcpStream::connect(address).await else { return };
    let mut client = Client { stream: tokio::io::BufReader::new(stream) };
    for number in 0.. {
        let account = format!("{:014}", 1 + caller);
        let key = format!("{round}-{caller}-{number}");
        let moves = !caller.is_multiple_of(3);
        let request = if moves { transfer(&key, &account, 1) } else { balance(&account) };
        let sent = client.stream.get_mut().write_all(request.as_bytes()).await.is_ok();
        let answer = if sent { client.read().await } else { None };
        let Some(answer) = answer else {
            if moves {
                heard.unanswered.lock().unwrap().push((key, account));
            }
            return;
        };
        heard.calls.fetch_add(1, Ordering::Relaxed);
        let id = answer.transaction_id();
        if !id.is_empty() {
            let body = answer.json();
            let status = body["ledgerStatus"].as_str().unwrap_or("SUCCESS").to_owned();
            assert!(heard.answered.lock().unwrap().insert(id, status).is_none(), "an id came twice");
        }
        if heard.stop.load(Ordering::Relaxed) {
            return;
        }
    }
}

async fn all_rows(process: &Process) -> HashMap<String, Value> {
    let mut client = process.client().await;
    let (mut rows, mut cursor) = (HashMap::new(), String::new());
    loop {
        let page = client.call(&get(&format!("/api/ledger?limit=200{cursor}"), AUDITOR)).await.json();
        if page["complete"] != true {
            continue;
        }
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

/// What every kind of store must show.
async fn nothing_is_lost_doubled_or_stuck(store: &str, settings: &[(&str, &str)]) {
    let folder = tempfile::tempdir().unwrap();
    let simulator = simulator(Duration::from_secs(5)).await;
    let jitter = FaultRule { message: None, fault: Fault::Jitter, probability: 1.0, delay_ms: Some(4), code: None };
    simulator.host().set_faults(FaultSchedule { seed: 11, rules: vec![jitter] });
    let config = write_config(folder.path(), &simulator, "admission_max = 1000");
    let text = std::fs::read_to_string(&config).unwrap();
    // One frame a transaction, so that the host's count can be compared with the ledger's.
    let text = text.replace("framing = ", "connections_max = 16\nborrow_wait = \"5s\"\nretries = 0\nframing = ");
    std::fs::write(&config, text).unwrap();
    let settings: Vec<_> = settings
        .iter()
        .copied()
        .chain([("RESOLVER__ENABLED", "true"), ("RESOLVER__POLL", "100ms"), ("RESOLVER__WAIT_MIN", "100ms")])
        .collect();

    let heard = Arc::new(Heard::default());
    let mut process = Process::start_with(&config, &settings).await;
    let kills = std::env::var("KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(10);
    let mut busy = Duration::ZERO;
    for round in 0..kills {
        let mut callers = JoinSet::new();
        for caller in 0..32 {
            callers.spawn(load(process.address, caller, round, Arc::clone(&heard)));
        }
        let began = Instant::now();
        tokio::time::sleep(Duration::from_millis(300 + fastrand::u64(..700))).await;
        busy += began.elapsed();
        if round % 4 == 3 {
            process.terminate();
            process.wait().await;
        } else {
            process.kill();
        }
        callers.join_all().await;
        process = Process::start_with(&config, &settings).await;
    }
    let calls = heard.calls.load(Ordering::Relaxed);
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = calls as f64 / busy.as_secs_f64();
    println!("{store}: {kills} kills, {calls} answers, {rate:.0} a second while it was up");
    // By command, on a machine of one's own, the load is what it is said to be; beside other tests it is only some.
    let least = if std::env::var("KILLS").is_ok() { 500.0 } else { 50.0 };
    assert!(rate >= least, "only {rate:.0} answers a second");

    compare(&process, &simulator, &heard, kills).await;
    // What a start ships again says what is there already.
    let metrics = process.client().await.call(&get("/metrics", OPERATOR)).await.text;
    let parked = metrics.lines().find_map(|line| line.strip_prefix("gwanmun_ledger_parked_total "));
    assert_eq!(parked, Some("0"), "{metrics}");
}

/// Compares the ledger, the bank's books and what the callers heard.
async fn compare(process: &Process, simulator: &mock_core_banking::Simulator, heard: &Heard, kills: usize) {
    // A listing waits a moment for what was answered, and a start may have thousands of rows to carry to the store.
    let mut rows = HashMap::new();
    let end = Instant::now() + Duration::from_secs(60);
    let is_there = |rows: &HashMap<String, Value>| {
        let open = rows.values().any(|row| row["resolution"] == "PENDING");
        !open && heard.answered.lock().unwrap().keys().all(|id| rows.contains_key(id))
    };
    while !is_there(&rows) {
        assert!(Instant::now() < end, "rows are missing, or still in doubt after a minute");
        tokio::time::sleep(Duration::from_millis(200)).await;
        rows = all_rows(process).await;
    }
    {
        let answered = heard.answered.lock().unwrap();
        assert!(answered.len() > 60 * kills, "only {} answers: no load", answered.len());
        for (id, status) in &*answered {
            assert_eq!(rows[id]["status"], *status, "{}", rows[id]);
        }
        let recovered: Vec<_> = rows.values().filter(|row| row["detail"] == "recovered").collect();
        assert!(!recovered.is_empty(), "nothing was in flight at any kill: no load");
        for row in recovered {
            assert_eq!(row["status"], "UNKNOWN");
            assert!(!answered.contains_key(row["transactionId"].as_str().unwrap()), "it was answered: {row}");
        }
    }
    let mut booked = 0;
    simulator.host().bank(|bank| {
        for (id, booking) in bank.bookings() {
            let row = rows.get(id).unwrap_or_else(|| panic!("{id} reached the host and is missing"));
            let says_applied = row["status"] == "SUCCESS" || row["resolution"] == "CONFIRMED_SUCCESS";
            assert_eq!(booking.state == BookingState::Applied, says_applied, "{booking:?} {row}");
            booked += 1;
        }
    });
    assert!(booked > 20 * kills, "only {booked} transfers reached the host");
    let balances = rows.values().filter(|row| row["txCode"] == "IN01").count() as u64;
    assert!(balances >= simulator.host().counters().requests["0200"], "an inquiry reached the host and is missing");
    // Whoever heard nothing asks again with the same key, and is told how it ended, or it runs now.
    let unanswered = std::mem::take(&mut *heard.unanswered.lock().unwrap());
    assert!(!unanswered.is_empty(), "no caller was cut off");
    let mut client = process.client().await;
    for (key, account) in unanswered {
        let mut told = 0;
        eventually("the key shows how it ended", async || {
            told = client.call(&transfer(&key, &account, 1)).await.status;
            told == 200 || told == 422
        })
        .await;
    }
    assert_eq!(simulator.host().bank(mock_core_banking::Bank::delta), 0);
    let rows = all_rows(process).await;
    let mut ran = HashMap::new();
    for (id, row) in rows.iter().filter(|(_, row)| row["kind"] == "mutation") {
        assert!(simulator.host().transfer_frames(id) <= 1, "{id} was on the wire twice");
        let unsent = matches!(row["proof"].as_str(), Some("P0" | "P1" | "P2"));
        let key = row["idempotencyKeyHash"].as_str().unwrap().to_owned();
        let before = if unsent { None } else { ran.insert(key, row.clone()) };
        assert!(before.is_none(), "one key was executed twice: {before:?} {row}");
    }
    let day = rows.keys().next().unwrap()[5..13].to_owned();
    let started = client.call(&post(&format!("/api/reconciliation/run?date={day}"), OPERATOR, "")).await.json();
    let path = format!("/api/reconciliation/runs/{}", started["runId"].as_str().unwrap());
    let mut run = Value::Null;
    eventually("the reconciliation ends", async || {
        run = client.call(&get(&path, AUDITOR)).await.json();
        run["state"] != "RUNNING"
    })
    .await;
    assert_eq!((&run["state"], run["differences"].as_array().unwrap().len()), (&"DONE".into(), 0), "{run}");
    assert!(run["counts"]["MATCH"].as_u64().unwrap() > 0, "{run}");
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_under_load_on_sqlite_lose_nothing() {
    nothing_is_lost_doubled_or_stuck("sqlite", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_under_load_on_postgres_lose_nothing() {
    let postgres = Postgres::shared();
    let url = postgres.new_database();
    let settings = [("LEDGER__STORE", "postgres"), ("LEDGER__POSTGRES_URL", url.as_str())];
    nothing_is_lost_doubled_or_stuck("postgres", &settings).await;
}
