//! The composition root: makes the parts, wires them, owns the order of the filter chain (`entrance`), and knows how a gateway starts
//! and stops.

mod entrance;
mod parts;
mod serving;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use tokio::net::TcpListener;

use crate::budget::Stores;
use crate::cache::ReplyCache;
use crate::clock::Clock;
use crate::config::Config;
use crate::failure::Failure;
use crate::filters::auth::Keys;
use crate::filters::rate_limit::ClientLimit;
use crate::http::ledger::Auditing;
use crate::http::limits::Limits;
use crate::http::operations::Operations;
use crate::http::resolution::{self, Resolving};
use crate::http::submit::{BodyLimits, Submit};
use crate::http::{ledger, operations, reply};
use crate::ledger::{Disk, FolderDisk, Ledger, OpenError, Settings, Store, search_key, sync_folder_of};
use crate::pool::{Dial, TcpDial};
use crate::resilience::Institution;
use crate::resolve::{Reconciler, Resolver};
use crate::telemetry::Telemetry;
use crate::transaction::Transactions;
pub use entrance::Entrance;
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
    /// A core's thread ended by itself.
    #[error("a thread that serves has ended")]
    LostCore,
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
        let ledger = Ledger::open(disk, store, settings, clock.clone(), &telemetry).await?;
        let stands_on = (ledger.store(), Some(&ledger));
        let (resolver, reconciler) = make_resolving(&config, stands_on, &institutions, &clock, &telemetry);
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

    /// Where requests come in.
    #[must_use]
    pub fn entrance(&self) -> Entrance {
        let body = BodyLimits { max: self.config.edge.body_max, time: self.config.edge.body };
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
        Entrance {
            telemetry: Arc::clone(&self.telemetry),
            keys: Arc::clone(&self.keys),
            routes: self.config.routes.clone(),
            client_limit: Arc::clone(&self.client_limit),
            submit: Submit { transactions: Arc::clone(&self.transactions), body },
            observation: Router::new()
                .merge(ledger::router(auditing))
                .merge(operations::router(operations))
                .merge(resolution::router(resolving))
                .method_not_allowed_fallback(async |request| failed(request, Failure::MethodNotAllowed))
                .fallback(async |request| failed(request, Failure::UnknownRoute)),
        }
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

fn failed(request: Request, failure: Failure) -> Response {
    reply::failed(&request.into_parts().0, failure)
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
