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
    _server: Arc<Postgres>,
    url: String,
    settings: Settings,
}

impl Place {
    async fn new(settings: Settings) -> Self {
        let server = Postgres::shared();
        let url = server.new_database();
        set_up(&url, &settings).await;
        Self { _server: server, url, settings }
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

/// Callers of each class, in so many processes, that always want more; what each class got.
async fn saturate(place: &Place, (processes, callers): (usize, usize), time: Duration) -> Vec<usize> {
    let end = clock().now() + time;
    let mut all = JoinSet::new();
    for _ in 0..processes {
        let store = place.store();
        for (nth, class) in place.settings.classes.iter().enumerate() {
            let pacer = place.pacer(&store, &class.name);
            for _ in 0..callers {
                let pacer = Arc::clone(&pacer);
                all.spawn(async move {
                    let mut got = 0;
                    while clock().now() < end {
                        let Ok(mut turn) = pacer.enter(end).await else { break };
                        got += usize::from(turn.slot().await.is_ok());
                    }
                    (nth, got)
                });
            }
        }
    }
    let mut by_class = vec![0; place.settings.classes.len()];
    for (nth, got) in all.join_all().await {
        by_class[nth] += got;
    }
    by_class
}

fn percent(part: usize, whole: usize) -> f64 {
    100.0 * f64::from(u32::try_from(part).unwrap()) / f64::from(u32::try_from(whole.max(1)).unwrap())
}

/// Three classes that always want more, with floors of 20 and 10 % for the lower two, and the same without floors.
async fn share_out(limit: u32, (window, jitter): (u32, u32), processes: usize) {
    let time = seconds(6);
    for floors in [true, false] {
        let floor = |percent| if floors { percent } else { 0 };
        let classes = vec![rule("first", 1, 0), rule("second", 2, floor(20)), rule("third", 3, floor(10))];
        let place = Place::new(settings(limit, (window, jitter), classes)).await;
        let got = saturate(&place, (processes, 3), time).await;
        let all: usize = got.iter().sum();
        let shares: Vec<f64> = got.iter().map(|got| percent(*got, all)).collect();
        let most = time.as_secs_f64() / place.settings.interval().as_secs_f64();
        println!(
            "{limit}/s, {processes} processes, floors {floors}: {all} slots in {time:?} of {most:.0}, shares {shares:.1?} %"
        );
        if floors {
            // One slot is what a class can be short of at the edges of the time.
            let edge = percent(1, all);
            assert!(shares[1] >= 19.0 - edge && shares[2] >= 9.0 - edge, "{shares:?}");
        } else {
            assert!(shares[1] + shares[2] < 5.0, "{shares:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn floors_are_kept_under_saturation_and_without_them_the_lower_classes_starve() {
    share_out(60, (20, 5), 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn floors_are_kept_and_priorities_hold_at_the_contracts_own_rate() {
    share_out(18, (100, 50), 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn priorities_hold_among_two_gateways() {
    share_out(60, (20, 5), 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn priorities_hold_in_a_gateway_that_is_alone() {
    share_out(60, (20, 5), 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_class_that_is_alone_gets_the_whole_rate() {
    let time = seconds(4);
    let place = Place::new(settings(18, (100, 50), vec![rule("inquiry", 3, 10), rule("mutation", 1, 0)])).await;
    let alone = Settings { classes: vec![rule("inquiry", 3, 10)], ..place.settings.clone() };
    let place = Place { settings: alone, ..place };
    let got = saturate(&place, (4, 3), time).await[0];
    let most = time.as_secs_f64() / place.settings.interval().as_secs_f64();
    let share = f64::from(u32::try_from(got).unwrap()) / most;
    println!("{got} slots in {time:?}, {:.1} % of the rate", share * 100.0);
    // Of some sixty one is lost at the edge of the time.
    assert!(share + 1.0 / most >= 0.95, "{share}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_update_stays_heap_only() {
    let place = Place::new(settings(100_000, (100, 50), vec![rule("inquiry", 1, 10)])).await;
    let store = place.store();
    let mut times = Vec::new();
    for _ in 0..1_000 {
        let answered = acquire(&store, &place.settings, place.class()).await;
        assert!(matches!(answered.verdict, Verdict::Granted { .. }), "{answered:?}");
        times.push(answered.trip.took());
    }
    // A server's session tells the statistics when it ends.
    drop(store);
    times.sort();
    println!("an uncontended question takes p50 {:?}, p99 {:?}", times[500], times[990]);
    let mut session = place.session().await;
    let statistics = "SELECT sum(n_tup_upd)::bigint, sum(n_tup_hot_upd)::bigint FROM pg_stat_user_tables \
                      WHERE relname LIKE 'call_budget%'";
    let (mut updates, mut heap_only) = (0_i64, 0_i64);
    for _ in 0..60 {
        (updates, heap_only) = sqlx::query_as(statistics).fetch_one(&mut session).await.unwrap();
        if updates >= 2_000 {
            break;
        }
        tokio::time::sleep(100 * MS).await;
    }
    assert!(updates >= 2_000 && updates == heap_only, "{heap_only} of {updates}");
}

/// Asks through a pacer and says how it ended, and when.
async fn ask(pacer: &Arc<Pacer>, max_wait: Duration) -> (Result<(), Denied>, Duration) {
    let began = clock().now();
    let ended = async { pacer.enter(began + max_wait).await?.slot().await.map(drop) }.await;
    (ended, clock().now() - began)
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_wrong_with_the_database_a_call_ends_without_a_slot_in_its_time_and_nothing_grows() {
    let place = Place::new(settings(18, (100, 50), vec![rule("inquiry", 1, 0)])).await;
    // Each harm, whether it strikes a connection that is there already or one that is being made, and how long the caller would
    // wait. Where answers come, only too late, it is its own time that ends the asking.
    let harms = [
        (Harm::Handshake(Duration::from_secs(3)), false, 4_000),
        (Harm::Latency(Duration::from_secs(3)), true, 4_000),
        (Harm::Latency(60 * MS), true, 1_000),
        (Harm::CutAfter(0), true, 4_000),
        (Harm::StallAfter(20), true, 4_000),
        (Harm::StallAfter(20), false, 4_000),
        (Harm::Reset, true, 4_000),
        (Harm::Reset, false, 4_000),
        (Harm::Down, false, 4_000),
        (Harm::Bandwidth(1_000), true, 1_000),
        (Harm::Bandwidth(1_000), false, 1_000),
    ];
    let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let tasks = alive();
    for (harm, connected, max_wait) in harms {
        let (proxy, url) = place.behind_proxy().await;
        let store = store_at(&url);
        let pacer = place.pacer(&store, "inquiry");
        if connected {
            assert!(ask(&pacer, 2_000 * MS).await.0.is_ok());
        }
        proxy.set(harm);
        for _ in 0..3 {
            let (ended, took) = ask(&pacer, max_wait * MS).await;
            assert!(ended.is_err(), "{harm:?}: a slot while nobody can know");
            assert!(took <= 1_200 * MS, "{harm:?}: {took:?}");
            assert!(store.connections() <= 4 && proxy.open() <= 5, "{harm:?}: {} connections", proxy.open());
        }
        proxy.set(Harm::None);
        let end = clock().now() + 10_000 * MS;
        while ask(&pacer, 1_000 * MS).await.0.is_err() {
            assert!(clock().now() < end, "{harm:?}: no recovery");
            tokio::time::sleep(20 * MS).await;
        }
        drop((pacer, store));
        assert!(proxy.open() <= 5, "{harm:?}: {} connections", proxy.open());
        drop(proxy);
        let end = clock().now() + 10_000 * MS;
        while alive() > tasks {
            assert!(clock().now() < end, "{harm:?}: {} tasks are left", alive() - tasks);
            tokio::time::sleep(20 * MS).await;
        }
    }
}

/// One call fails, then nobody calls for longer than it takes to call it an outage: the next one must find that it is over.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_failure_and_a_quiet_time_the_store_has_come_back_by_itself() {
    let place = Place::new(settings(18, (100, 50), vec![rule("inquiry", 1, 0)])).await;
    let (proxy, url) = place.behind_proxy().await;
    for (harm, connected) in [(Harm::CutAfter(0), true), (Harm::Down, false)] {
        let store = store_at(&url);
        let pacer = place.pacer(&store, "inquiry");
        if connected {
            assert!(ask(&pacer, 2_000 * MS).await.0.is_ok());
        }
        proxy.set(harm);
        assert_eq!(ask(&pacer, 1_000 * MS).await.0, Err(Denied::Unavailable));
        proxy.set(Harm::None);
        tokio::time::sleep(2_500 * MS).await;
        assert!(ask(&pacer, 1_000 * MS).await.0.is_ok(), "{harm:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_crash_of_one_of_the_servers_processes_old_promises_run_out_first() {
    let server = Postgres::start();
    let url = server.new_database();
    let settings = settings(18, (100, 50), vec![rule("inquiry", 1, 0)]);
    set_up(&url, &settings).await;
    let epoch = async || {
        let mut admin = Admin::connect(&url).await.unwrap();
        admin.show(&settings.key).await.unwrap().unwrap().epoch
    };
    let before = epoch().await;
    let mut session = sqlx::PgConnection::connect(&url).await.unwrap();
    let victim: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut session).await.unwrap();
    let victim = rustix::process::Pid::from_raw(victim).unwrap();
    rustix::process::kill_process(victim, rustix::process::Signal::KILL).unwrap();
    // The server keeps its start time and recovers what it had written; asynchronous commits may be gone.
    let end = clock().now() + 20_000 * MS;
    while sqlx::PgConnection::connect(&url).await.is_err()
        || sqlx::query("SELECT 1").execute(&mut session).await.is_ok()
    {
        assert!(clock().now() < end, "the server does not recover");
        tokio::time::sleep(20 * MS).await;
    }
    let store = store_at(&url);
    let end = clock().now() + 5_000 * MS;
    let answered = loop {
        match store.acquire(&store.claimant(&settings.key, "inquiry"), end, false).await {
            Ok(answered) => break answered,
            Err(_) => tokio::time::sleep(20 * MS).await,
        }
    };
    assert!(matches!(answered.verdict, Verdict::Later(wait) if wait >= 100 * MS), "{answered:?}");
    assert_eq!(epoch().await, before + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_does_not_answer_a_knock_costs_a_call_its_wait_and_no_more() {
    let nobody = NoAnswer::new().await;
    let store = store_at(&format!("postgres://gwanmun@{}/x", nobody.address));
    let place = settings(18, (100, 50), vec![rule("inquiry", 1, 0)]);
    let pacer = Pacer::new(store.clone(), (&place.key, "inquiry"), (place.window, place.rtt_max), Arc::default());
    for nth in 0..5 {
        let (ended, took) = ask(&pacer, 1_000 * MS).await;
        assert_eq!(ended, Err(Denied::Unavailable));
        assert!(took <= 1_200 * MS, "{took:?}");
        if store.is_out() {
            assert!(nth >= 2, "the verdict came before its time");
            let (_, took) = ask(&pacer, 1_000 * MS).await;
            assert!(took <= 100 * MS, "{took:?}: everybody is refused at once");
            return;
        }
    }
    panic!("nothing was ever called an outage");
}

/// Takes so long, or for ever; counts.
#[derive(Debug)]
struct SlowLookup(Option<Duration>, Arc<AtomicU64>);

impl Lookup for SlowLookup {
    fn look_up<'a>(&'a self, host: &'a str, port: u16) -> LookingUp<'a> {
        self.1.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            match self.0 {
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            }
            SystemLookup.look_up(host, port).await
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_server_that_does_not_answer_costs_one_look_up_and_not_one_a_call() {
    let place = Place::new(settings(18, (100, 50), vec![rule("inquiry", 1, 0)])).await;
    for wait in [Some(Duration::from_secs(3)), None] {
        let asked = Arc::new(AtomicU64::new(0));
        let lookup = Arc::new(SlowLookup(wait, Arc::clone(&asked)));
        let store = SlotStore::new(&place.url, RULES, lookup, clock()).unwrap();
        let mut calls = JoinSet::new();
        for _ in 0..20 {
            // Each in a queue of its own, so that all of them ask.
            let pacer = place.pacer(&store, "inquiry");
            calls.spawn(async move { ask(&pacer, 500 * MS).await });
        }
        for (ended, took) in calls.join_all().await {
            assert_eq!(ended, Err(Denied::Unavailable));
            assert!(took <= 700 * MS, "{took:?}");
        }
        tokio::time::sleep(2_000 * MS).await;
        let (ended, took) = ask(&place.pacer(&store, "inquiry"), 500 * MS).await;
        assert_eq!(ended, Err(Denied::Unavailable));
        assert!(took <= 100 * MS, "{took:?}: it was out for two seconds, so nobody waits any more");
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        if wait.is_some() {
            let end = clock().now() + 5_000 * MS;
            while ask(&place.pacer(&store, "inquiry"), 500 * MS).await.0.is_err() {
                assert!(clock().now() < end, "no recovery");
                tokio::time::sleep(50 * MS).await;
            }
            assert_eq!(store.connections(), 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn four_callers_that_lose_their_answers_end_without_a_slot_and_recover_on_one_connection() {
    let classes = ["a", "b", "c", "d"];
    let rules = classes.iter().map(|name| rule(name, 1, 0)).collect();
    let place = Place::new(settings(60, (100, 50), rules)).await;
    let (proxy, url) = place.behind_proxy().await;
    // Connecting takes longer than anybody's patience: that they all waited for the first connection is no reason for a second.
    let lookup = Arc::new(SlowLookup(Some(80 * MS), Arc::default()));
    let rules = StoreSettings { statement_timeout: 2_000 * MS, patience: 70 * MS, ..RULES };
    let store = SlotStore::new(&url, rules, lookup, clock()).unwrap();
    let pacers: Vec<_> = classes.iter().map(|class| place.pacer(&store, class)).collect();
    // A lock on the budget makes all four questions wait at once, each over a connection of its own.
    let mut holder = place.session().await;
    sqlx::raw_sql("BEGIN; SELECT * FROM call_budget FOR UPDATE").execute(&mut holder).await.unwrap();
    let mut asking = JoinSet::new();
    for pacer in &pacers {
        let pacer = Arc::clone(pacer);
        asking.spawn(async move { ask(&pacer, 4_000 * MS).await });
    }
    let end = clock().now() + 1_500 * MS;
    while store.connections() < 4 && clock().now() < end {
        tokio::time::sleep(5 * MS).await;
    }
    assert_eq!(store.connections(), 4);
    proxy.set(Harm::CutAfter(0));
    let cut = clock().now();
    sqlx::raw_sql("COMMIT").execute(&mut holder).await.unwrap();
    for (ended, _) in asking.join_all().await {
        assert_eq!(ended, Err(Denied::Unavailable));
    }
    let took = clock().now() - cut;
    assert!(took <= 800 * MS, "{took:?}");
    assert_eq!((store.lost(), store.connections()), (4, 0), "each may have been granted");
    proxy.set(Harm::None);
    let mut asking = JoinSet::new();
    for pacer in &pacers {
        let pacer = Arc::clone(pacer);
        asking.spawn(async move { ask(&pacer, 2_000 * MS).await });
    }
    assert!(asking.join_all().await.into_iter().all(|(ended, _)| ended.is_ok()));
    // Long enough for another one, had it been begun.
    tokio::time::sleep(300 * MS).await;
    assert_eq!(store.connections(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_took_too_long_is_thrown_away() {
    let place = Place::new(settings(18, (100, 50), vec![rule("inquiry", 1, 0)])).await;
    let (proxy, url) = place.behind_proxy().await;
    let store = store_at(&url);
    let counts: Arc<ClassCounts> = Arc::default();
    let times = (place.settings.window, place.settings.rtt_max);
    let pacer = Pacer::new(store, (&place.settings.key, "inquiry"), times, Arc::clone(&counts));
    assert!(ask(&pacer, 2_000 * MS).await.0.is_ok());
    proxy.set(Harm::Latency(60 * MS));
    assert!(matches!(ask(&pacer, 1_000 * MS).await.0, Err(Denied::Exhausted(_))));
    assert!(counts.discarded_slow.load(Ordering::Relaxed) >= 3, "{counts:?}");
}
