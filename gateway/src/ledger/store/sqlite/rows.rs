//! Rows as SQL: the columns, their way in and their way out.

use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{QueryBuilder, Row as _, Sqlite};

use crate::ledger::id::TransactionId;
use crate::ledger::row::{Attempt, Closing, Facts, Proof, Row, Status};
use crate::ledger::store::{Filter, StoreError, StoredRow};
use crate::routes::Kind;

const COLUMNS: &str = "transaction_id, tx_code, route, kind, institution, client, account_masked, account_hash, \
     counter_account_masked, counter_account_hash, amount, status, proof, response_code, detail, attempts, attempt_log, \
     requested_at, responded_at, elapsed_us, correlation_id, idempotency_key_hash, layout_version, resolution";

/// Rows in one statement; 24 columns each stay below SQLite's limit of 32,766 variables.
pub(super) const ROWS_PER_STATEMENT: usize = 500;

/// Inserts rows; those whose ids are there already are passed over. Returns how many are new.
pub(super) async fn insert(connection: &mut SqliteConnection, rows: &[Row]) -> Result<usize, sqlx::Error> {
    let mut query = QueryBuilder::<Sqlite>::new("INSERT INTO ledger (");
    query.push(COLUMNS).push(") ");
    query.push_values(rows, |mut values, row| {
        let Row { facts, closing } = row;
        let masked = |account: &Option<codec::MaskedAccount>| account.as_ref().map(ToString::to_string);
        values
            .push_bind(facts.id.to_string())
            .push_bind(&facts.tx_code)
            .push_bind(&facts.route)
            .push_bind(facts.kind.name())
            .push_bind(&facts.institution)
            .push_bind(&facts.client)
            .push_bind(masked(&facts.account))
            .push_bind(&facts.account_hash)
            .push_bind(masked(&facts.counter_account))
            .push_bind(&facts.counter_account_hash)
            .push_bind(facts.amount)
            .push_bind(closing.status.name())
            .push_bind(closing.proof.map(Proof::name))
            .push_bind(&closing.response_code)
            .push_bind(&closing.detail)
            .push_bind(i64::try_from(closing.attempts.len()).unwrap_or(i64::MAX))
            .push_bind(serde_json::to_string(&closing.attempts).unwrap_or_default())
            .push_bind(facts.requested_at)
            .push_bind(closing.responded_at)
            .push_bind(closing.elapsed_us)
            .push_bind(&facts.correlation_id)
            .push_bind(&facts.idempotency_key_hash)
            .push_bind(facts.layout_version)
            .push_bind(row.resolution());
    });
    query.push(" ON CONFLICT (transaction_id) DO NOTHING");
    let done = query.build().persistent(rows.len() == ROWS_PER_STATEMENT).execute(connection).await?;
    Ok(usize::try_from(done.rows_affected()).unwrap_or_default())
}

pub(super) fn select() -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new("SELECT seq, ");
    query.push(COLUMNS).push(" FROM ledger WHERE 1 = 1");
    query
}

pub(super) fn push_filter(query: &mut QueryBuilder<Sqlite>, filter: &Filter) {
    let mut equals = |column: &'static str, value: Option<&str>| {
        if let Some(value) = value {
            query.push(" AND ").push(column).push(" = ").push_bind(value.to_owned());
        }
    };
    equals("status", filter.status.map(Status::name));
    equals("tx_code", filter.tx_code.as_deref());
    equals("client", filter.client.as_deref());
    equals("institution", filter.institution.as_deref());
    equals("correlation_id", filter.correlation_id.as_deref());
    if let Some(from) = filter.from {
        query.push(" AND requested_at >= ").push_bind(from);
    }
    if let Some(to) = filter.to {
        query.push(" AND requested_at < ").push_bind(to);
    }
    if let Some(hash) = &filter.account_hash {
        query.push(" AND (account_hash = ").push_bind(hash.clone());
        query.push(" OR counter_account_hash = ").push_bind(hash.clone()).push(")");
    }
    if filter.unresolved {
        query.push(" AND resolution IN ('PENDING', 'MANUAL')");
    }
}

pub(super) fn read(row: &SqliteRow) -> Result<StoredRow, StoreError> {
    let text = |column: &str| -> Result<String, StoreError> { Ok(row.try_get(column)?) };
    let maybe = |column: &str| -> Result<Option<String>, StoreError> { Ok(row.try_get(column)?) };
    let number = |column: &str| -> Result<i64, StoreError> { Ok(row.try_get(column)?) };
    let bytes = |column: &str| -> Result<Option<Vec<u8>>, StoreError> { Ok(row.try_get(column)?) };
    let masked = |column: &str| -> Result<Option<codec::MaskedAccount>, StoreError> {
        let json = maybe(column)?.map(serde_json::Value::String);
        json.map(serde_json::from_value).transpose().map_err(|_| StoreError::Malformed)
    };
    let kind = match text("kind")?.as_str() {
        "inquiry" => Kind::Inquiry,
        "mutation" => Kind::Mutation,
        _ => return Err(StoreError::Malformed),
    };
    let proof = match maybe("proof")? {
        Some(name) => {
            let known = [Proof::P0, Proof::P1, Proof::P2, Proof::H].into_iter().find(|proof| proof.name() == name);
            Some(known.ok_or(StoreError::Malformed)?)
        }
        None => None,
    };
    let attempts: Vec<Attempt> = serde_json::from_str(&text("attempt_log")?).map_err(|_| StoreError::Malformed)?;
    let facts = Facts {
        id: TransactionId::parse(&text("transaction_id")?).ok_or(StoreError::Malformed)?,
        tx_code: text("tx_code")?,
        route: text("route")?,
        kind,
        institution: text("institution")?,
        client: text("client")?,
        account: masked("account_masked")?,
        account_hash: bytes("account_hash")?,
        counter_account: masked("counter_account_masked")?,
        counter_account_hash: bytes("counter_account_hash")?,
        amount: row.try_get("amount")?,
        requested_at: number("requested_at")?,
        correlation_id: text("correlation_id")?,
        idempotency_key_hash: bytes("idempotency_key_hash")?,
        layout_version: u32::try_from(number("layout_version")?).map_err(|_| StoreError::Malformed)?,
    };
    let closing = Closing {
        status: Status::by_name(&text("status")?).ok_or(StoreError::Malformed)?,
        proof,
        response_code: maybe("response_code")?,
        detail: maybe("detail")?,
        attempts,
        responded_at: number("responded_at")?,
        elapsed_us: number("elapsed_us")?,
    };
    Ok(StoredRow { seq: number("seq")?, row: Row { facts, closing }, resolution: text("resolution")? })
}
