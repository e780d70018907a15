//! Configuration: a TOML file, then environment variables over it. The only reader of the environment.
//!
//! Nothing is guessed: an unknown key, an unknown variable with our prefix, a route to nowhere, a timeout that makes
//! another one pointless refuse the start, all of them at once, each with file and line.

mod document;
mod settings;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use codec::{Catalog, Framing, LengthForm, LengthPrefix};

use crate::filters::auth::{Client, Role};
use crate::filters::rate_limit::Quota;
use crate::http::edge;
use crate::ledger::{Instance, JournalSettings};
use crate::resilience::Retry;
use crate::routes::{HostCodes, Kind, Route, RouteParts, RouteTable};
use crate::telemetry::LogFormat;
use crate::{breaker, pool};
pub use document::Problem;
use document::{Document, Reader, is_word};
pub use settings::{SETTINGS, render_markdown};

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
    /// Key of the account hash, if it is given.
    pub search_key: Option<Vec<u8>>,
    /// Rate limit of each client.
    pub client_limit: Quota,
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
    /// Retries.
    pub retry: Retry,
    codes: HostCodes,
    place: String,
}

/// The process's environment.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this is the one place")]
pub fn environment() -> Vec<(String, String)> {
    std::env::vars().collect()
}

impl Config {
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
        let institutions = read_institutions(&mut document);
        let catalog = read_catalog(&mut document, folder);
        let routes = read_routes(&mut document, &catalog, &institutions);
        let clients = read_clients(&mut document);
        let config = read_rest(&mut document, institutions, routes, clients);
        if document.problems.is_empty() { Ok(config) } else { Err(document.problems) }
    }
}

fn read_rest(
    document: &mut Document,
    institutions: BTreeMap<String, InstitutionConfig>,
    routes: RouteTable,
    clients: Vec<Client>,
) -> Config {
    let mut server = document.section("server");
    let listen = server.address("listen");
    let admission_max = server.size("admission_max", 1..=100_000);
    let drain = server.time("drain");
    let edge = edge::Limits {
        connections_max: server.size("connections_max", 1..=1_000_000),
        first_byte: server.time("first_byte_timeout"),
        head: server.time("head_timeout"),
        idle: server.time("idle_timeout"),
        body: server.time("body_timeout"),
        body_max: usize::try_from(server.bytes("body_max", 1)).unwrap_or(usize::MAX),
        // hyper refuses a smaller buffer.
        head_max: usize::try_from(server.bytes("head_max", 8_192)).unwrap_or(usize::MAX),
        headers_max: server.size("headers_max", 1..=1_000),
    };
    let mut ledger = document.section("ledger");
    let data = PathBuf::from(ledger.text("data"));
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
    let search_key = ledger.maybe("search_key").map(String::into_bytes);
    if search_key.as_ref().is_some_and(|key| key.len() < 32) {
        ledger.refuse("search_key", "`search_key` must have at least 32 characters");
    }
    let mut limit = document.section("client_limit");
    let client_limit = Quota { burst: limit.count("burst", 1..=1_000_000), rate: limit.count("rate", 1..=1_000_000) };
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
        search_key,
        client_limit,
        log_format,
        log_level,
        demo_delay,
        institutions,
        routes,
        clients,
    }
}

fn read_institutions(document: &mut Document) -> BTreeMap<String, InstitutionConfig> {
    let mut institutions = BTreeMap::new();
    for index in document.entries("institution") {
        let mut reader = document.reader(index);
        let name = reader.name();
        if !is_word(&name) {
            reader.refuse("", "an institution's name must be 1 to 64 of A-Z, a-z, 0-9, dot, hyphen, underscore");
        }
        let institution = InstitutionConfig {
            address: reader.address("address"),
            framing: read_framing(&mut reader),
            pool: pool::Settings {
                connections_max: reader.size("connections_max", 1..=10_000),
                borrow_wait: reader.time("borrow_wait"),
                connect_timeout: reader.time("connect_timeout"),
                idle_ttl: reader.time("idle_ttl"),
                life_max: reader.time("life_max"),
            },
            breaker: breaker::Settings {
                failures: u32::try_from(reader.count("breaker_failures", 1..=100_000)).unwrap_or(u32::MAX),
                open: reader.time("breaker_open"),
                open_max: reader.time("breaker_open_max"),
                probes_max: u32::try_from(reader.count("probes_max", 1..=1_000)).unwrap_or(u32::MAX),
                probe_timeout: reader.time("probe_timeout"),
            },
            retry: Retry {
                retries: u32::try_from(reader.count("retries", 0..=10)).unwrap_or_default(),
                wait_min: reader.time("retry_wait_min"),
                wait_max: reader.time("retry_wait_max"),
            },
            codes: HostCodes {
                success: reader.list("codes_success"),
                declined: reader.list("codes_declined"),
                not_processed: reader.list("codes_not_processed"),
            },
            place: reader.place_of("connect_timeout"),
        };
        let codes = &institution.codes;
        let mut all: Vec<_> = codes.success.iter().chain(&codes.declined).chain(&codes.not_processed).collect();
        let count = all.len();
        all.sort();
        all.dedup();
        if all.len() < count {
            reader.refuse("codes_declined", "a response code has two meanings");
        }
        if institution.breaker.open_max < institution.breaker.open {
            reader.refuse("breaker_open_max", "`breaker_open_max` is shorter than `breaker_open`");
        }
        institutions.insert(name, institution);
    }
    institutions
}

fn read_framing(reader: &mut Reader<'_>) -> Framing {
    if reader.text("framing") == "fixed" {
        let request = reader.size("request_length", 1..=65_535);
        return Framing::Fixed { request, reply: reader.size("reply_length", 1..=65_535) };
    }
    let form = match reader.text("length_form").as_str() {
        "binary-16" => LengthForm::BigEndian16,
        "binary-32" => LengthForm::BigEndian32,
        _ => LengthForm::AsciiDigits(reader.size("length_digits", 2..=8)),
    };
    Framing::LengthPrefixed(LengthPrefix {
        form,
        counts_itself: reader.flag("length_counts_itself"),
        body_max: usize::try_from(reader.bytes("body_max", 1)).unwrap_or(usize::MAX),
    })
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

fn read_routes(
    document: &mut Document,
    catalog: &Catalog,
    institutions: &BTreeMap<String, InstitutionConfig>,
) -> RouteTable {
    let mut table = RouteTable::default();
    let mut names = Vec::new();
    for index in document.entries("route") {
        let mut reader = document.reader(index);
        let name = reader.word("name");
        if names.contains(&name) {
            reader.refuse("name", format!("two routes are named `{name}`"));
        }
        names.push(name.clone());
        let (institution_name, deadline) = (reader.word("institution"), reader.time("deadline"));
        let institution = institutions.get(&institution_name);
        if institution.is_none() {
            reader.refuse("institution", format!("there is no institution `{institution_name}`"));
        }
        let mut layout = |key: &str| {
            let name = reader.text(key);
            let layout = catalog.get(&name).cloned();
            if layout.is_none() && !name.is_empty() {
                reader.refuse(key, format!("there is no layout `{name}`"));
            }
            layout
        };
        let (request, reply) = (layout("request"), layout("reply"));
        let kind = if reader.text("kind") == "mutation" { Kind::Mutation } else { Kind::Inquiry };
        let (tx_code, paths) = (reader.word("tx_code"), reader.list("paths"));
        if paths.is_empty() || !paths.iter().all(|path| path.starts_with("/api/")) {
            reader.refuse("paths", "every path must start with /api/, and there must be one");
        }
        let ledger = ["account", "counter_account", "amount"].map(|key| reader.maybe(key));
        let (Some(institution), Some(request), Some(reply)) = (institution, request, reply) else { continue };
        check_lengths(&mut reader, institution.framing, &request, &reply);
        if institution.pool.connect_timeout >= deadline {
            // Else a black hole ends every call by its deadline, which is ours, and the circuit never opens.
            let message = format!("the deadline must be longer than the connect_timeout at {}", institution.place);
            reader.refuse("deadline", message);
        }
        if institution.breaker.probe_timeout <= deadline {
            // Else a probe that is only slow is given up each time, and a healthy host never becomes CLOSED.
            reader.refuse("deadline", "the institution's probe_timeout must be longer than the deadline");
        }
        let codes = institution.codes.clone();
        let parts =
            RouteParts { name, tx_code, kind, institution: institution_name, request, reply, ledger, codes, deadline };
        match Route::new(parts) {
            Ok(route) => {
                if let Err(taken) = table.add(&paths, &Arc::new(route)) {
                    reader.refuse("paths", taken.to_string());
                }
            }
            Err(faults) => faults.into_iter().for_each(|fault| reader.refuse("", fault)),
        }
    }
    table
}

fn check_lengths(reader: &mut Reader<'_>, framing: Framing, request: &codec::Layout, reply: &codec::Layout) {
    let fits = |layout: &codec::Layout, fixed: usize| layout.group().is_none() && layout.header_length() == fixed;
    let (request_fits, reply_fits) = match framing {
        Framing::Fixed { request: asked, reply: answered } => (fits(request, asked), fits(reply, answered)),
        Framing::LengthPrefixed(prefix) => {
            (request.header_length() <= prefix.body_max, reply.header_length() <= prefix.body_max)
        }
    };
    if !request_fits {
        reader.refuse(
            "request",
            format!("`{}` has a length that the institution's framing cannot carry", request.name()),
        );
    }
    if !reply_fits {
        reader.refuse("reply", format!("`{}` has a length that the institution's framing cannot carry", reply.name()));
    }
}

fn read_clients(document: &mut Document) -> Vec<Client> {
    let mut clients: Vec<Client> = Vec::new();
    for index in document.entries("client") {
        let mut reader = document.reader(index);
        let name = reader.word("name");
        let role = match reader.text("role").as_str() {
            "auditor" => Role::Auditor,
            "operator" => Role::Operator,
            _ => Role::Client,
        };
        let mut key_hash = [0; 32];
        if hex::decode_to_slice(reader.text("key_sha256"), &mut key_hash).is_err() {
            reader.refuse("key_sha256", "`key_sha256` must be 64 hex digits");
        }
        if clients.iter().any(|client| client.key_hash == key_hash) {
            reader.refuse("key_sha256", "two clients have the same key");
        }
        clients.push(Client { name: Arc::from(name), role, key_hash });
    }
    if clients.is_empty() {
        document.problem("[[client]]", "there is no client: nobody could call, so the gateway does not start");
    }
    clients
}
