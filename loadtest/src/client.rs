//! One kept HTTP connection, blocking and as cheap as can be (a write and a read a call): the generator shares two cores with what
//! it measures. Of an answer it reads the status, the length, and the problem's code when there is one.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longer than any deadline of the gateway's.
const READ_TIMEOUT: Duration = Duration::from_secs(20);

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) code: Option<String>,
}

impl Answer {
    /// The status, and the problem's code when there is one.
    pub(crate) fn name(&self) -> String {
        self.code.as_ref().map_or_else(|| self.status.to_string(), |code| format!("{} {code}", self.status))
    }
}

/// A connection.
pub(crate) struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
    filled: usize,
    /// Where the last answer's body lies.
    body: std::ops::Range<usize>,
}

fn malformed() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(READ_TIMEOUT))?;
        Ok(Self { stream, buffer: vec![0; 4_096], filled: 0, body: 0..0 })
    }

    /// Sends a request and reads the whole answer.
    pub(crate) fn call(&mut self, request: &[u8]) -> io::Result<Answer> {
        self.stream.write_all(request)?;
        self.filled = 0;
        loop {
            self.fill()?;
            let mut headers = [httparse::EMPTY_HEADER; 32];
            let mut head = httparse::Response::new(&mut headers);
            let so_far = self.buffer.get(..self.filled).unwrap_or_default();
            let Ok(httparse::Status::Complete(body)) = head.parse(so_far) else { continue };
            let status = head.code.ok_or_else(malformed)?;
            let length = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
            let length = length.and_then(|header| std::str::from_utf8(header.value).ok()?.parse::<usize>().ok());
            let end = body + length.ok_or_else(malformed)?;
            while self.filled < end {
                self.fill()?;
            }
            self.body = body..end;
            let code = self.buffer.get(body..end).filter(|_| status != 200).and_then(code_of);
            return Ok(Answer { status, code });
        }
    }

    /// The same, for a body of JSON.
    pub(crate) fn call_for_json(&mut self, request: &[u8]) -> io::Result<serde_json::Value> {
        self.call(request)?;
        serde_json::from_slice(self.buffer.get(self.body.clone()).unwrap_or_default()).map_err(|_| malformed())
    }

    fn fill(&mut self) -> io::Result<()> {
        if self.filled == self.buffer.len() {
            self.buffer.resize(self.buffer.len() * 2, 0);
        }
        let count = self.stream.read(self.buffer.get_mut(self.filled..).unwrap_or_default())?;
        self.filled += count;
        if count == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }
}

fn code_of(body: &[u8]) -> Option<String> {
    let problem: serde_json::Value = serde_json::from_slice(body).ok()?;
    problem.get("code")?.as_str().map(str::to_owned)
}

/// A POST of a JSON body.
pub(crate) fn post(path: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\nx-api-key: loadtest-key\r\n{headers}content-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// One of many accounts.
pub(crate) fn account(number: u64) -> u64 {
    10_000_000_000_000 + number % 1_000_000
}

/// A balance inquiry of one of many accounts.
pub(crate) fn balance(number: u64) -> Vec<u8> {
    post("/api/gateway/balance", "", &format!("{{\"accountNo\":\"{:014}\"}}", account(number)))
}

/// A transfer with a key of its own.
pub(crate) fn transfer(number: u64) -> Vec<u8> {
    let key = format!("idempotency-key: load-{}-{number}\r\n", std::process::id());
    let from = account(number);
    let body = format!(
        "{{\"fromAccount\":\"{from}\",\"toAccount\":\"20000000000002\",\"amount\":1,\"payeeName\":\"홍길동\"}}"
    );
    post("/api/gateway/transfer", &key, &body)
}

/// A rate of exchange; the profile keeps no replies.
pub(crate) fn rate(_: u64) -> Vec<u8> {
    post("/api/gateway/exchange-rate", "", r#"{"currency":"USD"}"#)
}

/// An auditor's search for an account.
pub(crate) fn search(account: u64) -> Vec<u8> {
    let request = post("/api/ledger/search", "", &format!("{{\"accountNo\":\"{account:014}\"}}"));
    String::from_utf8(request).unwrap_or_default().replace("loadtest-key", "loadtest-auditor").into_bytes()
}

/// An operator's look at something.
pub(crate) fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: gateway\r\nx-api-key: loadtest-operator\r\n\r\n").into_bytes()
}
