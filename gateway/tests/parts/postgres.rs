//! A real PostgreSQL server on a free port, in a folder of its own, stopped when the test ends.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

pub(crate) struct Postgres {
    folder: tempfile::TempDir,
    port: u16,
    running: Option<Child>,
}

/// Where Debian puts the newest server.
fn programs() -> PathBuf {
    let all = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let mut versions: Vec<PathBuf> = all.map(|entry| entry.unwrap().path().join("bin")).collect();
    versions.sort();
    versions.pop().expect("PostgreSQL is not installed: apt-get install postgresql")
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// PostgreSQL refuses to run as root.
fn as_its_user(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(program);
    command
}

impl Postgres {
    /// The server of all tests that run at the moment; the last one stops it.
    pub(crate) fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Postgres>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(Self::start());
            *shared = Arc::downgrade(&server);
            server
        })
    }

    /// The URL of a new, empty database.
    pub(crate) fn new_database(&self) -> String {
        let name = format!("t{:016x}", fastrand::u64(..));
        let made = Command::new(programs().join("createdb"))
            .args(["-h", "127.0.0.1", "-U", "gwanmun", "-p", &self.port.to_string(), &name])
            .output()
            .unwrap();
        assert!(made.status.success(), "createdb: {}", String::from_utf8_lossy(&made.stderr));
        format!("postgres://gwanmun@127.0.0.1:{}/{name}", self.port)
    }

    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        if is_root() {
            let owner = Command::new("chown").arg("postgres:postgres").arg(folder.path()).status().unwrap();
            assert!(owner.success(), "the folder could not be given to the user postgres");
        }
        let data = folder.path().join("data");
        let made = as_its_user(&programs().join("initdb"))
            .args(["--no-sync", "--auth=trust", "--username=gwanmun", "--encoding=UTF8", "--locale=C.UTF-8", "-D"])
            .arg(&data)
            .current_dir("/")
            .output()
            .unwrap();
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        // Below those that the system gives out: nobody shall have it while the server is stopped.
        let port = loop {
            let port = fastrand::u16(20_000..32_000);
            if TcpListener::bind(("127.0.0.1", port)).is_ok() {
                break port;
            }
        };
        let mut server = Self { folder, port, running: None };
        server.start_again();
        server
    }

    pub(crate) fn start_again(&mut self) {
        let log = std::fs::File::options().create(true).append(true).open(self.folder.path().join("log")).unwrap();
        let child = as_its_user(&programs().join("postgres"))
            .arg("-D")
            .arg(self.folder.path().join("data"))
            .args(["-p", &self.port.to_string(), "-c", "listen_addresses=127.0.0.1", "-c", "max_connections=200"])
            .args(["-c", "unix_socket_directories="])
            .current_dir("/")
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.running = Some(child);
        let mut tries = 0;
        let ready = || {
            let asked = Command::new(programs().join("pg_isready"))
                .args(["-q", "-h", "127.0.0.1", "-U", "gwanmun", "-d", "postgres", "-p", &self.port.to_string()])
                .status();
            TcpStream::connect(("127.0.0.1", self.port)).is_ok() && asked.is_ok_and(|status| status.success())
        };
        while !ready() {
            let log = || std::fs::read_to_string(self.folder.path().join("log")).unwrap();
            tries += 1;
            assert!(tries < 600, "PostgreSQL does not start: {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Stops it as a crash would: no checkpoint, every connection cut.
    pub(crate) fn stop(&mut self) {
        self.end(rustix::process::Signal::QUIT);
    }

    /// Stops it by a signal; INT is in order: everything is written, every connection is cut.
    pub(crate) fn end(&mut self, signal: rustix::process::Signal) {
        if let Some(mut child) = self.running.take() {
            let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
            rustix::process::kill_process(pid, signal).ok();
            child.wait().unwrap();
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.stop();
    }
}
