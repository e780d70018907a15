//! Reconciliation of a large day by the command: every planted difference is found, none is invented, and its memory does not grow
//! with the day.
//!
//! `DAY=1000000 cargo test --release -p gwanmun --test it at_size -- --nocapture` takes the day that a large bank has.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gwanmun::ledger::{Closing, Facts, Outcome, Proof, Row, Shipper, Status, Store, TransactionId};
use gwanmun::routes::Kind;
use mock_core_banking::Simulator;

use crate::harness::simulator;
use crate::process::write_config;

const DAY: &str = "20261128";
const ACCOUNT: &str = "00000000000001";
const OTHER: &str = "00000000000002";

fn id(serial: usize) -> String {
    format!("GWMNU{DAY}{serial:09}")
}

fn outcome(serial: usize, status: Status, amount: i64) -> Outcome {
    let facts = Facts {
        id: TransactionId::parse(&id(serial)).unwrap(),
        tx_code: "TR01".into(),
        route: "transfer".into(),
        kind: Kind::Mutation,
        institution: "core-transfer".into(),
        client: "a".into(),
        account: None,
        account_hash: None,
        counter_account: None,
        counter_account_hash: None,
        amount: Some(amount),
        requested_at: 0,
        correlation_id: "c".into(),
        idempotency_key_hash: None,
        layout_version: 1,
        keyed: None,
    };
    let closing = Closing {
        status,
        proof: (status == Status::Failed).then_some(Proof::H),
        response_code: None,
        // Left to people, so that nobody asks about it.
        detail: (status == Status::Unknown).then(|| "duplicate-id".to_owned()),
        attempts: Vec::new(),
        responded_at: 1,
        elapsed_us: 1,
        served_from: gwanmun::ledger::ServedFrom::Host,
    };
    Outcome::of(Row { facts, closing })
}

/// A day of `size` transfers in both books, with `planted` differences of each class.
async fn make_day(folder: &Path, simulator: &Simulator, size: usize, planted: usize) -> BTreeMap<String, &'static str> {
    let store = Store::sqlite(&folder.join("data/ledger.sqlite")).await.unwrap();
    let mut wanted = BTreeMap::new();
    let classes = ["MISMATCH", "LEDGER_ONLY", "CORE_ONLY", "DUPLICATE", "IN_DOUBT"];
    let every = size / (planted * classes.len());
    let mut outcomes = Vec::new();
    for serial in 0..size {
        let class = (serial % every == 0).then(|| classes[(serial / every) % classes.len()]);
        if let Some(class) = class {
            wanted.insert(id(serial), class);
        }
        if class != Some("LEDGER_ONLY") {
            simulator.host().change_bank(|bank| bank.book(&id(serial), ACCOUNT, OTHER, 1));
        }
        if class == Some("DUPLICATE") {
            simulator.host().change_bank(|bank| bank.list_again(&id(serial)));
        }
        match class {
            Some("CORE_ONLY") => {}
            Some("MISMATCH") if (serial / every / classes.len()).is_multiple_of(2) => {
                outcomes.push(outcome(serial, Status::Failed, 1))
            }
            Some("MISMATCH") => outcomes.push(outcome(serial, Status::Success, 2)),
            Some("IN_DOUBT") => outcomes.push(outcome(serial, Status::Unknown, 1)),
            _ => outcomes.push(outcome(serial, Status::Success, 1)),
        }
        if outcomes.len() == 5_000 || serial + 1 == size {
            store.ship(&std::mem::take(&mut outcomes), Shipper::SetAside).await.unwrap();
        }
    }
    store.close().await;
    wanted
}

/// Runs the command; its peak memory in KiB.
async fn reconcile(config: &Path) -> (String, u64) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_gwanmun"))
        .args(["reconcile", "run", DAY, "--config"])
        .arg(config)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap_or_default();
        let kib = line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).unwrap_or(0);
        peak = peak.max(kib);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(65), "there are differences");
    (String::from_utf8(output.stdout).unwrap(), peak)
}

async fn day(size: usize, planted: usize) -> u64 {
    let (folder, simulator) = (tempfile::tempdir().unwrap(), simulator(Duration::from_secs(1)).await);
    let config = write_config(folder.path(), &simulator, "");
    std::fs::create_dir(folder.path().join("data")).unwrap();
    let wanted = make_day(folder.path(), &simulator, size, planted).await;
    let began = Instant::now();
    let (said, peak) = reconcile(&config).await;
    println!(
        "{size} transfers, {} planted: {:.1} s, peak {peak} KiB: {said}",
        wanted.len(),
        began.elapsed().as_secs_f64()
    );
    let store = Store::sqlite(&folder.path().join("data/ledger.sqlite")).await.unwrap();
    let run = store.runs(1).await.unwrap().remove(0);
    let mut found = BTreeMap::new();
    let mut after = 0;
    loop {
        let page = store.differences(&run.id, after, 1_000).await.unwrap();
        let Some(last) = page.last() else { break };
        after = last.seq;
        found.extend(page.into_iter().map(|one| (one.id, one.class.name())));
    }
    assert_eq!(found, wanted, "all found, none invented");
    assert_eq!(run.tally.matched, u64::try_from(size - wanted.len()).unwrap());
    peak
}

#[tokio::test(flavor = "multi_thread")]
async fn every_planted_difference_of_a_large_day_is_found_and_memory_is_flat() {
    let size: usize = std::env::var("DAY").ok().and_then(|size| size.parse().ok()).unwrap_or(150_000);
    // Enough to fill what there is of caches, so that what differs is what grows with the day: some 5 MiB at most, where the whole list
    // kept is 20.
    let small = day(20_000, 20).await;
    let large = day(size, (size / 1_000).max(20)).await;
    assert!(large < small + 12 * 1_024, "peak memory grew from {small} to {large} KiB");
}
