//! What stands behind the journal's lock: the segments, what is written and what is not known to be durable. Synchronous;
//! waits for nothing but the kernel's page cache.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use foldhash::HashMap;

use super::format::{self, Header, PAGE, RECORD_HEADER, page_from, record_from};
use super::{Disk, Position, RecordKind, SegmentFile};
use crate::ledger::id::TransactionId;

#[derive(Debug)]
pub(super) struct Writer {
    pub(super) journal: [u8; 16],
    pub(super) segments: VecDeque<Segment>,
    /// Those of them in which nothing is written any more, and which have not been told so yet.
    pub(super) left: Vec<Arc<dyn SegmentFile>>,
    /// Where the next byte goes in the last segment.
    pub(super) offset: u64,
    /// Behind the last record in it.
    pub(super) tail: u64,
    /// The number of the next segment to be made.
    pub(super) next_number: u64,
    pub(super) batch_open: bool,
    /// How much of the last segment is known to be durable.
    pub(super) synced_upto: u64,
    pub(super) spare: Option<Segment>,
    /// Not known to be durable: what a running sync covers, and what came since.
    pub(super) syncing: Vec<Kept>,
    pub(super) unsynced: Vec<Kept>,
    /// Bytes of both, as they would be written again.
    pub(super) kept_bytes: usize,
    /// Where a record is put together; kept for the next one.
    pub(super) scratch: Vec<u8>,
    /// The journal has failed for good.
    pub(super) has_failed: bool,
    /// Room promised to transactions under way.
    pub(super) reserved: u64,
    pub(super) live: HashMap<TransactionId, Live>,
}

#[derive(Debug, Clone)]
pub(super) struct Segment {
    pub(super) number: u64,
    pub(super) file: Arc<dyn SegmentFile>,
    /// How much of it counts; for the last one, all that is synced.
    pub(super) end: u64,
}

/// A record that is kept until it is durable.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) id: TransactionId,
    pub(super) kind: RecordKind,
    pub(super) payload: Vec<u8>,
}

impl Kept {
    /// Bytes of the record with its header.
    fn length(&self) -> usize {
        self.payload.len() + RECORD_HEADER
    }

    /// Bytes of all of them.
    pub(super) fn bytes(all: &[Self]) -> usize {
        all.iter().map(Self::length).sum()
    }
}

/// What the journal alone knows of a transaction.
#[derive(Debug, Clone, Copy)]
pub(super) enum Live {
    /// Its intent is here and it has no outcome: the segment must stay.
    Open { at: Position, length: usize, kind: RecordKind },
    /// Its outcome is here and not yet in the store.
    Closed { at: Position, length: usize },
}

impl Writer {
    pub(super) fn end(&self) -> Position {
        Position { segment: self.segments.back().map_or(0, |segment| segment.number), offset: self.tail }
    }

    pub(super) fn take_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number - 1
    }

    /// Keeps a record until it is durable.
    pub(super) fn keep(&mut self, kept: Kept) {
        self.kept_bytes += kept.length();
        self.unsynced.push(kept);
    }

    /// Writes the newest kept record behind the others; `awaited` when it is a mutation's, whose sync is waited for.
    pub(super) fn write_last(&mut self, awaited: bool) -> io::Result<()> {
        let (Some(kept), Some(segment)) = (self.unsynced.last(), self.segments.back()) else { return Ok(()) };
        let bytes = &mut self.scratch;
        bytes.clear();
        if !self.batch_open {
            format::push_batch_header(segment.number, self.synced_upto, bytes);
        }
        let record = pad_to_record(self.offset, bytes);
        format::push_record(segment.number, kept.kind, &kept.payload, bytes);
        if awaited {
            segment.file.write_awaited_at(bytes, self.offset)?;
        } else {
            segment.file.write_at(bytes, self.offset)?;
        }
        let at = Position { segment: segment.number, offset: record };
        let (id, kind, length) = (kept.id, kept.kind, kept.length());
        self.offset += u64::try_from(bytes.len()).unwrap_or_default();
        self.tail = self.offset;
        self.batch_open = true;
        self.note(id, kind, at, length);
        Ok(())
    }

    fn note(&mut self, id: TransactionId, kind: RecordKind, at: Position, length: usize) {
        let live = match kind {
            RecordKind::Intent | RecordKind::Claiming => Live::Open { at, length, kind },
            RecordKind::Outcome | RecordKind::Answered | RecordKind::Served | RecordKind::Claimed => {
                Live::Closed { at, length }
            }
        };
        self.live.insert(id, live);
    }

    /// From here on, what is written belongs to the next batch.
    pub(super) fn begin_sync(&mut self) {
        self.batch_open = false;
        self.offset = page_from(self.offset);
        let since = std::mem::take(&mut self.unsynced);
        self.syncing.extend(since);
    }

    pub(super) fn finish_sync(&mut self, target: Position) {
        self.synced_upto = target.offset;
        self.kept_bytes -= self.syncing.drain(..).map(|kept| kept.length()).sum::<usize>();
        if let Some(segment) = self.segments.back_mut() {
            segment.end = target.offset;
        }
    }

    /// Goes on in a new segment, in which everything that is not known to be durable is written again. With
    /// `acknowledged` some of it may have been acknowledged by an earlier life, so it must be durable before the header says
    /// that the old segment's copy does not count.
    pub(super) fn switch(&mut self, disk: &dyn Disk, size: u64, acknowledged: bool) -> io::Result<()> {
        let last = self.segments.back().map_or(0, |segment| segment.number);
        let mut next = match self.spare.take() {
            Some(spare) => spare,
            None => {
                let number = self.take_number();
                Segment { number, file: disk.create(number, size)?, end: PAGE }
            }
        };
        let header =
            Header { journal: self.journal, number: next.number, predecessor: last, predecessor_end: self.synced_upto };
        let mut bytes = header.to_bytes();
        bytes.resize(usize::try_from(PAGE).unwrap_or_default(), 0);
        let mut kept = std::mem::take(&mut self.syncing);
        kept.append(&mut self.unsynced);
        if !kept.is_empty() {
            format::push_batch_header(next.number, PAGE, &mut bytes);
        }
        let mut places = Vec::with_capacity(kept.len());
        for record in &kept {
            let at = Position { segment: next.number, offset: pad_to_record(0, &mut bytes) };
            format::push_record(next.number, record.kind, &record.payload, &mut bytes);
            places.push((record.id, record.kind, at, record.length()));
        }
        // The header last: it is what makes the old segment's rest not count.
        let (head, body) = bytes.split_at_checked(usize::try_from(PAGE).unwrap_or_default()).unwrap_or((&bytes, &[]));
        next.file.write_at(body, PAGE)?;
        if acknowledged && !kept.is_empty() {
            next.file.sync()?;
        }
        next.file.write_at(head, 0)?;
        for (id, kind, at, length) in places {
            self.note(id, kind, at, length);
        }
        self.batch_open = !kept.is_empty();
        self.offset = u64::try_from(bytes.len()).unwrap_or_default();
        self.tail = self.offset;
        self.unsynced = kept;
        self.synced_upto = PAGE;
        next.end = PAGE;
        self.left.extend(self.segments.back().map(|segment| Arc::clone(&segment.file)));
        self.segments.push_back(next);
        Ok(())
    }

    /// The first segment's number, if everything in it is in the store, and none of its intents is still open.
    pub(super) fn removable(&self, shipped: Position) -> Option<u64> {
        let first = self.segments.front().filter(|_| self.segments.len() > 1)?.number;
        let open = |live: &Live| matches!(live, Live::Open { at, .. } if at.segment <= first);
        (first < shipped.segment && !self.live.values().any(open)).then_some(first)
    }
}

/// Pads bytes that will stand at `base`, so that a record may follow; returns where it will stand.
fn pad_to_record(base: u64, bytes: &mut Vec<u8>) -> u64 {
    let end = base + u64::try_from(bytes.len()).unwrap_or_default();
    let start = record_from(end);
    bytes.resize(bytes.len() + usize::try_from(start - end).unwrap_or_default(), 0);
    start
}
