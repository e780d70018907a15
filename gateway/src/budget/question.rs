//! One question to the database: who asks, what it answers, and how long that took.

use std::sync::Arc;
use std::time::Duration;

use sqlx::SqlStr;
use sqlx::postgres::PgConnection;

use super::promise::RoundTrip;
use crate::clock::Clock;

/// Who asks for a slot.
#[derive(Debug, Clone)]
pub(super) struct Claimant {
    pub(super) key: Arc<str>,
    pub(super) class: Arc<str>,
    /// One a process.
    pub(super) caller: Arc<str>,
}

/// What the database says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// A slot, this far from the moment of asking.
    Granted {
        wait: Duration,
        window: Duration,
    },
    /// Not now: ask again after this.
    Later(Duration),
    /// The slot would come later than the caller waits.
    Over(Duration),
    NoBudget,
    NoClass,
}

/// An answer and when it came.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answered {
    pub(super) verdict: Verdict,
    pub(super) trip: RoundTrip,
}

/// The store can't be asked, or its answer is not known. Nothing may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the call budget's database cannot be asked")]
pub(super) struct Unreachable;

const ACQUIRE: &str = "SELECT verdict, wait_us, window_us FROM call_budget_acquire($1, $2, $3, $4, $5)";

impl Claimant {
    /// Nobody: what it asks for is not there, which the database can only say if everything is.
    pub(super) fn nobody() -> Self {
        Self { key: "".into(), class: "".into(), caller: "".into() }
    }

    /// Asks over a connection, for a caller who waits so long at most and behind whom others wait or not. An answer that does
    /// not read is none.
    pub(super) async fn ask(
        &self,
        connection: &mut PgConnection,
        (max_wait, more): (Duration, bool),
        clock: &Clock,
    ) -> Result<Option<Answered>, sqlx::Error> {
        let asked = clock.now();
        let query = sqlx::query_as::<_, (String, i64, i64)>(SqlStr::from_static(ACQUIRE))
            .bind(&*self.key)
            .bind(&*self.class)
            .bind(&*self.caller)
            .bind(i64::try_from(max_wait.as_micros()).unwrap_or(i64::MAX))
            .bind(more);
        let row = query.fetch_one(connection).await?;
        let trip = RoundTrip { asked, answered: clock.now() };
        Ok(understand(&row).map(|verdict| Answered { verdict, trip }))
    }
}

fn understand((verdict, wait, window): &(String, i64, i64)) -> Option<Verdict> {
    let time = |micros: i64| u64::try_from(micros).ok().map(Duration::from_micros);
    let (wait, window) = (time(*wait)?, time(*window)?);
    Some(match verdict.as_str() {
        "GRANTED" => Verdict::Granted { wait, window },
        "LATER" => Verdict::Later(wait),
        "OVER" => Verdict::Over(wait),
        "NO_BUDGET" => Verdict::NoBudget,
        "NO_CLASS" => Verdict::NoClass,
        _ => return None,
    })
}
