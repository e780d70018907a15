//! The drill that this product was born from: our own jam must not open the circuit to a healthy host.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::client::{Client, balance};
use crate::harness::{TestGateway, config_text};

#[tokio::test(flavor = "multi_thread")]
async fn eight_calls_over_four_slow_lines_are_four_answers_and_four_saturated_and_the_circuit_stays_closed() {
    let gateway = TestGateway::start_with(&config_text(), Duration::from_secs(2), &[]).await;
    let mut calls = JoinSet::new();
    for _ in 0..8 {
        let address = gateway.address;
        calls.spawn(async move {
            let began = Instant::now();
            let answer = Client::connect(address).await.call(&balance("99999999999999")).await;
            (answer, began.elapsed())
        });
    }
    let (mut good, mut saturated) = (0, 0);
    for (answer, took) in calls.join_all().await {
        match answer.status {
            200 => good += 1,
            503 => {
                assert_eq!(answer.code(), "GATEWAY_SATURATED");
                assert_eq!(answer.headers["retry-after"], "1");
                // The borrow wait is 1 s; the lines are busy for 2 s.
                assert!((Duration::from_millis(950)..Duration::from_secs(2)).contains(&took), "{took:?}");
                saturated += 1;
            }
            other => panic!("{other}: {}", answer.text),
        }
    }
    assert_eq!((good, saturated), (4, 4));

    let rows = gateway.rows().await;
    let count = |status: &str, detail: Option<&str>| {
        rows.iter().filter(|row| row["status"] == status && row["detail"].as_str() == detail).count()
    };
    assert_eq!(rows.len(), 8);
    assert_eq!((count("SUCCESS", None), count("FAILED", Some("pool-exhausted"))), (4, 4));
    let circuit = gateway.circuit("core-banking").await;
    assert_eq!((&circuit["state"], &circuit["openedTotal"]), (&"CLOSED".into(), &0.into()));
    assert_eq!(circuit["consecutiveFailures"], 0);
    assert_eq!(gateway.call(&balance("12345678901234")).await.status, 200);
    gateway.shut_down().await;
}
