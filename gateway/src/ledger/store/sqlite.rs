//! The store in one SQLite file. A single writer connection and a few readers over a write-ahead log; every commit is
//! synced (`synchronous=FULL`), because the journal forgets what the checkpoint says is here.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions as _, SqlStr};

use super::sql::log::Log;
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

fn all_migrations() -> Vec<Migration> {
    migrations!("sqlite":
        1 "ledger" "0001_ledger.sql",
        2 "claims, resolution, reconciliation" "0002_claims_resolution_reconciliation.sql",
        3 "account runs" "0003_account_runs.sql",
        4 "checks, narrow indexes" "0004_checks_and_narrow_indexes.sql",
        5 "keys in the journal" "0005_keys_in_the_journal.sql")
}

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
        let pool = |most| SqlitePoolOptions::new().max_connections(most).acquire_timeout(Duration::from_secs(5));
        let migrating = pool(1).connect_with(options.clone()).await?;
        Migrator::with_migrations(all_migrations()).run(&migrating).await?;
        migrating.close().await;
        // A page cache that holds what a shipment touches, and no checkpoint of its own unless nobody else makes one. For the writer
        // alone: what readers sort may be large, and an index that is made is sorted too.
        let writing = [("temp_store", "MEMORY"), ("cache_size", "-8192"), ("wal_autocheckpoint", "65536")];
        let writing = writing.into_iter().fold(options.clone(), |options, (name, value)| options.pragma(name, value));
        // There are some 180 texts of statements: sets of each size, and rows with and without what they have in common.
        let writer = pool(1).connect_with(writing.statement_cache_capacity(256)).await?;
        let log = Arc::new(Log::new(pool(1).connect_with(options.clone()).await?));
        let looking = pool(1).connect_with(options.clone().read_only(true)).await?;
        let readers = pool(4).connect_with(options.read_only(true)).await?;
        Ok(Self::Sql(SqlStore::Sqlite { writer, readers, looking, log }))
    }
}

#[cfg(test)]
mod tests {
    use sqlx::Executor as _;

    use super::*;
    use crate::ledger::{Filter, TransactionId};

    #[tokio::test]
    async fn sqlite_is_built_without_counts_of_memory_and_checks_of_its_caller() {
        let folder = tempfile::tempdir().unwrap();
        let options = SqliteConnectOptions::new().filename(folder.path().join("any.sqlite")).create_if_missing(true);
        let any = SqlitePoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
        let built: Vec<String> = sqlx::query_scalar("PRAGMA compile_options").fetch_all(&any).await.unwrap();
        let is_in = |option: &str| built.iter().any(|one| one == option);
        assert!(is_in("DEFAULT_MEMSTATUS=0"), "is .cargo/config.toml heeded? {built:?}");
        assert!(!is_in("ENABLE_MEMORY_MANAGEMENT") && !is_in("ENABLE_API_ARMOR"), "{built:?}");
    }

    #[tokio::test]
    async fn a_ledger_of_before_keeps_its_rows_its_order_and_its_keys() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ledger.sqlite");
        let options = SqliteConnectOptions::new().filename(&file).create_if_missing(true);
        let before = SqlitePoolOptions::new().max_connections(1).connect_with(options.clone()).await.unwrap();
        Migrator::with_migrations(all_migrations().into_iter().take(3).collect::<Vec<_>>()).run(&before).await.unwrap();
        let row = |seq: i64, status: &str, proof: &str| {
            format!(
                "INSERT INTO ledger (seq, transaction_id, tx_code, route, kind, institution, client, account_masked, account_hash, \
                 amount, status, proof, attempts, attempt_log, requested_at, responded_at, elapsed_us, correlation_id, \
                 layout_version, resolution, resolved_by, tries) VALUES ({seq}, 'GWMNU20261129{seq:09}', 'TR01', 'transfer', \
                 'mutation', 'core', 'a', '12****34', x'0707', 5, '{status}', {proof}, 0, '[]', {seq}, 2, 3, 'c', 1, 'NONE', 'me', 4)"
            )
        };
        for insertion in [row(3, "SUCCESS", "NULL"), row(70_000, "FAILED", "'P0'"), row(9_000_000, "SUCCESS", "NULL")] {
            before.execute(sqlx::AssertSqlSafe(insertion)).await.unwrap();
        }
        before.execute("DELETE FROM ledger WHERE seq = 9000000").await.unwrap();
        before
            .execute(
                "INSERT INTO idempotency_claim (client, method, path, key_hash, transaction_id, instance, journal_id, fingerprint, \
                 facts, state, claimed_at, lease_until, answer_status, answer_body) VALUES ('a', 'POST', '/t', x'01', 'id', 'U', \
                 x'02', x'03', '{}', 'ENDED', 1, 2, 200, x'04')",
            )
            .await
            .unwrap();
        before.close().await;

        let store = Store::sqlite(&file).await.unwrap();
        let rows = store.page(&Filter::default(), None, 9).await.unwrap();
        assert_eq!(rows.iter().map(|stored| stored.seq).collect::<Vec<_>>(), [70_000, 3]);
        let first = &rows[1];
        assert_eq!(Some(first.row.facts.id), TransactionId::parse("GWMNU20261129000000003"));
        assert_eq!((first.row.facts.amount, first.row.facts.requested_at), (Some(5), 3));
        assert_eq!(first.row.facts.account_hash.as_deref(), Some(&[7, 7][..]));
        assert_eq!(first.resolved.by.as_deref(), Some("me"));
        let of = |account_hash| Filter { account_hash: Some(account_hash), ..Filter::default() };
        assert_eq!(store.page(&of(vec![7, 7]), None, 9).await.unwrap().len(), 2);
        assert_eq!(store.page(&of(vec![8]), None, 9).await.unwrap().len(), 0);
        let after = SqlitePoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
        let mark: i64 = sqlx::query_scalar("SELECT seq FROM sqlite_sequence WHERE name = 'ledger'")
            .fetch_one(&after)
            .await
            .unwrap();
        assert_eq!(mark, 9_000_000, "no seq is given twice");
        let key: (String, i64, Vec<u8>) =
            sqlx::query_as("SELECT state, answer_status, answer_body FROM idempotency_claim")
                .fetch_one(&after)
                .await
                .unwrap();
        assert_eq!(key, ("ENDED".to_owned(), 200, vec![4]));
        for broken in [
            "status = 'MAYBE'",
            "proof = 'P9'",
            "kind = 'other'",
            "served_from = 'x'",
            "resolution = 'x'",
            "resolve_as = 'x'",
        ] {
            let update = format!("UPDATE ledger SET {broken} WHERE seq = 3");
            assert!(after.execute(sqlx::AssertSqlSafe(update)).await.is_err(), "{broken}");
        }
        assert!(after.execute("UPDATE idempotency_claim SET state = 'x'").await.is_err());
        after.close().await;
        store.close().await;
    }
}
