//! SQLite's write-ahead log goes back into the file beside the one who writes. Left to SQLite, whoever commits last carries back
//! thousands of pages, and every claim waits behind it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use sqlx::sqlite::SqlitePool;

use super::SqlStore;

/// Rows that are written between two times. A page that changes often is carried back once, so the more the better; but the file
/// of the log grows with it, to some 64 MiB.
const ROWS: usize = 16_384;
/// Carries back what no reader of an older state needs in the log any more. Nobody waits for it, and it waits for nobody.
const CARRY_BACK: &str = "PRAGMA wal_checkpoint(PASSIVE)";

/// What carries the log back.
#[derive(Debug)]
pub struct Log {
    /// One connection, for nothing else.
    pub(super) connection: SqlitePool,
    /// Rows since the last time.
    written: AtomicUsize,
    at_work: AtomicBool,
}

/// There is one at a time.
struct AtWork(Arc<Log>);

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.at_work.store(false, Ordering::Relaxed);
    }
}

impl Log {
    /// With a connection of its own.
    pub(in crate::ledger::store) fn new(connection: SqlitePool) -> Self {
        Self { connection, written: AtomicUsize::new(0), at_work: AtomicBool::new(false) }
    }

    async fn carry_back(&self, writer: &SqlitePool) -> Result<(), sqlx::Error> {
        // Twice, so that little is left of what comes in meanwhile. The file is not synced here: while more comes in SQLite leaves
        // that to the last one, and a descriptor of ours would, when it is closed, drop the locks that this process has on the file.
        for _ in 0..2 {
            sqlx::query(CARRY_BACK).execute(&self.connection).await?;
        }
        // The rest in the writer's turn: the log begins anew only when nothing is left to carry.
        sqlx::query(CARRY_BACK).execute(writer).await?;
        Ok(())
    }
}

impl SqlStore {
    /// So many rows were written. When they have become many, the log is carried back, in the background.
    pub(in crate::ledger::store) fn wrote(&self, rows: usize) {
        let Self::Sqlite { writer, log, .. } = self else { return };
        let written = log.written.fetch_add(rows, Ordering::Relaxed) + rows;
        if written < ROWS || log.at_work.swap(true, Ordering::Relaxed) {
            return;
        }
        log.written.store(0, Ordering::Relaxed);
        let (writer, at_work) = (writer.clone(), AtWork(Arc::clone(log)));
        tokio::spawn(async move {
            if at_work.0.carry_back(&writer).await.is_err() {
                // SQLite does it by itself when the log has become very long.
                tracing::debug!("the ledger's log was not carried back");
            }
        });
    }
}
