//! Callers who leave at any moment: the same rows as without, the pool clean, no admission place freed early.

use std::time::Duration;

use mock_core_banking::Fault;
use tokio::io::AsyncWriteExt;

use crate::client::{OPERATOR, balance, get, transfer};
use crate::harness::{TestGateway, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn callers_who_hang_up_reset_or_half_close_leave_the_same_rows_as_those_who_stay() {
    let gateway = TestGateway::start(&[
        ("INSTITUTION__CORE_BANKING__BORROW_WAIT", "7s"),
        ("INSTITUTION__CORE_TRANSFER__BORROW_WAIT", "7s"),
    ])
    .await;
    gateway.simulator.host().set_faults(mock_core_banking::FaultSchedule {
        seed: 9,
        rules: vec![mock_core_banking::FaultRule {
            message: None,
            fault: Fault::Jitter,
            probability: 1.0,
            delay_ms: Some(8),
            code: None,
        }],
    });
    let calls = 300;
    for number in 0..calls {
        let mut client = gateway.client().await;
        let request = if number % 2 == 0 { balance("1") } else { transfer(&format!("k{number}"), "1", 1) };
        client.send(&request).await;
        tokio::time::sleep(Duration::from_micros(fastrand::u64(..12_000))).await;
        match number % 3 {
            0 => drop(client),
            1 => {
                client.stream.get_ref().set_zero_linger().unwrap();
                drop(client);
            }
            _ => {
                client.stream.get_mut().shutdown().await.unwrap();
                // The answer may come or not; what counts is the ledger.
                client.read().await;
            }
        }
    }
    // A reset can overtake the request in the kernel's buffers, so a call may never have arrived. None may be doubled,
    // and each that the host saw must have its row.
    eventually("all is over", async || {
        // A line is given back a moment before the outcome is written.
        let metrics = gateway.call(&get("/metrics", OPERATOR)).await.text;
        metrics.contains("gwanmun_transactions_in_flight 0\n")
    })
    .await;
    let rows = gateway.rows().await;
    let counters = gateway.simulator.host().counters();
    assert!(rows.len() > 250 && rows.len() <= calls, "{} rows", rows.len());
    assert_eq!(rows.iter().filter(|row| row["status"] == "SUCCESS").count(), rows.len());
    let of = |code: &str| rows.iter().filter(|row| row["txCode"] == code).count() as u64;
    assert_eq!((of("IN01"), of("TR01")), (counters.processed["0200"], counters.processed["0600"]));
    assert_eq!(gateway.simulator.host().bank(mock_core_banking::Bank::delta), 0);
    for institution in ["core-banking", "core-transfer"] {
        let pool = gateway.pool(institution).await;
        assert_eq!((&pool["active"], &pool["waiting"], &pool["destroyed"]), (&0.into(), &0.into(), &0.into()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hanging_up_frees_no_admission_place_before_the_transaction_ends() {
    let gateway = TestGateway::start(&[("SERVER__ADMISSION_MAX", "1")]).await;
    gateway.fault_with("0200", Fault::Late, 1.0, Some(800), None);
    let mut leaver = gateway.client().await;
    leaver.send(&balance("1")).await;
    eventually("it is at the host", async || gateway.simulator.host().counters().requests.contains_key("0200")).await;
    drop(leaver);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let answer = gateway.call(&balance("1")).await;
    assert_eq!((answer.status, answer.code()), (503, "OVERLOADED".to_owned()));
    gateway.no_faults();
    eventually("the place is free again", async || gateway.call(&balance("1")).await.status == 200).await;
    let rows = gateway.rows().await;
    assert_eq!(rows.len(), 2, "the one who left and the last one");
    assert!(rows.iter().all(|row| row["status"] == "SUCCESS"));
    let metrics = gateway.call(&get("/metrics", OPERATOR)).await.text;
    assert!(metrics.contains("gwanmun_transactions_total{route=\"balance\",status=\"SUCCESS\"} 2"), "{metrics}");
}
