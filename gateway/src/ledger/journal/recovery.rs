//! Reading the journal back at start: what counts, what is torn, what is corrupt.
//!
//! A record that does not read is a torn tail, which is cut, unless something says that it had been durable: a later
//! batch whose header carries a mark behind it, or a successor that names more of the segment as valid. Then it is
//! corruption, and starting would lose transactions silently: the start is refused and the place is named.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::format::{Header, PAGE, RECORD_HEADER, Walk};
use super::writer::{Kept, Live, Segment, Writer};
use super::{Disk, Journal, Position, Settings, read_intent, read_outcome};
use crate::ledger::id::TransactionId;
use crate::ledger::row::Facts;
use crate::ledger::store::ClaimKey;

/// Why the journal can't be used.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// The file system.
    #[error("the journal cannot be read or written: {0}")]
    Io(#[from] io::Error),
    /// Something that had been durable does not read back.
    #[error("journal segment {segment} is corrupt at byte {offset}: it was durable and does not read back")]
    Corrupt {
        /// The segment's number.
        segment: u64,
        /// Where reading stopped.
        offset: u64,
    },
    /// Two journals in one folder.
    #[error("journal segment {segment} belongs to another journal")]
    Foreign {
        /// The segment's number.
        segment: u64,
    },
}

/// A key, and the fingerprint of the body that it was used for.
pub type UsedKey = (ClaimKey, Vec<u8>);

/// What recovery found.
#[derive(Debug)]
pub struct Recovered {
    /// The journal, ready in a new segment.
    pub journal: Arc<Journal>,
    /// Facts of transactions whose end nobody recorded: they are UNKNOWN.
    pub open: Vec<Facts>,
    /// Keys of transactions whose end the store does not know yet, except those that provably never left.
    pub keys: Vec<(TransactionId, UsedKey)>,
    /// Whether a torn tail was cut: a record that is not there may have been.
    pub cut: bool,
    /// Behind the last record that was found. The store can't have more of this journal, unless the folder is an old copy.
    pub end: Position,
}

#[derive(Default)]
struct Scan {
    open: HashMap<TransactionId, (Facts, Live)>,
    keys: HashMap<TransactionId, UsedKey>,
    closed: HashMap<TransactionId, (Position, usize)>,
    cut: bool,
    end: Position,
}

/// A segment that was used, and what its header says.
struct Used {
    header: Header,
    segment: Segment,
}

impl Journal {
    /// Reads what is there and goes on in a new segment. `shipped` gives the place up to which the store has the rows
    /// of this journal.
    ///
    /// What the last segment holds behind its own durable mark is written again into the new one: the sync that should
    /// have covered it may have failed, and asking for it again would be answered with yes.
    ///
    /// # Errors
    /// [`RecoveryError`].
    pub fn recover(
        disk: Arc<dyn Disk>,
        settings: Settings,
        new_id: [u8; 16],
        shipped: impl FnOnce([u8; 16]) -> Position,
    ) -> Result<Recovered, RecoveryError> {
        let numbers = disk.list()?;
        let used = find_used(&*disk, &numbers)?;
        let journal = used.first().map_or(new_id, |first| first.header.journal);
        let shipped = shipped(journal);
        let (mut scan, mut segments, mut unsynced) = (Scan::default(), VecDeque::new(), Vec::new());
        for (index, Used { header, segment }) in used.iter().enumerate() {
            if header.journal != journal {
                return Err(RecoveryError::Foreign { segment: header.number });
            }
            // One at a time: the whole journal may be larger than the memory.
            let bytes = read_whole(segment)?;
            let end = match used.get(index + 1).map(|next| next.header) {
                Some(next) if next.predecessor == header.number => {
                    scan.read(header.number, &bytes, Some(next.predecessor_end), shipped)?
                }
                // Its successor was lost before its first sync, and with it the word how much counts. All that reads does:
                // what was not durable here was written again behind, and a record that is met twice says the same.
                Some(_) => scan.read(header.number, &bytes, None, shipped)?,
                None => {
                    scan.read(header.number, &bytes, None, shipped)?;
                    let mark = durable_mark(&bytes, header.number);
                    unsynced = records_behind(&bytes, header.number, mark)?;
                    mark
                }
            };
            segments.push_back(Segment { end, ..segment.clone() });
        }
        let synced =
            segments.back().map_or(Position::default(), |last| Position { segment: last.number, offset: last.end });
        let mut live = foldhash::HashMap::default();
        for (id, (at, length)) in &scan.closed {
            live.insert(*id, Live::Closed { at: *at, length: *length });
        }
        for (id, (_, intent)) in &scan.open {
            live.insert(*id, *intent);
        }
        let mut writer = Writer {
            journal,
            segments,
            offset: PAGE,
            tail: PAGE,
            next_number: numbers.last().map_or(1, |last| last + 1),
            batch_open: false,
            synced_upto: synced.offset,
            spare: None,
            syncing: Vec::new(),
            left: Vec::new(),
            kept_bytes: Kept::bytes(&unsynced),
            unsynced,
            scratch: Vec::new(),
            has_failed: false,
            reserved: 0,
            live,
        };
        writer.switch(&*disk, settings.segment_size(), true)?;
        let dirty = Notify::new();
        dirty.notify_one();
        let journal = Journal {
            disk,
            settings,
            writer: std::sync::Mutex::new(writer),
            synced: super::Reached::new(synced),
            dirty,
            demand: Notify::new(),
            failed: CancellationToken::new(),
            syncer: std::sync::OnceLock::new(),
        };
        let mut open: Vec<Facts> = scan.open.into_values().map(|(facts, _)| facts).collect();
        open.sort_unstable_by_key(|facts| facts.id);
        let keys = scan.keys.into_iter().collect();
        Ok(Recovered { journal: Arc::new(journal), open, keys, cut: scan.cut, end: scan.end })
    }
}

/// Reads a segment in pieces: asking for more than is there would reserve memory for it.
fn read_whole(segment: &Segment) -> io::Result<Vec<u8>> {
    const PIECE: usize = 1_048_576;
    let mut bytes = Vec::new();
    loop {
        let piece = segment.file.read_at(u64::try_from(bytes.len()).unwrap_or(u64::MAX), PIECE)?;
        bytes.extend_from_slice(&piece);
        if piece.len() < PIECE {
            return Ok(bytes);
        }
    }
}

fn body(bytes: &[u8]) -> &[u8] {
    bytes.get(usize::try_from(PAGE).unwrap_or_default()..).unwrap_or_default()
}

/// How much of a segment its own batch headers call durable.
fn durable_mark(bytes: &[u8], number: u64) -> u64 {
    Walk::new(body(bytes), PAGE, number).durable_mark_from(PAGE).unwrap_or(PAGE)
}

/// The records of a segment that its headers do not call durable.
fn records_behind(bytes: &[u8], number: u64, mark: u64) -> Result<Vec<Kept>, RecoveryError> {
    let mut kept = Vec::new();
    for found in Walk::new(body(bytes), PAGE, number).filter(|found| found.start >= mark) {
        let torn = || RecoveryError::Corrupt { segment: number, offset: found.start };
        let corrupt = |_| torn();
        let intent = read_intent(found.kind, found.payload).transpose().map_err(corrupt)?;
        let id = match intent {
            Some(facts) => facts.id,
            None => {
                let outcome = read_outcome(found.kind, found.payload).transpose().map_err(corrupt)?;
                outcome.ok_or_else(torn)?.row.facts.id
            }
        };
        kept.push(Kept { id, kind: found.kind, payload: found.payload.to_vec() });
    }
    Ok(kept)
}

/// Every segment that was ever used, in order. Those that were only prepared are removed, once all is known to be well.
fn find_used(disk: &dyn Disk, numbers: &[u64]) -> Result<Vec<Used>, RecoveryError> {
    let (mut used, mut prepared): (Vec<Used>, Vec<u64>) = (Vec::new(), Vec::new());
    for number in numbers {
        let file = disk.open(*number)?;
        let head = file.read_at(0, usize::try_from(PAGE).unwrap_or_default())?;
        let segment = Segment { number: *number, file, end: PAGE };
        match Header::parse(&head).filter(|header| header.number == *number) {
            Some(header) => used.push(Used { header, segment }),
            None if durable_mark(&read_whole(&segment)?, *number) > PAGE => {
                return Err(RecoveryError::Corrupt { segment: *number, offset: 0 });
            }
            None => prepared.push(*number),
        }
    }
    for pair in used.windows(2) {
        // A predecessor that is gone had been in use, unless nothing of it counts.
        if let [before, Used { header: after, .. }] = pair
            && after.predecessor != before.header.number
            && after.predecessor_end > PAGE
        {
            return Err(RecoveryError::Corrupt { segment: after.predecessor, offset: 0 });
        }
    }
    for number in prepared {
        disk.remove(number)?;
    }
    Ok(used)
}

impl Scan {
    /// Reads one segment and returns how much of it reads: all that counts, or the start is refused.
    fn read(
        &mut self,
        number: u64,
        bytes: &[u8],
        claimed: Option<u64>,
        shipped: Position,
    ) -> Result<u64, RecoveryError> {
        let whole = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let upto = usize::try_from(claimed.unwrap_or(whole).min(whole)).unwrap_or(usize::MAX);
        let mut walk = Walk::new(body(bytes.get(..upto).unwrap_or_default()), PAGE, number);
        let corrupt = |offset| RecoveryError::Corrupt { segment: number, offset };
        for found in &mut walk {
            let (kind, length) = (found.kind, found.payload.len() + RECORD_HEADER);
            let at = Position { segment: number, offset: found.start };
            let intent = read_intent(kind, found.payload).transpose().map_err(|_| corrupt(found.start))?;
            if let Some(facts) = intent {
                self.open.insert(facts.id, (facts, Live::Open { at, length, kind }));
                continue;
            }
            let outcome = read_outcome(kind, found.payload).transpose().map_err(|_| corrupt(found.start))?;
            let row = outcome.ok_or_else(|| corrupt(found.start))?.row;
            self.open.remove(&row.facts.id);
            if at >= shipped {
                self.closed.insert(row.facts.id, (at, length));
                if let Some((key, fingerprint)) = row.facts.claim_key().filter(|_| !row.is_provably_unsent()) {
                    self.keys.insert(row.facts.id, (key, fingerprint.to_vec()));
                }
            }
        }
        let good = walk.good;
        let mark = claimed.unwrap_or_else(|| walk.durable_mark_from(good).unwrap_or_default());
        if mark > good {
            return Err(corrupt(good));
        }
        // Also of a segment that was left: a start that cut its tail may have broken off before it had closed the claims.
        let torn = {
            let mut whole = Walk::new(body(bytes), PAGE, number);
            whole.by_ref().for_each(drop);
            whole.good
        };
        let behind = usize::try_from(torn).ok().and_then(|torn| bytes.get(torn..));
        self.end = self.end.max(Position { segment: number, offset: good });
        self.cut |= behind.is_some_and(|behind| behind.iter().any(|byte| *byte != 0));
        Ok(good)
    }
}
