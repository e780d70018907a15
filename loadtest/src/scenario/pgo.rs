//! Builds the gateway as it is shipped: the compiler is told which of the code runs often, from a load that an instrumented build has
//! borne (profile-guided optimization). The load has what a gateway does all day: inquiries and transfers, at saturation and not,
//! a dead host's refusals, and those who read the ledger. docs/decisions/profile-guided-release.md says why.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use crate::Failed;
use crate::building;
use crate::client::{Client, account, balance, get, rate, search, transfer};
use crate::compare::SETTLE;
use crate::load::{Requests, Target, closed, next_number, open};
use crate::place::Place;

/// How.
#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    /// Seconds of each part of the load.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// A database of PostgreSQL as a URL: the build is trained with a ledger there too.
    #[arg(long)]
    postgres: Option<String>,
    /// The program that merges profiles, of the compiler's LLVM or one that reads the same format; left out, that of the component
    /// `llvm-tools`, else the one on the path.
    #[arg(long)]
    llvm_profdata: Option<PathBuf>,
}

pub(crate) fn run(plan: &Plan) -> Result<ExitCode, Failed> {
    // Looked for first: what comes before they are needed takes minutes.
    let merge = merger(plan.llvm_profdata.as_deref())?;
    drop(Place::new(&[])?);
    let instrumented = building::gateway("pgo-training", &[], Some("-Cprofile-generate"))?;
    let profiles = tempfile::tempdir()?;
    let time = Duration::from_secs(plan.seconds);
    let training = Training { program: &instrumented, profiles: profiles.path(), time };
    training.day(&[])?;
    if let Some(url) = &plan.postgres {
        training.day(&[("LEDGER__STORE", "postgres"), ("LEDGER__POSTGRES_URL", url)])?;
    }
    training.bad_day()?;
    let folder = building::folder("pgo");
    std::fs::create_dir_all(&folder)?;
    let merged = folder.join("gateway.profdata");
    let mut command = Command::new(merge);
    command.args(["merge", "-o"]).arg(&merged).arg(profiles.path());
    if !command.status()?.success() {
        return Err("the profiles can't be merged: is llvm-profdata of the compiler's LLVM (`rustc -vV`)?".into());
    }
    let built = building::gateway("pgo", &[], Some(&format!("-Cprofile-use={}", merged.display())))?;
    println!("{}", built.display());
    Ok(ExitCode::SUCCESS)
}

/// Who merges profiles.
fn merger(given: Option<&Path>) -> Result<PathBuf, Failed> {
    let (root, host) = (building::rustc(&["--print", "sysroot"])?, building::host()?);
    let component = Path::new(root.trim()).join("lib/rustlib").join(host).join("bin/llvm-profdata");
    let on_path = || if component.exists() { component.clone() } else { "llvm-profdata".into() };
    let program = given.map_or_else(on_path, Path::to_owned);
    let runs = Command::new(&program).arg("--version").output().is_ok_and(|told| told.status.success());
    let missing = || match given {
        Some(program) => format!("--llvm-profdata: {} does not run", program.display()),
        None => "llvm-profdata is missing: rustup component add llvm-tools".to_owned(),
    };
    if runs { Ok(program) } else { Err(missing().into()) }
}

/// An instrumented gateway under load. It leaves its profile when it ends.
struct Training<'a> {
    program: &'a Path,
    /// Where profiles are left, one a process.
    profiles: &'a Path,
    time: Duration,
}

impl Training<'_> {
    /// What it does all day, with a ledger wherever the settings say.
    fn day(&self, settings: &[(&str, &str)]) -> Result<(), Failed> {
        self.with(settings, |address| {
            let (inquiries, time) = (target(address, balance), self.time);
            let first = next_number() + 1;
            let runs = [
                closed(&inquiries, 16, 2 * time)?,
                open(&inquiries, 16, 4_000.0, time, Duration::from_secs(1))?,
                closed(&target(address, transfer), 64, time)?,
                closed(&target(address, move |nth| search(account(first + nth % 1_000))), 1, time / 10)?,
                closed(&target(address, |_| get("/metrics")), 1, time / 10)?,
            ];
            let found = Client::connect(address)?.call_for_json(&search(account(first)))?;
            if found.get("items").and_then(serde_json::Value::as_array).is_none_or(Vec::is_empty) {
                return Err("the auditor's search found nothing: it was no training".into());
            }
            let bad = runs.iter().find(|run| run.answered() == 0 || run.good() < run.answered());
            bad.map_or(Ok(()), |run| Err(format!("not every call was answered well: {:?}", run.by_name).into()))
        })
    }

    /// A host that takes connections and says nothing. Its callers are refused at once when its circuit has opened, which takes a
    /// deadline.
    fn bad_day(&self) -> Result<(), Failed> {
        let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = silent.local_addr()?.to_string();
        let dead = [
            ("INSTITUTION__CORE_TRANSFER__ADDRESS", address.as_str()),
            ("INSTITUTION__CORE_TRANSFER__BREAKER_OPEN", "60s"),
        ];
        self.with(&dead, |address| {
            closed(&target(address, rate), 16, Duration::from_secs(4))?;
            let refused = closed(&target(address, rate), 16, self.time / 5)?;
            let opened = refused.by_name.keys().all(|name| name == "503 CIRCUIT_OPEN") && refused.answered() > 0;
            let told = || format!("a dead host's calls were not refused by its circuit: {:?}", refused.by_name);
            if opened { Ok(()) } else { Err(told().into()) }
        })
    }

    /// Starts it with these settings, puts the load on it and ends it.
    fn with(
        &self,
        settings: &[(&str, &str)],
        load: impl FnOnce(SocketAddr) -> Result<(), Failed>,
    ) -> Result<(), Failed> {
        let place = Place::new(&[])?;
        let pattern = self.profiles.join("%p.profraw").display().to_string();
        let settings: Vec<_> = settings.iter().copied().chain([(":LLVM_PROFILE_FILE", pattern.as_str())]).collect();
        let before = files_in(self.profiles)?;
        let gateway = place.gateway_of(self.program, "training", &settings)?;
        load(gateway.address)?;
        std::thread::sleep(SETTLE);
        gateway.process.finish(Duration::from_secs(30))?;
        if files_in(self.profiles)? == before + 1 {
            Ok(())
        } else {
            Err("the instrumented gateway left no profile".into())
        }
    }
}

fn target(address: SocketAddr, requests: impl Fn(u64) -> Vec<u8> + Send + Sync + 'static) -> Target {
    let requests: Requests = Arc::new(requests);
    Target::Http(address, requests)
}

fn files_in(folder: &Path) -> Result<usize, Failed> {
    Ok(std::fs::read_dir(folder)?.count())
}
