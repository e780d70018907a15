//! The connection pool of one institution: a hard cap, first-come waiters, an idle limit.
//!
//! The cap is the number of lines in the contract with the host: idle, lent and connecting together never exceed it.
//! Waiters are served in order; of the idle connections the last one back goes out first. What travels on a connection
//! is `exchange`'s; whether it may be used again is decided there, and dropping it otherwise closes the socket.

mod dial;
mod exchange;
mod idle;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use codec::Framing;
use tokio::runtime::{self, Handle};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::clock::{Clock, Deadline, Instant};
pub use dial::{Dial, Dialing, TcpDial, Wire};
pub use exchange::{Connection, ExchangeError, Exchanged};
use idle::{IdleLines, Taken};

/// The rules of one pool.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Connections at most, of any kind.
    pub connections_max: usize,
    /// How long a caller waits for one.
    pub borrow_wait: Duration,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// An idle one older than this is closed.
    pub idle_ttl: Duration,
    /// One older than this is closed when it comes back or would be lent; up to a tenth less, by chance.
    pub life_max: Duration,
}

/// Why no connection could be lent. No byte was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LendError {
    /// None came free within the wait.
    Exhausted,
    /// The deadline passed before connecting began.
    DeadlineBeforeConnecting,
    /// This machine has no socket to connect with: out of descriptors, ports or buffers. Says nothing about the host.
    NoLocalSocket,
    /// Connecting failed or took too long.
    Unreachable,
}

/// What operators see.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the documentation; docs/OPERATIONS.md explains each")]
pub struct Stats {
    pub max: u64,
    pub active: u64,
    pub idle: u64,
    pub waiting: u64,
    pub created: u64,
    pub reused: u64,
    pub destroyed: u64,
    pub expired: u64,
    pub exhausted: u64,
}

/// The pool of one institution.
#[derive(Debug, Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    dial: Arc<dyn Dial>,
    framing: Framing,
    settings: Settings,
    clock: Clock,
    places: Arc<Semaphore>,
    idle: IdleLines,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    waiting: AtomicU64,
    created: AtomicU64,
    reused: AtomicU64,
    destroyed: AtomicU64,
    expired: AtomicU64,
    exhausted: AtomicU64,
}

fn raise(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A socket and its age.
#[derive(Debug)]
pub(crate) struct Line {
    wire: Box<dyn Wire>,
    epoch: u64,
    /// When it is too old to go on.
    retire_at: Instant,
    /// The runtime that waits for its bytes; another one's call would have to be woken across threads.
    home: Option<runtime::Id>,
}

impl Line {
    fn move_to(self, here: Option<runtime::Id>) -> std::io::Result<Self> {
        if self.home == here {
            return Ok(self);
        }
        Ok(Self { wire: self.wire.move_here()?, home: here, ..self })
    }
}

impl Pool {
    /// An empty pool.
    #[must_use]
    pub fn new(dial: Arc<dyn Dial>, framing: Framing, settings: Settings, clock: Clock) -> Self {
        let places = Arc::new(Semaphore::new(settings.connections_max));
        let shared = Shared {
            dial,
            framing,
            settings,
            clock,
            places,
            idle: IdleLines::new(settings.idle_ttl),
            counts: Counts::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Lends a connection: an idle one that is still good, else a new one.
    ///
    /// # Errors
    /// [`LendError`]; the deadline covers waiting and connecting.
    pub async fn lend(&self, deadline: Deadline) -> Result<Connection, LendError> {
        let shared = &self.shared;
        let place = shared.wait_for_place(deadline).await?;
        let now = shared.clock.now();
        if deadline.has_passed(now) {
            return Err(LendError::DeadlineBeforeConnecting);
        }
        if let Some(line) = shared.take_idle(now) {
            raise(&shared.counts.reused);
            return Ok(Connection::new(Arc::clone(shared), line, place, true));
        }
        // Connecting goes on in a task of its own: a caller who leaves wastes nothing, the next one finds the socket.
        let (give, take) = oneshot::channel();
        let connecting = connect(Arc::clone(shared), place, give);
        tokio::spawn(connecting);
        match tokio::time::timeout_at(deadline.at(), take).await {
            Ok(Ok(connected)) => connected,
            _ => Err(LendError::Unreachable),
        }
    }

    /// What operators see.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let Shared { settings, places, idle, counts, .. } = &*self.shared;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let active = settings.connections_max.saturating_sub(places.available_permits());
        let wide = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        Stats {
            max: wide(settings.connections_max),
            active: wide(active),
            idle: wide(idle.len()),
            waiting: read(&counts.waiting),
            created: read(&counts.created),
            reused: read(&counts.reused),
            destroyed: read(&counts.destroyed),
            expired: read(&counts.expired),
            exhausted: read(&counts.exhausted),
        }
    }

    /// Closes idle connections that are past their limits. Called now and then; lending checks by itself.
    pub fn sweep(&self) {
        let shared = &self.shared;
        for _ in 0..shared.idle.sweep(shared.clock.now()) {
            raise(&shared.counts.expired);
            raise(&shared.counts.destroyed);
        }
    }

    /// Closes the idle connections and lends no more.
    pub fn close(&self) {
        self.shared.places.close();
        self.shared.flush();
    }
}

impl Shared {
    async fn wait_for_place(&self, deadline: Deadline) -> Result<OwnedSemaphorePermit, LendError> {
        let places = Arc::clone(&self.places);
        if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
            return Ok(place);
        }
        let until = deadline.at_most(self.clock.now(), self.settings.borrow_wait);
        let waiting = Waiting::begin(&self.counts.waiting);
        let place = tokio::time::timeout_at(until.at(), places.acquire_owned()).await;
        drop(waiting);
        match place {
            Ok(Ok(place)) => Ok(place),
            _ if until == deadline => Err(LendError::DeadlineBeforeConnecting),
            _ => {
                raise(&self.counts.exhausted);
                Err(LendError::Exhausted)
            }
        }
    }

    fn take_idle(&self, now: Instant) -> Option<Line> {
        let here = here();
        loop {
            let Taken { line, expired, ended } = self.idle.take(now, here);
            self.counts.expired.fetch_add(expired, Ordering::Relaxed);
            self.counts.destroyed.fetch_add(expired + ended, Ordering::Relaxed);
            let line = line?;
            match line.move_to(here) {
                Ok(line) => return Some(line),
                Err(_) => raise(&self.counts.destroyed),
            }
        }
    }

    fn put_idle(&self, line: Line) {
        if self.places.is_closed() || !self.idle.put(line, self.clock.now()) {
            raise(&self.counts.destroyed);
        }
    }

    fn flush(&self) {
        for _ in 0..self.idle.flush() {
            raise(&self.counts.destroyed);
        }
    }
}

/// Connects and hands the connection over; if nobody waits any more, dropping it puts the unused socket to the idle
/// ones.
async fn connect(
    shared: Arc<Shared>,
    place: OwnedSemaphorePermit,
    give: oneshot::Sender<Result<Connection, LendError>>,
) {
    let Settings { connect_timeout, life_max, .. } = shared.settings;
    let epoch = shared.idle.epoch();
    match tokio::time::timeout(connect_timeout, shared.dial.dial()).await {
        Ok(Ok(wire)) => {
            raise(&shared.counts.created);
            let life = life_max.mul_f64(1.0 - fastrand::f64() / 10.0);
            let line = Line { wire, epoch, retire_at: shared.clock.now() + life, home: here() };
            let connection = Connection::new(Arc::clone(&shared), line, place, false);
            if let Err(Ok(unclaimed)) = give.send(Ok(connection)) {
                unclaimed.give_back();
            }
        }
        Ok(Err(error)) => {
            tracing::debug!(kind = ?error.kind(), "connect failed");
            let failed = if dial::is_local(&error) { LendError::NoLocalSocket } else { LendError::Unreachable };
            // Whoever asked may be gone; then nobody needs to know.
            drop(give.send(Err(failed)));
        }
        Err(_elapsed) => tracing::debug!("connect timed out"),
    }
}

/// The runtime on which this is called.
fn here() -> Option<runtime::Id> {
    Handle::try_current().ok().map(|runtime| runtime.id())
}

struct Waiting<'a>(&'a AtomicU64);

impl<'a> Waiting<'a> {
    fn begin(count: &'a AtomicU64) -> Self {
        raise(count);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
