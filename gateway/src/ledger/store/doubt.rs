//! The resolver's words with the store: a row in doubt that it holds, and how a step ended.

use std::time::Duration;

use crate::ledger::id::TransactionId;
use crate::ledger::row::{Resolution, ResolveAs, Row};

/// How long a MANUAL row waits for its next try: the cap of the back-off.
pub(super) const MANUAL_WAIT: Duration = Duration::from_mins(10);

/// A message that was never answered is not on its way any more after this.
pub(super) const LONG_AGO: Duration = Duration::from_mins(10);

/// Which rows to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted<'a> {
    /// Those of these routes whose next try is due.
    Due(&'a [String]),
    /// This one, due or not.
    One(TransactionId),
}

/// A row in doubt that this resolver holds until the lease is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doubt {
    /// The row.
    pub row: Row,
    /// PENDING or MANUAL.
    pub resolution: Resolution,
    /// How to resolve it, when that is not the route's word.
    pub resolve_as: Option<ResolveAs>,
    /// Whether a net-cancel may have left.
    pub cancel_intended: bool,
    /// How long ago the host first said that it had not processed it.
    pub not_processed_since: Option<Duration>,
    /// Steps that did not decide it.
    pub tries: u32,
}

/// What a step decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// By a net-cancel's answer: CANCELED, CONFIRMED_FAILED.
    ByCancel(Resolution),
    /// By a status inquiry, of a row that no net-cancel was sent for.
    ByInquiry(Resolution),
    /// A person must look; asking goes on all the same.
    Manual,
    /// Nothing yet: ask again after this time.
    Again(Duration),
    /// Nothing yet: the next question follows at once, and the row stays held.
    GoOn,
    /// Nothing was asked; look again after this time.
    PutOff(Duration),
    /// Nothing can be asked: a person must look.
    Hand,
}

/// One step and its result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// `net-cancel`, `status` or `by-hand`.
    pub asked: String,
    /// What came of it.
    pub answered: String,
    /// Microseconds since 1970, by the store's clock.
    pub at: i64,
}

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepEnd<'a> {
    /// What was asked.
    pub asked: &'static str,
    /// What came of it.
    pub answered: &'a str,
    /// What it decided.
    pub verdict: Verdict,
    /// Whether the host said that it had not processed the original.
    pub not_processed: bool,
}

/// How an operator closes a row by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByHand<'a> {
    /// CONFIRMED_SUCCESS, CONFIRMED_FAILED or CANCELED.
    pub state: Resolution,
    /// Who.
    pub by: &'a str,
    /// Why.
    pub note: &'a str,
}
