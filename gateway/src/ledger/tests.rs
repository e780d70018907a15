//! The ledger's start: what becomes of claims that an earlier life made and had not begun to write down.

mod keys;

use std::sync::Arc;

use super::journal::tests::memory_disk::MemoryDisk;
use super::*;
use crate::clock::Deadline;
use crate::routes::Kind;

fn settings() -> Settings {
    Settings {
        journal: JournalSettings { limit: 16 << 20, sync_interval: Duration::from_millis(1) },
        instance: Instance::default(),
        search_key: vec![1; 32],
        instance_lease: Duration::from_secs(9),
        claim_keep: Duration::from_secs(9),
    }
}

async fn open(disk: &Arc<MemoryDisk>, store: &Store, clock: &Clock) -> Arc<Ledger> {
    let telemetry = Arc::new(Telemetry::new());
    Ledger::open(Arc::clone(disk) as Arc<dyn Disk>, store.clone(), settings(), clock.clone(), &telemetry).await.unwrap()
}

fn facts(ledger: &Ledger, key: &str) -> Facts {
    Facts {
        id: ledger.draw_id(jiff::civil::date(2026, 11, 29)).unwrap(),
        tx_code: "TR01".into(),
        route: "transfer".into(),
        kind: Kind::Mutation,
        institution: "core".into(),
        client: "a".into(),
        account: None,
        account_hash: None,
        counter_account: None,
        counter_account_hash: None,
        amount: Some(1),
        requested_at: 0,
        correlation_id: "c".into(),
        idempotency_key_hash: Some(key.into()),
        layout_version: 1,
        keyed: None,
    }
}

fn claim(facts: Facts, key: &str) -> Claim {
    let key = ClaimKey { client: "a".into(), method: "POST".into(), path: "/t".into(), key_hash: key.into() };
    Claim::new(key, facts, vec![7; 32], Duration::from_secs(9))
}

/// Claims a key and is killed before the intent; then the tail of the journal is what the test makes of it.
async fn killed_after_the_claim(spoil: impl FnOnce(&MemoryDisk)) -> (Row, ClaimResult) {
    let (disk, clock) = (Arc::new(MemoryDisk::default()), Clock::system().unwrap());
    let store = Store::Memory(MemoryStore::new(clock.clone()));
    let soon = || Deadline::after(clock.now(), Duration::from_secs(5));
    let first = open(&disk, &store, &clock).await;
    // Something durable, so that there is a tail behind it.
    let other = facts(&first, "other");
    first.journal.durable(first.journal.append_intent(&other).unwrap()).await.unwrap();
    let claimed = facts(&first, "k");
    let id = claimed.id;
    assert_eq!(first.claim(claim(claimed, "k"), soon()).await, ClaimResult::Ours);
    first.tasks.lock().unwrap().clear();
    drop(first);
    while Arc::strong_count(&disk) > 1 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    spoil(&disk);
    let second = open(&disk, &store, &clock).await;
    assert!(second.catch_up(Duration::from_secs(5)).await);
    let row = second.row(id).await.unwrap().expect("a claim leaves a row").row;
    let again = second.claim(claim(facts(&second, "k"), "k"), soon()).await;
    (row, again)
}

#[tokio::test]
async fn a_claim_without_an_intent_was_never_sent_and_its_key_runs_again() {
    let (row, again) = killed_after_the_claim(|_| {}).await;
    assert_eq!((row.closing.status, row.closing.proof), (Status::Failed, Some(Proof::P0)));
    assert_eq!(again, ClaimResult::Ours);
}

#[tokio::test]
async fn a_claim_whose_intent_may_have_been_cut_with_the_tail_is_in_doubt_and_its_key_does_not_run() {
    let torn = |disk: &MemoryDisk| {
        // The last one that was used; a spare is all zero.
        for file in disk.files.lock().unwrap().values().rev() {
            let mut bytes = file.cache.lock().unwrap();
            if let Some(end) = bytes.iter().rposition(|byte| *byte != 0) {
                // Half a record where the next batch would have begun.
                bytes[(end + 1).next_multiple_of(4_096)] = 77;
                return;
            }
        }
    };
    let (row, again) = killed_after_the_claim(torn).await;
    assert_eq!((row.closing.status, row.closing.detail.as_deref()), (Status::Unknown, Some("recovered")));
    assert!(matches!(again, ClaimResult::Repeat(Repeat::InDoubt(_))), "{again:?}");
}

#[tokio::test]
async fn a_key_that_its_holder_lets_go_between_two_looks_is_claimed_again() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Clock::system().unwrap();
    let store = Store::sqlite(&folder.path().join("ledger.sqlite")).await.unwrap();
    let ledger = open(&Arc::new(MemoryDisk::default()), &store, &clock).await;
    let Store::Sql(SqlStore::Sqlite { writer, .. }) = &store else { unreachable!() };
    // As if somebody had it at the insertion and had let it go when it is asked who.
    let holder = "CREATE TRIGGER holder BEFORE INSERT ON idempotency_claim BEGIN SELECT RAISE(IGNORE); END";
    sqlx::query(holder).execute(writer).await.unwrap();
    let alone = store.claim(ledger.owner, &[claim(facts(&ledger, "k"), "k")]).await.unwrap();
    assert_eq!(alone, [Claimed::LetGo]);
    sqlx::query("DROP TRIGGER holder").execute(writer).await.unwrap();
    // Who has it does not read.
    store.write_claims(ledger.owner, &[claim(facts(&ledger, "k"), "k")]).await.unwrap();
    sqlx::query("UPDATE idempotency_claim SET transaction_id = 'x'").execute(writer).await.unwrap();
    let claiming = tokio::spawn({
        let (ledger, wanted) = (Arc::clone(&ledger), claim(facts(&ledger, "k"), "k"));
        let soon = Deadline::after(clock.now(), Duration::from_secs(5));
        async move { ledger.claim(wanted, soon).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!claiming.is_finished(), "it is nobody's: it must be asked for again");
    sqlx::query("DELETE FROM idempotency_claim").execute(writer).await.unwrap();
    assert_eq!(claiming.await.unwrap(), ClaimResult::Ours);
    ledger.close(Duration::from_secs(5)).await;
}
