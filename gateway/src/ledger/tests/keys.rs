//! Keys of a store that the gateway has to itself: in the journal until their rows are shipped, over kills and copies.

use super::*;

fn soon(ledger: &Ledger) -> Deadline {
    Deadline::after(ledger.clock.now(), Duration::from_secs(5))
}

async fn sqlite(folder: &tempfile::TempDir) -> Store {
    Store::sqlite(&folder.path().join("ledger.sqlite")).await.unwrap()
}

async fn execute(store: &Store, statement: &'static str) {
    let Store::Sql(SqlStore::Sqlite { writer, .. }) = store else { unreachable!() };
    sqlx::query(statement).execute(writer).await.unwrap();
}

async fn ask(ledger: &Ledger, key: &str) -> ClaimResult {
    ledger.claim(claim(facts(ledger, key), key), soon(ledger)).await
}

/// Claims a key, and goes as far as the intent.
async fn run(ledger: &Arc<Ledger>, key: &str) -> (TransactionId, Entry) {
    let mut facts = facts(ledger, key);
    let id = facts.id;
    let claim = claim(facts.clone(), key);
    facts.keyed = ledger.keeps(&claim);
    assert_eq!(ledger.claim(claim, soon(ledger)).await, ClaimResult::Ours, "{key}");
    let mut entry = ledger.accept(facts, ledger.reserve().unwrap(), Witness::default());
    entry.intend(soon(ledger)).await.unwrap();
    (id, entry)
}

fn answer() -> Answer {
    Answer { http: 200, body: b"{}".to_vec() }
}

async fn succeed(ledger: &Ledger, entry: Entry, answer: &Answer) {
    let end = End {
        status: Status::Success,
        proof: None,
        response_code: Some("0000"),
        detail: None,
        served_from: ServedFrom::Host,
        answer: Some(answer),
    };
    entry.close(end, soon(ledger)).await.unwrap();
}

async fn never_leave(ledger: &Ledger, entry: Entry) {
    let end = End {
        status: Status::Failed,
        proof: Some(Proof::P0),
        response_code: None,
        detail: Some("circuit-open"),
        served_from: ServedFrom::Host,
        answer: None,
    };
    entry.close(end, soon(ledger)).await.unwrap();
}

/// Kills a life: its entries are never closed, its tasks do nothing more, and the next one finds what is on the disk.
fn kill(ledger: &Ledger, disk: &MemoryDisk, entries: Vec<Entry>) -> Arc<MemoryDisk> {
    ledger.tasks.lock().unwrap().clear();
    ledger.keeping.lock().unwrap().take();
    entries.into_iter().for_each(std::mem::forget);
    disk.copy()
}

#[tokio::test]
async fn until_rows_are_shipped_the_journal_alone_has_their_keys_and_the_next_life_knows_them() {
    let (folder, clock, disk) =
        (tempfile::tempdir().unwrap(), Clock::system().unwrap(), Arc::new(MemoryDisk::default()));
    let store = sqlite(&folder).await;
    // No row gets in, and yet the store can be asked.
    execute(&store, "CREATE TRIGGER down BEFORE INSERT ON ledger BEGIN SELECT missing(); END").await;
    let first = open(&disk, &store, &clock).await;
    let (sent_id, sent) = run(&first, "sent").await;
    let (done_id, done) = run(&first, "done").await;
    succeed(&first, done, &answer()).await;
    let (_, unsent) = run(&first, "unsent").await;
    never_leave(&first, unsent).await;
    assert_eq!(ask(&first, "idle").await, ClaimResult::Ours);
    // A sweep may have written down what runs.
    let claims = store.open_claims(first.owner.journal, 9).await.unwrap();
    assert!(claims.iter().all(|facts| facts.id == sent_id), "{claims:?}");
    let disk = kill(&first, &disk, vec![sent]);

    let second = open(&disk, &store, &clock).await;
    let known = async |store_says: &str| {
        assert_eq!(ask(&second, "sent").await, ClaimResult::Repeat(Repeat::InDoubt(sent_id)), "{store_says}");
        let same = ClaimResult::Repeat(Repeat::Same(done_id, answer()));
        assert_eq!(ask(&second, "done").await, same, "{store_says}");
        let mut another = claim(facts(&second, "done"), "done");
        another.fingerprint = vec![8; 32];
        let reused = second.claim(another, soon(&second)).await;
        assert_eq!(reused, ClaimResult::Repeat(Repeat::Reused), "{store_says}");
    };
    known("nothing").await;
    // Nothing was sent for these: they are as free as if they had never been claimed.
    assert_eq!(ask(&second, "unsent").await, ClaimResult::Ours);
    assert_eq!(ask(&second, "idle").await, ClaimResult::Ours);
    execute(&store, "DROP TRIGGER down").await;
    assert!(second.catch_up(Duration::from_secs(5)).await);
    assert!(!second.claims.is_known(sent_id) && !second.claims.is_known(done_id));
    known("what it was told").await;
    second.close(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn what_runs_is_written_down_and_its_end_ends_or_frees_it_there() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), Clock::system().unwrap());
    for store in [Store::Memory(MemoryStore::new(clock.clone()).private()), sqlite(&folder).await] {
        let ledger = open(&Arc::new(MemoryDisk::default()), &store, &clock).await;
        let ((long_id, long), (unsent_id, unsent)) = (run(&ledger, "long").await, run(&ledger, "unsent").await);
        let ids = [long_id, unsent_id];
        for _ in 0..2 {
            ledger.write_down().await.unwrap();
            let open = store.open_claims(ledger.owner.journal, 9).await.unwrap();
            assert_eq!(open.iter().filter(|facts| ids.contains(&facts.id)).count(), 2, "{store:?}");
        }
        never_leave(&ledger, unsent).await;
        ledger.release(unsent_id, Duration::from_secs(5)).await;
        assert_eq!(ask(&ledger, "unsent").await, ClaimResult::Ours, "{store:?}");
        succeed(&ledger, long, &answer()).await;
        assert!(ledger.catch_up(Duration::from_secs(5)).await, "{store:?}");
        ledger.sweep(false, 9).await.unwrap();
        assert!(ledger.catch_up(Duration::from_secs(5)).await, "{store:?}");
        assert_eq!(store.open_claims(ledger.owner.journal, 9).await.unwrap(), [], "{store:?}");
        assert_eq!(ask(&ledger, "long").await, ClaimResult::Repeat(Repeat::Same(long_id, answer())), "{store:?}");
        assert_eq!(store.page(&Filter::default(), None, 9).await.unwrap().len(), 2, "{store:?}");
        ledger.close(Duration::from_secs(5)).await;
    }
}

#[tokio::test]
async fn what_runs_is_not_written_down_behind_its_end() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), Clock::system().unwrap());
    let store = sqlite(&folder).await;
    let ledger = open(&Arc::new(MemoryDisk::default()), &store, &clock).await;
    let (_, entry) = run(&ledger, "k").await;
    let held = ledger.claims.shipping().await;
    let writing_down = tokio::time::timeout(Duration::from_millis(200), ledger.write_down()).await;
    assert!(writing_down.is_err(), "while rows are shipped");
    succeed(&ledger, entry, &answer()).await;
    assert!(!ledger.catch_up(Duration::from_millis(500)).await, "while claims are written down");
    drop(held);
    assert!(ledger.is_all_told(Duration::from_secs(5)).await);
    assert_eq!(store.open_claims(ledger.owner.journal, 9).await.unwrap(), []);
    ledger.close(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn the_keys_of_a_journal_that_is_an_old_copy_run_no_more() {
    let (folder, clock, disk) =
        (tempfile::tempdir().unwrap(), Clock::system().unwrap(), Arc::new(MemoryDisk::default()));
    let store = sqlite(&folder).await;
    let first = open(&disk, &store, &clock).await;
    let ((id, entry), journal) = (run(&first, "k").await, first.owner.journal);
    let (over_id, over) = run(&first, "over").await;
    let copy = disk.copy();
    // What became of this one the store knows.
    never_leave(&first, over).await;
    first.release(over_id, Duration::from_secs(5)).await;
    assert!(first.catch_up(Duration::from_secs(5)).await);
    kill(&first, &disk, vec![entry]);
    // Meanwhile the store went on with another life, of which this folder knows nothing.
    let instance = Instance::default();
    let lease = store.lease_of(instance).await.unwrap().unwrap();
    let next = InstanceLease {
        incarnation: lease.incarnation + 1,
        mark: [9; 16],
        journal: [9; 16],
        left: Duration::ZERO,
        ..lease
    };
    assert!(store.take_lease(instance, &next, lease.incarnation, None).await.unwrap());
    let second = open(&copy, &store, &clock).await;
    assert_ne!(second.owner.journal, journal);
    assert_eq!(ask(&second, "k").await, ClaimResult::Repeat(Repeat::InDoubt(id)));
    assert_eq!(ask(&second, "over").await, ClaimResult::Ours);
    let abandoned = second.abandoned(None, 9).await.unwrap();
    assert_eq!(abandoned.iter().map(|stored| stored.row.facts.id).collect::<Vec<_>>(), [id]);
    second.close(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn what_a_start_ships_again_contradicts_nothing() {
    let (folder, clock, disk) =
        (tempfile::tempdir().unwrap(), Clock::system().unwrap(), Arc::new(MemoryDisk::default()));
    let store = sqlite(&folder).await;
    let first = open(&disk, &store, &clock).await;
    let (id, entry) = run(&first, "k").await;
    succeed(&first, entry, &answer()).await;
    assert!(first.catch_up(Duration::from_secs(5)).await);
    let disk = kill(&first, &disk, Vec::new());
    let second = open(&disk, &store, &clock).await;
    assert!(second.catch_up(Duration::from_secs(5)).await);
    let Store::Sql(SqlStore::Sqlite { writer, .. }) = &store else { unreachable!() };
    let parked: Vec<String> = sqlx::query_scalar("SELECT reason FROM ledger_parked").fetch_all(writer).await.unwrap();
    assert!(parked.is_empty(), "{parked:?}");
    assert_eq!(ask(&second, "k").await, ClaimResult::Repeat(Repeat::Same(id, answer())));
    second.close(Duration::from_secs(5)).await;
}
