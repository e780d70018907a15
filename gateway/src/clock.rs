//! The only reader of time. Everything below the shell takes `now` as an argument.
//!
//! Monotonic time is tokio's, so that a test can pause it; wall time is the system's, or a start plus the monotonic
//! time that has passed since.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
pub use tokio::time::Instant;

/// A wall clock that goes on with tokio's time, and can be put forward and back.
#[derive(Debug)]
struct Simulated {
    start: Timestamp,
    from: Instant,
    stepped: AtomicI64,
}

/// Reads monotonic and wall time.
#[derive(Debug, Clone)]
pub struct Clock {
    seoul: TimeZone,
    simulated: Option<Arc<Simulated>>,
}

impl Clock {
    /// The system's clock.
    ///
    /// # Errors
    /// When the zone data of Asia/Seoul, which is carried in the binary, can't be read.
    pub fn system() -> Result<Self, jiff::Error> {
        Ok(Self { seoul: TimeZone::get("Asia/Seoul")?, simulated: None })
    }

    /// A clock whose wall time starts at `start` and goes on with tokio's time, which may be paused.
    ///
    /// # Errors
    /// As [`Clock::system`].
    pub fn simulated(start: Timestamp) -> Result<Self, jiff::Error> {
        let clock = Self::system()?;
        let simulated = Arc::new(Simulated { start, from: clock.now(), stepped: AtomicI64::new(0) });
        Ok(Self { simulated: Some(simulated), ..clock })
    }

    /// Puts a simulated wall clock forward, or back; the system's own is nobody's to change.
    pub fn step(&self, seconds: i64) {
        if let Some(simulated) = &self.simulated {
            simulated.stepped.fetch_add(seconds, Ordering::Relaxed);
        }
    }

    /// Monotonic time.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    pub fn now(&self) -> Instant {
        Instant::now()
    }

    /// Wall time.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    pub fn wall(&self) -> Timestamp {
        let Some(simulated) = &self.simulated else { return Timestamp::now() };
        let stepped = jiff::SignedDuration::from_secs(simulated.stepped.load(Ordering::Relaxed));
        simulated.start + self.now().duration_since(simulated.from) + stepped
    }

    /// The civil date and time in Seoul at an instant, whatever zone the process runs in.
    #[must_use]
    pub fn in_seoul(&self, at: Timestamp) -> jiff::civil::DateTime {
        self.seoul.to_datetime(at)
    }

    /// The business date (영업일): today in Seoul.
    #[must_use]
    pub fn business_date(&self) -> Date {
        self.in_seoul(self.wall()).date()
    }
}

/// The one absolute end of a transaction: it covers waiting, connecting, writing and the whole reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// A deadline `after` from `now`.
    #[must_use]
    pub fn after(now: Instant, after: Duration) -> Self {
        Self(now + after)
    }

    /// The instant itself.
    #[must_use]
    pub fn at(self) -> Instant {
        self.0
    }

    /// What is left; zero when it has passed.
    #[must_use]
    pub fn remaining(self, now: Instant) -> Duration {
        self.0.saturating_duration_since(now)
    }

    /// Whether nothing is left.
    #[must_use]
    pub fn has_passed(self, now: Instant) -> bool {
        now >= self.0
    }

    /// The earlier of the deadline and `now + limit`.
    #[must_use]
    pub fn at_most(self, now: Instant, limit: Duration) -> Self {
        Self(self.0.min(now + limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_business_date_changes_at_midnight_in_seoul() {
        let clock = Clock::simulated("2026-11-29T14:59:59Z".parse().unwrap()).unwrap();
        assert_eq!(clock.business_date(), jiff::civil::date(2026, 11, 29));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(clock.business_date(), jiff::civil::date(2026, 11, 30));
    }
}
