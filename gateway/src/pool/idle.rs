//! The connections that nobody has at the moment. The last one back goes out first, of those of the caller's own core if there is one; what is too old, from before a flush, or not
//! silent is closed and never lent. Synchronous and told what time it is.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::runtime;

use super::Line;
use crate::clock::Instant;
use crate::lock::{AtomicU64, Mutex, MutexGuard};

#[derive(Debug)]
struct Idle {
    line: Line,
    since: Instant,
}

/// Idle connections of one pool.
#[derive(Debug)]
pub(super) struct IdleLines {
    lines: Mutex<Vec<Idle>>,
    ttl: Duration,
    /// Raised to make every older line unusable.
    epoch: AtomicU64,
}

/// A line that was found, and how many were closed on the way to it.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) line: Option<Line>,
    pub(super) expired: u64,
    pub(super) ended: u64,
}

impl IdleLines {
    pub(super) fn new(ttl: Duration) -> Self {
        Self { lines: Mutex::new(Vec::new()), ttl, epoch: AtomicU64::new(0) }
    }

    fn lines(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a line that is made now belongs to.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    pub(super) fn len(&self) -> usize {
        self.lines().len()
    }

    fn is_expired(&self, idle: &Idle, now: Instant) -> bool {
        now >= idle.since + self.ttl || now >= idle.line.retire_at || idle.line.epoch != self.epoch()
    }

    /// The last line that is young enough and silent, of those that live `here` if one does. A silent one has neither ended nor
    /// anything to say: a byte on an idle line is somebody's late reply and never ours.
    pub(super) fn take(&self, now: Instant, here: Option<runtime::Id>) -> Taken {
        let mut taken = Taken { line: None, expired: 0, ended: 0 };
        let pop = || {
            let mut lines = self.lines();
            match lines.iter().rposition(|idle| idle.line.home == here) {
                Some(index) => Some(lines.remove(index)),
                None => lines.pop(),
            }
        };
        loop {
            let Some(idle) = pop() else { return taken };
            if self.is_expired(&idle, now) {
                taken.expired += 1;
            } else if idle.line.wire.is_silent() {
                return Taken { line: Some(idle.line), ..taken };
            } else {
                taken.ended += 1;
            }
        }
    }

    /// Keeps a line for the next caller, unless it is from before a flush or too old. Whether it was kept.
    pub(super) fn put(&self, line: Line, now: Instant) -> bool {
        let keep = line.epoch == self.epoch() && now < line.retire_at;
        if keep {
            self.lines().push(Idle { line, since: now });
        }
        keep
    }

    /// Closes every idle line, and makes those that are lent unusable for anybody else. Says how many were closed.
    pub(super) fn flush(&self) -> usize {
        self.epoch.fetch_add(1, Ordering::AcqRel);
        let flushed = std::mem::take(&mut *self.lines());
        flushed.len()
    }

    /// Closes what is past its limits. Says how many.
    pub(super) fn sweep(&self, now: Instant) -> usize {
        let mut lines = self.lines();
        let expired: Vec<_> = lines.extract_if(.., |idle| self.is_expired(idle, now)).collect();
        drop(lines);
        expired.len()
    }
}

#[cfg(test)]
#[cfg(interleave)]
mod interleavings {
    use std::sync::Arc;

    use super::*;
    use crate::clock::Clock;

    const LONG: Duration = Duration::from_secs(1_000_000);

    fn line(epoch: u64, now: Instant) -> Line {
        // A stream that `exchange`'s tests call silent.
        Line { wire: Box::new(tokio::io::duplex(1).0), epoch, retire_at: now + LONG, home: None }
    }

    #[test]
    fn after_a_flush_no_line_from_before_it_is_lent_whoever_gives_one_back_meanwhile() {
        let now = Clock::system().unwrap().now();
        loom::model(move || {
            let idle = Arc::new(IdleLines::new(LONG));
            let lent = line(idle.epoch(), now);
            let back = Arc::clone(&idle);
            let giving = loom::thread::spawn(move || back.put(lent, now));
            idle.flush();
            // Whatever the other one does from here on, what it has is from before.
            assert!(idle.take(now, None).line.is_none());
            giving.join().unwrap();
            assert!(idle.take(now, None).line.is_none(), "also not when it comes after the look");
        });
    }

    #[test]
    fn one_line_is_lent_to_one_of_two() {
        let now = Clock::system().unwrap().now();
        loom::model(move || {
            let idle = Arc::new(IdleLines::new(LONG));
            assert!(idle.put(line(idle.epoch(), now), now));
            let other = Arc::clone(&idle);
            let taking = loom::thread::spawn(move || other.take(now, None).line.is_some());
            let here = idle.take(now, None).line.is_some();
            assert!(here != taking.join().unwrap(), "exactly one");
        });
    }
}
