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

mod damage;
mod failing;
mod lives;
