//! Whether a store is out: one verdict for the whole process. Pure.
//!
//! A single failure is an accident, and callers go on asking. When nothing has succeeded for a while after the first failure,
//! the store is out: everybody is refused at once, and only the task that connects asks.

use std::time::Duration;

use crate::clock::Instant;

#[derive(Debug, Default)]
pub(super) struct Outage {
    since: Option<Instant>,
}

impl Outage {
    /// A question failed. A later failure does not move the first.
    pub(super) fn failed(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// A question was answered; says whether there had been failures.
    pub(super) fn succeeded(&mut self) -> bool {
        self.since.take().is_some()
    }

    /// Whether nothing has succeeded since a failure.
    pub(super) fn is_suspected(&self) -> bool {
        self.since.is_some()
    }

    /// Whether everybody is to be refused.
    pub(super) fn is_out(&self, now: Instant, after: Duration) -> bool {
        self.since.is_some_and(|since| now >= since + after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_out_when_nothing_has_succeeded_for_a_while_since_the_first_failure() {
        let now = crate::clock::Clock::system().unwrap().now();
        let at = |seconds| now + Duration::from_secs(seconds);
        let after = Duration::from_secs(2);
        let mut outage = Outage::default();
        assert!(!outage.is_out(at(99), after));
        outage.failed(at(10));
        outage.failed(at(11));
        assert!(!outage.is_out(at(11), after) && outage.is_suspected());
        assert!(outage.is_out(at(12), after), "counted from the first failure");
        assert!(outage.succeeded());
        assert!(!outage.is_out(at(99), after) && !outage.is_suspected());
        assert!(!outage.succeeded());
    }
}
