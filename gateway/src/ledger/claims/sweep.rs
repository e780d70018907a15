//! What is done about claims that nobody waits for any more: closed when they are ours, called abandoned when they are others',
//! forgotten when their time is over. And what runs is written down, for those who reconcile or look from outside.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::{GROUP_MAX, Order};
use crate::ledger::id::TransactionId;
use crate::ledger::row::{Outcome, Row};
use crate::ledger::store::Claim;
use crate::ledger::{JournalError, Ledger, OpenError, RecoveryError, Room};

/// Between two sweeps.
const SWEEP: Duration = Duration::from_secs(1);
/// Claims that one sweep looks at.
const SWEEP_MAX: u32 = 1_000;

impl Ledger {
    /// Sweeps for ever.
    pub(in crate::ledger) async fn run_sweep(self: Arc<Self>) {
        let mut round: u64 = 0;
        loop {
            tokio::time::sleep(SWEEP).await;
            if self.write_down().await.is_err() {
                tracing::debug!("what runs was not written down");
            }
            if self.sweep(false, SWEEP_MAX).await.is_err() || self.store.abandon_overdue(self.owner).await.is_err() {
                tracing::debug!("the sweep of idempotency claims did not get through");
                continue;
            }
            // A thousand at a time, as long as there are so many.
            while round.is_multiple_of(60) {
                match self.store.purge_claims(self.claim_keep).await {
                    Ok(purged) if purged >= 1_000 => {}
                    Ok(_) => break,
                    Err(_) => {
                        tracing::debug!("old idempotency claims were not purged");
                        break;
                    }
                }
            }
            round += 1;
        }
    }

    /// Writes claims whose transactions run into a store that is ours alone. Most have ended before it is their turn.
    pub(in crate::ledger) async fn write_down(&self) -> Result<(), OpenError> {
        if !self.store.is_private() {
            return Ok(());
        }
        let _not_meanwhile = self.claims.shipping().await;
        let journal = Arc::clone(&self.journal);
        let running = self.disk.apart(move || Ok(journal.running_claims())).await.map_err(RecoveryError::from)?;
        let mut claims: Vec<Claim> = running.into_iter().filter_map(Claim::kept).collect();
        claims.retain(|claim| self.claims.is_to_be_stored(claim.facts.id));
        for some in claims.chunks(GROUP_MAX) {
            self.store.claim(self.owner, some).await?;
            some.iter().for_each(|claim| self.claims.is_stored(claim.facts.id));
        }
        Ok(())
    }

    /// Waits until the store has of every transaction that was sent before this call how it ended, or that it runs. `false`: it is
    /// not there within `limit`.
    pub async fn is_all_told(&self, limit: Duration) -> bool {
        let told = async { self.write_down().await.is_ok() && self.catch_up(limit).await };
        tokio::time::timeout(limit, told).await.unwrap_or(false)
    }

    /// Closes claims of this journal that nothing here knows of: their commit came after everybody had given up, so nothing
    /// was sent. When recovery had to cut the journal's tail, even that is not certain.
    pub(in crate::ledger) async fn sweep(&self, cut: bool, limit: u32) -> Result<(), OpenError> {
        let _one_at_a_time = self.claims.sweeping.lock().await;
        let mut lost = self.store.open_claims(self.owner.journal, limit).await?;
        lost.retain(|facts| !self.claims.is_known(facts.id) && !self.journal.knows(facts.id));
        if lost.is_empty() {
            return Ok(());
        }
        // One that was shipped since the list was read is not open any more.
        let open: HashSet<TransactionId> =
            self.store.open_claims(self.owner.journal, limit).await?.iter().map(|facts| facts.id).collect();
        lost.retain(|facts| open.contains(&facts.id));
        for facts in lost {
            let now = self.clock.wall().as_microsecond();
            let row =
                if cut { Row::in_doubt(facts, "recovered", now) } else { Row::never_sent(facts, "unclaimed", now) };
            let _room = self.room_for_one().await?;
            self.metrics.closed(&row, Duration::ZERO);
            self.journal.append_outcome(&Outcome::of(row))?;
        }
        Ok(())
    }

    async fn room_for_one(&self) -> Result<Room, JournalError> {
        loop {
            match self.journal.reserve() {
                Err(JournalError::NoRoom) => tokio::time::sleep(Duration::from_millis(100)).await,
                reserved => return reserved,
            }
        }
    }

    /// Waits until no claim is on its way to the store, and closes what came too late.
    pub(in crate::ledger) async fn finish_claims(&self) -> Result<(), OpenError> {
        let (answer, answered) = oneshot::channel();
        if self.claims.queue.send(Order::Flush(answer)).await.is_ok() {
            drop(answered.await);
        }
        self.sweep(false, SWEEP_MAX).await
    }
}
