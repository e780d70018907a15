//! One text of SQL for two databases. A [`Statement`] is put together from texts of the program and bound values; a
//! [`Session`] runs it on SQLite or on PostgreSQL. What differs between the two stands here and nowhere else.
//!
//! A session that writes is a transaction, or one statement that is a transaction by itself. Dropped before its end, for whatever
//! reason, its connection is closed and never used again, so that a half-done transaction can't be inherited by the next one. A
//! statement by itself may then still be carried out, later.

mod cells;
pub(super) mod claims;
pub(super) mod doubts;
mod errors;
mod insertion;
pub(super) mod instances;
pub(super) mod keys;
pub(super) mod log;
pub(super) mod reconciliation;
pub(super) mod rows;
mod statement;

use std::sync::Arc;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgPool, Postgres};
use sqlx::sqlite::SqlitePool;
use sqlx::{AssertSqlSafe, Sqlite};

use super::StoreError;
use cells::{AnyRow, Cells};
pub(super) use errors::is_contention;
use errors::is_refusal;
use log::Log;
use statement::Statement;

/// Longest time that one statement may take before its connection is given up.
const STATEMENT_LIMIT: Duration = Duration::from_secs(10);

/// A database with the ledger's tables.
#[derive(Debug, Clone)]
pub enum SqlStore {
    /// One file: a single writer, a few readers.
    Sqlite {
        /// The one connection that writes.
        writer: SqlitePool,
        /// Connections that only read.
        readers: SqlitePool,
        /// The same for claims alone: however much people read, they need not wait.
        looking: SqlitePool,
        /// What carries the write-ahead log back into the file.
        log: Arc<Log>,
    },
    /// A server that several gateways share.
    Postgres {
        /// Claims, shipping, resolution, leases.
        writers: PgPool,
        /// What people read: however much they ask for, claims find a connection.
        readers: PgPool,
    },
}

/// The words in which the two differ.
struct Dialect {
    name: &'static str,
    begin: &'static str,
    /// Inserts rows, and keeps nothing to undo those before one that is refused: who uses it must end the transaction then.
    insert: &'static str,
    /// Whether values that rows have in common may be bound once, without a word about their types.
    shares_values: bool,
    /// What a search for an account begins with, so that it finds its way through the runs of the index (migration 0004 of SQLite).
    in_any_run: &'static str,
    /// Before a column whose indexes shall not be used.
    no_index: &'static str,
    /// Behind the table of claims, when open ones are looked for among all: the way is over them alone, not in the order of ids.
    open_claims: &'static str,
    /// The store's own clock, in microseconds since 1970.
    now: &'static str,
    /// What a `SELECT` ends with to keep the rows for an update in this transaction. SQLite has one writer anyway.
    for_update: &'static str,
    /// The same, passing over rows that another transaction holds.
    for_update_skipping: &'static str,
    /// The same, against changes only: several may hold it.
    for_share: &'static str,
}

const SQLITE: Dialect = Dialect {
    name: "sqlite",
    begin: "BEGIN IMMEDIATE",
    insert: "INSERT OR FAIL",
    shares_values: true,
    in_any_run: "seq >> 13 IN (WITH RECURSIVE run (n) AS (SELECT COALESCE(MAX(seq), 0) >> 13 FROM ledger \
                 UNION ALL SELECT n - 1 FROM run WHERE n > 0) SELECT n FROM run) AND ",
    no_index: "+",
    open_claims: " INDEXED BY claim_open",
    now: "CAST(unixepoch('subsec') * 1000000 AS INTEGER)",
    for_update: "",
    for_update_skipping: "",
    for_share: "",
};

const POSTGRES: Dialect = Dialect {
    name: "postgres",
    begin: "BEGIN",
    insert: "INSERT",
    shares_values: false,
    in_any_run: "",
    no_index: "",
    open_claims: "",
    now: "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
    for_update: " FOR UPDATE",
    for_update_skipping: " FOR UPDATE SKIP LOCKED",
    for_share: " FOR SHARE",
};

/// A connection for some statements.
pub(super) struct Session {
    connection: Option<Connection>,
    writes: bool,
}

enum Connection {
    Sqlite(PoolConnection<Sqlite>),
    Postgres(PoolConnection<Postgres>),
}

impl SqlStore {
    fn dialect(&self) -> &'static Dialect {
        match self {
            Self::Sqlite { .. } => &SQLITE,
            Self::Postgres { .. } => &POSTGRES,
        }
    }

    pub(super) fn name(&self) -> &'static str {
        self.dialect().name
    }

    pub(super) fn now(&self) -> &'static str {
        self.dialect().now
    }

    pub(super) fn for_update(&self) -> &'static str {
        self.dialect().for_update
    }

    pub(super) fn for_update_skipping(&self) -> &'static str {
        self.dialect().for_update_skipping
    }

    pub(super) fn for_share(&self) -> &'static str {
        self.dialect().for_share
    }

    /// For reading.
    pub(super) async fn reading(&self) -> Result<Session, StoreError> {
        let connection = match self {
            Self::Sqlite { readers, .. } => Connection::Sqlite(readers.acquire().await?),
            Self::Postgres { readers, .. } => Connection::Postgres(readers.acquire().await?),
        };
        Ok(Session { connection: Some(connection), writes: false })
    }

    /// For looking for keys.
    pub(super) async fn looking(&self) -> Result<Session, StoreError> {
        let connection = match self {
            Self::Sqlite { looking, .. } => Connection::Sqlite(looking.acquire().await?),
            Self::Postgres { writers, .. } => Connection::Postgres(writers.acquire().await?),
        };
        Ok(Session { connection: Some(connection), writes: false })
    }

    /// For writing, without a transaction yet.
    pub(super) async fn writer(&self) -> Result<Session, StoreError> {
        let connection = match self {
            Self::Sqlite { writer, .. } => Connection::Sqlite(writer.acquire().await?),
            Self::Postgres { writers, .. } => Connection::Postgres(writers.acquire().await?),
        };
        Ok(Session { connection: Some(connection), writes: true })
    }

    /// A transaction.
    pub(super) async fn writing(&self) -> Result<Session, StoreError> {
        let mut session = self.writer().await?;
        session.run(Statement::new(self.dialect().begin)).await?;
        Ok(session)
    }

    /// One writing statement, which is a transaction of its own. Returns how many rows it touched.
    pub(super) async fn write(&self, statement: Statement) -> Result<u64, StoreError> {
        let mut session = self.writer().await?;
        let touched = session.run(statement).await?;
        session.has_committed();
        Ok(touched)
    }
}

macro_rules! on_connection {
    ($session:expr, $statement:expr, $call:ident, |$done:ident| $sqlite:expr, $postgres:expr) => {{
        let mut statement: Statement = $statement;
        let connection = $session.connection.as_mut().ok_or(StoreError::Malformed)?;
        let ran = async {
            match connection {
                Connection::Sqlite(connection) => {
                    let query =
                        sqlx::query_with(AssertSqlSafe(std::mem::take(&mut statement.text)), statement.for_sqlite()?)
                            .persistent(statement.keep);
                    let $done = query.$call(&mut **connection).await?;
                    Ok::<_, StoreError>($sqlite)
                }
                Connection::Postgres(connection) => {
                    let query = sqlx::query_with(AssertSqlSafe(statement.numbered()), statement.for_postgres()?)
                        .persistent(statement.keep);
                    let $done = query.$call(&mut **connection).await?;
                    Ok($postgres)
                }
            }
        };
        match tokio::time::timeout(STATEMENT_LIMIT, ran).await {
            Ok(ran) => ran,
            Err(_elapsed) => {
                // Whatever is still to come on this connection is nobody's answer.
                $session.give_up();
                Err(StoreError::Database(sqlx::Error::PoolTimedOut))
            }
        }
    }};
}

impl Session {
    /// Runs a statement and returns how many rows it touched.
    pub(super) async fn run(&mut self, statement: Statement) -> Result<u64, StoreError> {
        on_connection!(self, statement, execute, |done| done.rows_affected(), done.rows_affected())
    }

    /// Runs a statement and returns its rows.
    pub(super) async fn all(&mut self, statement: Statement) -> Result<Vec<Cells>, StoreError> {
        on_connection!(
            self,
            statement,
            fetch_all,
            |rows| rows.into_iter().map(|row| Cells::of(AnyRow::Sqlite(row))).collect(),
            rows.into_iter().map(|row| Cells::of(AnyRow::Postgres(row))).collect()
        )
    }

    /// Runs a statement and returns its first row.
    pub(super) async fn first(&mut self, statement: Statement) -> Result<Option<Cells>, StoreError> {
        Ok(self.all(statement).await?.into_iter().next())
    }

    /// Runs `statement`; when the database refuses the data itself, everything before it still stands and `None` is
    /// returned.
    pub(super) async fn attempt(&mut self, statement: Statement) -> Result<Option<u64>, StoreError> {
        self.run(Statement::new("SAVEPOINT attempt")).await?;
        match self.run(statement).await {
            Ok(touched) => {
                self.run(Statement::new("RELEASE SAVEPOINT attempt")).await?;
                Ok(Some(touched))
            }
            Err(error) if is_refusal(&error) => {
                self.run(Statement::new("ROLLBACK TO SAVEPOINT attempt")).await?;
                self.run(Statement::new("RELEASE SAVEPOINT attempt")).await?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Everything that it wrote stands: its connection may serve others.
    pub(super) fn has_committed(mut self) {
        self.writes = false;
    }

    /// Makes what was written durable. An error leaves open whether it is.
    pub(super) async fn commit(mut self) -> Result<(), StoreError> {
        self.run(Statement::new("COMMIT")).await?;
        self.has_committed();
        Ok(())
    }

    /// Ends the transaction as if it had never been.
    pub(super) async fn roll_back(mut self) -> Result<(), StoreError> {
        self.run(Statement::new("ROLLBACK")).await?;
        self.writes = false;
        Ok(())
    }

    fn give_up(&mut self) {
        match self.connection.take() {
            Some(Connection::Sqlite(connection)) => drop(connection.detach()),
            Some(Connection::Postgres(connection)) => drop(connection.detach()),
            None => {}
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.writes {
            self.give_up();
        }
    }
}

/// Closes a store's connections in order.
pub(super) async fn close(store: &SqlStore) {
    match store {
        SqlStore::Sqlite { writer, readers, looking, log } => {
            readers.close().await;
            looking.close().await;
            log.connection.close().await;
            writer.close().await;
        }
        SqlStore::Postgres { writers, readers } => {
            readers.close().await;
            writers.close().await;
        }
    }
}
