//! `gwanmun demo`: a gateway and a simulated bank in one process, for a first look. Its keys are known to everybody, so it
//! says loudly that it is no place for real data.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use mock_core_banking::{Port, Settings, Simulator};

use super::{EXIT_START, client_entry, complain, complain_all, start};
use crate::config::{Config, environment};
use crate::telemetry::start_logging;

/// Routes and institutions of the demo.
const ROUTES: &str = include_str!("../../routes.toml");

const KEYS: [(&str, &str, &str); 4] = [
    ("fintech-a", "client", "demo-key-fintech-a"),
    ("fintech-b", "client", "demo-key-fintech-b"),
    ("auditor", "auditor", "demo-key-auditor"),
    ("operator", "operator", "demo-key-operator"),
];

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Where HTTP is served; 127.0.0.1:8090 unless the environment says otherwise.
    #[arg(long)]
    listen: Option<SocketAddr>,
    /// Where the simulator's control port listens; loopback only.
    #[arg(long, default_value = "127.0.0.1:9095")]
    control: SocketAddr,
    /// The data folder; gwanmun-demo-data unless the environment says otherwise.
    #[arg(long)]
    data: Option<PathBuf>,
}

pub(super) async fn run(arguments: Arguments) -> ExitCode {
    let text = with_keys(ROUTES);
    // Once to learn the simulator's delay, and again when its ports are known.
    let first = match configure(&text, &arguments, None) {
        Ok(config) => config,
        Err(problems) => return complain_all(&problems),
    };
    start_logging(first.log_format, first.log_level);
    let settings = Settings { control: arguments.control, delay: first.demo_delay, ..Settings::default() };
    let simulator = match Simulator::start(settings).await {
        Ok(simulator) => simulator,
        Err(error) => return complain(EXIT_START, &format!("the simulator does not start: {error}")),
    };
    let config = match configure(&text, &arguments, Some(&simulator)) {
        Ok(config) => config,
        Err(problems) => return complain_all(&problems),
    };
    start(config, None, |local| announce(local, &simulator)).await
}

fn with_keys(routes: &str) -> String {
    let mut text = routes.to_owned();
    for (name, role, key) in KEYS {
        text.push('\n');
        text.push_str(&client_entry(name, role, key));
    }
    text
}

/// The demo's own values, under whatever the environment says, under the command line.
fn configure(
    text: &str,
    arguments: &Arguments,
    simulator: Option<&Simulator>,
) -> Result<Config, Vec<crate::config::Problem>> {
    let mut variables = vec![
        ("GWANMUN_SERVER__LISTEN".to_owned(), "127.0.0.1:8090".to_owned()),
        ("GWANMUN_LEDGER__DATA".to_owned(), "gwanmun-demo-data".to_owned()),
        ("GWANMUN_CLIENT_LIMIT__BURST".to_owned(), "1000".to_owned()),
        ("GWANMUN_CLIENT_LIMIT__RATE".to_owned(), "500".to_owned()),
    ];
    for port in Port::ALL.into_iter().filter(|_| simulator.is_some()) {
        let name = port.institution().to_uppercase().replace('-', "_");
        let address = simulator.map(|simulator| simulator.address(port).to_string()).unwrap_or_default();
        variables.push((format!("GWANMUN_INSTITUTION__{name}__ADDRESS"), address));
    }
    variables.extend(environment());
    // What was said on the command line wins.
    variables.extend(arguments.listen.map(|listen| ("GWANMUN_SERVER__LISTEN".to_owned(), listen.to_string())));
    let data = arguments.data.as_ref().map(|data| data.display().to_string());
    variables.extend(data.map(|data| ("GWANMUN_LEDGER__DATA".to_owned(), data)));
    Config::from_text("routes.toml", text, Path::new("."), &variables)
}

fn announce(local: SocketAddr, simulator: &Simulator) {
    println!("Gwanmun demo at http://{local} — a simulated bank, keys that everybody knows: no real data here.\n");
    for (name, role, key) in KEYS {
        println!("  {key:<20} {role} ({name})");
    }
    println!("\n  simulator's control port: http://{}\n", simulator.control());
    println!("Try:\n");
    println!("  curl -i http://{local}/api/gateway/balance -H 'X-API-Key: demo-key-fintech-a' \\");
    println!("    -H 'Content-Type: application/json' -d '{{\"accountNo\":\"12345678901234\"}}'\n");
}
