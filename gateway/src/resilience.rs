//! One transaction's way out: deadline, budget, permit, connection, exchange, retry. The only retry loop, and the one way
//! out: every call to an institution passes here.

use std::sync::Arc;
use std::time::Duration;

use codec::Record;

use crate::breaker::{Breaker, Outcome, Permit};
use crate::budget::{Denied, Gate, Place};
use crate::clock::{Clock, Deadline, Instant};
use crate::failure::{Counts, Failure, Fate};
use crate::ledger::{Entry, Proof};
use crate::pool::{Connection, ExchangeError, Exchanged, Pool};
use crate::redis_store::Patience;
use crate::routes::{HostAnswer, Interpretation, Kind, Questions, Route};
use crate::telemetry::Telemetry;

/// How often an inquiry is tried again, and after which wait.
#[derive(Debug, Clone, Copy)]
pub struct Retry {
    /// Tries after the first.
    pub retries: u32,
    /// Shortest wait.
    pub wait_min: Duration,
    /// Longest wait; the real one lies between by chance.
    pub wait_max: Duration,
}

/// One institution (기관): an address with its pool and its breaker.
#[derive(Debug)]
pub struct Institution {
    /// The name in configuration.
    pub name: String,
    /// Its connections.
    pub pool: Pool,
    /// Its circuit.
    pub breaker: Arc<Breaker>,
    /// Its call budget.
    pub gate: Gate,
    /// Its retries.
    pub retry: Retry,
    /// What we may ask it ourselves.
    pub questions: Arc<Questions>,
    /// Time.
    pub clock: Clock,
    /// Metrics.
    pub telemetry: Arc<Telemetry>,
}

/// Why a call did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What went wrong.
    pub failure: Failure,
    /// What the host said, if it did.
    pub host: Option<HostAnswer>,
    /// When it is worth asking again, if that is known.
    pub retry_after: Option<Duration>,
    /// Another transaction asked, and this is what it heard: of this one nothing was sent.
    pub followed: bool,
}

impl Fault {
    /// What the ledger records.
    #[must_use]
    pub fn record(&self, kind: Kind) -> crate::failure::Record {
        if self.followed { crate::failure::Record::Failed(Proof::P0) } else { self.failure.policy(kind).record }
    }
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        Self { failure, host: None, retry_after: None, followed: false }
    }
}

impl From<Denied> for Fault {
    fn from(denied: Denied) -> Self {
        let retry_after = if let Denied::Exhausted(wait) = denied { wait } else { None };
        Self { retry_after, ..Failure::from(denied).into() }
    }
}

/// A message on its way out.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing<'a> {
    /// Whose message it is.
    pub route: &'a Route,
    /// The message.
    pub frame: &'a [u8],
    /// When all must be over.
    pub deadline: Deadline,
    /// How long it may wait for Redis.
    pub patience: &'a Patience,
}

/// Where a call writes down what it does.
pub trait Transcript: Send {
    /// Before the first byte can leave.
    ///
    /// # Errors
    /// Nothing may be sent.
    fn intend(&mut self, deadline: Deadline) -> impl Future<Output = Result<(), Failure>> + Send;
    /// From here on a byte may have left.
    fn mark_maybe_sent(&self);
    /// Notes one attempt.
    fn note_attempt(&mut self, outcome: &str, since: Instant);
    /// Whether an inquiry may be asked again within its deadline.
    fn may_retry(&self) -> bool {
        true
    }
}

impl Transcript for Entry {
    async fn intend(&mut self, deadline: Deadline) -> Result<(), Failure> {
        Self::intend(self, deadline).await.map_err(|error| Failure::of_intent(&error))
    }

    fn mark_maybe_sent(&self) {
        Self::mark_maybe_sent(self);
    }

    fn note_attempt(&mut self, outcome: &str, since: Instant) {
        Self::note_attempt(self, outcome, since);
    }
}

/// A permit and a connection. Dropped in this order: first the circuit learns, then the socket closes.
struct Held {
    permit: Permit,
    connection: Connection,
}

/// One call, as the attempts share it.
struct Call<'a, T> {
    route: &'a Route,
    frame: &'a [u8],
    deadline: Deadline,
    patience: &'a Patience,
    entry: &'a mut T,
    /// After its first counted failure a transaction counts no more: one inquiry's retries never open a circuit alone.
    counted: bool,
}

impl Institution {
    /// Sends a message and reads its reply; an inquiry may be tried again within the deadline, a mutation never.
    ///
    /// # Errors
    /// [`Fault`]: of several attempts the first in doubt, unless a later one got an explicit answer, else the last.
    pub async fn call<T: Transcript>(&self, outgoing: Outgoing<'_>, entry: &mut T) -> Result<Record, Fault> {
        let Outgoing { route, frame, deadline, patience } = outgoing;
        let mut call = Call { route, frame, deadline, patience, entry, counted: false };
        let mut in_doubt: Option<Fault> = None;
        let may_retry = route.kind == Kind::Inquiry && call.entry.may_retry();
        let mut retries_left = if may_retry { self.retry.retries } else { 0 };
        loop {
            let began = self.clock.now();
            let fault = match self.attempt(&mut call).await {
                Ok(record) => {
                    call.entry.note_attempt("success", began);
                    return Ok(record);
                }
                Err(fault) => fault,
            };
            call.entry.note_attempt(fault.failure.name(), began);
            self.count(fault.failure);
            let policy = fault.failure.policy(route.kind);
            match policy.record {
                crate::failure::Record::Failed(Proof::H) => in_doubt = None,
                crate::failure::Record::Unknown if in_doubt.is_none() => in_doubt = Some(fault.clone()),
                _ => {}
            }
            let wait = self.retry_wait();
            if !policy.retry || retries_left == 0 || deadline.remaining(self.clock.now()) <= wait {
                return Err(in_doubt.unwrap_or(fault));
            }
            retries_left -= 1;
            tokio::time::sleep(wait).await;
        }
    }

    fn retry_wait(&self) -> Duration {
        let Retry { wait_min, wait_max, .. } = self.retry;
        wait_min + wait_max.saturating_sub(wait_min).mul_f64(fastrand::f64())
    }

    /// One attempt, in the order that docs/FAILURES.md gives: budget queue, permit, connection, intent, budget slot, a last look at
    /// slot and deadline, send.
    async fn attempt<T: Transcript>(&self, call: &mut Call<'_, T>) -> Result<Record, Fault> {
        let rejected = |rejected: crate::breaker::Rejected| Fault {
            retry_after: Some(rejected.retry_after),
            ..Fault::from(Failure::CircuitOpen)
        };
        if self.gate.has_queue() && self.breaker.is_waiting() {
            // Nobody queues for a circuit that is open. Should its wait be over just now, this is no probe yet.
            self.breaker.admit().map(drop).map_err(rejected)?;
        }
        let place = self.gate.enter(&call.route.budget_class, call.deadline).await?;
        let permit = self.breaker.admit().map_err(rejected)?;
        let connection = match self.pool.lend(call.deadline).await {
            Ok(connection) => connection,
            Err(error) => {
                let failure = Failure::from(error);
                call.settle(permit, failure.policy(call.route.kind).counts);
                return Err(failure.into());
            }
        };
        let mut held = Held { permit, connection };
        if let Err(failure) = call.entry.intend(call.deadline).await {
            return Err(call.finish(held, failure));
        }
        let exchanged = match self.send(call, &mut held.connection, place).await {
            Ok(exchanged) => exchanged,
            Err(fault) => return Err(Fault { retry_after: fault.retry_after, ..call.finish(held, fault.failure) }),
        };
        if exchanged.surplus && !call.route.echoes_id {
            // Two replies for one request, and nothing in ours says which is which.
            return Err(call.finish(held, Failure::EchoMismatch));
        }
        let said = call.route.interpret(call.frame, &exchanged.reply);
        let (failure, host) = match said {
            Interpretation::Success(record) => {
                call.settle(held.permit, Counts::Success);
                if exchanged.surplus {
                    held.connection.close_and_flush();
                } else {
                    held.connection.give_back();
                }
                return Ok(record);
            }
            Interpretation::Declined(host) => (Failure::HostDeclined, Some(host)),
            Interpretation::NotProcessed(host) => (Failure::HostNotProcessed, Some(host)),
            Interpretation::InDoubt(host) => (Failure::InDoubtCode, Some(host)),
            Interpretation::DuplicateId(host) => {
                tracing::error!(institution = self.name, "the host has seen a transaction id before");
                (Failure::DuplicateId, Some(host))
            }
            Interpretation::EchoMismatch => (Failure::EchoMismatch, None),
            Interpretation::Undecodable(error) => {
                tracing::warn!(institution = self.name, field = %error.field, rule = %error.rule, "undecodable reply");
                (Failure::UndecodableReply, None)
            }
        };
        // Bytes behind any reply make the older idle lines suspect too.
        let fault = if exchanged.surplus {
            call.settle(held.permit, failure.policy(call.route.kind).counts);
            held.connection.close_and_flush();
            failure.into()
        } else {
            call.finish(held, failure)
        };
        Err(Fault { host, ..fault })
    }

    /// Sends within a slot and reads the reply. A slot that came too late to be used is thrown away, and another one asked for.
    async fn send<T: Transcript>(
        &self,
        call: &Call<'_, T>,
        connection: &mut Connection,
        place: Place,
    ) -> Result<Exchanged, Fault> {
        let reused = connection.is_reused();
        let mut place = Some(place);
        while let Some(waiting) = &mut place {
            let slot = waiting.slot(call.patience).await?;
            if call.deadline.has_passed(self.clock.now()) {
                waiting.too_late(call.deadline);
                return Err(Failure::DeadlineBeforeSend.into());
            }
            let before_write = || {
                let holds = slot.holds(self.clock.now());
                if holds {
                    call.entry.mark_maybe_sent();
                }
                holds
            };
            // Letting the next one go may cost this one its processor: not before its bytes have left.
            let behind_write = || place.take().into_iter().for_each(Place::used);
            match connection.exchange(call.frame, call.deadline, before_write, behind_write).await {
                Err(ExchangeError::Withheld) => place.iter_mut().for_each(|place| place.too_late(call.deadline)),
                ended => return ended.map_err(|error| Failure::of_exchange(error, reused).into()),
            }
        }
        Err(Failure::InternalBeforeSend.into())
    }

    /// Counts a failed attempt, by name.
    fn count(&self, failure: Failure) {
        let labels = [("institution", self.name.as_str()), ("failure", failure.name())];
        self.telemetry.counter("gwanmun_attempt_failures_total", &labels).increment(1);
        if failure == Failure::EchoMismatch {
            tracing::warn!(institution = self.name, "a reply that answers another request was thrown away");
        }
    }
}

impl<T> Call<'_, T> {
    /// Does with permit and connection what the table says.
    fn finish(&mut self, held: Held, failure: Failure) -> Fault {
        let policy = failure.policy(self.route.kind);
        self.settle(held.permit, policy.counts);
        match policy.fate {
            Fate::Kept => held.connection.give_back(),
            Fate::ClosedAndFlushed => held.connection.close_and_flush(),
            Fate::None | Fate::Closed => drop(held.connection),
        }
        failure.into()
    }

    fn settle(&mut self, permit: Permit, counts: Counts) {
        let outcome = match counts {
            Counts::Success => Outcome::Success,
            Counts::Failure if !self.counted => {
                self.counted = true;
                Outcome::Failure
            }
            Counts::Failure | Counts::Aborted | Counts::Never => Outcome::Aborted,
        };
        permit.settle(outcome);
    }
}
