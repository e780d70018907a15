//! What a budget costs: CPU time a transaction in the gateway's process, by who keeps the budget, in one run.
//!
//! `CALLS=2000 ROUNDS=10 cargo test --release -p gwanmun --test it -- --nocapture what_a_budget_costs` measures; in the suite
//! it only shows that everything is counted.

use std::time::Duration;

use tokio::task::JoinSet;

use crate::budget_slots::{gwanmun, number};
use crate::client::{Client, OPERATOR, balance, get};
use crate::place::Place;
use crate::postgres::Postgres;
use crate::process::Process;
use crate::redis::Redis;

const KEEPERS: [&str; 4] = ["off", "memory", "redis", "postgres"];
const CALLERS: u64 = 8;

/// CPU time of a process so far, its own and the kernel's for it.
fn cpu(process: &Process) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 1_000 / rustix::param::clock_ticks_per_second())
}

async fn drive(process: &Process, calls: u64) {
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let address = process.address;
        callers.spawn(async move {
            let mut client = Client::connect(address).await;
            for _ in 0..calls / CALLERS {
                let answer = client.call(&balance("1")).await;
                assert_eq!(answer.status, 200, "{}", answer.text);
            }
        });
    }
    callers.join_all().await;
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_budget_costs_is_counted_in_cpu_time_beside_none() {
    let (postgres, redis) = (Postgres::shared(), Redis::shared());
    let place = Place::new(postgres.new_database()).await;
    let redis_url = redis.new_database();
    let (calls, rounds) = (number("CALLS", 160).max(CALLERS), number("ROUNDS", 2).max(1));
    let settings = |keeper: &'static str| {
        vec![
            ("REDIS__URL", redis_url.as_str()),
            ("BUDGET__POSTGRES_URL", place.url.as_str()),
            ("LOG__LEVEL", "info"),
            ("INSTITUTION__CORE_BANKING__BUDGET", keeper),
            ("INSTITUTION__CORE_BANKING__BUDGET_LIMIT", "100000"),
            ("INSTITUTION__CORE_BANKING__BUDGET_WINDOW", "200ms"),
            ("INSTITUTION__CORE_BANKING__BUDGET_RTT_MAX", "150ms"),
        ]
    };
    assert!(gwanmun(&["budget", "set"], &place.config("S"), &settings("postgres")).status.success());
    let mut gateways = Vec::new();
    for keeper in KEEPERS {
        // Each ledger on SQLite, so that only the budget differs.
        gateways.push(Process::start_with(&place.config(keeper), &settings(keeper)).await);
    }
    let mut spent = [const { Vec::new() }; 4];
    for round in 0..=rounds {
        let mut order: Vec<usize> = (0..KEEPERS.len()).collect();
        fastrand::shuffle(&mut order);
        for nth in order {
            let before = cpu(&gateways[nth]);
            drive(&gateways[nth], calls).await;
            let micros = (cpu(&gateways[nth]) - before).as_secs_f64() * 1e6 / (calls / CALLERS * CALLERS) as f64;
            // The first round warms up.
            if round > 0 {
                spent[nth].push(micros);
            }
        }
    }
    println!("CPU microseconds a transaction, median of {rounds} rounds of {calls} balances, {CALLERS} callers:");
    for (nth, keeper) in KEEPERS.iter().enumerate() {
        let gained = spent[nth].iter().zip(&spent[0]).map(|(own, off)| own - off).collect();
        println!("  {keeper:<9} {:>7.1}  gained {:>7.1}", median(spent[nth].clone()), median(gained));
        let stats = gateways[nth].client().await.call(&get("/api/limits/stats", OPERATOR)).await.json();
        let granted = stats["institutions"]["core-banking"]["classes"]["inquiry"]["granted"].as_u64();
        let all = (rounds + 1) * (calls / CALLERS * CALLERS);
        assert_eq!(granted, (nth > 0).then_some(all), "{keeper}: {stats}");
    }
}
