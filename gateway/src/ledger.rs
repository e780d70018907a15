//! The ledger (원장): one row for every accepted transaction, asynchronous and never lost.
//!
//! [`Ledger::open`] recovers the journal, closes what was in flight as UNKNOWN, and starts the tasks that sync and ship.
//! A transaction gets an [`Entry`] and closes it; the journal has it before anybody hears of it, the store a moment
//! later. Nothing here knows HTTP, sockets or what a failure means.

mod claims;
mod entry;
mod id;
mod instance;
mod journal;
mod keyed;
mod metrics;
mod reading;
mod recovering;
mod row;
mod search_key;
mod shipper;
mod stale;
mod store;
mod told;

use std::sync::Arc;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use jiff::civil::Date;
use sha2::Sha256;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::clock::Clock;
use crate::telemetry::Telemetry;
pub use claims::ClaimResult;
use claims::Claims;
pub use entry::{End, Entry, Witness};
pub use id::{IdSource, Instance, NoIds, TransactionId};
use journal::Reached;
pub use journal::{
    Disk, FolderDisk, Journal, JournalError, Position, Recovered, RecoveryError, Room, SegmentFile,
    Settings as JournalSettings, UsedKey,
};
pub use keyed::Keyed;
use metrics::Metrics;
use recovering::recover;
pub use row::{
    Answer, Attempt, Closing, DUPLICATE_ID, Facts, Outcome, Proof, Resolution, ResolveAs, Row, ServedFrom, Status,
};
pub use search_key::search_key;
pub(crate) use search_key::sync_folder_of;
use store::InstanceLease;
pub use store::{
    ByHand, Claim, ClaimKey, Claimed, Class, Delivery, Difference, Doubt, Filter, Gate, Horizon, HostLine, LedgerLine,
    MemoryStore, Of, Owner, Passage, Progress, Repeat, Resolved, Run, Shipment, Shipper, SqlStore, Step, StepEnd,
    Store, StoreError, StoredRow, Taken, Tally, Verdict, Wanted, migrate_postgres,
};

/// The ledger's rules.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The journal's.
    pub journal: JournalSettings,
    /// Whose transaction ids these are.
    pub instance: Instance,
    /// Key of the hash by which auditors find an account.
    pub search_key: Vec<u8>,
    /// How long the letter stays ours without a word from us.
    pub instance_lease: Duration,
    /// How long a key is kept after its transaction has ended.
    pub claim_keep: Duration,
}

/// Why the ledger can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The journal can't be used.
    #[error(transparent)]
    Journal(#[from] RecoveryError),
    /// A record could not be written at the start.
    #[error(transparent)]
    Append(#[from] JournalError),
    /// The store can't be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The note in the journal's folder does not read.
    #[error("the identity file in the journal's folder does not read")]
    Identity,
    /// Another gateway has the letter.
    #[error("another running gateway has this instance letter in the ledger store")]
    LetterTaken,
    /// The journal was fenced off by an operator.
    #[error("this journal was retired: what it left open is resolved without it, and it may not go on")]
    Retired,
}

/// Rows, and whether all that was answered before was there to be read.
pub type Page = (Vec<StoredRow>, bool);

/// The handle that everybody shares.
#[derive(Debug)]
pub struct Ledger {
    journal: Arc<Journal>,
    disk: Arc<dyn Disk>,
    store: Store,
    ids: IdSource,
    clock: Clock,
    metrics: Metrics,
    search: Hmac<Sha256>,
    shipped: Reached,
    claims: Claims,
    owner: Owner,
    instance_lease: InstanceLease,
    claim_keep: Duration,
    /// Cancelled when another life has taken this one's place.
    fenced: CancellationToken,
    /// Rung when a row in doubt got into the store.
    doubted: Notify,
    /// Rung by who wants rows to be carried to the store at once.
    hurry: Notify,
    /// Rung when a mutation has ended.
    ended_mutation: Notify,
    tasks: std::sync::Mutex<Vec<AbortOnDropHandle<()>>>,
    keeping: std::sync::Mutex<Option<AbortOnDropHandle<()>>>, // Renews the lease.
}

impl Ledger {
    /// Recovers and starts. When this returns, everything that an earlier life left open is recorded as UNKNOWN.
    ///
    /// # Errors
    /// [`OpenError`].
    pub async fn open(
        disk: Arc<dyn Disk>,
        store: Store,
        settings: Settings,
        clock: Clock,
        telemetry: &Arc<Telemetry>,
    ) -> Result<Arc<Self>, OpenError> {
        let mut found = instance::look(&store, &*disk, settings.instance).await?;
        let (recovered, mark) = loop {
            if found.stale {
                stale::settle(&store, &disk, &settings, &clock).await?;
            }
            let (recovered, mark) = recover(&store, &disk, settings.journal).await?;
            if mark.retired {
                return Err(OpenError::Retired);
            }
            // The store has more of this journal than the folder: the folder is an old copy, whatever its mark says.
            if found.stale || mark.shipped <= recovered.end {
                break (recovered, mark);
            }
            found.stale = true;
        };
        let journal = recovered.journal;
        let lease = settings.instance_lease;
        let instance_lease = instance::take(&store, &disk, settings.instance, found, journal.id(), lease).await?;
        let ids = IdSource::new(settings.instance);
        ids.add(store.take_block(settings.instance).await?);
        // A key of any length is allowed, so this can't fail.
        let search = Hmac::new_from_slice(&settings.search_key).unwrap_or_else(|_| Hmac::new(&Default::default()));
        let (claims, waiting) = Claims::new(recovered.keys);
        let ledger = Arc::new(Self {
            journal,
            disk,
            store,
            ids,
            clock,
            metrics: Metrics::new(telemetry),
            search,
            shipped: Reached::new(mark.shipped),
            claims,
            owner: instance_lease.owner_of(settings.instance),
            instance_lease,
            claim_keep: settings.claim_keep,
            fenced: CancellationToken::new(),
            doubted: Notify::new(),
            hurry: Notify::new(),
            ended_mutation: Notify::new(),
            tasks: std::sync::Mutex::default(),
            keeping: std::sync::Mutex::default(),
        });
        let (fenced, store) = (ledger.fenced.clone(), ledger.store.clone());
        ledger.run(Arc::clone(&ledger.journal).run_syncer());
        ledger.run(Arc::clone(&ledger).run_shipper());
        ledger.run(Arc::clone(&ledger).run_block_refill());
        let (journal, claims) = (Arc::clone(&ledger.journal), Arc::clone(&ledger).run_claims(waiting));
        let claiming = AbortOnDropHandle::new(tokio::spawn(claims));
        ledger.run(async move {
            // Should the task itself die, no key could ever be claimed again: the process must stop.
            if claiming.await.is_err_and(|error| error.is_panic()) {
                journal.fail();
            }
        });
        let keeping = instance::keep(store, Arc::clone(&ledger.disk), settings.instance, instance_lease, fenced);
        *ledger.keeping.lock().unwrap_or_else(std::sync::PoisonError::into_inner) =
            Some(AbortOnDropHandle::new(tokio::spawn(keeping)));
        ledger.close_open(recovered.open).await?;
        // Claims that an earlier life made and had not begun to write down.
        ledger.sweep(recovered.cut, u32::MAX / 2).await?;
        ledger.run(Arc::clone(&ledger).run_sweep());
        Ok(ledger)
    }

    fn run(&self, task: impl Future<Output = ()> + Send + 'static) {
        let task = AbortOnDropHandle::new(tokio::spawn(task));
        self.tasks.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(task);
    }

    async fn run_block_refill(self: Arc<Self>) {
        loop {
            self.ids.wanted.notified().await;
            while self.ids.wants_block() {
                match self.store.take_block(self.ids.instance()).await {
                    Ok(block) => self.ids.add(block),
                    Err(_) => {
                        tracing::warn!("the ledger store gives no block of transaction ids; trying again");
                        tokio::time::sleep(Duration::from_secs(1)).await;
                    }
                }
            }
        }
    }

    /// Draws an id. One that is then refused is never shown or stored.
    ///
    /// # Errors
    /// [`NoIds`].
    pub fn draw_id(&self, date: Date) -> Result<TransactionId, NoIds> {
        self.ids.draw(date)
    }

    /// Promises journal room for one transaction.
    ///
    /// # Errors
    /// [`JournalError::NoRoom`], [`JournalError::Failed`].
    pub fn reserve(&self) -> Result<Room, JournalError> {
        self.journal.reserve()
    }

    /// Accepts a transaction: from here on there will be exactly one row of it.
    pub fn accept(self: &Arc<Self>, facts: Facts, room: Room, witness: Witness) -> Entry {
        Entry::open(Arc::clone(self), facts, room, witness)
    }

    /// The keyed hash of a zero-padded account number, 16 bytes.
    #[must_use]
    pub fn account_hash(&self, account: &str) -> Vec<u8> {
        let mut mac = self.search.clone();
        mac.update(account.as_bytes());
        mac.finalize().into_bytes().iter().copied().take(16).collect()
    }

    /// Waits until what was written so far is in the store, `limit` at most. Says whether it is.
    pub async fn catch_up(&self, limit: Duration) -> bool {
        let end = self.journal.end();
        let wait = async {
            self.journal.durable(end).await.is_ok() && {
                self.hurry.notify_one();
                self.shipped.wait_for(end).await;
                true
            }
        };
        tokio::time::timeout(limit, wait).await.unwrap_or(false)
    }

    /// The journal, for those who watch its health.
    #[must_use]
    pub fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }

    /// The store, for those who resolve and reconcile: they work on shipped rows alone.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Rung when a row in doubt got into the store.
    #[must_use]
    pub fn doubted(&self) -> &Notify {
        &self.doubted
    }

    /// Cancelled when another life has taken this gateway's place, or its journal was retired: stop the process.
    #[must_use]
    pub fn fenced(&self) -> &CancellationToken {
        &self.fenced
    }

    /// Makes everything durable, ships what can be shipped within `limit`, and stops the tasks.
    pub async fn close(&self, limit: Duration) {
        if !matches!(tokio::time::timeout(limit / 4, self.finish_claims()).await, Ok(Ok(()))) {
            tracing::debug!("some idempotency claims are left to the next start");
        }
        if !self.catch_up(limit / 2).await {
            tracing::warn!("not everything is shipped; the next start goes on from the journal");
        }
        // Whoever renews the lease must be gone before it is given up.
        if let Some(keeping) = self.keeping.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take() {
            keeping.abort();
        }
        let instance = self.ids.instance();
        let leaving = instance::leave(&self.store, &self.disk, instance, self.instance_lease);
        if tokio::time::timeout(limit / 4, leaving).await.is_err() {
            tracing::debug!("the store did not take our leave");
        }
        self.tasks.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clear();
        // Whoever opens the folder next must not meet its last sync.
        drop(tokio::time::timeout(limit / 4, self.journal.syncer_ended()).await);
    }
}

#[cfg(test)]
mod tests;
