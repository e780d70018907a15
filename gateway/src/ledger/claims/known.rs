//! The keys in our own hands: of what runs here, and of what has ended and is not in the store yet.

use std::collections::HashMap;
use std::sync::Arc;

use super::Claims;
use crate::ledger::id::TransactionId;
use crate::ledger::journal::UsedKey;
use crate::ledger::row::Outcome;
use crate::ledger::store::ClaimKey;

/// Transactions of this process that the store does not know the end of.
#[derive(Debug, Default)]
pub(super) struct Known {
    by_key: HashMap<Arc<ClaimKey>, Alive>,
    keys: HashMap<TransactionId, Arc<ClaimKey>>,
}

#[derive(Debug, Clone)]
pub(super) struct Alive {
    pub(super) id: TransactionId,
    pub(super) fingerprint: Vec<u8>,
    pub(super) ended: bool,
    pub(super) stored: Stored,
}

/// Whether the store has a claim that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored {
    No,
    /// It was sent there, and nobody has heard what became of it.
    Perhaps,
    Yes,
}

impl Known {
    fn of(&mut self, id: TransactionId) -> Option<&mut Alive> {
        self.by_key.get_mut(self.keys.get(&id)?).filter(|alive| alive.id == id)
    }

    pub(super) fn forget(&mut self, id: TransactionId) {
        if let Some(key) = self.keys.remove(&id)
            && self.by_key.get(&key).is_some_and(|alive| alive.id == id)
        {
            self.by_key.remove(&key);
        }
    }

    fn insert(&mut self, key: ClaimKey, alive: Alive) {
        let key = Arc::new(key);
        self.keys.insert(alive.id, Arc::clone(&key));
        self.by_key.insert(key, alive);
    }
}

impl Claims {
    /// Notes a claim that is about to be made, unless the key is in our hands already.
    pub(super) fn note(&self, key: &ClaimKey, alive: Alive) -> Option<Alive> {
        let mut known = self.known();
        if let Some(there) = known.by_key.get(key) {
            return Some(there.clone());
        }
        known.insert(key.clone(), alive);
        None
    }

    /// Its outcome is written; the store hears of it when it is shipped.
    pub(in crate::ledger) fn ended(&self, id: TransactionId) {
        if let Some(alive) = self.known().of(id) {
            alive.ended = true;
        }
    }

    /// Keys of an earlier life, of transactions whose end its journal has and the store has not. It may have written them down.
    pub(in crate::ledger) fn know(&self, keys: impl IntoIterator<Item = (TransactionId, UsedKey)>) {
        let mut known = self.known();
        for (id, (key, fingerprint)) in keys {
            known.insert(key, Alive { id, fingerprint, ended: true, stored: Stored::Perhaps });
        }
    }

    /// The store knows how these ended.
    pub(in crate::ledger) fn shipped(&self, outcomes: &[Outcome]) {
        let mut known = self.known();
        for outcome in outcomes.iter().filter(|outcome| outcome.row.facts.idempotency_key_hash.is_some()) {
            known.forget(outcome.row.facts.id);
        }
    }

    /// Lets a key go that the store has nothing of. `false`: it may have.
    pub(super) fn let_go(&self, id: TransactionId) -> bool {
        let mut known = self.known();
        let here_alone = known.of(id).is_some_and(|alive| alive.stored == Stored::No);
        if here_alone {
            known.forget(id);
        }
        here_alone
    }

    /// Whether a claim that runs is to be written down. From now on the store may have it.
    pub(super) fn is_to_be_stored(&self, id: TransactionId) -> bool {
        self.known().of(id).is_some_and(|alive| {
            let wanted = alive.stored != Stored::Yes;
            if wanted {
                alive.stored = Stored::Perhaps;
            }
            wanted
        })
    }

    /// It was written down.
    pub(super) fn is_stored(&self, id: TransactionId) {
        if let Some(alive) = self.known().of(id) {
            alive.stored = Stored::Yes;
        }
    }

    pub(in crate::ledger) fn is_known(&self, id: TransactionId) -> bool {
        self.known().keys.contains_key(&id)
    }
}
