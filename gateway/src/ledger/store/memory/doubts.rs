//! Resolution in memory.

use std::time::Duration;

use super::{LedgerRow, MemoryStore, Tables, microseconds};
use crate::ledger::id::TransactionId;
use crate::ledger::row::{Resolution, ResolveAs};
use crate::ledger::store::doubt::{LONG_AGO, MANUAL_WAIT};
use crate::ledger::store::{ByHand, Doubt, Resolved, Step, StepEnd, StoreError, Verdict, Wanted};

impl LedgerRow {
    fn is_open(&self) -> bool {
        self.stored.resolved.state.is_open()
    }

    fn is_held_by(&self, token: &str, now: i64) -> bool {
        self.held.as_ref().is_some_and(|(holder, until)| holder == token && *until >= now)
    }

    fn is_free(&self, now: i64) -> bool {
        self.held.as_ref().is_none_or(|(_, until)| *until < now)
    }

    fn is_wanted(&self, wanted: &Wanted<'_>, now: i64) -> bool {
        let facts = &self.stored.row.facts;
        match wanted {
            Wanted::Due(routes) => self.next_try_at <= now && routes.contains(&facts.route),
            Wanted::One(id) => facts.id == *id,
        }
    }

    fn resolve(&mut self, state: Resolution, method: &str, by: &str, note: Option<&str>, now: i64) {
        let resolved = Resolved {
            state,
            method: Some(method.to_owned()),
            at: Some(now),
            by: Some(by.to_owned()),
            note: note.map(str::to_owned),
            resolve_as: self.resolve_as,
        };
        self.stored.resolved = resolved;
    }
}

impl Tables {
    fn note_step(&mut self, id: TransactionId, asked: &str, answered: &str, at: i64) {
        self.steps.push((id, Step { asked: asked.to_owned(), answered: answered.to_owned(), at }));
    }
}

#[expect(clippy::unnecessary_wraps, reason = "the same signatures as the stores that can fail")]
impl MemoryStore {
    pub(in crate::ledger::store) fn hold_doubts(
        &self,
        wanted: &Wanted<'_>,
        token: &str,
        lease: Duration,
        limit: u32,
    ) -> Result<Vec<Doubt>, StoreError> {
        let now = self.now();
        let mut tables = self.tables();
        let mut found: Vec<&mut LedgerRow> = tables.rows.iter_mut().filter(|row| row.is_open()).collect();
        found.retain(|row| row.resolve_as != Some(ResolveAs::Hand) && row.is_free(now) && row.is_wanted(wanted, now));
        found.sort_by_key(|row| row.next_try_at);
        found.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        let hold = |row: &mut LedgerRow| {
            row.held = Some((token.to_owned(), now.saturating_add(microseconds(lease))));
            let since = |at: i64| Duration::from_micros(u64::try_from(now - at).unwrap_or_default());
            Doubt {
                row: row.stored.row.clone(),
                resolution: row.stored.resolved.state,
                resolve_as: row.resolve_as,
                cancel_intended: row.cancel_intended,
                not_processed_since: row.not_processed_at.map(since),
                tries: row.tries,
            }
        };
        Ok(found.into_iter().map(hold).collect())
    }

    pub(in crate::ledger::store) fn intend_cancel(&self, id: TransactionId, token: &str) -> Result<bool, StoreError> {
        let now = self.now();
        let mut tables = self.tables();
        let Some(row) = tables.find_mut(id).filter(|row| row.is_open() && row.is_held_by(token, now)) else {
            return Ok(false);
        };
        row.cancel_intended = true;
        row.cancels += 1;
        Ok(true)
    }

    pub(in crate::ledger::store) fn end_step(
        &self,
        id: TransactionId,
        token: &str,
        end: &StepEnd<'_>,
    ) -> Result<bool, StoreError> {
        let now = self.now();
        let mut tables = self.tables();
        let Some(row) = tables.find_mut(id).filter(|row| row.is_open() && row.is_held_by(token, now)) else {
            return Ok(false);
        };
        let allowed = match end.verdict {
            Verdict::ByCancel(_) => row.cancel_intended,
            Verdict::ByInquiry(_) => !row.cancel_intended,
            _ => true,
        };
        if !allowed {
            return Ok(false);
        }
        let asked = !matches!(end.verdict, Verdict::PutOff(_) | Verdict::Hand);
        row.tries += u32::from(asked);
        if end.not_processed {
            row.not_processed_at = row.not_processed_at.or(Some(now));
        }
        match end.verdict {
            Verdict::ByCancel(state) | Verdict::ByInquiry(state) => {
                row.resolve(state, end.asked, "resolver", None, now);
            }
            Verdict::Manual => {
                row.stored.resolved.state = Resolution::Manual;
                row.next_try_at = now.saturating_add(microseconds(MANUAL_WAIT));
            }
            Verdict::Hand => {
                row.stored.resolved.state = Resolution::Manual;
                (row.stored.resolved.resolve_as, row.resolve_as) = (Some(ResolveAs::Hand), Some(ResolveAs::Hand));
            }
            Verdict::Again(wait) | Verdict::PutOff(wait) => row.next_try_at = now.saturating_add(microseconds(wait)),
            Verdict::GoOn => {}
        }
        if end.verdict != Verdict::GoOn {
            row.held = None;
        }
        if asked {
            tables.note_step(id, end.asked, end.answered, now);
        }
        Ok(true)
    }

    pub(in crate::ledger::store) fn close_by_hand(
        &self,
        id: TransactionId,
        hand: &ByHand<'_>,
    ) -> Result<bool, StoreError> {
        let now = self.now();
        let mut tables = self.tables();
        let long_ago = now.saturating_sub(microseconds(LONG_AGO));
        let cancels: Vec<&Step> = {
            let own = tables.steps.iter().filter(|(of, step)| *of == id && step.asked == "net-cancel");
            own.map(|(_, step)| step).collect()
        };
        let answered = cancels.iter().filter(|step| step.answered == "cannot-undo").count();
        let said_long_ago = cancels.iter().any(|step| step.answered == "cannot-undo" && step.at < long_ago);
        let recent = cancels.iter().any(|step| step.answered != "cannot-undo" && step.at >= long_ago);
        let over = said_long_ago && !recent;
        let Some(row) = tables.find_mut(id) else { return Ok(false) };
        let on_its_way = hand.state == Resolution::ConfirmedSuccess && row.cancels != answered && !over;
        if row.stored.resolved.state != Resolution::Manual || !row.is_free(now) || on_its_way {
            return Ok(false);
        }
        row.resolve(hand.state, "by-hand", hand.by, Some(hand.note), now);
        tables.note_step(id, "by-hand", hand.state.name(), now);
        Ok(true)
    }

    pub(in crate::ledger::store) fn steps(&self, id: TransactionId) -> Result<Vec<Step>, StoreError> {
        let tables = self.tables();
        Ok(tables.steps.iter().filter(|(of, _)| *of == id).map(|(_, step)| step.clone()).collect())
    }
}
