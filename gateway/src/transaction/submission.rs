//! What goes into a transaction and what comes out of it.

use std::sync::Arc;
use std::time::Duration;

use codec::{Record, Rule};

use crate::cache::Served;
use crate::failure::Failure;
use crate::ledger::{Answer, Resolution, TransactionId};
use crate::redis_store::Patience;
use crate::routes::Route;

/// Writes the answer to a transaction that ran, so that a repeat of its key can be given the same bytes.
pub type Render = Box<dyn Fn(TransactionId, Duration, &Served) -> Answer + Send + Sync>;

/// What a caller asks for, already parsed.
pub struct Submission {
    /// The route.
    pub route: Arc<Route>,
    /// The path that was called; part of an idempotency key's scope.
    pub path: String,
    /// Who asks.
    pub client: Arc<str>,
    /// The request's fields.
    pub record: Record,
    /// The caller's, or ours.
    pub correlation_id: String,
    /// How long it may still wait for Redis.
    pub patience: Patience,
    /// Present for mutations.
    pub idempotency_key: Option<String>,
    /// Writes the answer.
    pub render: Render,
}

/// A request that is turned away before there is a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub failure: Failure,
    /// The field that is at fault, and the rule that it breaks.
    pub field: Option<(Arc<str>, Rule)>,
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self { failure, field: None }
    }
}

impl From<codec::FieldError> for Refusal {
    fn from(error: codec::FieldError) -> Self {
        Self { failure: error.rule.into(), field: Some((error.field, error.rule)) }
    }
}

/// A transaction that ran, now or when its key was first used.
#[derive(Debug)]
pub struct Completed {
    /// Its id.
    pub id: TransactionId,
    /// What the caller gets.
    pub said: Said,
}

/// What a caller gets.
#[derive(Debug)]
pub enum Said {
    /// It ran, or what was kept stood in for it.
    Ran(Answer, Box<Served>),
    /// It ran before; this is what its caller got.
    Again(Answer),
    /// It ran before, and nobody knows the result yet.
    InDoubt,
    /// It ran before, and the doubt was resolved.
    Resolved(Resolution),
}
