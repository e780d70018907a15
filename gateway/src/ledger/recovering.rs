//! The first part of a start: the journal is read, and what it left open is closed as UNKNOWN.

use std::sync::Arc;
use std::time::Duration;

use super::journal::{Disk, Journal, JournalError, Recovered, Settings};
use super::row::{Facts, Outcome, Row};
use super::store::{JournalMark, Store};
use super::{Ledger, OpenError};

/// Recovers the journal, and says what the store knows of it.
pub(super) async fn recover(
    store: &Store,
    disk: &Arc<dyn Disk>,
    settings: Settings,
) -> Result<(Recovered, JournalMark), OpenError> {
    let marks = store.journal_marks().await?;
    let mut mark = JournalMark::default();
    let new_id = uuid::Uuid::now_v7().into_bytes();
    let recovered = Journal::recover(Arc::clone(disk), settings, new_id, |journal| {
        mark = marks.get(&journal).copied().unwrap_or_default();
        mark.shipped
    })?;
    Ok((recovered, mark))
}

impl Ledger {
    /// An intent without an outcome: nobody knows what the host did.
    pub(super) async fn close_open(&self, open: Vec<Facts>) -> Result<(), JournalError> {
        let count = open.len();
        let mut last = None;
        for facts in open {
            let key = facts.claim_key().map(|(key, fingerprint)| (facts.id, (key, fingerprint.to_vec())));
            self.claims.know(key);
            let row = Row::in_doubt(facts, "recovered", self.clock.wall().as_microsecond());
            self.metrics.closed(&row, Duration::ZERO);
            last = Some(self.journal.append_outcome(&Outcome::of(row))?);
        }
        if let Some(last) = last {
            self.journal.durable(last).await?;
            tracing::warn!(transactions = count, "closed as UNKNOWN what an earlier run left open");
        }
        Ok(())
    }
}
