//! The circuit breaker (서킷브레이커) of one institution: a guard around the pure machine in `state`.
//!
//! A [`Permit`] holds the generation in which it was given. A result from another generation changes nothing but a
//! counter, so a late answer can neither close a circuit that has opened since nor open one that has closed. Dropping a
//! permit is neutral: it gives a probe's place back and decides nothing.

mod state;

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use jiff::Timestamp;

use crate::clock::Clock;
use crate::lock::{Mutex, MutexGuard};
use state::Machine;
pub use state::{Settings, State};

/// How an attempt ended, for the breaker. There is no catch-all that counts as failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The host answered, whatever it said.
    Success,
    /// The host's own fault.
    Failure,
    /// Not the host's doing: our pool, our deadline, our caller.
    Aborted,
}

/// The circuit is open, or all probe places are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rejected {
    /// When it is worth asking again.
    pub retry_after: Duration,
}

/// The breaker of one institution.
#[derive(Debug)]
pub struct Breaker {
    machine: Mutex<Machine>,
    since: Mutex<Timestamp>,
    clock: Clock,
}

/// What operators see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stats {
    /// The state.
    pub state: State,
    /// Raised by every transition.
    pub generation: u64,
    /// Failures in a row since the last success.
    pub consecutive_failures: u32,
    /// Times that it opened.
    pub opened_total: u64,
    /// Calls that it turned away.
    pub rejected_total: u64,
    /// Results from an older generation.
    pub stale_results_total: u64,
    /// Probes without a result.
    pub probes_in_flight: u32,
    /// When the state began.
    pub since: Timestamp,
}

impl Breaker {
    /// A closed breaker.
    #[must_use]
    pub fn new(settings: Settings, clock: Clock) -> Arc<Self> {
        let since = Mutex::new(clock.wall());
        Arc::new(Self { machine: Mutex::new(Machine::new(settings)), since, clock })
    }

    /// Lets one attempt through, or turns it away.
    ///
    /// # Errors
    /// [`Rejected`] with the time after which to ask again.
    pub fn admit(self: &Arc<Self>) -> Result<Permit, Rejected> {
        let now = self.clock.now();
        let mut machine = self.machine();
        let before = machine.generation();
        let admitted = machine.admit(now);
        self.note_transition(before, &machine);
        drop(machine);
        admitted.map(|generation| Permit { breaker: Arc::clone(self), generation, settled: false })
    }

    /// Whether a call would be turned away for certain: the circuit is open, and its wait is not over.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        let now = self.clock.now();
        self.machine().is_waiting(now)
    }

    /// What operators see.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let now = self.clock.now();
        let since = *self.since.lock().unwrap_or_else(PoisonError::into_inner);
        self.machine().stats(now, since)
    }

    fn settle(&self, generation: u64, outcome: Outcome) {
        let now = self.clock.now();
        let mut machine = self.machine();
        let before = machine.generation();
        // Jitter of up to a tenth keeps several gateways from probing in step.
        machine.settle(now, generation, outcome, fastrand::f64());
        self.note_transition(before, &machine);
    }

    fn note_transition(&self, before: u64, machine: &Machine) {
        if machine.generation() != before {
            *self.since.lock().unwrap_or_else(PoisonError::into_inner) = self.clock.wall();
            tracing::warn!(state = machine.state().name(), generation = machine.generation(), "circuit changed");
        }
    }

    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Leave to make one attempt. Dropping it is neutral.
#[must_use = "a permit that is dropped unsettled counts as aborted"]
#[derive(Debug)]
pub struct Permit {
    breaker: Arc<Breaker>,
    generation: u64,
    settled: bool,
}

impl Permit {
    /// Tells how the attempt ended.
    pub fn settle(mut self, outcome: Outcome) {
        self.settled = true;
        self.breaker.settle(self.generation, outcome);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if !self.settled {
            self.breaker.settle(self.generation, Outcome::Aborted);
        }
    }
}

#[cfg(test)]
#[cfg(interleave)]
mod interleavings {
    use super::*;

    fn settings(failures: u32) -> Settings {
        Settings {
            failures,
            // Over at once, and never: so time decides nothing here.
            open: Duration::ZERO,
            open_max: Duration::ZERO,
            probes_max: 1,
            probe_timeout: Duration::from_secs(1_000_000),
        }
    }

    fn half_open(clock: &Clock) -> Arc<Breaker> {
        let breaker = Breaker::new(settings(1), clock.clone());
        breaker.admit().unwrap().settle(Outcome::Failure);
        breaker
    }

    #[test]
    fn however_threads_meet_one_probe_gets_through() {
        // Made outside: a model's threads have small stacks.
        let clock = Clock::system().unwrap();
        loom::model(move || {
            let breaker = half_open(&clock);
            let other = Arc::clone(&breaker);
            let meeting = loom::thread::spawn(move || other.admit().ok());
            let here = breaker.admit().ok();
            let there = meeting.join().unwrap();
            assert!(here.is_some() != there.is_some(), "exactly one");
        });
    }

    #[test]
    fn a_result_from_before_an_opening_changes_nothing_whenever_it_comes() {
        // Made outside: a model's threads have small stacks.
        let clock = Clock::system().unwrap();
        loom::model(move || {
            let breaker = Breaker::new(settings(1), clock.clone());
            let (old, opening) = (breaker.admit().unwrap(), breaker.admit().unwrap());
            let late = loom::thread::spawn(move || old.settle(Outcome::Success));
            opening.settle(Outcome::Failure);
            // The wait is over at once: this is the probe, and what came before it decides nothing any more.
            let probe = breaker.admit().unwrap();
            late.join().unwrap();
            let stats = breaker.stats();
            assert_eq!((stats.state, stats.probes_in_flight), (State::HalfOpen, 1), "only its probe closes it");
            probe.settle(Outcome::Success);
            assert_eq!(breaker.stats().state, State::Closed);
        });
    }

    #[test]
    fn a_probes_place_is_free_again_whether_it_is_settled_or_dropped() {
        // Made outside: a model's threads have small stacks.
        let clock = Clock::system().unwrap();
        loom::model(move || {
            let breaker = half_open(&clock);
            let probe = breaker.admit().unwrap();
            let other = Arc::clone(&breaker);
            let meeting = loom::thread::spawn(move || drop(other.admit()));
            drop(probe);
            meeting.join().unwrap();
            assert_eq!(breaker.stats().probes_in_flight, 0);
            assert!(breaker.admit().is_ok());
        });
    }
}

#[cfg(test)]
#[cfg(not(interleave))]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings {
            failures: 1,
            open: Duration::from_secs(5),
            open_max: Duration::from_secs(60),
            probes_max: 2,
            probe_timeout: Duration::from_secs(10),
        }
    }

    async fn half_open() -> Arc<Breaker> {
        let breaker = Breaker::new(settings(), Clock::system().unwrap());
        breaker.admit().unwrap().settle(Outcome::Failure);
        assert!(breaker.admit().is_err());
        tokio::time::advance(Duration::from_secs(6)).await;
        breaker
    }

    #[tokio::test(start_paused = true)]
    async fn of_two_hundred_tasks_when_the_wait_ends_at_most_probes_max_get_through() {
        let breaker = half_open().await;
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..200 {
            let breaker = Arc::clone(&breaker);
            tasks.spawn(async move { breaker.admit().ok() });
        }
        let permits: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
        assert_eq!(permits.len(), 2);
        assert_eq!(breaker.stats().probes_in_flight, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_probe_gives_its_place_back_and_decides_nothing() {
        let breaker = half_open().await;
        let (first, _second) = (breaker.admit().unwrap(), breaker.admit().unwrap());
        assert!(breaker.admit().is_err());
        drop(first);
        assert_eq!(breaker.stats().state, State::HalfOpen);
        assert!(breaker.admit().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_ends_by_our_own_jam_gives_its_place_back() {
        let breaker = half_open().await;
        breaker.admit().unwrap().settle(Outcome::Aborted);
        let stats = breaker.stats();
        assert_eq!((stats.state, stats.probes_in_flight, stats.opened_total), (State::HalfOpen, 0, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_panics_gives_its_place_back() {
        let breaker = half_open().await;
        let held = Arc::clone(&breaker);
        let task = tokio::spawn(async move {
            let _permit = held.admit().unwrap();
            panic!("the attempt dies");
        });
        assert!(task.await.unwrap_err().is_panic());
        assert_eq!(breaker.stats().probes_in_flight, 0);
    }
}
