//! Every translation of a lower module's error into a [`Failure`].

use super::Failure;
use crate::breaker::Rejected;
use crate::budget::Denied;
use crate::ledger::{JournalError, NoIds, StoreError};
use crate::pool::{ExchangeError, LendError};

impl From<Rejected> for Failure {
    fn from(_: Rejected) -> Self {
        Self::CircuitOpen
    }
}

impl From<Denied> for Failure {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::Exhausted(_) => Self::BudgetExhausted,
            Denied::Unavailable => Self::BudgetUnavailable,
        }
    }
}

impl From<LendError> for Failure {
    fn from(error: LendError) -> Self {
        match error {
            LendError::Exhausted => Self::PoolExhausted,
            LendError::NoLocalSocket => Self::NoLocalSocket,
            LendError::DeadlineBeforeConnecting => Self::DeadlineBeforeSend,
            LendError::Unreachable => Self::HostUnreachable,
        }
    }
}

impl Failure {
    /// Translates why an intent is not durable.
    #[must_use]
    pub const fn of_intent(error: &JournalError) -> Self {
        match error {
            JournalError::NotInTime => Self::DeadlineBeforeSend,
            _ => Self::IntentNotDurable,
        }
    }

    /// Translates how an exchange broke. Decided by bytes handed to the kernel, never by the kind of an error.
    #[must_use]
    pub const fn of_exchange(error: ExchangeError, reused: bool) -> Self {
        match (error, reused) {
            (ExchangeError::CannotFrame, _) => Self::InternalBeforeSend,
            (ExchangeError::Withheld, _) => Self::DeadlineBeforeSend,
            (ExchangeError::Write { written: 0 }, false) => Self::WroteNothingFresh,
            (ExchangeError::Write { written: 0 }, true) => Self::WroteNothingReused,
            (ExchangeError::Write { .. }, _) => Self::WriteBroken,
            (ExchangeError::ReadTimeout, _) => Self::ReadTimeout,
            (ExchangeError::Ended { partial: false }, true) => Self::StaleConnection,
            (ExchangeError::Ended { .. }, _) => Self::ConnectionLost,
            (ExchangeError::BadFrame, _) => Self::BadFrame,
        }
    }
}

/// While accepting, before there is a row.
impl From<JournalError> for Failure {
    fn from(_: JournalError) -> Self {
        Self::NoLedgerRoom
    }
}

impl From<NoIds> for Failure {
    fn from(_: NoIds) -> Self {
        Self::NoLedgerRoom
    }
}

impl From<StoreError> for Failure {
    fn from(_: StoreError) -> Self {
        Self::LedgerUnreadable
    }
}

impl From<codec::Rule> for Failure {
    fn from(rule: codec::Rule) -> Self {
        match rule {
            codec::Rule::Unmappable => Self::UnmappableCharacter,
            codec::Rule::TooLong => Self::FieldTooLong,
            _ => Self::InvalidRequest,
        }
    }
}
