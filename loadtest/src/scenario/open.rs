//! A constant rate of balance inquiries against a gateway that runs already, or as many as it takes.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use crate::Failed;
use crate::client::{balance, transfer};
use crate::load::{self, Target};

/// Whom, how much, how long.
#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    /// Where the gateway listens; it must know the key `loadtest-key` (the profile does).
    #[arg(long, default_value = "127.0.0.1:8080")]
    target: SocketAddr,
    /// Calls a second; left out, each connection calls again as soon as it is answered.
    #[arg(long)]
    rate: Option<f64>,
    /// Seconds.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Connections.
    #[arg(long, default_value_t = 16)]
    connections: usize,
    /// Transfers instead of balances.
    #[arg(long)]
    transfers: bool,
}

pub(crate) fn run(plan: &Plan) -> Result<ExitCode, Failed> {
    let requests = if plan.transfers { transfer } else { balance };
    let target = Target::Http(plan.target, Arc::new(requests));
    let time = Duration::from_secs(plan.seconds);
    let outcome = match plan.rate {
        Some(rate) => load::open(&target, plan.connections, rate, time, Duration::from_secs(1))?,
        None => load::closed(&target, plan.connections, time)?,
    };
    println!("{:.0} good answers/s, {} dropped; {:?}", outcome.rate(), outcome.dropped, outcome.by_name);
    for (name, quantile) in [("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999)] {
        println!("{name:<6} {:.3} ms", outcome.at(quantile));
    }
    if outcome.behind > Duration::from_millis(20) {
        println!("the generator itself was {:.0?} behind its schedule: do not trust the tail", outcome.behind);
    }
    Ok(ExitCode::SUCCESS)
}
