//! One transaction's ledger entry (원장) while it runs. However the transaction ends, exactly one outcome is written: by
//! [`Entry::close`], or, when the entry is dropped, by what is certain at that moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::journal::{JournalError, Room};
use super::row::{Answer, Attempt, Closing, Facts, Outcome, Proof, Row, ServedFrom, Status};
use super::{Ledger, TransactionId};
use crate::clock::{Deadline, Instant};
use crate::left_out::{Part, is_left_out};
use crate::routes::Kind;

/// What recording the outcome may take beyond the deadline: a timeout itself is only known when it has passed.
const SYNC_GRACE: Duration = Duration::from_millis(40);

/// How far a transaction has got, as it can be seen from outside, even after it has panicked.
#[derive(Debug, Clone, Default)]
pub struct Witness {
    accepted: Arc<AtomicBool>,
    maybe_sent: Arc<AtomicBool>,
}

impl Witness {
    /// Whether there is, or will be, a row.
    #[must_use]
    pub fn accepted(&self) -> bool {
        self.accepted.load(Ordering::Acquire)
    }

    /// Whether a byte may have left.
    #[must_use]
    pub fn maybe_sent(&self) -> bool {
        self.maybe_sent.load(Ordering::Acquire)
    }
}

/// How a transaction ended, in the ledger's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End<'a> {
    /// The status.
    pub status: Status,
    /// Why FAILED is certain.
    pub proof: Option<Proof>,
    /// The host's code.
    pub response_code: Option<&'a str>,
    /// The failure's name.
    pub detail: Option<&'a str>,
    /// Where the answer came from.
    pub served_from: ServedFrom,
    /// What the caller is told, if a repeat shall be told the same.
    pub answer: Option<&'a Answer>,
}

/// The open entry of a running transaction. Dropping it closes it: FAILED while nothing can have been sent, else UNKNOWN.
#[must_use = "an entry that is dropped closes as FAILED or UNKNOWN"]
#[derive(Debug)]
pub struct Entry {
    ledger: Arc<Ledger>,
    // Taken when the outcome is written.
    facts: Option<Facts>,
    id: TransactionId,
    witness: Witness,
    intended: bool,
    attempts: Vec<Attempt>,
    started: Instant,
    // Freed last: the outcome's room is promised until it is written.
    _room: Room,
}

impl Entry {
    pub(super) fn open(ledger: Arc<Ledger>, facts: Facts, room: Room, witness: Witness) -> Self {
        witness.accepted.store(true, Ordering::Release);
        let (id, started) = (facts.id, ledger.clock.now());
        Self { id, facts: Some(facts), ledger, witness, intended: false, attempts: Vec::new(), started, _room: room }
    }

    /// Records the intent to send. A mutation's is synced when this returns; an inquiry's is written.
    ///
    /// # Errors
    /// [`JournalError`]; then nothing may be sent.
    pub async fn intend(&mut self, deadline: Deadline) -> Result<(), JournalError> {
        let Some(facts) = self.facts.as_ref().filter(|_| !self.intended) else { return Ok(()) };
        let position = self.ledger.journal.append_intent(facts)?;
        if facts.kind == Kind::Mutation {
            self.ledger.journal.durable_by(position, deadline).await?;
        }
        self.intended = true;
        Ok(())
    }

    /// From here on a byte may have left. Called before the first write is polled.
    pub fn mark_maybe_sent(&self) {
        self.witness.maybe_sent.store(true, Ordering::Release);
    }

    /// Notes one attempt.
    pub fn note_attempt(&mut self, outcome: &str, since: Instant) {
        let elapsed = self.ledger.clock.now().saturating_duration_since(since);
        let elapsed_us = i64::try_from(elapsed.as_micros()).unwrap_or(i64::MAX);
        self.attempts.push(Attempt { outcome: outcome.to_owned(), elapsed_us });
    }

    /// Records how it ended. A mutation's outcome is synced when this returns; an inquiry's is written.
    ///
    /// # Errors
    /// [`JournalError`]; then the caller must not be told a success. [`JournalError::NotInTime`]: it is written and will be
    /// in the store, but was not known to be durable a moment after the deadline.
    pub async fn close(mut self, end: End<'_>, deadline: Deadline) -> Result<(), JournalError> {
        if let Some((kind, position)) = self.write(end)?
            && kind == Kind::Mutation
        {
            let now = self.ledger.clock.now();
            let grace = Deadline::after(now.max(deadline.at()), SYNC_GRACE);
            let durable = self.ledger.journal.durable_by(position, grace).await;
            // Once more: what was rung before may have been heard before there was anything to carry.
            self.ledger.ended_mutation.notify_one();
            if end.status == Status::Unknown {
                self.ledger.hurry.notify_one();
            }
            durable?;
        }
        Ok(())
    }

    fn write(&mut self, end: End<'_>) -> Result<Option<(Kind, super::Position)>, JournalError> {
        let Some(facts) = self.facts.take() else { return Ok(None) };
        let elapsed = self.ledger.clock.now().saturating_duration_since(self.started);
        let closing = Closing {
            status: end.status,
            proof: end.proof,
            response_code: end.response_code.map(str::to_owned),
            detail: end.detail.map(str::to_owned),
            attempts: std::mem::take(&mut self.attempts),
            responded_at: self.ledger.clock.wall().as_microsecond(),
            elapsed_us: i64::try_from(elapsed.as_micros()).unwrap_or(i64::MAX),
            served_from: end.served_from,
        };
        let kind = facts.kind;
        let outcome = Outcome { row: Row { facts, closing }, answer: end.answer.cloned() };
        if !is_left_out(Part::Metrics) {
            self.ledger.metrics.closed(&outcome.row, elapsed);
        }
        let position = self.ledger.journal.append_outcome(&outcome)?;
        if kind == Kind::Mutation {
            self.ledger.claims.ended(self.id);
            self.ledger.ended_mutation.notify_one();
            if end.status == Status::Unknown {
                self.ledger.hurry.notify_one();
            }
        }
        Ok(Some((kind, position)))
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if self.facts.is_none() {
            return;
        }
        let detail = Some(if std::thread::panicking() { "panic" } else { "shutdown" });
        let (status, proof) =
            if self.witness.maybe_sent() { (Status::Unknown, None) } else { (Status::Failed, Some(Proof::P0)) };
        let served_from = ServedFrom::Host;
        if self.write(End { status, proof, response_code: None, detail, served_from, answer: None }).is_err() {
            // The journal has failed for good and the process is stopping; recovery closes it as UNKNOWN.
            tracing::error!(transaction = %self.id, "an entry could not be closed");
        }
    }
}
