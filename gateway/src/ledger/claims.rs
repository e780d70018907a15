//! The desk for idempotency keys: what runs here, what has ended here and is not shipped yet, and one task that commits
//! claims in groups. A sweep each second closes what a late commit left behind and gives up on what other gateways lost.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::Ledger;
use super::id::TransactionId;
use super::row::{Outcome, Row, Status};
use super::store::{Claim, ClaimKey, Claimed, Owner, Repeat, Store, StoreError};
use crate::clock::Deadline;

/// Claims that one commit takes.
const GROUP_MAX: usize = 128;
/// Claims that wait for their commit.
const QUEUE_MAX: usize = 4_096;
/// Between two sweeps.
const SWEEP: Duration = Duration::from_secs(1);
/// Claims that one sweep looks at.
const SWEEP_MAX: u32 = 1_000;

/// What became of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimResult {
    /// The key is ours, and that is durable.
    Ours,
    /// The key was used before.
    Repeat(Repeat),
    /// It is not known whether the claim is there; nothing may be sent.
    Unavailable,
}

#[derive(Debug)]
pub(super) struct Claims {
    queue: mpsc::Sender<Waiting>,
    known: Mutex<Known>,
}

#[derive(Debug)]
pub(super) struct Waiting {
    claim: Claim,
    answer: oneshot::Sender<Result<Claimed, StoreError>>,
}

/// Transactions of this process that the store does not know the end of.
#[derive(Debug, Default)]
struct Known {
    by_key: HashMap<ClaimKey, Alive>,
    keys: HashMap<TransactionId, ClaimKey>,
}

#[derive(Debug, Clone)]
struct Alive {
    id: TransactionId,
    fingerprint: Vec<u8>,
    ended: bool,
}

impl Known {
    fn forget(&mut self, id: TransactionId) {
        if let Some(key) = self.keys.remove(&id)
            && self.by_key.get(&key).is_some_and(|alive| alive.id == id)
        {
            self.by_key.remove(&key);
        }
    }
}

/// Forgets a claim unless it became ours: the sweep looks after what may have been committed.
struct Claiming<'a>(Option<(&'a Claims, TransactionId)>);

impl Drop for Claiming<'_> {
    fn drop(&mut self) {
        if let Some((claims, id)) = self.0 {
            claims.known().forget(id);
        }
    }
}

impl Claims {
    pub(super) fn new() -> (Self, mpsc::Receiver<Waiting>) {
        let (queue, waiting) = mpsc::channel(QUEUE_MAX);
        (Self { queue, known: Mutex::default() }, waiting)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a claim that is about to be made, unless the key is in our hands already.
    fn note(&self, key: &ClaimKey, alive: Alive) -> Option<Alive> {
        let mut known = self.known();
        if let Some(there) = known.by_key.get(key) {
            return Some(there.clone());
        }
        known.keys.insert(alive.id, key.clone());
        known.by_key.insert(key.clone(), alive);
        None
    }

    /// Its outcome is written; the store hears of it when it is shipped.
    pub(super) fn ended(&self, id: TransactionId) {
        let mut known = self.known();
        let key = known.keys.get(&id).cloned();
        if let Some(alive) = key.and_then(|key| known.by_key.get_mut(&key)) {
            alive.ended = true;
        }
    }

    /// The store knows how these ended.
    pub(super) fn shipped(&self, outcomes: &[Outcome]) {
        let mut known = self.known();
        for outcome in outcomes.iter().filter(|outcome| outcome.row.facts.idempotency_key_hash.is_some()) {
            known.forget(outcome.row.facts.id);
        }
    }

    fn is_known(&self, id: TransactionId) -> bool {
        self.known().keys.contains_key(&id)
    }
}

impl Ledger {
    /// Claims an idempotency key for one execution.
    pub async fn claim(&self, claim: Claim, deadline: Deadline) -> ClaimResult {
        let (id, fingerprint) = (claim.facts.id, claim.fingerprint.clone());
        let known = self.claims.note(&claim.key, Alive { id, fingerprint: fingerprint.clone(), ended: false });
        if let Some(alive) = known {
            return self.repeat_here(&alive, &fingerprint);
        }
        let mut claiming = Claiming(Some((&self.claims, id)));
        let (answer, answered) = oneshot::channel();
        if self.claims.queue.try_send(Waiting { claim, answer }).is_err() {
            return ClaimResult::Unavailable;
        }
        match tokio::time::timeout_at(deadline.at(), answered).await {
            Ok(Ok(Ok(Claimed::Ours))) => {
                // From here on its entry says how it ends.
                claiming.0 = None;
                ClaimResult::Ours
            }
            Ok(Ok(Ok(Claimed::Taken(taken)))) => ClaimResult::Repeat(taken.repeat(&fingerprint)),
            _ => ClaimResult::Unavailable,
        }
    }

    /// A repeat of a key that this process has in its own hands: no need to ask the store.
    fn repeat_here(&self, alive: &Alive, fingerprint: &[u8]) -> ClaimResult {
        if alive.fingerprint != fingerprint {
            return ClaimResult::Repeat(Repeat::Reused);
        }
        // An outcome that is not durable yet is still in progress for everybody but its own caller.
        let outcome = if alive.ended { self.journal.find(alive.id) } else { None };
        match outcome {
            Some(outcome) if outcome.row.is_provably_unsent() => ClaimResult::Unavailable,
            Some(Outcome { row, answer: Some(answer) }) if row.closing.status != Status::Unknown => {
                ClaimResult::Repeat(Repeat::Same(alive.id, answer))
            }
            Some(_) => ClaimResult::Repeat(Repeat::InDoubt(alive.id)),
            None => ClaimResult::Repeat(Repeat::InProgress),
        }
    }

    /// Frees the key of a transaction that provably never left, before its caller is told to try again. Whatever does not
    /// work here is done when the row is shipped.
    pub async fn release(&self, id: TransactionId, limit: Duration) {
        let (store, owner) = (self.store.clone(), self.owner);
        // In a task of its own: a statement that is dropped half way costs its connection.
        let releasing = tokio::spawn(async move { store.release(owner, &[id]).await });
        if let Ok(Ok(Ok(()))) = tokio::time::timeout(limit, releasing).await {
            self.claims.known().forget(id);
        }
    }

    /// Commits claims in groups, for ever.
    pub(super) async fn run_claims(self: Arc<Self>, mut waiting: mpsc::Receiver<Waiting>) {
        let mut group = Vec::new();
        while waiting.recv_many(&mut group, GROUP_MAX).await > 0 {
            // Those whose deadline has passed are refused already; the fewer of them are committed the better.
            group.retain(|waiting| !waiting.answer.is_closed());
            commit(&self.store, self.owner, &mut group, &self.fenced).await;
        }
    }

    /// Sweeps for ever.
    pub(super) async fn run_sweep(self: Arc<Self>) {
        let mut round: u64 = 0;
        loop {
            tokio::time::sleep(SWEEP).await;
            if self.sweep(false, SWEEP_MAX).await.is_err() || self.store.abandon_overdue(self.owner).await.is_err() {
                tracing::debug!("the sweep of idempotency claims did not get through");
                continue;
            }
            if round.is_multiple_of(60) && self.store.purge_claims(self.claim_keep).await.is_err() {
                tracing::debug!("old idempotency claims were not purged");
            }
            round += 1;
        }
    }

    /// Closes claims of this journal that nothing here knows of: their commit came after everybody had given up, so nothing
    /// was sent. When recovery had to cut the journal's tail, even that is not certain.
    pub(super) async fn sweep(&self, cut: bool, limit: u32) -> Result<(), StoreError> {
        let open = self.store.open_claims(self.owner.journal, limit).await?;
        for facts in open {
            let id = facts.id;
            if self.claims.is_known(id) || self.journal.knows(id) {
                continue;
            }
            // Shipped since the list was read?
            if self.store.row(id).await?.is_some() {
                continue;
            }
            let now = self.clock.wall().as_microsecond();
            let row =
                if cut { Row::in_doubt(facts, "recovered", now) } else { Row::never_sent(facts, "unclaimed", now) };
            let Ok(_room) = self.journal.reserve() else { return Ok(()) };
            self.metrics.closed(&row, Duration::ZERO);
            if self.journal.append_outcome(&Outcome::of(row)).is_err() {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Commits one group and answers everybody in it.
async fn commit(store: &Store, owner: Owner, group: &mut Vec<Waiting>, fenced: &CancellationToken) {
    if group.is_empty() {
        return;
    }
    let claims: Vec<Claim> = group.iter().map(|waiting| waiting.claim.clone()).collect();
    match store.claim(owner, &claims).await {
        Ok(claimed) => {
            for (waiting, claimed) in group.drain(..).zip(claimed) {
                // Whoever is gone is found by the sweep.
                drop(waiting.answer.send(Ok(claimed)));
            }
        }
        Err(error) if error.is_contention() => {
            // It certainly did not happen: one by one, while somebody still waits.
            for waiting in group.drain(..) {
                one_by_one(store, owner, waiting).await;
            }
        }
        Err(error) => {
            if matches!(error, StoreError::Fenced) {
                fenced.cancel();
            }
            tracing::warn!(store = store.name(), claims = group.len(), "the store does not take idempotency claims");
            group.clear();
        }
    }
}

async fn one_by_one(store: &Store, owner: Owner, waiting: Waiting) {
    while !waiting.answer.is_closed() {
        match store.claim(owner, std::slice::from_ref(&waiting.claim)).await {
            Ok(claimed) => {
                if let Some(claimed) = claimed.into_iter().next() {
                    drop(waiting.answer.send(Ok(claimed)));
                }
                return;
            }
            Err(error) if error.is_contention() => tokio::time::sleep(Duration::from_millis(5)).await,
            Err(_) => return,
        }
    }
}
