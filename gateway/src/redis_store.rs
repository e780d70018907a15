//! What gateways share over Redis: buckets, and replies that may be given again. Nothing here is ever the truth about money,
//! so a Redis that fails is passed by, at once and by everybody.
//!
//! One connection carries all commands. After a time-out or an error Redis is skipped for a second by all callers while one
//! task connects anew and asks. A request waits for Redis 50 ms at most in all ([`Patience`]), and nothing is asked twice for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, FromRedisValue, IntoConnectionInfo, RedisResult, Script};

use crate::bucket::{Quota, Standing};
use crate::clock::{Clock, Deadline, Instant};
use crate::lookup::Lookup;

/// What a request waits for Redis in all.
const PATIENCE: Duration = Duration::from_millis(50);
/// How long Redis is skipped after a failure, and how often it is asked until it answers.
const SKIPPED: Duration = Duration::from_secs(1);
/// How long connecting and a first answer may take, in the background.
const CONNECT: Duration = Duration::from_secs(1);

/// What a URL must be.
const URL_RULE: &str =
    "must be redis://[user:password@]host[:port][/db] or redis+unix:///path; there is no TLS to Redis";

/// What is left of the time that one request may wait for Redis.
#[derive(Debug)]
pub struct Patience(AtomicU64);

impl Default for Patience {
    fn default() -> Self {
        Self(AtomicU64::new(micros(PATIENCE)))
    }
}

/// As much as is left.
impl Clone for Patience {
    fn clone(&self) -> Self {
        Self(AtomicU64::new(self.0.load(Ordering::Relaxed)))
    }
}

impl Patience {
    fn left(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }

    fn spend(&self, time: Duration) {
        let left = self.left().saturating_sub(time);
        self.0.store(micros(left), Ordering::Relaxed);
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// What operators see.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Whether it is asked at the moment.
    pub is_up: bool,
    /// Questions that were asked.
    pub asked: u64,
    /// Questions that failed or took too long.
    pub failed: u64,
    /// Questions that were not asked, because Redis was being skipped or the request's patience was used up.
    pub skipped: u64,
}

/// A Redis server. Cloning shares the connection.
#[derive(Clone)]
pub struct RedisStore {
    shared: Arc<Shared>,
}

/// The URL may hold a password, so it is in no debug print.
impl std::fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisStore").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

struct Shared {
    client: Client,
    host: Option<(String, u16)>,
    lookup: Arc<dyn Lookup>,
    clock: Clock,
    bucket: Script,
    connection: Mutex<Connection>,
    asked: AtomicU64,
    failed: AtomicU64,
    skipped: AtomicU64,
}

/// The one connection, or none while a task makes one. A failure concerns only the life in which it happened.
#[derive(Default)]
struct Connection {
    life: u64,
    open: Option<MultiplexedConnection>,
    connecting: bool,
}

impl RedisStore {
    /// A store at a URL (`redis://user:password@host:port/db`); nothing is asked before [`RedisStore::connect`].
    ///
    /// # Errors
    /// The rule that the URL breaks, never the URL.
    pub fn new(url: &str, lookup: Arc<dyn Lookup>, clock: Clock) -> Result<Self, &'static str> {
        let info = url.into_connection_info().map_err(|_| URL_RULE)?;
        let host = match info.addr() {
            ConnectionAddr::Tcp(host, port) => Some((host.clone(), *port)),
            ConnectionAddr::Unix(_) => None,
            _ => return Err(URL_RULE),
        };
        let info = info.clone().set_tcp_settings(info.tcp_settings().clone().set_nodelay(true));
        let client = Client::open(info).map_err(|_| URL_RULE)?;
        let shared = Shared {
            client,
            host,
            lookup,
            clock,
            bucket: Script::new(include_str!("redis_store/bucket.lua")),
            connection: Mutex::default(),
            asked: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Begins to connect, and waits for it for a moment: limits shall hold from the first request on. A Redis that is not there
    /// stops nobody from starting.
    pub async fn connect(&self, wait: Duration) {
        self.shared.connect_in_background(Duration::ZERO);
        let end = Deadline::after(self.shared.clock.now(), wait);
        while !self.stats().is_up && !end.has_passed(self.shared.clock.now()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// What operators see.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            is_up: self.shared.connection().open.is_some(),
            asked: read(&self.shared.asked),
            failed: read(&self.shared.failed),
            skipped: read(&self.shared.skipped),
        }
    }

    /// Takes a token of a bucket; says whether there was one, and what is left. `None`: nobody knows.
    pub async fn take(&self, key: &str, quota: Quota, patience: &Patience) -> Option<(bool, Standing)> {
        let script = &self.shared.bucket;
        let asking = async |mut connection: MultiplexedConnection| {
            let mut call = script.key(key);
            call.arg(quota.burst).arg(quota.rate).invoke_async::<(u8, u64, u64)>(&mut connection).await
        };
        let (taken, level, wait) = self.ask(patience, asking).await?;
        let missing = quota.burst.saturating_mul(1_000_000).saturating_sub(level);
        let standing = Standing {
            limit: quota.burst,
            remaining: level / 1_000_000,
            reset: Duration::from_micros(missing / quota.rate.max(1)),
            retry_after: Duration::from_micros(wait),
        };
        Some((taken == 1, standing))
    }

    /// A value and how long it is still kept. The outer `None`: nobody knows; the inner one: there is none.
    pub async fn get(&self, key: &str, patience: &Patience) -> Option<Option<(Vec<u8>, Duration)>> {
        let asking = async |mut connection: MultiplexedConnection| {
            let mut both = redis::pipe();
            both.get(key).pttl(key);
            both.query_async::<(Option<Vec<u8>>, i64)>(&mut connection).await
        };
        let (value, left) = self.ask(patience, asking).await?;
        let left = u64::try_from(left).ok().map(Duration::from_millis);
        Some(value.zip(left))
    }

    /// Keeps a value for a time.
    pub async fn put(&self, key: &str, value: &[u8], keep: Duration, patience: &Patience) -> Option<()> {
        let keep = u64::try_from(keep.as_millis()).unwrap_or(u64::MAX).max(1);
        let asking = async |mut connection: MultiplexedConnection| {
            redis::cmd("SET").arg(key).arg(value).arg("PX").arg(keep).query_async::<()>(&mut connection).await
        };
        self.ask(patience, asking).await
    }

    async fn ask<T: FromRedisValue>(
        &self,
        patience: &Patience,
        asking: impl AsyncFnOnce(MultiplexedConnection) -> RedisResult<T>,
    ) -> Option<T> {
        let shared = &self.shared;
        let left = patience.left();
        let (life, connection) = {
            let connection = shared.connection();
            (connection.life, connection.open.clone())
        };
        let Some(connection) = connection.filter(|_| !left.is_zero()) else {
            shared.skipped.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        shared.asked.fetch_add(1, Ordering::Relaxed);
        let began = shared.clock.now();
        let answered = tokio::time::timeout(left, asking(connection)).await;
        patience.spend(shared.clock.now().saturating_duration_since(began));
        match answered {
            Ok(Ok(value)) => Some(value),
            Ok(Err(error)) => {
                shared.give_up(life, error.kind());
                None
            }
            Err(_elapsed) => {
                // Had the request waited before, this says little about Redis; then only the request goes on without it.
                if left >= PATIENCE / 2 {
                    shared.give_up(life, redis::ErrorKind::Io);
                } else {
                    shared.failed.fetch_add(1, Ordering::Relaxed);
                }
                None
            }
        }
    }
}

impl Shared {
    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From here on everybody skips Redis, until the task that this starts has an answer.
    fn give_up(self: &Arc<Self>, life: u64, kind: redis::ErrorKind) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        {
            let mut connection = self.connection();
            if connection.life != life || connection.open.take().is_none() {
                return;
            }
        }
        tracing::warn!(?kind, "Redis does not answer; it is skipped until it does");
        self.connect_in_background(SKIPPED);
    }

    fn connect_in_background(self: &Arc<Self>, first_wait: Duration) {
        if std::mem::replace(&mut self.connection().connecting, true) {
            return;
        }
        tokio::spawn(connect(Connecting(Arc::downgrade(self)), first_wait));
    }

    /// Connects and hears one answer.
    async fn try_connect(&self) -> Option<MultiplexedConnection> {
        let client = match &self.host {
            Some((host, port)) => {
                let found = self.lookup.look_up(host, *port).await.ok()?;
                let address = ConnectionAddr::Tcp(found.ip().to_string(), found.port());
                Client::open(self.client.get_connection_info().clone().set_addr(address)).ok()?
            }
            None => self.client.clone(),
        };
        let config = AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT)).set_response_timeout(None);
        let connecting = async {
            let mut connection = client.get_multiplexed_async_connection_with_config(&config).await.ok()?;
            redis::cmd("PING").query_async::<()>(&mut connection).await.ok()?;
            Some(connection)
        };
        tokio::time::timeout(2 * CONNECT, connecting).await.ok().flatten()
    }
}

/// The task that connects, while there is one.
struct Connecting(Weak<Shared>);

impl Drop for Connecting {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade() {
            shared.connection().connecting = false;
        }
    }
}

/// The one task that connects; it ends with the connection, or with the store.
async fn connect(connecting: Connecting, first_wait: Duration) {
    tokio::time::sleep(first_wait).await;
    loop {
        let Some(shared) = connecting.0.upgrade() else { return };
        if let Some(open) = shared.try_connect().await {
            drop(connecting);
            let mut connection = shared.connection();
            *connection = Connection { life: connection.life + 1, open: Some(open), connecting: connection.connecting };
            tracing::info!("connected to Redis");
            return;
        }
        drop(shared);
        tokio::time::sleep(SKIPPED).await;
    }
}

/// When something was last said; so that a failure that goes on is told once a second at most.
#[derive(Debug, Default)]
pub struct OnceASecond(Mutex<Option<Instant>>);

impl OnceASecond {
    /// Whether it may be said now.
    pub fn may_say(&self, now: Instant) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let may = last.is_none_or(|last| now >= last + Duration::from_secs(1));
        if may {
            *last = Some(now);
        }
        may
    }
}

#[cfg(test)]
mod tests;
