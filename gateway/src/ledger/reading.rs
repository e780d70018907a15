//! What people read: one row, listings, sums.

use std::time::Duration;

use super::store::{Filter, Of, Resolved, StoreError, StoredRow};
use super::{Ledger, Outcome, Page, TransactionId};

impl Ledger {
    /// One finished transaction: from the journal as soon as it was answered, else from the store.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn row(&self, id: TransactionId) -> Result<Option<StoredRow>, StoreError> {
        if let Some(Outcome { row, .. }) = self.journal.find(id) {
            let resolved = Resolved::only(row.doubt().0);
            return Ok(Some(StoredRow { seq: 0, row, resolved }));
        }
        if let Some(row) = self.store.row(id).await? {
            return Ok(Some(row));
        }
        Ok(self.store.abandoned(Of::Transaction(id), 1).await?.into_iter().next().map(StoredRow::abandoned))
    }

    /// Claims, of a client or of everybody, that nobody can tell the end of, oldest first, as rows in doubt.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn abandoned(&self, client: Option<&str>, limit: u32) -> Result<Vec<StoredRow>, StoreError> {
        let of = client.map_or(Of::Everybody, Of::Client);
        Ok(self.store.abandoned(of, limit).await?.into_iter().map(StoredRow::abandoned).collect())
    }

    /// A page of rows, newest first. Waits half a second for what was answered before the call.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn page(&self, filter: &Filter, before: Option<i64>, limit: u32) -> Result<Page, StoreError> {
        let complete = self.catch_up(Duration::from_millis(500)).await;
        Ok((self.store.page(filter, before, limit).await?, complete))
    }

    /// Rows by status, in the order of [`super::Status::ALL`]. Waits, and says whether they are all, as [`Ledger::page`] does.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn summary(&self, filter: &Filter) -> Result<([u64; 3], bool), StoreError> {
        let complete = self.catch_up(Duration::from_millis(500)).await;
        Ok((self.store.summary(filter).await?, complete))
    }
}
