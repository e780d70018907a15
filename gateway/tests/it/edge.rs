//! The HTTP edge: peers that say nothing, drip, or send too much; draining and SIGTERM.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mock_core_banking::Fault;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::client::{CLIENT, Client, balance, post, transfer};
use crate::harness::{TestGateway, eventually, simulator};
use crate::process::{Process, write_config};

const LIMITS: &str =
    "first_byte_timeout = \"1s\"\nhead_timeout = \"1s\"\nidle_timeout = \"1s\"\nbody_timeout = \"1s\"\ndrain = \"3s\"";

/// Waits for the other side's close; how long it took.
async fn until_closed(mut stream: TcpStream) -> Duration {
    let began = Instant::now();
    let mut rest = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(15), stream.read_to_end(&mut rest)).await;
    assert!(read.is_ok(), "still open after fifteen seconds");
    began.elapsed()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_silent_or_dripping_connections_are_closed_in_their_limits_and_healthy_calls_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let simulator = simulator(Duration::from_secs(1)).await;
    let process = Process::start(&write_config(folder.path(), &simulator, LIMITS)).await;
    let mut peers = JoinSet::new();
    for number in 0..1_000 {
        let mut stream = TcpStream::connect(process.address).await.unwrap();
        peers.spawn(async move {
            match number % 4 {
                0 => {}
                1 => stream.write_all(b"POST /api/gateway/balance HTTP/1.1\r\nhost: t\r\nx-half: ").await.unwrap(),
                2 => {
                    // A body that never comes.
                    let head = post("/api/gateway/balance", CLIENT, "{}").replace("{}", "");
                    stream.write_all(head.as_bytes()).await.unwrap();
                }
                _ => {
                    let (mut read, mut write) = stream.into_split();
                    let dripping = tokio::spawn(async move {
                        for byte in
                            b"GET /health/live HTTP/1.1\r\nx-drip: ".iter().chain(std::iter::repeat_n(&b'd', 400))
                        {
                            if write.write_all(&[*byte]).await.is_err() {
                                break;
                            }
                            tokio::time::sleep(Duration::from_millis(100)).await;
                        }
                    });
                    let began = Instant::now();
                    let closed = tokio::time::timeout(Duration::from_secs(15), read.read_to_end(&mut Vec::new())).await;
                    assert!(closed.is_ok(), "a dripping peer is still served");
                    dripping.abort();
                    return began.elapsed();
                }
            }
            until_closed(stream).await
        });
    }
    let healthy = Arc::new(AtomicUsize::new(0));
    let calling = {
        let (address, healthy) = (process.address, Arc::clone(&healthy));
        tokio::spawn(async move {
            loop {
                assert_eq!(Client::connect(address).await.call(&balance("1")).await.status, 200);
                healthy.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let longest = peers.join_all().await.into_iter().max().unwrap();
    assert!(!calling.is_finished(), "a healthy call failed");
    calling.abort();
    assert!(healthy.load(Ordering::Relaxed) > 20);
    // Limits of one second, on a busy machine.
    assert!(longest < Duration::from_secs(6), "{longest:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_connection_serves_many_requests_and_is_closed_when_idle() {
    let gateway = TestGateway::start(&[("SERVER__IDLE_TIMEOUT", "300ms"), ("SERVER__FIRST_BYTE_TIMEOUT", "5s")]).await;
    let mut client = gateway.client().await;
    for _ in 0..10 {
        assert_eq!(client.call(&balance("1")).await.status, 200);
    }
    // Pipelined: answered in order.
    client.send(&(balance("1") + &balance("0"))).await;
    assert_eq!((client.read().await.unwrap().status, client.read().await.unwrap().status), (200, 422));
    assert!(until_closed(client.stream.into_inner()).await < Duration::from_secs(4));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_is_too_large_is_431_and_too_many_headers_too() {
    let gateway = TestGateway::start(&[("SERVER__HEAD_MAX", "8KiB"), ("SERVER__HEADERS_MAX", "20")]).await;
    let long = format!("GET /health/live HTTP/1.1\r\nx-long: {}\r\n\r\n", "a".repeat(20_000));
    let many = format!("GET /health/live HTTP/1.1\r\n{}\r\n", "x-many: 1\r\n".repeat(30));
    for request in [long, many] {
        let mut client = gateway.client().await;
        client.send(&request).await;
        assert_eq!(client.read().await.unwrap().status, 431);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_draining_what_runs_ends_and_what_comes_is_turned_away() {
    let gateway = TestGateway::start(&[]).await;
    gateway.fault_with("0200", Fault::Late, 1.0, Some(2_500), None);
    let (mut running, mut coming) = (gateway.client().await, gateway.client().await);
    running.send(&balance("1")).await;
    // The interim answer says that the head was read and the body is waited for: this line is no longer idle.
    let whole = balance("1").replacen("\r\n", "\r\nexpect: 100-continue\r\n", 1);
    let (head, rest) = whole.split_at(whole.find("\r\n\r\n").unwrap() + 4);
    coming.send(head).await;
    assert_eq!(coming.read().await.unwrap().status, 100);
    eventually("it is at the host", async || gateway.simulator.host().counters().requests.contains_key("0200")).await;
    gateway.stop.cancel();
    eventually("nobody listens any more", async || TcpStream::connect(gateway.address).await.is_err()).await;
    coming.send(rest).await;
    let answer = coming.read().await.unwrap();
    assert_eq!((answer.status, answer.code()), (503, "SHUTTING_DOWN".to_owned()));
    assert_eq!(answer.headers["retry-after"], "1");
    assert_eq!(running.read().await.unwrap().status, 200);
    gateway.serving.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_ends_the_process_within_the_drain_time_with_every_row_settled() {
    let folder = tempfile::tempdir().unwrap();
    let simulator = simulator(Duration::from_secs(60)).await;
    let config = write_config(folder.path(), &simulator, LIMITS);
    let mut process = Process::start(&config).await;
    // Some that will be in doubt, some that will be done.
    let mut stuck = JoinSet::new();
    for number in 0..3 {
        let mut client = process.client().await;
        stuck.spawn(async move { client.call(&transfer(&format!("s{number}"), "99999999999999", 1)).await });
    }
    eventually("they are at the host", async || simulator.host().counters().requests.get("0600").copied() == Some(3))
        .await;
    let mut done = Vec::new();
    let mut client = process.client().await;
    for _ in 0..20 {
        done.push(client.call(&balance("1")).await.transaction_id());
    }
    let began = Instant::now();
    process.terminate();
    assert!(process.wait().await.success());
    let took = began.elapsed();
    assert!(took < Duration::from_millis(3_300), "{took:?} of three seconds");
    let mut in_doubt = Vec::new();
    for answer in stuck.join_all().await {
        assert_eq!((answer.status, answer.code()), (504, "RESULT_UNKNOWN".to_owned()));
        in_doubt.push(answer.transaction_id());
    }
    let process = Process::start(&config).await;
    let mut client = process.client().await;
    for (ids, status) in [(done, "SUCCESS"), (in_doubt, "UNKNOWN")] {
        for id in ids {
            let row = client.call(&crate::client::get(&format!("/api/ledger/{id}"), CLIENT)).await.json();
            assert_eq!(row["status"], status, "{row}");
            assert_ne!(row["detail"], "recovered", "settled before the end, not by the next start");
        }
    }
}
