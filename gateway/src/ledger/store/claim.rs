//! A claim on an idempotency key: one execution a key, over crashes and gateways. What a repeat of the key gets is decided
//! here, from what the store says; pure.

use std::borrow::Cow;
use std::time::Duration;

use crate::ledger::id::{Instance, TransactionId};
use crate::ledger::row::{Answer, Facts, Resolution, Status};

/// Where a key is unique.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimKey {
    /// Whose key.
    pub client: String,
    /// The HTTP method.
    pub method: String,
    /// The path.
    pub path: String,
    /// SHA-256 of the key.
    pub key_hash: Vec<u8>,
}

/// A claim on a key.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The key.
    pub key: ClaimKey,
    /// The transaction that wants to run. Enough to make its row, should nobody else be left to do so.
    pub facts: Facts,
    /// The facts as a store keeps them, once they were written.
    facts_json: Option<String>,
    /// SHA-256 of the frame, without what the gateway fills in.
    pub fingerprint: Vec<u8>,
    /// How long the claim may be thought to be running: what is left of the deadline, and the settle time.
    pub lease: Duration,
}

impl Claim {
    /// A claim.
    #[must_use]
    pub fn new(key: ClaimKey, facts: Facts, fingerprint: Vec<u8>, lease: Duration) -> Self {
        Self { key, facts, facts_json: None, fingerprint, lease }
    }

    /// The same with the facts written out. By whoever claims: the one who commits claims does it for all.
    #[must_use]
    pub(in crate::ledger) fn written(self) -> Self {
        Self { facts_json: Some(self.facts_json().into_owned()), ..self }
    }

    /// The facts as a store keeps them.
    pub(super) fn facts_json(&self) -> Cow<'_, str> {
        let write = || Cow::Owned(serde_json::to_string(&self.facts).unwrap_or_default());
        self.facts_json.as_deref().map_or_else(write, Cow::Borrowed)
    }

    /// The claim that a transaction has whose journal keeps its key. How long it may run is not known any more.
    #[must_use]
    pub(in crate::ledger) fn kept(facts: Facts) -> Option<Self> {
        let (key, fingerprint) = facts.claim_key().map(|(key, fingerprint)| (key, fingerprint.to_vec()))?;
        Some(Self::new(key, facts, fingerprint, Duration::ZERO))
    }
}

/// Who claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The gateway's letter.
    pub instance: Instance,
    /// Which life of it.
    pub incarnation: i64,
    /// The journal that will have the intents and outcomes.
    pub journal: [u8; 16],
}

/// What became of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// The key is ours, and that is durable.
    Ours,
    /// The key was taken before.
    Taken(Box<Taken>),
    /// The key was taken before, and who had it has let it go meanwhile, or could not be found: it is not ours, and may be claimed again.
    LetGo,
}

/// How far the one who has a key has got, as the store knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It may still be running.
    Running,
    /// It should have ended long ago and nobody said how.
    Overdue,
    /// It ended; its row is in the ledger.
    Ended,
}

/// The claim that has a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// Its transaction.
    pub id: TransactionId,
    /// Its journal.
    pub journal: [u8; 16],
    /// Empty for claims of a time before answers were kept.
    pub fingerprint: Vec<u8>,
    /// How far it has got.
    pub progress: Progress,
    /// What its caller was told.
    pub answer: Option<Answer>,
    /// What the ledger says of it.
    pub ledger: Option<(Status, Resolution)>,
}

/// What the repeat of a key gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Repeat {
    /// The first one is under way.
    InProgress,
    /// The key belongs to another body.
    Reused,
    /// Exactly what the first one got.
    Same(TransactionId, Answer),
    /// Nobody knows the result yet.
    InDoubt(TransactionId),
    /// The doubt was resolved.
    Resolved(TransactionId, Resolution),
}

impl Taken {
    /// Whether this is that very claim, made before, and its end is not known.
    pub(super) fn is_by(&self, claim: &Claim) -> bool {
        self.id == claim.facts.id && self.progress != Progress::Ended
    }

    /// What a repeat with this body gets.
    #[must_use]
    pub fn repeat(self, fingerprint: &[u8]) -> Repeat {
        if !self.fingerprint.is_empty() && self.fingerprint != fingerprint {
            return Repeat::Reused;
        }
        match (self.progress, self.ledger, self.answer) {
            (Progress::Running, ..) => Repeat::InProgress,
            (Progress::Ended, Some((Status::Unknown, resolution)), _) => match resolution {
                Resolution::ConfirmedSuccess | Resolution::ConfirmedFailed | Resolution::Canceled => {
                    Repeat::Resolved(self.id, resolution)
                }
                _ => Repeat::InDoubt(self.id),
            },
            (Progress::Ended, Some(_), Some(answer)) => Repeat::Same(self.id, answer),
            // Without its answer only the ledger speaks.
            (Progress::Ended, Some((Status::Success, _)), None) => {
                Repeat::Resolved(self.id, Resolution::ConfirmedSuccess)
            }
            (Progress::Ended, Some((Status::Failed, _)), None) => {
                Repeat::Resolved(self.id, Resolution::ConfirmedFailed)
            }
            (Progress::Overdue, ..) | (Progress::Ended, None, _) => Repeat::InDoubt(self.id),
        }
    }
}
