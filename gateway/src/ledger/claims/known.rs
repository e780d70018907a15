//! The keys in our own hands: of what runs here, and of what has ended and is not in the store yet.

use std::collections::HashMap;

use super::Claims;
use crate::ledger::id::TransactionId;
use crate::ledger::journal::UsedKey;
use crate::ledger::row::Outcome;
use crate::ledger::store::ClaimKey;

/// Transactions of this process that the store does not know the end of.
#[derive(Debug, Default)]
pub(super) struct Known {
    by_key: HashMap<ClaimKey, Alive>,
    keys: HashMap<TransactionId, ClaimKey>,
}

#[derive(Debug, Clone)]
pub(super) struct Alive {
    pub(super) id: TransactionId,
    pub(super) fingerprint: Vec<u8>,
    pub(super) ended: bool,
    /// The store has the claim, or is about to.
    pub(super) stored: bool,
}

impl Known {
    pub(super) fn of(&mut self, id: TransactionId) -> Option<&mut Alive> {
        self.by_key.get_mut(self.keys.get(&id)?).filter(|alive| alive.id == id)
    }

    pub(super) fn forget(&mut self, id: TransactionId) {
        if let Some(key) = self.keys.remove(&id)
            && self.by_key.get(&key).is_some_and(|alive| alive.id == id)
        {
            self.by_key.remove(&key);
        }
    }
}

impl Claims {
    /// Notes a claim that is about to be made, unless the key is in our hands already.
    pub(super) fn note(&self, key: &ClaimKey, alive: Alive) -> Option<Alive> {
        let mut known = self.known();
        if let Some(there) = known.by_key.get(key) {
            return Some(there.clone());
        }
        known.keys.insert(alive.id, key.clone());
        known.by_key.insert(key.clone(), alive);
        None
    }

    /// Its outcome is written; the store hears of it when it is shipped.
    pub(in crate::ledger) fn ended(&self, id: TransactionId) {
        if let Some(alive) = self.known().of(id) {
            alive.ended = true;
        }
    }

    /// Keys of an earlier life, of transactions whose end its journal has and the store has not.
    pub(in crate::ledger) fn know(&self, keys: impl IntoIterator<Item = (TransactionId, UsedKey)>) {
        let mut known = self.known();
        for (id, (key, fingerprint)) in keys {
            known.keys.insert(id, key.clone());
            known.by_key.insert(key, Alive { id, fingerprint, ended: true, stored: false });
        }
    }

    /// The store knows how these ended.
    pub(in crate::ledger) fn shipped(&self, outcomes: &[Outcome]) {
        let mut known = self.known();
        for outcome in outcomes.iter().filter(|outcome| outcome.row.facts.idempotency_key_hash.is_some()) {
            known.forget(outcome.row.facts.id);
        }
    }

    /// Says whether the store has a claim, and returns what was said before; of one that nobody here knows, that it has.
    pub(super) fn is_stored(&self, id: TransactionId, stored: bool) -> bool {
        self.known().of(id).is_none_or(|alive| std::mem::replace(&mut alive.stored, stored))
    }

    pub(in crate::ledger) fn is_known(&self, id: TransactionId) -> bool {
        self.known().keys.contains_key(&id)
    }
}
