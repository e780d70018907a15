//! Walks both sides of a day, and the claims, in the order of ids, and judges what meets.

use std::collections::VecDeque;

use super::{PAGE, PAGE_OF_CLAIMS};
use crate::ledger::{Class, Difference, Horizon, HostLine, LedgerLine, Resolution, Run, Status, Store, StoreError};

/// Everything that either side has of one id.
pub(super) struct Met {
    pub(super) id: String,
    ledger: Option<LedgerLine>,
    lines: Vec<HostLine>,
    /// A claim without a shipped outcome.
    claimed: bool,
}

impl Met {
    /// What is wrong, if anything is.
    pub(super) fn judge(&self, horizon: Horizon) -> Option<Class> {
        if self.lines.len() > 1 {
            return Some(Class::Duplicate);
        }
        let line = self.lines.first();
        let Some(ledger) = &self.ledger else {
            return if self.claimed { Some(Class::InDoubt) } else { line.map(|_| Class::CoreOnly) };
        };
        // In the same instant is before: the clock was read when the resolving had ended, and the list is asked for after it.
        let resolved_since = ledger.resolved_at.is_some_and(|at| at > horizon.now);
        if ledger.resolution.is_open() || ledger.seq > horizon.seq || resolved_since {
            return Some(Class::InDoubt);
        }
        let wanted = match (ledger.status, ledger.resolution) {
            (Status::Success, _) | (_, Resolution::ConfirmedSuccess) => Some("00"),
            (_, Resolution::Canceled) => Some("99"),
            _ => None,
        };
        match (wanted, line) {
            (None, None) => None,
            (Some(_), None) => Some(Class::LedgerOnly),
            // A route without an amount has none to compare.
            (Some(flag), Some(line)) if line.flag == flag && ledger.amount.is_none_or(|won| won == line.amount) => None,
            _ => Some(Class::Mismatch),
        }
    }

    pub(super) fn difference(self, class: Class, seq: i64) -> Difference {
        let line = self.lines.into_iter().next();
        let said = self.ledger.as_ref().map(|ledger| match ledger.resolution {
            Resolution::None => ledger.status.name(),
            resolution => resolution.name(),
        });
        Difference {
            seq,
            class,
            id: self.id,
            ledger_status: said.map(str::to_owned),
            ledger_amount: self.ledger.and_then(|ledger| ledger.amount),
            core_flag: line.as_ref().map(|line| line.flag.clone()),
            core_amount: line.map(|line| line.amount),
        }
    }
}

/// Reads both sides, and the claims, in the order of ids.
pub(super) struct Walk<'a> {
    store: &'a Store,
    run: &'a Run,
    ledger: Ahead<LedgerLine>,
    host: Ahead<HostLine>,
    claims: Ahead<String>,
}

/// What was read of one side and not yet looked at.
struct Ahead<T> {
    items: VecDeque<T>,
    last: Option<T>,
    at_end: bool,
}

impl<T: Clone> Ahead<T> {
    fn new() -> Self {
        Self { items: VecDeque::new(), last: None, at_end: false }
    }

    fn wants_more(&self) -> bool {
        self.items.is_empty() && !self.at_end
    }

    fn take_in(&mut self, page: Vec<T>, limit: u32) {
        self.at_end = page.len() < usize::try_from(limit).unwrap_or(usize::MAX);
        self.last = page.last().cloned().or(self.last.take());
        self.items.extend(page);
    }
}

impl<'a> Walk<'a> {
    pub(super) fn new(store: &'a Store, run: &'a Run) -> Self {
        Self { store, run, ledger: Ahead::new(), host: Ahead::new(), claims: Ahead::new() }
    }

    async fn fill(&mut self) -> Result<(), StoreError> {
        let Self { store, run, .. } = *self;
        if self.ledger.wants_more() {
            let after = self.ledger.last.as_ref().map(|line| line.id.to_string()).unwrap_or_default();
            let page = store.ledger_lines(&run.business_day, &run.institution, &after, PAGE).await?;
            self.ledger.take_in(page, PAGE);
        }
        if self.host.wants_more() {
            let after = self.host.last.clone().map(|line| (line.id, line.position)).unwrap_or_default();
            self.host.take_in(store.staged(&run.id, (&after.0, after.1), PAGE).await?, PAGE);
        }
        while self.claims.wants_more() {
            let after = self.claims.last.clone().unwrap_or_default();
            let page = store.claims_without_outcome(&after, PAGE_OF_CLAIMS).await?;
            let ids: Vec<String> = page.iter().map(|facts| facts.id.to_string()).collect();
            self.claims.take_in(ids, PAGE_OF_CLAIMS);
            let ours = |id: &String| {
                let facts = page.iter().find(|facts| facts.id.as_str() == id);
                facts.is_some_and(|facts| {
                    facts.institution == run.institution && facts.id.business_day() == run.business_day
                })
            };
            self.claims.items.retain(ours);
        }
        Ok(())
    }

    /// What comes next on either side.
    pub(super) async fn next(&mut self) -> Result<Option<Met>, StoreError> {
        self.fill().await?;
        let heads = [
            self.ledger.items.front().map(|line| line.id.to_string()),
            self.host.items.front().map(|line| line.id.clone()),
            self.claims.items.front().cloned(),
        ];
        let Some(id) = heads.into_iter().flatten().min() else { return Ok(None) };
        let ledger = self.ledger.items.pop_front_if(|line| line.id.as_str() == id);
        let claimed = self.claims.items.pop_front_if(|claimed| *claimed == id).is_some();
        let mut lines = Vec::new();
        while let Some(line) = self.host.items.pop_front_if(|line| line.id == id) {
            // Two are enough to call it doubled.
            if lines.len() < 2 {
                lines.push(line);
            }
            self.fill().await?;
        }
        Ok(Some(Met { id, ledger, lines, claimed }))
    }
}
