//! Rows of the ledger as one statement. What all of them have in common is bound once, where the database can do that: most of
//! what a row costs its writer, beside the indexes, is values that are bound.

use codec::MaskedAccount;

use super::SqlStore;
use super::statement::Statement;
use crate::ledger::row::{Proof, Resolution, ResolveAs, Row};

/// Rows in one statement. More gain nothing: its program and its values no longer fit into a core's cache.
pub(super) const ROWS_PER_STATEMENT: usize = 64;

/// A row on its way in, and how its doubt starts out.
pub(super) type New<'a> = (&'a Row, Resolution, Option<ResolveAs>);

/// Columns that go together.
struct Part {
    columns: &'static str,
    /// A place for each of them.
    places: &'static str,
    count: usize,
    /// Adds their values. The row before has its own so many values back.
    bind: fn(Statement, &New<'_>, usize) -> Statement,
}

/// Whether two rows say the same in a part.
type Same = fn(&New<'_>, &New<'_>) -> bool;

/// What each row says for itself.
const OWN: Part = Part {
    columns: "transaction_id, account_masked, account_hash, attempt_log, requested_at, responded_at, elapsed_us, correlation_id",
    places: "?, ?, ?, ?, ?, ?, ?, ?",
    count: 8,
    bind: |statement, (Row { facts, closing }, ..), _| {
        statement
            .value(facts.id.as_str())
            .value(facts.account.as_ref().map(MaskedAccount::as_str))
            .value(&facts.account_hash)
            .value(serde_json::to_string(&closing.attempts).unwrap_or_default())
            .value(facts.requested_at)
            .value(closing.responded_at)
            .value(closing.elapsed_us)
            .value(&facts.correlation_id)
    },
};

/// What may be the same in all rows of a statement: what an inquiry does not have; how they ended, as most end well; and who asked
/// for what.
const SHAREABLE: [(Part, Same); 3] = [
    (
        Part {
            columns: "counter_account_masked, counter_account_hash, amount, idempotency_key_hash",
            places: "?, ?, ?, ?",
            count: 4,
            bind: |statement, (Row { facts, .. }, ..), _| {
                statement
                    .value(facts.counter_account.as_ref().map(MaskedAccount::as_str))
                    .value(&facts.counter_account_hash)
                    .value(facts.amount)
                    .value(&facts.idempotency_key_hash)
            },
        },
        |(one, ..), (other, ..)| {
            let (one, other) = (&one.facts, &other.facts);
            one.counter_account == other.counter_account
                && one.counter_account_hash == other.counter_account_hash
                && one.amount == other.amount
                && one.idempotency_key_hash == other.idempotency_key_hash
        },
    ),
    (
        Part {
            columns: "business_day, status, proof, response_code, detail, attempts, served_from, resolution, resolve_as",
            places: "?, ?, ?, ?, ?, ?, ?, ?, ?",
            count: 9,
            bind: |statement, (Row { facts, closing }, resolution, resolve_as), row| {
                statement
                    .common_value(row, facts.id.business_day())
                    .common_value(row, closing.status.name())
                    .value(closing.proof.map(Proof::name))
                    .value(&closing.response_code)
                    .value(&closing.detail)
                    .value(i64::try_from(closing.attempts.len()).unwrap_or(i64::MAX))
                    .common_value(row, closing.served_from.name())
                    .common_value(row, resolution.name())
                    .value(resolve_as.map(ResolveAs::name))
            },
        },
        |(one, one_resolution, one_resolve_as), (other, other_resolution, other_resolve_as)| {
            let (one_id, other_id) = (one.facts.id, other.facts.id);
            let (one, other) = (&one.closing, &other.closing);
            one_id.business_day() == other_id.business_day()
                && one.status == other.status
                && one.proof == other.proof
                && one.response_code == other.response_code
                && one.detail == other.detail
                && one.attempts.len() == other.attempts.len()
                && one.served_from == other.served_from
                && one_resolution == other_resolution
                && one_resolve_as == other_resolve_as
        },
    ),
    (
        Part {
            columns: "tx_code, route, kind, institution, client, layout_version",
            places: "?, ?, ?, ?, ?, ?",
            count: 6,
            bind: |statement, (Row { facts, .. }, ..), row| {
                statement
                    .common_value(row, &facts.tx_code)
                    .common_value(row, &facts.route)
                    .common_value(row, facts.kind.name())
                    .common_value(row, &facts.institution)
                    .common_value(row, &facts.client)
                    .value(facts.layout_version)
            },
        },
        |(one, ..), (other, ..)| {
            let (one, other) = (&one.facts, &other.facts);
            one.tx_code == other.tx_code
                && one.route == other.route
                && one.kind == other.kind
                && one.institution == other.institution
                && one.client == other.client
                && one.layout_version == other.layout_version
        },
    ),
];

impl SqlStore {
    /// The statement that inserts rows, and passes over those whose id is there.
    pub(super) fn row_insertion(&self, rows: &[New<'_>]) -> Statement {
        let can_share = self.dialect().shares_values && rows.len() > 1;
        let (mut each, mut shared) = (vec![&OWN], Vec::new());
        for (part, same) in &SHAREABLE {
            let is_shared = can_share && rows.array_windows().all(|[one, next]| same(one, next));
            if is_shared { &mut shared } else { &mut each }.push(part);
        }
        let columns = each.iter().chain(&shared).map(|part| part.columns);
        let mut statement = Statement::new(self.dialect().insert).push(" INTO ledger (");
        statement = join(statement, columns).push(") ");
        let row = each.iter().map(|part| part.count).sum();
        let write = |mut statement: Statement, new: &New<'_>| {
            statement = join(statement.push("("), each.iter().map(|part| part.places)).push(")");
            each.iter().fold(statement, |statement, part| (part.bind)(statement, new, row))
        };
        statement = match rows.first().filter(|_| !shared.is_empty()) {
            None => statement.push("VALUES ").set(rows, write),
            Some(first) => {
                statement = join(statement.push("SELECT own.*, "), shared.iter().map(|part| part.places));
                statement = shared.iter().fold(statement, |statement, part| (part.bind)(statement, first, row));
                // The condition tells the parser that `ON` does not join anything.
                statement.push(" FROM (VALUES ").set(rows, write).push(") AS own WHERE true")
            }
        };
        statement.push(" ON CONFLICT (transaction_id) DO NOTHING")
    }
}

fn join(statement: Statement, pieces: impl Iterator<Item = &'static str>) -> Statement {
    pieces.enumerate().fold(statement, |statement, (index, piece)| {
        let statement = if index > 0 { statement.push(", ") } else { statement };
        statement.push(piece)
    })
}
