//! The control port, over HTTP, as anybody outside uses it; and what the bank does on its wire.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::net::SocketAddr;
use std::time::Duration;

use mock_core_banking::{Port, Settings, Simulator};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn http(address: SocketAddr, method: &str, path: &str, body: &str) -> (u16, Value) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: t\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), serde_json::from_str(body).unwrap_or(Value::Null))
}

async fn simulator() -> Simulator {
    Simulator::start(Settings { delay: Duration::from_millis(200), ..Settings::default() }).await.unwrap()
}

const TRANSFER: &str = "GWMNU202611290000001A3TR01100000000000012000000000000200000000001000";

fn transfer() -> Vec<u8> {
    format!("01200600{TRANSFER}0{:20}{:20}{:7}", "Hong", "", "").into_bytes()
}

#[tokio::test]
async fn every_route_answers_in_its_documented_shape() {
    let simulator = simulator().await;
    let control = simulator.control();
    let mut bank = TcpStream::connect(simulator.address(Port::Transfer)).await.unwrap();
    let mut reply = [0; 124];
    for code in ["0000", "0021"] {
        bank.write_all(&transfer()).await.unwrap();
        bank.read_exact(&mut reply).await.unwrap();
        assert_eq!(std::str::from_utf8(&reply[92..96]).unwrap(), code);
    }
    let (status, counters) = http(control, "GET", "/counters", "").await;
    assert_eq!(status, 200);
    let wanted = json!({
        "connections": {"opened": 1, "open": 1},
        "requests": {"0600": 2},
        "processed": {"0600": 1},
        "refused": {"0021": 1},
    });
    assert_eq!(counters, wanted);
    let (_, arrivals) = http(control, "GET", "/arrivals", "").await;
    let (first, second) = (&arrivals[0], &arrivals[1]);
    assert_eq!((arrivals.as_array().unwrap().len(), &first["kind"]), (2, &json!("0600")));
    assert!(first["at_us"].as_i64().unwrap() <= second["at_us"].as_i64().unwrap());
    let (_, book) = http(control, "GET", "/books/GWMNU202611290000001A3", "").await;
    let wanted = json!({"state": "applied", "amount": 10_000, "from": "10000000000001", "to": "20000000000002"});
    assert_eq!(book, wanted);
    let (_, unknown) = http(control, "GET", "/books/GWMNU202611290000009ZZ", "").await;
    assert_eq!(unknown["state"], "unknown");
    assert_eq!(http(control, "GET", "/total", "").await.1, json!({"delta": 0}));

    let faults = r#"{"seed":1,"rules":[{"message":"0600","fault":"late","probability":0.1,"delayMs":500}]}"#;
    assert_eq!(http(control, "PUT", "/faults", faults).await.0, 204);
    assert_eq!(http(control, "GET", "/faults", "").await.1, serde_json::from_str::<Value>(faults).unwrap());
    for bad in [
        faults.replace("0.1", "7"),
        faults.replace("late", "sulk"),
        faults.replace("\"delayMs\":500", "\"code\":\"12345\""),
    ] {
        assert_eq!(http(control, "PUT", "/faults", &bad).await.0, 422, "{bad}");
    }
    assert_eq!(http(control, "POST", "/close-idle", "").await.0, 204);
    assert_eq!(bank.read(&mut reply).await.unwrap(), 0, "the idle line was closed");
}

#[tokio::test]
async fn closing_idle_lines_leaves_busy_ones_alone() {
    let simulator = simulator().await;
    let mut bank = TcpStream::connect(simulator.address(Port::Banking)).await.unwrap();
    let request = |account: &str| format!("0200GWMNU202611290000001A3{account}IN01{:8}", "").into_bytes();
    for _ in 0..20 {
        bank.write_all(&request("99999999999999")).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        simulator.host().close_idle();
        let mut reply = [0; 61];
        bank.read_exact(&mut reply).await.unwrap();
        bank.write_all(&request("00000000000007")).await.unwrap();
        bank.read_exact(&mut reply).await.unwrap();
    }
}

#[tokio::test]
async fn what_arrives_is_counted_even_when_it_is_thrown_away() {
    let simulator = simulator().await;
    for frame in ["00040600", "0004what", "00040200"] {
        let mut bank = TcpStream::connect(simulator.address(Port::Transfer)).await.unwrap();
        bank.write_all(frame.as_bytes()).await.unwrap();
        assert_eq!(bank.read(&mut [0; 1]).await.unwrap(), 0, "closed");
    }
    let requests = simulator.host().counters().requests;
    assert_eq!(
        requests.into_iter().collect::<Vec<_>>(),
        [("0200".into(), 1), ("0600".into(), 1), ("malformed".into(), 1)]
    );
}

#[tokio::test]
async fn a_stalled_line_is_let_go_when_the_caller_leaves() {
    let simulator = simulator().await;
    let faults = r#"{"seed":1,"rules":[{"fault":"stall","probability":1.0}]}"#;
    assert_eq!(http(simulator.control(), "PUT", "/faults", faults).await.0, 204);
    let mut bank = TcpStream::connect(simulator.address(Port::Transfer)).await.unwrap();
    bank.write_all(&transfer()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(bank);
    for _ in 0..200 {
        if simulator.host().counters().connections.open == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the line is still open");
}

#[tokio::test]
async fn the_control_port_stays_on_loopback() {
    let control = SocketAddr::from(([0, 0, 0, 0], 0));
    assert!(Simulator::start(Settings { control, ..Settings::default() }).await.is_err());
}
