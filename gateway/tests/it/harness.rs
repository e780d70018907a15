//! A gateway in this process, on free ports, with a simulator beside it and its data in a temporary folder.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::{Duration, Instant};

use gwanmun::app::{App, Seams};
use gwanmun::config::Config;
use mock_core_banking::{Fault, FaultRule, FaultSchedule, Port, Settings, Simulator};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::client::{AUDITOR, Answer, CLIENT, Client, OPERATOR, OTHER_CLIENT, get};

pub(crate) struct TestGateway {
    pub(crate) simulator: Simulator,
    pub(crate) address: SocketAddr,
    pub(crate) data: tempfile::TempDir,
    pub(crate) stop: CancellationToken,
    pub(crate) serving: JoinHandle<Result<(), gwanmun::app::Stopped>>,
}

/// Settings as environment variables without their prefix.
pub(crate) type Overrides<'a> = &'a [(&'a str, &'a str)];

/// Every log line of the suite goes to a file, at the finest level, for the scan for secrets.
pub(crate) fn start_logging() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let folder = log_folder();
        std::fs::create_dir_all(&folder).unwrap();
        let file = std::fs::File::create(folder.join(format!("{}.log", std::process::id()))).unwrap();
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_writer(std::sync::Mutex::new(file))
            .init();
    });
}

pub(crate) fn log_folder() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("suite-logs")
}

pub(crate) fn keys() -> String {
    let entry = |name: &str, role: &str, key: &str| {
        let hash = hex::encode(Sha256::digest(key.as_bytes()));
        format!("\n[[client]]\nname = \"{name}\"\nrole = \"{role}\"\nkey_sha256 = \"{hash}\"\n")
    };
    entry("fintech-a", "client", CLIENT)
        + &entry("fintech-b", "client", OTHER_CLIENT)
        + &entry("auditor", "auditor", AUDITOR)
        + &entry("operator", "operator", OPERATOR)
}

pub(crate) fn config_text() -> String {
    include_str!("../../routes.toml").to_owned() + &keys()
}

pub(crate) fn configure(data: &Path, simulator: &Simulator, text: &str, overrides: Overrides<'_>) -> Config {
    let mut variables = vec![
        ("GWANMUN_SERVER__LISTEN".to_owned(), "127.0.0.1:0".to_owned()),
        ("GWANMUN_LEDGER__DATA".to_owned(), data.display().to_string()),
        ("GWANMUN_CLIENT_LIMIT__BURST".to_owned(), "1000000".to_owned()),
        ("GWANMUN_CLIENT_LIMIT__RATE".to_owned(), "1000000".to_owned()),
        // Most tests count what the gateway asks the host; those of resolution switch it on.
        ("GWANMUN_RESOLVER__ENABLED".to_owned(), "false".to_owned()),
    ];
    for port in Port::ALL {
        let name = port.institution().to_uppercase().replace('-', "_");
        variables.push((format!("GWANMUN_INSTITUTION__{name}__ADDRESS"), simulator.address(port).to_string()));
    }
    for (name, value) in overrides {
        variables.push((format!("GWANMUN_{name}"), (*value).to_owned()));
    }
    Config::from_text("routes.toml", text, Path::new("."), &variables).unwrap_or_else(|problems| {
        panic!("{}", problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
    })
}

pub(crate) async fn simulator(delay: Duration) -> Simulator {
    Simulator::start(Settings { delay, kernel_stamps: true, ..Settings::default() }).await.unwrap()
}

impl TestGateway {
    pub(crate) async fn start(overrides: Overrides<'_>) -> Self {
        Self::start_with(&config_text(), Duration::from_millis(300), overrides).await
    }

    pub(crate) async fn start_with(text: &str, delay: Duration, overrides: Overrides<'_>) -> Self {
        start_logging();
        let (simulator, data) = (simulator(delay).await, tempfile::tempdir().unwrap());
        let config = configure(data.path(), &simulator, text, overrides);
        let app = App::start(config).await.unwrap();
        Self::serve(app, simulator, data).await
    }

    /// On seams of the test's own.
    pub(crate) async fn start_on(seams: Seams, text: &str, overrides: Overrides<'_>) -> Self {
        start_logging();
        let (simulator, data) = (simulator(Duration::from_millis(300)).await, tempfile::tempdir().unwrap());
        let config = configure(data.path(), &simulator, text, overrides);
        let app = App::assemble(config, seams).await.unwrap();
        Self::serve(app, simulator, data).await
    }

    pub(crate) async fn serve(app: App, simulator: Simulator, data: tempfile::TempDir) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let serving = tokio::spawn(app.serve(listener, stop.clone()));
        Self { simulator, address, data, stop, serving }
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.address).await
    }

    pub(crate) async fn call(&self, request: &str) -> Answer {
        self.client().await.call(request).await
    }

    pub(crate) async fn get(&self, path: &str, key: &str) -> Value {
        let answer = self.call(&get(path, key)).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
        answer.json()
    }

    /// A listing or the summary, asked for until it has all that was answered before.
    pub(crate) async fn complete(&self, path: &str, key: &str) -> Value {
        for _ in 0..60 {
            let page = self.get(path, key).await;
            if page["complete"] == true {
                return page;
            }
        }
        panic!("{path} is not complete after half a minute");
    }

    /// All rows, newest first.
    pub(crate) async fn rows(&self) -> Vec<Value> {
        let mut rows = Vec::new();
        let mut cursor = String::new();
        loop {
            let page = self.complete(&format!("/api/ledger?limit=200{cursor}"), AUDITOR).await;
            rows.extend(page["items"].as_array().unwrap().iter().cloned());
            match page["nextCursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return rows,
            }
        }
    }

    pub(crate) async fn circuit(&self, institution: &str) -> Value {
        self.get("/api/circuit/stats", OPERATOR).await[institution].clone()
    }

    pub(crate) async fn pool(&self, institution: &str) -> Value {
        self.get("/api/pool/stats", OPERATOR).await[institution].clone()
    }

    /// Puts one fault in force for a message.
    pub(crate) fn fault(&self, message: &str, fault: Fault, probability: f64) {
        self.fault_with(message, fault, probability, None, None);
    }

    pub(crate) fn fault_with(
        &self,
        message: &str,
        fault: Fault,
        probability: f64,
        delay_ms: Option<u64>,
        code: Option<&str>,
    ) {
        let code = code.map(str::to_owned);
        let rule = FaultRule { message: Some(message.to_owned()), fault, probability, delay_ms, code };
        self.simulator.host().set_faults(FaultSchedule { seed: 1, rules: vec![rule] });
    }

    pub(crate) fn no_faults(&self) {
        self.simulator.host().set_faults(FaultSchedule::default());
    }

    pub(crate) async fn shut_down(self) {
        self.stop.cancel();
        self.serving.await.unwrap().unwrap();
    }
}

/// Waits until a condition holds, ten seconds at most.
pub(crate) async fn eventually<F: AsyncFnMut() -> bool>(what: &str, mut holds: F) {
    let end = Instant::now() + Duration::from_secs(10);
    while !holds().await {
        assert!(Instant::now() < end, "not within ten seconds: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
