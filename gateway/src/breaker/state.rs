//! The breaker's machine: pure, takes `now`, knows no lock. Every transition raises the generation and clears the
//! counters.

use std::time::Duration;

use jiff::Timestamp;

use super::{Outcome, Rejected, Stats};
use crate::clock::Instant;

/// The rules of one breaker.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Failures in a row that open it.
    pub failures: u32,
    /// How long it stays open at first.
    pub open: Duration,
    /// The most that doubling makes of that.
    pub open_max: Duration,
    /// Probes at a time while half open.
    pub probes_max: u32,
    /// A probe without a result for this long is given up.
    pub probe_timeout: Duration,
}

/// Where the machine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Everything passes.
    Closed,
    /// Nothing passes.
    Open,
    /// A few probes pass.
    HalfOpen,
}

impl State {
    /// The word that operators see.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Closed => "CLOSED",
            Self::Open => "OPEN",
            Self::HalfOpen => "HALF_OPEN",
        }
    }
}

#[derive(Debug)]
enum Phase {
    Closed { failures: u32 },
    Open { until: Instant },
    HalfOpen { in_flight: u32, last_probe: Instant },
}

#[derive(Debug)]
pub(super) struct Machine {
    settings: Settings,
    phase: Phase,
    generation: u64,
    /// How long the next opening lasts.
    next_open: Duration,
    opened_total: u64,
    rejected_total: u64,
    stale_total: u64,
}

impl Machine {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            phase: Phase::Closed { failures: 0 },
            generation: 0,
            next_open: settings.open,
            opened_total: 0,
            rejected_total: 0,
            stale_total: 0,
        }
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    pub(super) fn state(&self) -> State {
        match self.phase {
            Phase::Closed { .. } => State::Closed,
            Phase::Open { .. } => State::Open,
            Phase::HalfOpen { .. } => State::HalfOpen,
        }
    }

    /// Whether it is open and its wait is not over.
    pub(super) fn is_waiting(&self, now: Instant) -> bool {
        matches!(self.phase, Phase::Open { until } if now < until)
    }

    /// The generation of the permit, or a rejection. The call that notices that the wait is over becomes the first
    /// probe, here, under the caller's one lock: nobody can slip in between.
    pub(super) fn admit(&mut self, now: Instant) -> Result<u64, Rejected> {
        if let Phase::Open { until } = self.phase
            && now >= until
        {
            self.enter(Phase::HalfOpen { in_flight: 0, last_probe: now });
        }
        let Settings { probes_max, probe_timeout, .. } = self.settings;
        if let Phase::HalfOpen { in_flight, last_probe } = self.phase
            && in_flight >= probes_max
            && now >= last_probe + probe_timeout
        {
            // A probe that never ended: the raised generation makes its result stale, and its place free.
            self.enter(Phase::HalfOpen { in_flight: 0, last_probe: now });
        }
        match &mut self.phase {
            Phase::Closed { .. } => Ok(self.generation),
            Phase::HalfOpen { in_flight, last_probe } if *in_flight < probes_max => {
                *in_flight += 1;
                *last_probe = now;
                Ok(self.generation)
            }
            Phase::HalfOpen { last_probe, .. } => {
                let retry_after = (*last_probe + probe_timeout).saturating_duration_since(now);
                self.rejected_total += 1;
                Err(Rejected { retry_after })
            }
            Phase::Open { until } => {
                let retry_after = until.saturating_duration_since(now);
                self.rejected_total += 1;
                Err(Rejected { retry_after })
            }
        }
    }

    /// Takes the result of a permit. `jitter` is from 0 to 1 and lengthens an opening by up to a tenth.
    pub(super) fn settle(&mut self, now: Instant, generation: u64, outcome: Outcome, jitter: f64) {
        if generation != self.generation {
            self.stale_total += 1;
            return;
        }
        match (&mut self.phase, outcome) {
            (Phase::Closed { .. }, Outcome::Aborted) => {}
            (Phase::Closed { failures }, Outcome::Success) => *failures = 0,
            (Phase::Closed { failures }, Outcome::Failure) => {
                *failures += 1;
                if *failures >= self.settings.failures {
                    self.open(now, jitter);
                }
            }
            (Phase::HalfOpen { in_flight, .. }, Outcome::Aborted) => *in_flight = in_flight.saturating_sub(1),
            (Phase::HalfOpen { .. }, Outcome::Success) => {
                self.next_open = self.settings.open;
                self.enter(Phase::Closed { failures: 0 });
            }
            (Phase::HalfOpen { .. }, Outcome::Failure) => self.open(now, jitter),
            // No permit is given while open, so one of this generation can't be: counted, like all that is late.
            (Phase::Open { .. }, _) => self.stale_total += 1,
        }
    }

    pub(super) fn stats(&self, now: Instant, since: Timestamp) -> Stats {
        let (consecutive_failures, probes_in_flight) = match self.phase {
            Phase::Closed { failures } => (failures, 0),
            Phase::HalfOpen { in_flight, .. } => (0, in_flight),
            Phase::Open { .. } => (0, 0),
        };
        // The wait is noticed by the next call; to an operator who looks after it, the circuit is ready to probe.
        let state = match self.phase {
            Phase::Open { until } if now >= until => State::HalfOpen,
            _ => self.state(),
        };
        Stats {
            state,
            generation: self.generation,
            consecutive_failures,
            opened_total: self.opened_total,
            rejected_total: self.rejected_total,
            stale_results_total: self.stale_total,
            probes_in_flight,
            since,
        }
    }

    fn open(&mut self, now: Instant, jitter: f64) {
        let wait = self.next_open.mul_f64(1.0 + jitter.clamp(0.0, 1.0) / 10.0);
        self.next_open = (self.next_open * 2).min(self.settings.open_max);
        self.opened_total += 1;
        self.enter(Phase::Open { until: now + wait });
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.generation += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    const OPEN: Duration = Duration::from_secs(5);

    fn machine() -> (Machine, Instant) {
        let settings = Settings {
            failures: 3,
            open: OPEN,
            open_max: Duration::from_secs(12),
            probes_max: 1,
            probe_timeout: Duration::from_secs(4),
        };
        (Machine::new(settings), Clock::system().unwrap().now())
    }

    fn fail(machine: &mut Machine, now: Instant, times: u32) {
        for _ in 0..times {
            let generation = machine.admit(now).unwrap();
            machine.settle(now, generation, Outcome::Failure, 0.0);
        }
    }

    #[tokio::test]
    async fn failures_in_a_row_open_it_and_a_success_between_starts_anew() {
        let (mut machine, now) = machine();
        fail(&mut machine, now, 2);
        let generation = machine.admit(now).unwrap();
        machine.settle(now, generation, Outcome::Success, 0.0);
        fail(&mut machine, now, 2);
        assert_eq!(machine.state(), State::Closed);
        fail(&mut machine, now, 1);
        assert_eq!(machine.state(), State::Open);
        assert_eq!(machine.admit(now), Err(Rejected { retry_after: OPEN }));
    }

    #[tokio::test]
    async fn aborted_attempts_never_open_it() {
        let (mut machine, now) = machine();
        for _ in 0..1_000 {
            let generation = machine.admit(now).unwrap();
            machine.settle(now, generation, Outcome::Aborted, 0.0);
        }
        assert_eq!((machine.state(), machine.opened_total), (State::Closed, 0));
    }

    #[tokio::test]
    async fn a_late_success_does_not_close_a_circuit_that_opened_since() {
        let (mut machine, now) = machine();
        let slow = machine.admit(now).unwrap();
        fail(&mut machine, now, 3);
        let probing = now + OPEN;
        let _probe = machine.admit(probing).unwrap();
        machine.settle(probing, slow, Outcome::Success, 0.0);
        assert_eq!((machine.state(), machine.stale_total), (State::HalfOpen, 1));
    }

    #[tokio::test]
    async fn a_late_failure_does_not_open_a_circuit_that_closed_since() {
        let (mut machine, now) = machine();
        let slow: Vec<_> = (0..10).map(|_| machine.admit(now).unwrap()).collect();
        fail(&mut machine, now, 3);
        let probe = machine.admit(now + OPEN).unwrap();
        machine.settle(now + OPEN, probe, Outcome::Success, 0.0);
        for generation in slow {
            machine.settle(now + OPEN, generation, Outcome::Failure, 0.0);
        }
        assert_eq!((machine.state(), machine.stale_total), (State::Closed, 10));
    }

    #[tokio::test]
    async fn a_failed_probe_doubles_the_wait_to_a_cap_and_a_good_one_resets_it() {
        let (mut machine, mut now) = machine();
        fail(&mut machine, now, 3);
        for wait in [5, 10, 12, 12] {
            assert_eq!(machine.admit(now), Err(Rejected { retry_after: Duration::from_secs(wait) }));
            now += Duration::from_secs(wait);
            let probe = machine.admit(now).unwrap();
            machine.settle(now, probe, Outcome::Failure, 0.0);
        }
        now += Duration::from_secs(12);
        let probe = machine.admit(now).unwrap();
        machine.settle(now, probe, Outcome::Success, 0.0);
        fail(&mut machine, now, 3);
        assert_eq!(machine.admit(now), Err(Rejected { retry_after: OPEN }));
    }

    #[tokio::test]
    async fn a_probe_that_never_ends_is_given_up_and_its_late_result_is_stale() {
        let (mut machine, now) = machine();
        fail(&mut machine, now, 3);
        let probing = now + OPEN;
        let lost = machine.admit(probing).unwrap();
        assert!(machine.admit(probing + Duration::from_secs(3)).is_err());
        let later = probing + Duration::from_secs(4);
        let fresh = machine.admit(later).unwrap();
        machine.settle(later, lost, Outcome::Failure, 0.0);
        assert_eq!((machine.state(), machine.stale_total), (State::HalfOpen, 1));
        machine.settle(later, fresh, Outcome::Success, 0.0);
        assert_eq!(machine.state(), State::Closed);
    }

    #[tokio::test]
    async fn every_transition_raises_the_generation() {
        let (mut machine, now) = machine();
        fail(&mut machine, now, 3);
        assert_eq!(machine.generation(), 1);
        let probe = machine.admit(now + OPEN).unwrap();
        assert_eq!(probe, 2);
        machine.settle(now + OPEN, probe, Outcome::Success, 0.0);
        assert_eq!(machine.generation(), 3);
    }
}
