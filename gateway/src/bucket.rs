//! A token bucket in memory, without a lock.
//!
//! It is the generic cell rate algorithm: one number, the time at which the bucket will be full again. Pure in
//! `decide`; the shell swaps the number atomically.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Instant;

/// How often something may be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Calls at once after a pause.
    pub burst: u64,
    /// Calls a second for ever.
    pub rate: u64,
}

/// What is left of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// The burst.
    pub limit: u64,
    /// Calls that could be made now.
    pub remaining: u64,
    /// Until all are back.
    pub reset: Duration,
    /// Until one more call passes; zero when one would pass now.
    pub retry_after: Duration,
}

/// One bucket.
#[derive(Debug)]
pub struct Bucket {
    quota: Quota,
    /// Nanoseconds since `origin` at which the bucket is full.
    full_at: AtomicU64,
    origin: std::sync::OnceLock<Instant>,
}

impl Bucket {
    /// A full bucket.
    #[must_use]
    pub fn new(quota: Quota) -> Self {
        Self { quota, full_at: AtomicU64::new(0), origin: std::sync::OnceLock::new() }
    }

    /// How long it takes until one more could be taken; zero when one could be taken now.
    #[must_use]
    pub fn wait(&self, now: Instant) -> Duration {
        let since = self.since_origin(now);
        let (next, standing) = decide(self.full_at.load(Ordering::Relaxed), since, self.quota);
        if next.is_some() { Duration::ZERO } else { standing.retry_after }
    }

    fn since_origin(&self, now: Instant) -> u64 {
        let origin = *self.origin.get_or_init(|| now);
        u64::try_from(now.saturating_duration_since(origin).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Takes one token; says whether there was one.
    #[must_use]
    pub fn take(&self, now: Instant) -> (bool, Standing) {
        let now = self.since_origin(now);
        let mut full_at = self.full_at.load(Ordering::Relaxed);
        loop {
            let (next, standing) = decide(full_at, now, self.quota);
            let Some(next) = next else { return (false, standing) };
            match self.full_at.compare_exchange_weak(full_at, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return (true, standing),
                Err(changed) => full_at = changed,
            }
        }
    }
}

/// The new time at which the bucket is full, when a token could be taken, and what is left. Times in nanoseconds.
fn decide(full_at: u64, now: u64, quota: Quota) -> (Option<u64>, Standing) {
    // Rounded up: never more than the rate.
    let interval = 1_000_000_000_u64.div_ceil(quota.rate.max(1));
    let whole = interval.saturating_mul(quota.burst);
    let taken = full_at.max(now).saturating_add(interval);
    let passes = taken <= now.saturating_add(whole);
    let next = if passes { taken } else { full_at };
    let debt = next.saturating_sub(now);
    let standing = Standing {
        limit: quota.burst,
        remaining: whole.saturating_sub(debt) / interval.max(1),
        reset: Duration::from_nanos(debt),
        retry_after: Duration::from_nanos((debt + interval).saturating_sub(whole)),
    };
    (passes.then_some(next), standing)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const QUOTA: Quota = Quota { burst: 5, rate: 10 };
    const MS: u64 = 1_000_000;

    #[test]
    fn a_full_bucket_gives_its_burst_and_then_its_rate() {
        let mut full_at = 0;
        let mut take = |now| {
            let (next, standing) = decide(full_at, now, QUOTA);
            full_at = next.unwrap_or(full_at);
            (next.is_some(), standing)
        };
        for left in (0..5).rev() {
            let (passes, standing) = take(0);
            assert_eq!((passes, standing.remaining), (true, left));
        }
        let (passes, standing) = take(0);
        assert_eq!(
            (passes, standing.retry_after, standing.reset),
            (false, Duration::from_millis(100), Duration::from_millis(500))
        );
        assert!(!take(99 * MS).0);
        assert!(take(100 * MS).0);
        assert!(!take(150 * MS).0);
        assert!(take(200 * MS).0);
    }

    #[test]
    fn over_any_time_no_more_pass_than_burst_and_rate_allow() {
        let (mut full_at, mut passed) = (0, 0_u64);
        for now in (0..10_000).map(|step| step * MS) {
            if let (Some(next), _) = decide(full_at, now, QUOTA) {
                full_at = next;
                passed += 1;
            }
        }
        assert_eq!(passed, 5 + 99);
    }

    #[tokio::test]
    async fn many_at_once_take_exactly_the_burst() {
        let bucket = Arc::new(Bucket::new(Quota { burst: 1_000, rate: 1 }));
        let now = crate::clock::Clock::system().unwrap().now();
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let bucket = Arc::clone(&bucket);
                std::thread::spawn(move || (0..500).filter(|_| bucket.take(now).0).count())
            })
            .collect();
        assert_eq!(threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>(), 1_000);
    }
}
