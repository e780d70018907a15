//! Carries durable outcomes from the journal to the store, in the background. A store that is down costs nothing but
//! journal space: the same rows are tried again until they are in.

use std::sync::Arc;
use std::time::Duration;

use super::journal::Position;
use super::store::Shipper;
use super::{Ledger, Outcome, StoreError};
use crate::left_out::{Part, is_left_out};

/// How long rows gather before they are carried on: an index page that many rows touch is written once for all of
/// them. Whoever looks for a row, and every mutation in doubt, calls for them at once.
const LINGER: Duration = Duration::from_millis(200);
/// The same, when there is a mutation among them and other gateways wait for its row, which tells them of its end. Their claims wait
/// behind each shipment, so they are not made for one row each.
const LINGER_MUTATION: Duration = Duration::from_millis(20);
/// Waits between tries while the store fails.
const RETRY: [Duration; 4] =
    [Duration::from_millis(100), Duration::from_millis(250), Duration::from_millis(500), Duration::from_secs(1)];

/// How much was carried on.
enum Shipped {
    /// All that was durable when it was looked.
    All,
    /// There is more: a batch has a bound, and ends with its segment.
    Part,
}

impl Ledger {
    /// Ships whatever becomes durable, for ever.
    pub(super) async fn run_shipper(self: Arc<Self>) {
        let mut failures = 0;
        loop {
            let seen = self.journal.synced().get();
            match self.ship_once(seen).await {
                Ok(Shipped::Part) => failures = 0,
                Ok(Shipped::All) => {
                    failures = 0;
                    self.journal.synced().wait_beyond(seen).await;
                    let mutation = async {
                        if self.store.is_private() {
                            // Nobody else waits to hear of its end.
                            std::future::pending::<()>().await;
                        }
                        self.ended_mutation.notified().await;
                        tokio::time::sleep(LINGER_MUTATION).await;
                    };
                    tokio::select! {
                        biased;
                        () = self.hurry.notified() => {}
                        () = mutation => {}
                        () = tokio::time::sleep(LINGER) => {}
                    }
                }
                Err(()) => {
                    let wait = RETRY.get(failures).or(RETRY.last()).copied().unwrap_or_default();
                    failures += 1;
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }

    /// Ships one batch of what was durable up to `seen`, or a little more.
    async fn ship_once(&self, seen: Position) -> Result<Shipped, ()> {
        let from = self.shipped.get();
        let journal = Arc::clone(&self.journal);
        let read = self.disk.apart(move || journal.outcomes_from(from)).await;
        let (outcomes, next) = match read {
            Ok(read) => read,
            Err(error) => {
                tracing::error!(kind = ?error.kind(), "the journal cannot be read for shipping");
                return Err(());
            }
        };
        if next == from {
            return Ok(Shipped::All);
        }
        let _nobody_writes_them_down = self.claims.shipping().await;
        if !outcomes.is_empty() && !is_left_out(Part::Store) {
            self.ship_outcomes(&outcomes, next).await?;
        }
        self.journal.shipped(&outcomes, next);
        self.claims.shipped(&outcomes);
        if outcomes.iter().any(|outcome| outcome.row.doubt().0.is_open()) {
            self.doubted.notify_one();
        }
        self.shipped.advance(next);
        Ok(if next < seen { Shipped::Part } else { Shipped::All })
    }

    async fn ship_outcomes(&self, outcomes: &[Outcome], next: Position) -> Result<(), ()> {
        match self.store.ship(outcomes, Shipper::Journal(self.owner, next)).await {
            Ok(shipment) => {
                self.metrics.shipped(shipment);
                if shipment.parked > 0 {
                    tracing::error!(rows = shipment.parked, "ledger rows were parked: they contradict the store");
                }
                Ok(())
            }
            Err(StoreError::Fenced) => {
                tracing::error!(
                    "the journal was retired or another life goes on with it: its rows are not taken any more"
                );
                self.fenced.cancel();
                Err(())
            }
            Err(_) => {
                // The database's own words may quote a row, so they stay out of the log.
                self.metrics.ship_failed();
                tracing::warn!(store = self.store.name(), "the ledger store does not take rows; trying again");
                Err(())
            }
        }
    }
}
