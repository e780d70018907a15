//! The time contract between a slot and its send. Pure.
//!
//! The database handled the question at some moment between asking and answering, by the caller's monotonic clock. Its slot lies
//! `wait` behind that moment. So whoever sends no earlier than `answered + wait` and no later than `asked + wait + window`
//! sends inside the slot's window, whatever the two clocks say.

use std::time::Duration;

use crate::clock::Instant;

/// When a question was asked and when its answer was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RoundTrip {
    pub(super) asked: Instant,
    pub(super) answered: Instant,
}

/// A slot, as the times between which its one frame may leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Promise {
    pub(super) earliest: Instant,
    pub(super) latest: Instant,
}

impl RoundTrip {
    pub(super) fn took(self) -> Duration {
        self.answered.saturating_duration_since(self.asked)
    }

    /// The promise that an answer makes; none when it took longer than `rtt_max`, or so long that no time is left to send.
    pub(super) fn promise(self, wait: Duration, window: Duration, rtt_max: Duration) -> Option<Promise> {
        let promise = Promise { earliest: self.answered + wait, latest: self.asked + wait + window };
        (self.took() <= rtt_max && promise.earliest < promise.latest).then_some(promise)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    const MS: Duration = Duration::from_millis(1);

    fn round_trip(took: u32) -> RoundTrip {
        let asked = Clock::system().unwrap().now();
        RoundTrip { asked, answered: asked + took * MS }
    }

    #[test]
    fn whenever_the_database_looked_the_send_is_inside_the_window_behind_the_slot() {
        for took in 0..=50 {
            let trip = round_trip(took);
            let promise = trip.promise(30 * MS, 100 * MS, 50 * MS).unwrap();
            for looked in 0..=took {
                let slot = trip.asked + looked * MS + 30 * MS;
                assert!(promise.earliest >= slot && promise.latest <= slot + 100 * MS, "{took} {looked}");
            }
            assert_eq!(promise.latest - promise.earliest, 100 * MS - took * MS);
        }
    }

    #[test]
    fn an_answer_that_took_too_long_promises_nothing() {
        assert!(round_trip(50).promise(MS, 100 * MS, 50 * MS).is_some());
        assert!(round_trip(51).promise(MS, 100 * MS, 50 * MS).is_none());
        assert!(round_trip(20).promise(MS, 20 * MS, 50 * MS).is_none(), "no time is left to send");
    }
}
