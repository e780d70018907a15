//! Reading the journal while it is written: outcomes for the shipper, single rows for those who ask before it has passed.

use std::io;
use std::sync::Arc;

use super::format::{PAGE, Walk};
use super::writer::Live;
use super::{Journal, Position, RecordKind, SegmentFile, read_intent, read_outcome};
use crate::ledger::id::TransactionId;
use crate::ledger::row::{Facts, Outcome};
use crate::routes::Kind;

impl Journal {
    /// The outcomes from a position on, as far as they are durable, at most about a mebibyte of them; and where to go on.
    ///
    /// # Errors
    /// Those of the file system.
    pub(in crate::ledger) fn outcomes_from(&self, from: Position) -> io::Result<(Vec<Outcome>, Position)> {
        const CHUNK: u64 = 1_048_576;
        let synced = self.synced.get();
        let (segment, next) = {
            let writer = self.writer();
            let mut rest = writer.segments.iter().skip_while(|segment| segment.number < from.segment);
            (rest.next().cloned(), rest.next().map(|segment| segment.number))
        };
        let Some(segment) = segment else { return Ok((Vec::new(), from)) };
        let start = if segment.number == from.segment { from.offset.max(PAGE) } else { PAGE };
        let end = if segment.number == synced.segment { synced.offset } else { segment.end };
        let here = Position { segment: segment.number, offset: start };
        if segment.number > synced.segment || start >= end {
            let behind = next.filter(|_| segment.number < synced.segment);
            return Ok((Vec::new(), behind.map_or(here, |segment| Position { segment, offset: PAGE })));
        }
        let length = usize::try_from((end - start).min(CHUNK)).unwrap_or(usize::MAX);
        let bytes = segment.file.read_at(start, length)?;
        let mut walk = Walk::new(&bytes, start, segment.number);
        let mut outcomes = Vec::new();
        for found in &mut walk {
            if let Some(outcome) = read_outcome(found.kind, found.payload) {
                outcomes.push(outcome.map_err(io::Error::other)?);
            }
        }
        let whole = start + u64::try_from(length).unwrap_or(u64::MAX) >= end;
        if walk.good == start || (whole && walk.good != end) {
            // What is durable must read back; passing over it would lose rows.
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a durable journal record does not read back"));
        }
        Ok((outcomes, Position { segment: segment.number, offset: walk.good }))
    }

    /// Everything before `position` is in the store: forgets those outcomes and removes segments that nobody needs.
    pub(in crate::ledger) fn shipped(&self, outcomes: &[Outcome], position: Position) {
        // A few at a time: whoever wants to write waits meanwhile.
        for some in outcomes.chunks(64) {
            let mut writer = self.writer();
            for Outcome { row, .. } in some {
                if let Some(Live::Closed { .. }) = writer.live.get(&row.facts.id) {
                    writer.live.remove(&row.facts.id);
                }
            }
        }
        let mut writer = self.writer();
        // In order, and none when one can't be removed: a hole would look like a lost segment to the next start.
        while let Some(number) = writer.removable(position) {
            if let Err(error) = self.disk.remove(number) {
                tracing::warn!(kind = ?error.kind(), "a shipped journal segment cannot be removed");
                return;
            }
            writer.segments.pop_front();
        }
    }

    /// A finished transaction that is not in the store yet. A mutation's outcome is not seen before it is durable.
    pub(in crate::ledger) fn find(&self, id: TransactionId) -> Option<Outcome> {
        let synced = self.synced.get();
        let (file, at, length) = {
            let writer = self.writer();
            let Some(Live::Closed { at, length }) = writer.live.get(&id).copied() else { return None };
            let segment = writer.segments.iter().find(|segment| segment.number == at.segment)?;
            (Arc::clone(&segment.file), at, length)
        };
        let bytes = file.read_at(at.offset, length).ok()?;
        let found = Walk::new(&bytes, at.offset, at.segment).next()?;
        let outcome = read_outcome(found.kind, found.payload)?.ok()?;
        (outcome.row.facts.kind == Kind::Inquiry || at < synced).then_some(outcome)
    }

    /// The facts of transactions that run and have a key, as their intents say them. One that does not read is passed over.
    pub(in crate::ledger) fn running_claims(&self) -> Vec<Facts> {
        let running: Vec<_> = {
            let writer = self.writer();
            let file = |number| writer.segments.iter().find(|segment| segment.number == number);
            let open = writer.live.values().filter_map(|live| match *live {
                Live::Open { at, length, kind: RecordKind::Claiming } => Some((at, length)),
                _ => None,
            });
            open.filter_map(|(at, length)| Some((Arc::clone(&file(at.segment)?.file), at, length))).collect()
        };
        let read = |(file, at, length): (Arc<dyn SegmentFile>, Position, usize)| {
            let bytes = file.read_at(at.offset, length).ok()?;
            let found = Walk::new(&bytes, at.offset, at.segment).next()?;
            read_intent(found.kind, found.payload)?.ok()
        };
        running.into_iter().filter_map(read).collect()
    }

    /// Whether it has an intent or an outcome here that the store does not know yet.
    pub(in crate::ledger) fn knows(&self, id: TransactionId) -> bool {
        self.writer().live.contains_key(&id)
    }
}
