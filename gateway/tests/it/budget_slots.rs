//! Send slots from PostgreSQL, seen from the host: how many frames arrive in any second, from how many gateways, and whatever
//! happens to them or to the database.
//!
//! `BUDGET_SECONDS=30` and `STOPS=200` make the tests go on for longer; they print what they counted.

use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mock_core_banking::{Arrival, Host};
use rustix::process::Signal;
use serde_json::Value;
use sqlx::{Connection, PgConnection};
use tokio::task::JoinSet;

use crate::client::{Client, OPERATOR, balance, get};
use crate::harness::{eventually, simulator};
use crate::place::Place;
use crate::postgres::Postgres;
use crate::process::{Process, write_config};

pub(crate) fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// A budget for balances, under the default classes.
pub(crate) fn eighteen<'a>(window: &'a str, jitter: &'a str, rtt_max: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![
        ("INSTITUTION__CORE_BANKING__BUDGET", "postgres"),
        ("INSTITUTION__CORE_BANKING__BUDGET_LIMIT", "18"),
        ("INSTITUTION__CORE_BANKING__BUDGET_WINDOW", window),
        ("INSTITUTION__CORE_BANKING__BUDGET_JITTER", jitter),
        ("INSTITUTION__CORE_BANKING__BUDGET_RTT_MAX", rtt_max),
    ]
}

pub(crate) fn gwanmun(arguments: &[&str], config: &Path, settings: &[(&str, &str)]) -> Output {
    std::process::Command::new(env!("CARGO_BIN_EXE_gwanmun"))
        .args(arguments)
        .arg("--config")
        .arg(config)
        .envs(settings.iter().map(|(name, value)| (format!("GWANMUN_{name}"), *value)))
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Callers who ask for balances until told to stop; what they were told, by code.
struct Load {
    stop: Arc<AtomicBool>,
    callers: JoinSet<Vec<String>>,
}

impl Load {
    fn on(gateways: &[&Process], callers: usize) -> Self {
        let (stop, mut all) = (Arc::new(AtomicBool::new(false)), JoinSet::new());
        for gateway in gateways {
            for _ in 0..callers {
                let (address, stop) = (gateway.address, Arc::clone(&stop));
                all.spawn(async move {
                    let mut client = Client::connect(address).await;
                    let mut told = Vec::new();
                    while !stop.load(Ordering::Relaxed) {
                        let answer = client.call(&balance("1")).await;
                        let good = answer.status == 200;
                        told.push(if good { "OK".to_owned() } else { answer.code() });
                        if !good {
                            tokio::time::sleep(Duration::from_millis(20)).await;
                        }
                    }
                    told
                });
            }
        }
        Self { stop, callers: all }
    }

    async fn end(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        self.callers.join_all().await.concat()
    }
}

/// The most frames that arrived in any second, by sliding it over each arrival.
pub(crate) fn most_in_a_second(arrivals: &[Arrival]) -> usize {
    let times: Vec<i64> = arrivals.iter().map(|arrival| arrival.at_us).collect();
    let in_second = |start: &i64| times.iter().filter(|at| (*start..*start + 1_000_000).contains(*at)).count();
    times.iter().map(in_second).max().unwrap_or_default()
}

fn rate(arrivals: &[Arrival]) -> f64 {
    let (Some(first), Some(last)) = (arrivals.first(), arrivals.last()) else { return 0.0 };
    (arrivals.len() - 1) as f64 / ((last.at_us - first.at_us) as f64 / 1e6)
}

async fn stats(gateway: &Process) -> Value {
    let stats = gateway.client().await.call(&get("/api/limits/stats", OPERATOR)).await.json();
    stats["institutions"]["core-banking"]["classes"]["inquiry"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn four_gateways_with_twelve_callers_each_never_send_more_in_any_second_than_the_contract_allows() {
    let postgres = Postgres::shared();
    for (window, jitter, rtt_max) in [("100ms", "50ms", "50ms"), ("20ms", "5ms", "10ms")] {
        let place = Place::new(postgres.new_database()).await;
        let budget = eighteen(window, jitter, rtt_max);
        let mut settings = budget.clone();
        settings.extend([("LEDGER__STORE", "postgres"), ("LEDGER__POSTGRES_URL", place.url.as_str())]);
        let set = gwanmun(&["budget", "set"], &place.config("S"), &settings);
        assert!(set.status.success(), "{}", said(&set));
        let (a, b) = (place.gateway("A", &budget).await, place.gateway("B", &budget).await);
        let (c, d) = (place.gateway("C", &budget).await, place.gateway("D", &budget).await);
        let load = Load::on(&[&a, &b, &c, &d], 12);
        tokio::time::sleep(Duration::from_secs(number("BUDGET_SECONDS", 7))).await;
        let arrivals = place.simulator.host().arrivals();
        let told = load.end().await;
        let (most, rate) = (most_in_a_second(&arrivals), rate(&arrivals));
        let mut discarded = (0, 0);
        for gateway in [&a, &b, &c, &d] {
            let class = stats(gateway).await;
            discarded.0 += class["discardedSlow"].as_u64().unwrap();
            discarded.1 += class["discardedLate"].as_u64().unwrap();
        }
        println!(
            "window {window}, jitter {jitter}: {} arrivals, {rate:.1}/s, at most {most} in any second; thrown away: {} slow answers, {} late slots",
            arrivals.len(),
            discarded.0,
            discarded.1
        );
        assert!(most <= 18, "{most} in one second");
        let mut by_code = std::collections::BTreeMap::<&str, usize>::new();
        for code in &told {
            *by_code.entry(code).or_default() += 1;
        }
        println!("callers heard {by_code:?}");
        assert!(by_code.keys().all(|code| matches!(*code, "OK" | "BUDGET_EXHAUSTED")), "{by_code:?}");
        if window == "100ms" {
            assert!(rate >= 14.0, "{rate}");
        }
    }
}

/// Frames that arrived outside the window of any slot that was granted, by how many microseconds behind the last slot before
/// them they came: each slot covers one.
fn late(arrivals: &[Arrival], slots: &[i64], window_us: i64) -> Vec<i64> {
    let mut free: Vec<i64> = slots.to_vec();
    free.sort_unstable();
    let mut late = Vec::new();
    for arrival in arrivals {
        let covers = |slot: &i64| (*slot..=*slot + window_us).contains(&arrival.at_us);
        match free.iter().position(covers) {
            Some(index) => drop(free.remove(index)),
            None => {
                let before = slots.iter().copied().filter(|slot| *slot <= arrival.at_us).max();
                late.push(arrival.at_us - before.unwrap_or_default());
            }
        }
    }
    late
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_is_stopped_between_grant_and_send_throws_its_slot_away() {
    let postgres = Postgres::shared();
    let place = Place::new(postgres.new_database()).await;
    let budget = eighteen("60ms", "50ms", "30ms");
    let mut settings = budget.clone();
    settings.extend([("LEDGER__STORE", "postgres"), ("LEDGER__POSTGRES_URL", place.url.as_str())]);
    assert!(gwanmun(&["budget", "set"], &place.config("S"), &settings).status.success());
    let mut database = PgConnection::connect(&place.url).await.unwrap();
    // The witness on the database's side: every slot that is granted.
    sqlx::raw_sql(
        "CREATE TABLE granted (slot_at_us bigint);
         CREATE FUNCTION note_slot() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO granted VALUES (NEW.next_slot_at_us - NEW.interval_us); RETURN NEW; END $$;
         CREATE TRIGGER note_slot AFTER UPDATE ON call_budget FOR EACH ROW
             WHEN (NEW.next_slot_at_us > OLD.next_slot_at_us) EXECUTE FUNCTION note_slot();",
    )
    .execute(&mut database)
    .await
    .unwrap();
    let gateway = place.gateway("A", &budget).await;
    let load = Load::on(&[&gateway], 4);
    eventually("it sends", async || place.simulator.host().arrivals().len() > 3).await;
    let stops = number("STOPS", 20);
    for _ in 0..stops {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(60..200))).await;
        gateway.signal(Signal::STOP);
        tokio::time::sleep(Duration::from_millis(fastrand::u64(120..300))).await;
        gateway.signal(Signal::CONT);
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let discarded = stats(&gateway).await;
    load.end().await;
    let arrivals = place.simulator.host().arrivals();
    let slots: Vec<i64> = sqlx::query_scalar("SELECT slot_at_us FROM granted").fetch_all(&mut database).await.unwrap();
    let late = late(&arrivals, &slots, 60_000 + 50_000);
    println!(
        "{stops} stops: {} slots, {} sends, {late:?} late; thrown away: {} late slots, {} slow answers; at most {} in any second",
        slots.len(),
        arrivals.len(),
        discarded["discardedLate"],
        discarded["discardedSlow"],
        most_in_a_second(&arrivals)
    );
    assert!(late.is_empty(), "{late:?} us behind the slot before them");
    assert!(
        discarded["discardedLate"].as_u64().unwrap() >= stops / 4,
        "the stops missed what they were for: {discarded}"
    );
    assert!(most_in_a_second(&arrivals) <= 18);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_budgets_database_is_down_nothing_is_sent_and_its_return_costs_one_pause() {
    let mut postgres = Postgres::start();
    let (simulator, folder) = (simulator(Duration::from_millis(100)).await, tempfile::tempdir().unwrap());
    let url = postgres.new_database();
    // The ledger stands on SQLite: only the budget is away.
    let config = write_config(folder.path(), &simulator, "");
    let mut settings = eighteen("100ms", "50ms", "50ms");
    settings.push(("BUDGET__POSTGRES_URL", &url));
    let set = gwanmun(&["budget", "set"], &config, &settings);
    assert!(set.status.success(), "{}", said(&set));
    let gateway = Process::start_with(&config, &settings).await;
    let host = Arc::clone(simulator.host());
    let load = Load::on(&[&gateway], 8);
    eventually("it sends", async || host.arrivals().len() > 10).await;
    postgres.stop();
    let stopped = now_us();
    tokio::time::sleep(Duration::from_secs(4)).await;
    let began = now_us();
    postgres.start_again();
    let back = now_us();
    eventually("it sends again", async || last(&host) > back).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let told = load.end().await;
    let arrivals = host.arrivals();
    // What had been granted before may still leave: 200 ms ahead, a window of 100, and 50 on the way.
    let sent = arrivals.iter().filter(|arrival| (stopped + 350_000..began).contains(&arrival.at_us)).count();
    let first = arrivals.iter().map(|arrival| arrival.at_us).find(|at| *at >= began).unwrap();
    let refused = told.iter().filter(|code| *code == "BUDGET_UNAVAILABLE").count();
    println!(
        "4 s without the database: {sent} sent, {refused} calls refused; the first one {} ms after it answered again; at most {} in any second",
        (first - back) / 1_000,
        most_in_a_second(&arrivals)
    );
    assert_eq!(sent, 0);
    assert!(refused > 50, "they wait instead of being told: {refused}");
    assert!(first - back <= 1_550_000, "a quarantine of 350 ms and a second, and 200 ms of slack");
    assert!(most_in_a_second(&arrivals) <= 18);
}

pub(crate) fn now_us() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_micros()).unwrap()
}

fn last(host: &Host) -> i64 {
    host.arrivals().last().map_or(0, |arrival| arrival.at_us)
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_wait_for_a_slot_hold_no_line_and_one_a_class_stands_ready() {
    let postgres = Postgres::shared();
    let place = Place::new(postgres.new_database()).await;
    let config = place.config("S");
    // A slot every 1.15 s.
    let settings = [
        ("INSTITUTION__CORE_BANKING__BUDGET", "postgres"),
        ("INSTITUTION__CORE_BANKING__BUDGET_LIMIT", "2"),
        ("BUDGET__POSTGRES_URL", place.url.as_str()),
    ];
    assert!(gwanmun(&["budget", "set"], &config, &settings).status.success());
    let gateway = Process::start_with(&config, &settings).await;
    let load = Load::on(&[&gateway], 8);
    eventually("it sends", async || !place.simulator.host().arrivals().is_empty()).await;
    let mut client = gateway.client().await;
    for _ in 0..20 {
        let pool = client.call(&get("/api/pool/stats", OPERATOR)).await.json()["core-banking"].clone();
        assert!(pool["active"].as_u64().unwrap() <= 1, "{pool}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let waiting = stats(&gateway).await["waiting"].as_u64().unwrap();
    assert!(waiting >= 6, "{waiting} wait");
    load.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_sets_shows_and_measures_a_budget_and_leaves_nothing_behind() {
    let postgres = Postgres::shared();
    let place = Place::new(postgres.new_database()).await;
    let config = place.config("S");
    let mut settings = eighteen("100ms", "50ms", "50ms");
    settings.push(("BUDGET__POSTGRES_URL", &place.url));
    let early = gwanmun(&["budget", "measure", "--institution", "core-banking"], &config, &settings);
    assert_eq!(early.status.code(), Some(69), "a measurement makes no tables: {}", said(&early));
    ::gwanmun::ledger::migrate_postgres(&place.url).await.unwrap();
    let measured = gwanmun(
        &["budget", "measure", "--institution", "core-banking", "--trips", "200", "--connects", "5"],
        &config,
        &settings,
    );
    let text = said(&measured);
    println!("{text}");
    for line in ["round trip", "discarded", "way to it", "backlog", "database", "its window"] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(matches!(measured.status.code(), Some(0 | 65)), "{text}");
    let shown = gwanmun(&["budget", "show"], &config, &settings);
    assert_eq!(shown.status.code(), Some(65), "{}", said(&shown));
    assert!(said(&shown).contains("core-banking: not set"));
    let set = gwanmun(&["budget", "set", "--institution", "core-banking"], &config, &settings);
    assert!(set.status.success() && said(&set).contains("a slot every 67.6 ms"), "{}", said(&set));
    let shown = gwanmun(&["budget", "show"], &config, &settings);
    assert!(shown.status.success() && said(&shown).contains("as configured"), "{}", said(&shown));
    let other = eighteen("40ms", "50ms", "20ms").into_iter().chain([("BUDGET__POSTGRES_URL", place.url.as_str())]);
    let shown = gwanmun(&["budget", "show"], &config, &other.collect::<Vec<_>>());
    assert_eq!(shown.status.code(), Some(65));
    assert!(said(&shown).contains("NOT as configured"), "{}", said(&shown));
    let mut database = PgConnection::connect(&place.url).await.unwrap();
    let keys: Vec<String> =
        sqlx::query_scalar("SELECT budget_key FROM call_budget").fetch_all(&mut database).await.unwrap();
    assert_eq!(keys.len(), 1, "{keys:?}");
    assert!(keys[0].starts_with("core-banking:") && keys[0].len() == "core-banking:".len() + 16);
    assert_eq!(place.simulator.host().counters().requests.len(), 0, "nothing was sent");
    let without = gwanmun(&["budget", "show"], &config, &[]);
    assert_eq!(without.status.code(), Some(64), "{}", said(&without));
}
