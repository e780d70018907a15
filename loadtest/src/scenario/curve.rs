//! Rising arrival rates to the knee and past it.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use crate::Failed;
use crate::client::balance;
use crate::load::{Target, closed, open, to_f64};
use crate::place::Place;
use crate::plot::Plot;
use crate::report::Report;

/// How to rise.
#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    /// Seconds of each rate.
    #[arg(long, default_value_t = 4)]
    seconds: u64,
    /// Connections.
    #[arg(long, default_value_t = 64)]
    connections: usize,
}

pub(crate) fn run(plan: &Plan) -> Result<ExitCode, Failed> {
    let place = Place::new(&[])?;
    let gateway = place.gateway("gateway", &[])?;
    let target = Target::Http(gateway.address, Arc::new(balance));
    let saturated = closed(&target, plan.connections, Duration::from_secs(2))?.rate();
    let columns =
        ["offered/s", "achieved/s", "p50 ms", "p95 ms", "p99 ms", "p99.9 ms", "errors %", "dropped", "CPU µs a call"];
    let title =
        format!("Balance inquiries at rising rates over {} connections; saturated: {saturated:.0}/s", plan.connections);
    let mut report = Report::new("curve", title, &columns);
    let quantiles = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)];
    let mut lines = quantiles.map(|(name, _)| (name.to_owned(), Vec::new()));
    for share in [0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 1.0, 1.15] {
        let rate = saturated * share;
        let before = gateway.process.cpu();
        let time = Duration::from_secs(plan.seconds);
        let outcome = open(&target, plan.connections, rate, time, Duration::from_secs(1))?;
        let cpu = (gateway.process.cpu() - before).as_secs_f64() * 1e6 / to_f64(outcome.answered().max(1));
        let errors = to_f64(outcome.answered() - outcome.good()) / to_f64(outcome.answered().max(1)) * 100.0;
        let at = |quantile| format!("{:.3}", outcome.at(quantile));
        report.row(vec![
            format!("{rate:.0}"),
            format!("{:.0}", outcome.rate()),
            at(0.5),
            at(0.95),
            at(0.99),
            at(0.999),
            format!("{errors:.2}"),
            outcome.dropped.to_string(),
            format!("{cpu:.1}"),
        ]);
        for ((_, points), (_, quantile)) in lines.iter_mut().zip(quantiles) {
            points.push((rate, outcome.at(quantile)));
        }
        if outcome.behind > Duration::from_millis(20) {
            report.note(format!("At {rate:.0}/s the generator itself was {:.0?} behind its schedule.", outcome.behind));
        }
    }
    report.plot(Plot { x_name: "offered calls a second", y_name: "latency in ms", log: true, lines: lines.into() });
    report.write()?;
    Ok(ExitCode::SUCCESS)
}
