//! `gwanmun budget`: the call budgets in PostgreSQL, set up, shown, and measured before they are turned on.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Subcommand;

use super::store::{configure, print};
use super::{EXIT_CONFIG, EXIT_DATA, EXIT_START, complain};
use crate::budget::{Admin, ClassRule, Measured, Settings, SlotStore, Spread, measure};
use crate::clock::Clock;
use crate::config::Config;
use crate::ledger::migrate_postgres;
use crate::lookup::SystemLookup;

#[derive(Debug, Subcommand)]
pub(super) enum Budget {
    /// Shows what the database has of each institution with a `budget_limit`, and whether it is what the configuration says.
    Show {
        /// The configuration file.
        #[arg(long)]
        config: PathBuf,
    },
    /// Writes what the configuration says into the database. Where it changes something, no call is let out for the time in which
    /// old promises run out (some 350 ms).
    Set {
        /// The configuration file.
        #[arg(long)]
        config: PathBuf,
        /// Only this institution.
        #[arg(long)]
        institution: Option<String>,
    },
    /// Measures on this network what turning an institution's budget on would mean, once `set` has made the tables. Sends it nothing; with --connects it connects to
    /// it so many times, one after the other, and closes at once.
    Measure {
        /// The configuration file.
        #[arg(long)]
        config: PathBuf,
        /// The institution.
        #[arg(long)]
        institution: String,
        /// Questions whose round trip is measured.
        #[arg(long, default_value_t = 1_000)]
        trips: u32,
        /// Calls that wait at once, to see how long that takes to drain.
        #[arg(long, default_value_t = 40)]
        backlog: u32,
        /// Connects to the institution, to see how much the way there varies; each takes one of its lines for a moment.
        #[arg(long, default_value_t = 0)]
        connects: u32,
    },
}

pub(super) async fn budget(command: Budget) -> ExitCode {
    let done = match command {
        Budget::Show { config } => show(&config).await,
        Budget::Set { config, institution } => set(&config, institution.as_deref()).await,
        Budget::Measure { config, institution, trips, backlog, connects } => {
            measure_one(&config, &institution, (trips.max(1), backlog.max(1), connects)).await
        }
    };
    done.unwrap_or_else(|code| code)
}

fn url_of(config: &Config) -> Result<&str, ExitCode> {
    let url = config.shared.slots.as_ref().map(crate::config::Hidden::reveal);
    url.ok_or_else(|| complain(EXIT_CONFIG, "there is no `postgres_url` in [budget] or [ledger]"))
}

/// Institutions for which a limit is said.
fn with_limit(config: &Config) -> impl Iterator<Item = (&String, &Settings)> {
    config.institutions.iter().map(|(name, one)| (name, &one.budget)).filter(|(_, budget)| budget.limit > 1)
}

fn failed(error: &dyn std::fmt::Display) -> ExitCode {
    complain(EXIT_START, &error.to_string())
}

async fn show(file: &Path) -> Result<ExitCode, ExitCode> {
    let config = &configure(file)?;
    let mut admin = Admin::connect(url_of(config)?).await.map_err(|error| failed(&error))?;
    let mut all_same = true;
    for (name, settings) in with_limit(config) {
        let Some(shown) = admin.show(&settings.key).await.map_err(|error| failed(&error))? else {
            print(&format!(
                "{name}: not set (configured: {}/s, budget = \"{}\")",
                settings.limit,
                settings.keeper.name()
            ))?;
            all_same = false;
            continue;
        };
        let mut wanted = settings.classes.clone();
        wanted.sort_by(|a, b| (a.priority, &a.name).cmp(&(b.priority, &b.name)));
        let same = u32::try_from(shown.limit) == Ok(settings.limit)
            && (shown.window, shown.jitter) == (settings.window, settings.jitter)
            && shown.classes == wanted;
        all_same &= same;
        let class = |class: &ClassRule| format!("{}:{}:{}", class.name, class.priority, class.floor_percent);
        print(&format!(
            "{name}: {}/s, a slot every {:.1} ms, window {} ms, jitter {} ms, epoch {}, classes {}; {}, budget = \"{}\"",
            shown.limit,
            ms(shown.interval),
            ms(shown.window),
            ms(shown.jitter),
            shown.epoch,
            shown.classes.iter().map(class).collect::<Vec<_>>().join(","),
            if same { "as configured" } else { "NOT as configured" },
            settings.keeper.name(),
        ))?;
    }
    Ok(if all_same { ExitCode::SUCCESS } else { ExitCode::from(EXIT_DATA) })
}

async fn set(file: &Path, only: Option<&str>) -> Result<ExitCode, ExitCode> {
    let config = &configure(file)?;
    let url = url_of(config)?;
    let chosen: Vec<_> = with_limit(config).filter(|(name, _)| only.is_none_or(|only| only == *name)).collect();
    if chosen.is_empty() {
        return Err(complain(EXIT_CONFIG, "there is no such institution with a `budget_limit` of 2 at least"));
    }
    migrate_postgres(url).await.map_err(|error| failed(&error))?;
    let mut admin = Admin::connect(url).await.map_err(|error| failed(&error))?;
    admin.clean().await.map_err(|error| failed(&error))?;
    for (name, settings) in chosen {
        admin.set(settings).await.map_err(|error| failed(&error))?;
        print(&format!("{name}: {}/s, a slot every {:.1} ms", settings.limit, ms(settings.interval())))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn measure_one(
    file: &Path,
    name: &str,
    (trips, backlog, connects): (u32, u32, u32),
) -> Result<ExitCode, ExitCode> {
    let config = &configure(file)?;
    let url = url_of(config)?;
    let institution = config.institutions.get(name).filter(|one| one.budget.limit > 1);
    let institution =
        institution.ok_or_else(|| complain(EXIT_CONFIG, "there is no such institution with a `budget_limit`"))?;
    let clock = Clock::system().map_err(|error| failed(&error))?;
    let mut admin = Admin::connect(url).await.map_err(|error| failed(&error))?;
    let store = SlotStore::new(url, config.shared.slot_store, Arc::new(SystemLookup), clock.clone());
    let store = store.map_err(|rule| complain(EXIT_CONFIG, rule))?;
    let host = (connects > 0).then_some((institution.address.as_str(), connects));
    let measured = measure((&store, &mut admin, &clock), &institution.budget, (trips, backlog), host).await;
    let measured = measured.map_err(|message| complain(EXIT_START, &message))?;
    report(&institution.budget, &measured)
}

fn report(settings: &Settings, measured: &Measured) -> Result<ExitCode, ExitCode> {
    let mut good = true;
    let mut judge = |fine: bool| {
        good &= fine;
        if fine { "ok" } else { "TOO MUCH" }
    };
    let spread = |spread: Spread| {
        format!("p50 {:.2}, p99 {:.2}, most {:.2} ms", ms(spread.p50), ms(spread.p99), ms(spread.most))
    };
    let (trip, rtt_max) = (measured.round_trip, settings.rtt_max);
    let verdict = judge(trip.p99 <= rtt_max);
    print(&format!("round trip      {} (budget_rtt_max {:.0} ms): {verdict}", spread(trip), ms(rtt_max)))?;
    let verdict = judge(measured.discarded <= 0.01);
    print(&format!("discarded       {:.2} % of the slots, up to 1 % is fine: {verdict}", measured.discarded * 100.0))?;
    match measured.connect {
        Some(connect) => {
            let varies = connect.most.saturating_sub(connect.least);
            let verdict = judge(varies <= settings.jitter);
            let (varies, jitter) = (ms(varies), ms(settings.jitter));
            print(&format!(
                "way to it       connecting {}, varies by {varies:.2} ms (budget_jitter {jitter:.0} ms): {verdict}",
                spread(connect)
            ))?;
        }
        None => print("way to it       not measured; --connects 20 does, over its lines").map(drop)?,
    }
    let (backlog, drained) = measured.backlog;
    let wanted = settings.interval() * backlog.saturating_sub(1);
    print(&format!(
        "backlog         {backlog} waiting calls drained in {:.2} s, {:.1}/s (evenly spaced: {:.2} s)",
        drained.as_secs_f64(),
        measured.rate,
        wanted.as_secs_f64()
    ))?;
    print(&format!(
        "database        {:.1} questions a slot, {:.0} commits/s meanwhile",
        measured.questions_per_slot, measured.commits_per_second
    ))?;
    print(&format!(
        "its window      any second, fixed or sliding, gets {} calls at most: a slot every {:.1} ms",
        settings.limit,
        ms(settings.interval())
    ))?;
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::from(EXIT_DATA) })
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}
