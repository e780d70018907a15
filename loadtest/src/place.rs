//! Everything that a scenario measures, started on free ports of one machine: the simulator, a gateway, the peers. Each is a
//! process of its own, so that its CPU time is its own.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::Failed;
use crate::peers;
use crate::process::Process;

/// The gateway's profile; addresses and folders come by environment variable.
pub(crate) const PROFILE: &str = include_str!("../loadtest.toml");

/// A folder for a run, removed with it, and the simulator.
pub(crate) struct Place {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) bank: Ipv4Addr,
    simulator: Option<Process>,
    arguments: Vec<String>,
}

/// A process that serves HTTP, or the bank's messages.
pub(crate) struct Served {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
}

/// A program of this workspace, built beside this one.
fn program(name: &str) -> Result<PathBuf, Failed> {
    let path = std::env::current_exe()?.with_file_name(name);
    if path.exists() {
        Ok(path)
    } else {
        Err(format!("{name} is not built: cargo build --release --workspace --bins").into())
    }
}

static MEASURED: OnceLock<PathBuf> = OnceLock::new();

/// Says once which gateway is measured, when it is not the one that was built beside this program.
pub(crate) fn measure(program: &Path) -> Result<(), Failed> {
    let whole = program.canonicalize().map_err(|error| format!("--gateway {}: {error}", program.display()))?;
    MEASURED.get_or_init(|| whole);
    Ok(())
}

/// Whether it is another one.
pub(crate) fn is_another_build() -> bool {
    MEASURED.get().is_some()
}

fn measured() -> Result<PathBuf, Failed> {
    MEASURED.get().map_or_else(|| program("gwanmun"), |program| Ok(program.clone()))
}

fn free_address() -> Result<SocketAddr, Failed> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

fn wait_for(process: &mut Process, address: SocketAddr, folder: &Path) -> Result<(), Failed> {
    let end = Instant::now() + Duration::from_secs(30);
    while TcpStream::connect(address).is_err() {
        process.check(folder)?;
        if Instant::now() > end {
            return Err(format!("nothing listens on {address}").into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

impl Place {
    /// A simulator in front of which gateways can be put.
    pub(crate) fn new(more: &[&str]) -> Result<Self, Failed> {
        let folder = tempfile::tempdir()?;
        // Its ports are the bank's own, so it gets an address of its own.
        let bank = Ipv4Addr::new(127, 77, fastrand::u8(1..250), fastrand::u8(1..250));
        let arguments = more.iter().map(|argument| (*argument).to_owned()).collect();
        let mut place = Self { folder, bank, simulator: None, arguments };
        place.start_bank()?;
        Ok(place)
    }

    /// Starts the simulator, on the ports that it had.
    pub(crate) fn start_bank(&mut self) -> Result<(), Failed> {
        let mut command = Command::new(program("mock-core-banking")?);
        let control = format!("{}:9095", self.bank);
        command
            .args(["--host", &self.bank.to_string(), "--control", &control, "--delay-ms", "0"])
            .args(&self.arguments);
        let mut simulator = Process::start("simulator", &mut command, self.folder.path())?;
        wait_for(&mut simulator, self.balances(), self.folder.path())?;
        self.simulator = Some(simulator);
        Ok(())
    }

    /// Makes the simulator fall silent, or speak again.
    pub(crate) fn silence_bank(&self, silent: bool) -> Result<(), Failed> {
        let signal = if silent { rustix::process::Signal::STOP } else { rustix::process::Signal::CONT };
        self.simulator.as_ref().map_or(Ok(()), |simulator| simulator.signal(signal))
    }

    /// Ends the simulator, and every line to it.
    pub(crate) fn stop_bank(&mut self) {
        self.simulator = None;
    }

    /// Where balances are asked for.
    pub(crate) fn balances(&self) -> SocketAddr {
        SocketAddr::from((self.bank, 9099))
    }

    /// A gateway of the profile, with settings as environment variables without their prefix.
    pub(crate) fn gateway(&self, name: &'static str, settings: &[(&str, &str)]) -> Result<Served, Failed> {
        self.gateway_of(&measured()?, name, settings)
    }

    /// The same, of another build.
    pub(crate) fn gateway_of(
        &self,
        program: &Path,
        name: &'static str,
        settings: &[(&str, &str)],
    ) -> Result<Served, Failed> {
        self.gateway_by((program, PROFILE), name, settings)
    }

    /// The same, of another profile.
    pub(crate) fn gateway_from(
        &self,
        profile: &str,
        name: &'static str,
        settings: &[(&str, &str)],
    ) -> Result<Served, Failed> {
        self.gateway_by((&measured()?, profile), name, settings)
    }

    fn gateway_by(
        &self,
        (program, profile): (&Path, &str),
        name: &'static str,
        settings: &[(&str, &str)],
    ) -> Result<Served, Failed> {
        let (folder, address) = (self.folder.path(), free_address()?);
        let file = folder.join(format!("{name}.toml"));
        std::fs::write(&file, profile)?;
        let data = folder.join(format!("{name}-data"));
        let variable = |name: &str| format!("GWANMUN_{name}");
        let mut command = Command::new(program);
        command
            .args(["serve", "--config"])
            .arg(&file)
            .env(variable("SERVER__LISTEN"), address.to_string())
            .env(variable("LEDGER__DATA"), &data)
            .env(variable("INSTITUTION__CORE_BANKING__ADDRESS"), self.balances().to_string())
            .env(variable("INSTITUTION__CORE_TRANSFER__ADDRESS"), format!("{}:9096", self.bank))
            // A setting, or with a colon before it a variable of any name.
            .envs(
                settings.iter().map(|(name, value)| {
                    (name.strip_prefix(':').map_or_else(|| variable(name), str::to_owned), *value)
                }),
            );
        let mut process = Process::start(name, &mut command, folder)?;
        wait_for(&mut process, address, folder)?;
        Ok(Served { process, address })
    }

    /// The bare handler before the simulator.
    pub(crate) fn bare(&self) -> Result<Served, Failed> {
        let address = free_address()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["peer", "bare", "--listen", &address.to_string(), "--host", &self.balances().to_string()]);
        self.serve("bare", command, address)
    }

    /// nginx before an upstream of its own.
    pub(crate) fn nginx(&self) -> Result<(Served, Served), Failed> {
        let (address, behind) = (free_address()?, free_address()?);
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["peer", "upstream", "--listen", &behind.to_string()]);
        let upstream = self.serve("upstream", command, behind)?;
        let nginx = self.serve("nginx", peers::nginx(address, behind, self.folder.path())?, address)?;
        Ok((nginx, upstream))
    }

    /// The file of a gateway's store.
    pub(crate) fn store(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}-data/ledger.sqlite"))
    }

    /// Removes what a gateway that does not run any more has left behind.
    pub(crate) fn forget(&self, name: &str) -> Result<(), Failed> {
        Ok(std::fs::remove_dir_all(self.folder.path().join(format!("{name}-data")))?)
    }

    /// Bytes in a gateway's journal.
    pub(crate) fn journal_bytes(&self, name: &str) -> u64 {
        let folder = self.folder.path().join(format!("{name}-data/journal"));
        let entries = std::fs::read_dir(folder).into_iter().flatten();
        entries.filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len())).sum()
    }

    fn serve(&self, name: &'static str, mut command: Command, address: SocketAddr) -> Result<Served, Failed> {
        let mut process = Process::start(name, &mut command, self.folder.path())?;
        wait_for(&mut process, address, self.folder.path())?;
        Ok(Served { process, address })
    }
}
