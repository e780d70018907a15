//! What is counted at a gate, by class.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Denied;

/// What is counted for one class.
#[derive(Debug, Default)]
#[expect(missing_docs, reason = "the names are the documentation; docs/OPERATIONS.md explains each")]
pub struct ClassCounts {
    pub granted: AtomicU64,
    pub denied: AtomicU64,
    pub unavailable: AtomicU64,
    /// Passed without being counted, because Redis did not answer.
    pub degraded: AtomicU64,
    /// Slots whose answer took too long.
    pub discarded_slow: AtomicU64,
    /// Slots that could not be used in time.
    pub discarded_late: AtomicU64,
    /// Microseconds that granted calls waited in all.
    pub waited_us: AtomicU64,
    /// Calls that wait at the moment.
    pub waiting: AtomicU64,
}

pub(super) fn raise(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl ClassCounts {
    /// Counts a denial, of whatever kind.
    pub(super) fn note<T>(&self, result: Result<T, Denied>) -> Result<T, Denied> {
        match &result {
            Err(Denied::Exhausted(_)) => raise(&self.denied),
            Err(Denied::Unavailable) => raise(&self.unavailable),
            Ok(_) => {}
        }
        result
    }
}

/// Somebody waits at the gate.
pub(super) struct Waiting(Arc<ClassCounts>);

impl Waiting {
    pub(super) fn begin(counts: &Arc<ClassCounts>) -> Self {
        raise(&counts.waiting);
        Self(Arc::clone(counts))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
