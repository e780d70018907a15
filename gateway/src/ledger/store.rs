//! The ledger's store: SQL that several may read, off the request path. One enum, one contract, tested the same way for
//! every kind.

mod memory;
mod sqlite;

use std::collections::HashMap;

use super::id::{Instance, TransactionId};
use super::journal::Position;
use super::row::{Row, Status};
pub use memory::MemoryStore;
pub use sqlite::SqliteStore;

/// The store can't answer.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database failed, is locked, or is not there.
    #[error("the ledger store failed: {0}")]
    Database(#[from] sqlx::Error),
    /// A migration failed.
    #[error("the ledger store cannot be prepared: {0}")]
    Migration(#[from] sqlx::migrate::MigrateError),
    /// A row holds something that this program never wrote.
    #[error("the ledger store holds a row that does not read back")]
    Malformed,
}

/// What a listing looks for. Absent means all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the columns that are compared")]
pub struct Filter {
    pub status: Option<Status>,
    pub tx_code: Option<String>,
    pub client: Option<String>,
    pub institution: Option<String>,
    pub correlation_id: Option<String>,
    /// First microsecond since 1970 of `requested_at`.
    pub from: Option<i64>,
    /// First microsecond behind the span.
    pub to: Option<i64>,
    /// Rows that name the account on either side, by its keyed hash.
    pub account_hash: Option<Vec<u8>>,
    /// Only mutations that wait for a resolution.
    pub unresolved: bool,
}

/// A row as the store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRow {
    /// Order of recording; the cursor of listings.
    pub seq: i64,
    /// The row.
    pub row: Row,
    /// How an UNKNOWN was resolved.
    pub resolution: String,
}

/// What one shipment did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shipment {
    /// Rows that are new.
    pub inserted: usize,
    /// Rows that contradict one that is there, or that the store refuses.
    pub parked: usize,
}

/// A claim on an idempotency key.
#[derive(Debug, Clone)]
pub struct Claim {
    /// Whose key.
    pub client: String,
    /// The HTTP method.
    pub method: String,
    /// The path.
    pub path: String,
    /// SHA-256 of the key.
    pub key_hash: Vec<u8>,
    /// The transaction that wants to run.
    pub transaction_id: TransactionId,
    /// Microseconds since 1970.
    pub claimed_at: i64,
}

/// What became of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claimed {
    /// The key is ours, and the row is durable.
    Ours,
    /// The key was seen before, with this transaction.
    Before(TransactionId),
}

/// Every kind of store.
#[derive(Debug, Clone)]
pub enum Store {
    /// One file, no server.
    Sqlite(SqliteStore),
    /// Gone with the process; for the simulation and for tests.
    Memory(MemoryStore),
}

macro_rules! forward {
    ($($(#[$doc:meta])* $name:ident(&self $(, $arg:ident: $type:ty)*) -> $answer:ty;)*) => {
        impl Store {
            $($(#[$doc])*
            ///
            /// # Errors
            /// [`StoreError`].
            pub async fn $name(&self $(, $arg: $type)*) -> Result<$answer, StoreError> {
                match self {
                    Self::Sqlite(store) => store.$name($($arg),*).await,
                    Self::Memory(store) => store.$name($($arg),*),
                }
            })*
        }
    };
}

forward! {
    /// Takes the next block of ids of an instance; the first one is drawn at random.
    take_block(&self, instance: Instance) -> u64;
    /// How far each journal has been shipped.
    checkpoints(&self) -> HashMap<[u8; 16], Position>;
    /// Inserts rows and moves the checkpoint, all or nothing. A row that is there already is passed over.
    ship(&self, rows: &[Row], journal: [u8; 16], upto: Position) -> Shipment;
    /// Claims a key, once.
    claim(&self, claim: &Claim) -> Claimed;
    /// One row.
    row(&self, id: TransactionId) -> Option<StoredRow>;
    /// Rows that were recorded before `before`, newest first.
    page(&self, filter: &Filter, before: Option<i64>, limit: u32) -> Vec<StoredRow>;
    /// Number of rows by status, in the order of [`Status::ALL`].
    summary(&self, filter: &Filter) -> [u64; 3];
}

#[cfg(test)]
mod tests;
