//! The store in memory: what the simulation uses, since a database runs threads of its own and can't live under paused
//! time. It keeps the same contract as the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Claim, Claimed, Filter, Shipment, StoreError, StoredRow};
use crate::ledger::id::{BLOCKS, Instance, TransactionId};
use crate::ledger::journal::Position;
use crate::ledger::row::{Row, Status};

/// A store that is gone with the process.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore {
    tables: Arc<Mutex<Tables>>,
}

#[derive(Debug, Default)]
struct Tables {
    rows: Vec<StoredRow>,
    parked: Vec<Row>,
    checkpoints: HashMap<[u8; 16], Position>,
    blocks: HashMap<char, u64>,
    claims: HashMap<(String, String, String, Vec<u8>), TransactionId>,
}

#[expect(clippy::unnecessary_wraps, reason = "the same signatures as the stores that can fail")]
impl MemoryStore {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take_block(&self, instance: Instance) -> Result<u64, StoreError> {
        let mut tables = self.tables();
        let next = tables.blocks.entry(instance.letter()).or_insert_with(|| fastrand::u64(..BLOCKS));
        let block = *next;
        *next = (block + 1) % BLOCKS;
        Ok(block)
    }

    pub(super) fn checkpoints(&self) -> Result<HashMap<[u8; 16], Position>, StoreError> {
        Ok(self.tables().checkpoints.clone())
    }

    pub(super) fn ship(&self, rows: &[Row], journal: [u8; 16], upto: Position) -> Result<Shipment, StoreError> {
        let mut tables = self.tables();
        let mut shipment = Shipment::default();
        for row in rows {
            match tables.rows.iter().find(|stored| stored.row.facts.id == row.facts.id) {
                Some(stored) if stored.row == *row => {}
                Some(_) => {
                    tables.parked.push(row.clone());
                    shipment.parked += 1;
                }
                None => {
                    let seq = i64::try_from(tables.rows.len()).unwrap_or(i64::MAX) + 1;
                    let resolution = row.resolution().to_owned();
                    tables.rows.push(StoredRow { seq, row: row.clone(), resolution });
                    shipment.inserted += 1;
                }
            }
        }
        tables.checkpoints.insert(journal, upto);
        Ok(shipment)
    }

    pub(super) fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        let key = (claim.client.clone(), claim.method.clone(), claim.path.clone(), claim.key_hash.clone());
        let mut tables = self.tables();
        if let Some(before) = tables.claims.get(&key) {
            return Ok(Claimed::Before(*before));
        }
        tables.claims.insert(key, claim.transaction_id);
        Ok(Claimed::Ours)
    }

    pub(super) fn row(&self, id: TransactionId) -> Result<Option<StoredRow>, StoreError> {
        Ok(self.tables().rows.iter().find(|stored| stored.row.facts.id == id).cloned())
    }

    pub(super) fn page(&self, filter: &Filter, before: Option<i64>, limit: u32) -> Result<Vec<StoredRow>, StoreError> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let tables = self.tables();
        let earlier = |stored: &&StoredRow| before.is_none_or(|before| stored.seq < before);
        let found = tables.rows.iter().rev().filter(earlier).filter(|stored| filter.takes(stored));
        Ok(found.take(limit).cloned().collect())
    }

    pub(super) fn summary(&self, filter: &Filter) -> Result<[u64; 3], StoreError> {
        let tables = self.tables();
        let count = |status: Status| {
            let rows = tables.rows.iter().filter(|stored| filter.takes(stored));
            rows.filter(|stored| stored.row.closing.status == status).count()
        };
        Ok(Status::ALL.map(|status| u64::try_from(count(status)).unwrap_or(u64::MAX)))
    }
}

impl Filter {
    fn takes(&self, stored: &StoredRow) -> bool {
        let Row { facts, closing } = &stored.row;
        let is = |wanted: &Option<String>, actual: &String| wanted.as_ref().is_none_or(|wanted| wanted == actual);
        let names = |wanted: &Vec<u8>| {
            [&facts.account_hash, &facts.counter_account_hash].into_iter().any(|hash| hash.as_ref() == Some(wanted))
        };
        self.status.is_none_or(|status| status == closing.status)
            && is(&self.tx_code, &facts.tx_code)
            && is(&self.client, &facts.client)
            && is(&self.institution, &facts.institution)
            && is(&self.correlation_id, &facts.correlation_id)
            && self.from.is_none_or(|from| facts.requested_at >= from)
            && self.to.is_none_or(|to| facts.requested_at < to)
            && self.account_hash.as_ref().is_none_or(names)
            && (!self.unresolved || matches!(stored.resolution.as_str(), "PENDING" | "MANUAL"))
    }
}
