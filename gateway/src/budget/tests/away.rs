//! Every way in which the database can be away.

use super::*;

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
