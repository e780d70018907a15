//! The key that a transaction has, as the journal of a store of our own keeps it.

use serde::{Deserialize, Serialize};

use super::row::Facts;
use super::store::ClaimKey;

/// The rest of the claim on an idempotency key, when the journal keeps it: see [`Facts::claim_key`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keyed {
    /// The HTTP method.
    pub method: String,
    /// The path.
    pub path: String,
    /// SHA-256 of the frame, without what the gateway fills in.
    pub fingerprint: Vec<u8>,
}

impl Facts {
    /// The key that this transaction has, and for which body, if its journal keeps that.
    #[must_use]
    pub fn claim_key(&self) -> Option<(ClaimKey, &[u8])> {
        let (keyed, key_hash) = (self.keyed.as_deref()?, self.idempotency_key_hash.clone()?);
        let key =
            ClaimKey { client: self.client.clone(), method: keyed.method.clone(), path: keyed.path.clone(), key_hash };
        Some((key, &keyed.fingerprint))
    }
}
