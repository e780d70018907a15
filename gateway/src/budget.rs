//! How many calls an institution gets (호출 한도): the contract allows so many a second, whoever sends them.
//!
//! Every call passes its institution's [`Gate`], whoever makes it, in the class of its route. A denial happens before a byte is
//! sent, so it is certain that nothing was processed, and it says nothing about the host. Three ways to count: in this process,
//! in a bucket in Redis, or by send slots from PostgreSQL, which alone keep the contract over several gateways on any day.

mod admin;
mod counts;
mod measure;
mod outage;
mod pacer;
mod promise;
mod question;
mod settings;
mod slots;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use crate::bucket::Bucket;
use crate::clock::{Clock, Deadline, Instant};
use crate::redis_store::{OnceASecond, Patience, RedisStore};
pub use admin::{Admin, Shown};
pub use counts::ClassCounts;
use counts::{Waiting, raise};
pub use measure::{Measured, Spread, measure};
use pacer::{Pacer, Turn};
use promise::Promise;
pub use settings::{ClassRule, Keeper, Settings, key_of};
pub use slots::{SlotStore, StoreSettings};

/// Why a call may not be made. Nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    /// The calls of this moment are used up; after this time it may be worth asking again, if that is known.
    Exhausted(Option<Duration>),
    /// Nobody can say whether there are any left.
    Unavailable,
}

/// What several institutions share: the stores, as far as they are configured.
#[derive(Debug, Clone, Default)]
pub struct Stores {
    /// For buckets.
    pub redis: Option<RedisStore>,
    /// For slots.
    pub slots: Option<SlotStore>,
}

/// Why other settings were not put in force.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotChanged {
    /// They need a store that was not configured when the process started.
    #[error("its store `{0}` was not configured at the start")]
    NoStore(&'static str),
    /// Routes of this process name a class that they do not have.
    #[error("routes of this process use the class `{0}`; a route's class changes with a restart")]
    ClassInUse(String),
}

/// The one gate to an institution. What it counts by can be changed while calls pass.
#[derive(Debug)]
pub struct Gate {
    clock: Clock,
    stores: Stores,
    budget: RwLock<Arc<Budget>>,
    /// The classes that routes and questions of this process name.
    used: BTreeSet<String>,
    counts: Mutex<BTreeMap<String, Arc<ClassCounts>>>,
}

/// What is in force.
#[derive(Debug)]
struct Budget {
    settings: Settings,
    classes: BTreeMap<String, Class>,
    bucket: Arc<Bucket>,
    /// Until when Redis has said that there is no token.
    empty_until: Mutex<Option<Instant>>,
    degraded: OnceASecond,
}

#[derive(Debug)]
struct Class {
    counts: Arc<ClassCounts>,
    pacer: Option<Arc<Pacer>>,
}

/// A call's place at the gate. Dropping it lets the next one of its class come.
#[must_use = "a place that is dropped is left"]
#[derive(Debug)]
pub struct Place {
    budget: Arc<Budget>,
    clock: Clock,
    redis: Option<RedisStore>,
    counts: Option<Arc<ClassCounts>>,
    turn: Option<Turn>,
    entered: Instant,
}

/// Leave to send one frame.
#[derive(Debug, Clone, Copy)]
pub struct Slot(Option<Promise>);

impl Slot {
    /// Whether the frame may leave now.
    #[must_use]
    pub fn holds(&self, now: Instant) -> bool {
        self.0.is_none_or(|promise| promise.earliest <= now && now <= promise.latest)
    }
}

impl Gate {
    /// A gate with these settings, for calls in these classes.
    #[must_use]
    pub fn new(settings: Settings, used: BTreeSet<String>, stores: Stores, clock: Clock) -> Self {
        let counts = Mutex::default();
        let budget = RwLock::new(Arc::new(Budget::new(settings, None, &stores, &counts)));
        Self { clock, stores, budget, used, counts }
    }

    /// Puts other settings in force. Calls that have a place keep it under the old ones.
    ///
    /// # Errors
    /// [`NotChanged`]; then everything is as it was.
    pub fn change(&self, settings: Settings) -> Result<bool, NotChanged> {
        let missing = match settings.keeper {
            Keeper::Redis => self.stores.redis.is_none(),
            Keeper::Postgres => self.stores.slots.is_none(),
            Keeper::Off | Keeper::Memory => false,
        };
        if missing {
            return Err(NotChanged::NoStore(settings.keeper.name()));
        }
        let has = |class: &String| settings.classes.iter().any(|rule| rule.name == *class);
        if let Some(class) = self.used.iter().find(|class| !has(class)) {
            return Err(NotChanged::ClassInUse(class.clone()));
        }
        let before = self.budget();
        if before.settings == settings {
            return Ok(false);
        }
        let budget = Arc::new(Budget::new(settings, Some(&before), &self.stores, &self.counts));
        *self.budget.write().unwrap_or_else(PoisonError::into_inner) = budget;
        Ok(true)
    }

    fn budget(&self) -> Arc<Budget> {
        Arc::clone(&self.budget.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The settings in force.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.budget().settings.clone()
    }

    /// What was counted, by class, since the process started.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<String, Arc<ClassCounts>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether nobody gets a call at the moment, because the store that counts them is out.
    #[must_use]
    pub fn is_out(&self) -> bool {
        let slots = self.stores.slots.as_ref().filter(|_| self.has_queue());
        slots.is_some_and(SlotStore::is_out)
    }

    /// Whether calls may have to wait here, so that it is worth looking at the circuit first.
    #[must_use]
    pub fn has_queue(&self) -> bool {
        self.budget().settings.keeper == Keeper::Postgres
    }

    /// Takes a place, waiting for it if the class has a queue.
    ///
    /// # Errors
    /// [`Denied`].
    pub async fn enter(&self, class: &str, deadline: Deadline) -> Result<Place, Denied> {
        let budget = self.budget();
        let entered = self.clock.now();
        let redis = self.stores.redis.clone();
        let mut place = Place { budget, clock: self.clock.clone(), redis, counts: None, turn: None, entered };
        let budget = &place.budget;
        if budget.settings.keeper == Keeper::Off {
            return Ok(place);
        }
        let class = budget.classes.get(class).ok_or(Denied::Unavailable)?;
        place.counts = Some(Arc::clone(&class.counts));
        let counts = &class.counts;
        let _waiting = Waiting::begin(counts);
        let entering = match (budget.settings.keeper, &class.pacer) {
            (Keeper::Memory | Keeper::Redis, _) => budget.known_empty(entered).map(|()| None),
            (_, Some(pacer)) => {
                let max_wait = budget.settings.max_wait.unwrap_or(deadline.remaining(entered) / 2);
                pacer.enter(deadline.at_most(entered, max_wait).at()).await.map(Some)
            }
            _ => Err(Denied::Unavailable),
        };
        place.turn = counts.note(entering)?;
        Ok(place)
    }
}

impl Budget {
    fn new(
        settings: Settings,
        before: Option<&Self>,
        stores: &Stores,
        counts: &Mutex<BTreeMap<String, Arc<ClassCounts>>>,
    ) -> Self {
        let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
        let class = |rule: &ClassRule| {
            let counts = Arc::clone(counts.entry(rule.name.clone()).or_default());
            let slots = stores.slots.as_ref().filter(|_| settings.keeper == Keeper::Postgres);
            let pacer = slots.map(|slots| {
                let times = (settings.window, settings.rtt_max);
                Pacer::new(slots.clone(), (&settings.key, &rule.name), times, Arc::clone(&counts))
            });
            (rule.name.clone(), Class { counts, pacer })
        };
        let classes = settings.classes.iter().map(class).collect();
        // What was taken stays taken, unless the bucket itself is another one.
        let same = before.filter(|before| before.settings.quota() == settings.quota());
        let bucket = same.map_or_else(|| Arc::new(Bucket::new(settings.quota())), |before| Arc::clone(&before.bucket));
        Self { settings, classes, bucket, empty_until: Mutex::default(), degraded: OnceASecond::default() }
    }

    /// Denies what would be denied for certain, before a connection is lent for it.
    fn known_empty(&self, now: Instant) -> Result<(), Denied> {
        let wait = match self.settings.keeper {
            Keeper::Memory => self.bucket.wait(now),
            _ => {
                let empty = *self.empty_until.lock().unwrap_or_else(PoisonError::into_inner);
                empty.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
            }
        };
        if wait.is_zero() { Ok(()) } else { Err(Denied::Exhausted(Some(wait))) }
    }

    async fn take_from_redis(
        &self,
        redis: Option<&RedisStore>,
        patience: &Patience,
        clock: &Clock,
        counts: &ClassCounts,
    ) -> Result<(), Denied> {
        let taken = match redis {
            Some(redis) => {
                redis.take(&format!("gwanmun:bucket:{}", self.settings.key), self.settings.quota(), patience).await
            }
            None => None,
        };
        match taken {
            Some((true, _)) => Ok(()),
            Some((false, standing)) => {
                // Only time fills it, so this much is certain, whoever else takes from it.
                let until = clock.now() + standing.retry_after;
                *self.empty_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
                Err(Denied::Exhausted(Some(standing.retry_after)))
            }
            None if self.settings.open_without_redis => {
                raise(&counts.degraded);
                if self.degraded.may_say(clock.now()) {
                    tracing::warn!("Redis does not answer: calls pass without being counted");
                }
                Ok(())
            }
            None => Err(Denied::Unavailable),
        }
    }
}

impl Place {
    /// Waits for leave to send one frame now.
    ///
    /// # Errors
    /// [`Denied`]; nothing may be sent.
    pub async fn slot(&mut self, patience: &Patience) -> Result<Slot, Denied> {
        let Some(counts) = &self.counts else { return Ok(Slot(None)) };
        let _waiting = Waiting::begin(counts);
        let slot = match (self.budget.settings.keeper, &mut self.turn) {
            (Keeper::Off, _) => Ok(Slot(None)),
            (Keeper::Memory, _) => {
                let (taken, standing) = self.budget.bucket.take(self.clock.now());
                if taken { Ok(Slot(None)) } else { Err(Denied::Exhausted(Some(standing.retry_after))) }
            }
            (Keeper::Redis, _) => {
                let taking = self.budget.take_from_redis(self.redis.as_ref(), patience, &self.clock, counts);
                taking.await.map(|()| Slot(None))
            }
            (Keeper::Postgres, Some(turn)) => turn.slot().await.map(|promise| Slot(Some(promise))),
            (Keeper::Postgres, None) => Err(Denied::Unavailable),
        };
        counts.note(slot)
    }

    /// The slot was used: the kernel has been asked to take the frame, and the next one of the class may come.
    pub fn used(self) {
        let Some(counts) = &self.counts else { return };
        raise(&counts.granted);
        let waited = self.clock.now().saturating_duration_since(self.entered);
        counts.waited_us.fetch_add(u64::try_from(waited.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The slot could not be used in time. Another may be asked for, until the deadline.
    pub fn too_late(&mut self, deadline: Deadline) {
        if let Some(turn) = &mut self.turn {
            turn.too_late(deadline);
        }
    }
}

#[cfg(test)]
mod tests;
