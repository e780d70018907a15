//! What comes back from either database.

use sqlx::Row as _;
use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;

use super::super::StoreError;

/// One row of an answer, read column by column from the left.
pub(in crate::ledger::store) struct Cells {
    row: AnyRow,
    next: usize,
}

pub(in crate::ledger::store) enum AnyRow {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

macro_rules! cells {
    ($($name:ident -> $type:ty;)*) => {
        impl Cells {
            $(pub(in crate::ledger::store) fn $name(&mut self) -> Result<$type, StoreError> {
                let index = self.next;
                self.next += 1;
                Ok(match &self.row {
                    AnyRow::Sqlite(row) => row.try_get(index)?,
                    AnyRow::Postgres(row) => row.try_get(index)?,
                })
            })*
        }
    };
}

cells! {
    int -> i64;
    maybe_int -> Option<i64>;
    text -> String;
    maybe_text -> Option<String>;
    bytes -> Vec<u8>;
    maybe_bytes -> Option<Vec<u8>>;
}

impl Cells {
    pub(in crate::ledger::store) fn of(row: AnyRow) -> Self {
        Self { row, next: 0 }
    }

    pub(in crate::ledger::store) fn unsigned(&mut self) -> Result<u64, StoreError> {
        u64::try_from(self.int()?).map_err(|_| StoreError::Malformed)
    }

    /// Sixteen bytes.
    pub(in crate::ledger::store) fn number16(&mut self) -> Result<[u8; 16], StoreError> {
        self.bytes()?.try_into().map_err(|_| StoreError::Malformed)
    }
}
