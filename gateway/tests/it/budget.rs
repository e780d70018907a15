//! The call budget through HTTP: what a denial means, that every call passes the gate, and that it can be turned on and off
//! under traffic. What slots guarantee is `budget_slots`'s.

use std::time::Duration;

use gwanmun::failure::Failure;
use gwanmun::routes::Kind;
use mock_core_banking::Fault;
use serde_json::Value;
use tokio::task::JoinSet;

use crate::client::{AUDITOR, Answer, CLIENT, Client, OPERATOR, balance, get, post, transfer};
use crate::harness::{TestGateway, eventually, simulator};
use crate::process::{Process, write_config};
use crate::redis::Redis;
use crate::taxonomy::compare_answer;

/// A budget of five calls, and five a second.
const FIVE: [(&str, &str); 4] = [
    ("INSTITUTION__CORE_BANKING__BUDGET", "memory"),
    ("INSTITUTION__CORE_BANKING__BUDGET_LIMIT", "5"),
    ("INSTITUTION__CORE_TRANSFER__BUDGET", "memory"),
    ("INSTITUTION__CORE_TRANSFER__BUDGET_LIMIT", "5"),
];

fn five(more: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
    FIVE.iter().chain(more).copied().collect()
}

/// One call a second, so that the second one is denied for certain.
const ONE: [(&str, &str); 2] =
    [("INSTITUTION__CORE_BANKING__BUDGET_LIMIT", "1"), ("INSTITUTION__CORE_TRANSFER__BUDGET_LIMIT", "1")];

fn request(kind: Kind, key: &str) -> String {
    if kind == Kind::Inquiry { balance("1") } else { transfer(key, "1", 1_000) }
}

fn institution(kind: Kind) -> &'static str {
    if kind == Kind::Inquiry { "core-banking" } else { "core-transfer" }
}

pub(crate) async fn limits(gateway: &TestGateway) -> Value {
    gateway.get("/api/limits/stats", OPERATOR).await
}

async fn row(gateway: &TestGateway, answer: &Answer) -> Value {
    gateway.get(&format!("/api/ledger/{}", answer.transaction_id()), AUDITOR).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denial_is_failed_with_proof_and_says_nothing_about_the_host() {
    let redis = Redis::shared();
    // In memory a bucket is known to be empty before a line is lent; Redis says so when everything is ready to be sent.
    let cases =
        [(Kind::Inquiry, "memory"), (Kind::Mutation, "memory"), (Kind::Inquiry, "redis"), (Kind::Mutation, "redis")];
    for (kind, keeper) in cases {
        let url = redis.new_database();
        let more = [
            ("REDIS__URL", url.as_str()),
            ("INSTITUTION__CORE_BANKING__BUDGET", keeper),
            ("INSTITUTION__CORE_TRANSFER__BUDGET", keeper),
            ("INSTITUTION__CORE_BANKING__RETRIES", "0"),
        ];
        let overrides: Vec<_> = FIVE.iter().chain(&ONE).chain(&more).copied().collect();
        let gateway = TestGateway::start(&overrides).await;
        // A failure that the breaker counts: a denial must neither add to it nor wipe it away.
        gateway.fault_with(if kind == Kind::Inquiry { "0200" } else { "0600" }, Fault::Code, 1.0, None, Some("0098"));
        let retries = gateway.call(&request(kind, "first")).await;
        assert!(retries.status >= 500);
        let failures = gateway.circuit(institution(kind)).await["consecutiveFailures"].clone();
        assert_eq!(failures, 1);
        gateway.no_faults();
        let sent = gateway.simulator.host().counters().requests;
        for _ in 0..8 {
            let answer = gateway.call(&request(kind, "denied")).await;
            compare_answer(Failure::BudgetExhausted, kind, &answer);
            let row = row(&gateway, &answer).await;
            assert_eq!(
                (&row["status"], &row["proof"], &row["detail"]),
                (&"FAILED".into(), &"P0".into(), &Failure::BudgetExhausted.name().into())
            );
        }
        assert_eq!(gateway.simulator.host().counters().requests, sent, "nothing was sent");
        let circuit = gateway.circuit(institution(kind)).await;
        assert_eq!((&circuit["consecutiveFailures"], &circuit["state"]), (&failures, &"CLOSED".into()));
        let class = &limits(&gateway).await["institutions"][institution(kind)]["classes"][kind.name()];
        assert!(class["denied"].as_u64().unwrap() >= 8 && class["granted"] == 1, "{class}");
        // The same key runs as soon as there is a call left.
        eventually("a call is left", async || gateway.call(&request(kind, "denied")).await.status == 200).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_at_once_the_capacity_passes_and_the_host_sees_no_other() {
    let redis = Redis::shared();
    for keeper in ["memory", "redis"] {
        // A Redis that did not answer in time on this machine says nothing about the bucket: then once more.
        while !fifteen_at_once(keeper, &redis.new_database()).await {}
    }
}

/// Fifteen calls at once under a capacity of five, five a second; says whether all of them were counted.
async fn fifteen_at_once(keeper: &str, url: &str) -> bool {
    let more = [("REDIS__URL", url), ("INSTITUTION__CORE_BANKING__BUDGET", keeper)];
    let overrides: Vec<_> = FIVE.iter().chain(&more).copied().collect();
    let gateway = TestGateway::start(&overrides).await;
    let mut calls = JoinSet::new();
    for _ in 0..15 {
        let address = gateway.address;
        calls.spawn(async move { Client::connect(address).await.call(&balance("1")).await });
    }
    let answers = calls.join_all().await;
    let good = answers.iter().filter(|answer| answer.status == 200).count();
    let denied = answers.iter().filter(|answer| answer.status == 503 && answer.code() == "BUDGET_EXHAUSTED").count();
    assert_eq!(good + denied, 15);
    assert_eq!(gateway.simulator.host().counters().requests["0200"], good as u64);
    if limits(&gateway).await["institutions"]["core-banking"]["classes"]["inquiry"]["degraded"] != 0 {
        return false;
    }
    println!("{keeper}: of 15 at once {denied} were denied, and the host saw none of them");
    assert!((9..=10).contains(&denied), "{keeper}: {denied} denied");
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn each_attempt_of_an_inquiry_takes_its_own_call() {
    let gateway = TestGateway::start(&five(&[("INSTITUTION__CORE_BANKING__BUDGET_LIMIT", "2")])).await;
    gateway.fault("0200", Fault::CloseAfter, 1.0);
    let answer = gateway.call(&balance("1")).await;
    // Two attempts were sent and are in doubt; the third was denied, which changes nothing about that.
    assert_eq!((answer.status, answer.code()), (504, "RESULT_UNKNOWN".to_owned()));
    assert_eq!(gateway.simulator.host().counters().requests["0200"], 2);
    let row = row(&gateway, &answer).await;
    let outcomes: Vec<_> = row["attemptLog"].as_array().unwrap().iter().map(|one| &one["outcome"]).collect();
    assert_eq!(outcomes, ["connection-lost", "connection-lost", "budget-exhausted"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_resolver_and_the_reconciliation_pass_the_gate_in_their_classes() {
    let more = [
        ("RESOLVER__ENABLED", "true"),
        ("RESOLVER__POLL", "50ms"),
        ("INSTITUTION__CORE_SETTLEMENT__BUDGET", "memory"),
        ("INSTITUTION__CORE_SETTLEMENT__BUDGET_LIMIT", "5"),
    ];
    let gateway = TestGateway::start(&five(&more)).await;
    gateway.fault("0600", Fault::CloseAfter, 1.0);
    assert_eq!(gateway.call(&transfer("k", "1", 5)).await.status, 504);
    eventually("it is resolved", async || gateway.call(&transfer("k", "1", 5)).await.code() == "TRANSACTION_CANCELED")
        .await;
    let day = gateway.rows().await[0]["transactionId"].as_str().unwrap()[5..13].to_owned();
    let run = gateway.call(&post(&format!("/api/reconciliation/run?date={day}"), OPERATOR, "")).await;
    assert_eq!(run.status, 202, "{}", run.text);
    eventually("the list was asked for", async || {
        limits(&gateway).await["institutions"]["core-settlement"]["classes"]["reconciliation"]["granted"] == 1
    })
    .await;
    let classes = &limits(&gateway).await["institutions"]["core-transfer"]["classes"];
    assert_eq!((&classes["mutation"]["granted"], &classes["resolution"]["granted"]), (&1.into(), &1.into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resolver_without_a_call_waits_and_the_doubt_stays_open() {
    let more =
        [("RESOLVER__ENABLED", "true"), ("RESOLVER__POLL", "50ms"), ("INSTITUTION__CORE_TRANSFER__BUDGET_LIMIT", "1")];
    let gateway = TestGateway::start(&five(&more)).await;
    gateway.fault("0600", Fault::CloseAfter, 1.0);
    let answer = gateway.call(&transfer("k", "1", 5)).await;
    assert_eq!(answer.status, 504);
    // The one call of this second is used up: the net-cancel has to wait, is not sent, and is sent later.
    eventually("it is resolved", async || row(&gateway, &answer).await["resolution"] == "CANCELED").await;
    let class = &limits(&gateway).await["institutions"]["core-transfer"]["classes"]["resolution"];
    assert!(class["denied"].as_u64().unwrap() >= 1 && class["granted"] == 1, "{class}");
    assert_eq!(gateway.simulator.host().counters().requests["0420"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_that_is_closed_without_redis_is_unavailable_and_one_that_is_open_passes_and_counts() {
    let mut redis = Redis::start();
    let url = redis.new_database();
    for (kind, open) in [(Kind::Inquiry, false), (Kind::Mutation, false), (Kind::Inquiry, true)] {
        let more = [
            ("INSTITUTION__CORE_BANKING__BUDGET", "redis"),
            ("INSTITUTION__CORE_TRANSFER__BUDGET", "redis"),
            ("INSTITUTION__CORE_BANKING__BUDGET_WITHOUT_REDIS", if open { "open" } else { "closed" }),
            ("INSTITUTION__CORE_TRANSFER__BUDGET_WITHOUT_REDIS", "closed"),
        ];
        let overrides: Vec<_> = FIVE.iter().chain(&more).copied().chain([("REDIS__URL", url.as_str())]).collect();
        let gateway = TestGateway::start(&overrides).await;
        assert_eq!(gateway.call(&request(kind, "good")).await.status, 200);
        redis.kill();
        let answer = gateway.call(&request(kind, "bad")).await;
        let class = limits(&gateway).await["institutions"][institution(kind)]["classes"][kind.name()].clone();
        if open {
            assert_eq!(answer.status, 200);
            assert_eq!((&class["granted"], &class["degraded"]), (&2.into(), &1.into()));
        } else {
            compare_answer(Failure::BudgetUnavailable, kind, &answer);
            let row = row(&gateway, &answer).await;
            assert_eq!((&row["status"], &row["proof"]), (&"FAILED".into(), &"P0".into()));
            let pool = gateway.pool(institution(kind)).await;
            assert_eq!((&pool["idle"], &pool["destroyed"]), (&1.into(), &0.into()), "the line goes back clean");
            assert_eq!(gateway.circuit(institution(kind)).await["consecutiveFailures"], 0);
            assert_eq!(class["unavailable"], 1);
        }
        redis.start_again();
        if !open {
            eventually("the key runs again", async || gateway.call(&request(kind, "bad")).await.status == 200).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn budgets_are_changed_under_traffic_by_a_hangup_and_a_wrong_configuration_changes_nothing() {
    let (simulator, folder) = (simulator(Duration::from_millis(100)).await, tempfile::tempdir().unwrap());
    let config = write_config(folder.path(), &simulator, "");
    let text = std::fs::read_to_string(&config).unwrap();
    let gateway = Process::start(&config).await;
    let budget = async || {
        let stats = gateway.client().await.call(&get("/api/limits/stats", OPERATOR)).await.json();
        stats["institutions"]["core-banking"]["budget"].as_str().unwrap().to_owned()
    };
    assert_eq!(budget().await, "off");
    let with = |lines: &str| {
        let changed = text.replace("[institution.core-banking]\n", &format!("[institution.core-banking]\n{lines}"));
        assert_ne!(changed, text);
        std::fs::write(&config, changed).unwrap();
        gateway.signal(rustix::process::Signal::HUP);
    };
    with("budget = \"memory\"\nbudget_limit = 1\n");
    eventually("it is on", async || budget().await == "memory").await;
    let mut client = gateway.client().await;
    assert_eq!(client.call(&balance("1")).await.status, 200);
    assert_eq!(client.call(&balance("1")).await.code(), "BUDGET_EXHAUSTED");
    with("budget = \"memory\"\nbudget_limit = 0\n");
    eventually("it was refused", async || {
        std::fs::read_to_string(gateway.log()).unwrap().contains("the configuration is not taken")
    })
    .await;
    assert_eq!(budget().await, "memory");
    with("budget = \"off\"\n");
    eventually("it is off", async || budget().await == "off").await;
    for _ in 0..5 {
        assert_eq!(client.call(&balance("1")).await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_an_operator_reads_the_limits() {
    let gateway = TestGateway::start(&[]).await;
    for key in [CLIENT, AUDITOR] {
        assert_eq!(gateway.call(&get("/api/limits/stats", key)).await.status, 403);
    }
    let stats = limits(&gateway).await;
    assert_eq!(stats["institutions"]["core-banking"]["budget"], "off");
    assert_eq!((&stats["clientLimit"]["store"], &stats["cache"]["store"]), (&"memory".into(), &"memory".into()));
    assert_eq!((&stats["redis"], &stats["slotStore"]), (&Value::Null, &Value::Null));
    let answer = gateway.call(&get("/metrics", OPERATOR)).await;
    assert!(answer.text.contains("gwanmun_client_limit_total{outcome=\"passed\"}"), "{}", answer.text);
}
