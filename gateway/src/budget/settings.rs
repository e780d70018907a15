//! What is said of an institution's budget, and what follows from it. Pure.

use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::bucket::Quota;

/// Who counts the calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Keeper {
    /// Nobody: every call passes.
    #[default]
    Off,
    /// This process.
    Memory,
    /// A bucket in Redis.
    Redis,
    /// Slots from PostgreSQL.
    Postgres,
}

impl Keeper {
    /// The word in configurations and statistics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Memory => "memory",
            Self::Redis => "redis",
            Self::Postgres => "postgres",
        }
    }

    /// The keeper of this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        [Self::Off, Self::Memory, Self::Redis, Self::Postgres].into_iter().find(|keeper| keeper.name() == name)
    }
}

/// One class of calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassRule {
    /// Its name; routes say it.
    pub name: String,
    /// The smaller goes first.
    pub priority: i32,
    /// The share in percent that it gets in any case.
    pub floor_percent: i32,
}

/// The budget of one institution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Who counts.
    pub keeper: Keeper,
    /// What the calls are counted under; holds a hash of the contract's key, never the key.
    pub key: String,
    /// Calls a second.
    pub limit: u32,
    /// Calls at once after a pause, in memory and in Redis.
    pub burst: u64,
    /// From a slot to the last moment at which its frame may leave.
    pub window: Duration,
    /// How much the way to the institution may vary.
    pub jitter: Duration,
    /// A slot whose answer took longer is thrown away.
    pub rtt_max: Duration,
    /// How long a call waits for a slot; half its deadline when nothing is said.
    pub max_wait: Option<Duration>,
    /// Whether calls pass while Redis does not answer.
    pub open_without_redis: bool,
    /// The classes.
    pub classes: Vec<ClassRule>,
}

/// Name under which an institution's calls are counted: a contract may be shared by institutions of one name in several
/// gateways, and its key stands nowhere in clear.
#[must_use]
pub fn key_of(institution: &str, contract_key: &str) -> String {
    let hash = hex::encode(Sha256::digest(contract_key.as_bytes()));
    format!("{institution}:{}", hash.get(..16).unwrap_or_default())
}

impl Settings {
    /// As a bucket.
    #[must_use]
    pub fn quota(&self) -> Quota {
        Quota { burst: self.burst, rate: u64::from(self.limit) }
    }

    /// Time between two slots, by the rule that any second holds at most `limit` arrivals.
    #[must_use]
    pub fn interval(&self) -> Duration {
        (Duration::from_secs(1) + self.window + self.jitter) / self.limit.saturating_sub(1).max(1)
    }

    /// How far ahead slots are promised: short, so that a class that goes first need not wait for many that came before it;
    /// long enough that a slot is not lost to a caller's short absence.
    #[must_use]
    pub fn lookahead(&self) -> Duration {
        (self.interval() * 3).clamp(Duration::from_millis(10), Duration::from_millis(200))
    }
}
