//! The command line. Each command is a few lines over what the other modules do.

mod budget;
mod demo;
mod message;
mod store;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, Subcommand, ValueEnum};
use sha2::{Digest, Sha256};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::app::{App, listen};
use crate::config::{self, Config};
use crate::resilience::Institution;
use crate::telemetry::start_logging;

/// The configuration is wrong (EX_USAGE).
const EXIT_CONFIG: u8 = 64;
/// Input that does not fit its layout (EX_DATAERR).
const EXIT_DATA: u8 = 65;
/// The gateway cannot start (EX_UNAVAILABLE).
const EXIT_START: u8 = 69;
/// The journal failed while running (EX_IOERR).
const EXIT_JOURNAL: u8 = 74;

const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("BUILD_COMMIT"), ")");

/// A gateway between JSON over HTTP and fixed-length bank messages over TCP.
#[derive(Debug, Parser)]
#[command(name = "gwanmun", version = VERSION)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs a gateway and a simulated bank together, with keys that everybody knows.
    Demo(demo::Arguments),
    /// Runs a gateway.
    Serve {
        /// The configuration file.
        #[arg(long)]
        config: PathBuf,
    },
    /// Checks a configuration and says everything that is wrong, with file and line.
    Check {
        /// The configuration file.
        #[arg(long)]
        config: PathBuf,
    },
    /// API keys.
    #[command(subcommand)]
    Keys(Keys),
    /// The ledger's store.
    #[command(subcommand)]
    Ledger(store::Ledger),
    /// The call budgets that gateways share over PostgreSQL.
    #[command(subcommand)]
    Budget(budget::Budget),
    /// Compares a day in the ledger with the host's list.
    #[command(subcommand)]
    Reconcile(store::Reconcile),
    /// Reads a message from standard input, as hex or raw bytes, and shows its fields.
    Decode(message::Decode),
    /// Reads JSON from standard input and writes the message.
    Encode(message::Encode),
}

#[derive(Debug, Subcommand)]
enum Keys {
    /// Makes a key: prints it once, and the lines for the configuration.
    New {
        /// Whose key it is; stands in the ledger.
        #[arg(long)]
        client: String,
        /// What it may do.
        #[arg(long)]
        role: RoleArgument,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum RoleArgument {
    Client,
    Auditor,
    Operator,
}

/// Runs the command line.
#[must_use]
pub fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Demo(arguments) => run(demo::run(arguments)),
        Command::Serve { config } => run(serve(config)),
        Command::Check { config } => check(&config),
        Command::Keys(Keys::New { client, role }) => new_key(&client, role),
        Command::Ledger(command) => run(store::ledger(command)),
        Command::Budget(command) => run(budget::budget(command)),
        Command::Reconcile(command) => run(store::reconcile(command)),
        Command::Decode(arguments) => message::decode(&arguments),
        Command::Encode(arguments) => message::encode(&arguments),
    }
}

fn run(command: impl Future<Output = ExitCode>) -> ExitCode {
    match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => {
            let code = runtime.block_on(command);
            // A look-up or a sync that hangs must not keep the process beyond its drain time.
            runtime.shutdown_background();
            code
        }
        Err(error) => complain(EXIT_START, &format!("no runtime: {error}")),
    }
}

fn complain(code: u8, message: &str) -> ExitCode {
    eprintln!("gwanmun: {message}");
    ExitCode::from(code)
}

/// Prints every problem.
fn complain_all(problems: &[config::Problem]) -> ExitCode {
    for problem in problems {
        eprintln!("{problem}");
    }
    complain(EXIT_CONFIG, &format!("{} problem(s) in the configuration", problems.len()))
}

fn check(file: &std::path::Path) -> ExitCode {
    match Config::from_file(file, &config::environment()) {
        Ok(config) => {
            println!(
                "{}: good: {} institution(s), {} route(s), {} key(s)",
                file.display(),
                config.institutions.len(),
                config.routes.all().len(),
                config.clients.len()
            );
            ExitCode::SUCCESS
        }
        Err(problems) => complain_all(&problems),
    }
}

async fn serve(file: PathBuf) -> ExitCode {
    let config = match Config::from_file(&file, &config::environment()) {
        Ok(config) => config,
        Err(problems) => return complain_all(&problems),
    };
    start_logging(config.log_format, config.log_level);
    start(config, Some(file), |_| ()).await
}

/// Starts a gateway, tells where it listens, and serves until SIGTERM or SIGINT.
async fn start(config: Config, file: Option<PathBuf>, announce: impl FnOnce(std::net::SocketAddr)) -> ExitCode {
    if let Err(error) = forbid_core_files() {
        return complain(EXIT_START, &format!("core files cannot be forbidden: {error}"));
    }
    // Taken before anything else starts, so that a signal during a long recovery ends in order.
    let stop = match stop_on_signal() {
        Ok(stop) => stop,
        Err(error) => return complain(EXIT_START, &no_signals(&error)),
    };
    let reload = match file.map(|file| Ok((file, signal(SignalKind::hangup())?))).transpose() {
        Ok(reload) => reload,
        Err(error) => return complain(EXIT_START, &no_signals(&error)),
    };
    if let Err(message) = raise_descriptors(&config) {
        return complain(EXIT_START, &message);
    }
    let address = config.listen.clone();
    let app = match App::start(config).await {
        Ok(app) => app,
        Err(error) => return complain(EXIT_START, &error.to_string()),
    };
    let (listener, local) = match listen(&address).await {
        Ok(listening) => listening,
        Err(error) => return complain(EXIT_START, &error.to_string()),
    };
    if let Some((file, hangups)) = reload {
        tokio::spawn(reload_on_signal(hangups, file, app.institutions()));
    }
    tracing::info!(address = %local, version = VERSION, "serving");
    announce(local);
    match app.serve(listener, stop).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(EXIT_JOURNAL, &error.to_string()),
    }
}

/// Lets nothing of the process be written to a file when a signal kills it: accounts, amounts and names of calls under way would be in
/// it, and keys.
fn forbid_core_files() -> std::io::Result<()> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    Ok(setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?)
}

/// Takes all the descriptors that the system allows, and refuses to start when they would not do: a gateway that runs out of
/// them is jammed by its callers, and can't even connect to its hosts.
fn raise_descriptors(config: &Config) -> Result<(), String> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let allowed = if raised.is_ok() { limit.maximum } else { limit.current };
    let needed = config.descriptors_max();
    match allowed {
        Some(allowed) if allowed < needed => Err(format!(
            "{needed} descriptors may be needed and {allowed} are allowed: lower server.connections_max or raise the limit (ulimit -Hn)"
        )),
        _ => Ok(()),
    }
}

fn no_signals(error: &std::io::Error) -> String {
    format!("no signals: {error}")
}

fn stop_on_signal() -> std::io::Result<CancellationToken> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = CancellationToken::new();
    let cancel = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        cancel.cancel();
    });
    Ok(stop)
}

/// On SIGHUP the configuration is read again, and the institutions' budgets in it are put in force. What else has changed waits
/// for the next start. One that is wrong changes nothing.
async fn reload_on_signal(mut hangups: Signal, file: PathBuf, institutions: Arc<BTreeMap<String, Arc<Institution>>>) {
    while hangups.recv().await.is_some() {
        match Config::from_file(&file, &config::environment()) {
            Ok(config) => change_budgets(&institutions, &config),
            Err(problems) => {
                for problem in problems {
                    tracing::error!(%problem, "the configuration is not taken");
                }
            }
        }
    }
}

fn change_budgets(institutions: &BTreeMap<String, Arc<Institution>>, config: &Config) {
    for (name, institution) in institutions {
        let Some(settings) = config.institutions.get(name).map(|one| one.budget.clone()) else { continue };
        let budget = settings.keeper.name();
        match institution.gate.change(settings) {
            Ok(true) => tracing::info!(institution = name, budget, "the call budget has changed"),
            Ok(false) => tracing::info!(institution = name, budget, "the call budget is as it was"),
            Err(error) => {
                tracing::error!(institution = name, budget, "the call budget is not changed: {error}");
            }
        }
    }
}

fn new_key(client: &str, role: RoleArgument) -> ExitCode {
    if !config::is_word(client) {
        return complain(EXIT_CONFIG, "--client must be 1 to 64 of A-Z, a-z, 0-9, dot, hyphen, underscore");
    }
    let mut bytes = [0; 32];
    if let Err(error) = getrandom::fill(&mut bytes) {
        return complain(EXIT_START, &format!("no random bytes: {error}"));
    }
    let key = zeroize::Zeroizing::new(format!("gwm_{}", hex::encode(bytes)));
    let role = match role {
        RoleArgument::Client => "client",
        RoleArgument::Auditor => "auditor",
        RoleArgument::Operator => "operator",
    };
    println!("The key, shown this once:\n\n{}\n\nFor the configuration:\n", *key);
    print!("{}", client_entry(client, role, &key));
    flush()
}

/// The lines of a configuration that let a key in.
fn client_entry(name: &str, role: &str, key: &str) -> String {
    let hash = hex::encode(Sha256::digest(key.as_bytes()));
    format!("[[client]]\nname = \"{name}\"\nrole = \"{role}\"\nkey_sha256 = \"{hash}\"\n")
}

fn flush() -> ExitCode {
    match std::io::stdout().flush() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(EXIT_START, &error.to_string()),
    }
}
