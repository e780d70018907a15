//! Beside nginx, the bare handler and the direct client: a table of what each reached, and of the ratios.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::Failed;
use crate::compare::{self, Compared, Pace, Series, added, ratio};
use crate::figures::Spread;

/// How to compare.
#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    #[command(flatten)]
    pace: Pace,
    /// Another build of the gateway, to be measured in the same rounds.
    #[arg(long)]
    before: Option<PathBuf>,
}

pub(crate) fn run(plan: &Plan) -> Result<ExitCode, Failed> {
    let compared = compare::run(plan.pace.plan(), &[], plan.before.as_deref())?;
    print!("{}", table(&compared));
    Ok(ExitCode::SUCCESS)
}

fn table(compared: &Compared) -> String {
    let mut text = String::from(
        "| | answers/s, saturated | CPU µs a call, saturated | CPU µs a call, at the rate | p50 ms | p99 ms |\n|---|---|---|---|---|---|\n",
    );
    for (name, series) in compared {
        let spread = |values: &[f64], digits| Spread::of(values).show(digits);
        text.push_str(&format!(
            "| {name} | {} | {} | {} | {} | {} |\n",
            spread(&series.throughput, 0),
            spread(&series.cpu_saturated, 1),
            spread(&series.cpu_at_rate, 1),
            spread(&series.p50_at_rate, 3),
            spread(&series.p99_at_rate, 3),
        ));
    }
    text.push_str("\n| gateway over | throughput | CPU, saturated | CPU, at the rate |\n|---|---|---|---|\n");
    for under in ["nginx", "bare", "direct", "before"].into_iter().filter(|name| compared.contains_key(name)) {
        let of = |figure: fn(&Series) -> &Vec<f64>| ratio(compared, "gateway", under, figure).show(2);
        text.push_str(&format!(
            "| {under} | {} | {} | {} |\n",
            of(|series| &series.throughput),
            of(|series| &series.cpu_saturated),
            of(|series| &series.cpu_at_rate)
        ));
    }
    text.push_str(&format!("\np50 added over what nginx adds: {}\n", added(compared).show(2)));
    let behind = compared.values().map(|series| series.behind).fold(0.0, f64::max);
    if behind > 20.0 {
        text.push_str(&format!(
            "the generator itself was {behind:.0} ms behind its schedule: do not trust the tails\n"
        ));
    }
    text
}
