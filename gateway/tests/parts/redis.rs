//! A real Redis server on a free port, in a folder of its own, stopped when the test ends.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

pub(crate) struct Redis {
    folder: tempfile::TempDir,
    port: u16,
    running: Option<Child>,
}

impl Redis {
    /// The server of all tests that run at the moment; the last one stops it. Each takes a database number of its own.
    pub(crate) fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Redis>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(Self::start());
            *shared = Arc::downgrade(&server);
            server
        })
    }

    /// The URL of a database that no other test has.
    pub(crate) fn new_database(&self) -> String {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        format!("redis://127.0.0.1:{}/{number}", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
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
        let child = Command::new("redis-server")
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .args(["--databases", "512", "--dir"])
            .arg(self.folder.path())
            .stdout(log)
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("redis-server does not start ({error}): apt-get install redis-server"));
        self.running = Some(child);
        let mut tries = 0;
        while self.say("PING\r\n").is_none_or(|answer| !answer.starts_with("+PONG")) {
            tries += 1;
            assert!(tries < 500, "redis-server does not answer");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sends one inline command and reads what comes at once.
    pub(crate) fn say(&self, command: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        stream.write_all(command.as_bytes()).ok()?;
        let mut answer = vec![0; 64 * 1024];
        let length = stream.read(&mut answer).ok()?;
        answer.truncate(length);
        String::from_utf8(answer).ok()
    }

    /// Ends it at once.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.running.take() {
            child.kill().ok();
            child.wait().unwrap();
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}
