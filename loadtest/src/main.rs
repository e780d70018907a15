//! Load scenarios for Gwanmun, each one command: `cargo run --release -p loadtest -- SCENARIO`. Everything that is measured is
//! started as a process of its own on free ports; what is reported are ratios in one run, medians of interleaved repeats, and CPU
//! time a call, because absolute times on a small shared machine mean little. docs/PERFORMANCE.md has the tables.
#![expect(clippy::disallowed_methods, reason = "a load generator measures time")]

mod building;
mod client;
mod compare;
mod direct;
mod figures;
mod floor;
mod load;
mod peers;
mod place;
mod plot;
mod process;
mod report;
mod rows;
mod scenario;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Why a scenario did not come to its end.
pub(crate) type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Load scenarios for Gwanmun.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Where tables, figures and plots go.
    #[arg(long, global = true, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/results"))]
    results: PathBuf,
    /// The gateway that is measured, in place of the one that was built beside this program.
    #[arg(long, global = true)]
    gateway: Option<PathBuf>,
    #[command(subcommand)]
    scenario: Scenario,
}

#[derive(Debug, Subcommand)]
enum Scenario {
    /// The short form of everything, for every day: one line of JSON; exit 1 when a figure is under its floor.
    Gate(scenario::gate::Floors),
    /// Beside nginx, a bare handler and the direct client, at saturation and at a constant rate.
    Compare(scenario::compare::Plan),
    /// A constant rate against a gateway that runs already.
    Open(scenario::open::Plan),
    /// Rising arrival rates to the knee and past it.
    Curve(scenario::curve::Plan),
    /// A silent host beside a healthy one, with the circuit and without.
    DeadHost(scenario::dead_host::Plan),
    /// A host that dies and comes back under load.
    Flap(scenario::flap::Plan),
    /// What each part costs, by leaving it out.
    Overhead(compare::Pace),
    /// Three times what the host can take.
    Overload(scenario::overload::Plan),
    /// More rows, clients, layouts and connections.
    Growth(scenario::growth::Plan),
    /// Durable mutations at rising concurrency.
    Transfers(scenario::transfers::Plan),
    /// Half the knee for a long time.
    Soak(scenario::soak::Plan),
    /// Encoding and decoding, beside the same by hand.
    Codec(scenario::codec::Plan),
    /// Builds the gateway with a profile of its own load, as it is shipped; says where it is.
    Pgo(scenario::pgo::Plan),
    /// Somebody to be measured beside. Started by the scenarios.
    #[command(subcommand, hide = true)]
    Peer(Peer),
}

#[derive(Debug, Subcommand)]
enum Peer {
    /// The bare handler.
    Bare {
        #[arg(long)]
        listen: SocketAddr,
        #[arg(long)]
        host: SocketAddr,
    },
    /// Encoding or decoding, so many times.
    Codec { work: scenario::codec::Work, times: u32 },
    /// What nginx proxies to.
    Upstream {
        #[arg(long)]
        listen: SocketAddr,
    },
}

fn main() -> ExitCode {
    let Arguments { results, gateway, scenario } = Arguments::parse();
    report::into_folder(results);
    let done = choose(gateway.as_deref(), &scenario).and_then(|()| run(scenario));
    done.unwrap_or_else(|error| {
        eprintln!("loadtest: {error}");
        ExitCode::from(2)
    })
}

/// The gateway that is measured, for scenarios that measure one which is already built.
fn choose(gateway: Option<&Path>, scenario: &Scenario) -> Result<(), Failed> {
    let Some(program) = gateway else { return Ok(()) };
    match scenario {
        Scenario::Open(_) | Scenario::Overhead(_) | Scenario::Codec(_) | Scenario::Pgo(_) | Scenario::Peer(_) => {
            Err("--gateway: this scenario measures none that is already built".into())
        }
        _ => place::measure(program),
    }
}

fn run(scenario: Scenario) -> Result<ExitCode, Failed> {
    match scenario {
        Scenario::Gate(floors) => scenario::gate::run(&floors),
        Scenario::Compare(plan) => scenario::compare::run(&plan),
        Scenario::Open(plan) => scenario::open::run(&plan),
        Scenario::Curve(plan) => scenario::curve::run(&plan),
        Scenario::DeadHost(plan) => scenario::dead_host::run(&plan),
        Scenario::Flap(plan) => scenario::flap::run(&plan),
        Scenario::Overhead(pace) => scenario::overhead::run(&pace),
        Scenario::Overload(plan) => scenario::overload::run(&plan),
        Scenario::Growth(plan) => scenario::growth::run(&plan),
        Scenario::Transfers(plan) => scenario::transfers::run(&plan),
        Scenario::Soak(plan) => scenario::soak::run(&plan),
        Scenario::Codec(plan) => scenario::codec::run(&plan),
        Scenario::Pgo(plan) => scenario::pgo::run(&plan),
        Scenario::Peer(peer) => serve(&peer).map(|()| ExitCode::SUCCESS),
    }
}

fn serve(peer: &Peer) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    match *peer {
        Peer::Bare { listen, host } => runtime.block_on(peers::serve_bare(listen, host)),
        Peer::Upstream { listen } => runtime.block_on(peers::serve_upstream(listen)),
        Peer::Codec { work, times } => scenario::codec::repeat(work, times),
    }
}
