//! Reconciliation in memory.

use super::MemoryStore;
use crate::ledger::store::{Difference, Horizon, HostLine, LedgerLine, Run, StoreError, Tally};
use crate::routes::Kind;

fn most(limit: u32) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

#[expect(clippy::unnecessary_wraps, reason = "the same signatures as the stores that can fail")]
impl MemoryStore {
    pub(in crate::ledger::store) fn horizon(&self) -> Result<Horizon, StoreError> {
        let seq = i64::try_from(self.tables().rows.len()).unwrap_or(i64::MAX);
        Ok(Horizon { seq, now: self.now() })
    }

    pub(in crate::ledger::store) fn begin_run(
        &self,
        run: &str,
        day: &str,
        institution: &str,
        once: bool,
    ) -> Result<bool, StoreError> {
        let started_at = self.now();
        let mut tables = self.tables();
        let is_there = |run: &Run| run.business_day == day && run.institution == institution && run.state != "FAILED";
        if once && tables.runs.iter().any(is_there) {
            return Ok(false);
        }
        tables.runs.push(Run {
            id: run.to_owned(),
            business_day: day.to_owned(),
            institution: institution.to_owned(),
            state: "RUNNING".to_owned(),
            started_at,
            ended_at: None,
            detail: None,
            tally: Tally::default(),
        });
        Ok(true)
    }

    pub(in crate::ledger::store) fn stage(&self, run: &str, lines: &[HostLine]) -> Result<(), StoreError> {
        let mut tables = self.tables();
        for line in lines {
            tables.lines.insert((run.to_owned(), line.id.clone(), line.position), line.clone());
        }
        Ok(())
    }

    pub(in crate::ledger::store) fn staged(
        &self,
        run: &str,
        (id, position): (&str, u64),
        limit: u32,
    ) -> Result<Vec<HostLine>, StoreError> {
        let tables = self.tables();
        let after = (run.to_owned(), id.to_owned(), position);
        let behind = tables.lines.iter().filter(|(key, _)| key.0 == run && **key > after);
        Ok(behind.map(|(_, line)| line.clone()).take(most(limit)).collect())
    }

    pub(in crate::ledger::store) fn ledger_lines(
        &self,
        day: &str,
        institution: &str,
        after: &str,
        limit: u32,
    ) -> Result<Vec<LedgerLine>, StoreError> {
        let tables = self.tables();
        let rows = tables.by_id.values().filter_map(|at| Some(&tables.rows.get(*at)?.stored));
        let wanted = rows.filter(|stored| {
            let facts = &stored.row.facts;
            facts.kind == Kind::Mutation
                && facts.institution == institution
                && facts.id.business_day() == day
                && facts.id.as_str() > after
        });
        let line = |stored: &super::StoredRow| LedgerLine {
            id: stored.row.facts.id,
            status: stored.row.closing.status,
            resolution: stored.resolved.state,
            amount: stored.row.facts.amount,
            seq: stored.seq,
            resolved_at: stored.resolved.at,
        };
        Ok(wanted.map(line).take(most(limit)).collect())
    }

    pub(in crate::ledger::store) fn add_differences(
        &self,
        run: &str,
        differences: &[Difference],
    ) -> Result<(), StoreError> {
        self.tables().differences.entry(run.to_owned()).or_default().extend_from_slice(differences);
        Ok(())
    }

    pub(in crate::ledger::store) fn end_run(
        &self,
        run: &str,
        tally: Tally,
        failed: Option<&str>,
    ) -> Result<(), StoreError> {
        let now = self.now();
        let mut tables = self.tables();
        if let Some(there) = tables.runs.iter_mut().find(|there| there.id == run) {
            there.state = if failed.is_some() { "FAILED" } else { "DONE" }.to_owned();
            (there.ended_at, there.tally, there.detail) = (Some(now), tally, failed.map(str::to_owned));
        }
        tables.lines.retain(|(of, ..), _| of != run);
        if failed.is_some() {
            tables.differences.remove(run);
        }
        Ok(())
    }

    pub(in crate::ledger::store) fn runs(&self, limit: u32) -> Result<Vec<Run>, StoreError> {
        Ok(self.tables().runs.iter().rev().take(most(limit)).cloned().collect())
    }

    pub(in crate::ledger::store) fn run(&self, run: &str) -> Result<Option<Run>, StoreError> {
        Ok(self.tables().runs.iter().find(|there| there.id == run).cloned())
    }

    pub(in crate::ledger::store) fn differences(
        &self,
        run: &str,
        after: i64,
        limit: u32,
    ) -> Result<Vec<Difference>, StoreError> {
        let tables = self.tables();
        let all = tables.differences.get(run).map_or(&[][..], Vec::as_slice);
        Ok(all.iter().filter(|one| one.seq > after).take(most(limit)).cloned().collect())
    }
}
