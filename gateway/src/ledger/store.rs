//! The ledger's store: SQL that several may read, off the request path. One enum, one contract, tested the same way for
//! every kind.

mod claim;
mod doubt;
mod memory;
mod postgres;
mod run;
mod sql;
mod sqlite;

use std::collections::HashMap;
use std::time::Duration;

use super::id::{Instance, TransactionId};
use super::journal::Position;
use super::row::{Facts, Outcome, Resolution, ResolveAs, Row, Status};
pub use claim::{Claim, ClaimKey, Claimed, Owner, Progress, Repeat, Taken};
pub use doubt::{ByHand, Doubt, Step, StepEnd, Verdict, Wanted};
pub use memory::{Delivery, Gate, MemoryStore, Passage};
pub use postgres::migrate as migrate_postgres;
pub use run::{Class, Difference, Horizon, HostLine, LedgerLine, Run, Tally};
pub use sql::SqlStore;

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
    /// The database promises less than the journal relies on.
    #[error("the ledger store would lose what it says is written: {0}")]
    NotDurable(&'static str),
    /// Another life of this gateway has taken over, or the journal was retired.
    #[error("this gateway's place in the ledger store was taken over, or its journal was retired")]
    Fenced,
    /// The system gives no random bytes.
    #[error("the system gives no random bytes")]
    NoRandomness,
    /// Switched off by a test.
    #[error("the ledger store is switched off")]
    Down,
}

impl StoreError {
    /// Whether it may be tried again at once: it did not happen, or, for claims, what did is found again.
    #[must_use]
    pub fn is_contention(&self) -> bool {
        sql::is_contention(self)
    }
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

/// How a doubt stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// How it ended, or that it has not.
    pub state: Resolution,
    /// By which question.
    pub method: Option<String>,
    /// When, in microseconds since 1970 by the store's clock.
    pub at: Option<i64>,
    /// By whom.
    pub by: Option<String>,
    /// Why, when a person did it.
    pub note: Option<String>,
    /// How it is to be resolved, when that is not its route's word.
    pub resolve_as: Option<ResolveAs>,
}

impl Resolved {
    /// Nothing but a state.
    #[must_use]
    pub fn only(state: Resolution) -> Self {
        Self { state, method: None, at: None, by: None, note: None, resolve_as: None }
    }
}

/// A row as the store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRow {
    /// Order of recording; the cursor of listings.
    pub seq: i64,
    /// The row.
    pub row: Row,
    /// How an UNKNOWN was resolved.
    pub resolved: Resolved,
}

impl StoredRow {
    /// A claim whose end nobody can tell, as the row that it does not have.
    #[must_use]
    pub fn abandoned(facts: Facts) -> Self {
        let now = facts.requested_at;
        let row = Row::in_doubt(facts, "abandoned", now);
        Self { seq: 0, row, resolved: Resolved::only(Resolution::Abandoned) }
    }
}

/// What one shipment did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shipment {
    /// Rows that are new.
    pub inserted: usize,
    /// Rows that contradict one that is there, or that the store refuses.
    pub parked: usize,
}

/// What the store knows of a journal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JournalMark {
    /// How far it has been shipped.
    pub shipped: Position,
    /// Whether it was fenced off for good.
    pub retired: bool,
}

/// Who has a letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InstanceLease {
    /// The data folder's own number.
    pub owner: [u8; 16],
    /// Raised by each start.
    pub incarnation: i64,
    /// Drawn anew by each start and each renewal; the data folder has it too.
    pub mark: [u8; 16],
    /// The journal of that life.
    pub journal: [u8; 16],
    /// How long it still holds; when it is taken or renewed, how long it shall hold.
    pub left: Duration,
}

/// Who ships.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shipper {
    /// The journal of a running gateway, up to this place.
    Journal(Owner, Position),
    /// A journal that is set aside: what it knows for certain, and no checkpoint, since that belongs to another life.
    SetAside,
}

/// Whose abandoned claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of<'a> {
    /// Everybody's.
    Everybody,
    /// A client's.
    Client(&'a str),
    /// This transaction.
    Transaction(TransactionId),
}

/// Every kind of store.
#[derive(Debug, Clone)]
pub enum Store {
    /// SQLite or PostgreSQL.
    Sql(SqlStore),
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
                    Self::Sql(store) => store.$name($($arg),*).await,
                    Self::Memory(store) => store.pass(|store| store.$name($($arg),*)).await,
                }
            })*
        }
    };
}

forward! {
    /// Takes a block of ids for an instance, drawn at random among those that were never taken.
    take_block(&self, instance: Instance) -> u64;
    /// How far each journal has been shipped, and which were retired.
    journal_marks(&self) -> HashMap<[u8; 16], JournalMark>;
    /// Who has a letter.
    lease_of(&self, instance: Instance) -> Option<InstanceLease>;
    /// Takes a letter's lease, if the incarnation that was seen still stands there, and the mark, if one is given.
    take_lease(&self, instance: Instance, lease: &InstanceLease, seen: i64, mark: Option<[u8; 16]>) -> bool;
    /// Renews a lease. `false` when it is somebody else's now.
    renew_lease(&self, instance: Instance, lease: &InstanceLease) -> bool;
    /// Fences a journal for good and turns its open claims into UNKNOWN rows; returns how many.
    retire(&self, journal: [u8; 16]) -> u64;

    /// Inserts rows, ends their claims and moves the shipper's checkpoint, all or nothing. A row that is there already is passed over.
    ship(&self, outcomes: &[Outcome], shipper: Shipper) -> Shipment;
    /// One row.
    row(&self, id: TransactionId) -> Option<StoredRow>;
    /// Rows that were recorded before `before`, newest first.
    page(&self, filter: &Filter, before: Option<i64>, limit: u32) -> Vec<StoredRow>;
    /// Number of rows by status, in the order of [`Status::ALL`].
    summary(&self, filter: &Filter) -> [u64; 3];

    /// Claims keys; an error says nothing was claimed, or that it is not known. Answers come in the order of the claims.
    claim(&self, owner: Owner, claims: &[Claim]) -> Vec<Claimed>;
    /// Looks whether keys were used before, and claims nothing. Answers come in the order of the claims.
    find_claims(&self, owner: Owner, claims: &[Claim]) -> Vec<Claimed>;
    /// Writes claims, also of a life that may claim no more. A key that is there already stays as it is.
    write_claims(&self, owner: Owner, claims: &[Claim]) -> ();
    /// Frees the keys of transactions that provably never left.
    release(&self, owner: Owner, ids: &[TransactionId]) -> ();
    /// Claims of a journal that are not known to have ended, oldest first.
    open_claims(&self, journal: [u8; 16], limit: u32) -> Vec<Facts>;
    /// Marks claims of other journals whose time is over.
    abandon_overdue(&self, owner: Owner) -> u64;
    /// Marks everything that a journal still runs.
    abandon_journal(&self, journal: [u8; 16]) -> u64;
    /// Claims that nobody can tell the end of, oldest first: of everybody, of a client, or only this one.
    abandoned(&self, of: Of<'_>, limit: u32) -> Vec<Facts>;
    /// Forgets keys whose time is over; never one whose transaction is in doubt.
    purge_claims(&self, keep: Duration) -> u64;

    /// Holds rows in doubt for a resolver.
    hold_doubts(&self, wanted: &Wanted<'_>, token: &str, lease: Duration, limit: u32) -> Vec<Doubt>;
    /// Notes, before its first byte can leave, that a net-cancel is sent. `false`: send nothing.
    intend_cancel(&self, id: TransactionId, token: &str) -> bool;
    /// Records a step and what it decided. `false`: the row is not ours any more.
    end_step(&self, id: TransactionId, token: &str, end: &StepEnd<'_>) -> bool;
    /// Closes a MANUAL row by an operator's word, if that is allowed.
    close_by_hand(&self, id: TransactionId, hand: &ByHand<'_>) -> bool;
    /// The resolution steps of a row, oldest first.
    steps(&self, id: TransactionId) -> Vec<Step>;

    /// What is in the store at this moment, and what time it is there.
    horizon(&self) -> Horizon;
    /// Begins a reconciliation run. `false`: `once` was asked for, and the day has a run that did not fail.
    begin_run(&self, run: &str, day: &str, institution: &str, once: bool) -> bool;
    /// Stages lines of the host's list.
    stage(&self, run: &str, lines: &[HostLine]) -> ();
    /// Staged lines behind a place, by id and position.
    staged(&self, run: &str, after: (&str, u64), limit: u32) -> Vec<HostLine>;
    /// Mutations of a day at an institution behind an id, by id.
    ledger_lines(&self, day: &str, institution: &str, after: &str, limit: u32) -> Vec<LedgerLine>;
    /// Claims without a shipped outcome behind an id, by id.
    claims_without_outcome(&self, after: &str, limit: u32) -> Vec<Facts>;
    /// Records differences.
    add_differences(&self, run: &str, differences: &[Difference]) -> ();
    /// Ends a run, with its counts or with why it failed.
    end_run(&self, run: &str, tally: Tally, failed: Option<&str>) -> ();
    /// Runs, newest first.
    runs(&self, limit: u32) -> Vec<Run>;
    /// One run.
    run(&self, run: &str) -> Option<Run>;
    /// Differences of a run behind a place.
    differences(&self, run: &str, after: i64, limit: u32) -> Vec<Difference>;
}

impl Store {
    /// The kind's name, for logs.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Sql(store) => store.name(),
            Self::Memory(_) => "memory",
        }
    }

    /// Whether no other gateway uses it. Then the journal keeps the keys of what is not shipped yet, and a claim only has to be looked
    /// for in the store.
    #[must_use]
    pub fn is_private(&self) -> bool {
        match self {
            Self::Sql(store) => matches!(store, SqlStore::Sqlite { .. }),
            Self::Memory(store) => store.is_private(),
        }
    }

    /// Closes its connections.
    pub async fn close(&self) {
        if let Self::Sql(store) = self {
            sql::close(store).await;
        }
    }
}

#[cfg(test)]
mod tests;
