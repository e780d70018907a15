//! A gateway as a process of its own, for what only a process can show: kill -9, SIGTERM, descriptors.

use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use mock_core_banking::{Port, Simulator};

use crate::client::Client;
use crate::harness::{config_text, log_folder};

pub(crate) struct Process {
    child: Child,
    log: PathBuf,
    pub(crate) address: SocketAddr,
}

/// A configuration file in a folder, for a gateway on a free port before this simulator.
pub(crate) fn write_config(folder: &Path, simulator: &Simulator, settings: &str) -> PathBuf {
    let mut text = config_text();
    for port in Port::ALL {
        let known = format!("127.0.0.1:{}", port.number());
        text = text.replace(&known, &simulator.address(port).to_string());
    }
    let data = folder.join("data").display().to_string();
    let plain = format!("[server]\nlisten = \"127.0.0.1:0\"\n{settings}\n[ledger]\ndata = \"{data}\"\n");
    let resolver = "[resolver]\nenabled = false\n";
    let limits = "[client_limit]\nburst = 1000000\nrate = 1000000\n[log]\nlevel = \"trace\"\n";
    let path = folder.join("gwanmun.toml");
    std::fs::write(&path, format!("{plain}{resolver}{limits}{text}")).unwrap();
    path
}

impl Process {
    /// Starts a gateway on a free port and waits until it says where it serves.
    pub(crate) async fn start(config: &Path) -> Self {
        Self::start_with(config, &[]).await
    }

    /// The same, with settings as environment variables without their prefix.
    pub(crate) async fn start_with(config: &Path, settings: &[(&str, &str)]) -> Self {
        std::fs::create_dir_all(log_folder()).unwrap();
        let log = log_folder().join(format!("process-{}-{}.log", std::process::id(), fastrand::u64(..)));
        let child = Command::new(env!("CARGO_BIN_EXE_gwanmun"))
            .args(["serve", "--config"])
            .arg(config)
            .env("GWANMUN_SERVER__LISTEN", "127.0.0.1:0")
            .env("GWANMUN_LOG__FORMAT", "json")
            .envs(settings.iter().map(|(name, value)| (format!("GWANMUN_{name}"), *value)))
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let mut process = Self { child, log, address: SocketAddr::from(([127, 0, 0, 1], 0)) };
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            let logged = std::fs::read_to_string(&process.log).unwrap();
            let serving = logged.split("\"message\":\"serving\",\"address\":\"").nth(1);
            if let Some(address) = serving.and_then(|rest| rest.split('"').next()) {
                process.address = address.parse().unwrap();
                return process;
            }
            let exited = process.child.try_wait().unwrap();
            assert!(exited.is_none() && Instant::now() < end, "does not serve: {logged}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.address).await
    }

    /// Where its log lines go.
    pub(crate) fn log(&self) -> PathBuf {
        self.log.clone()
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn terminate(&self) {
        self.signal(rustix::process::Signal::TERM);
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the end, twenty seconds at most.
    pub(crate) async fn wait(&mut self) -> ExitStatus {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                assert_eq!(status.signal(), None);
                return status;
            }
            assert!(Instant::now() < end, "the process does not end");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            self.child.kill().ok();
            self.child.wait().ok();
        }
    }
}
