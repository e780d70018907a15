//! Faults: by account number, so that anyone can try them with curl, and by a seeded schedule for tests and load.
//! Decides only which fault a request gets; `server` carries it out.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// Processes, then answers after the delay.
    Late,
    /// Closes without processing or answering.
    CloseBefore,
    /// A reply three bytes short, with a length that matches what is sent; on a fixed-framing port silence follows.
    Short,
    /// `X?A` in the record count, else in the first number or amount field that is no echo.
    Garbage,
    /// The echo of another request.
    WrongEcho,
    /// Processes, then closes before answering.
    CloseAfter,
    /// Processes, then answers one byte every 10 ms.
    Drip,
    /// Processes, sends half the reply, then closes.
    Half,
    /// Holds the request for the delay, and processes it only then.
    LateOriginal,
    /// Reads the request, then neither processes nor answers nor closes.
    Stall,
    /// Answers after a random part of the delay.
    Jitter,
    /// A surplus byte behind the reply, in the same write.
    Surplus,
    /// The reply twice, in the same write.
    Twice,
    /// Answers with the rule's `code` and processes nothing.
    Code,
    /// Answers, then closes the connection, which the gateway keeps as idle.
    IdleClose,
    /// On connecting: closes at once. A listening socket can't refuse single connections, so the connection comes to be first;
    /// for a real refusal stop the simulator.
    RefuseConnect,
    /// On connecting: accepts and never answers.
    HalfOpen,
}

impl Fault {
    /// The fault that an account number (14 digits) stands for.
    #[must_use]
    pub fn by_account(account: &str) -> Option<Self> {
        match account {
            "99999999999999" => Some(Self::Late),
            "88888888888888" => Some(Self::CloseBefore),
            "77777777777777" => Some(Self::Short),
            "66666666666666" => Some(Self::Garbage),
            "55555555555555" => Some(Self::WrongEcho),
            "44444444444444" => Some(Self::CloseAfter),
            "33333333333333" => Some(Self::Drip),
            "22222222222222" => Some(Self::Half),
            "11111111111111" => Some(Self::LateOriginal),
            _ => None,
        }
    }

    fn strikes_on_connect(self) -> bool {
        matches!(self, Self::RefuseConnect | Self::HalfOpen)
    }
}

/// One line of the schedule.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FaultRule {
    /// The message type, such as `0600`; absent means every one. Not looked at by faults that strike on connecting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What goes wrong.
    pub fault: Fault,
    /// From 0 to 1.
    pub probability: f64,
    /// Milliseconds, for the faults that wait; absent means the simulator's own delay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// The answer's code, for [`Fault::Code`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
}

/// The schedule: rules in order, the first that hits decides. The same seed and requests give the same faults.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FaultSchedule {
    /// Seed of the dice.
    pub seed: u64,
    /// The rules.
    pub rules: Vec<FaultRule>,
}

impl FaultSchedule {
    /// Whether every probability is one and every code has four digits.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        let good_code = |code: &String| code.len() == 4 && code.bytes().all(|byte| byte.is_ascii_digit());
        self.rules
            .iter()
            .all(|rule| (0.0..=1.0).contains(&rule.probability) && rule.code.as_ref().is_none_or(good_code))
    }
}

/// A fault that was drawn, with what it needs.
#[derive(Debug, Clone)]
pub(crate) struct Struck {
    pub(crate) fault: Fault,
    pub(crate) delay: Duration,
    pub(crate) code: Option<String>,
}

/// The schedule with its dice.
#[derive(Debug)]
pub(crate) struct Dice {
    schedule: FaultSchedule,
    random: fastrand::Rng,
    delay: Duration,
}

impl Dice {
    pub(crate) fn new(schedule: FaultSchedule, delay: Duration) -> Self {
        Self { random: fastrand::Rng::with_seed(schedule.seed), schedule, delay }
    }

    pub(crate) fn schedule(&self) -> &FaultSchedule {
        &self.schedule
    }

    pub(crate) fn replace(&mut self, schedule: FaultSchedule) {
        *self = Self::new(schedule, self.delay);
    }

    /// The fault of a request: its account's, else what the dice say.
    pub(crate) fn for_request(&mut self, message: &str, account: &str) -> Option<Struck> {
        if let Some(fault) = Fault::by_account(account) {
            return Some(Struck { fault, delay: self.delay, code: None });
        }
        self.roll(|rule| !rule.fault.strikes_on_connect() && rule.message.as_deref().is_none_or(|only| only == message))
    }

    /// The fault of a new connection.
    pub(crate) fn for_connection(&mut self) -> Option<Struck> {
        self.roll(|rule| rule.fault.strikes_on_connect())
    }

    fn roll(&mut self, applies: impl Fn(&FaultRule) -> bool) -> Option<Struck> {
        let Self { schedule, random, delay } = self;
        let rule = schedule.rules.iter().find(|rule| applies(rule) && random.f64() < rule.probability)?;
        let mut wait = rule.delay_ms.map_or(*delay, Duration::from_millis);
        if rule.fault == Fault::Jitter {
            wait = wait.mul_f64(random.f64());
        }
        Some(Struck { fault: rule.fault, delay: wait, code: rule.code.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_faults() {
        let rule = FaultRule {
            message: Some("0600".into()),
            fault: Fault::Late,
            probability: 0.3,
            delay_ms: Some(5),
            code: None,
        };
        let schedule = FaultSchedule { seed: 7, rules: vec![rule] };
        let draw = || {
            let mut dice = Dice::new(schedule.clone(), Duration::from_secs(5));
            (0..200).map(|_| dice.for_request("0600", "1").is_some()).collect::<Vec<_>>()
        };
        let faults = draw();
        assert_eq!(faults, draw());
        let hits = faults.iter().filter(|hit| **hit).count();
        assert!((30..90).contains(&hits), "{hits} of 200 at 0.3");
        let mut dice = Dice::new(schedule, Duration::from_secs(5));
        assert!((0..200).all(|_| dice.for_request("0200", "1").is_none()));
    }
}
