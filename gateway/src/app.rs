//! The composition root: makes the parts, wires them, owns the order of the filter chain, and knows how a gateway starts
//! and stops.

mod parts;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use axum::routing::post;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use tower::ServiceBuilder;

use crate::clock::Clock;
use crate::config::Config;
use crate::failure::Failure;
use crate::filters::auth::{Keys, authenticate, authorize};
use crate::filters::rate_limit::admit;
use crate::filters::routing::find_route;
use crate::filters::{Filter, FilterLayer};
use crate::http::ledger::Auditing;
use crate::http::operations::Operations;
use crate::http::resolution::{self, Resolving};
use crate::http::submit::{BodyLimits, Submit, submit};
use crate::http::{edge, ledger, operations, reply};
use crate::ledger::{Disk, FolderDisk, Ledger, OpenError, Settings, Store, search_key, sync_folder_of};
use crate::pool::{Dial, TcpDial};
use crate::resilience::Institution;
use crate::resolve::{Reconciler, Resolver};
use crate::telemetry::Telemetry;
use crate::transaction::Transactions;
use parts::{lock_folder, make_institutions, make_resolving};
pub use parts::{open_store, reconciler};

/// Makes the dial of an institution, from its name and address.
pub type DialBy = Box<dyn Fn(&str, &str) -> Arc<dyn Dial> + Send>;

/// What a gateway stands on, so that a test can put something else there.
pub struct Seams {
    /// Time.
    pub clock: Clock,
    /// The journal's disk.
    pub disk: Arc<dyn Disk>,
    /// The ledger's store.
    pub store: Store,
    /// How to connect to an institution, by name and address.
    pub dial: DialBy,
    /// Key of the account hash.
    pub search_key: Vec<u8>,
}

/// Why a gateway does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The file system, or a port that is taken.
    #[error("{0}: {1}")]
    Io(String, io::Error),
    /// The data folder belongs to another process.
    #[error("the data folder {0} is in use by another process")]
    InUse(String),
    /// The ledger can't be opened.
    #[error(transparent)]
    Ledger(#[from] OpenError),
    /// The zone data can't be read.
    #[error("no zone data for Asia/Seoul: {0}")]
    Zone(#[from] jiff::Error),
}

/// Why a running gateway stopped by itself.
#[derive(Debug, thiserror::Error)]
pub enum Stopped {
    /// Nothing can be recorded any more.
    #[error("the journal cannot be written any more; what is not recorded will be UNKNOWN after the next start")]
    JournalFailed,
    /// Another life has taken over.
    #[error("this gateway's instance letter was taken over, or its journal was retired")]
    Fenced,
}

/// A gateway that is ready to serve.
pub struct App {
    config: Config,
    clock: Clock,
    ledger: Arc<Ledger>,
    institutions: Arc<BTreeMap<String, Arc<Institution>>>,
    transactions: Arc<Transactions>,
    telemetry: Arc<Telemetry>,
    keys: Arc<Keys>,
    resolver: Arc<Resolver>,
    reconciler: Arc<Reconciler>,
    // Held as long as the data folder is ours.
    _lock: Option<File>,
}

impl App {
    /// Opens the data folder and everything in it. When this returns, an earlier life's transactions are accounted for.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let data = config.data.clone();
        let at = |what: &Path, error| StartError::Io(what.display().to_string(), error);
        std::fs::create_dir_all(&data).map_err(|error| at(&data, error))?;
        sync_folder_of(&data).map_err(|error| at(&data, error))?;
        let lock = lock_folder(&data)?;
        let journal = data.join("journal");
        let disk = FolderDisk::new(&journal).map_err(|error| at(&journal, error))?;
        let store = open_store(&config).await?;
        let key_file = data.join("search.key");
        let search_key = match &config.search_key {
            Some(key) => key.reveal().as_bytes().to_vec(),
            None => search_key(&key_file).map_err(|error| at(&key_file, error))?,
        };
        let seams = Seams {
            clock: Clock::system()?,
            disk: Arc::new(disk),
            store,
            dial: Box::new(|_, address| Arc::new(TcpDial { address: address.to_owned() })),
            search_key,
        };
        let mut app = Self::assemble(config, seams).await?;
        app._lock = Some(lock);
        Ok(app)
    }

    /// Puts a gateway together on these seams.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn assemble(config: Config, seams: Seams) -> Result<Self, StartError> {
        let Seams { clock, disk, store, dial, search_key } = seams;
        let telemetry = Arc::new(Telemetry::new());
        let settings = Settings {
            journal: config.journal,
            instance: config.instance,
            search_key,
            instance_lease: config.instance_lease,
            claim_keep: config.claim_keep,
        };
        let institutions = Arc::new(make_institutions(&config, &dial, &clock, &telemetry));
        let (resolver, reconciler) = make_resolving(&config, &store, &institutions, &clock, &telemetry);
        let ledger = Ledger::open(disk, store, settings, clock.clone(), &telemetry).await?;
        let by_name = institutions.iter().map(|(name, one)| (name.clone(), Arc::clone(one))).collect();
        let transactions = Transactions::new(Arc::clone(&ledger), by_name, config.admission_max, clock.clone());
        let keys = Arc::new(Keys::new(&config.clients, config.client_limit));
        Ok(Self {
            config,
            clock,
            ledger,
            institutions,
            transactions: Arc::new(transactions),
            telemetry,
            keys,
            resolver,
            reconciler,
            _lock: None,
        })
    }

    /// All routes. Whoever reads this sees the order in which a request is looked at.
    pub fn router(&self) -> Router {
        let (keys, routes, clock) = (Arc::clone(&self.keys), self.config.routes.clone(), self.clock.clone());
        let body = BodyLimits { max: self.config.edge.body_max, time: self.config.edge.body };
        let submit_state = Submit { transactions: Arc::clone(&self.transactions), body };

        let transactions = ServiceBuilder::new()
            // Where does it go? An unknown path must cost nothing, not even a token.
            .layer(filter(move |head| find_route(&routes, head)))
            // How often? After the route, so that only real calls use up a client's limit. Last, because it admits.
            .layer(filter(move |head| admit(clock.now(), head)))
            .service(post(submit).with_state(submit_state));

        let auditing = Auditing { ledger: Arc::clone(&self.ledger), body };
        let operations = Operations {
            institutions: Arc::clone(&self.institutions),
            transactions: Arc::clone(&self.transactions),
            ledger: Arc::clone(&self.ledger),
            telemetry: Arc::clone(&self.telemetry),
        };
        let resolving = Resolving {
            resolver: Arc::clone(&self.resolver),
            reconciler: Arc::clone(&self.reconciler),
            ledger: Arc::clone(&self.ledger),
            body,
        };
        // Observation stands beside the chain and not in it: watching a jam must not be stopped by the jam.
        let everything = Router::new()
            .merge(ledger::router(auditing))
            .merge(operations::router(operations))
            .merge(resolution::router(resolving))
            .method_not_allowed_fallback(method_not_allowed)
            .fallback_service(transactions);

        everything.layer(
            ServiceBuilder::new()
                // First of all a name for the call, so that every answer can carry it.
                .layer(axum::middleware::from_fn_with_state(Arc::clone(&self.telemetry), reply::identify))
                // Who calls? Before anything else is said, on any path under /api/.
                .layer(filter(move |head| authenticate(&keys, head)))
                // May they? Before it is said whether there is anything.
                .layer(filter(|head| authorize(head))),
        )
    }

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

    /// The ledger.
    #[must_use]
    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// What resolves and reconciles.
    #[must_use]
    pub fn reconciler(&self) -> &Arc<Reconciler> {
        &self.reconciler
    }

    /// Serves until `stop`, then drains.
    ///
    /// # Errors
    /// [`Stopped`]: the process must stop.
    pub async fn serve(self, listener: TcpListener, stop: CancellationToken) -> Result<(), Stopped> {
        let (closing, connections) = (CancellationToken::new(), TaskTracker::new());
        let background = self.start_background(&closing);
        let serving = edge::serve(
            listener,
            self.router(),
            self.config.edge,
            self.clock.clone(),
            closing.clone(),
            connections.clone(),
        );
        let serving = AbortOnDropHandle::new(tokio::spawn(serving));
        let (failed, fenced) = (self.ledger.journal().failed().clone(), self.ledger.fenced().clone());
        let time = tokio::select! {
            biased;
            () = stop.cancelled() => self.config.drain,
            // Those under way can't record their end any more; they shall still be answered.
            () = failed.cancelled() => Duration::from_secs(1),
            () = fenced.cancelled() => self.config.drain,
        };
        self.drain(time, closing, connections, background).await;
        drop(serving);
        if failed.is_cancelled() {
            return Err(Stopped::JournalFailed);
        }
        if fenced.is_cancelled() { Err(Stopped::Fenced) } else { Ok(()) }
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

fn filter<F: Filter>(filter: F) -> FilterLayer<F> {
    FilterLayer::new(filter, reply::turned_away)
}

async fn method_not_allowed(request: Request) -> Response {
    reply::failed(&request.into_parts().0, Failure::MethodNotAllowed)
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

/// Takes the port.
///
/// # Errors
/// [`StartError::Io`], with the address.
pub async fn listen(address: &str) -> Result<(TcpListener, SocketAddr), StartError> {
    let at = |error| StartError::Io(address.to_owned(), error);
    let listener = TcpListener::bind(address).await.map_err(at)?;
    let local = listener.local_addr().map_err(at)?;
    Ok((listener, local))
}
