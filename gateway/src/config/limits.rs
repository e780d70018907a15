//! The settings of what gateways share: call budgets, Redis, the client limit's and the cache's store; and the rules between them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use zeroize::Zeroizing;

use super::document::{Document, Reader, is_word};
use super::{Hidden, InstitutionConfig, StoreConfig};
use crate::budget::{self, ClassRule, Keeper, SlotStore, StoreSettings};
use crate::clock::Clock;
use crate::lookup::SystemLookup;
use crate::redis_store::RedisStore;
use crate::routes::CacheRule;

/// Where what gateways share is kept.
#[derive(Debug, Clone)]
pub struct SharedConfig {
    /// Redis, if there is one.
    pub redis: Option<Hidden>,
    /// The call budgets' database, if there is one: its own, or the ledger's.
    pub slots: Option<Hidden>,
    /// The rules for asking it.
    pub slot_store: StoreSettings,
    /// Whether clients' limits are counted in Redis.
    pub client_limit_in_redis: bool,
    /// Whether replies are kept in Redis.
    pub cache_in_redis: bool,
    /// Replies that are kept in this process at most.
    pub cache_entries_max: usize,
}

/// Reads one institution's budget.
pub(super) fn read_budget(reader: &mut Reader<'_>, institution: &str) -> budget::Settings {
    let keeper = Keeper::by_name(&reader.text("budget")).unwrap_or_default();
    let contract = reader.maybe("budget_key").map(Zeroizing::new);
    let key = budget::key_of(institution, contract.as_ref().map_or(institution, |key| key.as_str()));
    let limit = reader.maybe_count("budget_limit", 1..=100_000);
    if limit.is_none() && keeper != Keeper::Off {
        reader.refuse("budget", "a budget needs a `budget_limit`, in calls a second");
    }
    let limit = u32::try_from(limit.unwrap_or(1)).unwrap_or(u32::MAX);
    let settings = budget::Settings {
        keeper,
        key,
        limit,
        burst: reader.maybe_count("budget_burst", 1..=100_000).unwrap_or(u64::from(limit)),
        window: reader.time("budget_window"),
        jitter: reader.time("budget_jitter"),
        rtt_max: reader.time("budget_rtt_max"),
        max_wait: reader.maybe_time("budget_max_wait"),
        open_without_redis: reader.text("budget_without_redis") == "open",
        classes: read_classes(reader),
    };
    if settings.rtt_max >= settings.window {
        // Else an answer could be good and leave no time to send.
        reader.refuse("budget_rtt_max", "`budget_rtt_max` must be shorter than `budget_window`");
    }
    if settings.window > Duration::from_secs(1) || settings.jitter > Duration::from_secs(1) {
        reader.refuse("budget_window", "`budget_window` and `budget_jitter` may be 1s at most");
    }
    if keeper == Keeper::Postgres && limit < 2 {
        reader.refuse("budget_limit", "with `budget = \"postgres\"` the `budget_limit` must be 2 at least");
    }
    settings
}

fn read_classes(reader: &mut Reader<'_>) -> Vec<ClassRule> {
    const RULE: &str =
        "each of `budget_classes` is name:priority:floor, a word and two whole numbers, the floors in percent";
    let mut classes: Vec<ClassRule> = Vec::new();
    for text in reader.list("budget_classes") {
        let parts: Vec<&str> = text.split(':').collect();
        let class = match parts[..] {
            [name, priority, floor] if is_word(name) => priority
                .parse()
                .ok()
                .zip(floor.parse().ok())
                .map(|(priority, floor_percent)| ClassRule { name: name.to_owned(), priority, floor_percent }),
            _ => None,
        };
        match class.filter(|class| (0..=100).contains(&class.floor_percent)) {
            Some(class) if classes.iter().any(|known| known.name == class.name) => {
                reader.refuse("budget_classes", "two of `budget_classes` have one name");
            }
            Some(class) => classes.push(class),
            None => reader.refuse("budget_classes", RULE),
        }
    }
    if classes.iter().map(|class| class.floor_percent).sum::<i32>() > 100 {
        reader.refuse("budget_classes", "the floors of `budget_classes` add up to more than 100 percent");
    }
    classes
}

/// The class of a route, which its institution must have.
pub(super) fn read_class(reader: &mut Reader<'_>, default: &str, institution: &InstitutionConfig) -> String {
    let class = reader.maybe("budget_class").unwrap_or_else(|| default.to_owned());
    if !institution.budget.classes.iter().any(|known| known.name == class) {
        reader.refuse("budget_class", format!("the institution's `budget_classes` have no `{class}`"));
    }
    class
}

/// How long a route's replies are kept.
pub(super) fn read_cache_rule(reader: &mut Reader<'_>) -> Option<CacheRule> {
    let (ttl, grace) = (reader.maybe_time("cache_ttl"), reader.maybe_time("cache_grace"));
    if ttl.is_none() && grace.is_some() {
        reader.refuse("cache_grace", "`cache_grace` needs a `cache_ttl`");
    }
    ttl.map(|ttl| CacheRule { ttl, grace: grace.unwrap_or_default() })
}

/// Reads where what is shared is kept, and looks whether everything that needs a store has one.
pub(super) fn read_shared(
    document: &mut Document,
    store: &StoreConfig,
    institutions: &BTreeMap<String, InstitutionConfig>,
) -> SharedConfig {
    let hidden = |text: String| Hidden(Zeroizing::new(text));
    let mut section = document.section("redis");
    let redis = section.maybe("url").map(hidden);
    let (clock, lookup) = (Clock::system().ok(), Arc::new(SystemLookup));
    if let (Some(url), Some(clock)) = (&redis, &clock)
        && let Err(rule) = RedisStore::new(url.reveal(), Arc::clone(&lookup) as _, clock.clone())
    {
        section.refuse("url", format!("`url` {rule}"));
    }
    let mut section = document.section("budget");
    let own = section.maybe("postgres_url").map(hidden);
    let slot_store = StoreSettings {
        statement_timeout: section.time("statement_timeout"),
        outage_max: section.time("store_outage_max"),
        patience: StoreSettings::PATIENCE,
    };
    if let (Some(url), Some(clock)) = (&own, clock) {
        let opened = SlotStore::new(url.reveal(), slot_store, lookup, clock);
        if !super::has_known_parameters(url.reveal()) || opened.is_err() {
            section.refuse("postgres_url", "`postgres_url` must be postgres://user:password@host/database");
        }
    }
    let slots = own.or(if let StoreConfig::Postgres(url) = store { Some(url.clone()) } else { None });
    let client_limit_in_redis = in_redis(&mut document.section("client_limit"), redis.is_some());
    let mut section = document.section("cache");
    let cache_in_redis = in_redis(&mut section, redis.is_some());
    let cache_entries_max = section.size("entries_max", 1..=10_000);
    for index in document.entries("institution") {
        let mut reader = document.reader(index);
        let keeper = institutions.get(&reader.name()).map(|one| one.budget.keeper);
        if keeper == Some(Keeper::Redis) && redis.is_none() {
            reader.refuse("budget", "with `budget = \"redis\"` a `url` in [redis] is required");
        }
        if keeper == Some(Keeper::Postgres) && slots.is_none() {
            reader
                .refuse("budget", "with `budget = \"postgres\"` a `postgres_url` in [budget] or [ledger] is required");
        }
    }
    SharedConfig { redis, slots, slot_store, client_limit_in_redis, cache_in_redis, cache_entries_max }
}

fn in_redis(section: &mut Reader<'_>, there_is_one: bool) -> bool {
    let wanted = section.text("store") == "redis";
    if wanted && !there_is_one {
        section.refuse("store", "with `store = \"redis\"` a `url` in [redis] is required");
    }
    wanted
}
