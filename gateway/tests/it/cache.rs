//! Replies that are given again: who is asked how often, what is served when the institution is gone, and what never is.

use std::collections::HashSet;
use std::time::Duration;

use gwanmun::failure::Failure;
use gwanmun::routes::Kind;
use mock_core_banking::{Fault, FaultRule, FaultSchedule};
use serde_json::Value;
use tokio::task::JoinSet;

use crate::budget::limits;
use crate::client::{AUDITOR, Answer, CLIENT, Client, post};
use crate::harness::{TestGateway, config_text, eventually, start_logging};
use crate::redis::Redis;
use crate::taxonomy::compare_answer;

const CURRENCIES: [&str; 5] = ["USD", "JPY", "EUR", "CNY", "GBP"];

fn rate(currency: &str) -> String {
    post("/api/gateway/exchange-rate", CLIENT, &format!(r#"{{"currency":"{currency}"}}"#))
}

fn with_times(ttl: &str, grace: &str) -> String {
    config_text()
        .replace("cache_ttl = \"10s\"", &format!("cache_ttl = \"{ttl}\""))
        .replace("cache_grace = \"5m\"", &format!("cache_grace = \"{grace}\""))
}

/// Each viewer looks at each currency, all at once.
async fn view(gateway: &TestGateway, viewers: usize, currencies: &[&'static str]) -> Vec<Answer> {
    let mut calls = JoinSet::new();
    for _ in 0..viewers {
        for currency in currencies {
            let (address, request) = (gateway.address, rate(currency));
            calls.spawn(async move { Client::connect(address).await.call(&request).await });
        }
    }
    calls.join_all().await
}

fn asked(gateway: &TestGateway) -> u64 {
    gateway.simulator.host().counters().requests.get("0700").copied().unwrap_or_default()
}

async fn row(gateway: &TestGateway, answer: &Answer) -> Value {
    gateway.get(&format!("/api/ledger/{}", answer.transaction_id()), AUDITOR).await
}

/// The viewers' drill; `redis` is where replies are kept, or nothing for memory. Says whether Redis always answered in time: on a
/// busy machine it may not, and then it was skipped, as it should be.
async fn drill(redis: Option<&str>) -> bool {
    let store = redis.map(|url| [("REDIS__URL", url), ("CACHE__STORE", "redis")]);
    let quick =
        [("INSTITUTION__CORE_TRANSFER__BREAKER_OPEN", "300ms"), ("INSTITUTION__CORE_TRANSFER__BREAKER_OPEN_MAX", "1s")];
    let overrides: Vec<_> = store.iter().flatten().chain(&quick).copied().collect();
    let gateway = TestGateway::start_with(&with_times("4s", "5s"), Duration::from_millis(50), &overrides).await;
    // The bank takes its time, so that all miss at once.
    let late = FaultRule { message: None, fault: Fault::Late, probability: 1.0, delay_ms: Some(300), code: None };
    gateway.simulator.host().set_faults(FaultSchedule { seed: 1, rules: vec![late] });
    let answers = view(&gateway, 30, &CURRENCIES).await;
    if !answered(&gateway).await {
        return false;
    }
    assert!(answers.iter().all(|answer| answer.status == 200), "{:?}", answers.iter().find(|one| one.status != 200));
    println!("30 viewers x 5 inquiries: {} calls, the host saw {}", answers.len(), asked(&gateway));
    assert_eq!((answers.len(), asked(&gateway)), (150, 5));
    let ids: HashSet<String> = answers.iter().map(Answer::transaction_id).collect();
    assert_eq!(ids.len(), 150, "each is a transaction of its own");
    gateway.no_faults();
    let again = view(&gateway, 60, &CURRENCIES).await;
    if !answered(&gateway).await {
        return false;
    }
    assert_eq!((again.len(), asked(&gateway)), (300, 5), "whatever the number of viewers");
    let hit = &again[0];
    assert_eq!(hit.headers["cache-status"], "gwanmun; hit");
    assert!(hit.headers["age"].parse::<u64>().unwrap() <= 4);
    assert_eq!(hit.json().get("stale"), None);
    assert_eq!(row(&gateway, hit).await["servedFrom"], "cache");
    let route = limits(&gateway).await["cache"]["routes"]["exchange-rate"].clone();
    assert_eq!((&route["misses"], &route["stored"]), (&5.into(), &5.into()), "{route}");
    assert_eq!(route["hits"].as_u64().unwrap() + route["collapsed"].as_u64().unwrap(), 445, "{route}");
    assert_eq!(route["hitRate"], 0.9889);
    // The host is dead, and what is kept is not fresh any more.
    tokio::time::sleep(Duration::from_millis(4_100)).await;
    let everything =
        FaultRule { message: None, fault: Fault::CloseBefore, probability: 1.0, delay_ms: None, code: None };
    gateway.simulator.host().set_faults(FaultSchedule { seed: 1, rules: vec![everything] });
    let stale = view(&gateway, 30, &CURRENCIES).await;
    if !answered(&gateway).await {
        return false;
    }
    for answer in &stale {
        assert_eq!((answer.status, &answer.json()["stale"]), (200, &true.into()), "{}", answer.text);
        assert_eq!(answer.headers["cache-status"], "gwanmun; hit; fwd=stale");
        assert!((4..9).contains(&answer.headers["age"].parse::<u64>().unwrap()), "{:?}", answer.headers);
    }
    let shown = row(&gateway, &stale[0]).await;
    assert_eq!((&shown["status"], &shown["servedFrom"]), (&"SUCCESS".into(), &"stale".into()));
    assert!(!shown["detail"].is_null(), "why the host was not asked: {shown}");
    tokio::time::sleep(Duration::from_millis(5_000)).await;
    let failed = view(&gateway, 30, &CURRENCIES).await;
    for answer in &failed {
        assert!(answer.status >= 500 && answer.json().get("data").is_none(), "{}", answer.text);
        assert!(!answer.text.contains("stale"));
    }
    gateway.no_faults();
    let circuit_is_closed = async || gateway.call(&rate("USD")).await.status == 200;
    eventually("the host is back", circuit_is_closed).await;
    true
}

async fn answered(gateway: &TestGateway) -> bool {
    let redis = limits(gateway).await["redis"].clone();
    redis.is_null() || (redis["failed"] == 0 && redis["skipped"] == 0)
}

#[tokio::test(flavor = "multi_thread")]
async fn of_the_viewers_calls_the_host_sees_one_a_currency_and_when_it_is_dead_all_are_served_inside_the_grace() {
    assert!(drill(None).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_with_replies_in_redis() {
    let redis = Redis::shared();
    let mut tries = 0;
    while !drill(Some(&redis.new_database())).await {
        tries += 1;
        assert!(tries < 5, "Redis never answers in time on this machine");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_is_given_only_to_who_asked_for_the_same() {
    let gateway = TestGateway::start(&[]).await;
    let usd = gateway.call(&rate("USD")).await;
    let jpy = gateway.call(&rate("JPY")).await;
    assert_eq!((usd.status, jpy.status), (200, 200));
    assert_ne!(usd.json()["data"], jpy.json()["data"]);
    let again = gateway.call(&rate("USD")).await;
    assert_eq!(again.json()["data"], usd.json()["data"]);
    assert_ne!(again.transaction_id(), usd.transaction_id());
    assert_eq!(asked(&gateway), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_grace_goes_on_while_the_host_is_asked() {
    let gateway = TestGateway::start_with(
        &with_times("100ms", "900ms").replace("deadline = \"8s\"", "deadline = \"2s\""),
        Duration::from_millis(50),
        &[("INSTITUTION__CORE_TRANSFER__RETRIES", "0")],
    )
    .await;
    assert_eq!(gateway.call(&rate("USD")).await.status, 200);
    tokio::time::sleep(Duration::from_millis(150)).await;
    // Inside the grace when it is asked for, and long over when the host has not answered.
    gateway.fault("0700", Fault::Stall, 1.0);
    let answer = gateway.call(&rate("USD")).await;
    assert_eq!((answer.status, answer.code()), (504, "RESULT_UNKNOWN".to_owned()), "{}", answer.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decline_is_told_and_never_covered_by_what_is_kept() {
    let gateway = TestGateway::start_with(&with_times("1ms", "60s"), Duration::from_millis(50), &[]).await;
    assert_eq!(gateway.call(&rate("USD")).await.status, 200);
    tokio::time::sleep(Duration::from_millis(5)).await;
    gateway.fault_with("0700", Fault::Code, 1.0, None, Some("0001"));
    let answer = gateway.call(&rate("USD")).await;
    compare_answer(Failure::HostDeclined, Kind::Inquiry, &answer);
    // A code that proves nothing is a failure of the host: the last good rate stands in.
    gateway.fault_with("0700", Fault::Code, 1.0, None, Some("0099"));
    let answer = gateway.call(&rate("USD")).await;
    assert_eq!((answer.status, &answer.json()["stale"]), (200, &true.into()));
    assert_eq!(row(&gateway, &answer).await["detail"], Failure::InDoubtCode.name());
}

#[tokio::test(flavor = "multi_thread")]
async fn followers_of_one_that_failed_hear_its_code_with_proof_that_nothing_of_theirs_was_sent() {
    let gateway = TestGateway::start_with(
        &config_text(),
        Duration::from_millis(50),
        &[("INSTITUTION__CORE_TRANSFER__RETRIES", "0")],
    )
    .await;
    let late = FaultRule {
        message: Some("0700".into()),
        fault: Fault::Late,
        probability: 1.0,
        delay_ms: Some(400),
        code: None,
    };
    gateway.simulator.host().set_faults(FaultSchedule { seed: 1, rules: vec![late] });
    let views = view(&gateway, 6, &["XXX"]);
    let answers = views.await;
    assert_eq!(asked(&gateway), 1);
    let mut leaders = 0;
    for answer in &answers {
        let policy = compare_answer(Failure::HostDeclined, Kind::Inquiry, answer);
        assert_eq!(answer.json()["ledgerStatus"], policy.record.status().unwrap().name());
        let row = row(&gateway, answer).await;
        assert_eq!(row["status"], "FAILED");
        match row["proof"].as_str().unwrap() {
            "H" => leaders += 1,
            proof => assert_eq!(proof, "P0"),
        }
    }
    assert_eq!(leaders, 1);
    // And when nobody knows what became of the leader's, the followers' FAILED is still certain.
    gateway.fault("0700", Fault::CloseAfter, 1.0);
    let mut statuses: Vec<_> = Vec::new();
    for answer in view(&gateway, 6, &["USD"]).await {
        assert_eq!((answer.status, answer.code()), (504, "RESULT_UNKNOWN".to_owned()), "{}", answer.text);
        let row = row(&gateway, &answer).await;
        assert_eq!(answer.json()["ledgerStatus"], row["status"]);
        statuses.push(row["status"].as_str().unwrap().to_owned());
    }
    let frames = asked(&gateway) - 1;
    let unknown = statuses.iter().filter(|status| *status == "UNKNOWN").count() as u64;
    assert_eq!(unknown, frames, "{statuses:?}: one UNKNOWN for each frame that left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_down_is_a_miss() {
    let mut redis = Redis::start();
    let url = redis.new_database();
    let gateway = TestGateway::start(&[("REDIS__URL", &url), ("CACHE__STORE", "redis")]).await;
    assert_eq!(gateway.call(&rate("USD")).await.status, 200);
    eventually("it is kept", async || gateway.call(&rate("USD")).await.headers["cache-status"] == "gwanmun; hit").await;
    let seen = async || {
        let route = limits(&gateway).await["cache"]["routes"]["exchange-rate"].clone();
        let count = |name: &str| route[name].as_u64().unwrap();
        (count("hits"), count("stored"), count("misses"), count("collapsed"))
    };
    let (hits, stored, misses, collapsed) = seen().await;
    let before = asked(&gateway);
    redis.kill();
    for nth in 1..=3 {
        let answer = gateway.call(&rate("USD")).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        // Until it is known that the one before could not be kept, its answer serves those who come.
        let now = seen().await;
        assert_eq!((now.0, now.1, now.2 + now.3), (hits, stored, misses + collapsed + nth));
        assert_eq!(asked(&gateway) - before, now.2 - misses);
    }
    eventually("the host is asked", async || {
        gateway.call(&rate("USD")).await;
        asked(&gateway) - before >= 3
    })
    .await;
}

#[test]
fn what_concerns_a_person_can_not_be_configured_to_be_kept() {
    start_logging();
    for (route, fits) in [("balance", false), ("history", false), ("transfer", false), ("exchange-rate", true)] {
        let text = config_text().replace("cache_ttl = \"10s\"\ncache_grace = \"5m\"\n", "");
        let line = format!("name = \"{route}\"\n");
        // Also when the ledger is told nothing of the account: the layouts decide.
        for text in [text.clone(), text.replace("account = \"accountNo\"\n", "")] {
            let text = text.replace(&line, &format!("{line}cache_ttl = \"1s\"\n"));
            let read = gwanmun::config::Config::from_text("c.toml", &text, std::path::Path::new("."), &[]);
            match read {
                Ok(_) => assert!(fits, "{route} may be kept"),
                Err(problems) => {
                    assert!(!fits, "{problems:?}");
                    assert!(problems.iter().any(|problem| problem.message.contains("public = true")), "{problems:?}");
                }
            }
        }
    }
}
