//! What operators see of the limits: call budgets, client limits, the cache, and the stores that gateways share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use crate::budget::{ClassCounts, Keeper, Stores};
use crate::cache::{ReplyCache, RouteCounts};
use crate::filters::rate_limit::ClientLimit;
use crate::resilience::Institution;
use crate::telemetry::Telemetry;

/// Everything that limits and is counted.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Of clients.
    pub client_limit: Arc<ClientLimit>,
    /// Replies.
    pub cache: Arc<ReplyCache>,
    /// What is shared.
    pub stores: Stores,
}

type Institutions = BTreeMap<String, Arc<Institution>>;

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// The counters of one class by their names.
fn of_class(counts: &ClassCounts) -> [(&'static str, u64); 6] {
    [
        ("granted", read(&counts.granted)),
        ("denied", read(&counts.denied)),
        ("unavailable", read(&counts.unavailable)),
        ("degraded", read(&counts.degraded)),
        ("discardedSlow", read(&counts.discarded_slow)),
        ("discardedLate", read(&counts.discarded_late)),
    ]
}

/// The counters of one route's replies by their names.
fn of_route(counts: &RouteCounts) -> [(&'static str, u64); 5] {
    [
        ("hits", read(&counts.hits)),
        ("misses", read(&counts.misses)),
        ("collapsed", read(&counts.collapsed)),
        ("stored", read(&counts.stored)),
        ("staleServed", read(&counts.stale_served)),
    ]
}

/// All of it as JSON.
#[must_use]
pub fn stats(limits: &Limits, institutions: &Institutions) -> Value {
    let budget = |institution: &Arc<Institution>| {
        let settings = institution.gate.settings();
        let class = |counts: &Arc<ClassCounts>| {
            let mut class: serde_json::Map<String, Value> =
                of_class(counts).into_iter().map(|(name, count)| (name.to_owned(), count.into())).collect();
            class.insert("waiting".to_owned(), read(&counts.waiting).into());
            class.insert("waitedMsTotal".to_owned(), (read(&counts.waited_us) / 1_000).into());
            class
        };
        let classes: BTreeMap<_, _> =
            institution.gate.counts().iter().map(|(name, counts)| (name.clone(), class(counts))).collect();
        let off = settings.keeper == Keeper::Off;
        json!({
            "budget": settings.keeper.name(),
            "limitPerSecond": (!off).then_some(settings.limit),
            "intervalUs": (settings.keeper == Keeper::Postgres).then(|| settings.interval().as_micros()),
            "classes": if off { json!({}) } else { json!(classes) },
        })
    };
    let institutions: BTreeMap<_, _> = institutions.iter().map(|(name, one)| (name, budget(one))).collect();
    let client = limits.client_limit.stats();
    let route = |counts: &Arc<RouteCounts>| {
        let counted = of_route(counts);
        let mut route: serde_json::Map<String, Value> =
            counted.into_iter().map(|(name, count)| (name.to_owned(), count.into())).collect();
        let [(_, hits), (_, misses), (_, collapsed), ..] = counted;
        route.insert("hitRate".to_owned(), json!(share(hits + collapsed, hits + collapsed + misses)));
        route
    };
    let routes: BTreeMap<_, _> = limits.cache.counts().iter().map(|(name, counts)| (name, route(counts))).collect();
    let redis = limits.stores.redis.as_ref().map(|redis| {
        let stats = redis.stats();
        json!({"up": stats.is_up, "asked": stats.asked, "failed": stats.failed, "skipped": stats.skipped})
    });
    let slots = limits
        .stores
        .slots
        .as_ref()
        .map(|slots| json!({"out": slots.is_out(), "lostSlots": slots.lost(), "connections": slots.connections()}));
    json!({
        "institutions": institutions,
        "clientLimit": {
            "store": limits.client_limit.store_name(),
            "passed": client.passed,
            "refused": client.refused,
            "degraded": client.degraded,
        },
        "cache": {"store": limits.cache.store_name(), "entries": limits.cache.entries(), "routes": routes},
        "redis": redis,
        "slotStore": slots,
    })
}

/// A share to four places; nothing when there is nothing to have a share of.
#[expect(clippy::cast_precision_loss, reason = "a share for people; counts this large do not occur")]
fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| (part as f64 / whole as f64 * 10_000.0).round() / 10_000.0)
}

/// Carries what is counted over to the metrics.
#[expect(clippy::cast_precision_loss, reason = "gauges are floats; counts this large do not occur")]
pub fn set_metrics(limits: &Limits, institutions: &Institutions, telemetry: &Telemetry) {
    for (name, institution) in institutions {
        if institution.gate.settings().keeper == Keeper::Off {
            continue;
        }
        for (class, counts) in institution.gate.counts() {
            for (outcome, count) in of_class(&counts) {
                let labels = [("institution", name.as_str()), ("class", class.as_str()), ("outcome", outcome)];
                telemetry.counter("gwanmun_budget_total", &labels).absolute(count);
            }
            let labels = [("institution", name.as_str()), ("class", class.as_str())];
            telemetry.counter("gwanmun_budget_waited_microseconds_total", &labels).absolute(read(&counts.waited_us));
            telemetry.gauge("gwanmun_budget_waiting", &labels).set(read(&counts.waiting) as f64);
        }
    }
    let client = limits.client_limit.stats();
    for (outcome, count) in [("passed", client.passed), ("refused", client.refused), ("degraded", client.degraded)] {
        telemetry.counter("gwanmun_client_limit_total", &[("outcome", outcome)]).absolute(count);
    }
    for (route, counts) in limits.cache.counts() {
        for (outcome, count) in of_route(counts) {
            let labels = [("route", route.as_str()), ("outcome", outcome)];
            telemetry.counter("gwanmun_cache_total", &labels).absolute(count);
        }
    }
    if let Some(redis) = &limits.stores.redis {
        let stats = redis.stats();
        telemetry.gauge("gwanmun_redis_up", &[]).set(f64::from(u8::from(stats.is_up)));
        telemetry.counter("gwanmun_redis_failed_total", &[]).absolute(stats.failed);
        telemetry.counter("gwanmun_redis_skipped_total", &[]).absolute(stats.skipped);
    }
    if let Some(slots) = &limits.stores.slots {
        telemetry.gauge("gwanmun_slot_store_out", &[]).set(f64::from(u8::from(slots.is_out())));
        telemetry.counter("gwanmun_slots_lost_total", &[]).absolute(slots.lost());
    }
}
