//! One transaction (거래) from a valid request to a closed ledger row.
//!
//! It runs in a task of its own, which the HTTP handler joins: a caller who hangs up drops the handler and changes
//! nothing. The admission place belongs to the task, so that hanging up frees nothing early. The order of the steps is
//! the one that docs/FAILURES.md gives.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use codec::{Fill, MaskedAccount, Record, Rule, Value};
use sha2::{Digest, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::{Clock, Deadline, Instant};
use crate::failure::Failure;
use crate::ledger::{Claim, Claimed, End, Facts, Ledger, Proof, Room, Status, TransactionId, Witness};
use crate::resilience::{Fault, Institution};
use crate::routes::{Kind, Route};

/// What a caller asks for, already parsed.
#[derive(Debug)]
pub struct Submission {
    /// The route.
    pub route: Arc<Route>,
    /// The path that was called; part of an idempotency key's scope.
    pub path: String,
    /// Who asks.
    pub client: Arc<str>,
    /// The request's fields.
    pub record: Record,
    /// The caller's, or ours.
    pub correlation_id: String,
    /// Present for mutations.
    pub idempotency_key: Option<String>,
}

/// A request that is turned away before there is a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub failure: Failure,
    /// The field that is at fault, and the rule that it breaks.
    pub field: Option<(Arc<str>, Rule)>,
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self { failure, field: None }
    }
}

impl From<codec::FieldError> for Refusal {
    fn from(error: codec::FieldError) -> Self {
        Self { failure: error.rule.into(), field: Some((error.field, error.rule)) }
    }
}

/// A transaction that ran.
#[derive(Debug)]
pub struct Completed {
    /// Its id.
    pub id: TransactionId,
    /// From acceptance to the closed row.
    pub elapsed: Duration,
    /// The reply's fields, or what went wrong.
    pub result: Result<Record, Fault>,
}

/// What all transactions share.
#[derive(Debug)]
pub struct Transactions {
    ledger: Arc<Ledger>,
    institutions: HashMap<String, Arc<Institution>>,
    admission: Arc<Semaphore>,
    clock: Clock,
    tasks: TaskTracker,
    /// Cancelled when the drain time is over: whoever still runs is ended by its guards.
    force: CancellationToken,
}

/// One transaction, ready to run.
struct Prepared {
    submission: Submission,
    institution: Arc<Institution>,
    id: TransactionId,
    frame: Vec<u8>,
    deadline: Deadline,
    room: Room,
    witness: Witness,
}

impl Transactions {
    /// Transactions over these institutions, at most `admission_max` at a time.
    #[must_use]
    pub fn new(
        ledger: Arc<Ledger>,
        institutions: HashMap<String, Arc<Institution>>,
        admission_max: usize,
        clock: Clock,
    ) -> Self {
        let admission = Arc::new(Semaphore::new(admission_max));
        Self { ledger, institutions, admission, clock, tasks: TaskTracker::new(), force: CancellationToken::new() }
    }

    /// Runs a transaction to its end, whether or not the caller waits for it.
    ///
    /// # Errors
    /// [`Refusal`]: there was no transaction and there is no row.
    pub async fn submit(&self, submission: Submission) -> Result<Completed, Refusal> {
        if self.tasks.is_closed() {
            return Err(Failure::Draining.into());
        }
        let started = self.clock.now();
        let place = Arc::clone(&self.admission).try_acquire_owned();
        let prepared = self.prepare(submission, started)?;
        let place = place.map_err(|_| Failure::Overloaded)?;
        let (id, kind, witness) = (prepared.id, prepared.submission.route.kind, prepared.witness.clone());
        let ledger = Arc::clone(&self.ledger);
        let clock = self.clock.clone();
        let force = self.force.clone();
        let task = self.tasks.spawn(async move {
            let _place: OwnedSemaphorePermit = place;
            tokio::select! {
                biased;
                result = run(&ledger, &clock, prepared) => Some(result),
                // Dropping the run closes its entry by what is certain then.
                () = force.cancelled() => None,
            }
        });
        let result = match task.await {
            Ok(Some(result)) => result?,
            Ok(None) if witness.maybe_sent() => Err(Failure::ShutdownAfterSend.into()),
            Ok(None) if witness.accepted() => Err(Failure::ShutdownBeforeSend.into()),
            Ok(None) => return Err(Failure::Draining.into()),
            Err(_) if witness.maybe_sent() => Err(Failure::InternalAfterSend.into()),
            Err(_) if witness.accepted() => Err(Failure::InternalBeforeSend.into()),
            Err(_) => return Err(Failure::InternalBeforeSend.into()),
        };
        if kind == Kind::Mutation && result.as_ref().is_err_and(|fault| is_by_guard(fault.failure)) {
            // The guard wrote the row without waiting; the caller must not hear of it before it is durable.
            let end = self.ledger.journal().end();
            self.ledger.journal().durable(end).await.map_err(|_| Failure::NoLedgerRoom)?;
        }
        let elapsed = self.clock.now().saturating_duration_since(started);
        Ok(Completed { id, elapsed, result })
    }

    /// Everything that can be refused without a trace: the id, the frame, the journal's room.
    fn prepare(&self, mut submission: Submission, now: Instant) -> Result<Prepared, Refusal> {
        let route = Arc::clone(&submission.route);
        // Checked when routes are loaded, so this is ours to fix and nobody's to see.
        let institution =
            self.institutions.get(&route.institution).map(Arc::clone).ok_or(Failure::InternalBeforeSend)?;
        let here = self.clock.in_seoul(self.clock.wall());
        let id = self.ledger.draw_id(here.date()).map_err(Failure::from)?;
        for (index, fill) in &route.fills {
            let text = match fill {
                Fill::TransactionId => id.to_string(),
                Fill::BusinessDate => here.strftime("%Y%m%d").to_string(),
                Fill::Time => here.strftime("%H%M%S").to_string(),
            };
            submission.record.set_at(*index, Value::Text(text));
        }
        let mut frame = Vec::with_capacity(route.request.header_length());
        codec::encode(&submission.record, &mut frame)?;
        let room = self.ledger.reserve().map_err(Failure::from)?;
        let deadline = Deadline::after(now, route.deadline);
        Ok(Prepared { submission, institution, id, frame, deadline, room, witness: Witness::default() })
    }

    /// Number of transactions under way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.tasks.len()
    }

    /// Whether new transactions are turned away.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.tasks.is_closed()
    }

    /// Takes no more transactions, lets those under way end within `grace`, then ends them by their guards.
    pub async fn drain(&self, grace: Duration) {
        self.tasks.close();
        if tokio::time::timeout(grace, self.tasks.wait()).await.is_err() {
            self.force.cancel();
            self.tasks.wait().await;
        }
    }
}

fn is_by_guard(failure: Failure) -> bool {
    matches!(
        failure,
        Failure::ShutdownBeforeSend
            | Failure::ShutdownAfterSend
            | Failure::InternalBeforeSend
            | Failure::InternalAfterSend
    )
}

async fn run(ledger: &Arc<Ledger>, clock: &Clock, prepared: Prepared) -> Result<Result<Record, Fault>, Refusal> {
    let Prepared { submission, institution, id, frame, deadline, room, witness } = prepared;
    let route = &submission.route;
    let key_hash = submission.idempotency_key.as_ref().map(|key| Sha256::digest(key.as_bytes()).to_vec());
    if route.kind == Kind::Mutation {
        let key_hash = key_hash.clone().ok_or(Failure::IdempotencyKeyMissing)?;
        claim(ledger, clock, &submission, id, key_hash, deadline).await?;
    }
    let facts = facts_of(ledger, clock, &submission, id, key_hash);
    let mut entry = ledger.accept(facts, room, witness);
    let result = institution.call(route, &frame, deadline, &mut entry).await;
    let (status, proof, code, detail) = match &result {
        Ok(record) => (Status::Success, None, Some(record.text("responseCode")), None),
        Err(Fault { failure, host, .. }) => {
            let (status, proof) = match failure.policy(route.kind).record {
                crate::failure::Record::Failed(proof) => (Status::Failed, Some(proof)),
                crate::failure::Record::Unknown | crate::failure::Record::None => (Status::Unknown, None),
            };
            (status, proof, host.as_ref().map(|host| host.code.as_str()), Some(failure.name()))
        }
    };
    match entry.close(End { status, proof, response_code: code, detail }).await {
        Ok(()) => Ok(result),
        // Nothing left: that stays true, whether or not it could be recorded. Everything else must be looked up.
        Err(_) if matches!(proof, Some(Proof::P0 | Proof::P1 | Proof::P2)) => Ok(result),
        Err(_) => Ok(Err(Failure::OutcomeNotDurable.into())),
    }
}

/// Writes the key's one row. An uncertain answer is a refusal with nothing sent.
async fn claim(
    ledger: &Arc<Ledger>,
    clock: &Clock,
    submission: &Submission,
    id: TransactionId,
    key_hash: Vec<u8>,
    deadline: Deadline,
) -> Result<(), Failure> {
    let claim = Claim {
        client: submission.client.to_string(),
        method: "POST".to_owned(),
        path: submission.path.clone(),
        key_hash,
        transaction_id: id,
        claimed_at: clock.wall().as_microsecond(),
    };
    // In a task of its own, because a database call that is dropped half way can spoil its connection.
    let ledger = Arc::clone(ledger);
    let claiming = tokio::spawn(async move { ledger.claim(&claim).await });
    match tokio::time::timeout_at(deadline.at(), claiming).await {
        Ok(Ok(Ok(Claimed::Ours))) => Ok(()),
        Ok(Ok(Ok(Claimed::Before(_)))) => Err(Failure::IdempotencyInProgress),
        _ => Err(Failure::IdempotencyUnavailable),
    }
}

fn facts_of(
    ledger: &Ledger,
    clock: &Clock,
    submission: &Submission,
    id: TransactionId,
    idempotency_key_hash: Option<Vec<u8>>,
) -> Facts {
    let Submission { route, record, client, correlation_id, .. } = submission;
    let account = |index: Option<usize>| match index.map(|index| record.at(index)) {
        Some(Value::Text(account)) => (Some(MaskedAccount::of(account)), Some(ledger.account_hash(account))),
        _ => (None, None),
    };
    let (account_masked, account_hash) = account(route.ledger.account);
    let (counter_account, counter_account_hash) = account(route.ledger.counter_account);
    Facts {
        id,
        tx_code: route.tx_code.clone(),
        route: route.name.clone(),
        kind: route.kind,
        institution: route.institution.clone(),
        client: client.to_string(),
        account: account_masked,
        account_hash,
        counter_account,
        counter_account_hash,
        amount: match route.ledger.amount.map(|index| record.at(index)) {
            Some(Value::Amount(won)) => Some(*won),
            _ => None,
        },
        requested_at: clock.wall().as_microsecond(),
        correlation_id: correlation_id.clone(),
        idempotency_key_hash,
        layout_version: route.request.version(),
    }
}
