//! The ledger (원장): one row for every accepted transaction, asynchronous and never lost.
//!
//! [`Ledger::open`] recovers the journal, closes what was in flight as UNKNOWN, and starts the tasks that sync and ship.
//! A transaction gets an [`Entry`] and closes it; the journal has it before anybody hears of it, the store a moment
//! later. Nothing here knows HTTP, sockets or what a failure means.

mod entry;
mod id;
mod journal;
mod metrics;
mod row;
mod shipper;
mod store;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use jiff::civil::Date;
use sha2::Sha256;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::clock::Clock;
use crate::telemetry::Telemetry;
pub use entry::{End, Entry, Witness};
pub use id::{IdSource, Instance, NoIds, TransactionId};
pub use journal::{
    Disk, FolderDisk, Journal, JournalError, Position, RecoveryError, Room, SegmentFile, Settings as JournalSettings,
};
use metrics::Metrics;
pub use row::{Attempt, Closing, Facts, Proof, Row, Status};
pub use store::{Claim, Claimed, Filter, MemoryStore, Shipment, SqliteStore, Store, StoreError, StoredRow};

/// The ledger's rules.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The journal's.
    pub journal: JournalSettings,
    /// Whose transaction ids these are.
    pub instance: Instance,
    /// Key of the hash by which auditors find an account.
    pub search_key: Vec<u8>,
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
}

/// The handle that everybody shares.
#[derive(Debug)]
pub struct Ledger {
    journal: Arc<Journal>,
    store: Store,
    ids: IdSource,
    clock: Clock,
    metrics: Metrics,
    search: Hmac<Sha256>,
    shipped: watch::Sender<Position>,
    tasks: std::sync::Mutex<Vec<AbortOnDropHandle<()>>>,
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
        let checkpoints = store.checkpoints().await?;
        let mut shipped = Position::default();
        let new_id = uuid::Uuid::now_v7().into_bytes();
        let recovered = Journal::recover(disk, settings.journal, new_id, |journal| {
            shipped = checkpoints.get(&journal).copied().unwrap_or_default();
            shipped
        })?;
        let ids = IdSource::new(settings.instance);
        ids.add(store.take_block(settings.instance).await?);
        // A key of any length is allowed, so this can't fail.
        let search = Hmac::new_from_slice(&settings.search_key).unwrap_or_else(|_| Hmac::new(&Default::default()));
        let ledger = Arc::new(Self {
            journal: recovered.journal,
            store,
            ids,
            clock,
            metrics: Metrics::new(telemetry),
            search,
            shipped: watch::Sender::new(shipped),
            tasks: std::sync::Mutex::default(),
        });
        ledger.start_tasks();
        ledger.close_open(recovered.open).await?;
        Ok(ledger)
    }

    fn start_tasks(self: &Arc<Self>) {
        let syncer = tokio::spawn(Arc::clone(&self.journal).run_syncer());
        let shipper = tokio::spawn(Arc::clone(self).run_shipper());
        let blocks = tokio::spawn(Arc::clone(self).run_block_refill());
        let mut tasks = self.tasks.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        tasks.extend([syncer, shipper, blocks].map(AbortOnDropHandle::new));
    }

    /// An intent without an outcome: nobody knows what the host did.
    async fn close_open(&self, open: Vec<Facts>) -> Result<(), JournalError> {
        let count = open.len();
        let mut last = None;
        for facts in open {
            let now = self.clock.wall().as_microsecond();
            let closing = Closing {
                status: Status::Unknown,
                proof: None,
                response_code: None,
                detail: Some("recovered".to_owned()),
                attempts: Vec::new(),
                responded_at: now,
                elapsed_us: now.saturating_sub(facts.requested_at),
            };
            let row = Row { facts, closing };
            self.metrics.closed(&row, Duration::ZERO);
            last = Some(self.journal.append_outcome(&row)?);
        }
        if let Some(last) = last {
            self.journal.durable(last).await?;
            tracing::warn!(transactions = count, "closed as UNKNOWN what an earlier run left open");
        }
        Ok(())
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

    /// Claims an idempotency key in the store.
    ///
    /// # Errors
    /// [`StoreError`]; then it is not known whether the claim is there, and nothing may be sent.
    pub async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        self.store.claim(claim).await
    }

    /// The keyed hash of a zero-padded account number, 16 bytes.
    #[must_use]
    pub fn account_hash(&self, account: &str) -> Vec<u8> {
        let mut mac = self.search.clone();
        mac.update(account.as_bytes());
        mac.finalize().into_bytes().iter().copied().take(16).collect()
    }

    /// One finished transaction: from the journal as soon as it was answered, else from the store.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn row(&self, id: TransactionId) -> Result<Option<StoredRow>, StoreError> {
        if let Some(row) = self.journal.find(id) {
            let resolution = row.resolution().to_owned();
            return Ok(Some(StoredRow { seq: 0, row, resolution }));
        }
        self.store.row(id).await
    }

    /// A page of rows, newest first. Waits a moment for what was answered before the call.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn page(&self, filter: &Filter, before: Option<i64>, limit: u32) -> Result<Vec<StoredRow>, StoreError> {
        self.catch_up(Duration::from_millis(500)).await;
        self.store.page(filter, before, limit).await
    }

    /// Rows by status, in the order of [`Status::ALL`]. Waits as [`Ledger::page`] does.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn summary(&self, filter: &Filter) -> Result<[u64; 3], StoreError> {
        self.catch_up(Duration::from_millis(500)).await;
        self.store.summary(filter).await
    }

    /// Waits until what was written so far is in the store, `limit` at most. Says whether it is.
    pub async fn catch_up(&self, limit: Duration) -> bool {
        let end = self.journal.end();
        let mut shipped = self.shipped.subscribe();
        let wait = async {
            self.journal.durable(end).await.is_ok() && shipped.wait_for(|shipped| *shipped >= end).await.is_ok()
        };
        tokio::time::timeout(limit, wait).await.unwrap_or(false)
    }

    /// The journal, for those who watch its health.
    #[must_use]
    pub fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }

    /// Makes everything durable, ships what can be shipped within `limit`, and stops the tasks.
    pub async fn close(&self, limit: Duration) {
        if !self.catch_up(limit).await {
            tracing::warn!("not everything is shipped; the next start goes on from the journal");
        }
        self.tasks.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clear();
    }
}

/// Reads the key of the account hash from a file, making it when it is not there. It appears whole or not at all.
///
/// # Errors
/// Those of the file system and of the system's random source; a key that is not 32 bytes long.
pub fn search_key(file: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::{Error, ErrorKind, Write as _};
    use std::os::unix::fs::OpenOptionsExt as _;
    match std::fs::read(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Ok(key) if key.len() != 32 => return Err(Error::new(ErrorKind::InvalidData, "must hold 32 bytes")),
        read => return read,
    }
    let mut key = vec![0; 32];
    getrandom::fill(&mut key).map_err(Error::other)?;
    let half_made = file.with_extension("new");
    let mut out = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&half_made)?;
    out.write_all(&key)?;
    out.sync_all()?;
    std::fs::rename(&half_made, file)?;
    sync_folder_of(file)?;
    Ok(key)
}

/// Makes a new name in a folder durable.
pub(crate) fn sync_folder_of(path: &Path) -> std::io::Result<()> {
    match path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        Some(folder) => std::fs::File::open(folder)?.sync_all(),
        None => std::fs::File::open(".")?.sync_all(),
    }
}
