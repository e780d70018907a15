//! How often a client may call: a token bucket for each client, in this process, or in Redis when several gateways must agree.
//!
//! A Redis that does not answer lets everybody pass: this limit protects us from a client, and nobody else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::auth::Caller;
use super::{Admitted, TurnedAway};
use crate::bucket::{Quota, Standing};
use crate::clock::Clock;
use crate::failure::Failure;
use crate::left_out::{Part, is_left_out};
use crate::redis_store::{OnceASecond, Patience, RedisStore};
use crate::routes::Route;

/// The limit of all clients: one bucket each.
#[derive(Debug)]
pub struct ClientLimit {
    quota: Quota,
    redis: Option<RedisStore>,
    clock: Clock,
    counts: Counts,
    said: OnceASecond,
}

#[derive(Debug, Default)]
struct Counts {
    passed: AtomicU64,
    refused: AtomicU64,
    degraded: AtomicU64,
}

/// What operators see.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Calls that passed, degraded or not.
    pub passed: u64,
    /// Calls that were refused.
    pub refused: u64,
    /// Calls that passed without being counted, because Redis did not answer.
    pub degraded: u64,
}

impl ClientLimit {
    /// A limit, shared over Redis if there is one.
    #[must_use]
    pub fn new(quota: Quota, redis: Option<RedisStore>, clock: Clock) -> Self {
        Self { quota, redis, clock, counts: Counts::default(), said: OnceASecond::default() }
    }

    /// Where it is counted, in a word.
    #[must_use]
    pub fn store_name(&self) -> &'static str {
        if self.redis.is_some() { "redis" } else { "memory" }
    }

    /// What operators see.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counts { passed, refused, degraded } = &self.counts;
        Stats { passed: read(passed), refused: read(refused), degraded: read(degraded) }
    }

    /// The filter, last in the chain: takes one token of the caller's bucket and lets the request in.
    ///
    /// # Errors
    /// [`TurnedAway`].
    pub async fn admit(&self, caller: Arc<Caller>, route: Arc<Route>) -> Result<Admitted, TurnedAway> {
        let patience = Patience::default();
        let standing = match self.take(&caller, &patience).await {
            Some((true, standing)) => Some(standing),
            Some((false, standing)) => {
                self.counts.refused.fetch_add(1, Ordering::Relaxed);
                return Err(TurnedAway { failure: Failure::RateLimited, standing: Some(standing) });
            }
            None => None,
        };
        self.counts.passed.fetch_add(1, Ordering::Relaxed);
        Ok(Admitted { caller, route, standing, patience })
    }

    async fn take(&self, caller: &Caller, patience: &Patience) -> Option<(bool, Standing)> {
        if is_left_out(Part::Limit) {
            return None;
        }
        let Some(redis) = &self.redis else { return Some(caller.bucket.take(self.clock.now())) };
        let taken = redis.take(&format!("gwanmun:client:{}", caller.name), self.quota, patience).await;
        if taken.is_none() {
            self.counts.degraded.fetch_add(1, Ordering::Relaxed);
            if self.said.may_say(self.clock.now()) {
                tracing::warn!("Redis does not answer: clients pass without being counted");
            }
        }
        taken
    }
}
