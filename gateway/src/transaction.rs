//! One transaction (거래) from a valid request to a closed ledger row.
//!
//! The HTTP handler carries it: a caller who hangs up drops the handler, the transaction goes on in a task of its own, and nothing
//! changes. The admission place belongs to it, so that hanging up frees nothing early. The order of the steps is
//! the one that docs/FAILURES.md gives.

mod carried;
mod submission;

use std::sync::Arc;
use std::time::Duration;

use codec::{Fill, MaskedAccount, Value};
use foldhash::HashMap;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cache::{ReplyCache, Served};
use crate::clock::{Clock, Deadline, Instant};
use crate::failure::Failure;
use crate::ledger::{
    Answer, Claim, ClaimKey, ClaimResult, End, Facts, Ledger, Proof, Repeat, Room, Status, TransactionId, Witness,
};
use crate::resilience::{Fault, Institution, Outgoing};
use crate::routes::Kind;
use carried::{Carried, Panicked};
pub use submission::{Completed, Refusal, Render, Said, Submission};

/// What all transactions share.
#[derive(Debug)]
pub struct Transactions {
    ledger: Arc<Ledger>,
    institutions: HashMap<String, Arc<Institution>>,
    cache: Arc<ReplyCache>,
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
    started: Instant,
    room: Room,
    witness: Witness,
    render: Arc<Render>,
}

impl Transactions {
    /// Transactions over these institutions, at most `admission_max` at a time.
    #[must_use]
    pub fn new(
        ledger: Arc<Ledger>,
        institutions: HashMap<String, Arc<Institution>>,
        cache: Arc<ReplyCache>,
        admission_max: usize,
        clock: Clock,
    ) -> Self {
        let admission = Arc::new(Semaphore::new(admission_max));
        Self {
            ledger,
            institutions,
            cache,
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
        let place = place.map_err(|_| Failure::Overloaded)?;
        let (id, kind, witness) = (prepared.id, prepared.submission.route.kind, prepared.witness.clone());
        let render = Arc::clone(&prepared.render);
        let running_on = RunsOn {
            ledger: Arc::clone(&self.ledger),
            cache: Arc::clone(&self.cache),
            clock: self.clock.clone(),
            force: self.force.clone(),
        };
        let carried = Carried::new(self.tasks.clone(), async move {
            let _place = place;
            run(running_on, prepared).await
        });
        let completed = match carried.await {
            Ok(completed) => completed?,
            Err(Panicked) if witness.accepted() => {
                let fault = self.after_panic(kind, &witness).await;
                let elapsed = self.clock.now().saturating_duration_since(started);
                ran(id, elapsed, &render, Served::by_host(Err(fault)))
            }
            Err(Panicked) => return Err(Failure::InternalBeforeSend.into()),
        };
        drop(running);
        Ok(completed)
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
            let written = match fill {
                Fill::TransactionId => None,
                Fill::BusinessDate => Some(here.strftime("%Y%m%d").to_string()),
                Fill::Time => Some(here.strftime("%H%M%S").to_string()),
            };
            submission.record.set_at(*index, Value::Text(written.as_deref().unwrap_or(id.as_str())));
        }
        let mut frame = Vec::with_capacity(route.request.header_length());
        codec::encode(&submission.record, &mut frame)?;
        let room = self.ledger.reserve().map_err(Failure::from)?;
        let deadline = Deadline::after(now, route.deadline);
        // The caller's part of the submission is not needed any more; only the way to answer is.
        let nothing: Render = Box::new(|_, _, _| Answer { http: 500, body: Vec::new() });
        let render = Arc::new(std::mem::replace(&mut submission.render, nothing));
        let witness = Witness::default();
        Ok(Prepared { submission, institution, id, frame, deadline, started: now, room, witness, render })
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

/// What a transaction runs on.
struct RunsOn {
    ledger: Arc<Ledger>,
    cache: Arc<ReplyCache>,
    clock: Clock,
    /// The drain time is over.
    force: CancellationToken,
}

fn ran(id: TransactionId, elapsed: Duration, render: &Render, served: Served) -> Completed {
    let answer = render(id, elapsed, &served);
    Completed { id, said: Said::Ran(answer, Box::new(served)) }
}

async fn run(RunsOn { ledger, cache, clock, force }: RunsOn, prepared: Prepared) -> Result<Completed, Refusal> {
    let Prepared { submission, institution, id, frame, deadline, started, room, witness, render } = prepared;
    let (ledger, clock) = (&ledger, &clock);
    let route = &submission.route;
    let mut facts = facts_of(ledger, clock, &submission, id);
    if route.kind == Kind::Mutation {
        let claim = claim_of(&submission, &facts, &frame, deadline.remaining(clock.now()))?;
        facts.keyed = ledger.keeps(&claim);
        let claimed = tokio::select! {
            biased;
            claimed = ledger.claim(claim, deadline) => claimed,
            () = force.cancelled() => return Err(Failure::Draining.into()),
        };
        match claimed {
            ClaimResult::Ours => {}
            ClaimResult::Unavailable => return Err(Failure::IdempotencyUnavailable.into()),
            ClaimResult::Repeat(repeat) => return repeated(repeat),
        }
    }
    let mut entry = ledger.accept(facts, room, witness.clone());
    // Only the call can be cut short; its end is recorded in any case, so that row and answer say the same.
    let outgoing = Outgoing { route, frame: &frame, deadline, patience: &submission.patience };
    let served = tokio::select! {
        biased;
        served = cache.call(&institution, outgoing, &mut entry) => served,
        () = force.cancelled() => {
            let sent = witness.maybe_sent();
            let failure = if sent { Failure::ShutdownAfterSend } else { Failure::ShutdownBeforeSend };
            Served::by_host(Err(failure.into()))
        }
    };
    let (status, proof, code, detail) = match &served.result {
        Ok(record) => (Status::Success, None, Some(record.text("responseCode")), served.failure.map(Failure::name)),
        Err(fault @ Fault { failure, host, .. }) => {
            let (status, proof) = match fault.record(route.kind) {
                crate::failure::Record::Failed(proof) => (Status::Failed, Some(proof)),
                crate::failure::Record::Unknown | crate::failure::Record::None => (Status::Unknown, None),
            };
            (status, proof, host.as_ref().map(|host| host.code.as_str()), Some(failure.name()))
        }
    };
    let elapsed = || clock.now().saturating_duration_since(started);
    let answer = render(id, elapsed(), &served);
    let unsent = matches!(proof, Some(Proof::P0 | Proof::P1 | Proof::P2));
    // Kept for repeats of the key: what is certain and was sent. A doubt is looked up anew each time.
    let kept = (route.kind == Kind::Mutation && status != Status::Unknown && !unsent).then_some(&answer);
    let end = End { status, proof, response_code: code, detail, served_from: served.from, answer: kept };
    let closed = entry.close(end, deadline).await;
    // Nothing left: that stays true, whether or not it could be recorded. Everything else must be looked up.
    if closed.is_err() && !unsent {
        return Ok(ran(id, elapsed(), &render, Served::by_host(Err(Failure::OutcomeNotDurable.into()))));
    }
    // Not recorded, not released: a start will find the intent alone and call it in doubt.
    if unsent && closed.is_ok() && route.kind == Kind::Mutation {
        ledger.release(id, deadline.remaining(clock.now()).clamp(RELEASE_MIN, RELEASE_MAX)).await;
    }
    Ok(Completed { id, said: Said::Ran(answer, Box::new(served)) })
}

/// How long freeing a key may hold up the answer. If it takes longer, the key is freed a moment after the answer.
const RELEASE_MIN: Duration = Duration::from_millis(10);
/// The same, while the deadline lasts.
const RELEASE_MAX: Duration = Duration::from_millis(500);

fn claim_of(submission: &Submission, facts: &Facts, frame: &[u8], left: Duration) -> Result<Claim, Failure> {
    let route = &submission.route;
    let key_hash = facts.idempotency_key_hash.clone().ok_or(Failure::IdempotencyKeyMissing)?;
    let key = ClaimKey {
        client: submission.client.to_string(),
        method: "POST".to_owned(),
        path: submission.path.clone(),
        key_hash,
    };
    let fingerprint = route.fingerprint(frame);
    Ok(Claim::new(key, facts.clone(), fingerprint, left + route.settle_time))
}

/// What a key that was used before leads to.
fn repeated(repeat: Repeat) -> Result<Completed, Refusal> {
    let (id, said) = match repeat {
        Repeat::InProgress => return Err(Failure::IdempotencyInProgress.into()),
        Repeat::Reused => return Err(Failure::IdempotencyKeyReused.into()),
        Repeat::Same(id, answer) => (id, Said::Again(answer)),
        Repeat::InDoubt(id) => (id, Said::InDoubt),
        Repeat::Resolved(id, resolution) => (id, Said::Resolved(resolution)),
    };
    Ok(Completed { id, said })
}

fn facts_of(ledger: &Ledger, clock: &Clock, submission: &Submission, id: TransactionId) -> Facts {
    let key = submission.idempotency_key.as_ref();
    let idempotency_key_hash = key.map(|key| Sha256::digest(key.as_bytes()).to_vec());
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
            Some(Value::Amount(won)) => Some(won),
            _ => None,
        },
        requested_at: clock.wall().as_microsecond(),
        correlation_id: correlation_id.clone(),
        idempotency_key_hash,
        layout_version: route.request.version(),
        keyed: None,
    }
}
