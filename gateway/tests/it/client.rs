//! A small HTTP client that keeps its connection, and lets a test see and do what a library would hide.

use std::collections::HashMap;
use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

pub(crate) const CLIENT: &str = "planted-key-fintech-a-7Hq2";
pub(crate) const OTHER_CLIENT: &str = "planted-key-fintech-b-9Zw4";
pub(crate) const AUDITOR: &str = "planted-key-auditor-3Kd8";
pub(crate) const OPERATOR: &str = "planted-key-operator-5Rt1";

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    pub(crate) fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }

    pub(crate) fn transaction_id(&self) -> String {
        self.headers.get("x-transaction-id").cloned().unwrap_or_default()
    }
}

/// One connection.
pub(crate) struct Client {
    pub(crate) stream: BufReader<TcpStream>,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    pub(crate) async fn send(&mut self, request: &str) {
        self.stream.get_mut().write_all(request.as_bytes()).await.unwrap();
    }

    /// `None` when the connection ended instead.
    pub(crate) async fn read(&mut self) -> Option<Answer> {
        let mut line = String::new();
        if self.stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        let status = line.split(' ').nth(1).unwrap().parse().unwrap();
        let mut headers = HashMap::new();
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line).await.ok()?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.insert(name.to_lowercase(), value.trim().to_owned());
        }
        let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await.ok()?;
        Some(Answer { status, headers, text: String::from_utf8(body).unwrap() })
    }

    pub(crate) async fn call(&mut self, request: &str) -> Answer {
        self.send(request).await;
        self.read().await.expect("an answer")
    }
}

pub(crate) fn get(path: &str, key: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: t\r\nx-api-key: {key}\r\n\r\n")
}

pub(crate) fn post(path: &str, key: &str, body: &str) -> String {
    post_with(path, key, "", body)
}

/// `headers` are whole lines, each with its line end.
pub(crate) fn post_with(path: &str, key: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: t\r\nx-api-key: {key}\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\n\r\n{body}"
    )
}

pub(crate) fn balance(account: &str) -> String {
    post("/api/gateway/balance", CLIENT, &format!(r#"{{"accountNo":"{account}"}}"#))
}

pub(crate) fn transfer(key: &str, from: &str, amount: i64) -> String {
    let body = format!(
        r#"{{"fromAccount":"{from}","toAccount":"20000000000002","amount":{amount},"payeeName":"홍길동","memo":"월세"}}"#
    );
    post_with("/api/gateway/transfer", CLIENT, &format!("idempotency-key: {key}\r\n"), &body)
}
