//! Half the knee for a long time: nothing may grow.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use crate::Failed;
use crate::client::balance;
use crate::load::{Target, closed, open, to_f64};
use crate::place::Place;
use crate::plot::Plot;
use crate::report::Report;

/// How long.
#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    /// Seconds.
    #[arg(long, default_value_t = 3_600)]
    seconds: u64,
}

/// Calls before it is looked: what is bounded fills first, SQLite's page cache and some rounds of carrying its log back.
const FILLING: u64 = 80_000;
/// Small, so that it would be seen to grow. What is not synced must fit into a thirty-second of it: here some two seconds of a disk that
/// does not answer.
const JOURNAL: &str = "256MiB";
/// Parts of the time, at whose ends it is looked.
const LOOKS: u32 = 12;

pub(crate) fn run(plan: &Plan) -> Result<ExitCode, Failed> {
    let place = Place::new(&[])?;
    let gateway = place.gateway("gateway", &[("LEDGER__JOURNAL_LIMIT", JOURNAL), ("SERVER__ADMISSION_MAX", "60")])?;
    let target = Target::Http(gateway.address, Arc::new(balance));
    let rate = closed(&target, 16, Duration::from_secs(3))?.rate() / 2.0;
    let mut filled = 0;
    while filled < FILLING {
        filled += closed(&target, 16, Duration::from_secs(3))?.answered();
    }
    let title = format!("Half the knee, {rate:.0}/s, for {} s", plan.seconds);
    let columns = ["after s", "calls", "CPU µs a call", "p99 ms", "memory KiB", "descriptors", "journal KiB"];
    let mut report = Report::new("soak", title, &columns);
    let part = Duration::from_secs(plan.seconds) / LOOKS;
    let (mut memory, mut descriptors, mut calls) = (Vec::new(), Vec::new(), 0);
    for look in 1..=LOOKS {
        let cpu = gateway.process.cpu_ever();
        let outcome = open(&target, 16, rate, part, Duration::from_secs(1))?;
        if outcome.good() < outcome.answered() {
            return Err(format!("not every call was answered well: {:?}", outcome.by_name).into());
        }
        let cpu =
            gateway.process.cpu_ever().saturating_sub(cpu).as_secs_f64() * 1e6 / to_f64(outcome.answered().max(1));
        calls += outcome.answered();
        memory.push((f64::from(look) * part.as_secs_f64(), to_f64(gateway.process.memory_kib())));
        descriptors.push(gateway.process.descriptors());
        report.row(vec![
            format!("{:.0}", f64::from(look) * part.as_secs_f64()),
            calls.to_string(),
            format!("{cpu:.1}"),
            format!("{:.2}", outcome.at(0.99)),
            memory.last().map_or(0.0, |(_, kib)| *kib).to_string(),
            descriptors.last().copied().unwrap_or_default().to_string(),
            (place.journal_bytes("gateway") / 1_024).to_string(),
        ]);
    }
    // The first half may still fill what is bounded; from then on nothing grows.
    let half = memory.len() / 2;
    let most = |points: &[(f64, f64)]| points.iter().map(|(_, kib)| *kib).fold(0.0, f64::max);
    let (first, second) = (most(memory.get(..half).unwrap_or_default()), most(memory.get(half..).unwrap_or_default()));
    let more = descriptors.iter().max().copied()
        > descriptors.get(..half).and_then(|half| half.iter().max().copied()).map(|most| most + 8);
    report.note(format!("Memory at most {first:.0} KiB in the first half and {second:.0} KiB in the second."));
    report.plot(Plot {
        x_name: "seconds",
        y_name: "resident KiB",
        log: false,
        lines: vec![("memory".to_owned(), memory)],
    });
    report.write()?;
    Ok(if second <= first * 1.1 && !more { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
