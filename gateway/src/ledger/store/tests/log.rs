//! SQLite's write-ahead log goes back into the file in the background.

use std::path::Path;

use sqlx::Connection as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

use super::*;

/// Rows in the file itself, without its log; none while it is being written.
async fn rows_in(file: &Path) -> i64 {
    let copy = file.with_extension("copy");
    std::fs::copy(file, &copy).unwrap();
    let Ok(mut alone) = SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(&copy)).await else {
        return 0;
    };
    let rows = sqlx::query_scalar("SELECT COUNT(*) FROM ledger").fetch_one(&mut alone).await.unwrap_or_default();
    alone.close().await.unwrap();
    rows
}

#[tokio::test]
async fn the_log_is_carried_back_time_and_again_and_not_by_each_commit() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ledger.sqlite");
    let store = Store::sqlite(&file).await.unwrap();
    let Store::Sql(sql) = &store else { unreachable!() };
    for segment in 1..=3 {
        let rows: Vec<Row> = (20 * segment..20 * (segment + 1)).map(|serial| row(serial, Status::Success)).collect();
        store.ship(&outcomes(&rows), shipper(segment, 10)).await.unwrap();
        if segment == 1 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert_eq!(rows_in(&file).await, 0, "a few rows are not worth it");
        }
        let mut looks = 0;
        while rows_in(&file).await < 20 * i64::try_from(segment).unwrap() {
            looks += 1;
            assert!(looks < 1_000, "what shipment {segment} wrote stays in the log");
            // As if that many had been written; again, should the time before not have ended yet.
            sql.wrote(1 << 20);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    store.close().await;
}
