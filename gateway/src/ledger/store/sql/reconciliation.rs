//! Reconciliation's statements: the host's list is staged in a table, both sides are read in the order of ids and in pages,
//! so memory does not grow with the day.

use super::super::StoreError;
use super::super::run::{Class, Difference, Horizon, HostLine, LedgerLine, Run, Tally};
use super::insertion::ROWS_PER_STATEMENT;
use super::statement::Statement;
use super::{Cells, SqlStore};
use crate::ledger::id::TransactionId;
use crate::ledger::row::{Facts, Resolution, Status};

const RUN: &str = "SELECT run_id, business_day, institution, state, started_at, ended_at, detail, host_lines, matched, \
     mismatch, ledger_only, core_only, duplicate, in_doubt FROM reconciliation_run";

impl SqlStore {
    pub(in crate::ledger::store) async fn horizon(&self) -> Result<Horizon, StoreError> {
        let select = Statement::new("SELECT COALESCE(MAX(seq), 0), ").push(self.now()).push(" FROM ledger");
        let mut cells = self.reading().await?.first(select).await?.ok_or(StoreError::Malformed)?;
        Ok(Horizon { seq: cells.int()?, now: cells.int()? })
    }

    /// Begins a run; with `once` only if the day has none that did not fail. Runs whose gateway went away are called failed.
    pub(in crate::ledger::store) async fn begin_run(
        &self,
        run: &str,
        day: &str,
        institution: &str,
        once: bool,
    ) -> Result<bool, StoreError> {
        let orphans = Statement::new(
            "UPDATE reconciliation_run SET state = 'FAILED', detail = 'its gateway went away', ended_at = ",
        )
        .push(self.now())
        .push(" WHERE state = 'RUNNING' AND started_at < ")
        .push(self.now())
        .push(" - 3600000000");
        let insert = Statement::new(
            "INSERT INTO reconciliation_run (run_id, business_day, institution, state, started_at) SELECT ",
        )
        .bind(run)
        .and_bind(day)
        .and_bind(institution)
        .push(", 'RUNNING', ")
        .push(self.now());
        let insert = if once {
            insert
                .push(" WHERE NOT EXISTS (SELECT 1 FROM reconciliation_run WHERE state <> 'FAILED' AND business_day = ")
                .bind(day)
                .push(" AND institution = ")
                .bind(institution)
                .push(")")
        } else {
            insert
        };
        let mut session = self.writing().await?;
        session.run(orphans).await?;
        let begun = session.run(insert).await? == 1;
        session.commit().await?;
        Ok(begun)
    }

    /// Stages lines of the host's list.
    pub(in crate::ledger::store) async fn stage(&self, run: &str, lines: &[HostLine]) -> Result<(), StoreError> {
        let mut session = self.writing().await?;
        for chunk in lines.chunks(ROWS_PER_STATEMENT) {
            let insert = Statement::new(
                "INSERT INTO reconciliation_line (run_id, transaction_id, position, amount, flag) VALUES ",
            )
            .list(chunk, |statement, line| {
                let statement = statement.push("(").bind(run).and_bind(&line.id).and_bind(line.position);
                statement.and_bind(line.amount).and_bind(&line.flag).push(")")
            });
            session.run(if chunk.len() == ROWS_PER_STATEMENT { insert } else { insert.once() }).await?;
        }
        session.commit().await
    }

    /// Staged lines behind a place, ordered by id and then by position.
    pub(in crate::ledger::store) async fn staged(
        &self,
        run: &str,
        after: (&str, u64),
        limit: u32,
    ) -> Result<Vec<HostLine>, StoreError> {
        let select =
            Statement::new("SELECT transaction_id, position, amount, flag FROM reconciliation_line WHERE run_id = ")
                .bind(run)
                .push(" AND (transaction_id, position) > (")
                .bind(after.0)
                .and_bind(after.1)
                .push(") ORDER BY transaction_id, position LIMIT ")
                .bind(limit);
        let found = self.reading().await?.all(select).await?;
        let line = |mut cells: Cells| {
            Ok(HostLine { id: cells.text()?, position: cells.unsigned()?, amount: cells.int()?, flag: cells.text()? })
        };
        found.into_iter().map(line).collect()
    }

    /// Mutations of a day at an institution behind an id, in the order of ids.
    pub(in crate::ledger::store) async fn ledger_lines(
        &self,
        day: &str,
        institution: &str,
        after: &str,
        limit: u32,
    ) -> Result<Vec<LedgerLine>, StoreError> {
        let select = Statement::new(
            "SELECT transaction_id, status, resolution, amount, seq, resolved_at FROM ledger \
             WHERE kind = 'mutation' AND business_day = ",
        )
        .bind(day)
        .push(" AND institution = ")
        .bind(institution)
        .push(" AND transaction_id > ")
        .bind(after)
        .push(" ORDER BY transaction_id LIMIT ")
        .bind(limit);
        let found = self.reading().await?.all(select).await?;
        let line = |mut cells: Cells| {
            let malformed = || StoreError::Malformed;
            Ok(LedgerLine {
                id: TransactionId::parse(&cells.text()?).ok_or_else(malformed)?,
                status: Status::by_name(&cells.text()?).ok_or_else(malformed)?,
                resolution: Resolution::by_name(&cells.text()?).ok_or_else(malformed)?,
                amount: cells.maybe_int()?,
                seq: cells.int()?,
                resolved_at: cells.maybe_int()?,
            })
        };
        found.into_iter().map(line).collect()
    }

    /// Claims without a shipped outcome, on any gateway, behind an id, in the order of ids.
    pub(in crate::ledger::store) async fn claims_without_outcome(
        &self,
        after: &str,
        limit: u32,
    ) -> Result<Vec<Facts>, StoreError> {
        let found = self.reading().await?.all(self.look_for_claims(after, limit)).await?;
        let facts = |mut cells: Cells| serde_json::from_str(&cells.text()?).map_err(|_| StoreError::Malformed);
        found.into_iter().map(facts).collect()
    }

    /// The question for them.
    pub(in crate::ledger::store) fn look_for_claims(&self, after: &str, limit: u32) -> Statement {
        Statement::new("SELECT facts FROM idempotency_claim")
            .push(self.dialect().open_claims)
            .push(" WHERE state <> 'ENDED' AND facts <> '' AND transaction_id > ")
            .bind(after)
            .push(" ORDER BY transaction_id LIMIT ")
            .bind(limit)
    }

    /// Records differences.
    pub(in crate::ledger::store) async fn add_differences(
        &self,
        run: &str,
        differences: &[Difference],
    ) -> Result<(), StoreError> {
        let mut session = self.writing().await?;
        for chunk in differences.chunks(ROWS_PER_STATEMENT) {
            let insert = Statement::new(
                "INSERT INTO reconciliation_difference (run_id, seq, class, transaction_id, ledger_status, ledger_amount, \
                 core_flag, core_amount) VALUES ",
            )
            .list(chunk, |statement, one| {
                let statement = statement.push("(").bind(run).and_bind(one.seq).and_bind(one.class.name());
                let statement = statement.and_bind(&one.id).and_bind(&one.ledger_status).and_bind(one.ledger_amount);
                statement.and_bind(&one.core_flag).and_bind(one.core_amount).push(")")
            });
            session.run(insert.once()).await?;
        }
        session.commit().await
    }

    /// Ends a run: with its counts, or with the reason why there are none. The staged list is not needed any more.
    pub(in crate::ledger::store) async fn end_run(
        &self,
        run: &str,
        tally: Tally,
        failed: Option<&str>,
    ) -> Result<(), StoreError> {
        let [mismatch, ledger_only, core_only, duplicate, in_doubt] = tally.by_class;
        let update = Statement::new("UPDATE reconciliation_run SET state = ")
            .bind(if failed.is_some() { "FAILED" } else { "DONE" })
            .push(", ended_at = ")
            .push(self.now())
            .push(", detail = ")
            .bind(failed)
            .push(", host_lines = ")
            .bind(tally.host_lines)
            .push(", matched = ")
            .bind(tally.matched)
            .push(", mismatch = ")
            .bind(mismatch)
            .push(", ledger_only = ")
            .bind(ledger_only)
            .push(", core_only = ")
            .bind(core_only)
            .push(", duplicate = ")
            .bind(duplicate)
            .push(", in_doubt = ")
            .bind(in_doubt)
            .push(" WHERE run_id = ")
            .bind(run);
        let mut session = self.writing().await?;
        session.run(update).await?;
        if failed.is_some() {
            // What a half run found is no finding.
            session.run(Statement::new("DELETE FROM reconciliation_difference WHERE run_id = ").bind(run)).await?;
        }
        session.commit().await?;
        self.drop_lines().await
    }

    /// Deletes the staged lists of runs that have ended, a part at a time: others write as well.
    async fn drop_lines(&self) -> Result<(), StoreError> {
        loop {
            let ended = Statement::new(
                "DELETE FROM reconciliation_line WHERE (run_id, transaction_id, position) IN (SELECT l.run_id, \
                 l.transaction_id, l.position FROM reconciliation_line l JOIN reconciliation_run r ON r.run_id = l.run_id \
                 WHERE r.state <> 'RUNNING' LIMIT 20000)",
            );
            if self.write(ended).await? == 0 {
                return Ok(());
            }
        }
    }

    /// Runs, newest first.
    pub(in crate::ledger::store) async fn runs(&self, limit: u32) -> Result<Vec<Run>, StoreError> {
        let select = Statement::new(RUN).push(" ORDER BY started_at DESC, run_id DESC LIMIT ").bind(limit);
        let found = self.reading().await?.all(select).await?;
        found.into_iter().map(|mut cells| read_run(&mut cells)).collect()
    }

    /// One run.
    pub(in crate::ledger::store) async fn run(&self, run: &str) -> Result<Option<Run>, StoreError> {
        let select = Statement::new(RUN).push(" WHERE run_id = ").bind(run);
        let found = self.reading().await?.first(select).await?;
        found.map(|mut cells| read_run(&mut cells)).transpose()
    }

    /// Differences of a run behind a place.
    pub(in crate::ledger::store) async fn differences(
        &self,
        run: &str,
        after: i64,
        limit: u32,
    ) -> Result<Vec<Difference>, StoreError> {
        let select = Statement::new(
            "SELECT seq, class, transaction_id, ledger_status, ledger_amount, core_flag, core_amount \
             FROM reconciliation_difference WHERE run_id = ",
        )
        .bind(run)
        .push(" AND seq > ")
        .bind(after)
        .push(" ORDER BY seq LIMIT ")
        .bind(limit);
        let found = self.reading().await?.all(select).await?;
        let difference = |mut cells: Cells| {
            let seq = cells.int()?;
            let class = cells.text()?;
            Ok(Difference {
                seq,
                class: Class::ALL.into_iter().find(|known| known.name() == class).ok_or(StoreError::Malformed)?,
                id: cells.text()?,
                ledger_status: cells.maybe_text()?,
                ledger_amount: cells.maybe_int()?,
                core_flag: cells.maybe_text()?,
                core_amount: cells.maybe_int()?,
            })
        };
        found.into_iter().map(difference).collect()
    }
}

fn read_run(cells: &mut Cells) -> Result<Run, StoreError> {
    Ok(Run {
        id: cells.text()?,
        business_day: cells.text()?,
        institution: cells.text()?,
        state: cells.text()?,
        started_at: cells.int()?,
        ended_at: cells.maybe_int()?,
        detail: cells.maybe_text()?,
        tally: Tally {
            host_lines: cells.unsigned()?,
            matched: cells.unsigned()?,
            by_class: [cells.unsigned()?, cells.unsigned()?, cells.unsigned()?, cells.unsigned()?, cells.unsigned()?],
        },
    })
}
