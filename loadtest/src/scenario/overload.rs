//! Three times what the host can take: the knee is the host's (four lines of ten milliseconds), so processors idle. What is accepted stays
//! in its deadline, the rest is refused at once, and memory stays flat.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use crate::Failed;
use crate::client::balance;
use crate::load::{Target, histogram, open_told, to_f64};
use crate::place::Place;
use crate::report::Report;

/// How long.
#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    /// Seconds of overload.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

const LATE: &str = r#"{"seed":1,"rules":[{"message":"0200","fault":"late","probability":1.0,"delayMs":10}]}"#;

pub(crate) fn run(plan: &Plan) -> Result<ExitCode, Failed> {
    let place = Place::new(&["--faults", LATE])?;
    let settings = [("INSTITUTION__CORE_BANKING__CONNECTIONS_MAX", "4"), ("SERVER__ADMISSION_MAX", "64")];
    let gateway = place.gateway("gateway", &settings)?;
    let target = Target::Http(gateway.address, Arc::new(balance));
    let knee = 4.0 / 0.010;
    let histograms = std::sync::Mutex::new((histogram()?, histogram()?));
    let tell = |good, micros| {
        let mut both = histograms.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if good { both.0.saturating_record(micros) } else { both.1.saturating_record(micros) }
    };
    // What is bounded fills in the first half; from then on nothing grows.
    let half = Duration::from_secs(plan.seconds) / 2;
    open_told(&target, 256, knee * 3.0, half, tell)?;
    let before = gateway.process.memory_kib();
    let outcome = open_told(&target, 256, knee * 3.0, half, tell)?;
    let after = gateway.process.memory_kib();
    let (accepted, refused) = histograms.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let title = format!("Three times the knee of {knee:.0}/s for {} s", plan.seconds);
    let mut report = Report::new("overload", title, &["", "count", "p50 ms", "p99 ms", "most ms"]);
    for (name, histogram) in [("accepted", &accepted), ("refused", &refused)] {
        let at = |quantile| format!("{:.2}", to_f64(histogram.value_at_quantile(quantile)) / 1_000.0);
        report.row(vec![name.to_owned(), histogram.len().to_string(), at(0.5), at(0.99), at(1.0)]);
    }
    let grown = (to_f64(after) / to_f64(before.max(1)) - 1.0) * 100.0;
    report
        .note(format!("Memory {before} KiB after half the time, {after} KiB at its end: {grown:+.1} %. Answers of the second half: {:?}.", outcome.by_name));
    report.write()?;
    let in_time = accepted.value_at_quantile(0.99) < 3_000_000;
    let at_once = refused.value_at_quantile(0.99) < 50_000;
    // In less than a minute what is bounded may not have filled yet.
    let flat = grown < 10.0 || plan.seconds < 60;
    Ok(if in_time && at_once && flat { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
