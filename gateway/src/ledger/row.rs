//! What the ledger (원장) says about one transaction: the facts, known before anything is sent, and the closing, known
//! at its end. Both are what the journal stores; the store's columns follow from them.

use codec::MaskedAccount;
use serde::{Deserialize, Serialize};

use super::id::TransactionId;
use crate::routes::Kind;

/// Most bytes that one journal record may have. Every text below is bounded by configuration or by the HTTP edge.
pub(crate) const RECORD_MAX: usize = 2_048;

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
}

/// One row: facts and closing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "two parts, each documented")]
pub struct Row {
    pub facts: Facts,
    pub closing: Closing,
}

impl Row {
    /// How an UNKNOWN stands: a mutation's waits to be resolved, an inquiry's never matters again.
    #[must_use]
    pub fn resolution(&self) -> &'static str {
        match (self.closing.status, self.facts.kind) {
            (Status::Unknown, Kind::Mutation) => "PENDING",
            _ => "NONE",
        }
    }
}
