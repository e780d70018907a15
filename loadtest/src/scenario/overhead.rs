//! What each part of the gateway costs, by leaving it out: of a build that is made for this alone, because the gateway that people run
//! can leave nothing out.

use std::process::ExitCode;

use crate::Failed;
use crate::building;
use crate::compare::{self, Compared, Contender, Pace, Series};
use crate::figures::Spread;
use crate::place::Place;
use crate::report::Report;

/// A part, the gateway without it, and the gateway with it. What lies behind a part goes with it, so the ledger's three are taken off
/// one after the other.
struct Part {
    name: &'static str,
    without: &'static str,
    with: &'static str,
}

const PARTS: [Part; 6] = [
    Part { name: "authentication", without: "auth", with: "all" },
    Part { name: "client limit", without: "limit", with: "all" },
    Part { name: "metrics", without: "metrics", with: "all" },
    Part { name: "rows in SQLite", without: "store", with: "all" },
    Part { name: "making the journal durable", without: "store,sync", with: "store" },
    Part { name: "writing the journal", without: "journal", with: "store,sync" },
];
const EVERY_PART: &str = "auth,limit,metrics,journal";
const BUDGET: [(&str, &str); 4] = [
    ("INSTITUTION__CORE_BANKING__BUDGET", "memory"),
    ("INSTITUTION__CORE_BANKING__BUDGET_LIMIT", "100000"),
    ("INSTITUTION__CORE_BANKING__BUDGET_WINDOW", "200ms"),
    ("INSTITUTION__CORE_BANKING__BUDGET_RTT_MAX", "150ms"),
];

pub(crate) fn run(pace: &Pace) -> Result<ExitCode, Failed> {
    let program = building::gateway("overhead", &["--features", "overhead"], None)?;
    let place = Place::new(&[])?;
    let mut contenders = Vec::from(Contender::lesser(&place)?);
    for name in ["all", "auth", "limit", "metrics", "store", "store,sync", "journal", EVERY_PART] {
        let left_out = [(":OVERHEAD_LEAVES_OUT", name)];
        contenders.push(Contender::of(name, place.gateway_of(&program, name, &left_out)?));
    }
    contenders.push(Contender::of("budget", place.gateway_of(&program, "budget", &BUDGET)?));
    let compared = compare::among(pace.plan(), &contenders)?;
    prices(&compared).write()?;
    Ok(ExitCode::SUCCESS)
}

fn figures<'a>(compared: &'a Compared, name: &str, of: fn(&Series) -> &Vec<f64>) -> &'a [f64] {
    compared.get(name).map(|series| of(series).as_slice()).unwrap_or_default()
}

/// Round by round, one less the other.
fn less(compared: &Compared, with: &str, without: &str, of: fn(&Series) -> &Vec<f64>) -> Spread {
    let (with, without) = (figures(compared, with, of), figures(compared, without, of));
    Spread::of(&with.iter().zip(without).map(|(with, without)| with - without).collect::<Vec<_>>())
}

fn prices(compared: &Compared) -> Report {
    let saturated: fn(&Series) -> &Vec<f64> = |series| &series.cpu_saturated;
    let at_rate: fn(&Series) -> &Vec<f64> = |series| &series.cpu_at_rate;
    let columns = ["", "CPU µs a call, saturated", "CPU µs a call, at the rate", "answers/s", "p50 ms at the rate"];
    let mut report = Report::new("overhead", "What each part costs, by leaving it out", &columns);
    let line = |name: &str, of: &str| {
        let spread = |figure: fn(&Series) -> &Vec<f64>, digits| Spread::of(figures(compared, of, figure)).show(digits);
        let p50 = spread(|series| &series.p50_at_rate, 3);
        vec![name.to_owned(), spread(saturated, 1), spread(at_rate, 1), spread(|series| &series.throughput, 0), p50]
    };
    report.row(line("direct client, no gateway", "direct"));
    report.row(line("the bare handler", "bare"));
    report.row(line("the gateway without any of these parts", EVERY_PART));
    let mut sums =
        [Spread::of(figures(compared, EVERY_PART, saturated)), Spread::of(figures(compared, EVERY_PART, at_rate))]
            .map(|spread| spread.median);
    let mut price = |name: &str, with: &str, without: &str, counts: bool| {
        let spreads = [less(compared, with, without, saturated), less(compared, with, without, at_rate)];
        for (sum, spread) in sums.iter_mut().zip(&spreads).filter(|_| counts) {
            *sum += spread.median;
        }
        let [saturated, at_rate] =
            spreads.map(|spread| format!("{:+.1} ({:+.1} to {:+.1})", spread.median, spread.lower, spread.upper));
        report.row(vec![name.to_owned(), saturated, at_rate, String::new(), String::new()]);
    };
    for Part { name, without, with } in &PARTS {
        price(name, with, without, true);
    }
    price("beside them: a call budget in memory", "budget", "all", false);
    let [saturated_sum, at_rate_sum] = sums.map(|sum| format!("{sum:.1}"));
    report.row(vec![
        "sum of the gateway without them and their prices".to_owned(),
        saturated_sum,
        at_rate_sum,
        String::new(),
        String::new(),
    ]);
    report.row(line("the gateway with all of them", "all"));
    report
}
