//! Slots from a real PostgreSQL: the function, the time contract, the classes, and every way in which the database can be away.
//!
//! `BUDGET_SECONDS=30` makes those that count slots over a time go on for longer; they print what they counted.

use std::sync::atomic::AtomicU64;

use sqlx::Connection as _;
use tokio::task::JoinSet;

use super::*;
use crate::lookup::{LookingUp, Lookup, SystemLookup};
use crate::parts::postgres::Postgres;
use crate::parts::proxy::{Harm, NoAnswer, Proxy};
use question::{Answered, Verdict};

const MS: Duration = Duration::from_millis(1);
const RULES: StoreSettings = StoreSettings {
    statement_timeout: Duration::from_millis(500),
    outage_max: Duration::from_secs(2),
    patience: StoreSettings::PATIENCE,
};

fn clock() -> Clock {
    Clock::system().unwrap()
}

fn seconds(default: u64) -> Duration {
    #[expect(clippy::disallowed_methods, reason = "a test's own switch")]
    let asked = std::env::var("BUDGET_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(asked.unwrap_or(default))
}

fn rule(name: &str, priority: i32, floor_percent: i32) -> ClassRule {
    ClassRule { name: name.to_owned(), priority, floor_percent }
}

fn settings(limit: u32, (window, jitter): (u32, u32), classes: Vec<ClassRule>) -> Settings {
    Settings {
        keeper: Keeper::Postgres,
        key: key_of("bank", "contract"),
        limit,
        burst: u64::from(limit),
        window: window * MS,
        jitter: jitter * MS,
        rtt_max: (window / 2) * MS,
        max_wait: Some(2_000 * MS),
        open_without_redis: false,
        classes,
    }
}

/// A database with the budget in it, past its first quarantine.
struct Place {
    server: Arc<Postgres>,
    url: String,
    settings: Settings,
}

impl Place {
    async fn new(settings: Settings) -> Self {
        Self::at(Postgres::shared(), settings).await
    }

    async fn at(server: Arc<Postgres>, settings: Settings) -> Self {
        let url = server.new_database();
        set_up(&url, &settings).await;
        Self { server, url, settings }
    }

    fn store(&self) -> SlotStore {
        store_at(&self.url)
    }

    fn class(&self) -> &str {
        &self.settings.classes[0].name
    }

    fn pacer(&self, store: &SlotStore, class: &str) -> Arc<Pacer> {
        let times = (self.settings.window, self.settings.rtt_max);
        Pacer::new(store.clone(), (&self.settings.key, class), times, Arc::default())
    }

    async fn session(&self) -> sqlx::PgConnection {
        sqlx::PgConnection::connect(&self.url).await.unwrap()
    }

    /// A proxy before the server, and the URL through it.
    async fn behind_proxy(&self) -> (Proxy, String) {
        let (head, tail) = self.url.split_once("@127.0.0.1:").unwrap();
        let (port, rest) = tail.split_once('/').unwrap();
        let proxy = Proxy::before(format!("127.0.0.1:{port}").parse().unwrap()).await;
        let url = format!("{head}@{}/{rest}", proxy.address);
        (proxy, url)
    }
}

fn store_at(url: &str) -> SlotStore {
    SlotStore::new(url, RULES, Arc::new(SystemLookup), clock()).unwrap()
}

async fn set_up(url: &str, settings: &Settings) {
    crate::ledger::migrate_postgres(url).await.unwrap();
    Admin::connect(url).await.unwrap().set(settings).await.unwrap();
    let store = store_at(url);
    let claimant = store.claimant(&settings.key, &settings.classes[0].name);
    let end = clock().now() + 5_000 * MS;
    loop {
        match store.acquire(&claimant, end, false).await.unwrap().verdict {
            Verdict::Later(wait) => tokio::time::sleep(wait).await,
            Verdict::Granted { .. } => return tokio::time::sleep(400 * MS).await,
            other => panic!("{other:?}"),
        }
    }
}

async fn acquire(store: &SlotStore, settings: &Settings, class: &str) -> Answered {
    let claimant = store.claimant(&settings.key, class);
    store.acquire(&claimant, clock().now() + 5_000 * MS, false).await.unwrap()
}

#[tokio::test]
async fn a_gate_takes_no_settings_for_which_it_has_no_store() {
    let off = Settings { keeper: Keeper::Off, ..settings(18, (100, 50), Vec::new()) };
    let gate = Gate::new(off.clone(), BTreeSet::new(), Stores::default(), clock());
    for keeper in [Keeper::Redis, Keeper::Postgres] {
        assert_eq!(gate.change(Settings { keeper, ..off.clone() }), Err(NotChanged::NoStore(keeper.name())));
    }
    assert_eq!(gate.change(off.clone()), Ok(false), "the same again");
    assert_eq!(gate.change(Settings { keeper: Keeper::Memory, ..off }), Ok(true));
    // The class of no rule gets no call.
    let denied = gate.enter("inquiry", Deadline::after(clock().now(), MS)).await;
    assert_eq!(denied.unwrap_err(), Denied::Unavailable);
}

#[tokio::test]
async fn a_class_that_routes_use_can_not_be_taken_away_and_what_was_taken_of_a_bucket_stays_taken() {
    let one = Settings { keeper: Keeper::Memory, burst: 1, ..settings(1, (100, 50), vec![rule("inquiry", 1, 0)]) };
    let gate = Gate::new(one.clone(), BTreeSet::from(["inquiry".to_owned()]), Stores::default(), clock());
    let renamed = Settings { classes: vec![rule("questions", 1, 0)], ..one.clone() };
    assert_eq!(gate.change(renamed), Err(NotChanged::ClassInUse("inquiry".to_owned())));
    let soon = Deadline::after(clock().now(), 1_000 * MS);
    let slot = gate.enter("inquiry", soon).await.unwrap().slot(&Patience::default()).await.unwrap();
    assert!(slot.holds(clock().now()));
    assert_eq!(gate.change(Settings { jitter: 1 * MS, ..one.clone() }), Ok(true));
    assert!(matches!(gate.enter("inquiry", soon).await.unwrap_err(), Denied::Exhausted(Some(_))));
    assert_eq!(gate.change(Settings { burst: 2, ..one }), Ok(true));
    assert!(gate.enter("inquiry", soon).await.is_ok(), "another bucket");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_is_never_before_the_moment_at_which_it_is_granted() {
    let place = Place::new(settings(1_000, (500, 50), vec![rule("inquiry", 1, 0)])).await;
    let store = place.store();
    // A connection that is there already, so that the question waits for nothing but the lock.
    acquire(&store, &place.settings, place.class()).await;
    let mut holder = place.session().await;
    sqlx::raw_sql("BEGIN; SELECT * FROM call_budget FOR UPDATE").execute(&mut holder).await.unwrap();
    let asking = tokio::spawn({
        let (store, settings) = (store.clone(), place.settings.clone());
        async move { acquire(&store, &settings, "inquiry").await }
    });
    tokio::time::sleep(150 * MS).await;
    let released: i64 = sqlx::query_scalar("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
        .fetch_one(&mut holder)
        .await
        .unwrap();
    sqlx::raw_sql("COMMIT").execute(&mut holder).await.unwrap();
    let answered = asking.await.unwrap();
    assert!(matches!(answered.verdict, Verdict::Granted { .. }), "{answered:?}");
    assert!(answered.trip.took() >= 100 * MS, "it did not wait for the lock");
    let slot: i64 = sqlx::query_scalar("SELECT next_slot_at_us - interval_us FROM call_budget")
        .fetch_one(&mut holder)
        .await
        .unwrap();
    assert!(slot >= released, "a slot {} us before the lock was free", released - slot);
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_stand_one_interval_apart_and_none_is_promised_further_ahead_than_the_lookahead() {
    let place = Place::new(settings(18, (100, 50), vec![rule("inquiry", 1, 0)])).await;
    let interval = place.settings.interval();
    assert_eq!(interval.as_millis(), 67, "(1 s + 100 ms + 50 ms) / 17");
    let mut granted = Vec::new();
    let mut refused = 0;
    for _ in 0..8 {
        // Each a process of its own.
        match acquire(&place.store(), &place.settings, place.class()).await {
            Answered { verdict: Verdict::Granted { wait, window }, trip } => {
                assert_eq!(window, 100 * MS);
                assert!(wait <= 200 * MS, "{wait:?} ahead");
                granted.push((trip.asked + wait, trip.answered + wait));
            }
            Answered { verdict: Verdict::Later(_), .. } => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(refused > 0 && granted.len() >= 3, "{granted:?}");
    for pair in granted.windows(2) {
        let [(_, latest), (earliest, _)] = [pair[0], pair[1]];
        // The moment of looking is only known to lie between asking and answering.
        let most = pair[1].1.saturating_duration_since(pair[0].0);
        assert!(most >= interval, "{most:?}");
        assert!(earliest.saturating_duration_since(latest) <= interval);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_no_slot_is_given_before_the_old_promises_have_run_out() {
    let mut server = Postgres::start();
    let url = server.new_database();
    let settings = settings(18, (100, 50), vec![rule("inquiry", 1, 0)]);
    set_up(&url, &settings).await;
    let mut admin = Admin::connect(&url).await.unwrap();
    let epoch = admin.show(&settings.key).await.unwrap().unwrap().epoch;
    for _ in 0..3 {
        acquire(&store_at(&url), &settings, "inquiry").await;
    }
    // In order: a crash is told by other means, and has a test of its own.
    server.end(rustix::process::Signal::INT);
    server.start_again();
    let store = store_at(&url);
    let began = clock().now();
    let slot = loop {
        let answered = acquire(&store, &settings, "inquiry").await;
        match answered.verdict {
            Verdict::Granted { wait, .. } => break answered.trip.answered + wait,
            Verdict::Later(wait) => tokio::time::sleep(wait).await,
            other => panic!("{other:?}"),
        }
    };
    let pause = slot - began;
    assert!(pause >= 350 * MS, "only {pause:?} after the restart: 200 + 100 + 50 ms must have passed");
    assert!(pause <= 1_550 * MS, "{pause:?}: at most the quarantine and a second, and 200 ms of slack");
    let mut admin = Admin::connect(&url).await.unwrap();
    assert_eq!(admin.show(&settings.key).await.unwrap().unwrap().epoch, epoch + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_went_back_is_quarantined_like_a_restart() {
    let place = Place::new(settings(18, (100, 50), vec![rule("inquiry", 1, 0)])).await;
    let mut session = place.session().await;
    sqlx::query("UPDATE call_budget SET next_slot_at_us = next_slot_at_us + 3600000000")
        .execute(&mut session)
        .await
        .unwrap();
    let answered = acquire(&place.store(), &place.settings, place.class()).await;
    assert!(matches!(answered.verdict, Verdict::Later(wait) if wait <= 200 * MS), "{answered:?}");
    tokio::time::sleep(400 * MS).await;
    let answered = acquire(&place.store(), &place.settings, place.class()).await;
    assert!(matches!(answered.verdict, Verdict::Granted { .. }), "{answered:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_settings_are_in_force_only_when_the_old_promises_have_run_out() {
    let place = Place::new(settings(18, (100, 50), vec![rule("inquiry", 1, 0)])).await;
    let mut admin = Admin::connect(&place.url).await.unwrap();
    admin.set(&place.settings).await.unwrap();
    let answered = acquire(&place.store(), &place.settings, place.class()).await;
    assert!(matches!(answered.verdict, Verdict::Granted { .. }), "the same again changes nothing: {answered:?}");
    let more = Settings { limit: 100, window: 40 * MS, classes: vec![rule("inquiry", 1, 5)], ..place.settings.clone() };
    admin.set(&more).await.unwrap();
    let answered = acquire(&place.store(), &place.settings, place.class()).await;
    let Verdict::Later(wait) = answered.verdict else { panic!("{answered:?}") };
    let rest = 350 * MS - more.lookahead();
    assert!(wait <= rest && wait + 50 * MS >= rest, "{wait:?}: 200 + 100 + 50 ms, less the lookahead");
    let shown = admin.show(&place.settings.key).await.unwrap().unwrap();
    assert_eq!((shown.limit, shown.window, shown.classes), (100, 40 * MS, more.classes));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_database_does_not_know_gets_no_slot() {
    let place = Place::new(settings(18, (100, 50), vec![rule("inquiry", 1, 0)])).await;
    let store = place.store();
    assert_eq!(acquire(&store, &place.settings, "unheard-of").await.verdict, Verdict::NoClass);
    let other = Settings { key: key_of("bank", "another contract"), ..place.settings.clone() };
    assert_eq!(acquire(&store, &other, "inquiry").await.verdict, Verdict::NoBudget);
    let mut turn = place.pacer(&store, "unheard-of").enter(clock().now() + 1_000 * MS).await.unwrap();
    assert_eq!(turn.slot().await.unwrap_err(), Denied::Unavailable);
}

/// Asks so many times for a slot that is there; how many updates that were, and how many of them heap-only.
async fn updates_of(place: &Place, questions: usize, how: &str) -> (i64, i64) {
    let mut session = place.session().await;
    sqlx::query("SELECT pg_stat_reset()").execute(&mut session).await.unwrap();
    let store = place.store();
    let mut times = Vec::new();
    for _ in 0..questions {
        let answered = acquire(&store, &place.settings, place.class()).await;
        assert!(matches!(answered.verdict, Verdict::Granted { .. }), "{answered:?}");
        times.push(answered.trip.took());
    }
    // A server's session tells the statistics when it ends.
    drop(store);
    times.sort();
    let p99 = times[questions * 99 / 100];
    println!("an uncontended question {how} takes p50 {:?}, p99 {p99:?}", times[questions / 2]);
    let made = 2 * i64::try_from(questions).unwrap();
    let statistics = "SELECT sum(n_tup_upd)::bigint, sum(n_tup_hot_upd)::bigint FROM pg_stat_user_tables \
                      WHERE relname LIKE 'call_budget%'";
    // What a session told is whole when it is gone.
    let others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    for _ in 0..500 {
        let others: i64 = sqlx::query_scalar(others).fetch_one(&mut session).await.unwrap();
        let counted: (i64, i64) = sqlx::query_as(statistics).fetch_one(&mut session).await.unwrap();
        if others == 0 && counted.0 >= made {
            return counted;
        }
        tokio::time::sleep(20 * MS).await;
    }
    panic!("the server does not tell of all {made} updates");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_update_stays_heap_only_but_beside_a_long_transaction() {
    // A server of its own: what others do on it, in whatever database, is what this is about.
    let place =
        Place::at(Arc::new(Postgres::start()), settings(100_000, (100, 50), vec![rule("inquiry", 1, 10)])).await;
    let (updates, heap_only) = updates_of(&place, 1_000, "alone").await;
    assert_eq!(updates, heap_only, "alone");

    // PostgreSQL may not reuse the room of old versions while a transaction that has a number is open anywhere on the server.
    let mut elsewhere = sqlx::PgConnection::connect(&place.server.new_database()).await.unwrap();
    sqlx::query("BEGIN").execute(&mut elsewhere).await.unwrap();
    sqlx::query("SELECT pg_current_xact_id()").execute(&mut elsewhere).await.unwrap();
    let (updates, heap_only) = updates_of(&place, 1_000, "beside a long transaction").await;
    assert!(heap_only < updates, "the warning in OPERATIONS.md is not true any more");

    sqlx::query("COMMIT").execute(&mut elsewhere).await.unwrap();
    let (updates, heap_only) = updates_of(&place, 1_000, "behind it").await;
    assert_eq!(updates, heap_only, "behind the long transaction");
}

mod away;
mod classes;
