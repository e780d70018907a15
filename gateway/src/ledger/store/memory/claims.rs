//! Claims in memory.

use std::time::Duration;

use super::{MemoryStore, Tables, microseconds};
use crate::ledger::id::TransactionId;
use crate::ledger::row::{Answer, Facts, Outcome, Resolution, ResolveAs, Row};
use crate::ledger::store::{Claim, Claimed, InstanceLease, Of, Owner, Progress, Shipment, StoreError, Taken};

#[derive(Debug, Clone)]
pub(super) struct ClaimRow {
    facts: Facts,
    journal: [u8; 16],
    fingerprint: Vec<u8>,
    state: State,
    lease_until: i64,
    ended_at: i64,
    answer: Option<Answer>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    Abandoned,
    Ended,
}

impl Tables {
    /// Says in the claims how these transactions ended.
    pub(super) fn end_claims(&mut self, outcomes: &[Outcome], now: i64) {
        for outcome in outcomes {
            let id = outcome.row.facts.id;
            if outcome.row.is_provably_unsent() {
                self.claims.retain(|_, claim| claim.facts.id != id || claim.state == State::Ended);
            } else if let Some(claim) = self.claims.values_mut().find(|claim| claim.facts.id == id) {
                (claim.state, claim.ended_at) = (State::Ended, now);
                claim.answer = outcome.answer.clone();
            } else if let Some((key, fingerprint)) = outcome.row.facts.claim_key() {
                let ended = ClaimRow {
                    facts: outcome.row.facts.clone(),
                    journal: [0; 16],
                    fingerprint: fingerprint.to_vec(),
                    state: State::Ended,
                    lease_until: 0,
                    ended_at: now,
                    answer: outcome.answer.clone(),
                };
                // One that was written down too late, by a transaction that had let the key go, gives way.
                self.claims.retain(|there, claim| *there != key || claim.state == State::Ended);
                self.claims.entry(key).or_insert(ended);
            }
        }
    }

    /// Whether this life of the gateway may claim.
    fn may_claim(&self, owner: Owner) -> Result<(), StoreError> {
        let ours = |lease: &InstanceLease| lease.incarnation == owner.incarnation && lease.journal == owner.journal;
        self.leases.get(&owner.instance.letter()).is_some_and(ours).then_some(()).ok_or(StoreError::Fenced)
    }

    /// Whose a key is.
    fn who_has(&self, claim: &Claim, now: i64) -> Claimed {
        let Some(there) = self.claims.get(&claim.key) else { return Claimed::Ours };
        if there.facts.id == claim.facts.id && there.state != State::Ended {
            return Claimed::Ours;
        }
        let progress = match there.state {
            State::Ended => Progress::Ended,
            State::Running if there.lease_until >= now => Progress::Running,
            State::Running | State::Abandoned => Progress::Overdue,
        };
        let row = self.find(there.facts.id).map(|row| &row.stored);
        Claimed::Taken(Box::new(Taken {
            id: there.facts.id,
            journal: there.journal,
            fingerprint: there.fingerprint.clone(),
            progress,
            answer: there.answer.clone(),
            ledger: row.map(|stored| (stored.row.closing.status, stored.resolved.state)),
        }))
    }

    /// Inserts a claim if its key is free, and says whose it is.
    fn claim(&mut self, owner: Owner, claim: &Claim, now: i64) -> Claimed {
        let claimed = self.who_has(claim, now);
        let row = ClaimRow {
            facts: claim.facts.clone(),
            journal: owner.journal,
            fingerprint: claim.fingerprint.clone(),
            state: State::Running,
            lease_until: now.saturating_add(microseconds(claim.lease)),
            ended_at: 0,
            answer: None,
        };
        self.claims.entry(claim.key.clone()).or_insert(row);
        claimed
    }

    /// Turns a journal's open claims into rows in doubt.
    pub(super) fn close_claims_of(&mut self, journal: [u8; 16], now: i64) -> u64 {
        let mut rows = Vec::new();
        for claim in self.claims.values_mut().filter(|claim| claim.is_open_of(journal)) {
            (claim.state, claim.ended_at) = (State::Ended, now);
            rows.push(Row::in_doubt(claim.facts.clone(), "retired", now));
        }
        for row in &rows {
            self.insert(row, Resolution::Pending, Some(ResolveAs::Confirm), &mut Shipment::default());
        }
        u64::try_from(rows.len()).unwrap_or(u64::MAX)
    }
}

impl ClaimRow {
    fn is_open_of(&self, journal: [u8; 16]) -> bool {
        self.state != State::Ended && self.journal == journal
    }
}

#[expect(clippy::unnecessary_wraps, reason = "the same signatures as the stores that can fail")]
impl MemoryStore {
    pub(in crate::ledger::store) fn find_claims(
        &self,
        owner: Owner,
        claims: &[Claim],
    ) -> Result<Vec<Claimed>, StoreError> {
        let (now, tables) = (self.now(), self.tables());
        tables.may_claim(owner)?;
        Ok(claims.iter().map(|claim| tables.who_has(claim, now)).collect())
    }

    pub(in crate::ledger::store) fn claim(&self, owner: Owner, claims: &[Claim]) -> Result<Vec<Claimed>, StoreError> {
        let now = self.now();
        let mut tables = self.tables();
        tables.may_claim(owner)?;
        Ok(claims.iter().map(|claim| tables.claim(owner, claim, now)).collect())
    }

    pub(in crate::ledger::store) fn write_claims(&self, owner: Owner, claims: &[Claim]) -> Result<(), StoreError> {
        let now = self.now();
        let mut tables = self.tables();
        for claim in claims {
            tables.claim(owner, claim, now);
        }
        Ok(())
    }

    pub(in crate::ledger::store) fn release(&self, owner: Owner, ids: &[TransactionId]) -> Result<(), StoreError> {
        let freed = |claim: &ClaimRow| claim.is_open_of(owner.journal) && ids.contains(&claim.facts.id);
        self.tables().claims.retain(|_, claim| !freed(claim));
        Ok(())
    }

    pub(in crate::ledger::store) fn open_claims(
        &self,
        journal: [u8; 16],
        limit: u32,
    ) -> Result<Vec<Facts>, StoreError> {
        let tables = self.tables();
        let open = tables.claims.values().filter(|claim| claim.is_open_of(journal));
        Ok(open.map(|claim| claim.facts.clone()).take(usize::try_from(limit).unwrap_or(usize::MAX)).collect())
    }

    pub(in crate::ledger::store) fn abandon_overdue(&self, owner: Owner) -> Result<u64, StoreError> {
        let now = self.now();
        self.abandon(|claim| claim.journal != owner.journal && claim.lease_until < now)
    }

    pub(in crate::ledger::store) fn abandon_journal(&self, journal: [u8; 16]) -> Result<u64, StoreError> {
        self.abandon(|claim| claim.journal == journal)
    }

    fn abandon(&self, which: impl Fn(&ClaimRow) -> bool) -> Result<u64, StoreError> {
        let mut count = 0;
        let mut tables = self.tables();
        for claim in tables.claims.values_mut().filter(|claim| claim.state == State::Running && which(claim)) {
            claim.state = State::Abandoned;
            count += 1;
        }
        Ok(count)
    }

    pub(in crate::ledger::store) fn abandoned(&self, of: Of<'_>, limit: u32) -> Result<Vec<Facts>, StoreError> {
        let tables = self.tables();
        let wanted = |claim: &&ClaimRow| match of {
            Of::Everybody => true,
            Of::Client(client) => claim.facts.client == client,
            Of::Transaction(id) => claim.facts.id == id,
        };
        let abandoned = tables.claims.values().filter(|claim| claim.state == State::Abandoned).filter(wanted);
        Ok(abandoned.map(|claim| claim.facts.clone()).take(usize::try_from(limit).unwrap_or(usize::MAX)).collect())
    }

    pub(in crate::ledger::store) fn purge_claims(&self, keep: Duration) -> Result<u64, StoreError> {
        let before = self.now().saturating_sub(microseconds(keep));
        let mut tables = self.tables();
        let tables = &mut *tables;
        let (rows, by_id) = (&tables.rows, &tables.by_id);
        let is_over = |claim: &ClaimRow| {
            let row = by_id.get(&claim.facts.id).and_then(|at| rows.get(*at)).map(|row| &row.stored.resolved);
            let kept =
                |resolved: &super::Resolved| resolved.state.is_open() || resolved.at.is_some_and(|at| at >= before);
            claim.state == State::Ended && claim.ended_at < before && !row.is_some_and(kept)
        };
        let count = tables.claims.len();
        tables.claims.retain(|_, claim| !is_over(claim));
        Ok(u64::try_from(count - tables.claims.len()).unwrap_or(u64::MAX))
    }

    pub(in crate::ledger::store) fn claims_without_outcome(
        &self,
        after: &str,
        limit: u32,
    ) -> Result<Vec<Facts>, StoreError> {
        let tables = self.tables();
        let mut open: Vec<_> =
            tables.claims.values().filter(|claim| claim.state != State::Ended).map(|claim| &claim.facts).collect();
        open.retain(|facts| facts.id.as_str() > after);
        open.sort_by_key(|facts| facts.id);
        Ok(open.into_iter().take(usize::try_from(limit).unwrap_or(usize::MAX)).cloned().collect())
    }
}
