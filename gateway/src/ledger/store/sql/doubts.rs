//! The resolver's statements. Each write is one statement that holds only while the lease does, by the store's clock: zero
//! rows changed means that the row is somebody else's, and nothing may be sent.

use std::time::Duration;

use super::super::StoreError;
use super::super::doubt::{ByHand, Doubt, LONG_AGO, MANUAL_WAIT, Step, StepEnd, Verdict, Wanted};
use super::claims::microseconds;
use super::rows::{COLUMNS, read};
use super::statement::Statement;
use super::{Cells, SqlStore};
use crate::ledger::id::TransactionId;
use crate::ledger::row::Resolution;

impl SqlStore {
    /// Holds up to `limit` rows for `lease`.
    pub(in crate::ledger::store) async fn hold_doubts(
        &self,
        wanted: &Wanted<'_>,
        token: &str,
        lease: Duration,
        limit: u32,
    ) -> Result<Vec<Doubt>, StoreError> {
        let found = Statement::new(
            "WITH found AS MATERIALIZED (SELECT transaction_id FROM ledger WHERE resolution IN ('PENDING', 'MANUAL') \
             AND (resolve_as IS NULL OR resolve_as <> 'hand') \
             AND (resolver_lease_until IS NULL OR resolver_lease_until < ",
        )
        .push(self.now())
        .push(")");
        let found = match wanted {
            Wanted::Due([]) => return Ok(Vec::new()),
            Wanted::Due(routes) => found
                .push(" AND next_try_at <= ")
                .push(self.now())
                .push(" AND route IN (")
                .list(routes, |statement, route| statement.bind(route))
                .push(")"),
            Wanted::One(id) => found.push(" AND transaction_id = ").bind(id.as_str()),
        };
        let hold = found
            .push(" ORDER BY next_try_at LIMIT ")
            .bind(limit)
            .push(self.for_update_skipping())
            .push(") UPDATE ledger SET resolver_token = ")
            .bind(token)
            .push(", resolver_lease_until = ")
            .push(self.now())
            .push(" + ")
            .bind(microseconds(lease))
            .push(" WHERE transaction_id IN (SELECT transaction_id FROM found) RETURNING ")
            .push(COLUMNS)
            .push(", cancel_intended_at, ")
            .push(self.now())
            .push(" - not_processed_at, tries");
        let mut session = self.writing().await?;
        let held = session.all(hold).await?;
        session.commit().await?;
        held.into_iter().map(|mut cells| read_doubt(&mut cells)).collect()
    }

    /// Notes, before its first byte can leave, that a net-cancel is sent. Only into a row that is still open and ours.
    pub(in crate::ledger::store) async fn intend_cancel(
        &self,
        id: TransactionId,
        token: &str,
    ) -> Result<bool, StoreError> {
        let update = Statement::new(
            "UPDATE ledger SET cancels = cancels + 1, cancel_intended_at = COALESCE(cancel_intended_at, ",
        )
        .push(self.now())
        .push(") WHERE resolution IN ('PENDING', 'MANUAL') AND ");
        Ok(self.write(self.held(update, id, token)).await? == 1)
    }

    fn held(&self, statement: Statement, id: TransactionId, token: &str) -> Statement {
        let statement = statement.push("transaction_id = ").bind(id.as_str()).push(" AND resolver_token = ");
        statement.bind(token).push(" AND resolver_lease_until >= ").push(self.now())
    }

    /// Records a step and what it decided. `false`: the row is not ours any more, and nothing was recorded.
    pub(in crate::ledger::store) async fn end_step(
        &self,
        id: TransactionId,
        token: &str,
        end: &StepEnd<'_>,
    ) -> Result<bool, StoreError> {
        let asked = !matches!(end.verdict, Verdict::PutOff(_) | Verdict::Hand);
        let mut update = Statement::new("UPDATE ledger SET tries = tries + ").bind(i64::from(asked));
        if end.not_processed {
            update = update.push(", not_processed_at = COALESCE(not_processed_at, ").push(self.now()).push(")");
        }
        let (resolution, condition) = match end.verdict {
            Verdict::ByCancel(state) => (Some(state), " AND cancel_intended_at IS NOT NULL"),
            Verdict::ByInquiry(state) => (Some(state), " AND cancel_intended_at IS NULL"),
            _ => (None, ""),
        };
        if let Some(state) = resolution {
            update = update.push(", resolution = ").bind(state.name()).push(", resolution_method = ").bind(end.asked);
            update = update.push(", resolved_by = 'resolver', resolved_at = ").push(self.now());
        }
        let wait = match end.verdict {
            Verdict::Again(wait) | Verdict::PutOff(wait) => Some(wait),
            Verdict::Manual => Some(MANUAL_WAIT),
            _ => None,
        };
        if matches!(end.verdict, Verdict::Manual | Verdict::Hand) {
            update = update.push(", resolution = 'MANUAL'");
        }
        if end.verdict == Verdict::Hand {
            update = update.push(", resolve_as = 'hand'");
        }
        if let Some(wait) = wait {
            update = update.push(", next_try_at = ").push(self.now()).push(" + ").bind(microseconds(wait));
        }
        if end.verdict != Verdict::GoOn {
            update = update.push(", resolver_token = NULL, resolver_lease_until = NULL");
        }
        let update = update.push(" WHERE resolution IN ('PENDING', 'MANUAL')").push(condition).push(" AND ");
        let mut session = self.writing().await?;
        if session.run(self.held(update, id, token)).await? != 1 {
            session.roll_back().await?;
            return Ok(false);
        }
        if asked {
            session.run(self.step(id, end.asked, end.answered)).await?;
        }
        session.commit().await?;
        Ok(true)
    }

    fn step(&self, id: TransactionId, asked: &str, answered: &str) -> Statement {
        Statement::new("INSERT INTO resolution_step (transaction_id, asked, answered, at) VALUES (")
            .bind(id.as_str())
            .and_bind(asked)
            .and_bind(answered)
            .push(", ")
            .push(self.now())
            .push(")")
    }

    /// Closes a MANUAL row by an operator's word. `false` when it is not MANUAL, is held by a resolver, or a net-cancel
    /// forbids calling it a success.
    pub(in crate::ledger::store) async fn close_by_hand(
        &self,
        id: TransactionId,
        hand: &ByHand<'_>,
    ) -> Result<bool, StoreError> {
        let update = Statement::new("UPDATE ledger SET resolution = ")
            .bind(hand.state.name())
            .push(", resolution_method = 'by-hand', resolved_by = ")
            .bind(hand.by)
            .push(", resolution_note = ")
            .bind(hand.note)
            .push(", resolved_at = ")
            .push(self.now())
            .push(" WHERE resolution = 'MANUAL' AND transaction_id = ")
            .bind(id.as_str())
            .push(" AND (resolver_lease_until IS NULL OR resolver_lease_until < ")
            .push(self.now())
            .push(")");
        // A success stands only when no net-cancel is on its way: none was sent, or each was answered that it can't be undone;
        // or it was answered so, and what was never answered left long ago.
        let update = if hand.state == Resolution::ConfirmedSuccess {
            update
                .push(" AND (cancels = (SELECT COUNT(*) FROM resolution_step s WHERE s.transaction_id = ")
                .bind(id.as_str())
                .push(" AND s.asked = 'net-cancel' AND s.answered = 'cannot-undo') OR (EXISTS (SELECT 1 FROM resolution_step s \
                     WHERE s.answered = 'cannot-undo' AND s.transaction_id = ")
                .bind(id.as_str())
                .push(" AND s.at < ")
                .push(self.now())
                .push(" - ")
                .bind(microseconds(LONG_AGO))
                .push(") AND NOT EXISTS (SELECT 1 FROM resolution_step s WHERE s.asked = 'net-cancel' \
                     AND s.answered <> 'cannot-undo' AND s.transaction_id = ")
                .bind(id.as_str())
                .push(" AND s.at >= ")
                .push(self.now())
                .push(" - ")
                .bind(microseconds(LONG_AGO))
                .push(")))")
        } else {
            update
        };
        let mut session = self.writing().await?;
        if session.run(update).await? != 1 {
            session.roll_back().await?;
            return Ok(false);
        }
        session.run(self.step(id, "by-hand", hand.state.name())).await?;
        session.commit().await?;
        Ok(true)
    }

    /// The steps of a row, oldest first.
    pub(in crate::ledger::store) async fn steps(&self, id: TransactionId) -> Result<Vec<Step>, StoreError> {
        let select = Statement::new("SELECT asked, answered, at FROM resolution_step WHERE transaction_id = ")
            .bind(id.as_str())
            .push(" ORDER BY step_seq");
        let found = self.reading().await?.all(select).await?;
        let step = |mut cells: Cells| Ok(Step { asked: cells.text()?, answered: cells.text()?, at: cells.int()? });
        found.into_iter().map(step).collect()
    }
}

fn read_doubt(cells: &mut Cells) -> Result<Doubt, StoreError> {
    let stored = read(cells)?;
    Ok(Doubt {
        row: stored.row,
        resolution: stored.resolved.state,
        resolve_as: stored.resolved.resolve_as,
        cancel_intended: cells.maybe_int()?.is_some(),
        not_processed_since: cells
            .maybe_int()?
            .map(|since| Duration::from_micros(u64::try_from(since).unwrap_or_default())),
        tries: u32::try_from(cells.int()?).unwrap_or(u32::MAX),
    })
}

#[cfg(test)]
impl SqlStore {
    /// Puts every step back by a quarter of an hour.
    pub(in crate::ledger::store) async fn make_steps_older(&self) {
        let older = Statement::new("UPDATE resolution_step SET at = at - 900000000");
        self.write(older).await.expect("the store is there");
    }
}
