//! One class's way to its send slots: a queue, first come first served, and one transaction past it.
//!
//! Whoever stands at the head holds its place until its first write is polled, or until it gives up; what it does there (a permit,
//! a connection, an intent) is held by one transaction a class at most.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Denied;
use super::counts::{ClassCounts, raise};
use super::promise::Promise;
use super::question::{Claimant, Unreachable, Verdict};
use super::slots::SlotStore;
use crate::clock::{Deadline, Instant};

/// The queue of one class of one institution in this process.
#[derive(Debug)]
pub(super) struct Pacer {
    store: SlotStore,
    claimant: Claimant,
    rtt_max: Duration,
    /// What the configuration says of the window; the database's is taken when it is shorter.
    window: Duration,
    turn: Arc<Semaphore>,
    counts: Arc<ClassCounts>,
    /// Whether a budget or class that the database does not know was told of already.
    told: AtomicBool,
    questions: AtomicU64,
    /// Who waits for the head of the queue.
    queued: AtomicU64,
}

/// The head of a class's queue.
#[derive(Debug)]
pub(super) struct Turn {
    pacer: Arc<Pacer>,
    until: Instant,
    _place: OwnedSemaphorePermit,
}

impl Pacer {
    pub(super) fn new(
        store: SlotStore,
        (key, class): (&str, &str),
        (window, rtt_max): (Duration, Duration),
        counts: Arc<ClassCounts>,
    ) -> Arc<Self> {
        let claimant = store.claimant(key, class);
        let (turn, told) = (Arc::new(Semaphore::new(1)), AtomicBool::new(false));
        let (questions, queued) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Self { store, claimant, rtt_max, window, turn, counts, told, questions, queued })
    }

    /// How often the database was asked.
    pub(super) fn questions(&self) -> u64 {
        self.questions.load(Ordering::Relaxed)
    }

    /// Waits for the head of the queue.
    pub(super) async fn enter(self: &Arc<Self>, until: Instant) -> Result<Turn, Denied> {
        if self.store.is_out() {
            return Err(Denied::Unavailable);
        }
        let queued = Queued::behind(self);
        let place = tokio::time::timeout_at(until, Arc::clone(&self.turn).acquire_owned()).await;
        drop(queued);
        match place {
            Ok(Ok(place)) => Ok(Turn { pacer: Arc::clone(self), until, _place: place }),
            _ if self.store.is_out() => Err(Denied::Unavailable),
            _ => Err(Denied::Exhausted(None)),
        }
    }
}

/// Stands in the queue.
struct Queued<'a>(&'a AtomicU64);

impl<'a> Queued<'a> {
    fn behind(pacer: &'a Pacer) -> Self {
        raise(&pacer.queued);
        Self(&pacer.queued)
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Turn {
    /// Waits for a slot, until it may be used. What can't be used any more is thrown away, never given back.
    pub(super) async fn slot(&mut self) -> Result<Promise, Denied> {
        let pacer = &self.pacer;
        let clock = pacer.store.clock();
        loop {
            if clock.now() >= self.until {
                return Err(Denied::Exhausted(None));
            }
            raise(&pacer.questions);
            let more = pacer.queued.load(Ordering::Relaxed) > 0;
            let answered = match pacer.store.acquire(&pacer.claimant, self.until, more).await {
                Ok(answered) => answered,
                // Its own time ran out while it asked, and nothing is wrong with the store.
                Err(Unreachable) if clock.now() >= self.until && !pacer.store.is_suspected() => {
                    return Err(Denied::Exhausted(None));
                }
                Err(Unreachable) => return Err(Denied::Unavailable),
            };
            match answered.verdict {
                Verdict::Granted { wait, window } => {
                    let window = window.min(pacer.window);
                    let Some(promise) = answered.trip.promise(wait, window, pacer.rtt_max) else {
                        raise(&pacer.counts.discarded_slow);
                        continue;
                    };
                    if promise.earliest > self.until {
                        raise(&pacer.counts.discarded_late);
                        return Err(Denied::Exhausted(None));
                    }
                    tokio::time::sleep_until(promise.earliest).await;
                    return Ok(promise);
                }
                // A little more, by chance, so that the gateways do not ask in step.
                Verdict::Later(wait) => {
                    let wait = wait.mul_f64(1.0 + fastrand::f64() / 10.0);
                    tokio::time::sleep_until((clock.now() + wait).min(self.until)).await;
                }
                Verdict::Over(wait) => return Err(Denied::Exhausted(Some(wait))),
                Verdict::NoBudget | Verdict::NoClass => {
                    if !pacer.told.swap(true, Ordering::Relaxed) {
                        let class = &*pacer.claimant.class;
                        tracing::error!(class, "the database has no such budget or class: see `gwanmun budget set`");
                    }
                    return Err(Denied::Unavailable);
                }
            }
        }
    }

    /// The last slot came too late to be used; another may be had until the deadline.
    pub(super) fn too_late(&mut self, deadline: Deadline) {
        raise(&self.pacer.counts.discarded_late);
        self.until = deadline.at();
    }
}
