//! Whether a call costs the same when there is more of everything: rows in the ledger, clients, layouts, connections. Two gateways
//! stand beside each other, one with little and one with much, and are measured in turns at one rate.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::Failed;
use crate::client::{Client, balance, post, search};
use crate::compare::{Contender, cost_at_rate};
use crate::figures::Spread;
use crate::place::{PROFILE, Place};
use crate::report::Report;
use crate::rows;

/// How much, how long and how often.
#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    /// Rounds.
    #[arg(long, default_value_t = 12)]
    rounds: usize,
    /// Milliseconds of one measurement.
    #[arg(long, default_value_t = 1_000)]
    slice_ms: u64,
    /// Calls a second.
    #[arg(long, default_value_t = 4_000.0)]
    rate: f64,
    /// Millions of rows, beside none.
    #[arg(long, default_values_t = [1, 10])]
    millions: Vec<u32>,
    /// Clients, beside 10.
    #[arg(long, default_value_t = 100_000)]
    clients: u64,
    /// Layouts in use, beside 4.
    #[arg(long, default_value_t = 400)]
    layouts: u32,
    /// Connections, beside 16.
    #[arg(long, default_value_t = 1_000)]
    connections: usize,
}

pub(crate) fn run(plan: &Plan) -> Result<ExitCode, Failed> {
    let columns = ["", "CPU µs a call with little", "with much", "much ÷ little"];
    let mut report = Report::new("growth", format!("More of everything, at {:.0} calls a second", plan.rate), &columns);
    let place = Place::new(&[])?;
    let mut measure = |what: String, little: (&Contender, usize), much: (&Contender, usize)| -> Result<(), Failed> {
        let (mut costs, slice) = ((Vec::new(), Vec::new()), Duration::from_millis(plan.slice_ms));
        let mut connected = (little.0.connect(little.1)?, much.0.connect(much.1)?);
        let mut with_little = || cost_at_rate(little.0, &mut connected.0, plan.rate, slice);
        let mut with_much = || cost_at_rate(much.0, &mut connected.1, plan.rate, slice);
        // Once for nothing: pages and lines that the first calls need.
        with_little()?;
        with_much()?;
        for round in 0..plan.rounds {
            // In turns, each first as often as the other.
            let (little, much) = if round % 2 == 0 {
                let little = with_little()?;
                (little, with_much()?)
            } else {
                let much = with_much()?;
                (with_little()?, much)
            };
            costs.0.push(little);
            costs.1.push(much);
        }
        let ratio = Spread::of_ratios(&costs.1, &costs.0);
        println!("{what}: {}", ratio.show(2));
        report.row(vec![what, Spread::of(&costs.0).show(1), Spread::of(&costs.1).show(1), ratio.show(2)]);
        Ok(())
    };

    let empty = Contender::of("empty", place.gateway("empty", &[])?);
    measure(format!("connections: 16, {}", plan.connections), (&empty, 16), (&empty, plan.connections))?;

    let few = with_clients(&place, "few-clients", 10)?;
    let many = with_clients(&place, "many-clients", plan.clients)?;
    measure(format!("clients: 10, {}", plan.clients), (&few, 16), (&many, 16))?;
    drop((few, many));

    let few = with_layouts(&place, "few-layouts", 4)?;
    let many = with_layouts(&place, "many-layouts", plan.layouts)?;
    measure(format!("layouts: 4, {}", plan.layouts), (&few, 16), (&many, 16))?;
    drop((few, many));

    let mut searches = Vec::new();
    for millions in &plan.millions {
        // Started once for its tables, filled, and started again.
        drop(place.gateway("full", &[])?);
        rows::add(&place.store("full"), u64::from(*millions) * 1_000_000)?;
        let full = place.gateway("full", &[])?;
        let address = full.address;
        let full = Contender::of("full", full);
        measure(format!("rows in the ledger: none, {millions} million"), (&empty, 16), (&full, 16))?;
        searches.push(format!("among {millions} million {}", searched(address)?));
        drop(full);
        place.forget("full")?;
    }
    if !searches.is_empty() {
        report.note(format!("An auditor's search for an account, in milliseconds: {}.", searches.join("; ")));
    }
    report.write()?;
    Ok(ExitCode::SUCCESS)
}

/// How long the search for an account takes, in milliseconds, each time for another one.
fn searched(gateway: SocketAddr) -> Result<String, Failed> {
    let mut client = Client::connect(gateway)?;
    let mut times = Vec::new();
    for account in 0..30 {
        let began = Instant::now();
        let answer = client.call(&search(10_000_000_000_000 + account * 7_919))?;
        if answer.status != 200 {
            return Err(format!("a search was answered with {}", answer.status).into());
        }
        times.push(began.elapsed().as_secs_f64() * 1_000.0);
    }
    Ok(Spread::of(&times).show(1))
}

/// A gateway with so many clients, all of which call.
fn with_clients(place: &Place, name: &'static str, clients: u64) -> Result<Contender, Failed> {
    let mut profile = PROFILE.to_owned();
    for client in 0..clients {
        let hash = Sha256::digest(format!("key-{client}"));
        write!(profile, "\n[[client]]\nname = \"client-{client}\"\nrole = \"client\"\nkey_sha256 = \"")?;
        hash.iter().try_for_each(|byte| write!(profile, "{byte:02x}"))?;
        profile.push_str("\"\n");
    }
    let gateway = place.gateway_from(&profile, name, &[])?;
    // In no order, as they come: neighbours in the configuration are no neighbours in time.
    let request = move |number: u64| {
        let client = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) % clients;
        let request = String::from_utf8(balance(number)).unwrap_or_default();
        request.replace("x-api-key: loadtest-key", &format!("x-api-key: key-{client}")).into_bytes()
    };
    Ok(Contender::calling(name, gateway, Arc::new(request)))
}

/// A gateway with so many pairs of layouts, each on a path of its own, and all of them are called.
fn with_layouts(place: &Place, name: &'static str, layouts: u32) -> Result<Contender, Failed> {
    let folder = place.folder.path().join(format!("{name}-layouts"));
    std::fs::create_dir_all(&folder)?;
    let mut profile = PROFILE.to_owned();
    for pair in 0..layouts / 2 {
        for end in ["request", "reply"] {
            let text =
                std::fs::read_to_string(format!("{}/../codec/layouts/balance-{end}.toml", env!("CARGO_MANIFEST_DIR")))?;
            let own = format!("grown-{pair}-{end}");
            std::fs::write(folder.join(format!("{own}.toml")), text.replace(&format!("balance-{end}"), &own))?;
        }
        write!(
            profile,
            "\n[[route]]\nname = \"grown-{pair}\"\npaths = [\"/api/gateway/grown-{pair}\"]\ntx_code = \"IN01\"\nkind = \"inquiry\"\n\
             institution = \"core-banking\"\nrequest = \"grown-{pair}-request\"\nreply = \"grown-{pair}-reply\"\n\
             account = \"accountNo\"\ndeadline = \"3s\"\n"
        )?;
    }
    let layouts_folder = folder.display().to_string();
    let gateway = place.gateway_from(&profile, name, &[("LAYOUTS__FOLDER", layouts_folder.as_str())])?;
    let request = move |number: u64| {
        let pair = number % u64::from(layouts / 2);
        post(
            &format!("/api/gateway/grown-{pair}"),
            "",
            &format!("{{\"accountNo\":\"{:014}\"}}", 1 + number % 1_000_000),
        )
    };
    Ok(Contender::calling(name, gateway, Arc::new(request)))
}
