//! The desk for idempotency keys: what runs here, what has ended here and is not shipped yet, and one task that takes claims to the
//! store in groups. A store that several gateways share commits them. One that is ours alone is only asked whether it has the keys:
//! until a row is shipped its key stands in the journal, with the intent, and here. A sweep each second closes what a late commit left
//! behind, gives up on what other gateways lost, and writes down in our own store what runs.

mod known;
mod sweep;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::Ledger;
use super::id::TransactionId;
use super::journal::UsedKey;
use super::row::{Keyed, Outcome, Status};
use super::store::{Claim, Claimed, Owner, Progress, Repeat, Store, StoreError};
use super::told::{Told, tell_all, told};
use crate::clock::Deadline;
use known::{Alive, Known, Stored};

/// Claims that one commit takes.
const GROUP_MAX: usize = 128;
/// Claims that wait for their commit.
const QUEUE_MAX: usize = 4_096;
/// A commit that takes longer is an outage until it has ended.
const SLOW: Duration = Duration::from_secs(1);

/// What became of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimResult {
    /// The key is ours, and that is durable, or will be with the intent.
    Ours,
    /// The key was used before.
    Repeat(Repeat),
    /// It is not known whether the claim is there; nothing may be sent.
    Unavailable,
}

#[derive(Debug)]
pub(super) struct Claims {
    queue: mpsc::Sender<Order>,
    known: Mutex<Known>,
    outage: Mutex<Outage>,
    /// One sweep at a time: two would both close the same claim.
    sweeping: tokio::sync::Mutex<()>,
    /// What runs is not written down while its end is being shipped: it would be written behind it.
    shipping: tokio::sync::Mutex<()>,
}

/// While the store is down one claim at a time finds out whether it still is; the others are refused at once. Waiting, they would
/// hold admission places, and inquiries would feel an outage that does not concern them.
#[derive(Debug, Default)]
struct Outage {
    is_down: bool,
    is_probed: bool,
}

/// What the desk is asked to do.
#[derive(Debug)]
pub(super) enum Order {
    /// To commit a claim.
    Claim(Box<Waiting>),
    /// To say when everything before this is done.
    Flush(oneshot::Sender<()>),
}

#[derive(Debug)]
pub(super) struct Waiting {
    claim: Claim,
    answer: Told<Answered>,
}

/// What whoever waits for a claim is told.
type Answered = Result<Claimed, StoreError>;

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
    /// With the keys of an earlier life whose rows are not shipped yet.
    pub(super) fn new(keys: Vec<(TransactionId, UsedKey)>) -> (Self, mpsc::Receiver<Order>) {
        let (queue, waiting) = mpsc::channel(QUEUE_MAX);
        let claims = Self {
            queue,
            known: Mutex::default(),
            outage: Mutex::default(),
            sweeping: tokio::sync::Mutex::default(),
            shipping: tokio::sync::Mutex::default(),
        };
        claims.know(keys);
        (claims, waiting)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn outage(&self) -> MutexGuard<'_, Outage> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the store is worth asking: it is up, or this claim is the one that finds out.
    fn may_ask(&self) -> bool {
        let mut outage = self.outage();
        let may = !outage.is_down || !outage.is_probed;
        outage.is_probed = outage.is_down;
        may
    }

    /// What the last commit has shown; `None` when there was nothing to commit.
    fn has_shown(&self, is_down: Option<bool>) {
        let mut outage = self.outage();
        outage.is_probed = false;
        outage.is_down = is_down.unwrap_or(outage.is_down);
    }

    /// Held while outcomes are shipped.
    pub(super) async fn shipping(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.shipping.lock().await
    }
}

impl Ledger {
    /// What the journal keeps of a claim beside the facts: nothing when the store has it before anything is sent.
    #[must_use]
    pub fn keeps(&self, claim: &Claim) -> Option<Arc<Keyed>> {
        let Claim { key, fingerprint, .. } = claim;
        let keyed = || Keyed { method: key.method.clone(), path: key.path.clone(), fingerprint: fingerprint.clone() };
        self.store.is_private().then(|| Arc::new(keyed()))
    }

    /// Claims an idempotency key for one execution.
    pub async fn claim(&self, claim: Claim, deadline: Deadline) -> ClaimResult {
        let (id, fingerprint) = (claim.facts.id, claim.fingerprint.clone());
        let stored = if self.store.is_private() { Stored::No } else { Stored::Perhaps };
        let alive = Alive { id, fingerprint: fingerprint.clone(), ended: false, stored };
        if let Some(alive) = self.claims.note(&claim.key, alive) {
            return self.repeat_here(&alive, &fingerprint);
        }
        let mut claiming = Claiming(Some((&self.claims, id)));
        if !self.claims.may_ask() {
            return ClaimResult::Unavailable;
        }
        let claim = if self.store.is_private() { claim } else { claim.written() };
        let (answer, answered) = told();
        if self.claims.queue.try_send(Order::Claim(Box::new(Waiting { claim, answer }))).is_err() {
            return ClaimResult::Unavailable;
        }
        match tokio::time::timeout_at(deadline.at(), answered).await {
            Ok(Ok(Ok(Claimed::Ours))) => {
                // From here on its entry says how it ends.
                claiming.0 = None;
                ClaimResult::Ours
            }
            Ok(Ok(Ok(Claimed::Taken(mut taken)))) => {
                // One of our own that nothing here knows of is a late commit, and the sweep is about to free it.
                if taken.journal == self.owner.journal && taken.progress == Progress::Overdue {
                    taken.progress = Progress::Running;
                }
                ClaimResult::Repeat(taken.repeat(&fingerprint))
            }
            _ => ClaimResult::Unavailable,
        }
    }

    /// A repeat of a key that this process has in its own hands: no need to ask the store.
    fn repeat_here(&self, alive: &Alive, fingerprint: &[u8]) -> ClaimResult {
        // An outcome that is not durable yet is still in progress for everybody but its own caller.
        let outcome = if alive.ended { self.journal.find(alive.id) } else { None };
        match outcome {
            // A moment, and the key is free, for any body.
            Some(outcome) if outcome.row.is_provably_unsent() => ClaimResult::Unavailable,
            _ if alive.fingerprint != fingerprint => ClaimResult::Repeat(Repeat::Reused),
            Some(Outcome { row, answer: Some(answer) }) if row.closing.status != Status::Unknown => {
                ClaimResult::Repeat(Repeat::Same(alive.id, answer))
            }
            Some(_) => ClaimResult::Repeat(Repeat::InDoubt(alive.id)),
            None => ClaimResult::Repeat(Repeat::InProgress),
        }
    }

    /// Frees the key of a transaction that provably never left, before its caller is told to try again. Whatever does not
    /// work here is done when the row is shipped.
    pub async fn release(self: &Arc<Self>, id: TransactionId, limit: Duration) {
        if self.claims.let_go(id) {
            return;
        }
        let ledger = Arc::clone(self);
        // In a task of its own: a statement that is dropped half way costs its connection.
        let releasing = tokio::spawn(async move {
            // What is being written down must not come in behind.
            let private = ledger.store.is_private();
            let _not_meanwhile = if private { Some(ledger.claims.shipping().await) } else { None };
            ledger.store.release(ledger.owner, &[id]).await
        });
        if let Ok(Ok(Ok(()))) = tokio::time::timeout(limit, releasing).await {
            self.claims.known().forget(id);
        }
    }

    /// Takes claims to the store in groups, for ever.
    pub(super) async fn run_claims(self: Arc<Self>, mut orders: mpsc::Receiver<Order>) {
        let mut taken = Vec::new();
        while orders.recv_many(&mut taken, GROUP_MAX).await > 0 {
            let (mut group, mut flushes) = (Vec::new(), Vec::new());
            for order in taken.drain(..) {
                match order {
                    // Those whose deadline has passed are refused already; the fewer of them are committed the better.
                    Order::Claim(waiting) if waiting.answer.has_gone() => {}
                    Order::Claim(waiting) => group.push(*waiting),
                    Order::Flush(done) => flushes.push(done),
                }
            }
            let mut committing = std::pin::pin!(commit(&self.store, self.owner, &mut group, &self.fenced));
            let shown = match tokio::time::timeout(SLOW, committing.as_mut()).await {
                Ok(shown) => shown,
                Err(_elapsed) => {
                    // It hangs: nobody else shall wait for it.
                    self.claims.outage().is_down = true;
                    committing.await
                }
            };
            self.claims.has_shown(shown);
            for done in flushes {
                done.send(()).unwrap_or_else(|()| tracing::trace!("whoever waited for the claims has given up"));
            }
        }
    }
}

/// Takes one group to the store and answers everybody in it. Whether the store turned out to be down, if it was asked.
async fn commit(store: &Store, owner: Owner, group: &mut Vec<Waiting>, fenced: &CancellationToken) -> Option<bool> {
    if group.is_empty() {
        return None;
    }
    let (claims, answers): (Vec<Claim>, Vec<_>) =
        group.drain(..).map(|Waiting { claim, answer }| (claim, answer)).unzip();
    let waiting = claims.iter().zip(answers);
    match ask(store, owner, &claims).await {
        Ok(claimed) => {
            let (again, settled): (Vec<_>, Vec<_>) =
                waiting.zip(claimed).partition(|(_, claimed)| *claimed == Claimed::LetGo);
            // Whoever is gone is found by the sweep.
            tell_all(settled.into_iter().map(|((_, answer), claimed)| (answer, Ok(claimed))));
            let again = again.into_iter().map(|(waiting, _)| waiting);
            one_by_one(store, owner, again, fenced).await
        }
        Err(error) if error.is_contention() => {
            // Nothing happened, or some are ours already, which asking again says: one by one, while somebody still waits.
            one_by_one(store, owner, waiting, fenced).await
        }
        Err(error) => Some(is_down(store, &error, claims.len(), fenced)),
    }
}

/// Claims keys, or only looks for them: who shares the store with nobody has noted them already.
async fn ask(store: &Store, owner: Owner, claims: &[Claim]) -> Result<Vec<Claimed>, StoreError> {
    if store.is_private() { store.find_claims(owner, claims).await } else { store.claim(owner, claims).await }
}

/// What an error that leaves everything open is taken for: nobody else is told anything now.
fn is_down(store: &Store, error: &StoreError, claims: usize, fenced: &CancellationToken) -> bool {
    if matches!(error, StoreError::Fenced) {
        fenced.cancel();
    }
    tracing::warn!(store = store.name(), claims, "the store does not take idempotency claims");
    true
}

/// Takes claims to the store one by one, each while somebody waits for it. Whether the store turned out to be down.
async fn one_by_one(
    store: &Store,
    owner: Owner,
    waiting: impl Iterator<Item = (&Claim, Told<Answered>)>,
    fenced: &CancellationToken,
) -> Option<bool> {
    for (claim, answer) in waiting {
        let mut tries = 0;
        while !answer.has_gone() && tries < 50 {
            tries += 1;
            match ask(store, owner, std::slice::from_ref(claim)).await.map(|mut claimed| claimed.pop()) {
                Ok(Some(Claimed::LetGo)) => tokio::time::sleep(Duration::from_millis(5)).await,
                Err(error) if error.is_contention() => tokio::time::sleep(Duration::from_millis(5)).await,
                Ok(Some(claimed)) => {
                    tell_all(std::iter::once((answer, Ok(claimed))));
                    break;
                }
                Ok(None) => break,
                // The others would find the same, each after its own wait.
                Err(error) => return Some(is_down(store, &error, 1, fenced)),
            }
        }
    }
    Some(false)
}
