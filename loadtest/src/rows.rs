//! Rows in a ledger that nobody called for, as many as one likes.

use std::path::Path;

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _};

use crate::Failed;

/// What a call leaves behind, with two accounts and an id of its own.
const INSERT: &str = "INSERT INTO ledger (transaction_id, business_day, tx_code, route, kind, institution, client, account_masked, \
     account_hash, counter_account_hash, status, response_code, attempts, attempt_log, requested_at, responded_at, elapsed_us, correlation_id, layout_version) \
     WITH RECURSIVE n (i) AS (SELECT :from UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :to) \
     SELECT 'GWMNZ20260101' || printf('%09d', i), '20260101', 'IN01', 'balance', 'inquiry', 'core-banking', 'loadtest', \
     '100000****0001', randomblob(16), randomblob(16), 'SUCCESS', '0000', 1, '[{\"outcome\":\"success\",\"elapsedUs\":311}]', \
     1767225600000000 + i * 1000, 1767225600000311 + i * 1000, 311, lower(hex(randomblob(16))), 1 FROM n";

/// Adds rows to the store of a gateway that does not run. Indexes over what comes in no order are made anew behind them, or each row would
/// cost a page.
pub(crate) fn add(store: &Path, rows: u64) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let options = SqliteConnectOptions::new()
            .filename(store)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Off)
            .pragma("cache_size", "-262144")
            .pragma("temp_store", "MEMORY");
        let mut connection = SqliteConnection::connect_with(&options).await?;
        let indexes: Vec<(String, String)> = sqlx::query_as(
            "SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL AND name IN ('ledger_account', 'ledger_counter_account', 'ledger_correlation')",
        )
        .fetch_all(&mut connection)
        .await?;
        for (name, _) in &indexes {
            connection.execute(AssertSqlSafe(format!("DROP INDEX {name}"))).await?;
        }
        let mut from = 0;
        while from < rows {
            let to = rows.min(from + 500_000);
            let insert = INSERT.replace(":from", &from.to_string()).replace(":to", &to.to_string());
            connection.execute(AssertSqlSafe(insert)).await?;
            from = to;
        }
        for (_, made) in indexes {
            connection.execute(AssertSqlSafe(made)).await?;
        }
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").await?;
        connection.close().await?;
        Ok(())
    })
}
