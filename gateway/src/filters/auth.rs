//! Who calls: API keys and roles. Keys are known by their SHA-256 only, found by that hash, then compared once in
//! constant time; a key is never stored, logged or repeated.

use std::sync::Arc;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use foldhash::{HashMap, HashMapExt as _};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::TurnedAway;
use crate::bucket::{Bucket, Quota};
use crate::failure::Failure;

/// What a key may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Transactions, and its own rows of the ledger.
    Client,
    /// The whole ledger.
    Auditor,
    /// All that an auditor may, and the circuits, pools and metrics.
    Operator,
}

impl Role {
    /// The word in configurations.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Auditor => "auditor",
            Self::Operator => "operator",
        }
    }

    #[must_use]
    pub fn includes(self, needed: Self) -> bool {
        self == needed || (self == Self::Operator && needed == Self::Auditor)
    }
}

/// One key, as configured.
#[derive(Debug, Clone)]
pub struct Client {
    /// Whose it is.
    pub name: Arc<str>,
    /// What it may do.
    pub role: Role,
    /// SHA-256 of the key.
    pub key_hash: [u8; 32],
}

/// Who calls. Two keys with one name are one caller with one rate limit, so that a key can be changed under traffic.
#[derive(Debug)]
pub struct Caller {
    /// The name in the ledger.
    pub name: Arc<str>,
    /// What it may do.
    pub role: Role,
    pub(super) bucket: Arc<Bucket>,
}

/// All keys.
#[derive(Debug)]
pub struct Keys {
    by_hash: HashMap<[u8; 32], Arc<Caller>>,
}

impl Keys {
    /// Keys with one rate limit for each name.
    #[must_use]
    pub fn new(clients: &[Client], quota: Quota) -> Self {
        let mut buckets: HashMap<Arc<str>, Arc<Bucket>> = HashMap::new();
        let mut by_hash = HashMap::new();
        for Client { name, role, key_hash } in clients {
            let bucket = buckets.entry(Arc::clone(name)).or_insert_with(|| Arc::new(Bucket::new(quota)));
            let caller = Caller { name: Arc::clone(name), role: *role, bucket: Arc::clone(bucket) };
            by_hash.insert(*key_hash, Arc::new(caller));
        }
        Self { by_hash }
    }

    /// Somebody who has this role.
    pub(crate) fn anybody(&self, role: Role) -> Option<Arc<Caller>> {
        self.by_hash.values().find(|caller| caller.role == role).cloned()
    }

    fn find(&self, key: &[u8]) -> Option<&Arc<Caller>> {
        let hash: [u8; 32] = Sha256::digest(key).into();
        let (known, caller) = self.by_hash.get_key_value(&hash)?;
        bool::from(known.ct_eq(&hash)).then_some(caller)
    }
}

/// The filter: everything under `/api/`, and `/metrics`, needs a known key, on any path, before anything else is said.
///
/// # Errors
/// [`Failure::Unauthenticated`].
pub fn authenticate(keys: &Keys, head: &Parts) -> Result<Option<Arc<Caller>>, TurnedAway> {
    let path = head.uri.path();
    if !path.starts_with("/api/") && path != "/api" && path != "/metrics" {
        return Ok(None);
    }
    let caller = key_of(&head.headers).and_then(|key| keys.find(key)).ok_or(Failure::Unauthenticated)?;
    Ok(Some(Arc::clone(caller)))
}

/// The filter: what everybody with a key may not see, by path. Stands before the routes are looked at, so that 403 is said
/// before 404 and 405. Transaction routes are data; their role is looked at in `routing`.
///
/// # Errors
/// [`Failure::Forbidden`].
pub fn authorize(head: &Parts, caller: Option<&Caller>) -> Result<(), TurnedAway> {
    let path = head.uri.path();
    let operators = ["/api/circuit/", "/api/pool/", "/api/limits/", "/api/gateway/resolve/"];
    if matches!(path, "/metrics" | "/api/reconciliation/run") || operators.iter().any(|own| path.starts_with(own)) {
        require(Role::Operator, caller)
    } else if matches!(path, "/api/ledger/search" | "/api/ledger/summary") || path.starts_with("/api/reconciliation/") {
        require(Role::Auditor, caller)
    } else {
        Ok(())
    }
}

/// The caller has this role.
pub(super) fn require(role: Role, caller: Option<&Caller>) -> Result<(), TurnedAway> {
    let caller = caller.ok_or(Failure::Unauthenticated)?;
    if caller.role.includes(role) { Ok(()) } else { Err(Failure::Forbidden.into()) }
}

fn key_of(headers: &HeaderMap) -> Option<&[u8]> {
    if let Some(key) = headers.get("x-api-key").filter(|key| !key.is_empty()) {
        return Some(key.as_bytes());
    }
    let (scheme, key) = headers.get(AUTHORIZATION)?.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(key)
}
