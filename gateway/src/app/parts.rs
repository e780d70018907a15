//! Making the parts that a gateway is put together from.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, TryLockError};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::{DialBy, StartError};
use crate::breaker::Breaker;
use crate::budget::{Gate, SlotStore, Stores};
use crate::cache::{CacheStore, ReplyCache};
use crate::clock::Clock;
use crate::config::{Config, InstitutionConfig, StoreConfig};
use crate::ledger::{Ledger, OpenError, Store};
use crate::lookup::SystemLookup;
use crate::pool::{Pool, TcpDial};
use crate::redis_store::RedisStore;
use crate::resilience::Institution;
use crate::resolve::{Reconciler, Resolver};
use crate::routes::Route;
use crate::telemetry::Telemetry;

/// How long a start waits for Redis.
pub(super) const REDIS_WAIT: Duration = Duration::from_secs(1);

/// Institutions by name.
type Institutions = Arc<BTreeMap<String, Arc<Institution>>>;

/// The stores that gateways share, as far as they are configured; nothing is connected yet.
pub(super) fn make_stores(config: &Config, clock: &Clock) -> Result<Stores, StartError> {
    let shared = &config.shared;
    let redis = shared.redis.as_ref().map(|url| RedisStore::new(url.reveal(), Arc::new(SystemLookup), clock.clone()));
    let redis = redis.transpose().map_err(|rule| StartError::Shared("redis.url", rule))?;
    let slots = shared
        .slots
        .as_ref()
        .map(|url| SlotStore::new(url.reveal(), shared.slot_store, Arc::new(SystemLookup), clock.clone()));
    let slots = slots.transpose().map_err(|rule| StartError::Shared("budget.postgres_url", rule))?;
    Ok(Stores { redis, slots })
}

pub(super) fn make_cache(config: &Config, stores: &Stores, clock: &Clock) -> ReplyCache {
    let redis = stores.redis.clone().filter(|_| config.shared.cache_in_redis);
    let store = redis.map_or(CacheStore::Memory(config.shared.cache_entries_max), CacheStore::Redis);
    ReplyCache::new(store, &config.routes, clock.clone())
}

pub(super) fn make_institutions(
    config: &Config,
    dial: &DialBy,
    stores: &Stores,
    clock: &Clock,
    telemetry: &Arc<Telemetry>,
) -> BTreeMap<String, Arc<Institution>> {
    let make = |(name, settings): (&String, &InstitutionConfig)| {
        let dial = dial(name, &settings.address);
        let institution = Institution {
            name: name.clone(),
            pool: Pool::new(dial, settings.framing, settings.pool, clock.clone()),
            breaker: Breaker::new(settings.breaker, clock.clone()),
            gate: Gate::new(settings.budget.clone(), used_classes(config, name), stores.clone(), clock.clone()),
            retry: settings.retry,
            questions: Arc::clone(&settings.questions),
            clock: clock.clone(),
            telemetry: Arc::clone(telemetry),
        };
        (name.clone(), Arc::new(institution))
    };
    config.institutions.iter().map(make).collect()
}

/// The classes in which an institution is called: by its routes, and by ourselves.
fn used_classes(config: &Config, institution: &str) -> BTreeSet<String> {
    let routes = config.routes.all().into_iter().filter(|route| route.institution == institution).map(Arc::as_ref);
    let questions = config.institutions.get(institution).map(|one| &one.questions);
    let asked = questions.into_iter().flat_map(|questions| {
        [&questions.status, &questions.net_cancel, &questions.settlement].into_iter().flatten().map(Arc::as_ref)
    });
    routes.chain(asked).map(|route: &Route| route.budget_class.clone()).collect()
}

pub(super) fn make_resolving(
    config: &Config,
    (store, ledger): (&Store, Option<&Arc<Ledger>>),
    institutions: &Institutions,
    clock: &Clock,
    telemetry: &Arc<Telemetry>,
) -> (Arc<Resolver>, Arc<Reconciler>) {
    let own = (clock.clone(), Arc::clone(telemetry));
    let resolver =
        Arc::new(Resolver::new(store.clone(), Arc::clone(institutions), &config.routes, config.resolver, own));
    let reconciler = Reconciler::new(
        (store.clone(), ledger.cloned()),
        Arc::clone(&resolver),
        Arc::clone(institutions),
        config.settled_by(),
        clock.clone(),
    );
    (resolver, Arc::new(reconciler))
}

/// What reconciles, without a gateway: it needs the store and the hosts, and no journal.
///
/// # Errors
/// [`StartError`].
pub async fn reconciler(config: &Config) -> Result<(Arc<Reconciler>, Store), StartError> {
    let store = open_store(config).await?;
    let (clock, telemetry) = (Clock::system()?, Arc::new(Telemetry::new()));
    let dial: DialBy = Box::new(|_, address| Arc::new(TcpDial { address: address.to_owned() }));
    let stores = make_stores(config, &clock)?;
    let institutions = Arc::new(make_institutions(config, &dial, &stores, &clock, &telemetry));
    if let Some(redis) = &stores.redis {
        redis.connect(REDIS_WAIT).await;
    }
    let (_, reconciler) = make_resolving(config, (&store, None), &institutions, &clock, &telemetry);
    Ok((reconciler, store))
}

/// Opens the store that the configuration names.
///
/// # Errors
/// [`StartError`].
pub async fn open_store(config: &Config) -> Result<Store, StartError> {
    let opened = match &config.store {
        StoreConfig::Sqlite => Store::sqlite(&config.data.join("ledger.sqlite")).await,
        StoreConfig::Postgres(url) => Store::postgres(url.reveal()).await,
    };
    Ok(opened.map_err(OpenError::Store)?)
}

pub(super) fn lock_folder(data: &Path) -> Result<File, StartError> {
    let path = data.join("lock");
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(|error| StartError::Io(path.display().to_string(), error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StartError::InUse(data.display().to_string())),
        Err(TryLockError::Error(error)) => Err(StartError::Io(path.display().to_string(), error)),
    }
}
