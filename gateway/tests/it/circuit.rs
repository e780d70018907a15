//! The breaker through HTTP: what opens it, what does not, and how many probes a host sees.

use std::time::Duration;

use mock_core_banking::Fault;
use tokio::task::JoinSet;

use crate::client::{Client, balance, transfer};
use crate::harness::{TestGateway, config_text, eventually};

fn short_deadlines() -> String {
    config_text().replace("deadline = \"8s\"", "deadline = \"400ms\"")
}

const SHORT: [(&str, &str); 10] = [
    ("INSTITUTION__CORE_BANKING__BORROW_WAIT", "300ms"),
    ("INSTITUTION__CORE_TRANSFER__BORROW_WAIT", "300ms"),
    ("INSTITUTION__CORE_HISTORY__BORROW_WAIT", "300ms"),
    ("INSTITUTION__CORE_SETTLEMENT__BORROW_WAIT", "300ms"),
    ("INSTITUTION__CORE_BANKING__CONNECT_TIMEOUT", "150ms"),
    ("INSTITUTION__CORE_TRANSFER__CONNECT_TIMEOUT", "150ms"),
    ("INSTITUTION__CORE_HISTORY__CONNECT_TIMEOUT", "150ms"),
    ("INSTITUTION__CORE_SETTLEMENT__CONNECT_TIMEOUT", "150ms"),
    ("INSTITUTION__CORE_BANKING__BREAKER_OPEN", "30s"),
    ("INSTITUTION__CORE_BANKING__RETRIES", "0"),
];

async fn state(gateway: &TestGateway) -> String {
    gateway.circuit("core-banking").await["state"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_hangs_on_kept_connections_opens_the_circuit() {
    let gateway = TestGateway::start_with(&short_deadlines(), Duration::from_secs(5), &SHORT).await;
    assert_eq!(gateway.call(&balance("1")).await.status, 200);
    gateway.fault("0200", Fault::Stall, 1.0);
    for _ in 0..5 {
        assert_eq!(gateway.call(&balance("1")).await.status, 504);
    }
    assert_eq!(state(&gateway).await, "OPEN");
    assert_eq!(gateway.call(&balance("1")).await.code(), "CIRCUIT_OPEN");
    assert_eq!(gateway.call(&transfer("other", "1", 5)).await.status, 200, "another institution is not affected");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_black_hole_opens_the_circuit() {
    // A socket that listens and never accepts, its queue full: the kernel answers no more connection requests.
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket};
    let hole = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&hole, &std::net::SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    listen(&hole, 0).unwrap();
    let address = std::net::SocketAddr::try_from(getsockname(&hole).unwrap()).unwrap();
    let mut held = Vec::new();
    let connect = || tokio::time::timeout(Duration::from_millis(200), tokio::net::TcpStream::connect(address));
    while let Ok(Ok(stream)) = connect().await {
        held.push(stream);
    }

    let address = address.to_string();
    let mut overrides = SHORT.to_vec();
    overrides.push(("INSTITUTION__CORE_BANKING__ADDRESS", &address));
    let gateway = TestGateway::start_with(&short_deadlines(), Duration::from_secs(5), &overrides).await;
    for _ in 0..5 {
        let answer = gateway.call(&balance("1")).await;
        assert_eq!((answer.status, answer.code()), (503, "HOST_UNREACHABLE".to_owned()));
    }
    assert_eq!(state(&gateway).await, "OPEN");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_hundred_calls_when_the_wait_ends_the_host_sees_one_probe() {
    let overrides: Vec<_> =
        SHORT.iter().copied().chain([("INSTITUTION__CORE_BANKING__BREAKER_OPEN", "500ms")]).collect();
    let gateway = TestGateway::start_with(&config_text(), Duration::from_secs(5), &overrides).await;
    gateway.fault_with("0200", Fault::Code, 1.0, None, Some("0098"));
    for _ in 0..5 {
        gateway.call(&balance("1")).await;
    }
    assert_eq!(gateway.circuit("core-banking").await["openedTotal"], 1);
    let sent = gateway.simulator.host().counters().requests["0200"];
    // The probe takes longer than all the calls need to arrive.
    gateway.fault_with("0200", Fault::Late, 1.0, Some(1_500), None);
    let mut clients = Vec::new();
    for _ in 0..200 {
        clients.push(gateway.client().await);
    }
    eventually("the wait ends", async || state(&gateway).await == "HALF_OPEN").await;
    let mut calls = JoinSet::new();
    for mut client in clients {
        calls.spawn(async move { client.call(&balance("1")).await });
    }
    let answers = calls.join_all().await;
    let good = answers.iter().filter(|answer| answer.status == 200).count();
    let rejected = answers.iter().filter(|answer| answer.status == 503 && answer.code() == "CIRCUIT_OPEN").count();
    assert_eq!((good, rejected), (1, 199));
    assert_eq!(gateway.simulator.host().counters().requests["0200"], sent + 1);
    assert_eq!(state(&gateway).await, "CLOSED", "a healthy host is closed again by its first probe");
}

#[tokio::test(flavor = "multi_thread")]
async fn late_results_of_an_older_generation_are_counted_and_change_nothing() {
    let overrides: Vec<_> =
        SHORT.iter().copied().chain([("INSTITUTION__CORE_BANKING__CONNECTIONS_MAX", "8")]).collect();
    let gateway = TestGateway::start_with(&config_text(), Duration::from_secs(5), &overrides).await;
    gateway.fault_with("0200", Fault::Late, 1.0, Some(3_000), None);
    let mut slow = Vec::new();
    for _ in 0..2 {
        let mut client: Client = gateway.client().await;
        client.send(&balance("1")).await;
        slow.push(client);
    }
    eventually("they are under way", async || {
        gateway.simulator.host().counters().requests.get("0200").copied() == Some(2)
    })
    .await;
    gateway.fault_with("0200", Fault::Code, 1.0, None, Some("0098"));
    for _ in 0..5 {
        gateway.call(&balance("1")).await;
    }
    for client in &mut slow {
        assert_eq!(client.read().await.unwrap().status, 200, "the caller still gets its answer");
    }
    let circuit = gateway.circuit("core-banking").await;
    assert_ne!(circuit["state"], "CLOSED", "{circuit}");
    assert_eq!((&circuit["staleResultsTotal"], &circuit["openedTotal"]), (&2.into(), &1.into()));
}
