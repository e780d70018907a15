//! A gateway's running: what goes on by itself, serving, and the order in which it stops.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::{App, Stopped};
use crate::http::cores::Cores;
use crate::http::edge;
use crate::left_out;
use crate::resilience::Institution;
use crate::telemetry::Telemetry;

impl App {
    /// Starts what goes on by itself: resolution, the daily reconciliation, upkeep. It ends with `stop`.
    pub fn start_background(&self, stop: &CancellationToken) -> TaskTracker {
        let tasks = TaskTracker::new();
        if self.config.resolver.enabled {
            tasks.spawn(Arc::clone(&self.resolver).run(Arc::clone(&self.ledger), stop.clone()));
        }
        if let Some(at) = self.config.reconcile_at {
            tasks.spawn(Arc::clone(&self.reconciler).run_daily(at, stop.clone()));
        }
        tasks.spawn(upkeep(Arc::clone(&self.institutions), Arc::clone(&self.telemetry), stop.clone()));
        tasks.close();
        tasks
    }

    /// Serves until `stop`, then drains.
    ///
    /// # Errors
    /// [`Stopped`]: the process must stop.
    pub async fn serve(self, listener: TcpListener, stop: CancellationToken) -> Result<(), Stopped> {
        left_out::warn();
        let (closing, connections) = (CancellationToken::new(), TaskTracker::new());
        let cores = Arc::new(Cores::start().map_err(Stopped::NoCores)?);
        let background = self.start_background(&closing);
        let limits = (self.config.edge, self.clock.clone());
        let open = (Arc::clone(&cores), connections.clone());
        let entrance = Arc::new(self.entrance());
        let answer = move |request| {
            let entrance = Arc::clone(&entrance);
            async move { entrance.answer(request).await }
        };
        let serving = edge::serve(listener, answer, limits, closing.clone(), open);
        let serving = AbortOnDropHandle::new(tokio::spawn(serving));
        let (failed, fenced) = (self.ledger.journal().failed().clone(), self.ledger.fenced().clone());
        let time = tokio::select! {
            biased;
            () = stop.cancelled() => self.config.drain,
            // Those under way can't record their end any more; they shall still be answered.
            () = failed.cancelled() => Duration::from_secs(1),
            () = fenced.cancelled() => self.config.drain,
            () = cores.lost().cancelled() => self.config.drain,
        };
        let lost_core = cores.lost().is_cancelled();
        self.drain(time, closing, connections, background).await;
        drop((serving, cores));
        if failed.is_cancelled() {
            return Err(Stopped::JournalFailed);
        }
        if fenced.is_cancelled() {
            return Err(Stopped::Fenced);
        }
        if lost_core { Err(Stopped::LostCore) } else { Ok(()) }
    }

    /// Four fifths of the drain time belong to transactions under way; in the rest what is left is ended by its guards,
    /// answered, synced and shipped.
    async fn drain(
        &self,
        time: Duration,
        closing: CancellationToken,
        connections: TaskTracker,
        background: TaskTracker,
    ) {
        let end = self.clock.now() + time;
        tracing::info!(in_flight = self.transactions.in_flight(), "draining");
        closing.cancel();
        self.transactions.drain(time.mul_f64(0.8)).await;
        let left = |share: f64| end.saturating_duration_since(self.clock.now()).mul_f64(share);
        if tokio::time::timeout(left(0.4), connections.wait()).await.is_err() {
            tracing::debug!("closing what callers keep open");
        }
        if tokio::time::timeout(left(0.3), background.wait()).await.is_err() {
            tracing::debug!("a question to a host did not end in time");
        }
        for institution in self.institutions.values() {
            institution.pool.close();
        }
        self.ledger.close(left(0.8)).await;
        tracing::info!("stopped");
    }
}

/// Closes connections that are idle for too long and folds metrics, now and then.
async fn upkeep(
    institutions: Arc<BTreeMap<String, Arc<Institution>>>,
    telemetry: Arc<Telemetry>,
    stop: CancellationToken,
) {
    loop {
        tokio::select! {
            biased;
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
            () = stop.cancelled() => return,
        }
        for institution in institutions.values() {
            institution.pool.sweep();
        }
        telemetry.upkeep();
    }
}
