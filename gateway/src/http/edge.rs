//! The HTTP edge: connections and their time limits. A peer that connects and says nothing, or sends its head a byte at
//! a time, or keeps a connection for ever, is closed in its limit; the server library alone would wait.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use futures_util::FutureExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::cores::Cores;
use crate::clock::{Clock, Instant};

/// Limits of the edge.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at a time; one more waits in the kernel's queue.
    pub connections_max: usize,
    /// From connecting to the first byte.
    pub first_byte: Duration,
    /// From a head's first byte to its end.
    pub head: Duration,
    /// From an answer to the next request's first byte.
    pub idle: Duration,
    /// From a head to its body's last byte; kept by the handlers.
    pub body: Duration,
    /// Longest body in bytes; kept by the handlers.
    pub body_max: usize,
    /// Longest head in bytes.
    pub head_max: usize,
    /// Most header lines.
    pub headers_max: usize,
}

/// Answers requests.
pub trait Answer: Fn(Request) -> Self::Answering + Clone + Send + Sync + 'static {
    /// An answer under way.
    type Answering: Future<Output = Response> + Send;
}

impl<A: Fn(Request) -> F + Clone + Send + Sync + 'static, F: Future<Output = Response> + Send> Answer for A {
    type Answering = F;
}

/// How often the timer of a connection rings whose request is being handled, and which has no limit meanwhile.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Accepts, and serves on the cores until `stop`, then lets requests under way end. `connections` tracks what is open.
pub async fn serve<A: Answer>(
    listener: TcpListener,
    answer: A,
    (limits, clock): (Limits, Clock),
    stop: CancellationToken,
    (cores, connections): (Arc<Cores>, TaskTracker),
) {
    let places = Arc::new(Semaphore::new(limits.connections_max));
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &places) => accepted,
            () = stop.cancelled() => break,
        };
        let Some((stream, place)) = accepted else { continue };
        let watch = Watch::new(limits, Arc::clone(&places), clock.clone());
        let (answer, stop) = (answer.clone(), stop.clone());
        let serving = async move {
            // Here, on the core on which it is to live, it is made known to that core's runtime.
            match TcpStream::from_std(stream) {
                Ok(stream) => serve_connection(stream, answer, limits, watch, stop).await,
                Err(error) => tracing::warn!(kind = ?error.kind(), "cannot serve a connection"),
            }
            drop(place);
        };
        cores.spawn(&connections, serving);
    }
    connections.close();
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> Option<(std::net::TcpStream, OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _peer)) => {
            stream.set_nodelay(true).ok()?;
            Some((stream.into_std().ok()?, place))
        }
        Err(error) => {
            // Mostly: out of descriptors. Wait for some to be closed rather than spin.
            tracing::warn!(kind = ?error.kind(), "cannot accept");
            tokio::time::sleep(Duration::from_millis(50)).await;
            None
        }
    }
}

async fn serve_connection<A: Answer>(
    stream: TcpStream,
    answer: A,
    limits: Limits,
    watch: Watch,
    stop: CancellationToken,
) {
    let watch = Arc::new(watch);
    let service = service_fn(|request: hyper::Request<Incoming>| {
        watch.request_came();
        let watch = Arc::clone(&watch);
        // Not an async block: it would have the future in it twice, where it came in and where it is waited for, and all that is copied.
        answer(request.map(Body::new)).map(move |response| {
            watch.answered();
            Ok::<_, Infallible>(response)
        })
    });
    let io = TokioIo::new(Watched { stream, watch: Arc::clone(&watch) });
    let mut builder = http1::Builder::new();
    builder.max_headers(limits.headers_max).max_buf_size(limits.head_max).header_read_timeout(None);
    let mut connection = pin!(builder.serve_connection(io, service));
    let mut stopping = pin!(stop.cancelled());
    let mut asked_to_stop = false;
    let mut look = pin!(tokio::time::sleep(limits.first_byte));
    poll_fn(|context| {
        if !asked_to_stop && stopping.as_mut().poll(context).is_ready() {
            asked_to_stop = true;
            connection.as_mut().graceful_shutdown();
        }
        if let Poll::Ready(ended) = connection.as_mut().poll(context) {
            if let Err(error) = ended {
                // Callers come and go; what they did to us is no error of ours.
                tracing::debug!(timeout = error.is_timeout(), closed = error.is_closed(), "connection ended");
            }
            return Poll::Ready(());
        }
        watch.look(look.as_mut(), context)
    })
    .await;
}

/// When the current phase of a connection must be over.
#[derive(Debug)]
struct Watch {
    limits: Limits,
    places: Arc<Semaphore>,
    clock: Clock,
    origin: Instant,
    /// Milliseconds since `origin`; `u64::MAX` while a request is being handled.
    until: AtomicU64,
    /// No byte of the next head has come yet.
    awaiting_byte: AtomicBool,
}

impl Watch {
    fn new(limits: Limits, places: Arc<Semaphore>, clock: Clock) -> Self {
        let origin = clock.now();
        let watch = Self {
            limits,
            places,
            clock,
            origin,
            until: AtomicU64::new(u64::MAX),
            awaiting_byte: AtomicBool::new(true),
        };
        watch.set(limits.first_byte);
        watch
    }

    fn elapsed(&self) -> u64 {
        let elapsed = self.clock.now().saturating_duration_since(self.origin);
        u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
    }

    fn set(&self, limit: Duration) {
        let limit = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        self.until.store(self.elapsed().saturating_add(limit), Ordering::Relaxed);
    }

    fn bytes_came(&self) {
        if self.awaiting_byte.load(Ordering::Relaxed) && self.awaiting_byte.swap(false, Ordering::Relaxed) {
            self.set(self.limits.head);
        }
    }

    fn request_came(&self) {
        self.awaiting_byte.store(false, Ordering::Relaxed);
        self.until.store(u64::MAX, Ordering::Relaxed);
    }

    /// While there is room a kept connection may idle for long; when three quarters of the places are taken it may not.
    fn answered(&self) {
        let crowded = self.places.available_permits() < self.limits.connections_max.div_ceil(4);
        self.set(if crowded { self.limits.idle.min(self.limits.first_byte) } else { self.limits.idle });
        self.awaiting_byte.store(true, Ordering::Relaxed);
    }

    /// When the current phase must be over, if it must.
    fn end(&self) -> Option<Instant> {
        let until = self.until.load(Ordering::Relaxed);
        (until != u64::MAX).then(|| self.origin + Duration::from_millis(until))
    }

    /// Ready when the phase has lasted too long. The timer is put forward when a phase must end before it rings, and back only when it
    /// has rung, so a look at a connection that is kept busy costs it no timer and no clock.
    fn look(&self, mut timer: Pin<&mut Sleep>, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let end = self.end();
            if let Some(end) = end.filter(|end| *end < timer.deadline()) {
                timer.as_mut().reset(end);
            }
            if timer.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            let now = self.clock.now();
            let end = end.unwrap_or(now + LOOK_EVERY);
            if end <= now {
                return Poll::Ready(());
            }
            timer.as_mut().reset(end);
        }
    }
}

/// The socket, telling the watch when bytes come.
struct Watched {
    stream: TcpStream,
    watch: Arc<Watch>,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.watch.bytes_came();
        }
        polled
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
