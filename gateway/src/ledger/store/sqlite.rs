//! The store in one SQLite file. A single writer connection and a few readers over a write-ahead log; every commit is
//! synced (`synchronous=FULL`), because the journal forgets what the checkpoint says is here.

use std::path::Path;
use std::time::Duration;

use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions as _, SqlStr};

use super::{SqlStore, Store, StoreError};

macro_rules! migrations {
    ($folder:literal: $($version:literal $name:literal $file:literal),*) => {
        vec![$(Migration::new(
            $version,
            $name.into(),
            MigrationType::Simple,
            SqlStr::from_static(include_str!(concat!("../../../../migrations/", $folder, "/", $file))),
            false,
        )),*]
    };
}
pub(super) use migrations;

impl Store {
    /// Opens a SQLite file, making it if needed, and brings its tables up to date.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn sqlite(file: &Path) -> Result<Self, StoreError> {
        let options = SqliteConnectOptions::new()
            .filename(file)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(Duration::from_secs(5))
            .disable_statement_logging();
        let migrations = migrations!("sqlite":
            1 "ledger" "0001_ledger.sql",
            2 "claims, resolution, reconciliation" "0002_claims_resolution_reconciliation.sql",
            3 "account runs" "0003_account_runs.sql",
            4 "checks, narrow indexes" "0004_checks_and_narrow_indexes.sql");
        let pool = |most| SqlitePoolOptions::new().max_connections(most).acquire_timeout(Duration::from_secs(5));
        let migrating = pool(1).connect_with(options.clone()).await?;
        Migrator::with_migrations(migrations).run(&migrating).await?;
        migrating.close().await;
        // A page cache that holds what a shipment touches, and fewer checkpoints: each writes a page once, however often it changed. For
        // the writer alone: what readers sort may be large, and an index that is made is sorted too.
        let writing = [("temp_store", "MEMORY"), ("cache_size", "-8192"), ("wal_autocheckpoint", "8192")];
        let writing = writing.into_iter().fold(options.clone(), |options, (name, value)| options.pragma(name, value));
        let writer = pool(1).connect_with(writing).await?;
        let readers = pool(4).connect_with(options.read_only(true)).await?;
        Ok(Self::Sql(SqlStore::Sqlite { writer, readers }))
    }
}
