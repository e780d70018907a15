//! The store in one SQLite file. A single writer connection and a few readers over a write-ahead log; every commit is
//! synced (`synchronous=FULL`), because the journal forgets what the checkpoint says is here.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteRow,
    SqliteSynchronous,
};
use sqlx::{QueryBuilder, Row as _, Sqlite};

use super::{Claim, Claimed, Filter, Shipment, StoreError, StoredRow};
use crate::ledger::id::{BLOCKS, Instance, TransactionId};
use crate::ledger::journal::Position;
use crate::ledger::row::{Attempt, Closing, Facts, Proof, Row, Status};
use crate::routes::Kind;

const COLUMNS: &str = "transaction_id, tx_code, route, kind, institution, client, account_masked, account_hash, \
     counter_account_masked, counter_account_hash, amount, status, proof, response_code, detail, attempts, attempt_log, \
     requested_at, responded_at, elapsed_us, correlation_id, idempotency_key_hash, layout_version, resolution";

/// Rows in one statement; 24 columns each stay below SQLite's limit of 32,766 variables.
const ROWS_PER_STATEMENT: usize = 500;

/// A store in one file.
#[derive(Debug, Clone)]
pub struct SqliteStore {
    writer: SqlitePool,
    readers: SqlitePool,
}

impl SqliteStore {
    /// Opens the file, making it if needed, and brings its tables up to date.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn open(file: &Path) -> Result<Self, StoreError> {
        let options = SqliteConnectOptions::new()
            .filename(file)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(Duration::from_secs(5));
        let pool = |most| SqlitePoolOptions::new().max_connections(most).acquire_timeout(Duration::from_secs(5));
        let writer = pool(1).connect_with(options.clone()).await?;
        let migration = Migration::new(
            1,
            "ledger".into(),
            MigrationType::Simple,
            sqlx::SqlStr::from_static(include_str!("../../../../migrations/sqlite/0001_ledger.sql")),
            false,
        );
        Migrator::with_migrations(vec![migration]).run(&writer).await?;
        let readers = pool(4).connect_with(options.read_only(true)).await?;
        Ok(Self { writer, readers })
    }

    pub(super) async fn take_block(&self, instance: Instance) -> Result<u64, StoreError> {
        let first = i64::try_from(fastrand::u64(..BLOCKS)).unwrap_or_default();
        let block: i64 = sqlx::query_scalar(
            "INSERT INTO id_block (instance, next_block) VALUES (?1, (?2 + 1) % ?3)
             ON CONFLICT (instance) DO UPDATE SET next_block = (next_block + 1) % ?3
             RETURNING (next_block + ?3 - 1) % ?3",
        )
        .bind(instance.letter().to_string())
        .bind(first)
        .bind(i64::try_from(BLOCKS).unwrap_or_default())
        .fetch_one(&self.writer)
        .await?;
        u64::try_from(block).map_err(|_| StoreError::Malformed)
    }

    pub(super) async fn checkpoints(&self) -> Result<HashMap<[u8; 16], Position>, StoreError> {
        let rows = sqlx::query("SELECT journal_id, segment, byte_offset FROM journal_checkpoint");
        let mut checkpoints = HashMap::new();
        for row in rows.fetch_all(&self.readers).await? {
            let journal: Vec<u8> = row.try_get(0)?;
            let journal = journal.try_into().map_err(|_| StoreError::Malformed)?;
            let number = |column| -> Result<u64, StoreError> {
                u64::try_from(row.try_get::<i64, _>(column)?).map_err(|_| StoreError::Malformed)
            };
            checkpoints.insert(journal, Position { segment: number(1)?, offset: number(2)? });
        }
        Ok(checkpoints)
    }

    pub(super) async fn ship(&self, rows: &[Row], journal: [u8; 16], upto: Position) -> Result<Shipment, StoreError> {
        let mut transaction = self.writer.begin_with("BEGIN IMMEDIATE").await?;
        let mut shipment = Shipment::default();
        for chunk in rows.chunks(ROWS_PER_STATEMENT) {
            let inserted = insert(&mut transaction, chunk).await;
            match inserted {
                Ok(count) if count == chunk.len() => shipment.inserted += count,
                Ok(count) => {
                    shipment.inserted += count;
                    shipment.parked += park_contradictions(&mut transaction, chunk).await?;
                }
                Err(error) if is_refusal(&error) => {
                    for row in chunk {
                        ship_one(&mut transaction, row, &mut shipment).await?;
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        sqlx::query(
            "INSERT INTO journal_checkpoint (journal_id, segment, byte_offset) VALUES (?1, ?2, ?3)
             ON CONFLICT (journal_id) DO UPDATE SET segment = ?2, byte_offset = ?3",
        )
        .bind(journal.to_vec())
        .bind(number(upto.segment))
        .bind(number(upto.offset))
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok(shipment)
    }

    pub(super) async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        let inserted = sqlx::query(
            "INSERT INTO idempotency_claim (client, method, path, key_hash, transaction_id, claimed_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT DO NOTHING",
        )
        .bind(&claim.client)
        .bind(&claim.method)
        .bind(&claim.path)
        .bind(&claim.key_hash)
        .bind(claim.transaction_id.as_str())
        .bind(claim.claimed_at)
        .execute(&self.writer)
        .await?;
        if inserted.rows_affected() == 1 {
            return Ok(Claimed::Ours);
        }
        let before: String = sqlx::query_scalar(
            "SELECT transaction_id FROM idempotency_claim WHERE client = ?1 AND method = ?2 AND path = ?3 AND key_hash = ?4",
        )
        .bind(&claim.client)
        .bind(&claim.method)
        .bind(&claim.path)
        .bind(&claim.key_hash)
        .fetch_one(&self.writer)
        .await?;
        TransactionId::parse(&before).map(Claimed::Before).ok_or(StoreError::Malformed)
    }

    pub(super) async fn row(&self, id: TransactionId) -> Result<Option<StoredRow>, StoreError> {
        let mut query = select();
        query.push(" AND transaction_id = ").push_bind(id.to_string());
        query.build().fetch_optional(&self.readers).await?.map(|row| read(&row)).transpose()
    }

    pub(super) async fn page(
        &self,
        filter: &Filter,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<StoredRow>, StoreError> {
        let mut query = select();
        push_filter(&mut query, filter);
        if let Some(before) = before {
            query.push(" AND seq < ").push_bind(before);
        }
        query.push(" ORDER BY seq DESC LIMIT ").push_bind(i64::from(limit));
        query.build().fetch_all(&self.readers).await?.iter().map(read).collect()
    }

    pub(super) async fn summary(&self, filter: &Filter) -> Result<[u64; 3], StoreError> {
        let mut query = QueryBuilder::<Sqlite>::new("SELECT status, COUNT(*) FROM ledger WHERE 1 = 1");
        push_filter(&mut query, filter);
        query.push(" GROUP BY status");
        let mut counts = [0; 3];
        for row in query.build().fetch_all(&self.readers).await? {
            let (name, count): (String, i64) = (row.try_get(0)?, row.try_get(1)?);
            for (slot, status) in counts.iter_mut().zip(Status::ALL) {
                if status.name() == name {
                    *slot = u64::try_from(count).unwrap_or_default();
                }
            }
        }
        Ok(counts)
    }
}

async fn insert(connection: &mut SqliteConnection, rows: &[Row]) -> Result<usize, sqlx::Error> {
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

/// Inserts one row of a batch that was refused as a whole; a row that is refused by itself is parked.
async fn ship_one(connection: &mut SqliteConnection, row: &Row, shipment: &mut Shipment) -> Result<(), StoreError> {
    match insert(connection, std::slice::from_ref(row)).await {
        Ok(0) => shipment.parked += park_contradictions(connection, std::slice::from_ref(row)).await?,
        Ok(_) => shipment.inserted += 1,
        Err(error) if is_refusal(&error) => {
            park(connection, row, "refused by the store").await?;
            shipment.parked += 1;
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Of rows whose ids are there already, parks those that say something else.
async fn park_contradictions(connection: &mut SqliteConnection, rows: &[Row]) -> Result<usize, StoreError> {
    let mut parked = 0;
    for row in rows {
        let mut query = select();
        query.push(" AND transaction_id = ").push_bind(row.facts.id.to_string());
        let there = query.build().fetch_one(&mut *connection).await?;
        if read(&there)?.row != *row {
            park(connection, row, "contradicts the row that is there").await?;
            parked += 1;
        }
    }
    Ok(parked)
}

async fn park(connection: &mut SqliteConnection, row: &Row, reason: &'static str) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO ledger_parked (transaction_id, reason, row_json) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING",
    )
    .bind(row.facts.id.to_string())
    .bind(reason)
    .bind(serde_json::to_string(row).unwrap_or_default())
    .execute(connection)
    .await?;
    Ok(())
}

/// Whether the database refuses the row itself (constraint 19, type mismatch 20) and will do so each time.
fn is_refusal(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code()?.parse::<u32>().ok());
    matches!(code.map(|code| code & 0xFF), Some(19 | 20))
}

fn select() -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new("SELECT seq, ");
    query.push(COLUMNS).push(" FROM ledger WHERE 1 = 1");
    query
}

fn push_filter(query: &mut QueryBuilder<Sqlite>, filter: &Filter) {
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

fn read(row: &SqliteRow) -> Result<StoredRow, StoreError> {
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
