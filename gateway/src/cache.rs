//! Replies that may be given again: of routes that say so, of inquiries, and only what the institution answered as a success.
//!
//! A fresh one is given without asking anybody. An older one stands in, marked as stale, when the institution fails: never when it
//! declines. Of several that miss the same reply at once in this process, one asks.

mod flight;
mod shelf;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use codec::{Record, decode, encode};

use crate::clock::{Clock, Instant};
use crate::failure::Failure;
use crate::ledger::ServedFrom;
use crate::redis_store::{Patience, RedisStore};
use crate::resilience::{Fault, Institution, Outgoing, Transcript};
use crate::routes::{CacheRule, RouteTable};
use flight::{Flight, Flights, Landed, Part};
use shelf::{MemoryShelf, Shelf};

/// What a caller gets, and where it came from.
#[derive(Debug, Clone)]
pub struct Served {
    /// The reply, or why there is none.
    pub result: Result<Record, Fault>,
    /// Where the reply came from.
    pub from: ServedFrom,
    /// How old it is.
    pub age: Duration,
    /// Another one asked for it at the same time: nothing of this transaction was sent.
    pub followed: bool,
    /// Why the institution was not asked, or did not answer, when what is kept stood in for it.
    pub failure: Option<Failure>,
    /// Whether the route's replies are kept at all.
    pub cacheable: bool,
}

impl Served {
    /// What the institution itself said.
    #[must_use]
    pub fn by_host(result: Result<Record, Fault>) -> Self {
        let (from, age) = (ServedFrom::Host, Duration::ZERO);
        Self { result, from, age, followed: false, failure: None, cacheable: false }
    }
}

/// A reply as it is kept.
#[derive(Debug)]
struct Kept {
    reply: Box<[u8]>,
    /// How old it was when it was found.
    age: Duration,
    /// When that was.
    at: Instant,
}

/// What is counted for one route.
#[derive(Debug, Default)]
#[expect(missing_docs, reason = "the names are the documentation; docs/OPERATIONS.md explains each")]
pub struct RouteCounts {
    pub hits: AtomicU64,
    /// Asked the institution.
    pub misses: AtomicU64,
    /// Waited for one that asked.
    pub collapsed: AtomicU64,
    pub stored: AtomicU64,
    pub stale_served: AtomicU64,
}

/// Where replies are kept.
#[derive(Debug, Clone)]
pub enum CacheStore {
    /// In this process; so many at most.
    Memory(usize),
    /// In Redis.
    Redis(RedisStore),
}

/// The replies of all routes that are kept.
#[derive(Debug)]
pub struct ReplyCache {
    shelf: Arc<Shelf>,
    flights: Arc<Flights>,
    counts: BTreeMap<String, Arc<RouteCounts>>,
    clock: Clock,
}

fn raise(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl ReplyCache {
    /// An empty cache for the routes that have one.
    #[must_use]
    pub fn new(store: CacheStore, routes: &RouteTable, clock: Clock) -> Self {
        let shelf = match store {
            CacheStore::Memory(entries_max) => Shelf::Memory(MemoryShelf::new(entries_max)),
            CacheStore::Redis(redis) => Shelf::Redis(redis),
        };
        let cached = routes.all().into_iter().filter(|route| route.cache.is_some());
        let counts = cached.map(|route| (route.name.clone(), Arc::default())).collect();
        Self { shelf: Arc::new(shelf), flights: Arc::default(), counts, clock }
    }

    /// Where replies are kept, in a word.
    #[must_use]
    pub fn store_name(&self) -> &'static str {
        match &*self.shelf {
            Shelf::Memory(_) => "memory",
            Shelf::Redis(_) => "redis",
        }
    }

    /// Replies that are kept in this process.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.shelf.len()
    }

    /// What was counted, by route.
    #[must_use]
    pub fn counts(&self) -> &BTreeMap<String, Arc<RouteCounts>> {
        &self.counts
    }

    /// Calls the institution, unless what is kept will do.
    pub async fn call<T: Transcript>(&self, institution: &Institution, out: Outgoing<'_>, entry: &mut T) -> Served {
        let (Some(rule), Some(counts)) = (out.route.cache, self.counts.get(&out.route.name)) else {
            return Served::by_host(institution.call(out, entry).await);
        };
        let key = out.route.cache_key(out.frame);
        let kept = self.shelf.find(&key, rule, out.patience, &self.clock).await;
        if let Some(hit) = fresh(kept.as_ref(), rule, &out) {
            raise(&counts.hits);
            return hit;
        }
        match self.flights.join(&key) {
            Part::Lead(flight) => {
                // Somebody may have asked and landed since the look above.
                let kept = self.shelf.find(&key, rule, out.patience, &self.clock).await.or(kept);
                if let Some(hit) = fresh(kept.as_ref(), rule, &out) {
                    flight.land(hit.result.as_ref().map_or_else(|fault| Err(fault.clone()), reply_of));
                    raise(&counts.hits);
                    return hit;
                }
                raise(&counts.misses);
                let result = institution.call(out, entry).await;
                self.land(flight, key, rule, &result, counts);
                self.or_stale(result, false, kept, (&out, rule, counts))
            }
            Part::Follow(mut flight) => {
                raise(&counts.collapsed);
                let landing = flight.wait_for(Option::is_some);
                let landed = tokio::time::timeout_at(out.deadline.at(), landing).await;
                let landed = landed.map(|heard| heard.ok().and_then(|landed| landed.clone()));
                let result = match landed {
                    Ok(Some(landed)) => {
                        landed.and_then(|reply| read(&reply, &out).ok_or(Failure::InternalBeforeSend.into()))
                    }
                    // Who asked for it is gone without a word.
                    Ok(None) => Err(Failure::InternalBeforeSend.into()),
                    Err(_elapsed) => Err(Failure::DeadlineBeforeSend.into()),
                };
                let served = self.or_stale(result, true, kept, (&out, rule, counts));
                Served { followed: true, ..served }
            }
        }
    }

    /// Tells the followers what was heard, and keeps it. Nobody waits for the keeping; who comes before it is done follows.
    fn land(
        &self,
        flight: Flight,
        key: String,
        rule: CacheRule,
        result: &Result<Record, Fault>,
        counts: &Arc<RouteCounts>,
    ) {
        let landed = result.as_ref().map_or_else(|fault| Err(fault.clone()), reply_of);
        flight.land(landed.clone());
        let Ok(reply) = landed else { return };
        match &*self.shelf {
            Shelf::Memory(shelf) => {
                shelf.put(&key, rule, &reply, self.clock.now());
                raise(&counts.stored);
            }
            Shelf::Redis(redis) => {
                let (redis, counts) = (redis.clone(), Arc::clone(counts));
                tokio::spawn(async move {
                    if redis.put(&key, &reply, rule.ttl + rule.grace, &Patience::default()).await.is_some() {
                        raise(&counts.stored);
                    }
                    drop(flight);
                });
            }
        }
    }

    fn or_stale(
        &self,
        result: Result<Record, Fault>,
        followed: bool,
        kept: Option<Kept>,
        (out, rule, counts): (&Outgoing<'_>, CacheRule, &RouteCounts),
    ) -> Served {
        let from = if followed { ServedFrom::Cache } else { ServedFrom::Host };
        let plain = |result| Served { from, followed, cacheable: true, ..Served::by_host(result) };
        let fault = match result {
            Ok(record) => return plain(Ok(record)),
            Err(fault) => fault,
        };
        let failed = Served { from: ServedFrom::Host, ..plain(Err(Fault { followed, ..fault.clone() })) };
        // Its leader did not come back in time, or at all.
        let in_vain = followed && matches!(fault.failure, Failure::DeadlineBeforeSend | Failure::InternalBeforeSend);
        let Some(kept) = kept.filter(|_| fault.failure.is_host_failure() || in_vain) else { return failed };
        // Asking took its time, and the grace goes on meanwhile.
        let age = kept.age + self.clock.now().saturating_duration_since(kept.at);
        if age >= rule.ttl + rule.grace {
            return failed;
        }
        let Some(record) = read(&kept.reply, out) else { return failed };
        raise(&counts.stale_served);
        let failure = Some(fault.failure);
        Served { result: Ok(record), from: ServedFrom::Stale, age, followed, failure, cacheable: true }
    }
}

fn fresh(kept: Option<&Kept>, rule: CacheRule, out: &Outgoing<'_>) -> Option<Served> {
    let kept = kept.filter(|kept| kept.age < rule.ttl)?;
    let record = read(&kept.reply, out)?;
    let (from, age) = (ServedFrom::Cache, kept.age);
    Some(Served { from, age, cacheable: true, ..Served::by_host(Ok(record)) })
}

fn reply_of(record: &Record) -> Landed {
    let mut reply = Vec::new();
    encode(record, &mut reply).map_err(|_| Fault::from(Failure::InternalBeforeSend))?;
    Ok(reply.into())
}

/// What is kept is read like any reply: by the layout, strictly.
fn read(reply: &[u8], out: &Outgoing<'_>) -> Option<Record> {
    decode(&out.route.reply, reply).ok()
}
