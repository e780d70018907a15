//! A bank and a PostgreSQL database, before which several gateways are put as processes.

use std::path::PathBuf;
use std::time::Duration;

use mock_core_banking::Simulator;

use crate::harness::simulator;
use crate::process::{Process, write_config};

pub(crate) struct Place {
    pub(crate) simulator: Simulator,
    pub(crate) folder: tempfile::TempDir,
    pub(crate) url: String,
}

impl Place {
    pub(crate) async fn new(url: String) -> Self {
        Self { simulator: simulator(Duration::from_secs(2)).await, folder: tempfile::tempdir().unwrap(), url }
    }

    pub(crate) fn config(&self, letter: &str) -> PathBuf {
        let folder = self.folder.path().join(letter);
        std::fs::create_dir_all(&folder).unwrap();
        write_config(&folder, &self.simulator, "")
    }

    pub(crate) async fn gateway(&self, letter: &str, more: &[(&str, &str)]) -> Process {
        let settings = [
            ("LEDGER__STORE", "postgres"),
            ("LEDGER__POSTGRES_URL", self.url.as_str()),
            ("LEDGER__INSTANCE", letter),
            ("LEDGER__INSTANCE_LEASE", "2s"),
        ];
        let settings: Vec<_> = settings.iter().chain(more).copied().collect();
        Process::start_with(&self.config(letter), &settings).await
    }
}
