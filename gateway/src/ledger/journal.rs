//! The journal: every intent and outcome on local disk before anybody hears of it. The database may be slow or down.
//!
//! Appending writes at once (which survives kill -9) under one short lock; one thread syncs what has gathered (which
//! survives power loss) and tells those who wait for it. Records are kept in memory until synced: when a segment is
//! full, or a write or sync fails, all that is not known to be durable is written again into a new segment, whose header
//! says how much of the old one counts. If that fails too, the journal has failed for good and the process must stop.

mod disk;
mod format;
mod reached;
mod reading;
mod record;
mod recovery;
mod syncer;
mod writer;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::row::{Facts, Outcome, RECORD_MAX};
use crate::clock::Deadline;
use crate::left_out::{Part, is_left_out};
use crate::routes::Kind;
pub use disk::{Disk, FolderDisk, SegmentFile};
use format::{BATCH_HEADER, PAGE, RECORD_HEADER, page_from};
pub(in crate::ledger) use reached::Reached;
use record::{RecordKind, read_intent, read_outcome};
pub use recovery::{Recovered, RecoveryError, UsedKey};
use writer::{Kept, Live, Writer};

/// A place in the journal; later places are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Position {
    /// The segment's number.
    pub segment: u64,
    /// Bytes from its start.
    pub offset: u64,
}

/// The journal can't take a record.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// No room that is not already promised to transactions under way.
    #[error("the journal has no room")]
    NoRoom,
    /// Writing failed, and writing elsewhere failed too.
    #[error("the journal has failed")]
    Failed,
    /// The record is larger than a record may be.
    #[error("the record is too large")]
    TooLarge,
    /// It was written, and is not known to be durable at the deadline.
    #[error("the journal is not durable in time")]
    NotInTime,
}

/// The journal's rules.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// All segments together, in bytes; at this limit new transactions are refused.
    pub limit: u64,
    /// Longest time from a write to its sync when nobody waits for it.
    pub sync_interval: Duration,
}

impl Settings {
    /// One segment is a thirty-second of the limit, from 1 to 32 MiB.
    fn segment_size(self) -> u64 {
        const MIB: u64 = 1_048_576;
        page_from((self.limit / 32).clamp(MIB, 32 * MIB))
    }
}

impl Settings {
    /// Transactions that may be under way at once, so that each can always record its end: also when a segment has just been
    /// left and the records of a slow sync move along.
    #[must_use]
    pub fn transactions_max(self) -> u64 {
        self.segment_size() / (2 * ROOM_PER_TRANSACTION)
    }
}

/// What one transaction may need: two records, each the first of a batch.
const ROOM_PER_TRANSACTION: u64 = 2 * (RECORD_MAX as u64 + RECORD_HEADER as u64 + BATCH_HEADER as u64 + PAGE);

/// The journal of one data directory.
#[derive(Debug)]
pub struct Journal {
    disk: Arc<dyn Disk>,
    settings: Settings,
    writer: Mutex<Writer>,
    synced: Reached,
    /// Rung by the first record after a sync, and by whoever waits for one.
    dirty: Notify,
    demand: Notify,
    /// Cancelled when the journal has failed for good.
    failed: CancellationToken,
    /// Set when there is a thread that syncs, cancelled when it has ended.
    syncer: OnceLock<CancellationToken>,
}

/// Room for one transaction's intent and outcome. Dropping it gives the room back.
#[must_use = "dropping it gives the room back"]
#[derive(Debug)]
pub struct Room(Arc<Journal>);

impl Drop for Room {
    fn drop(&mut self) {
        let mut writer = self.0.writer();
        writer.reserved = writer.reserved.saturating_sub(ROOM_PER_TRANSACTION);
    }
}

impl Journal {
    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Promises room for one transaction's records.
    ///
    /// # Errors
    /// [`JournalError::NoRoom`], [`JournalError::Failed`].
    pub fn reserve(self: &Arc<Self>) -> Result<Room, JournalError> {
        let size = self.settings.segment_size();
        let mut writer = self.writer();
        if writer.has_failed {
            return Err(JournalError::Failed);
        }
        let wanted = writer.reserved + ROOM_PER_TRANSACTION;
        let rewritten = u64::try_from(writer.kept_bytes).unwrap_or(u64::MAX).saturating_add(2 * PAGE);
        let fits_here = wanted <= size.saturating_sub(writer.offset);
        // The spare must also take what a switch writes again, and intents that are written while promised.
        let fits_spare = writer.spare.is_some() && rewritten + 2 * wanted <= size;
        if !fits_here && !fits_spare {
            return Err(JournalError::NoRoom);
        }
        writer.reserved = wanted;
        drop(writer);
        Ok(Room(Arc::clone(self)))
    }

    /// Writes an intent. It survives kill -9 once this returns.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn append_intent(&self, facts: &Facts) -> Result<Position, JournalError> {
        self.append(facts, record::intent(facts))
    }

    /// Writes an outcome. It survives kill -9 once this returns.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn append_outcome(&self, outcome: &Outcome) -> Result<Position, JournalError> {
        self.append(&outcome.row.facts, record::outcome(outcome))
    }

    fn append(&self, facts: &Facts, (kind, payload): record::Written) -> Result<Position, JournalError> {
        if is_left_out(Part::Journal) {
            return Ok(self.synced.get());
        }
        let payload = payload.ok().filter(|payload| payload.len() <= RECORD_MAX).ok_or(JournalError::TooLarge)?;
        let mut writer = self.writer();
        if writer.has_failed {
            return Err(JournalError::Failed);
        }
        if writer.unsynced.is_empty() {
            // Rung before anything can go wrong below, or what is kept would wait for a sync that nobody starts.
            self.dirty.notify_one();
        }
        writer.keep(Kept { id: facts.id, kind, payload });
        let fits = writer.offset + ROOM_PER_TRANSACTION / 2 <= self.settings.segment_size();
        let written =
            if fits { writer.write_last(facts.kind == Kind::Mutation) } else { Err(io::ErrorKind::StorageFull.into()) };
        if written.is_err() {
            self.switch_segment(&mut writer)?;
        }
        Ok(writer.end())
    }

    /// Goes on in a new segment: everything that is not known to be durable is written again there.
    fn switch_segment(&self, writer: &mut Writer) -> Result<(), JournalError> {
        writer.switch(&*self.disk, self.settings.segment_size(), false).map_err(|error| {
            tracing::error!(kind = ?error.kind(), "the journal cannot be written: the process must stop");
            self.fail_with(writer);
            JournalError::Failed
        })
    }

    /// Takes no more records, for good, and lets the process stop.
    pub(in crate::ledger) fn fail(&self) {
        self.fail_with(&mut self.writer());
    }

    fn fail_with(&self, writer: &mut Writer) {
        writer.has_failed = true;
        self.failed.cancel();
    }

    /// Waits until everything up to a position is durable, or the deadline passes.
    ///
    /// # Errors
    /// [`JournalError::Failed`], [`JournalError::NotInTime`].
    pub async fn durable_by(&self, position: Position, deadline: Deadline) -> Result<(), JournalError> {
        let waiting = tokio::time::timeout_at(deadline.at(), self.durable(position));
        waiting.await.unwrap_or(Err(JournalError::NotInTime))
    }

    /// Waits until everything up to a position is durable.
    ///
    /// # Errors
    /// [`JournalError::Failed`].
    pub async fn durable(&self, position: Position) -> Result<(), JournalError> {
        if self.synced.get() >= position {
            return Ok(());
        }
        self.demand.notify_one();
        self.dirty.notify_one();
        tokio::select! {
            biased;
            () = self.synced.wait_for(position) => Ok(()),
            () = self.failed.cancelled() => Err(JournalError::Failed),
        }
    }

    /// Cancelled when the journal has failed for good: stop the process.
    #[must_use]
    pub fn failed(&self) -> &CancellationToken {
        &self.failed
    }

    /// The end of what was written so far; when all of it is durable, the durable end.
    #[must_use]
    pub fn end(&self) -> Position {
        let writer = self.writer();
        let clean = writer.unsynced.is_empty() && writer.syncing.is_empty();
        if clean { self.synced.get() } else { writer.end() }
    }

    /// Waits until the thread that syncs, which was told to stop, has let go of the folder.
    pub(in crate::ledger) async fn syncer_ended(&self) {
        if let Some(ended) = self.syncer.get() {
            ended.cancelled().await;
        }
    }

    /// How much is durable.
    pub(in crate::ledger) fn synced(&self) -> &Reached {
        &self.synced
    }

    /// The journal's own number, which the store keeps beside the checkpoint.
    #[must_use]
    pub fn id(&self) -> [u8; 16] {
        self.writer().journal
    }

    /// Transactions with an intent and no outcome.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.writer().live.values().filter(|live| matches!(live, Live::Open { .. })).count()
    }
}

#[cfg(test)]
pub(crate) mod tests;
