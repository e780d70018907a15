//! A host that takes connections and says nothing: what its own callers get, with the circuit and without, and what the callers of a
//! healthy host beside it lose.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use crate::Failed;
use crate::client::{balance, rate};
use crate::figures::Spread;
use crate::load::{Outcome, Target, closed, open, to_f64};
use crate::place::{Place, Served};
use crate::report::Report;

/// How long and how often.
#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    /// Rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of one measurement.
    #[arg(long, default_value_t = 2)]
    seconds: u64,
}

/// Callers of the host that is dead.
const CALLERS: usize = 16;

struct Gateway {
    name: &'static str,
    served: Served,
    /// Good answers a second of the healthy host's callers, round by round.
    healthy: Vec<f64>,
    /// Answers a second of the other host's callers.
    other: Vec<f64>,
}

pub(crate) fn run(plan: &Plan) -> Result<ExitCode, Failed> {
    let place = Place::new(&[])?;
    // The kernel takes the connections, and nobody reads.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let silent = silent.local_addr().map(|address| (silent, address.to_string()))?;
    let dead = ("INSTITUTION__CORE_TRANSFER__ADDRESS", silent.1.as_str());
    let off = ("INSTITUTION__CORE_TRANSFER__BREAKER_FAILURES", "100000");
    let quick = ("INSTITUTION__CORE_TRANSFER__BREAKER_OPEN", "60s");
    let start = |name, settings: &[(&str, &str)]| -> Result<Gateway, Failed> {
        Ok(Gateway { name, served: place.gateway(name, settings)?, healthy: Vec::new(), other: Vec::new() })
    };
    let mut gateways = [
        start("both healthy", &[])?,
        start("one dead, circuit on", &[dead, quick])?,
        start("one dead, circuit off", &[dead, off])?,
    ];
    let time = Duration::from_secs(plan.seconds);
    let half = closed(&balances(gateways[0].served.address), CALLERS, time)?.rate() / 2.0;
    for round in 0..=plan.rounds {
        for gateway in &mut gateways {
            let (healthy, other) = both(gateway.served.address, half, time)?;
            // The first round opens the circuit.
            if round > 0 {
                gateway.healthy.push(healthy.rate());
                gateway.other.push(to_f64(other.answered()) / other.took.as_secs_f64());
            }
        }
    }
    let columns = ["", "healthy host: good answers/s", "of what it gets with both healthy", "other host: answers/s"];
    let title = format!(
        "A silent host beside a healthy one at {half:.0}/s (half the knee); {CALLERS} callers of the silent one"
    );
    let mut report = Report::new("dead-host", title, &columns);
    let mut kept = Vec::new();
    for gateway in &gateways {
        let share = Spread::of_ratios(&gateway.healthy, &gateways[0].healthy);
        kept.push(share.median);
        report.row(vec![
            gateway.name.to_owned(),
            Spread::of(&gateway.healthy).show(0),
            share.show(3),
            Spread::of(&gateway.other).show(0),
        ]);
    }
    // All alone, so that nobody shares the processors with them.
    let healthy = closed(&balances(gateways[0].served.address), CALLERS, time)?.rate();
    let refused = closed(&rates(gateways[1].served.address), CALLERS, time)?;
    let refused_rate = to_f64(refused.answered()) / refused.took.as_secs_f64();
    report.note(format!(
        "Alone, {CALLERS} callers of the dead host get {refused_rate:.0} answers/s with the circuit open ({:?}), of the healthy one {healthy:.0}/s.",
        refused.by_name
    ));
    report.write()?;
    let good = kept.iter().all(|share| *share >= 0.95) && refused_rate >= healthy;
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn balances(address: SocketAddr) -> Target {
    Target::Http(address, Arc::new(balance))
}

fn rates(address: SocketAddr) -> Target {
    Target::Http(address, Arc::new(rate))
}

/// The healthy host's callers at a constant rate, the other host's with one call after the other, a hundred times a second each.
fn both(address: SocketAddr, rate: f64, time: Duration) -> Result<(Outcome, Outcome), Failed> {
    std::thread::scope(|scope| {
        let other = scope.spawn(|| open(&rates(address), CALLERS, 400.0, time, Duration::from_secs(1)));
        let healthy = open(&balances(address), CALLERS, rate, time, Duration::from_secs(1))?;
        let other = other.join().map_err(|_| "a thread of the generator panicked")??;
        Ok((healthy, other))
    })
}
