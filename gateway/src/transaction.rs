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
    admission_max: usize,
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
        Self {
            ledger,
            institutions,
            admission,
            admission_max,
            clock,
            tasks: TaskTracker::new(),
            force: CancellationToken::new(),
        }
    }

    /// Runs a transaction to its end, whether or not the caller waits for it.
    ///
    /// # Errors
    /// [`Refusal`]: there was no transaction and there is no row.
    pub async fn submit(&self, submission: Submission) -> Result<Completed, Refusal> {
        // Taken before the look, so that a drain that begins between waits for us.
        let running = self.tasks.token();
        if self.tasks.is_closed() {
            return Err(Failure::Draining.into());
        }
        let started = self.clock.now();
        let place = Arc::clone(&self.admission).try_acquire_owned();
        let prepared = self.prepare(submission, started)?;
        let place = Arc::new(place.map_err(|_| Failure::Overloaded)?);
        let (id, kind, witness) = (prepared.id, prepared.submission.route.kind, prepared.witness.clone());
        let running_on = (Arc::clone(&self.ledger), self.clock.clone(), self.force.clone());
        let task = self.tasks.spawn(async move { run(running_on, prepared, place).await });
        let result = match task.await {
            Ok(result) => result?,
            Err(_) if witness.accepted() => Err(self.after_panic(kind, &witness).await),
            Err(_) => return Err(Failure::InternalBeforeSend.into()),
        };
        drop(running);
        let elapsed = self.clock.now().saturating_duration_since(started);
        Ok(Completed { id, elapsed, result })
    }

    /// The guard wrote the row without waiting; a mutation's caller must not hear of it before it is durable.
    async fn after_panic(&self, kind: Kind, witness: &Witness) -> Fault {
        let sent = witness.maybe_sent();
        let failure = if sent { Failure::InternalAfterSend } else { Failure::InternalBeforeSend };
        if kind == Kind::Mutation {
            let soon = Deadline::after(self.clock.now(), Duration::from_secs(1));
            let end = self.ledger.journal().end();
            if self.ledger.journal().durable_by(end, soon).await.is_err() && sent {
                return Failure::OutcomeNotDurable.into();
            }
        }
        failure.into()
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
        self.admission_max.saturating_sub(self.admission.available_permits())
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

/// What a transaction's task runs on: the ledger, the clock, and the signal that the drain time is over.
type RunsOn = (Arc<Ledger>, Clock, CancellationToken);

async fn run(
    (ledger, clock, force): RunsOn,
    prepared: Prepared,
    place: Arc<OwnedSemaphorePermit>,
) -> Result<Result<Record, Fault>, Refusal> {
    let Prepared { submission, institution, id, frame, deadline, room, witness } = prepared;
    let (ledger, clock) = (&ledger, &clock);
    let route = &submission.route;
    let key_hash = submission.idempotency_key.as_ref().map(|key| Sha256::digest(key.as_bytes()).to_vec());
    if route.kind == Kind::Mutation {
        let key_hash = key_hash.clone().ok_or(Failure::IdempotencyKeyMissing)?;
        let claiming = claim(ledger, clock, &submission, id, key_hash, deadline, Arc::clone(&place));
        tokio::select! {
            claimed = claiming => claimed?,
            () = force.cancelled() => return Err(Failure::Draining.into()),
        }
    }
    let facts = facts_of(ledger, clock, &submission, id, key_hash);
    let mut entry = ledger.accept(facts, room, witness.clone());
    // Only the call can be cut short; its end is recorded in any case, so that row and answer say the same.
    let result = tokio::select! {
        biased;
        result = institution.call(route, &frame, deadline, &mut entry) => result,
        () = force.cancelled() => {
            let sent = witness.maybe_sent();
            Err(if sent { Failure::ShutdownAfterSend } else { Failure::ShutdownBeforeSend }.into())
        }
    };
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
    match entry.close(End { status, proof, response_code: code, detail }, deadline).await {
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
    place: Arc<OwnedSemaphorePermit>,
) -> Result<(), Failure> {
    let claim = Claim {
        client: submission.client.to_string(),
        method: "POST".to_owned(),
        path: submission.path.clone(),
        key_hash,
        transaction_id: id,
        claimed_at: clock.wall().as_microsecond(),
    };
    // In a task of its own, because a database call that is dropped half way can spoil its connection. It keeps the
    // admission place until it ends, so that claims nobody waits for any more can't pile up.
    let ledger = Arc::clone(ledger);
    let claiming = tokio::spawn(async move {
        let _place = place;
        ledger.claim(&claim).await
    });
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
