//! The short form for every day: a line of JSON in under a minute, and exit 1 when a figure is on the wrong side of what is asked.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;

use crate::Failed;
use crate::compare::{self, added, ratio};

/// What is asked of the figures; what is left out is not asked.
#[derive(Debug, clap::Args)]
pub(crate) struct Floors {
    /// Rounds.
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// Throughput at 16 connections over nginx's, at least.
    #[arg(long)]
    throughput_vs_nginx: Option<f64>,
    /// Throughput at 16 connections over the bare handler's, at least.
    #[arg(long)]
    throughput_vs_bare: Option<f64>,
    /// CPU time a call over nginx's at saturation, at most.
    #[arg(long)]
    cpu_vs_nginx: Option<f64>,
    /// What is added to the direct client's p50 at 4,000 a second, over what nginx adds, at most.
    #[arg(long)]
    p50_added_vs_nginx: Option<f64>,
}

pub(crate) fn run(floors: &Floors) -> Result<ExitCode, Failed> {
    let slice = Duration::from_millis(500);
    let plan = compare::Plan { rounds: floors.rounds, slice, connections: 16, rate: Some(4_000.0) };
    let compared = compare::run(plan, &[], None)?;
    let throughput_vs_nginx = ratio(&compared, "gateway", "nginx", |series| &series.throughput).median;
    let throughput_vs_bare = ratio(&compared, "gateway", "bare", |series| &series.throughput).median;
    let cpu_vs_nginx = ratio(&compared, "gateway", "nginx", |series| &series.cpu_saturated).median;
    let p50_added_vs_nginx = added(&compared).median;
    let round = |value: f64| (value * 1_000.0).round() / 1_000.0;
    println!(
        "{}",
        json!({
            "throughput_vs_nginx": round(throughput_vs_nginx),
            "throughput_vs_bare": round(throughput_vs_bare),
            "cpu_vs_nginx": round(cpu_vs_nginx),
            "p50_added_vs_nginx": round(p50_added_vs_nginx),
        })
    );
    let at_least = |value: f64, floor: Option<f64>| floor.is_none_or(|floor| value >= floor);
    let at_most = |value: f64, ceiling: Option<f64>| ceiling.is_none_or(|ceiling| value <= ceiling);
    let good = at_least(throughput_vs_nginx, floors.throughput_vs_nginx)
        && at_least(throughput_vs_bare, floors.throughput_vs_bare)
        && at_most(cpu_vs_nginx, floors.cpu_vs_nginx)
        && at_most(p50_added_vs_nginx, floors.p50_added_vs_nginx);
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
