//! Reading the journal back at start: what counts, what is torn, what is corrupt.
//!
//! A record that does not read is a torn tail, which is cut, unless something says that it had been durable: a later
//! batch whose header carries a mark behind it, or a successor that names more of the segment as valid. Then it is
//! corruption, and starting would lose transactions silently: the start is refused and the place is named.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::format::{Header, PAGE, RECORD_HEADER, Walk};
use super::writer::{Live, Segment, Writer};
use super::{Disk, Journal, Position, RecordKind, Settings};
use crate::ledger::id::TransactionId;
use crate::ledger::row::{Facts, Row};

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

/// What recovery found.
#[derive(Debug)]
pub struct Recovered {
    /// The journal, ready in a new segment.
    pub journal: Arc<Journal>,
    /// Facts of transactions whose end nobody recorded: they are UNKNOWN.
    pub open: Vec<Facts>,
}

#[derive(Default)]
struct Scan {
    open: HashMap<TransactionId, (Facts, u64)>,
    closed: HashMap<TransactionId, (Position, usize)>,
}

struct Loaded {
    header: Header,
    segment: Segment,
    bytes: Vec<u8>,
}

impl Journal {
    /// Reads what is there and goes on in a new segment. `shipped` gives the place up to which the store has the rows
    /// of this journal.
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
        let loaded = load(&*disk, &numbers)?;
        let journal = loaded.first().map_or(new_id, |first| first.header.journal);
        let shipped = shipped(journal);
        let mut scan = Scan::default();
        let mut segments = VecDeque::new();
        for (index, Loaded { header, segment, bytes }) in loaded.iter().enumerate() {
            if header.journal != journal {
                return Err(RecoveryError::Foreign { segment: header.number });
            }
            let claimed = loaded.get(index + 1).filter(|next| next.header.predecessor == header.number);
            let end = scan.read(header.number, bytes, claimed.map(|next| next.header.predecessor_end), shipped)?;
            segments.push_back(Segment { end, ..segment.clone() });
        }
        if let Some(last) = segments.back() {
            // The next header will call this much valid, so it must be durable first.
            last.file.sync()?;
        }
        let synced =
            segments.back().map_or(Position::default(), |last| Position { segment: last.number, offset: last.end });
        let mut live = HashMap::new();
        for (id, (at, length)) in &scan.closed {
            live.insert(*id, Live::Closed { at: *at, length: *length });
        }
        for (id, (_, segment)) in &scan.open {
            live.insert(*id, Live::Open { segment: *segment });
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
            unsynced: Vec::new(),
            reserved: 0,
            live,
        };
        writer.switch(&*disk, settings.segment_size())?;
        let journal = Journal {
            disk,
            settings,
            writer: std::sync::Mutex::new(writer),
            synced: watch::Sender::new(synced),
            dirty: Notify::new(),
            demand: Notify::new(),
            failed: CancellationToken::new(),
        };
        let open = scan.open.into_values().map(|(facts, _)| facts).collect();
        Ok(Recovered { journal: Arc::new(journal), open })
    }
}

/// Opens every segment that was ever used, in order; one that was only prepared is removed.
fn load(disk: &dyn Disk, numbers: &[u64]) -> Result<Vec<Loaded>, RecoveryError> {
    let mut loaded: Vec<Loaded> = Vec::new();
    for number in numbers {
        let file = disk.open(*number)?;
        let bytes = file.read_at(0, usize::try_from(u32::MAX).unwrap_or(usize::MAX).min(1 << 30))?;
        match Header::parse(&bytes).filter(|header| header.number == *number) {
            Some(header) => {
                let segment = Segment { number: *number, file, end: PAGE };
                loaded.push(Loaded { header, segment, bytes });
            }
            None => {
                let body = bytes.get(usize::try_from(PAGE).unwrap_or_default()..).unwrap_or_default();
                let mark = Walk::new(body, PAGE, *number).durable_mark_from(PAGE);
                if mark.is_some_and(|mark| mark > PAGE) {
                    return Err(RecoveryError::Corrupt { segment: *number, offset: 0 });
                }
                disk.remove(*number)?;
            }
        }
    }
    // A successor that names a segment of which no header reads: that one had been in use.
    for pair in loaded.windows(2) {
        if let [before, after] = pair
            && after.header.predecessor != before.header.number
        {
            return Err(RecoveryError::Corrupt { segment: after.header.predecessor, offset: 0 });
        }
    }
    Ok(loaded)
}

impl Scan {
    /// Reads one segment and returns how much of it counts.
    fn read(
        &mut self,
        number: u64,
        bytes: &[u8],
        claimed: Option<u64>,
        shipped: Position,
    ) -> Result<u64, RecoveryError> {
        let whole = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let upto = claimed.unwrap_or(whole).min(whole);
        let body = bytes
            .get(usize::try_from(PAGE).unwrap_or_default()..usize::try_from(upto).unwrap_or(usize::MAX))
            .unwrap_or_default();
        let mut walk = Walk::new(body, PAGE, number);
        let corrupt = |offset| RecoveryError::Corrupt { segment: number, offset };
        for found in &mut walk {
            match found.kind {
                RecordKind::Intent => {
                    let facts: Facts = postcard::from_bytes(found.payload).map_err(|_| corrupt(found.start))?;
                    // Rewritten by a switch after its outcome? A switch keeps the order, so an outcome comes later.
                    self.open.insert(facts.id, (facts, number));
                }
                RecordKind::Outcome => {
                    let row: Row = postcard::from_bytes(found.payload).map_err(|_| corrupt(found.start))?;
                    self.open.remove(&row.facts.id);
                    let at = Position { segment: number, offset: found.start };
                    if at >= shipped {
                        self.closed.insert(row.facts.id, (at, found.payload.len() + RECORD_HEADER));
                    }
                }
            }
        }
        let good = walk.good;
        let mark = match claimed {
            Some(claimed) => claimed,
            None => walk.durable_mark_from(good).unwrap_or_default(),
        };
        if mark > good { Err(corrupt(good)) } else { Ok(good) }
    }
}
