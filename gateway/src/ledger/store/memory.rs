//! The store in memory: what the simulation uses, since a database runs threads of its own and can't live under paused
//! time. It keeps the same contract as the others.

mod claims;
mod doubts;
mod runs;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{
    ClaimKey, Difference, Filter, HostLine, InstanceLease, JournalMark, Run, Shipment, Shipper, Step, StoreError,
    StoredRow,
};
use crate::clock::Clock;
use crate::ledger::id::{BLOCKS, Instance, TransactionId};
use crate::ledger::row::{Outcome, Resolution, ResolveAs, Row, Status};
use crate::ledger::store::Resolved;
use claims::ClaimRow;

/// What stands between a gateway and the store: a network and a server that may be slow, down, or cut off at the worst
/// moment.
pub trait Gate: std::fmt::Debug + Send + Sync + 'static {
    /// What happens to the next statement.
    fn pass(&self) -> Passage;
}

/// What happens to a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passage {
    /// How long it takes to get there.
    pub wait: Duration,
    /// What becomes of it there.
    pub delivery: Delivery,
}

/// What becomes of a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// It is carried out and answered.
    Whole,
    /// It is not carried out.
    Refused,
    /// It is carried out, and nobody hears of it.
    AnswerLost,
}

/// A store that is gone with the process.
#[derive(Debug, Clone)]
pub struct MemoryStore {
    clock: Clock,
    gate: Option<Arc<dyn Gate>>,
    private: bool,
    tables: Arc<Mutex<Tables>>,
}

#[derive(Debug, Default)]
struct Tables {
    rows: Vec<LedgerRow>,
    by_id: BTreeMap<TransactionId, usize>,
    parked: Vec<Row>,
    marks: HashMap<[u8; 16], JournalMark>,
    blocks: HashSet<(char, u64)>,
    leases: HashMap<char, InstanceLease>,
    leases_until: HashMap<char, i64>,
    claims: BTreeMap<ClaimKey, ClaimRow>,
    steps: Vec<(TransactionId, Step)>,
    runs: Vec<Run>,
    lines: BTreeMap<(String, String, u64), HostLine>,
    differences: HashMap<String, Vec<Difference>>,
}

/// A row and what the resolver keeps beside it.
#[derive(Debug, Clone)]
struct LedgerRow {
    stored: StoredRow,
    resolve_as: Option<ResolveAs>,
    /// Token and end of the lease.
    held: Option<(String, i64)>,
    next_try_at: i64,
    tries: u32,
    cancel_intended: bool,
    /// Net-cancels that may have left.
    cancels: usize,
    not_processed_at: Option<i64>,
}

impl Tables {
    fn insert(&mut self, row: &Row, resolution: Resolution, resolve_as: Option<ResolveAs>, shipment: &mut Shipment) {
        if let Some(there) = self.by_id.get(&row.facts.id).and_then(|at| self.rows.get(*at)) {
            if !there.stored.row.says_what(row) {
                self.parked.push(row.clone());
                shipment.parked += 1;
            }
            return;
        }
        let seq = i64::try_from(self.rows.len()).unwrap_or(i64::MAX) + 1;
        self.by_id.insert(row.facts.id, self.rows.len());
        self.rows.push(LedgerRow {
            stored: StoredRow {
                seq,
                row: row.clone(),
                resolved: Resolved { resolve_as, ..Resolved::only(resolution) },
            },
            resolve_as,
            held: None,
            next_try_at: 0,
            tries: 0,
            cancel_intended: false,
            cancels: 0,
            not_processed_at: None,
        });
        shipment.inserted += 1;
    }

    fn find(&self, id: TransactionId) -> Option<&LedgerRow> {
        self.rows.get(*self.by_id.get(&id)?)
    }

    fn find_mut(&mut self, id: TransactionId) -> Option<&mut LedgerRow> {
        self.rows.get_mut(*self.by_id.get(&id)?)
    }
}

fn microseconds(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

#[expect(clippy::unnecessary_wraps, reason = "the same signatures as the stores that can fail")]
impl MemoryStore {
    /// An empty store whose own clock is this one.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self { clock, gate: None, private: false, tables: Arc::default() }
    }

    /// The same tables, for a gateway that shares them with no other.
    #[must_use]
    pub fn private(self) -> Self {
        Self { private: true, ..self }
    }

    pub(super) fn is_private(&self) -> bool {
        self.private
    }

    /// The same tables, as they are reached through a gate.
    #[must_use]
    pub fn behind(&self, gate: Arc<dyn Gate>) -> Self {
        Self { gate: Some(gate), ..self.clone() }
    }

    pub(super) async fn pass<T>(
        &self,
        statement: impl FnOnce(&Self) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let Some(gate) = &self.gate else { return statement(self) };
        let Passage { wait, delivery } = gate.pass();
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        match delivery {
            Delivery::Whole => statement(self),
            Delivery::Refused => Err(StoreError::Down),
            Delivery::AnswerLost => statement(self).and(Err(StoreError::Down)),
        }
    }

    /// Every row, in the order of recording.
    #[must_use]
    pub fn all_rows(&self) -> Vec<StoredRow> {
        self.tables().rows.iter().map(|row| row.stored.clone()).collect()
    }

    /// Rows that contradicted one that was there.
    #[must_use]
    pub fn parked(&self) -> Vec<Row> {
        self.tables().parked.clone()
    }

    fn now(&self) -> i64 {
        self.clock.wall().as_microsecond()
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take_block(&self, instance: Instance) -> Result<u64, StoreError> {
        let mut tables = self.tables();
        loop {
            let block = fastrand::u64(..BLOCKS);
            if tables.blocks.insert((instance.letter(), block)) {
                return Ok(block);
            }
        }
    }

    pub(super) fn journal_marks(&self) -> Result<HashMap<[u8; 16], JournalMark>, StoreError> {
        Ok(self.tables().marks.clone())
    }

    pub(super) fn lease_of(&self, instance: Instance) -> Result<Option<InstanceLease>, StoreError> {
        let (now, letter) = (self.now(), instance.letter());
        let tables = self.tables();
        let until = tables.leases_until.get(&letter).copied().unwrap_or_default();
        let left = Duration::from_micros(u64::try_from(until - now).unwrap_or_default());
        Ok(tables.leases.get(&letter).map(|lease| InstanceLease { left, ..*lease }))
    }

    pub(super) fn take_lease(
        &self,
        instance: Instance,
        lease: &InstanceLease,
        seen: i64,
        mark: Option<[u8; 16]>,
    ) -> Result<bool, StoreError> {
        let (now, letter) = (self.now(), instance.letter());
        let mut tables = self.tables();
        let over = tables.leases_until.get(&letter).is_none_or(|until| *until < now);
        let as_seen = |there: &InstanceLease| there.incarnation == seen && mark.is_none_or(|mark| there.mark == mark);
        let free = |there: &InstanceLease| as_seen(there) && (over || there.owner == lease.owner);
        let taken = tables.leases.get(&letter).is_none_or(free);
        if taken {
            tables.leases.insert(letter, *lease);
            tables.leases_until.insert(letter, now.saturating_add(microseconds(lease.left)));
        }
        Ok(taken)
    }

    pub(super) fn renew_lease(&self, instance: Instance, lease: &InstanceLease) -> Result<bool, StoreError> {
        let (now, letter) = (self.now(), instance.letter());
        let mut tables = self.tables();
        let ours = |there: &InstanceLease| there.incarnation == lease.incarnation && there.owner == lease.owner;
        let renewed = tables.leases.get(&letter).is_some_and(ours);
        if renewed {
            if let Some(there) = tables.leases.get_mut(&letter) {
                there.mark = lease.mark;
            }
            tables.leases_until.insert(letter, now.saturating_add(microseconds(lease.left)));
        }
        Ok(renewed)
    }

    pub(super) fn retire(&self, journal: [u8; 16]) -> Result<u64, StoreError> {
        let now = self.now();
        let mut tables = self.tables();
        tables.marks.entry(journal).or_default().retired = true;
        let letters: Vec<_> = tables.leases.iter().filter(|(_, lease)| lease.journal == journal).collect();
        let letters: Vec<char> = letters.into_iter().map(|(letter, _)| *letter).collect();
        for letter in letters {
            if let Some(lease) = tables.leases.get_mut(&letter) {
                (lease.incarnation, lease.journal, lease.mark) = (lease.incarnation + 1, [0; 16], [0; 16]);
            }
            tables.leases_until.insert(letter, 0);
        }
        Ok(tables.close_claims_of(journal, now))
    }

    pub(super) fn ship(&self, outcomes: &[Outcome], shipper: Shipper) -> Result<Shipment, StoreError> {
        let now = self.now();
        let mut tables = self.tables();
        if let Shipper::Journal(owner, upto) = shipper {
            let lease = tables.leases.get(&owner.instance.letter());
            let another =
                |lease: &InstanceLease| lease.journal == owner.journal && lease.incarnation != owner.incarnation;
            let fenced = lease.is_some_and(another);
            let mark = tables.marks.entry(owner.journal).or_default();
            if fenced || mark.retired {
                return Err(StoreError::Fenced);
            }
            mark.shipped = upto;
        }
        let mut shipment = Shipment::default();
        for outcome in outcomes {
            let (resolution, resolve_as) = outcome.row.doubt();
            tables.insert(&outcome.row, resolution, resolve_as, &mut shipment);
        }
        tables.end_claims(outcomes, now);
        Ok(shipment)
    }

    pub(super) fn row(&self, id: TransactionId) -> Result<Option<StoredRow>, StoreError> {
        Ok(self.tables().find(id).map(|row| row.stored.clone()))
    }

    pub(super) fn page(&self, filter: &Filter, before: Option<i64>, limit: u32) -> Result<Vec<StoredRow>, StoreError> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let tables = self.tables();
        let earlier = |stored: &&StoredRow| before.is_none_or(|before| stored.seq < before);
        let rows = tables.rows.iter().rev().map(|row| &row.stored);
        Ok(rows.filter(earlier).filter(|stored| filter.takes(stored)).take(limit).cloned().collect())
    }

    pub(super) fn summary(&self, filter: &Filter) -> Result<[u64; 3], StoreError> {
        let tables = self.tables();
        let count = |status: Status| {
            let rows = tables.rows.iter().filter(|row| filter.takes(&row.stored));
            rows.filter(|row| row.stored.row.closing.status == status).count()
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
            && (!self.unresolved || stored.resolved.state.is_open())
    }
}
