//! An open-loop load generator: requests leave at a constant rate whatever the answers do, and latency counts from the
//! time at which a request should have left, so a stall can't hide. Scenarios, plots and comparisons come later; this is
//! the client that they will stand on.
#![expect(clippy::disallowed_methods, reason = "a load generator measures time")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Parser;
use hdrhistogram::Histogram;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// Sends balance inquiries at a constant rate and reports latency from the intended send time.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Where the gateway listens.
    #[arg(long, default_value = "127.0.0.1:8090")]
    target: SocketAddr,
    /// API key with the role client.
    #[arg(long, default_value = "demo-key-fintech-a")]
    key: String,
    /// Requests a second.
    #[arg(long, default_value_t = 200)]
    rate: u32,
    /// Seconds that count.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Seconds before that do not count.
    #[arg(long, default_value_t = 2)]
    warm_up: u64,
    /// Connections that carry the requests.
    #[arg(long, default_value_t = 16)]
    connections: usize,
}

/// One request's result.
struct Sample {
    outcome: String,
    latency: Duration,
    counts: bool,
}

/// A request that is due.
struct Due {
    at: Instant,
    counts: bool,
    account: u64,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arc::new(Arguments::parse());
    match run(&arguments).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("loadtest: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arc<Arguments>) -> Result<(), Box<dyn std::error::Error>> {
    let (due, waiting) = async_queue(arguments.rate);
    let waiting = Arc::new(tokio::sync::Mutex::new(waiting));
    let (report, mut samples) = mpsc::channel(65_536);
    for _ in 0..arguments.connections {
        let sender = connect(arguments.target).await?;
        tokio::spawn(carry(Arc::clone(arguments), sender, Arc::clone(&waiting), report.clone()));
    }
    drop(report);
    let late = tokio::spawn(schedule(Arc::clone(arguments), due));
    let mut latencies = Histogram::<u64>::new(3)?;
    let mut outcomes: BTreeMap<String, u64> = BTreeMap::new();
    while let Some(sample) = samples.recv().await {
        if sample.counts {
            latencies.record(u64::try_from(sample.latency.as_micros())?)?;
            *outcomes.entry(sample.outcome).or_default() += 1;
        }
    }
    let late = late.await?;
    print_report(arguments, &latencies, &outcomes, late);
    Ok(())
}

/// The queue has room for ten seconds of requests; what does not fit was dropped by a target that stands still.
fn async_queue(rate: u32) -> (mpsc::Sender<Due>, mpsc::Receiver<Due>) {
    mpsc::channel(usize::try_from(rate).unwrap_or(1_000).saturating_mul(10).max(1_000))
}

/// Puts each request into the queue at its time. Returns how far behind its own schedule it ever was: when that is much,
/// the generator was the bottleneck.
async fn schedule(arguments: Arc<Arguments>, due: mpsc::Sender<Due>) -> Duration {
    let interval = Duration::from_secs(1) / arguments.rate.max(1);
    let start = Instant::now();
    let warm = u64::from(arguments.rate) * arguments.warm_up;
    let all = warm + u64::from(arguments.rate) * arguments.seconds;
    let mut late = Duration::ZERO;
    for number in 0..all {
        let at = start + interval.saturating_mul(u32::try_from(number).unwrap_or(u32::MAX));
        tokio::time::sleep_until(at.into()).await;
        late = late.max(at.elapsed());
        let request = Due { at, counts: number >= warm, account: 1 + number % 100_000 };
        if due.try_send(request).is_err() {
            eprintln!("loadtest: the queue is full: the target does not keep up by ten seconds");
            break;
        }
    }
    late
}

async fn connect(target: SocketAddr) -> Result<SendRequest<Full<Bytes>>, Box<dyn std::error::Error>> {
    let stream = TcpStream::connect(target).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

/// Carries requests on one connection, one after another, until there are no more or the connection breaks.
async fn carry(
    arguments: Arc<Arguments>,
    mut sender: SendRequest<Full<Bytes>>,
    waiting: Arc<tokio::sync::Mutex<mpsc::Receiver<Due>>>,
    report: mpsc::Sender<Sample>,
) {
    loop {
        let Some(due) = waiting.lock().await.recv().await else { return };
        let outcome = call(&arguments, &mut sender, due.account).await;
        let broken = outcome.is_err();
        let outcome = outcome.unwrap_or_else(|_| "broken connection".to_owned());
        let sample = Sample { outcome, latency: due.at.elapsed(), counts: due.counts };
        if report.send(sample).await.is_err() {
            return;
        }
        if broken {
            match connect(arguments.target).await {
                Ok(again) => sender = again,
                Err(_) => return,
            }
        }
    }
}

/// The status, and the problem's code when there is one.
async fn call(
    arguments: &Arguments,
    sender: &mut SendRequest<Full<Bytes>>,
    account: u64,
) -> Result<String, hyper::Error> {
    let body = Bytes::from(format!("{{\"accountNo\":\"{account:014}\"}}"));
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = hyper::Method::POST;
    *request.uri_mut() = hyper::Uri::from_static("/api/gateway/balance");
    for (name, value) in [("host", "gateway"), ("content-type", "application/json"), ("x-api-key", &arguments.key)] {
        if let Ok(value) = hyper::header::HeaderValue::from_str(value) {
            request.headers_mut().insert(name, value);
        }
    }
    sender.ready().await?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    let code = serde_json::from_slice::<serde_json::Value>(&body)
        .ok()
        .and_then(|body| body.get("code")?.as_str().map(str::to_owned));
    Ok(code.map_or_else(|| status.as_u16().to_string(), |code| format!("{} {code}", status.as_u16())))
}

#[expect(clippy::cast_precision_loss, reason = "for display")]
fn print_report(arguments: &Arguments, latencies: &Histogram<u64>, outcomes: &BTreeMap<String, u64>, late: Duration) {
    let answered = latencies.len();
    println!("offered {} /s, answered {:.1} /s", arguments.rate, answered as f64 / arguments.seconds as f64);
    for (name, quantile) in [("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999)] {
        println!("{name:<6} {:.3} ms", latencies.value_at_quantile(quantile) as f64 / 1_000.0);
    }
    for (outcome, count) in outcomes {
        println!("{count:>8} × {outcome}");
    }
    if late > Duration::from_millis(50) {
        println!("the generator itself was {late:?} behind its schedule: do not trust the tail");
    }
}
