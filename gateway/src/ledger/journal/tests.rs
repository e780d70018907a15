//! The journal on a disk that forgets what was not synced, tears, fills up and fails.

#[path = "../../../tests/parts/memory_disk.rs"]
pub(crate) mod memory_disk;

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use super::recovery::Recovered;
use super::*;
use crate::ledger::id::TransactionId;
use crate::ledger::row::{Answer, Closing, Row, Status};
use crate::routes::{ANSWER_MAX, Kind, PATH_MAX};
use memory_disk::MemoryDisk;

const SETTINGS: Settings = Settings { limit: 32 * 1_048_576, sync_interval: Duration::from_millis(20) };

fn facts(serial: u64) -> Facts {
    Facts {
        id: TransactionId::parse(&format!("GWMNU20261129{serial:09}")).unwrap(),
        tx_code: "IN01".into(),
        route: "balance".into(),
        kind: Kind::Mutation,
        institution: "core-banking".into(),
        client: "a".into(),
        account: None,
        account_hash: None,
        counter_account: None,
        counter_account_hash: None,
        amount: Some(1),
        requested_at: 0,
        correlation_id: "c".into(),
        idempotency_key_hash: None,
        layout_version: 1,
        keyed: None,
    }
}

pub(super) fn row(serial: u64) -> Outcome {
    let closing = Closing {
        status: Status::Success,
        proof: None,
        response_code: None,
        detail: None,
        attempts: Vec::new(),
        responded_at: 0,
        elapsed_us: 0,
        served_from: crate::ledger::ServedFrom::Host,
    };
    Outcome::of(Row { facts: facts(serial), closing })
}

fn recover(disk: &Arc<MemoryDisk>) -> Result<Recovered, RecoveryError> {
    Journal::recover(Arc::clone(disk) as Arc<dyn Disk>, SETTINGS, [7; 16], |_| Position::default())
}

fn start(disk: &Arc<MemoryDisk>) -> (Arc<Journal>, tokio::task::JoinHandle<()>) {
    let journal = recover(disk).unwrap().journal;
    let syncer = tokio::spawn(Arc::clone(&journal).run_syncer());
    (journal, syncer)
}

/// Ends a life: nothing of it touches the disk any more.
async fn end_life(disk: &Arc<MemoryDisk>, journal: Arc<Journal>, syncer: tokio::task::JoinHandle<()>) {
    syncer.abort();
    assert!(syncer.await.is_err_and(|error| error.is_cancelled()) || journal.failed().is_cancelled());
    drop(journal);
    // What it had begun in the background holds the disk.
    while Arc::strong_count(disk) > 1 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn serial(id: TransactionId) -> u64 {
    id.as_str()[13..].parse().unwrap()
}

/// Serials of all outcomes that are not shipped.
pub(super) fn found_in(journal: &Journal) -> Vec<u64> {
    let writer = journal.writer();
    let closed = writer.live.iter().filter(|(_, live)| matches!(live, Live::Closed { .. }));
    let mut serials: Vec<_> = closed.map(|(id, _)| serial(*id)).collect();
    serials.sort_unstable();
    serials
}

/// Serials of all outcomes and of all open intents that a start finds.
fn found(disk: &Arc<MemoryDisk>) -> Result<(Vec<u64>, Vec<u64>), RecoveryError> {
    let recovered = recover(disk)?;
    let mut open: Vec<_> = recovered.open.iter().map(|facts| serial(facts.id)).collect();
    open.sort_unstable();
    Ok((found_in(&recovered.journal), open))
}

#[tokio::test]
async fn what_was_written_is_found_after_a_kill() {
    let disk = Arc::new(MemoryDisk::default());
    let journal = recover(&disk).unwrap().journal;
    for serial in 0..100 {
        journal.append_intent(&facts(serial)).unwrap();
        if serial % 2 == 0 {
            journal.append_outcome(&row(serial)).unwrap();
        }
    }
    let (closed, open) = found(&disk).unwrap();
    assert_eq!(closed, (0..100).step_by(2).collect::<Vec<_>>());
    assert_eq!(open, (1..100).step_by(2).collect::<Vec<_>>());
}

/// A row whose record has as many bytes more as its correlation id has letters.
fn row_of(serial: u64, letters: usize) -> Outcome {
    let mut outcome = row(serial);
    outcome.row.facts.correlation_id = "c".repeat(letters);
    outcome
}

/// The same, with an answer for each second one.
fn maybe_answered(serial: u64, letters: usize) -> Outcome {
    let answer = Answer { http: 200, body: vec![b'x'; letters] };
    Outcome { answer: serial.is_multiple_of(2).then_some(answer), ..row_of(serial, letters) }
}

#[tokio::test]
async fn batches_that_end_anywhere_in_a_page_are_read_back_and_records_that_start_anywhere_too() {
    let least = usize::try_from({
        let disk = Arc::new(MemoryDisk::default());
        let journal = recover(&disk).unwrap().journal;
        let first = journal.append_outcome(&row_of(0, 1)).unwrap().offset;
        journal.append_outcome(&row_of(1, 1)).unwrap().offset - first
    })
    .unwrap();
    for end in 4_096 - 40..=4_096 + 2_usize {
        for close_batch in [true, false] {
            let disk = Arc::new(MemoryDisk::default());
            let (journal, syncer) = start(&disk);
            let (mut left, mut serial) = (end - BATCH_HEADER, 0);
            // Records of the least size, the last two sharing what is left.
            while left >= 4 * least {
                journal.append_outcome(&row_of(serial, 1)).unwrap();
                (left, serial) = (left - least, serial + 1);
            }
            let half = left / 2;
            let mut tail = journal.append_outcome(&row_of(serial, 1 + half - least)).unwrap();
            if tail.offset + u64::try_from(left - half).unwrap() <= PAGE + u64::try_from(end).unwrap() {
                tail = journal.append_outcome(&row_of(serial + 1, 1 + left - half - least)).unwrap();
                serial += 1;
            }
            if close_batch {
                journal.durable(tail).await.unwrap();
            }
            let last = journal.append_outcome(&row_of(serial + 1, 3)).unwrap();
            journal.durable(last).await.unwrap();
            let told = format!("a batch to {end}, tail {}, closed: {close_batch}", tail.offset);
            let wanted: Vec<_> = (0..=serial + 1).collect();
            assert_eq!(found(&disk.copy()).unwrap_or_else(|error| panic!("{told}: {error}")).0, wanted, "{told}");
            let (mut from, mut rows) = (Position::default(), Vec::new());
            loop {
                let (some, next) = journal.outcomes_from(from).unwrap_or_else(|error| panic!("{told}: {error}"));
                rows.extend(some);
                if next == from {
                    break;
                }
                from = next;
            }
            assert_eq!(rows.len(), wanted.len(), "{told}");
            end_life(&disk, journal, syncer).await;
        }
    }
}

/// What a run knows of its transactions, beside the journal.
#[derive(Default)]
struct Model {
    next: u64,
    open: Vec<u64>,
    outcomes: BTreeSet<u64>,
    /// Written, and so to be found after a kill.
    written: BTreeSet<u64>,
    written_outcomes: BTreeSet<u64>,
    acknowledged_intents: BTreeSet<u64>,
    acknowledged_outcomes: BTreeSet<u64>,
}

/// Starts on what the last life left, and compares.
fn next_life(disk: &Arc<MemoryDisk>, model: &mut Model, killed: bool, told: &str) -> Arc<Journal> {
    let recovered = recover(disk).unwrap_or_else(|error| panic!("{told}: {error}"));
    let serial = |id: TransactionId| id.as_str()[13..].parse::<u64>().unwrap();
    let open: BTreeSet<u64> = recovered.open.iter().map(|facts| serial(facts.id)).collect();
    let journal = recovered.journal;
    let closed: BTreeSet<u64> = {
        let writer = journal.writer();
        let closed = writer.live.iter().filter(|(_, live)| matches!(live, Live::Closed { .. }));
        closed.map(|(id, _)| serial(*id)).collect()
    };
    assert!(closed.is_superset(&model.acknowledged_outcomes), "{told}: an acknowledged outcome is gone");
    assert!(closed.is_subset(&model.outcomes), "{told}: an outcome that nobody wrote");
    let known: BTreeSet<u64> = open.union(&closed).copied().collect();
    let gone: Vec<_> = model.acknowledged_intents.difference(&known).collect();
    assert!(gone.is_empty(), "{told}: acknowledged intents are gone: {gone:?}");
    if killed {
        assert!(closed.is_superset(&model.written_outcomes), "{told}: a kill lost an outcome");
        assert!(known.is_superset(&model.written), "{told}: a kill lost an intent");
    }
    // What a power cut took is gone; from here on only what is there can be lost.
    model.written = known;
    model.written_outcomes = closed;
    assert!(open.iter().all(|serial| *serial < model.next), "{told}: an intent that nobody wrote");
    // As the ledger does: what is open becomes UNKNOWN.
    model.open.clear();
    for serial in open {
        model.outcomes.insert(serial);
        journal.append_outcome(&row(serial)).unwrap_or_else(|error| panic!("{told}: {error}"));
        model.written_outcomes.insert(serial);
    }
    journal
}

/// One step of a life; says whether the journal goes on.
async fn step(journal: &Journal, disk: &MemoryDisk, model: &mut Model, dice: &mut fastrand::Rng) -> bool {
    let letters = 1 + usize::from(dice.u8(..64));
    let written = match dice.u8(..10) {
        0..=3 => {
            let serial = model.next;
            model.next += 1;
            let written = journal.append_intent(&row_of(serial, letters).row.facts);
            model.open.push(serial);
            written.map(|position| (position, serial, false))
        }
        4..=8 if !model.open.is_empty() => {
            let serial = model.open.swap_remove(dice.usize(..model.open.len()));
            model.outcomes.insert(serial);
            journal.append_outcome(&maybe_answered(serial, letters)).map(|position| (position, serial, true))
        }
        9 => {
            disk.sync_fails.store(u64::from(dice.u8(..3)), Ordering::Relaxed);
            return true;
        }
        _ => return true,
    };
    let Ok((position, serial, outcome)) = written else { return false };
    model.written.insert(serial);
    if outcome {
        model.written_outcomes.insert(serial);
    }
    if dice.u8(..) < 90 {
        if journal.durable(position).await.is_err() {
            return false;
        }
        if outcome {
            model.acknowledged_outcomes.insert(serial);
        } else {
            model.acknowledged_intents.insert(serial);
        }
    }
    true
}

/// Three lives on one disk, each ended by a kill or by a power cut, with syncs that fail and pages that are lost in any
/// order. `JOURNAL_SEEDS=n` runs more of them.
#[tokio::test]
async fn what_was_acknowledged_survives_kills_power_cuts_and_failed_syncs_in_any_order() {
    #[expect(clippy::disallowed_methods, reason = "a test's own switch")]
    let seeds = std::env::var("JOURNAL_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(300);
    for seed in 0..seeds {
        let mut dice = fastrand::Rng::with_seed(seed);
        let (disk, mut model) = (Arc::new(MemoryDisk::default()), Model::default());
        let mut killed = false;
        for life in 0..3 {
            let told = format!("seed {seed}, life {life}");
            let journal = next_life(&disk, &mut model, killed, &told);
            let syncer = tokio::spawn(Arc::clone(&journal).run_syncer());
            for _ in 0..dice.usize(1..120) {
                if !step(&journal, &disk, &mut model, &mut dice).await {
                    break;
                }
            }
            end_life(&disk, journal, syncer).await;
            // The task that syncs may be in the middle of it; let that end, as a disk would.
            tokio::task::yield_now().await;
            disk.sync_fails.store(0, Ordering::Relaxed);
            killed = dice.bool();
            if !killed {
                disk.lose_power(|| dice.bool());
            }
        }
        next_life(&disk, &mut model, killed, &format!("seed {seed}, the end"));
    }
}

#[tokio::test]
async fn a_tail_torn_at_any_byte_is_cut_and_loses_nothing_before_it() {
    let disk = Arc::new(MemoryDisk::default());
    let journal = recover(&disk).unwrap().journal;
    let ends: Vec<_> = (0..12).map(|serial| journal.append_outcome(&row(serial)).unwrap().offset).collect();
    for tear in PAGE..*ends.last().unwrap() {
        let copy = disk.copy();
        copy.edit_last(|bytes| bytes[usize::try_from(tear).unwrap()..].fill(0));
        let whole = u64::try_from(ends.iter().filter(|end| **end <= tear).count()).unwrap();
        // Zeros at a record's very end may be what was there anyway, so one more may survive; never one less.
        let (closed, _) = found(&copy).unwrap();
        assert!(closed.len() as u64 >= whole, "torn at {tear}");
        assert_eq!(closed, (0..closed.len() as u64).collect::<Vec<_>>(), "torn at {tear}");
    }
}

#[tokio::test]
async fn damage_to_what_was_durable_refuses_the_start_and_says_where() {
    let disk = Arc::new(MemoryDisk::default());
    let (journal, syncer) = start(&disk);
    let first = journal.append_outcome(&row(0)).unwrap();
    journal.durable(first).await.unwrap();
    let second = journal.append_outcome(&row(1)).unwrap();
    journal.durable(second).await.unwrap();
    end_life(&disk, journal, syncer).await;
    let damaged = disk.copy();
    {
        let files = damaged.files.lock().unwrap();
        let file = &files[&first.segment];
        file.cache.lock().unwrap()[usize::try_from(first.offset).unwrap() - 1] ^= 1;
    }
    match found(&damaged) {
        Err(RecoveryError::Corrupt { segment, offset }) => assert_eq!((segment, offset), (first.segment, PAGE)),
        other => panic!("{other:?}"),
    }
    assert!(found(&disk).is_ok());
}

#[tokio::test]
async fn the_largest_row_that_configuration_and_edge_allow_fits_into_a_record() {
    let word = "w".repeat(64);
    let mut row = row(1).row;
    let facts = &mut row.facts;
    for text in
        [&mut facts.tx_code, &mut facts.route, &mut facts.institution, &mut facts.client, &mut facts.correlation_id]
    {
        text.clone_from(&word);
    }
    facts.account = Some(codec::MaskedAccount::of(&word));
    facts.counter_account = Some(codec::MaskedAccount::of(&word));
    facts.account_hash = Some(vec![255; 16]);
    facts.counter_account_hash = Some(vec![255; 16]);
    facts.idempotency_key_hash = Some(vec![255; 32]);
    (facts.amount, facts.requested_at, facts.layout_version) = (Some(i64::MIN), i64::MIN, u32::MAX);
    let path = "p".repeat(PATH_MAX);
    let keyed = crate::ledger::row::Keyed { method: "POST".into(), path, fingerprint: vec![255; 32] };
    facts.keyed = Some(Arc::new(keyed));
    // A first try and ten retries, each with the longest name.
    let attempt = crate::ledger::row::Attempt { outcome: "o".repeat(32), elapsed_us: i64::MIN };
    row.closing.attempts = vec![attempt; 11];
    row.closing.response_code = Some("한".repeat(32));
    row.closing.detail = Some("d".repeat(32));
    (row.closing.responded_at, row.closing.elapsed_us) = (i64::MIN, i64::MIN);
    let journal = recover(&Arc::new(MemoryDisk::default())).unwrap().journal;
    journal.append_intent(&row.facts).unwrap();
    let answer = Some(Answer { http: u16::MAX, body: vec![255; ANSWER_MAX] });
    journal.append_outcome(&Outcome { row, answer }).unwrap();
}

/// Every way to destroy a durable record in place that leaves the rest of the segment readable.
#[tokio::test]
async fn a_hole_in_what_was_durable_is_corruption_and_never_stepped_over() {
    let disk = Arc::new(MemoryDisk::default());
    let (journal, syncer) = start(&disk);
    let ends: Vec<_> = (0..4).map(|serial| journal.append_outcome(&row(serial)).unwrap().offset).collect();
    let last = Position { segment: journal.end().segment, offset: ends[3] };
    journal.durable(last).await.unwrap();
    let behind = journal.append_outcome(&row(9)).unwrap();
    journal.durable(behind).await.unwrap();
    end_life(&disk, journal, syncer).await;
    assert_eq!(found(&disk.copy()).unwrap().0, [0, 1, 2, 3, 9]);
    let (second, third) = (usize::try_from(ends[0]).unwrap(), usize::try_from(ends[1]).unwrap());
    let page_end = second.next_multiple_of(4_096);
    for (what, hole) in [("a length", second..second + 4), ("a record", second..third), ("the rest", second..page_end)]
    {
        let damaged = disk.copy();
        {
            let files = damaged.files.lock().unwrap();
            files[&last.segment].cache.lock().unwrap()[hole].fill(0);
        }
        assert!(matches!(found(&damaged), Err(RecoveryError::Corrupt { .. })), "{what} is gone and nobody noticed");
    }
}

#[tokio::test]
async fn what_a_failed_sync_left_in_the_cache_is_written_again_by_the_next_start() {
    let disk = Arc::new(MemoryDisk::default());
    let (journal, syncer) = start(&disk);
    let first = journal.append_outcome(&row(0)).unwrap();
    journal.durable(first).await.unwrap();
    // The sync fails and no other segment can be made: the process stops. Its pages are still in the cache.
    disk.full.store(true, Ordering::Relaxed);
    disk.sync_fails.store(u64::MAX, Ordering::Relaxed);
    journal.writer().spare = None;
    let lost = journal.append_outcome(&row(1)).unwrap();
    assert!(journal.durable(lost).await.is_err());
    end_life(&disk, journal, syncer).await;
    disk.full.store(false, Ordering::Relaxed);
    disk.sync_fails.store(0, Ordering::Relaxed);
    let (journal, syncer) = start(&disk);
    let end = journal.append_outcome(&row(2)).unwrap();
    journal.durable(end).await.unwrap();
    end_life(&disk, journal, syncer).await;
    // Now the old file's pages, which were marked clean, are gone.
    let old = Arc::clone(&disk.files.lock().unwrap()[&first.segment]);
    old.cache.lock().unwrap()[usize::try_from(page_from(first.offset)).unwrap()..].fill(0);
    assert_eq!(found(&disk).unwrap().0, [0, 1, 2]);
}

#[tokio::test]
async fn a_power_cut_during_a_start_takes_nothing_that_the_life_before_had_acknowledged() {
    let disk = Arc::new(MemoryDisk::default());
    let (journal, syncer) = start(&disk);
    let acknowledged = journal.append_outcome(&row(0)).unwrap();
    journal.durable(acknowledged).await.unwrap();
    end_life(&disk, journal, syncer).await;
    // A kill, a start that writes the record again, and then the power: of what is not synced only the new header got
    // to the disk, and it says that the old copy does not count.
    recover(&disk).unwrap();
    let mut pages = 0;
    disk.lose_power(|| {
        pages += 1;
        pages == 1
    });
    assert_eq!(found(&disk).unwrap().0, [0]);
}

#[tokio::test]
async fn two_failed_syncs_in_a_row_and_a_power_cut_lose_nothing() {
    let disk = Arc::new(MemoryDisk::default());
    let (journal, syncer) = start(&disk);
    let first = journal.append_outcome(&row(0)).unwrap();
    journal.durable(first).await.unwrap();
    disk.sync_fails.store(2, Ordering::Relaxed);
    let second = journal.append_outcome(&row(1)).unwrap();
    journal.durable(second).await.unwrap();
    assert!(journal.end().segment >= first.segment + 2);
    end_life(&disk, journal, syncer).await;
    disk.lose_power(|| false);
    assert_eq!(found(&disk).unwrap().0, [0, 1]);
    assert_eq!(found(&disk).unwrap().0, [0, 1], "and again");
}

#[tokio::test]
async fn after_a_failed_sync_all_since_the_last_good_one_is_durable_in_a_new_segment() {
    let disk = Arc::new(MemoryDisk::default());
    let (journal, syncer) = start(&disk);
    let first = journal.append_outcome(&row(0)).unwrap();
    journal.durable(first).await.unwrap();
    disk.sync_fails.store(1, Ordering::Relaxed);
    let lost = journal.append_outcome(&row(1)).unwrap();
    journal.durable(lost).await.unwrap();
    assert!(journal.end().segment > first.segment);
    end_life(&disk, journal, syncer).await;
    disk.lose_power(|| false);
    assert_eq!(found(&disk).unwrap().0, [0, 1]);
}

#[tokio::test]
async fn when_no_segment_can_be_made_either_the_journal_fails_for_good() {
    let disk = Arc::new(MemoryDisk::default());
    let journal = recover(&disk).unwrap().journal;
    disk.full.store(true, Ordering::Relaxed);
    let _syncer = tokio::spawn(Arc::clone(&journal).run_syncer());
    disk.sync_fails.store(u64::MAX, Ordering::Relaxed);
    let position = journal.append_outcome(&row(0)).unwrap();
    assert!(matches!(journal.durable(position).await, Err(JournalError::Failed)));
    assert!(matches!(journal.append_outcome(&row(1)), Err(JournalError::Failed)));
    assert!(matches!(journal.reserve(), Err(JournalError::Failed)));
}

#[tokio::test]
async fn with_the_disk_full_new_transactions_are_refused_and_those_under_way_record_their_end() {
    let disk = Arc::new(MemoryDisk::default());
    let journal = recover(&disk).unwrap().journal;
    disk.full.store(true, Ordering::Relaxed);
    let _syncer = tokio::spawn(Arc::clone(&journal).run_syncer());
    let mut rooms = Vec::new();
    while let Ok(room) = journal.reserve() {
        rooms.push(room);
    }
    assert!(rooms.len() > 50, "{}", rooms.len());
    for serial in 0..rooms.len() as u64 {
        // Each synced by itself, which wastes the most room.
        journal.durable(journal.append_intent(&facts(serial)).unwrap()).await.unwrap();
        journal.durable(journal.append_outcome(&row(serial)).unwrap()).await.unwrap();
    }
    assert!(matches!(journal.reserve(), Err(JournalError::NoRoom)));
    assert_eq!(found(&disk.copy()).unwrap().0.len(), rooms.len());
    rooms.clear();
    for serial in 1_000.. {
        let Ok(_room) = journal.reserve() else { break };
        journal.durable(journal.append_outcome(&row(serial)).unwrap()).await.unwrap();
    }
    disk.full.store(false, Ordering::Relaxed);
    for _ in 0..500 {
        if journal.reserve().is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("there is space again, and the journal does not notice");
}

#[tokio::test]
async fn shipping_reads_every_outcome_once_over_many_segments_and_frees_them() {
    let disk = Arc::new(MemoryDisk::default());
    let (journal, _syncer) = start(&disk);
    journal.append_intent(&facts(1_000_000)).unwrap();
    let (mut from, mut shipped) = (Position::default(), 0_u64);
    for serial in 0..20_000 {
        let end = journal.append_outcome(&row(serial)).unwrap();
        if serial % 1_000 == 999 {
            journal.durable(end).await.unwrap();
            loop {
                let (rows, next) = journal.outcomes_from(from).unwrap();
                for row in &rows {
                    assert_eq!(row.row.facts.id, facts(shipped).id);
                    shipped += 1;
                }
                journal.shipped(&rows, next);
                if next == from {
                    break;
                }
                from = next;
            }
        }
    }
    assert_eq!(shipped, 20_000);
    let first = *disk.list().unwrap().first().unwrap();
    assert_eq!(first, 1, "the open intent holds its segment");
    let end = journal.append_outcome(&row(1_000_000)).unwrap();
    journal.durable(end).await.unwrap();
    let (rows, next) = journal.outcomes_from(from).unwrap();
    journal.shipped(&rows, next);
    assert!(disk.list().unwrap().len() <= 2, "{:?}", disk.list());
    assert_eq!(journal.writer().live.len(), 0);
}

#[tokio::test]
async fn a_start_asks_for_no_more_of_a_segment_than_a_piece_at_a_time() {
    let disk = Arc::new(MemoryDisk::default());
    let journal = recover(&disk).unwrap().journal;
    journal.append_outcome(&row(0)).unwrap();
    recover(&disk).unwrap();
    assert!(disk.longest_read.load(Ordering::Relaxed) <= 1_048_576);
}

#[tokio::test]
async fn a_journal_whose_thread_dies_has_failed_and_says_so() {
    let disk = Arc::new(MemoryDisk::default());
    let (journal, syncer) = start(&disk);
    let room = journal.reserve().unwrap();
    let first = journal.append_intent(&facts(1)).unwrap();
    journal.durable(first).await.unwrap();
    disk.sync_panics.store(true, Ordering::Relaxed);
    let second = journal.append_intent(&facts(2)).unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(5), journal.durable(second)).await;
    assert!(matches!(ended, Ok(Err(JournalError::Failed))), "{ended:?}");
    assert!(matches!(journal.append_intent(&facts(3)), Err(JournalError::Failed)));
    assert!(matches!(journal.reserve(), Err(JournalError::Failed)));
    // Whoever waited for it to end hears that it has.
    syncer.await.unwrap();
    drop(room);
}
