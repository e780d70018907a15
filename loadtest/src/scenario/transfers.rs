//! Durable mutations: a claim, an intent that is synced, an outcome that is synced, at rising concurrency, beside inquiries in the same run.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use crate::Failed;
use crate::client::{balance, transfer};
use crate::compare::SETTLE;
use crate::figures::Spread;
use crate::load::{Target, closed};
use crate::place::Place;
use crate::plot::Plot;
use crate::report::Report;

/// How long and how often.
#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    /// Milliseconds of one measurement.
    #[arg(long, default_value_t = 1_000)]
    slice_ms: u64,
    /// Rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// A database of PostgreSQL to keep the ledger in, as a URL; without it SQLite keeps it.
    #[arg(long)]
    postgres: Option<String>,
}

pub(crate) fn run(plan: &Plan) -> Result<ExitCode, Failed> {
    let place = Place::new(&[])?;
    let postgres = plan.postgres.as_deref().map(|url| [("LEDGER__STORE", "postgres"), ("LEDGER__POSTGRES_URL", url)]);
    let gateway = place.gateway("gateway", postgres.as_ref().map_or(&[][..], |settings| settings))?;
    let (name, title) = if postgres.is_some() {
        ("transfers-postgres", "Transfers on PostgreSQL, both syncs waited for")
    } else {
        ("transfers", "Transfers on SQLite, both syncs waited for")
    };
    let inquiries = Target::Http(gateway.address, Arc::new(balance));
    let transfers = Target::Http(gateway.address, Arc::new(transfer));
    let columns = ["concurrent", "transfers/s", "p50 ms", "p99 ms", "inquiries/s", "transfers ÷ inquiries"];
    let mut report = Report::new(name, title, &columns);
    let slice = Duration::from_millis(plan.slice_ms);
    let mut line = Vec::new();
    for concurrent in [1_u32, 4, 16, 64, 256] {
        let connections = usize::try_from(concurrent)?;
        let (mut moved, mut asked, mut p50, mut p99) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..plan.rounds {
            let outcome = closed(&transfers, connections, slice)?;
            if outcome.good() < outcome.answered() {
                return Err(format!("not every transfer was answered well: {:?}", outcome.by_name).into());
            }
            moved.push(outcome.rate());
            p50.push(outcome.at(0.5));
            p99.push(outcome.at(0.99));
            asked.push(closed(&inquiries, connections, slice)?.rate());
            // Claims wait behind rows on their way to the store: those of the inquiries are not the transfers' to wait for.
            std::thread::sleep(SETTLE);
        }
        let spread = Spread::of(&moved);
        line.push((f64::from(concurrent), spread.median));
        report.row(vec![
            concurrent.to_string(),
            spread.show(0),
            Spread::of(&p50).show(2),
            Spread::of(&p99).show(2),
            Spread::of(&asked).show(0),
            Spread::of_ratios(&moved, &asked).show(2),
        ]);
    }
    let lines = vec![("transfers/s".to_owned(), line)];
    report.plot(Plot { x_name: "concurrent transfers", y_name: "a second", log: false, lines });
    report.write()?;
    Ok(ExitCode::SUCCESS)
}
