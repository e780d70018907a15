//! `gwanmun ledger` and `gwanmun reconcile`: what is done in the ledger's store, beside the gateways that use it.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use jiff::civil::Date;

use super::{EXIT_CONFIG, EXIT_DATA, EXIT_START, complain, complain_all};
use crate::app::{open_store, reconciler};
use crate::config::{Config, environment};
use crate::http::ledger::item_json;
use crate::ledger::{Class, Store, StoredRow, TransactionId};

#[derive(Debug, Subcommand)]
pub(super) enum Ledger {
    /// Shows one transaction and its resolution steps, as JSON.
    Show {
        /// Its id.
        transaction_id: String,
        /// The configuration file.
        #[arg(long)]
        config: PathBuf,
    },
    /// Fences a journal that will not come back, and turns its open claims into transactions in doubt. Its gateway can't
    /// claim, ship or start any more.
    Retire {
        /// The journal's number, 32 hex digits.
        journal: String,
        /// The configuration file.
        #[arg(long)]
        config: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum Reconcile {
    /// Reconciles one business day and waits for the result.
    Run {
        /// YYYYMMDD, in Seoul.
        date: String,
        /// The configuration file.
        #[arg(long)]
        config: PathBuf,
    },
}

pub(super) fn configure(file: &std::path::Path) -> Result<Config, ExitCode> {
    Config::from_file(file, &environment()).map_err(|problems| complain_all(&problems))
}

async fn store_of(file: &std::path::Path) -> Result<Store, ExitCode> {
    let config = configure(file)?;
    open_store(&config).await.map_err(|error| complain(EXIT_START, &error.to_string()))
}

pub(super) async fn ledger(command: Ledger) -> ExitCode {
    let done = match command {
        Ledger::Show { transaction_id, config } => show(&transaction_id, &config).await,
        Ledger::Retire { journal, config } => retire(&journal, &config).await,
    };
    done.unwrap_or_else(|code| code)
}

async fn show(id: &str, config: &std::path::Path) -> Result<ExitCode, ExitCode> {
    let id = TransactionId::parse(id).ok_or_else(|| complain(EXIT_CONFIG, "that is no transaction id"))?;
    let store = store_of(config).await?;
    let failed = |error: crate::ledger::StoreError| complain(EXIT_START, &error.to_string());
    let of = crate::ledger::Of::Transaction(id);
    let row = match store.row(id).await.map_err(failed)? {
        Some(row) => Some(row),
        None => store.abandoned(of, 1).await.map_err(failed)?.into_iter().next().map(StoredRow::abandoned),
    };
    let Some(row) = row else {
        return Err(complain(
            EXIT_DATA,
            "there is no such transaction in the store; a gateway may have it in its journal",
        ));
    };
    let steps = store.steps(id).await.map_err(failed)?;
    print(&serde_json::to_string_pretty(&item_json(&row, &steps)).unwrap_or_default())
}

async fn retire(journal: &str, config: &std::path::Path) -> Result<ExitCode, ExitCode> {
    let mut number = [0; 16];
    if hex::decode_to_slice(journal, &mut number).is_err() {
        return Err(complain(EXIT_CONFIG, "a journal's number has 32 hex digits"));
    }
    let config = configure(config)?;
    let store = open_store(&config).await.map_err(|error| complain(EXIT_START, &error.to_string()))?;
    let failed = |error: crate::ledger::StoreError| complain(EXIT_START, &error.to_string());
    let lease = store.lease_of(config.instance).await.map_err(failed)?;
    if store.is_private() && lease.is_some_and(|lease| lease.journal == number) {
        let why = "this journal keeps the keys of what it has not shipped: start its gateway, which closes what was left open";
        return Err(complain(EXIT_DATA, why));
    }
    let shipped = store.journal_marks().await.map_err(failed)?.contains_key(&number);
    if !shipped && store.open_claims(number, 1).await.map_err(failed)?.is_empty() {
        return Err(complain(EXIT_DATA, "the store knows no such journal"));
    }
    match store.retire(number).await {
        Ok(claims) => print(&format!("journal {journal} is retired; {claims} claim(s) of it are in doubt now")),
        Err(error) => Err(complain(EXIT_START, &error.to_string())),
    }
}

pub(super) async fn reconcile(command: Reconcile) -> ExitCode {
    let Reconcile::Run { date, config } = command;
    run(&date, &config).await.unwrap_or_else(|code| code)
}

async fn run(date: &str, config: &std::path::Path) -> Result<ExitCode, ExitCode> {
    let date = Date::strptime("%Y%m%d", date).map_err(|_| complain(EXIT_CONFIG, "DATE must be YYYYMMDD"))?;
    let config = configure(config)?;
    let failed = |error: &dyn std::fmt::Display| complain(EXIT_START, &error.to_string());
    let (reconciler, store) = reconciler(&config).await.map_err(|error| failed(&error))?;
    let lease = store.lease_of(config.instance).await.map_err(|error| failed(&error))?;
    if store.is_private() && lease.is_some_and(|lease| lease.left.is_zero()) {
        complain(
            EXIT_START,
            "no gateway runs here: what its journal has and the store has not will look as if only the host had it",
        );
    }
    let started = reconciler.start(date, false).await.map_err(|error| failed(&error))?;
    let mut good = true;
    for (run, going) in started {
        if !matches!(going.await, Ok(Ok(()))) {
            return Err(complain(EXIT_START, "the result could not be recorded"));
        }
        let Some(run) = store.run(&run.id).await.map_err(|error| failed(&error))? else { continue };
        let tally = run.tally;
        let mut line = format!("{} {} {}: {} matched", run.id, run.institution, run.state, tally.matched);
        for (class, count) in Class::ALL.into_iter().zip(tally.by_class) {
            line.push_str(&format!(", {count} {}", class.name()));
        }
        if let Some(detail) = &run.detail {
            line.push_str(&format!(" ({detail})"));
        }
        print(&line)?;
        good &= run.state == "DONE" && tally.differences() == 0;
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::from(EXIT_DATA) })
}

pub(super) fn print(line: &str) -> Result<ExitCode, ExitCode> {
    match writeln!(std::io::stdout(), "{line}") {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => Err(complain(EXIT_START, &error.to_string())),
    }
}
