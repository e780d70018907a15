//! Configuration: a TOML file, then environment variables over it. The only reader of the environment.
//!
//! Nothing is guessed: an unknown key, an unknown variable with our prefix, a route to nowhere, a timeout that makes
//! another one pointless refuse the start, all of them at once, each with file and line.

mod document;
mod entries;
mod limits;
mod questions;
mod settings;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use codec::{Catalog, Framing};
use zeroize::Zeroizing;

use crate::bucket::Quota;
use crate::filters::auth::Client;
use crate::http::edge;
use crate::ledger::{Instance, JournalSettings};
use crate::resilience::Retry;
use crate::resolve::{self, Daily};
use crate::routes::{HostCodes, Questions, RouteTable};
use crate::telemetry::LogFormat;
use crate::{breaker, budget, pool};
use document::{Document, Reader};
pub use document::{Problem, is_word};
use entries::{read_clients, read_institutions, read_routes};
pub use limits::SharedConfig;
use limits::read_shared;
use questions::read_questions;
pub use settings::{Default as DefaultValue, Setting, Unit, all as settings, render_markdown};

/// Everything that a gateway needs to start.
#[derive(Debug)]
pub struct Config {
    /// Where HTTP is served.
    pub listen: String,
    /// Limits of the HTTP edge.
    pub edge: edge::Limits,
    /// Transactions at a time.
    pub admission_max: usize,
    /// From SIGTERM to the end of the process.
    pub drain: Duration,
    /// The data folder.
    pub data: PathBuf,
    /// Letter of the transaction ids.
    pub instance: Instance,
    /// The journal's rules.
    pub journal: JournalSettings,
    /// Where the rows go.
    pub store: StoreConfig,
    /// How long the instance letter stays ours without a word from us.
    pub instance_lease: Duration,
    /// How long an idempotency key is kept.
    pub claim_keep: Duration,
    /// The resolver's rules.
    pub resolver: resolve::Settings,
    /// When yesterday is reconciled, if at all.
    pub reconcile_at: Option<Daily>,
    /// Key of the account hash, if it is given.
    pub search_key: Option<Hidden>,
    /// Rate limit of each client.
    pub client_limit: Quota,
    /// Where what gateways share is kept.
    pub shared: SharedConfig,
    /// How log lines look.
    pub log_format: LogFormat,
    /// What is logged.
    pub log_level: tracing::Level,
    /// The simulator's delay, in the demo.
    pub demo_delay: Duration,
    /// Institutions by name.
    pub institutions: BTreeMap<String, InstitutionConfig>,
    /// Routes by path.
    pub routes: RouteTable,
    /// Who may call.
    pub clients: Vec<Client>,
}

/// One institution's settings.
#[derive(Debug, Clone)]
pub struct InstitutionConfig {
    /// The host's address.
    pub address: String,
    /// How messages are cut.
    pub framing: Framing,
    /// The pool's rules.
    pub pool: pool::Settings,
    /// The breaker's rules.
    pub breaker: breaker::Settings,
    /// The call budget.
    pub budget: budget::Settings,
    /// Retries.
    pub retry: Retry,
    /// How long after its deadline a request may still be processed.
    pub settle_time: Duration,
    /// What the gateway may ask it.
    pub questions: Arc<Questions>,
    /// Which institution lists what this one processed.
    pub settled_by: Option<String>,
    codes: HostCodes,
    place: String,
}

/// A secret that is wiped after use and never shown, not even by a debug print of the whole configuration.
#[derive(Clone)]
pub struct Hidden(Zeroizing<String>);

impl Hidden {
    /// The secret itself.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(hidden)")
    }
}

/// Where the ledger's rows go.
#[derive(Debug, Clone)]
pub enum StoreConfig {
    /// A file in the data folder.
    Sqlite,
    /// A server, by its URL.
    Postgres(Hidden),
}

/// The process's environment, as far as it is ours. A variable of ours that is not UTF-8 is kept with a value that no
/// setting takes; anybody else's is none of our business.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this is the one place")]
pub fn environment() -> Vec<(String, String)> {
    let ours = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok().filter(|name| name.starts_with(document::PREFIX))?;
        Some((name, value.into_string().unwrap_or_else(|_| "\u{FFFD}".to_owned())))
    });
    ours.collect()
}

impl Config {
    /// Most descriptors that may be open at once: callers, hosts, the journal, the store, and what a process needs anyway.
    #[must_use]
    pub fn descriptors_max(&self) -> u64 {
        let hosts: usize = self.institutions.values().map(|institution| institution.pool.connections_max).sum();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // Each core's runtime has some of its own.
        let anyway = 128 + 4 * cores;
        u64::try_from(self.edge.connections_max.saturating_add(hosts).saturating_add(anyway)).unwrap_or(u64::MAX)
    }

    /// Whose mutations are listed by whom.
    #[must_use]
    pub fn settled_by(&self) -> BTreeMap<String, String> {
        let listed = |(name, one): (&String, &InstitutionConfig)| Some((name.clone(), one.settled_by.clone()?));
        self.institutions.iter().filter_map(listed).collect()
    }

    /// Reads a file.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub fn from_file(file: &Path, environment: &[(String, String)]) -> Result<Self, Vec<Problem>> {
        let name = file.display().to_string();
        let text = std::fs::read_to_string(file)
            .map_err(|error| vec![Problem { place: name.clone(), message: format!("cannot be read: {error}") }])?;
        let folder = file.parent().unwrap_or(Path::new("."));
        Self::from_text(&name, &text, folder, environment)
    }

    /// Reads a text; `folder` is what relative paths are relative to.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub fn from_text(
        name: &str,
        text: &str,
        folder: &Path,
        environment: &[(String, String)],
    ) -> Result<Self, Vec<Problem>> {
        let mut document = Document::read(name, text, environment);
        let mut institutions = read_institutions(&mut document);
        let catalog = read_catalog(&mut document, folder);
        read_questions(&mut document, &catalog, &mut institutions);
        let routes = read_routes(&mut document, name, &catalog, &institutions);
        let clients = read_clients(&mut document, name);
        let config = read_rest(&mut document, folder, institutions, routes, clients);
        if document.problems.is_empty() { Ok(config) } else { Err(document.problems) }
    }
}

fn read_rest(
    document: &mut Document,
    folder: &Path,
    institutions: BTreeMap<String, InstitutionConfig>,
    routes: RouteTable,
    clients: Vec<Client>,
) -> Config {
    let mut server = document.section("server");
    let listen = server.address("listen");
    let admission_max = server.size("admission_max", 1..=100_000);
    let drain = server.time("drain");
    let edge = read_edge(&mut server);
    let mut ledger = document.section("ledger");
    let data = folder.join(ledger.text("data"));
    let letter = ledger.text("instance");
    let instance = Instance::parse(&letter);
    if instance.is_none() {
        ledger.refuse("instance", "`instance` must be one of 0-9 or A-Z");
    }
    let journal = JournalSettings {
        limit: ledger.bytes("journal_limit", 16 * 1_048_576),
        sync_interval: ledger.time("sync_interval"),
    };
    if u64::try_from(admission_max).unwrap_or(u64::MAX) > journal.transactions_max() {
        let most = journal.transactions_max();
        ledger.refuse("journal_limit", format!("with this `journal_limit`, `admission_max` may be {most} at most"));
    }
    let store = read_store(&mut ledger);
    let (instance_lease, claim_keep) = (ledger.time("instance_lease"), ledger.time("idempotency_keep"));
    let search_key = ledger.maybe("search_key").map(|key| Hidden(Zeroizing::new(key)));
    if search_key.as_ref().is_some_and(|key| key.reveal().len() < 32) {
        ledger.refuse("search_key", "`search_key` must have at least 32 characters");
    }
    let mut limit = document.section("client_limit");
    let client_limit = Quota { burst: limit.count("burst", 1..=1_000_000), rate: limit.count("rate", 1..=1_000_000) };
    let shared = read_shared(document, &store, &institutions);
    let resolver = read_resolver(&mut document.section("resolver"));
    let mut section = document.section("reconciliation");
    let reconcile_at = section.maybe("daily_at").and_then(|text| {
        let daily = Daily::parse(&text);
        if daily.is_none() {
            section.refuse("daily_at", "`daily_at` must be HH:MM, in Seoul");
        }
        daily
    });
    let mut log = document.section("log");
    let log_format = if log.text("format") == "json" { LogFormat::Json } else { LogFormat::Text };
    let log_level = log.text("level").parse().unwrap_or(tracing::Level::INFO);
    let demo_delay = Duration::from_millis(document.section("demo").count("delay_ms", 0..=3_600_000));
    Config {
        listen,
        edge,
        admission_max,
        drain,
        data,
        instance: instance.unwrap_or_default(),
        journal,
        store,
        instance_lease,
        claim_keep,
        resolver,
        reconcile_at,
        search_key,
        client_limit,
        shared,
        log_format,
        log_level,
        demo_delay,
        institutions,
        routes,
        clients,
    }
}

fn read_edge(server: &mut Reader<'_>) -> edge::Limits {
    edge::Limits {
        connections_max: server.size("connections_max", 1..=1_000_000),
        first_byte: server.time("first_byte_timeout"),
        head: server.time("head_timeout"),
        idle: server.time("idle_timeout"),
        body: server.time("body_timeout"),
        body_max: usize::try_from(server.bytes("body_max", 1)).unwrap_or(usize::MAX),
        // hyper refuses a smaller buffer.
        head_max: usize::try_from(server.bytes("head_max", 8_192)).unwrap_or(usize::MAX),
        headers_max: server.size("headers_max", 1..=1_000),
    }
}

fn read_store(ledger: &mut Reader<'_>) -> StoreConfig {
    match (ledger.text("store").as_str(), ledger.maybe("postgres_url")) {
        ("postgres", Some(url)) => {
            if !has_known_parameters(&url) {
                // The driver would write what it does not know into the log.
                ledger.refuse("postgres_url", "`postgres_url` has a parameter that is not known");
            }
            StoreConfig::Postgres(Hidden(Zeroizing::new(url)))
        }
        ("postgres", None) => {
            ledger.refuse("store", "with `store = \"postgres\"` a `postgres_url` is required");
            StoreConfig::Sqlite
        }
        _ => StoreConfig::Sqlite,
    }
}

fn has_known_parameters(url: &str) -> bool {
    const KNOWN: [&str; 10] =
        ["sslmode", "host", "hostaddr", "port", "dbname", "user", "password", "application_name", "options", ""];
    let query = url.split_once('?').map_or("", |(_, query)| query);
    query.split('&').all(|pair| {
        let name = pair.split('=').next().unwrap_or_default();
        KNOWN.contains(&name) || name.starts_with("options[")
    })
}

fn read_resolver(section: &mut Reader<'_>) -> resolve::Settings {
    let resolver = resolve::Settings {
        enabled: section.flag("enabled"),
        poll: section.time("poll"),
        at_once: u32::try_from(section.count("at_once", 1..=1_000)).unwrap_or(1),
        wait_min: section.time("wait_min"),
        wait_max: section.time("wait_max"),
    };
    if resolver.wait_max < resolver.wait_min {
        section.refuse("wait_max", "`wait_max` is shorter than `wait_min`");
    }
    resolver
}

fn read_catalog(document: &mut Document, folder: &Path) -> Catalog {
    let more = document.section("layouts").maybe("folder");
    let loaded = Catalog::builtin().and_then(|mut catalog| {
        if let Some(more) = more {
            catalog.merge(Catalog::from_folder(&folder.join(more))?)?;
        }
        Ok(catalog)
    });
    loaded.unwrap_or_else(|errors| {
        for error in errors {
            document.problem(format!("{}:{}", error.file, error.line), error.message);
        }
        Catalog::default()
    })
}
