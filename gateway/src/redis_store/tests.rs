//! A real Redis, and what becomes of callers when it is slow, silent or gone.

use super::*;
use crate::lookup::SystemLookup;
use crate::parts::proxy::{Harm, Proxy};
use crate::parts::redis::Redis;

const FIVE: Quota = Quota { burst: 5, rate: 5 };
const MS: Duration = Duration::from_millis(1);

fn clock() -> Clock {
    Clock::system().unwrap()
}

async fn connect_to(url: &str) -> RedisStore {
    let store = RedisStore::new(url, Arc::new(SystemLookup), clock()).unwrap();
    store.connect(Duration::from_secs(5)).await;
    assert!(store.stats().is_up);
    store
}

async fn take(store: &RedisStore, key: &str, quota: Quota) -> (bool, Standing) {
    // The machine is shared: what a request would not wait for, a test does.
    for _ in 0..100 {
        if let Some(taken) = store.take(key, quota, &Patience::default()).await {
            return taken;
        }
        tokio::time::sleep(50 * MS).await;
    }
    panic!("Redis does not answer");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_gives_its_capacity_at_once_and_then_its_rate_by_the_servers_clock() {
    let redis = Redis::shared();
    let store = connect_to(&redis.new_database()).await;
    let mut standings = Vec::new();
    for _ in 0..5 {
        let (taken, standing) = take(&store, "b", FIVE).await;
        assert!(taken);
        standings.push(standing.remaining);
    }
    assert!(standings[0] == 4 && standings.is_sorted_by(|a, b| a >= b), "{standings:?}");
    let (taken, standing) = take(&store, "b", FIVE).await;
    let wait = standing.retry_after;
    assert!(!taken || standings[4] > 0);
    assert!(wait <= 200 * MS, "one every 200 ms: {wait:?}");
    tokio::time::sleep(wait + 5 * MS).await;
    assert!(take(&store, "b", FIVE).await.0, "the wait that was told was long enough");
    tokio::time::sleep(1_100 * MS).await;
    let (_, standing) = take(&store, "b", FIVE).await;
    assert_eq!((standing.remaining, standing.limit), (4, 5), "full again, and not more than full");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_at_once_over_several_connections_exactly_the_capacity_passes() {
    let redis = Redis::shared();
    let url = redis.new_database();
    // A token every second: none comes back while the test runs.
    let quota = Quota { burst: 100, rate: 1 };
    let mut all = tokio::task::JoinSet::new();
    let began = clock().now();
    for _ in 0..4 {
        let store = connect_to(&url).await;
        for _ in 0..100 {
            let store = store.clone();
            all.spawn(async move { take(&store, "b", quota).await.0 });
        }
    }
    let passed = all.join_all().await.into_iter().filter(|taken| *taken).count();
    let refilled = usize::try_from((clock().now() - began).as_secs()).unwrap() + 1;
    assert!((100..=100 + refilled).contains(&passed), "{passed} passed");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_bucket_runs_out_by_itself() {
    let redis = Redis::shared();
    let url = redis.new_database();
    let store = connect_to(&url).await;
    let number = url.rsplit('/').next().unwrap();
    let left = |key: &str| -> i64 {
        let answer = redis.say(&format!("SELECT {number}\r\nPTTL {key}\r\n")).unwrap();
        answer.lines().filter_map(|line| line.strip_prefix(':')).next_back().unwrap().parse().unwrap()
    };
    for (key, quota) in [("small", FIVE), ("slow", Quota { burst: 1_000, rate: 1 })] {
        for _ in 0..3 {
            take(&store, key, quota).await;
            assert!((1..=1_001_000).contains(&left(key)), "{key}: {}", left(key));
        }
    }
    // Three are missing at five a second: full in 600 ms, and a second more.
    assert!(left("small") <= 1_600, "{}", left("small"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_went_back_gives_nothing_and_a_lower_capacity_cuts_off_what_is_over_it() {
    let redis = Redis::shared();
    let url = redis.new_database();
    let store = connect_to(&url).await;
    let number = url.rsplit('/').next().unwrap();
    let seconds = redis.say("TIME\r\n").unwrap();
    let now: u64 = seconds.lines().nth(2).unwrap().parse().unwrap();
    let set = |level: u64, at: u64| {
        redis.say(&format!("SELECT {number}\r\nSET b {level}:{at}000000 PX 60000\r\n")).unwrap();
    };
    set(1_500_000, now + 3_600);
    let (taken, standing) = take(&store, "b", FIVE).await;
    assert!(taken && standing.remaining == 0, "what was there, and nothing for the hour: {standing:?}");
    let (taken, standing) = take(&store, "b", FIVE).await;
    assert!(!taken && standing.retry_after <= 100 * MS, "it counts from where the clock is now: {standing:?}");
    set(900_000_000, now);
    let (taken, standing) = take(&store, "b", FIVE).await;
    assert!(taken && standing.remaining == 4, "{standing:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_whose_clocks_differ_share_one_bucket() {
    let redis = Redis::shared();
    let url = redis.new_database();
    let store = connect_to(&url).await;
    let quota = Quota { burst: 5, rate: 1 };
    for _ in 0..5 {
        assert!(take(&store, "b", quota).await.0);
    }
    let later = clock().wall() + jiff::SignedDuration::from_hours(1);
    let ahead = RedisStore::new(&url, Arc::new(SystemLookup), Clock::simulated(later).unwrap()).unwrap();
    ahead.connect(Duration::from_secs(5)).await;
    let began = clock().now();
    let mut passed = 0;
    for _ in 0..5 {
        passed += u64::from(take(&ahead, "b", quota).await.0);
    }
    assert!(passed <= (clock().now() - began).as_secs() + 1, "{passed} passed, an hour early");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_has_forgotten_the_script_is_told_it_again() {
    let redis = Redis::shared();
    let store = connect_to(&redis.new_database()).await;
    assert!(take(&store, "b", FIVE).await.0);
    redis.say("SCRIPT FLUSH\r\n").unwrap();
    assert!(take(&store, "b", FIVE).await.0);
    assert!(store.stats().is_up);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_falls_silent_costs_the_first_callers_their_patience_and_the_others_nothing() {
    let redis = Redis::shared();
    let server = format!("127.0.0.1:{}", redis.port()).parse().unwrap();
    let proxy = Proxy::before(server).await;
    let store = connect_to(&format!("redis://{}/0", proxy.address)).await;
    assert!(take(&store, "silent", FIVE).await.0);
    proxy.set(Harm::StallAfter(0));
    let connections = proxy.accepted();
    let began = clock().now();
    assert_eq!(store.take("silent", FIVE, &Patience::default()).await, None);
    let waited = clock().now() - began;
    assert!(waited >= PATIENCE, "{waited:?}");
    let before = store.stats();
    assert_eq!((before.is_up, before.failed), (false, 1));
    for _ in 0..1_000 {
        assert_eq!(store.take("silent", FIVE, &Patience::default()).await, None);
    }
    let after = store.stats();
    assert_eq!((after.asked, after.skipped - before.skipped), (before.asked, 1_000), "nobody asked");
    tokio::time::sleep(2_500 * MS).await;
    let probes = proxy.accepted() - connections;
    assert!((1..=2).contains(&probes), "{probes} connections in two and a half seconds: one task asks");
    proxy.set(Harm::None);
    let end = clock().now() + Duration::from_secs(10);
    while !store.stats().is_up {
        assert!(clock().now() < end, "no recovery");
        tokio::time::sleep(20 * MS).await;
    }
    take(&store, "silent", FIVE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_asks_several_times_waits_no_longer_than_one_that_asks_once() {
    let redis = Redis::shared();
    let server = format!("127.0.0.1:{}", redis.port()).parse().unwrap();
    let proxy = Proxy::before(server).await;
    let store = connect_to(&format!("redis://{}/0", proxy.address)).await;
    take(&store, "slow", FIVE).await;
    proxy.set(Harm::Latency(30 * MS));
    // Until one answer has come through: the machine is shared.
    for _ in 0..50 {
        let patience = Patience::default();
        if store.take("slow", FIVE, &patience).await.is_none() {
            tokio::time::sleep(100 * MS).await;
            continue;
        }
        assert!(patience.left() <= 20 * MS, "{:?}", patience.left());
        let second = store.get("none", &patience).await;
        assert_eq!(second, None, "20 ms are less than 30");
        assert_eq!(patience.left(), Duration::ZERO);
        let before = store.stats();
        assert_eq!(store.get("none", &patience).await, None);
        let after = store.stats();
        assert_eq!((after.asked, after.skipped), (before.asked, before.skipped + 1));
        assert!(after.is_up, "a request that was out of patience says nothing about Redis");
        return;
    }
    panic!("no answer ever came in time");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_kept_is_given_back_with_the_time_that_is_left_of_it() {
    let redis = Redis::shared();
    let store = connect_to(&redis.new_database()).await;
    let patience = Patience(AtomicU64::new(5_000_000));
    assert_eq!(store.get("k", &patience).await, Some(None));
    store.put("k", "값".as_bytes(), 5_000 * MS, &patience).await.unwrap();
    let (value, left) = store.get("k", &patience).await.unwrap().unwrap();
    assert_eq!(value, "값".as_bytes());
    assert!(left <= 5_000 * MS && left > 2_000 * MS, "{left:?}");
}

#[test]
fn a_url_is_refused_by_its_rule_and_never_repeated() {
    for url in ["rediss://secret@host:1/0", "http://secret", "secret"] {
        let rule = RedisStore::new(url, Arc::new(SystemLookup), clock()).unwrap_err();
        assert!(!rule.contains("secret"), "{rule}");
    }
}
