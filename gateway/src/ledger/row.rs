//! What the ledger (원장) says about one transaction: the facts, known before anything is sent, and the closing, known
//! at its end. Both are what the journal stores; the store's columns follow from them. How an UNKNOWN was resolved later
//! is the store's alone.

use std::sync::Arc;

use codec::MaskedAccount;
use serde::{Deserialize, Serialize};

use super::id::TransactionId;
pub(crate) use super::keyed::Keyed;
use crate::routes::Kind;

/// Most bytes that one journal record may have. Every text below is bounded by configuration or by the HTTP edge.
pub(crate) const RECORD_MAX: usize = 4_096;
/// The `detail` of a transaction whose id the host had seen before: nothing may be asked about it, least of all a
/// net-cancel, which would undo the other one.
pub const DUPLICATE_ID: &str = "duplicate-id";

/// How a transaction ended. Written once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Status {
    /// The host processed it.
    Success,
    /// The host did not and will not process it; a [`Proof`] says why that is known.
    Failed,
    /// It is not known what the host did.
    Unknown,
}

impl Status {
    /// All three.
    pub const ALL: [Self; 3] = [Self::Success, Self::Failed, Self::Unknown];

    /// The word in the ledger and in answers.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Success => "SUCCESS",
            Self::Failed => "FAILED",
            Self::Unknown => "UNKNOWN",
        }
    }

    /// The status of this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.name() == name)
    }
}

/// Why FAILED is certain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Proof {
    /// No socket was touched.
    P0,
    /// The connection was never usable.
    P1,
    /// Not a byte of the request entered the kernel, and the socket is closed.
    P2,
    /// The host said so, in a reply that is certainly ours.
    H,
}

impl Proof {
    /// The word in the ledger.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::P0 => "P0",
            Self::P1 => "P1",
            Self::P2 => "P2",
            Self::H => "H",
        }
    }

    /// The proof of this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        [Self::P0, Self::P1, Self::P2, Self::H].into_iter().find(|proof| proof.name() == name)
    }
}

/// What is known before anything is sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the columns of the ledger; docs/OPERATIONS.md explains each")]
pub struct Facts {
    pub id: TransactionId,
    pub tx_code: String,
    pub route: String,
    pub kind: Kind,
    pub institution: String,
    pub client: String,
    pub account: Option<MaskedAccount>,
    /// Keyed hash, so that an auditor finds an account that he already knows.
    pub account_hash: Option<Vec<u8>>,
    pub counter_account: Option<MaskedAccount>,
    pub counter_account_hash: Option<Vec<u8>>,
    /// In won.
    pub amount: Option<i64>,
    /// Microseconds since 1970 in UTC.
    pub requested_at: i64,
    pub correlation_id: String,
    pub idempotency_key_hash: Option<Vec<u8>>,
    pub layout_version: u32,
    /// Beside the facts in the records of a journal that keeps its store's keys; no part of the row.
    #[serde(skip)]
    pub keyed: Option<Arc<Keyed>>,
}

/// Where an answer came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum ServedFrom {
    /// The institution was asked.
    #[default]
    Host,
    /// A reply that was kept, and is fresh.
    Cache,
    /// A reply that was kept, and is not fresh any more: the institution could not be asked.
    Stale,
}

impl ServedFrom {
    /// The word in the ledger.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Cache => "cache",
            Self::Stale => "stale",
        }
    }

    /// The source of this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        [Self::Host, Self::Cache, Self::Stale].into_iter().find(|from| from.name() == name)
    }
}

/// One attempt on the wire, or on the way to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// `success`, or the failure's name.
    pub outcome: String,
    /// How long it took, in microseconds.
    pub elapsed_us: i64,
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the columns of the ledger; docs/OPERATIONS.md explains each")]
pub struct Closing {
    pub status: Status,
    pub proof: Option<Proof>,
    /// The host's code, when it gave one.
    pub response_code: Option<String>,
    /// The failure's name; `recovered` when recovery closed it.
    pub detail: Option<String>,
    pub attempts: Vec<Attempt>,
    /// Microseconds since 1970 in UTC.
    pub responded_at: i64,
    pub elapsed_us: i64,
    /// Not in the record of a row that the host answered, so that journals of before can be read.
    #[serde(skip)]
    pub served_from: ServedFrom,
}

/// One row: facts and closing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "two parts, each documented")]
pub struct Row {
    pub facts: Facts,
    pub closing: Closing,
}

/// How an UNKNOWN stands. The ledger's `status` stays UNKNOWN; this says how it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Resolution {
    /// Nothing to resolve: it is certain, or an inquiry, whose result nobody needs any more.
    None,
    /// Waits for the resolver.
    Pending,
    /// The money moved and stands.
    ConfirmedSuccess,
    /// The host did not and will not process it.
    ConfirmedFailed,
    /// It is undone.
    Canceled,
    /// Needs a person.
    Manual,
    /// Its gateway is gone, and what it did is known to nobody. Never stored; a claim says so.
    Abandoned,
}

impl Resolution {
    /// Every one that a row can have.
    pub const STORED: [Self; 6] =
        [Self::None, Self::Pending, Self::ConfirmedSuccess, Self::ConfirmedFailed, Self::Canceled, Self::Manual];

    /// The word in the ledger and in answers.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "NONE",
            Self::Pending => "PENDING",
            Self::ConfirmedSuccess => "CONFIRMED_SUCCESS",
            Self::ConfirmedFailed => "CONFIRMED_FAILED",
            Self::Canceled => "CANCELED",
            Self::Manual => "MANUAL",
            Self::Abandoned => "ABANDONED",
        }
    }

    /// The stored resolution of this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::STORED.into_iter().find(|resolution| resolution.name() == name)
    }

    /// Whether somebody still has to find out.
    #[must_use]
    pub fn is_open(self) -> bool {
        matches!(self, Self::Pending | Self::Manual | Self::Abandoned)
    }
}

/// How a row is to be resolved, when that is not its route's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResolveAs {
    /// Ask what the host did: its journal was retired, and what the caller was told is not known.
    Confirm,
    /// By a person alone: nothing may be asked of the host.
    Hand,
}

impl ResolveAs {
    /// The word in the store.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Confirm => "confirm",
            Self::Hand => "hand",
        }
    }

    /// The way of this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        [Self::Confirm, Self::Hand].into_iter().find(|way| way.name() == name)
    }
}

/// What a caller was told, kept for repeats with the same key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The HTTP status.
    pub http: u16,
    /// The body, byte for byte.
    pub body: Vec<u8>,
}

/// A finished transaction, as the journal carries it to the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The row.
    pub row: Row,
    /// A mutation's answer, unless nobody knows the result.
    pub answer: Option<Answer>,
}

impl Outcome {
    /// An outcome without an answer to keep.
    #[must_use]
    pub fn of(row: Row) -> Self {
        Self { row, answer: None }
    }
}

impl Row {
    /// The row of a transaction whose end nobody saw.
    #[must_use]
    pub fn in_doubt(facts: Facts, detail: &str, now: i64) -> Self {
        Self::ended(facts, Status::Unknown, None, detail, now)
    }

    /// The row of a transaction that is known to have ended before anything was sent.
    #[must_use]
    pub fn never_sent(facts: Facts, detail: &str, now: i64) -> Self {
        Self::ended(facts, Status::Failed, Some(Proof::P0), detail, now)
    }

    fn ended(facts: Facts, status: Status, proof: Option<Proof>, detail: &str, now: i64) -> Self {
        let closing = Closing {
            status,
            proof,
            response_code: None,
            detail: Some(detail.to_owned()),
            attempts: Vec::new(),
            responded_at: now,
            elapsed_us: now.saturating_sub(facts.requested_at),
            served_from: ServedFrom::Host,
        };
        Self { facts, closing }
    }

    /// Whether both say the same of a transaction. Only a journal says which key it has.
    #[must_use]
    pub fn says_what(&self, other: &Self) -> bool {
        let bare = |row: &Self| Facts { keyed: None, ..row.facts.clone() };
        self.closing == other.closing && bare(self) == bare(other)
    }

    /// How an UNKNOWN starts out: a mutation's waits to be resolved, an inquiry's never matters again.
    #[must_use]
    pub fn doubt(&self) -> (Resolution, Option<ResolveAs>) {
        match (self.closing.status, self.facts.kind) {
            (Status::Unknown, Kind::Mutation) if self.closing.detail.as_deref() == Some(DUPLICATE_ID) => {
                (Resolution::Manual, Some(ResolveAs::Hand))
            }
            (Status::Unknown, Kind::Mutation) => (Resolution::Pending, None),
            _ => (Resolution::None, None),
        }
    }

    /// Whether the key may be used again: it is proven that nothing was sent.
    #[must_use]
    pub fn is_provably_unsent(&self) -> bool {
        matches!(self.closing.proof, Some(Proof::P0 | Proof::P1 | Proof::P2))
    }
}
