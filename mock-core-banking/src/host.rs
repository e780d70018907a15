//! The bank behind its ports: takes requests off connections, carries out faults, counts. One request is outstanding per
//! connection. Where it listens is `server`'s.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use codec::LayoutError;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use crate::answer::{Desk, Reply, Request};
use crate::arrival::ArrivalClock;
use crate::bank::{Bank, MORE, OK};
use crate::faults::{Dice, Fault, FaultSchedule, Struck};
use crate::server::Port;
use crate::wire::Wire;

/// What the simulator counted.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Counters {
    /// Connections.
    pub connections: Connections,
    /// Frames that arrived whole, by message type, whatever became of them.
    pub requests: BTreeMap<String, u64>,
    /// Requests that the bank carried out, by message type, also if the answer never left. A status inquiry or a net-cancel
    /// that was answered is one, whatever it said about its original.
    pub processed: BTreeMap<String, u64>,
    /// Requests that the bank refused, by code.
    pub refused: BTreeMap<String, u64>,
}

/// One frame that arrived.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Arrival {
    /// Microseconds since 1970 by this machine's clock, when its last byte came, or had been read: [`crate::Settings`] says which.
    pub at_us: i64,
    /// The message type.
    pub kind: String,
}

/// Arrivals that are remembered; of more the oldest are forgotten.
const ARRIVALS_MAX: usize = 100_000;

/// Connections since the start, and now.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Connections {
    /// Accepted since the start.
    pub opened: u64,
    /// Open now.
    pub open: u64,
}

/// What all ports share: the bank, the dice, the counters.
#[derive(Debug)]
pub struct Host {
    desk: Desk,
    bank: Mutex<Bank>,
    dice: Mutex<Dice>,
    counters: Mutex<Counters>,
    arrivals: Mutex<VecDeque<Arrival>>,
    /// How often each transfer's id arrived in a frame.
    transfers: Mutex<HashMap<Vec<u8>, u32>>,
    close_idle: watch::Sender<u64>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Host {
    /// A bank without sockets, to be served over any stream with [`Host::serve`].
    ///
    /// # Errors
    /// The faults of the built-in layouts.
    pub fn new(faults: FaultSchedule, delay: Duration) -> Result<Arc<Self>, Vec<LayoutError>> {
        Ok(Arc::new(Self {
            desk: Desk::new()?,
            bank: Mutex::default(),
            dice: Mutex::new(Dice::new(faults, delay)),
            counters: Mutex::default(),
            arrivals: Mutex::default(),
            transfers: Mutex::default(),
            close_idle: watch::Sender::new(0),
        }))
    }

    /// Looks at the books.
    pub fn bank<T>(&self, look: impl FnOnce(&Bank) -> T) -> T {
        look(&lock(&self.bank))
    }

    /// Changes the books, for tests that need a day of transfers or a bank that is wrong.
    pub fn change_bank(&self, change: impl FnOnce(&mut Bank)) {
        change(&mut lock(&self.bank));
    }

    /// What was counted so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        lock(&self.counters).clone()
    }

    /// The schedule in force.
    #[must_use]
    pub fn faults(&self) -> FaultSchedule {
        lock(&self.dice).schedule().clone()
    }

    /// Puts another schedule in force; its dice start anew from the seed.
    pub fn set_faults(&self, schedule: FaultSchedule) {
        lock(&self.dice).replace(schedule);
    }

    /// Closes every connection on which no request is outstanding.
    pub fn close_idle(&self) {
        self.close_idle.send_modify(|round| *round += 1);
    }

    /// Serves one connection until it ends.
    pub async fn serve(&self, stream: impl AsyncRead + AsyncWrite + Unpin, port: Port) {
        self.serve_by(stream, ArrivalClock::OnReading, port).await;
    }

    pub(crate) async fn serve_by(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        arrivals: ArrivalClock,
        port: Port,
    ) {
        {
            let mut counters = lock(&self.counters);
            counters.connections.opened += 1;
            counters.connections.open += 1;
        }
        let _counted = OpenConnection(&self.counters);
        let struck = lock(&self.dice).for_connection();
        let mut wire = Wire::new(stream, arrivals, port.framing());
        match struck.map(|struck| struck.fault) {
            Some(Fault::RefuseConnect) => return,
            Some(Fault::HalfOpen) => return wire.say_nothing().await,
            _ => {}
        }
        // An error here is the other side's leaving, or a fault that closes: either way the connection is over.
        if let Err(error) = self.converse(&mut wire, port).await {
            tracing::debug!(kind = ?error.kind(), "simulator connection ended");
        }
    }

    async fn converse<S: AsyncRead + AsyncWrite + Unpin>(&self, wire: &mut Wire<S>, port: Port) -> io::Result<()> {
        let mut close_idle = self.close_idle.subscribe();
        loop {
            // A request that is here already is served: only a line on which nothing waits is idle.
            let frame = tokio::select! {
                biased;
                frame = wire.read_frame() => frame?,
                changed = close_idle.changed() => return changed.map_err(io::Error::other),
            };
            let Some(frame) = frame else { return Ok(()) };
            self.count_request(&frame, wire.arrived_us());
            let request = self.desk.read(&frame).filter(|request| port.speaks(request.message.kind()));
            let Some(request) = request else { return Ok(()) };
            let struck = lock(&self.dice).for_request(request.message.kind(), request.account());
            self.handle(wire, &request, struck, &mut close_idle).await?;
        }
    }

    /// Counts every whole frame that arrives, by its first four bytes; what has no message type is `malformed`. Before
    /// anything else is looked at, so that nobody can say that a refused request never came.
    fn count_request(&self, frame: &[u8], at_us: i64) {
        let kind = frame.get(..4).filter(|kind| kind.iter().all(u8::is_ascii_digit));
        let kind = kind.and_then(|kind| std::str::from_utf8(kind).ok()).unwrap_or("malformed");
        *lock(&self.counters).requests.entry(kind.to_owned()).or_default() += 1;
        self.note_arrival(kind, at_us);
        if let ("0600", Some(id)) = (kind, frame.get(4..26)) {
            *lock(&self.transfers).entry(id.to_vec()).or_default() += 1;
        }
    }

    fn note_arrival(&self, kind: &str, at_us: i64) {
        let mut arrivals = lock(&self.arrivals);
        if arrivals.len() >= ARRIVALS_MAX {
            arrivals.pop_front();
        }
        arrivals.push_back(Arrival { at_us, kind: kind.to_owned() });
    }

    /// When the last frames arrived, oldest first.
    #[must_use]
    pub fn arrivals(&self) -> Vec<Arrival> {
        let mut arrivals: Vec<_> = lock(&self.arrivals).iter().cloned().collect();
        // Of two connections the one that is read first need not be the one on which something came first.
        arrivals.sort_by_key(|arrival| arrival.at_us);
        arrivals
    }

    /// How many frames with this transfer's id arrived, whatever became of them.
    #[must_use]
    pub fn transfer_frames(&self, id: &str) -> u32 {
        lock(&self.transfers).get(id.as_bytes()).copied().unwrap_or_default()
    }

    async fn handle<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        wire: &mut Wire<S>,
        request: &Request,
        struck: Option<Struck>,
        close_idle: &mut watch::Receiver<u64>,
    ) -> io::Result<()> {
        let Some(Struck { fault, delay, code }) = struck else {
            let reply = self.process(request)?;
            close_idle.mark_unchanged();
            return wire.send(&reply.bytes).await;
        };
        match fault {
            Fault::CloseBefore => return Err(io::ErrorKind::ConnectionAborted.into()),
            Fault::Stall => {
                wire.say_nothing().await;
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            Fault::LateOriginal => tokio::time::sleep(delay).await,
            Fault::Code => {
                let code = code.unwrap_or_else(|| "0099".to_owned());
                let reply = self.desk.refuse(request, &code).ok_or(io::ErrorKind::InvalidData)?;
                *lock(&self.counters).refused.entry(code).or_default() += 1;
                close_idle.mark_unchanged();
                return wire.send(&reply.bytes).await;
            }
            _ => {}
        }
        let mut reply = self.process(request)?;
        if matches!(fault, Fault::Late | Fault::Jitter) {
            tokio::time::sleep(delay).await;
        }
        // Whoever has the reply may take this line for idle; what was asked before does not concern it.
        close_idle.mark_unchanged();
        match fault {
            Fault::CloseAfter => Err(io::ErrorKind::ConnectionAborted.into()),
            Fault::Short => {
                reply.bytes.truncate(reply.bytes.len().saturating_sub(3));
                wire.send_unchecked(&reply.bytes).await
            }
            Fault::Garbage => {
                reply.spoil_number();
                wire.send(&reply.bytes).await
            }
            Fault::WrongEcho => {
                reply.spoil_echo();
                wire.send(&reply.bytes).await
            }
            Fault::Drip => wire.drip(&reply.bytes).await,
            Fault::Half => wire.send_half(&reply.bytes).await,
            Fault::Surplus => wire.send_with(&reply.bytes, b"!").await,
            Fault::Twice => {
                let again = wire.framed(&reply.bytes)?;
                wire.send_with(&reply.bytes, &again).await
            }
            Fault::IdleClose => {
                wire.send(&reply.bytes).await?;
                Err(io::ErrorKind::ConnectionAborted.into())
            }
            _ => wire.send(&reply.bytes).await,
        }
    }

    fn process(&self, request: &Request) -> io::Result<Reply> {
        let reply = self.desk.answer(request, &mut lock(&self.bank)).ok_or(io::ErrorKind::InvalidData)?;
        let mut counters = lock(&self.counters);
        let counter = if reply.code == OK || reply.code == MORE || request.message.asks_about_an_original() {
            counters.processed.entry(request.message.kind().to_owned())
        } else {
            counters.refused.entry(reply.code.clone())
        };
        *counter.or_default() += 1;
        drop(counters);
        Ok(reply)
    }
}

struct OpenConnection<'a>(&'a Mutex<Counters>);

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        lock(self.0).connections.open -= 1;
    }
}
