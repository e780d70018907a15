//! Measures what turning a budget on would mean on this network: on a budget of its own, so that the institution's is not
//! touched, and nothing is sent.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::admin::Admin;
use super::pacer::Pacer;
use super::question::Verdict;
use super::slots::SlotStore;
use super::{ClassCounts, ClassRule, Settings};
use crate::clock::{Clock, Deadline};

/// How long connecting to the institution may take.
const CONNECT: Duration = Duration::from_secs(5);

/// A median, a 99th percentile and a maximum.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the documentation")]
pub struct Spread {
    pub least: Duration,
    pub p50: Duration,
    pub p99: Duration,
    pub most: Duration,
}

impl Spread {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort();
        let at = |nth: usize| times.get(nth).copied().unwrap_or_default();
        let last = times.len().saturating_sub(1);
        Self { least: at(0), p50: at(times.len() / 2), p99: at(times.len() * 99 / 100), most: at(last) }
    }
}

/// What was measured.
#[derive(Debug, Clone, Copy, Default)]
pub struct Measured {
    /// A question about a slot and its answer.
    pub round_trip: Spread,
    /// Share of the answers that took longer than `rtt_max`.
    pub discarded: f64,
    /// Slots a second that a full queue got.
    pub rate: f64,
    /// Questions that the database was asked for each slot.
    pub questions_per_slot: f64,
    /// Transactions a second that the database committed meanwhile.
    pub commits_per_second: f64,
    /// How many waited at once, and how long it took until none did.
    pub backlog: (u32, Duration),
    /// Connecting to the institution; none when it was not asked.
    pub connect: Option<Spread>,
}

/// Measures over `trips` questions and a backlog of `backlog` calls; connects to the institution `connects` times, one after the
/// other, and closes at once.
///
/// # Errors
/// A sentence on what could not be done.
pub async fn measure(
    (store, admin, clock): (&SlotStore, &mut Admin, &Clock),
    settings: &Settings,
    (trips, backlog): (u32, u32),
    host: Option<(&str, u32)>,
) -> Result<Measured, String> {
    let failed = |error: sqlx::Error| format!("the database refuses: {error}");
    let own = |limit| Settings {
        key: format!("measure:{:016x}", fastrand::u64(..)),
        limit,
        classes: vec![ClassRule { name: "measure".to_owned(), priority: 1, floor_percent: 0 }],
        ..settings.clone()
    };
    let (fast, paced) = (own(100_000), own(settings.limit));
    admin.set(&fast).await.map_err(failed)?;
    admin.set(&paced).await.map_err(failed)?;
    let measured = measure_on((store, admin, clock), (&fast, &paced), (trips, backlog), host).await;
    admin.remove(&fast.key).await.map_err(failed)?;
    admin.remove(&paced.key).await.map_err(failed)?;
    measured
}

async fn measure_on(
    (store, admin, clock): (&SlotStore, &mut Admin, &Clock),
    (fast, paced): (&Settings, &Settings),
    (trips, backlog): (u32, u32),
    host: Option<(&str, u32)>,
) -> Result<Measured, String> {
    let mut measured = Measured::default();
    let claimant = store.claimant(&fast.key, "measure");
    let mut times = Vec::new();
    for _ in 0..trips {
        let until = clock.now() + Duration::from_secs(5);
        let answered = store.acquire(&claimant, until, false).await.map_err(|error| error.to_string())?;
        times.push(answered.trip.took());
        if let Verdict::Later(wait) = answered.verdict {
            tokio::time::sleep(wait).await;
        }
    }
    let slow = times.iter().filter(|took| **took > fast.rtt_max).count();
    measured.discarded = share(slow, times.len());
    measured.round_trip = Spread::of(times);

    let (before, began) = (admin.committed().await.map_err(|error| error.to_string())?, clock.now());
    let counts = Arc::new(ClassCounts::default());
    let pacer = Pacer::new(store.clone(), (&paced.key, "measure"), (paced.window, paced.rtt_max), counts);
    let mut waiting = JoinSet::new();
    let far = Deadline::after(began, paced.interval() * (backlog + 1) * 4 + Duration::from_secs(10));
    for _ in 0..backlog {
        let pacer = Arc::clone(&pacer);
        waiting.spawn(async move { pacer.enter(far.at()).await.ok()?.slot().await.ok() });
    }
    let served = waiting.join_all().await.into_iter().flatten().count();
    let took = clock.now().saturating_duration_since(began);
    if served < usize::try_from(backlog).unwrap_or(usize::MAX) {
        return Err(format!("only {served} of {backlog} waiting calls got a slot"));
    }
    // The statistics of the server come with a delay of up to a second.
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    let committed = admin.committed().await.map_err(|error| error.to_string())? - before;
    measured.rate = f64::from(backlog) / took.as_secs_f64();
    measured.questions_per_slot = to_f64(pacer.questions()) / f64::from(backlog.max(1));
    measured.commits_per_second = to_f64(u64::try_from(committed).unwrap_or_default()) / took.as_secs_f64();
    measured.backlog = (backlog, took);
    if let Some((address, connects)) = host {
        measured.connect = Some(connect_times(address, connects, clock).await?);
    }
    Ok(measured)
}

async fn connect_times(address: &str, connects: u32, clock: &Clock) -> Result<Spread, String> {
    let mut times = Vec::new();
    for _ in 0..connects {
        let began = clock.now();
        match tokio::time::timeout(CONNECT, TcpStream::connect(address)).await {
            Ok(Ok(_)) => times.push(clock.now().saturating_duration_since(began)),
            _ => return Err("the institution cannot be reached".to_owned()),
        }
    }
    Ok(Spread::of(times))
}

fn share(part: usize, whole: usize) -> f64 {
    let wide = |count: usize| to_f64(u64::try_from(count).unwrap_or(u64::MAX));
    wide(part) / wide(whole.max(1))
}

#[expect(clippy::cast_precision_loss, reason = "figures for people; counts this large do not occur")]
fn to_f64(count: u64) -> f64 {
    count as f64
}
