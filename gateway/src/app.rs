//! The composition root: makes the parts, wires them, owns the order of the filter chain, and knows how a gateway starts
//! and stops.

mod parts;
mod serving;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use axum::routing::post;
use tokio::net::TcpListener;
use tower::ServiceBuilder;

use crate::budget::Stores;
use crate::cache::ReplyCache;
use crate::clock::Clock;
use crate::config::Config;
use crate::failure::Failure;
use crate::filters::auth::{Keys, authenticate, authorize};
use crate::filters::rate_limit::ClientLimit;
use crate::filters::routing::find_route;
use crate::filters::{Filter, FilterLayer};
use crate::http::ledger::Auditing;
use crate::http::limits::Limits;
use crate::http::operations::Operations;
use crate::http::resolution::{self, Resolving};
use crate::http::submit::{BodyLimits, Submit, submit};
use crate::http::{ledger, operations, reply};
use crate::ledger::{Disk, FolderDisk, Ledger, OpenError, Settings, Store, search_key, sync_folder_of};
use crate::pool::{Dial, TcpDial};
use crate::resilience::Institution;
use crate::resolve::{Reconciler, Resolver};
use crate::telemetry::Telemetry;
use crate::transaction::Transactions;
use parts::{REDIS_WAIT, lock_folder, make_cache, make_institutions, make_resolving, make_stores};
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
    /// A shared store's address does not read.
    #[error("{0} {1}")]
    Shared(&'static str, &'static str),
    /// The zone data can't be read.
    #[error("no zone data for Asia/Seoul: {0}")]
    Zone(#[from] jiff::Error),
}

/// Why a running gateway stopped by itself.
#[derive(Debug, thiserror::Error)]
pub enum Stopped {
    /// The system gives no threads to serve on.
    #[error("no threads to serve on: {0}")]
    NoCores(io::Error),
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
    client_limit: Arc<ClientLimit>,
    cache: Arc<ReplyCache>,
    stores: Stores,
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
        let stores = make_stores(&config, &clock)?;
        let institutions = Arc::new(make_institutions(&config, &dial, &stores, &clock, &telemetry));
        let (resolver, reconciler) = make_resolving(&config, &store, &institutions, &clock, &telemetry);
        let ledger = Ledger::open(disk, store, settings, clock.clone(), &telemetry).await?;
        let by_name = institutions.iter().map(|(name, one)| (name.clone(), Arc::clone(one))).collect();
        let cache = Arc::new(make_cache(&config, &stores, &clock));
        let transactions =
            Transactions::new(Arc::clone(&ledger), by_name, Arc::clone(&cache), config.admission_max, clock.clone());
        let keys = Arc::new(Keys::new(&config.clients, config.client_limit));
        let redis = stores.redis.clone().filter(|_| config.shared.client_limit_in_redis);
        let client_limit = Arc::new(ClientLimit::new(config.client_limit, redis, clock.clone()));
        if let Some(redis) = &stores.redis {
            redis.connect(REDIS_WAIT).await;
        }
        Ok(Self {
            config,
            clock,
            ledger,
            institutions,
            transactions: Arc::new(transactions),
            telemetry,
            keys,
            client_limit,
            cache,
            stores,
            resolver,
            reconciler,
            _lock: None,
        })
    }

    /// All routes. Whoever reads this sees the order in which a request is looked at.
    pub fn router(&self) -> Router {
        let (keys, routes, limit) =
            (Arc::clone(&self.keys), self.config.routes.clone(), Arc::clone(&self.client_limit));
        let body = BodyLimits { max: self.config.edge.body_max, time: self.config.edge.body };
        let submit_state = Submit { transactions: Arc::clone(&self.transactions), body };

        let transactions = ServiceBuilder::new()
            // Where does it go? An unknown path must cost nothing, not even a token.
            .layer(filter(move |head| find_route(&routes, head)))
            // How often? After the route, so that only real calls use up a client's limit. Last, because it admits.
            .layer(axum::middleware::from_fn_with_state(limit, limited))
            .service(post(submit).with_state(submit_state));

        let auditing = Auditing { ledger: Arc::clone(&self.ledger), body };
        let operations = Operations {
            institutions: Arc::clone(&self.institutions),
            transactions: Arc::clone(&self.transactions),
            ledger: Arc::clone(&self.ledger),
            telemetry: Arc::clone(&self.telemetry),
            limits: Limits {
                client_limit: Arc::clone(&self.client_limit),
                cache: Arc::clone(&self.cache),
                stores: self.stores.clone(),
            },
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

    /// The ledger.
    #[must_use]
    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// The institutions by name.
    #[must_use]
    pub fn institutions(&self) -> Arc<BTreeMap<String, Arc<Institution>>> {
        Arc::clone(&self.institutions)
    }

    /// What resolves and reconciles.
    #[must_use]
    pub fn reconciler(&self) -> &Arc<Reconciler> {
        &self.reconciler
    }
}

fn filter<F: Filter>(filter: F) -> FilterLayer<F> {
    FilterLayer::new(filter, reply::turned_away)
}

/// The last filter may have to ask Redis, so it is not one of the plain functions.
async fn limited(State(limit): State<Arc<ClientLimit>>, request: Request, next: Next) -> Response {
    let (mut head, body) = request.into_parts();
    match limit.admit(&mut head).await {
        Ok(()) => next.run(Request::from_parts(head, body)).await,
        Err(away) => reply::turned_away(&head, away),
    }
}

async fn method_not_allowed(request: Request) -> Response {
    reply::failed(&request.into_parts().0, Failure::MethodNotAllowed)
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
