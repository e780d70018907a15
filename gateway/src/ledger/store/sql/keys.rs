//! The keys of a store that no other gateway uses. The journal keeps them until their rows are shipped: a claim only looks whether
//! its key is in the store, and what is written is a claim that has ended, with its row. `docs/decisions/keys-in-the-journal.md` says
//! why that is enough.

use super::super::StoreError;
use super::super::claim::{Claim, Claimed, Owner};
use super::SqlStore;
use super::claims::{read_key, read_taken};
use super::statement::Statement;
use crate::ledger::row::Outcome;

/// Values of a claim that has ended.
const VALUES: usize = 10;

impl SqlStore {
    /// Looks whether keys were used before. Answers come in the order of the claims.
    pub(in crate::ledger::store) async fn find_claims(
        &self,
        owner: Owner,
        claims: &[Claim],
    ) -> Result<Vec<Claimed>, StoreError> {
        let wanted: Vec<&Claim> = claims.iter().collect();
        // One more row, of nothing, says that this life of the gateway may still claim.
        let nothing = " UNION ALL SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL WHERE EXISTS (";
        let question = self.who_has(&wanted).push(nothing).then(self.may_claim(owner)).push(")");
        let (mut holders, mut may_claim) = (Vec::new(), false);
        for mut cells in self.looking().await?.all(question).await? {
            match read_key(&mut cells)? {
                Some(key) => holders.push((key, read_taken(&mut cells).ok())),
                None => may_claim = true,
            }
        }
        if !may_claim {
            return Err(StoreError::Fenced);
        }
        let claimed = claims.iter().map(|claim| match holders.iter().find(|(key, _)| *key == claim.key) {
            None => Claimed::Ours,
            Some((_, Some(taken))) if taken.is_by(claim) => Claimed::Ours,
            Some((_, Some(taken))) => Claimed::Taken(Box::new(taken.clone())),
            // One that does not read is not free.
            Some((_, None)) => Claimed::LetGo,
        });
        Ok(claimed.collect())
    }

    /// Writes claims, also of a life that may claim no more.
    pub(in crate::ledger::store) async fn write_claims(
        &self,
        owner: Owner,
        claims: &[Claim],
    ) -> Result<(), StoreError> {
        let mut sorted: Vec<&Claim> = claims.iter().collect();
        sorted.sort_by(|a, b| a.key.cmp(&b.key));
        self.write(self.insertion(owner, &sorted, None)).await?;
        self.wrote(claims.len());
        Ok(())
    }

    /// Writes claims that have ended, for the transaction that ships their rows. One that was written down while it ran is ended, and
    /// one that was written down too late, by a transaction that had let the key go, gives way.
    pub(super) fn kept_claims(&self, ended: &[&Outcome]) -> Statement {
        let write = |statement: Statement, outcome: &&Outcome| {
            let (facts, answer) = (&outcome.row.facts, outcome.answer.as_ref());
            let keyed = facts.keyed.as_deref();
            statement
                .push("(")
                .common(VALUES, &facts.client)
                .and_common(VALUES, keyed.map_or("", |keyed| &keyed.method))
                .and_common(VALUES, keyed.map_or("", |keyed| &keyed.path))
                .and_bind(&facts.idempotency_key_hash)
                .and_bind(facts.id.as_str())
                .and_bind(keyed.map(|keyed| keyed.fingerprint.clone()))
                .and_bind(answer.map(|answer| i64::from(answer.http)))
                .and_bind(answer.map(|answer| answer.body.clone()))
                .and_bind(facts.requested_at)
                .and_bind(facts.id.as_str().get(4..5))
                .push(")")
        };
        let statement = Statement::new(
            "INSERT INTO idempotency_claim (client, method, path, key_hash, transaction_id, fingerprint, answer_status, \
             answer_body, claimed_at, instance, facts, state, lease_until, journal_id, ended_at) \
             SELECT column1, column2, column3, column4, column5, column6, column7, column8, column9, column10, '', 'ENDED', 0, ",
        );
        // No journal has it any more.
        let statement = statement.bind(&[][..]).push(", (SELECT ").push(self.now());
        // Each once: PostgreSQL changes no row twice. It ships kept keys only when a folder comes to it from SQLite.
        let statement = statement.push(") FROM (VALUES ");
        let statement = match self {
            Self::Sqlite { .. } => statement.set(ended, write),
            Self::Postgres { .. } => statement.list(ended, write).once(),
        };
        statement.push(
            ") AS v WHERE true ON CONFLICT (client, method, path, key_hash) DO UPDATE SET state = 'ENDED', facts = '', \
             transaction_id = excluded.transaction_id, fingerprint = excluded.fingerprint, ended_at = excluded.ended_at, \
             answer_status = excluded.answer_status, answer_body = excluded.answer_body \
             WHERE idempotency_claim.transaction_id = excluded.transaction_id OR idempotency_claim.state <> 'ENDED'",
        )
    }
}
