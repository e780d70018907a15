//! Claims as SQL. Every batch that touches claims does so in the order of their keys, so that two batches can't wait for each
//! other.

use std::time::Duration;

use super::super::claim::{Claim, ClaimKey, Claimed, Owner, Progress, Taken};
use super::super::{Of, Shipment, StoreError};
use super::insertion::ROWS_PER_STATEMENT;
use super::rows::Care;
use super::statement::Statement;
use super::{Cells, Session, SqlStore};
use crate::ledger::id::TransactionId;
use crate::ledger::row::{Answer, Facts, Outcome, Resolution, ResolveAs, Row, Status};

/// Values of a claim in its insertion.
const VALUES: usize = 8;

pub(super) fn microseconds(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

fn facts(json: &str) -> Result<Facts, StoreError> {
    serde_json::from_str(json).map_err(|_| StoreError::Malformed)
}

impl SqlStore {
    /// Claims keys, all in one statement, which is a transaction of its own. Answers come in the order of the claims.
    pub(in crate::ledger::store) async fn claim(
        &self,
        owner: Owner,
        claims: &[Claim],
    ) -> Result<Vec<Claimed>, StoreError> {
        let mut sorted: Vec<&Claim> = claims.iter().collect();
        sorted.sort_by(|a, b| a.key.cmp(&b.key));
        let mut session = self.writer().await?;
        // How many got in is enough to know, almost always: each that is returned wakes whoever waits for it.
        let inserted = session.run(self.insertion(owner, &sorted, Some(self.may_claim(owner)))).await?;
        self.wrote(claims.len());
        if usize::try_from(inserted) == Ok(claims.len()) {
            session.has_committed();
            return Ok(vec![Claimed::Ours; claims.len()]);
        }
        // On the connection that is there: those who got in must not depend on another one.
        let holders = self.holders(session, owner, &sorted).await?;
        let claimed = claims.iter().map(|claim| match holders.iter().find(|(key, _)| *key == claim.key) {
            Some((_, taken)) if taken.is_by(claim) => Claimed::Ours,
            Some((_, taken)) => Claimed::Taken(Box::new(taken.clone())),
            None => Claimed::LetGo,
        });
        Ok(claimed.collect())
    }

    /// Inserts what is free, if `only_if` finds anything.
    pub(super) fn insertion(&self, owner: Owner, claims: &[&Claim], only_if: Option<Statement>) -> Statement {
        let write = |statement: Statement, claim: &&Claim| {
            let Claim { key, facts, fingerprint, lease, .. } = claim;
            statement
                .push("(")
                .common(VALUES, &key.client)
                .and_common(VALUES, &key.method)
                .and_common(VALUES, &key.path)
                .and_bind(&key.key_hash)
                .and_bind(facts.id.as_str())
                .and_bind(fingerprint)
                .and_bind(claim.facts_json().into_owned())
                .and_bind(microseconds(*lease))
                .push(")")
        };
        let statement = Statement::new(
            "INSERT INTO idempotency_claim (client, method, path, key_hash, transaction_id, fingerprint, facts, state, \
             claimed_at, lease_until, instance, journal_id) \
             SELECT column1, column2, column3, column4, column5, column6, column7, 'RUNNING', (SELECT ",
        );
        statement
            .push(self.now())
            .push("), (SELECT ")
            .push(self.now())
            .push(") + column8, ")
            .bind(owner.instance.letter().to_string())
            .and_bind(&owner.journal[..])
            .push(" FROM (VALUES ")
            .set(claims, write)
            .push(") AS v WHERE EXISTS (")
            .then(only_if.unwrap_or_else(|| Statement::new("SELECT 1")))
            .push(") ON CONFLICT DO NOTHING")
    }

    /// Finds the row that says that this life of the gateway may claim. Kept until the transaction ends.
    pub(super) fn may_claim(&self, owner: Owner) -> Statement {
        Statement::new("SELECT 1 FROM instance_lease WHERE instance = ")
            .bind(owner.instance.letter().to_string())
            .push(" AND incarnation = ")
            .bind(owner.incarnation)
            .push(" AND journal_id = ")
            .bind(&owner.journal[..])
            .push(self.for_share())
    }

    /// Who has these keys, while this life of the gateway may still claim.
    async fn holders(
        &self,
        mut session: Session,
        owner: Owner,
        claims: &[&Claim],
    ) -> Result<Vec<(ClaimKey, Taken)>, StoreError> {
        session.run(Statement::new(self.dialect().begin)).await?;
        if session.first(self.may_claim(owner)).await?.is_none() {
            session.roll_back().await?;
            return Err(StoreError::Fenced);
        }
        let found = session.all(self.who_has(claims)).await?;
        session.commit().await?;
        // One that does not read is nobody's for its own key, and nothing to those beside it.
        let read =
            found.into_iter().filter_map(|mut cells| Some((read_key(&mut cells).ok()??, read_taken(&mut cells).ok()?)));
        Ok(read.collect())
    }

    /// Looks for the claims that have these keys; [`read_key`] and [`read_taken`] read what is found. SQLite follows the order of the
    /// tables in a cross join: from the keys into the claims' index, and not over all claims.
    pub(in crate::ledger::store) fn who_has(&self, claims: &[&Claim]) -> Statement {
        Statement::new(
            "SELECT c.client, c.method, c.path, c.key_hash, c.transaction_id, c.journal_id, c.fingerprint, c.state, \
             c.lease_until - ",
        )
        .push(self.now())
        .push(", c.answer_status, c.answer_body, l.status, l.resolution FROM (VALUES ")
        .set(claims, |statement, Claim { key, .. }| {
            let statement = statement.push("(").bind(&key.client).and_bind(&key.method).and_bind(&key.path);
            statement.and_bind(&key.key_hash).push(")")
        })
        .push(
            ") AS v CROSS JOIN idempotency_claim c LEFT JOIN ledger l ON l.transaction_id = c.transaction_id \
             WHERE c.client = v.column1 AND c.method = v.column2 AND c.path = v.column3 AND c.key_hash = v.column4",
        )
    }

    /// Frees the keys of transactions that provably never left.
    pub(in crate::ledger::store) async fn release(
        &self,
        owner: Owner,
        ids: &[TransactionId],
    ) -> Result<(), StoreError> {
        let mut session = self.writing().await?;
        self.lock_claims(&mut session, ids).await?;
        let delete = Statement::new("DELETE FROM idempotency_claim WHERE journal_id = ")
            .bind(&owner.journal[..])
            .push(" AND state <> 'ENDED' AND transaction_id IN (")
            .set(ids, |statement, id| statement.bind(id.as_str()))
            .push(")");
        session.run(delete).await?;
        session.commit().await
    }

    /// Claims of a journal that are not known to have ended, oldest first.
    pub(in crate::ledger::store) async fn open_claims(
        &self,
        journal: [u8; 16],
        limit: u32,
    ) -> Result<Vec<Facts>, StoreError> {
        let select = Statement::new("SELECT facts FROM idempotency_claim WHERE state <> 'ENDED' AND journal_id = ")
            .bind(&journal[..])
            .push(" ORDER BY claimed_at LIMIT ")
            .bind(limit);
        let found = self.reading().await?.all(select).await?;
        found.into_iter().map(|mut cells| facts(&cells.text()?)).collect()
    }

    /// Marks claims of other journals whose time is over: nobody can tell what became of them.
    pub(in crate::ledger::store) async fn abandon_overdue(&self, owner: Owner) -> Result<u64, StoreError> {
        let update = Statement::new(
            "UPDATE idempotency_claim SET state = 'ABANDONED' WHERE transaction_id IN (SELECT transaction_id \
             FROM idempotency_claim WHERE state <> 'ENDED' AND state = 'RUNNING' AND lease_until < ",
        )
        .push(self.now())
        .push(" AND journal_id <> ")
        .bind(&owner.journal[..])
        .push(self.for_update_skipping())
        .push(")");
        self.write(update).await
    }

    /// Marks everything that a journal still runs, whatever its lease.
    pub(in crate::ledger::store) async fn abandon_journal(&self, journal: [u8; 16]) -> Result<u64, StoreError> {
        let update = Statement::new(
            "UPDATE idempotency_claim SET state = 'ABANDONED' WHERE state = 'RUNNING' AND journal_id = ",
        );
        self.write(update.bind(&journal[..])).await
    }

    /// Claims that nobody can tell the end of, oldest first.
    pub(in crate::ledger::store) async fn abandoned(&self, of: Of<'_>, limit: u32) -> Result<Vec<Facts>, StoreError> {
        let select = Statement::new(
            "SELECT facts FROM idempotency_claim WHERE state <> 'ENDED' AND state = 'ABANDONED' AND facts <> ''",
        );
        let select = match of {
            Of::Everybody => select,
            Of::Client(client) => select.push(" AND client = ").bind(client),
            Of::Transaction(id) => select.push(" AND transaction_id = ").bind(id.as_str()),
        };
        let select = select.push(" ORDER BY claimed_at LIMIT ").bind(limit);
        let found = self.reading().await?.all(select).await?;
        found.into_iter().map(|mut cells| facts(&cells.text()?)).collect()
    }

    /// Forgets keys whose time is over. One whose transaction is in doubt stays, and its time begins when it is resolved.
    pub(in crate::ledger::store) async fn purge_claims(&self, keep: Duration) -> Result<u64, StoreError> {
        let delete = Statement::new(
            "DELETE FROM idempotency_claim WHERE transaction_id IN (SELECT c.transaction_id FROM idempotency_claim c \
             WHERE c.state = 'ENDED' AND c.ended_at < ",
        )
        .push(self.now())
        .push(" - ")
        .bind(microseconds(keep))
        .push(
            " AND NOT EXISTS (SELECT 1 FROM ledger l WHERE l.transaction_id = c.transaction_id \
             AND (l.resolution IN ('PENDING', 'MANUAL') OR l.resolved_at >= ",
        )
        .push(self.now())
        .push(" - ")
        .bind(microseconds(keep))
        .push(")) LIMIT 1000")
        .push(self.for_update_skipping())
        .push(")");
        self.write(delete).await
    }

    /// Takes the rows in the order of their keys. SQLite has one writer and needs no order.
    async fn lock_claims(&self, session: &mut Session, ids: &[TransactionId]) -> Result<(), StoreError> {
        if let Self::Sqlite { .. } = self {
            return Ok(());
        }
        let select = Statement::new("SELECT transaction_id FROM idempotency_claim WHERE transaction_id IN (")
            .set(ids, |statement, id| statement.bind(id.as_str()))
            .push(") ORDER BY client, method, path, key_hash")
            .push(self.for_update());
        session.all(select).await?;
        Ok(())
    }

    /// Says in the claims how these transactions ended, in the transaction that ships their rows. Whoever had called a claim
    /// abandoned was wrong: its own outcome always wins.
    pub(super) async fn end_claims(&self, session: &mut Session, outcomes: &[Outcome]) -> Result<(), StoreError> {
        let keyed = |outcome: &&Outcome| outcome.row.facts.idempotency_key_hash.is_some();
        let outcomes: Vec<&Outcome> = outcomes.iter().filter(keyed).collect();
        for chunk in outcomes.chunks(ROWS_PER_STATEMENT) {
            let ids: Vec<TransactionId> = chunk.iter().map(|outcome| outcome.row.facts.id).collect();
            self.lock_claims(session, &ids).await?;
            let (unsent, ended): (Vec<&Outcome>, Vec<&Outcome>) =
                chunk.iter().partition(|outcome| outcome.row.is_provably_unsent());
            if !unsent.is_empty() {
                let delete =
                    Statement::new("DELETE FROM idempotency_claim WHERE state <> 'ENDED' AND transaction_id IN (")
                        .set(&unsent, |statement, outcome| statement.bind(outcome.row.facts.id.as_str()))
                        .push(")");
                session.run(delete).await?;
            }
            let (kept, ended): (Vec<&Outcome>, Vec<&Outcome>) =
                ended.into_iter().partition(|outcome| outcome.row.facts.keyed.is_some());
            if !kept.is_empty() {
                session.run(self.kept_claims(&kept)).await?;
            }
            if !ended.is_empty() {
                let update = Statement::new("UPDATE idempotency_claim SET state = 'ENDED', ended_at = ")
                    .push(self.now())
                    .push(", answer_status = v.column2, answer_body = v.column3, facts = '' FROM (VALUES ")
                    .set(&ended, |statement, outcome| {
                        let answer = outcome.answer.as_ref();
                        let statement = statement.push("(").bind(outcome.row.facts.id.as_str());
                        let statement = statement.and_bind(answer.map(|answer| i64::from(answer.http)));
                        statement.and_bind(answer.map(|answer| answer.body.clone())).push(")")
                    })
                    .push(") AS v WHERE transaction_id = v.column1");
                session.run(update).await?;
            }
        }
        Ok(())
    }

    /// Turns a journal's open claims into UNKNOWN rows that are resolved by asking. Their journal never speaks again.
    pub(super) async fn close_claims_of(&self, session: &mut Session, journal: [u8; 16]) -> Result<u64, StoreError> {
        let select = Statement::new("SELECT facts, ")
            .push(self.now())
            .push(" FROM idempotency_claim WHERE state <> 'ENDED' AND journal_id = ")
            .bind(&journal[..])
            .push(" ORDER BY client, method, path, key_hash")
            .push(self.for_update());
        let mut rows = Vec::new();
        for mut cells in session.all(select).await? {
            let (facts, now) = (facts(&cells.text()?)?, cells.int()?);
            rows.push(Row::in_doubt(facts, "retired", now));
        }
        let new: Vec<_> = rows.iter().map(|row| (row, Resolution::Pending, Some(ResolveAs::Confirm))).collect();
        for chunk in new.chunks(500) {
            self.insert(session, chunk, Care::ForEachRow, &mut Shipment::default()).await?;
        }
        let update = Statement::new("UPDATE idempotency_claim SET state = 'ENDED', ended_at = ")
            .push(self.now())
            .push(" WHERE state <> 'ENDED' AND journal_id = ")
            .bind(&journal[..]);
        session.run(update).await
    }
}

/// The key that was found; `None` from a row of nothing.
pub(super) fn read_key(cells: &mut Cells) -> Result<Option<ClaimKey>, StoreError> {
    let Some(client) = cells.maybe_text()? else { return Ok(None) };
    Ok(Some(ClaimKey { client, method: cells.text()?, path: cells.text()?, key_hash: cells.bytes()? }))
}

pub(super) fn read_taken(cells: &mut Cells) -> Result<Taken, StoreError> {
    let malformed = || StoreError::Malformed;
    let id = TransactionId::parse(&cells.text()?).ok_or_else(malformed)?;
    // Claims that are older than journals' numbers in claims have none.
    let journal = cells.bytes()?.try_into().unwrap_or_default();
    let (fingerprint, state, overdue) = (cells.bytes()?, cells.text()?, cells.int()? < 0);
    let progress = match state.as_str() {
        "ENDED" => Progress::Ended,
        "RUNNING" if !overdue => Progress::Running,
        _ => Progress::Overdue,
    };
    let answer = match (cells.maybe_int()?, cells.maybe_bytes()?) {
        (Some(http), Some(body)) => {
            Some(Answer { http: u16::try_from(http).map_err(|_| StoreError::Malformed)?, body })
        }
        _ => None,
    };
    let ledger = match (cells.maybe_text()?, cells.maybe_text()?) {
        (Some(status), Some(resolution)) => Some((
            Status::by_name(&status).ok_or_else(malformed)?,
            Resolution::by_name(&resolution).ok_or_else(malformed)?,
        )),
        _ => None,
    };
    Ok(Taken { id, journal, fingerprint, progress, answer, ledger })
}
