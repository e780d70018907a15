//! The words of a reconciliation (대사) with the store.

use crate::ledger::id::TransactionId;
use crate::ledger::row::{Resolution, Status};

/// One line of the host's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostLine {
    /// The transaction id as the host has it.
    pub id: String,
    /// Its place in the list.
    pub position: u64,
    /// In won.
    pub amount: i64,
    /// The host's status flag.
    pub flag: String,
}

/// A mutation of the day in our ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerLine {
    /// Its id.
    pub id: TransactionId,
    /// Its outcome.
    pub status: Status,
    /// How a doubt was resolved.
    pub resolution: Resolution,
    /// In won.
    pub amount: Option<i64>,
    /// Its place in the order of recording.
    pub seq: i64,
    /// When a doubt was resolved, microseconds since 1970 by the store's clock.
    pub resolved_at: Option<i64>,
}

/// What was in the store at a moment, and when that was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Horizon {
    /// The last row's place in the order of recording.
    pub seq: i64,
    /// The store's clock, microseconds since 1970.
    pub now: i64,
}

/// What is wrong with a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Both have it and say different things.
    Mismatch,
    /// We say that it happened, the host does not have it.
    LedgerOnly,
    /// The host has it and we do not.
    CoreOnly,
    /// The host has it more than once.
    Duplicate,
    /// It can't be told yet.
    InDoubt,
}

impl Class {
    /// Every one.
    pub const ALL: [Self; 5] = [Self::Mismatch, Self::LedgerOnly, Self::CoreOnly, Self::Duplicate, Self::InDoubt];

    /// The word in the store and in answers.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Mismatch => "MISMATCH",
            Self::LedgerOnly => "LEDGER_ONLY",
            Self::CoreOnly => "CORE_ONLY",
            Self::Duplicate => "DUPLICATE",
            Self::InDoubt => "IN_DOUBT",
        }
    }
}

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Its place in the run, from 1.
    pub seq: i64,
    /// What is wrong.
    pub class: Class,
    /// The transaction.
    pub id: String,
    /// What the ledger says: the resolution of an UNKNOWN, else the status.
    pub ledger_status: Option<String>,
    /// In won.
    pub ledger_amount: Option<i64>,
    /// What the host says.
    pub core_flag: Option<String>,
    /// In won.
    pub core_amount: Option<i64>,
}

/// Counts of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Lines of the host's list.
    pub host_lines: u64,
    /// Transactions on which both agree.
    pub matched: u64,
    /// Differences by class, in the order of [`Class::ALL`].
    pub by_class: [u64; 5],
}

impl Tally {
    /// Counts one.
    pub fn add(&mut self, class: Class) {
        for (count, known) in self.by_class.iter_mut().zip(Class::ALL) {
            *count += u64::from(known == class);
        }
    }

    /// All differences.
    #[must_use]
    pub fn differences(&self) -> u64 {
        self.by_class.iter().sum()
    }
}

/// One run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Its number.
    pub id: String,
    /// YYYYMMDD.
    pub business_day: String,
    /// Whose mutations.
    pub institution: String,
    /// RUNNING, DONE or FAILED.
    pub state: String,
    /// Microseconds since 1970, by the store's clock.
    pub started_at: i64,
    /// The same.
    pub ended_at: Option<i64>,
    /// Why it failed.
    pub detail: Option<String>,
    /// What it found.
    pub tally: Tally,
}
