//! Transaction ids never repeat: over restarts, two folders with one letter, lost and restored folders, clocks and midnights.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gwanmun::app::{App, Seams};
use gwanmun::clock::Clock;
use gwanmun::ledger::{FolderDisk, MemoryStore, Store};
use gwanmun::pool::TcpDial;
use mock_core_banking::Simulator;

use crate::client::{AUDITOR, Answer, balance, transfer};
use crate::harness::{TestGateway, config_text, configure, eventually, simulator};
use crate::postgres::Postgres;
use crate::process::{Process, write_config};

/// Asks for balances and notes the ids; each must be new.
async fn take_ids(process: &Process, count: usize, ids: &mut HashSet<String>) {
    let mut client = process.client().await;
    for _ in 0..count {
        let id = client.call(&balance("1")).await.transaction_id();
        assert_eq!(id.len(), 22);
        assert!(ids.insert(id.clone()), "{id} came twice");
    }
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        // Half written, and gone in a moment.
        if path.extension().is_some_and(|extension| extension == "new") {
            continue;
        }
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_folder(&path, &target);
        } else {
            std::fs::copy(&path, &target).unwrap();
        }
    }
}

async fn place() -> (Simulator, tempfile::TempDir) {
    (simulator(Duration::from_secs(1)).await, tempfile::tempdir().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_restarts_and_a_folder_that_is_deleted_or_restored_repeat_no_id() {
    let (simulator, folder) = place().await;
    let config = write_config(folder.path(), &simulator, "");
    let (data, backup) = (folder.path().join("data"), folder.path().join("backup"));
    let mut ids = HashSet::new();
    for round in 0..20 {
        let mut process = Process::start(&config).await;
        take_ids(&process, 10, &mut ids).await;
        match round {
            // A backup of a stopped gateway, which is then used, and comes back later.
            5 => {
                process.terminate();
                process.wait().await;
                copy_folder(&data, &backup);
            }
            10 => {
                process.kill();
                std::fs::remove_dir_all(&data).unwrap();
                copy_folder(&backup, &data);
            }
            15 => {
                process.kill();
                std::fs::remove_dir_all(&data).unwrap();
            }
            _ => process.kill(),
        }
    }
    assert_eq!(ids.len(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_folders_with_one_letter_draw_different_ids() {
    let (a, b) = (TestGateway::start(&[]).await, TestGateway::start(&[]).await);
    let mut ids = HashSet::new();
    for gateway in [&a, &b] {
        for _ in 0..50 {
            assert!(ids.insert(gateway.call(&balance("1")).await.transaction_id()));
        }
    }
    assert!(ids.iter().all(|id| id.starts_with("GWMNU")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_folder_waits_for_the_letter_until_the_first_has_gone() {
    let postgres = Postgres::shared();
    let url = postgres.new_database();
    let (simulator, first) = place().await;
    let second = tempfile::tempdir().unwrap();
    let settings =
        [("LEDGER__STORE", "postgres"), ("LEDGER__POSTGRES_URL", url.as_str()), ("LEDGER__INSTANCE_LEASE", "1500ms")];
    let first_config = write_config(first.path(), &simulator, "");
    let mut ids = HashSet::new();
    let process = Process::start_with(&first_config, &settings).await;
    take_ids(&process, 20, &mut ids).await;
    // While it runs the other one is refused.
    let refused = std::process::Command::new(env!("CARGO_BIN_EXE_gwanmun"))
        .args(["serve", "--config"])
        .arg(write_config(second.path(), &simulator, ""))
        .envs(settings.iter().map(|(name, value)| (format!("GWANMUN_{name}"), *value)))
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(69));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("instance letter"), "{refused:?}");
    process.kill();
    let process = Process::start_with(&second.path().join("gwanmun.toml"), &settings).await;
    take_ids(&process, 20, &mut ids).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_is_restored_from_a_copy_sets_its_journal_aside_and_runs_no_key_again() {
    let postgres = Postgres::shared();
    let url = postgres.new_database();
    let (simulator, folder) = place().await;
    let config = write_config(folder.path(), &simulator, "");
    let settings =
        [("LEDGER__STORE", "postgres"), ("LEDGER__POSTGRES_URL", url.as_str()), ("LEDGER__INSTANCE_LEASE", "900ms")];
    let (data, backup) = (folder.path().join("data"), folder.path().join("backup"));
    let process = Process::start_with(&config, &settings).await;
    assert_eq!(process.client().await.call(&transfer("before", "1", 5)).await.status, 200);
    // Copied while it runs, since its last start; a renewal of the lease later it is out of date.
    copy_folder(&data, &backup);
    let identity = || std::fs::read(data.join("journal/identity")).unwrap();
    let copied = identity();
    eventually("the lease is renewed", async || identity() != copied).await;
    let renewed = identity();
    eventually("and renewed again", async || identity() != renewed).await;
    let after: Answer = process.client().await.call(&transfer("after", "1", 5)).await;
    assert_eq!(after.status, 200);
    process.kill();
    std::fs::remove_dir_all(&data).unwrap();
    copy_folder(&backup, &data);
    let process = Process::start_with(&config, &settings).await;
    let aside = std::fs::read_dir(data.join("journal")).unwrap();
    let aside = aside.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("stale-"));
    assert_eq!(aside.count(), 1);
    let mut client = process.client().await;
    for key in ["before", "after"] {
        let again = client.call(&transfer(key, "1", 5)).await;
        // What was shipped is answered; what was not is in doubt. Neither runs again.
        assert!(matches!(again.status, 200 | 409 | 504), "{key}: {}", again.text);
    }
    assert_eq!(simulator.host().counters().requests["0600"], 2);
    assert_eq!(client.call(&transfer("new", "1", 5)).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_goes_back_and_midnight_in_seoul_repeat_no_id() {
    let (simulator, folder) = place().await;
    // The process is in UTC; in Seoul it is a second before midnight.
    let clock = Clock::simulated("2026-11-29T14:59:59Z".parse().unwrap()).unwrap();
    let config = configure(folder.path(), &simulator, &config_text(), &[]);
    let seams = Seams {
        clock: clock.clone(),
        disk: Arc::new(FolderDisk::new(&folder.path().join("journal")).unwrap()),
        store: Store::Memory(MemoryStore::new(clock.clone())),
        dial: Box::new(|_, address| Arc::new(TcpDial { address: address.to_owned() })),
        search_key: vec![1; 32],
    };
    let app = App::assemble(config, seams).await.unwrap();
    let gateway = TestGateway::serve(app, simulator, folder).await;
    let mut ids = HashSet::new();
    let take = async |ids: &mut HashSet<String>| {
        let id = gateway.call(&balance("1")).await.transaction_id();
        assert!(ids.insert(id.clone()), "{id} came twice");
        id[5..13].to_owned()
    };
    assert_eq!(take(&mut ids).await, "20261129");
    eventually("it is past midnight in Seoul", async || take(&mut ids).await == "20261130").await;
    clock.step(-3_600);
    for _ in 0..20 {
        assert_eq!(take(&mut ids).await, "20261129");
    }
    clock.step(3_600);
    assert_eq!(take(&mut ids).await, "20261130");
    let rows = gateway.complete("/api/ledger?limit=200", AUDITOR).await;
    assert_eq!(rows["items"].as_array().unwrap().len(), ids.len());
}
