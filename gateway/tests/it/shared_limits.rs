//! Four gateways on one PostgreSQL and one Redis: what they count together is exact, and what it costs when one of them, then
//! Redis, then PostgreSQL is gone under load.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mock_core_banking::{Fault, FaultRule, FaultSchedule};
use sqlx::{Connection, PgConnection};
use tokio::task::JoinSet;

use crate::budget_slots::{eighteen, gwanmun, most_in_a_second, now_us, number};
use crate::client::{Client, OPERATOR, balance, get, post, transfer};
use crate::harness::{TestGateway, eventually};
use crate::place::Place;
use crate::postgres::Postgres;
use crate::process::Process;
use crate::proxy::{Harm, Proxy};
use crate::redis::Redis;

async fn four(place: &Place, settings: &[(&str, &str)]) -> Vec<Process> {
    let mut gateways = Vec::new();
    for letter in ["A", "B", "C", "D"] {
        gateways.push(place.gateway(letter, settings).await);
    }
    gateways
}

/// Each gateway gets so many of these calls, all at once; what each was answered.
async fn storm(gateways: &[Process], each: usize, request: &str) -> Vec<crate::client::Answer> {
    let mut calls = JoinSet::new();
    for gateway in gateways {
        for _ in 0..each {
            let (address, request) = (gateway.address, request.to_owned());
            calls.spawn(async move { Client::connect(address).await.call(&request).await });
        }
    }
    calls.join_all().await
}

#[tokio::test(flavor = "multi_thread")]
async fn four_gateways_count_as_one() {
    let (postgres, redis) = (Postgres::shared(), Redis::shared());
    let mut tries = 0;
    while !count_as_one(&postgres, &redis).await {
        tries += 1;
        assert!(tries < 5, "Redis never answers in time on this machine");
    }
}

/// Says whether Redis answered everybody in time; one that it did not answer passed uncounted, as it should.
async fn count_as_one(postgres: &Postgres, redis: &Redis) -> bool {
    let place = Place::new(postgres.new_database()).await;
    let url = redis.new_database();
    let settings = [
        ("REDIS__URL", url.as_str()),
        ("CLIENT_LIMIT__STORE", "redis"),
        ("CLIENT_LIMIT__BURST", "300"),
        ("CLIENT_LIMIT__RATE", "1"),
        ("INSTITUTION__CORE_BANKING__BUDGET", "redis"),
        ("INSTITUTION__CORE_BANKING__BUDGET_LIMIT", "5"),
        ("INSTITUTION__CORE_BANKING__BUDGET_WITHOUT_REDIS", "closed"),
    ];
    let gateways = four(&place, &settings).await;
    let began = Instant::now();
    let mut ids = HashSet::new();
    let mut told = 0;
    let mut note = |answers: &[crate::client::Answer]| {
        for answer in answers.iter().filter(|answer| answer.headers.contains_key("x-transaction-id")) {
            told += 1;
            ids.insert(answer.transaction_id());
        }
    };
    // Idempotency: of a hundred identical transfers one is applied.
    let jitter = FaultRule { message: None, fault: Fault::Jitter, probability: 1.0, delay_ms: Some(80), code: None };
    place.simulator.host().set_faults(FaultSchedule { seed: 1, rules: vec![jitter] });
    let answers = storm(&gateways, 25, &transfer("one", "1", 5)).await;
    place.simulator.host().set_faults(FaultSchedule::default());
    let good: HashSet<_> = answers.iter().filter(|answer| answer.status == 200).map(|answer| &answer.text).collect();
    assert!(answers.iter().all(|answer| matches!(answer.status, 200 | 409)), "{answers:?}");
    assert_eq!((good.len(), place.simulator.host().counters().requests["0600"]), (1, 1));
    let applied: Vec<_> = answers.iter().filter(|answer| answer.status == 200).collect();
    assert!(applied.iter().all(|answer| answer.transaction_id() == applied[0].transaction_id()));
    // The budget: five at once, of fifteen on each of them.
    let answers = storm(&gateways, 4, &balance("1")).await;
    note(&answers);
    let sent = place.simulator.host().counters().requests["0200"];
    let denied = answers.iter().filter(|answer| answer.code() == "BUDGET_EXHAUSTED").count();
    println!("a bucket of 5 over four gateways: {} calls, {sent} sent, {denied} denied", answers.len());
    if !redis_answered(&gateways).await {
        return false;
    }
    assert!((5..=6).contains(&sent) && denied as u64 + sent == 16, "{sent} sent, {denied} denied");
    // The client's limit: 300 at once, of which the above have had 116.
    let answers = storm(&gateways, 100, &transfer("one", "1", 5)).await;
    let refused = answers.iter().filter(|answer| answer.status == 429).count();
    let passed = 116 + answers.len() - refused;
    println!("a client's burst of 300 over four gateways: {passed} passed, {refused} refused");
    if !redis_answered(&gateways).await {
        return false;
    }
    let refilled = usize::try_from(began.elapsed().as_secs()).unwrap() + 1;
    assert!((300..=300 + refilled).contains(&passed), "{passed} passed");
    assert!(
        answers.iter().filter(|answer| answer.status == 429).all(|answer| answer.headers["ratelimit-limit"] == "300")
    );
    // Every transaction that any of them ran is a row of its own, and none met another's id.
    let ran =
        storm(&gateways, 25, &balance("1")).await.iter().filter(|answer| !answer.transaction_id().is_empty()).count();
    let mut database = PgConnection::connect(&place.url).await.unwrap();
    let (mut rows, wanted) = (0_i64, i64::try_from(told + ran).unwrap() + 1);
    eventually("all rows are in the database", async || {
        rows = sqlx::query_scalar("SELECT COUNT(*) FROM ledger").fetch_one(&mut database).await.unwrap();
        rows >= wanted
    })
    .await;
    let parked: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM ledger_parked").fetch_one(&mut database).await.unwrap();
    assert_eq!((rows, parked, ids.len()), (wanted, 0, told), "a transaction id was used twice");
    true
}

/// Whether Redis answered every one of these gateways in time so far.
async fn redis_answered(gateways: &[Process]) -> bool {
    for gateway in gateways {
        let stats = gateway.client().await.call(&get("/api/limits/stats", OPERATOR)).await.json();
        if stats["redis"]["failed"] != 0 || stats["redis"]["skipped"] != 0 {
            return false;
        }
    }
    true
}

fn addresses(gateways: &[Process]) -> Vec<SocketAddr> {
    gateways.iter().map(|gateway| gateway.address).collect()
}

/// What callers of one kind heard in one phase.
#[derive(Default, Debug)]
struct Heard {
    by_code: BTreeMap<String, usize>,
    slowest: Duration,
    total: Duration,
}

impl Heard {
    fn all(&self) -> usize {
        self.by_code.values().sum()
    }

    fn show(&self) -> String {
        let mean = self.total.as_secs_f64() * 1_000.0 / self.all().max(1) as f64;
        format!("{:?}, mean {mean:.1} ms, slowest {:.1} ms", self.by_code, self.slowest.as_secs_f64() * 1_000.0)
    }
}

/// Calls until told to stop, on whichever gateway is left.
async fn call_until(stop: Arc<AtomicBool>, addresses: Vec<SocketAddr>, request: impl Fn(usize) -> String) -> Heard {
    let mut heard = Heard::default();
    let mut clients = Vec::new();
    for address in addresses {
        clients.push(Client::connect(address).await);
    }
    let mut nth = 0;
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        let count = clients.len();
        let client = &mut clients[nth % count];
        client.send(&request(nth)).await;
        let Some(answer) = client.read().await else {
            *heard.by_code.entry("connection lost".into()).or_default() += 1;
            clients.remove(nth % count);
            continue;
        };
        let took = began.elapsed();
        let code = if answer.status == 200 { "200".to_owned() } else { format!("{} {}", answer.status, answer.code()) };
        *heard.by_code.entry(code).or_default() += 1;
        heard.slowest = heard.slowest.max(took);
        heard.total += took;
        nth += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    heard
}

/// Load of three kinds for a while; what each heard.
async fn phase(name: &str, addresses: Vec<SocketAddr>, time: Duration) -> [Heard; 3] {
    let stop = Arc::new(AtomicBool::new(false));
    let round = fastrand::u64(..);
    let start = |request: Box<dyn Fn(usize) -> String + Send + Sync>| {
        tokio::spawn(call_until(Arc::clone(&stop), addresses.clone(), request))
    };
    let balances = start(Box::new(|_| balance("1")));
    let rates = start(Box::new(|_| post("/api/gateway/exchange-rate", crate::client::CLIENT, r#"{"currency":"USD"}"#)));
    let transfers = start(Box::new(move |nth| transfer(&format!("{round}-{nth}"), "1", 1)));
    tokio::time::sleep(time).await;
    stop.store(true, Ordering::Relaxed);
    let heard = [balances.await.unwrap(), rates.await.unwrap(), transfers.await.unwrap()];
    for (kind, heard) in
        ["balances (postgres budget)", "rates (redis cache)", "transfers (redis budget)"].iter().zip(&heard)
    {
        println!("{name}: {kind}: {}", heard.show());
    }
    heard
}

/// `BUDGET_SECONDS=20` makes each phase longer.
#[tokio::test(flavor = "multi_thread")]
async fn what_it_costs_when_a_gateway_then_redis_then_the_database_is_gone_under_load() {
    let (mut postgres, mut redis) = (Postgres::start(), Redis::start());
    let place = Place::new(postgres.new_database()).await;
    let url = redis.new_database();
    let mut settings = eighteen("100ms", "50ms", "50ms");
    settings.extend([
        ("REDIS__URL", url.as_str()),
        ("CLIENT_LIMIT__STORE", "redis"),
        ("CACHE__STORE", "redis"),
        ("INSTITUTION__CORE_TRANSFER__BUDGET", "redis"),
        ("INSTITUTION__CORE_TRANSFER__BUDGET_LIMIT", "100000"),
    ]);
    let own = [("LEDGER__STORE", "postgres"), ("LEDGER__POSTGRES_URL", place.url.as_str())];
    let all: Vec<_> = settings.iter().chain(&own).copied().collect();
    assert!(gwanmun(&["budget", "set"], &place.config("S"), &all).status.success());
    let mut gateways = four(&place, &settings).await;
    let time = Duration::from_secs(number("BUDGET_SECONDS", 2));
    let calm = phase("all well", addresses(&gateways), time).await;
    assert!(
        calm.iter().all(|heard| heard.by_code.keys().all(|code| code == "200" || code.contains("BUDGET_EXHAUSTED")))
    );

    // One gateway is killed under load: its own callers lose their connection, the others hear nothing of it.
    let everywhere = addresses(&gateways);
    let killed = gateways.pop().unwrap();
    let after = async {
        tokio::time::sleep(time / 2).await;
        killed.kill();
    };
    let left = addresses(&gateways);
    let (_, heard) = tokio::join!(after, phase("a gateway killed", everywhere, time));
    for heard in &heard {
        // A transfer whose connection was lost is called for again, elsewhere; there its key is the dead gateway's.
        const HELD: &str = "409 IDEMPOTENCY_IN_PROGRESS";
        let fine = |code: &String| {
            code == "200" || code == "connection lost" || code == HELD || code.contains("BUDGET_EXHAUSTED")
        };
        assert!(heard.by_code.keys().all(fine), "{heard:?}");
        let count = |code: &str| heard.by_code.get(code).copied().unwrap_or_default();
        assert!(count(HELD) <= count("connection lost"), "{heard:?}");
    }

    // Redis is killed: no error, and no call waits longer than its patience.
    redis.kill();
    let heard = phase("redis gone", left.clone(), time).await;
    for heard in &heard {
        assert!(heard.by_code.keys().all(|code| code == "200" || code.contains("BUDGET_EXHAUSTED")), "{heard:?}");
    }
    redis.start_again();

    // PostgreSQL is killed: what needs it is refused, nothing over the budget is sent, and the rest goes on.
    postgres.stop();
    let stopped = now_us();
    let heard = phase("postgres gone", left, time.max(Duration::from_secs(3))).await;
    let sent: Vec<_> =
        place.simulator.host().arrivals().into_iter().filter(|one| one.at_us > stopped + 350_000).collect();
    assert_eq!(sent.iter().filter(|one| one.kind == "0200").count(), 0, "a balance was sent without a slot");
    assert_eq!(sent.iter().filter(|one| one.kind == "0600").count(), 0, "a transfer was sent without a claim");
    assert!(heard[1].by_code.keys().all(|code| code == "200"), "{:?}", heard[1]);
    assert!(heard[0].by_code.contains_key("503 BUDGET_UNAVAILABLE"), "{:?}", heard[0]);
    assert!(heard[2].by_code.keys().all(|code| code == "503 IDEMPOTENCY_UNAVAILABLE"), "{:?}", heard[2]);
    postgres.start_again();
    eventually("everything runs again", async || {
        let (mut good, mut client) = (true, gateways[0].client().await);
        for request in [balance("1"), transfer(&format!("again-{}", fastrand::u64(..)), "1", 1)] {
            good &= client.call(&request).await.status == 200;
        }
        good
    })
    .await;
    let balances: Vec<_> = place.simulator.host().arrivals().into_iter().filter(|one| one.kind == "0200").collect();
    println!("at most {} balances in any second, over everything", most_in_a_second(&balances));
    assert!(most_in_a_second(&balances) <= 18);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_falls_silent_costs_the_first_request_fifty_milliseconds_in_all_and_no_error() {
    let redis = Redis::shared();
    let server: SocketAddr = format!("127.0.0.1:{}", redis.port()).parse().unwrap();
    let proxy = Proxy::before(server).await;
    let url = format!("redis://{}/0", proxy.address);
    let gateway = TestGateway::start(&[
        ("REDIS__URL", &url),
        ("CLIENT_LIMIT__STORE", "redis"),
        ("CACHE__STORE", "redis"),
        ("INSTITUTION__CORE_TRANSFER__BUDGET", "redis"),
        ("INSTITUTION__CORE_TRANSFER__BUDGET_LIMIT", "1000"),
    ])
    .await;
    let rate = post("/api/gateway/exchange-rate", crate::client::CLIENT, r#"{"currency":"USD"}"#);
    let mut client = gateway.client().await;
    assert_eq!(client.call(&rate).await.status, 200);
    let stats = async || gateway.get("/api/limits/stats", OPERATOR).await["redis"].clone();
    assert_eq!(stats().await["up"], true);
    // It would ask four times: for the client, twice for the reply, for the call. The machine may add to it, so the best of three.
    let mut first = Duration::MAX;
    for _ in 0..3 {
        proxy.set(Harm::None);
        eventually("Redis is asked again", async || stats().await["up"] == true).await;
        proxy.set(Harm::StallAfter(0));
        let failed = stats().await["failed"].as_u64().unwrap();
        let began = Instant::now();
        assert_eq!(client.call(&rate).await.status, 200);
        first = first.min(began.elapsed());
        let after = stats().await;
        assert_eq!((&after["up"], after["failed"].as_u64().unwrap()), (&false.into(), failed + 1), "{after}");
    }
    let after_first = stats().await;
    let began = Instant::now();
    for _ in 0..20 {
        let answer = client.call(&rate).await;
        assert_eq!(answer.status, 200);
        assert!(!answer.headers.contains_key("ratelimit-limit"), "nobody knows what is left");
    }
    let others = began.elapsed() / 20;
    let after = stats().await;
    println!("a silent Redis: the first request took {first:.1?}, the next 20 {others:.1?} each");
    let most = Duration::from_millis(50 + 40);
    assert!(first >= Duration::from_millis(50) && first <= most, "{first:?}");
    assert_eq!(after["asked"], after_first["asked"], "nobody asked again");
    assert!(after["skipped"].as_u64().unwrap() >= 20, "{after}");
    let limits = gateway.get("/api/limits/stats", OPERATOR).await;
    assert!(limits["clientLimit"]["degraded"].as_u64().unwrap() >= 21, "{limits}");
    assert!(gateway.call(&get("/metrics", OPERATOR)).await.text.contains("gwanmun_redis_up 0"));
}
