//! Builds the gateway as it is shipped: the compiler is told which of the code runs often, from a load that an instrumented build has
//! borne (profile-guided optimization). The load has what a gateway does all day: inquiries and transfers, at saturation and not,
//! a dead host's refusals, and those who read the ledger. docs/decisions/profile-guided-release.md says why.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use crate::Failed;
use crate::building;
use crate::client::{balance, get, rate, search, transfer};
use crate::compare::SETTLE;
use crate::load::{Requests, Target, closed, open};
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

/// The file into which the profiles are merged.
const MERGED: &str = "gateway.profdata";

pub(crate) fn run(plan: &Plan) -> Result<ExitCode, Failed> {
    // Looked for first: what comes before it is needed takes minutes.
    let merge = merger(plan.llvm_profdata.as_deref())?;
    let instrumented = building::gateway("pgo-training", &[], "-Cprofile-generate")?;
    let profiles = tempfile::tempdir()?;
    let time = Duration::from_secs(plan.seconds);
    train(&instrumented, profiles.path(), &[], time)?;
    if let Some(url) = &plan.postgres {
        train(&instrumented, profiles.path(), &[("LEDGER__STORE", "postgres"), ("LEDGER__POSTGRES_URL", url)], time)?;
    }
    let merged = building::folder("pgo").join(MERGED);
    std::fs::create_dir_all(building::folder("pgo"))?;
    let mut command = Command::new(merge);
    command.args(["merge", "-o"]).arg(&merged).arg(profiles.path());
    if !command.status()?.success() {
        return Err("the profiles can't be merged: is llvm-profdata of the compiler's LLVM (`rustc -vV`)?".into());
    }
    let built = building::gateway("pgo", &[], &format!("-Cprofile-use={}", merged.display()))?;
    println!("{}", built.display());
    Ok(ExitCode::SUCCESS)
}

/// Who merges profiles.
fn merger(given: Option<&Path>) -> Result<OsString, Failed> {
    let of_the_compiler = || -> Result<PathBuf, Failed> {
        let (root, host) = (building::rustc(&["--print", "sysroot"])?, building::host()?);
        Ok(Path::new(root.trim()).join("lib/rustlib").join(host).join("bin/llvm-profdata"))
    };
    let program = match given {
        Some(program) => program.into(),
        None => of_the_compiler()?.into_os_string(),
    };
    let program = if given.is_some() || Path::new(&program).exists() { program } else { "llvm-profdata".into() };
    let runs = Command::new(&program).arg("--version").output().is_ok_and(|told| told.status.success());
    if runs { Ok(program) } else { Err("llvm-profdata is missing: rustup component add llvm-tools".into()) }
}

/// Puts a load on an instrumented gateway, which leaves its profile when it ends.
fn train(program: &Path, profiles: &Path, settings: &[(&str, &str)], time: Duration) -> Result<(), Failed> {
    let place = Place::new(&[])?;
    let pattern = profiles.join("%p.profraw").display().to_string();
    let mut settings = settings.to_vec();
    settings.push((":LLVM_PROFILE_FILE", &pattern));
    let before = files_in(profiles)?;
    let gateway = place.gateway_of(program, "training", &settings)?;
    all_day(gateway.address, time)?;
    drop(gateway);
    // The host's callers are refused at once when its circuit has opened, which takes some seconds of deadlines before.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = silent.local_addr()?.to_string();
    settings.extend([
        ("INSTITUTION__CORE_TRANSFER__ADDRESS", address.as_str()),
        ("INSTITUTION__CORE_TRANSFER__BREAKER_OPEN", "60s"),
    ]);
    let gateway = place.gateway_of(program, "bad-day", &settings)?;
    closed(&target(gateway.address, rate), 16, Duration::from_secs(4))?;
    let refused = closed(&target(gateway.address, rate), 16, time / 5)?;
    if refused.answered() == 0 || refused.good() > 0 {
        return Err(format!("a dead host's calls were not refused: {:?}", refused.by_name).into());
    }
    drop(gateway);
    // One a process.
    if files_in(profiles)? == before + 2 { Ok(()) } else { Err("the instrumented gateway left no profile".into()) }
}

fn all_day(address: SocketAddr, time: Duration) -> Result<(), Failed> {
    let inquiries = target(address, balance);
    let runs = [
        closed(&inquiries, 16, 2 * time)?,
        open(&inquiries, 16, 4_000.0, time, Duration::from_secs(1))?,
        closed(&target(address, transfer), 64, time)?,
        closed(&target(address, search), 1, time / 10)?,
        closed(&target(address, |_| get("/metrics")), 1, time / 10)?,
    ];
    std::thread::sleep(SETTLE);
    let bad = runs.iter().find(|run| run.answered() == 0 || run.good() < run.answered());
    bad.map_or(Ok(()), |run| Err(format!("not every call was answered well: {:?}", run.by_name).into()))
}

fn target(address: SocketAddr, requests: impl Fn(u64) -> Vec<u8> + Send + Sync + 'static) -> Target {
    let requests: Requests = Arc::new(requests);
    Target::Http(address, requests)
}

fn files_in(folder: &Path) -> Result<usize, Failed> {
    Ok(std::fs::read_dir(folder)?.count())
}
