//! The store in one SQLite file. A single writer connection and a few readers over a write-ahead log; every commit is
//! synced (`synchronous=FULL`), because the journal forgets what the checkpoint says is here.

mod rows;

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{QueryBuilder, Row as _, Sqlite};

use super::{Claim, Claimed, Filter, Shipment, StoreError, StoredRow};
use crate::ledger::id::{BLOCKS, Instance, TransactionId};
use crate::ledger::journal::Position;
use crate::ledger::row::{Row, Status};
use rows::{ROWS_PER_STATEMENT, insert, push_filter, read, select};

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
