//! The bank's ports: accepts connections, carries out faults, counts. One request is outstanding per connection.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use codec::{FrameCodec, Framing, LayoutError, LengthForm, LengthPrefix, Side};
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::codec::{Decoder, Encoder};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::answer::{Desk, Reply, Request};
use crate::bank::{Bank, OK};
use crate::control;
use crate::faults::{Dice, Fault, FaultSchedule, Struck};

/// The four institutions (기관) of the built-in bank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Port {
    /// `core-banking`: balances, status inquiries, net-cancels, in fixed framing.
    Banking,
    /// `core-history`: account entries.
    History,
    /// `core-settlement`: the settlement list.
    Settlement,
    /// `core-transfer`: transfers, exchange rates, status inquiries, net-cancels.
    Transfer,
}

impl Port {
    /// All four.
    pub const ALL: [Self; 4] = [Self::Banking, Self::History, Self::Settlement, Self::Transfer];

    /// The institution's name in configurations.
    #[must_use]
    pub fn institution(self) -> &'static str {
        match self {
            Self::Banking => "core-banking",
            Self::History => "core-history",
            Self::Settlement => "core-settlement",
            Self::Transfer => "core-transfer",
        }
    }

    /// The port's well-known number.
    #[must_use]
    pub fn number(self) -> u16 {
        match self {
            Self::Banking => 9099,
            Self::History => 9098,
            Self::Settlement => 9097,
            Self::Transfer => 9096,
        }
    }

    fn framing(self) -> Framing {
        match self {
            Self::Banking => Framing::Fixed { request: 52, reply: 61 },
            _ => Framing::LengthPrefixed(LengthPrefix {
                form: LengthForm::AsciiDigits(4),
                counts_itself: false,
                body_max: 9_999,
            }),
        }
    }

    fn speaks(self, kind: &str) -> bool {
        match self {
            Self::Banking => matches!(kind, "0200" | "0400" | "0420"),
            Self::History => kind == "0300",
            Self::Settlement => kind == "0500",
            Self::Transfer => matches!(kind, "0600" | "0700" | "0400" | "0420"),
        }
    }
}

/// How to start a simulator.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where the four ports listen; `None` takes free ports.
    pub base: Option<Ipv4Addr>,
    /// Where the control port listens; loopback only. Port 0 takes a free one.
    pub control: SocketAddr,
    /// How long the faults that wait do wait.
    pub delay: Duration,
    /// Faults from the start.
    pub faults: FaultSchedule,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            base: None,
            control: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            delay: Duration::from_secs(5),
            faults: FaultSchedule::default(),
        }
    }
}

/// Why a simulator did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A port can't be taken.
    #[error("cannot listen: {0}")]
    Listen(#[from] io::Error),
    /// The control port shows every transfer, so it never listens beyond this machine.
    #[error("the control port must be on loopback")]
    ControlNotLoopback,
    /// A layout file in this program is broken.
    #[error("built-in layouts: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Layouts(Vec<LayoutError>),
}

/// What the simulator counted.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Counters {
    /// Connections.
    pub connections: Connections,
    /// Requests that arrived whole, by message type.
    pub requests: BTreeMap<String, u64>,
    /// Requests that were answered `0000` by the bank, by message type, also if the answer never left.
    pub processed: BTreeMap<String, u64>,
    /// Requests that the bank refused, by code.
    pub refused: BTreeMap<String, u64>,
}

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
            close_idle: watch::Sender::new(0),
        }))
    }

    /// Looks at the books.
    pub fn bank<T>(&self, look: impl FnOnce(&Bank) -> T) -> T {
        look(&lock(&self.bank))
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
        {
            let mut counters = lock(&self.counters);
            counters.connections.opened += 1;
            counters.connections.open += 1;
        }
        let _counted = OpenConnection(&self.counters);
        let struck = lock(&self.dice).for_connection();
        let mut wire = Wire {
            stream,
            buffer: BytesMut::with_capacity(256),
            frames: FrameCodec::new(port.framing(), Side::Host),
            fixed: matches!(port.framing(), Framing::Fixed { .. }),
        };
        match struck.map(|struck| struck.fault) {
            Some(Fault::RefuseConnect) => return,
            Some(Fault::HalfOpen) => std::future::pending::<()>().await,
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
            let frame = tokio::select! {
                frame = wire.read_frame() => frame?,
                changed = close_idle.changed() => return changed.map_err(io::Error::other),
            };
            let request = frame.and_then(|frame| self.desk.read(&frame));
            let Some(request) = request.filter(|request| port.speaks(request.message.kind())) else { return Ok(()) };
            *lock(&self.counters).requests.entry(request.message.kind().to_owned()).or_default() += 1;
            let struck = lock(&self.dice).for_request(request.message.kind(), request.account());
            self.handle(wire, &request, struck).await?;
        }
    }

    async fn handle<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        wire: &mut Wire<S>,
        request: &Request,
        struck: Option<Struck>,
    ) -> io::Result<()> {
        let Some(Struck { fault, delay, code }) = struck else {
            let reply = self.process(request)?;
            return wire.send(&reply.bytes).await;
        };
        match fault {
            Fault::CloseBefore => return Err(io::ErrorKind::ConnectionAborted.into()),
            Fault::Stall => std::future::pending::<()>().await,
            Fault::LateOriginal => tokio::time::sleep(delay).await,
            Fault::Code => {
                let code = code.unwrap_or_else(|| "0099".to_owned());
                *lock(&self.counters).refused.entry(code.clone()).or_default() += 1;
                let reply = self.desk.refuse(request, &code).ok_or(io::ErrorKind::InvalidData)?;
                return wire.send(&reply.bytes).await;
            }
            _ => {}
        }
        let mut reply = self.process(request)?;
        match fault {
            Fault::CloseAfter => Err(io::ErrorKind::ConnectionAborted.into()),
            Fault::Late | Fault::Jitter => {
                tokio::time::sleep(delay).await;
                wire.send(&reply.bytes).await
            }
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
        let counter = if reply.code == OK || reply.code == crate::bank::MORE {
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

/// One connection's stream and framing.
struct Wire<S> {
    stream: S,
    buffer: BytesMut,
    frames: FrameCodec,
    fixed: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    /// `None` when the other side closed, or sent something that is no frame.
    async fn read_frame(&mut self) -> io::Result<Option<bytes::Bytes>> {
        loop {
            match self.frames.decode(&mut self.buffer) {
                Ok(Some(frame)) => return Ok(Some(frame)),
                Ok(None) => {}
                Err(_) => return Ok(None),
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
    }

    fn framed(&mut self, body: &[u8]) -> io::Result<BytesMut> {
        let mut bytes = BytesMut::with_capacity(body.len() + 8);
        self.frames.encode(body, &mut bytes).map_err(io::Error::other)?;
        Ok(bytes)
    }

    async fn send(&mut self, body: &[u8]) -> io::Result<()> {
        self.send_with(body, b"").await
    }

    async fn send_with(&mut self, body: &[u8], behind: &[u8]) -> io::Result<()> {
        let mut bytes = self.framed(body)?;
        bytes.extend_from_slice(behind);
        self.stream.write_all(&bytes).await
    }

    /// A body of a length that fixed framing does not allow, sent all the same.
    async fn send_unchecked(&mut self, body: &[u8]) -> io::Result<()> {
        if self.fixed { self.stream.write_all(body).await } else { self.send(body).await }
    }

    async fn send_half(&mut self, body: &[u8]) -> io::Result<()> {
        let bytes = self.framed(body)?;
        let half = bytes.get(..bytes.len() / 2).unwrap_or_default();
        self.stream.write_all(half).await?;
        Err(io::ErrorKind::ConnectionAborted.into())
    }

    async fn drip(&mut self, body: &[u8]) -> io::Result<()> {
        for byte in self.framed(body)? {
            self.stream.write_all(&[byte]).await?;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }
}

/// A running simulator. Dropping it closes every port and connection.
#[derive(Debug)]
pub struct Simulator {
    host: Arc<Host>,
    addresses: BTreeMap<Port, SocketAddr>,
    control: SocketAddr,
    _tasks: Vec<AbortOnDropHandle<()>>,
    stop: CancellationToken,
}

impl Simulator {
    /// Takes the ports and serves in background tasks.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn start(settings: Settings) -> Result<Self, StartError> {
        if !settings.control.ip().is_loopback() {
            return Err(StartError::ControlNotLoopback);
        }
        let host = Host::new(settings.faults, settings.delay).map_err(StartError::Layouts)?;
        let stop = CancellationToken::new();
        let (mut addresses, mut tasks) = (BTreeMap::new(), Vec::new());
        for port in Port::ALL {
            let address = settings.base.map_or((Ipv4Addr::LOCALHOST, 0), |base| (base, port.number()));
            let listener = TcpListener::bind(address).await?;
            addresses.insert(port, listener.local_addr()?);
            let accepting = accept(listener, port, Arc::clone(&host), stop.clone());
            tasks.push(AbortOnDropHandle::new(tokio::spawn(accepting)));
        }
        let listener = TcpListener::bind(settings.control).await?;
        let control = listener.local_addr()?;
        let serving = control::serve(listener, Arc::clone(&host));
        tasks.push(AbortOnDropHandle::new(tokio::spawn(serving)));
        Ok(Self { host, addresses, control, _tasks: tasks, stop })
    }

    /// Where one port listens.
    #[must_use]
    pub fn address(&self, port: Port) -> SocketAddr {
        self.addresses.get(&port).copied().unwrap_or(self.control)
    }

    /// Where the control port listens.
    #[must_use]
    pub fn control(&self) -> SocketAddr {
        self.control
    }

    /// The bank behind the ports.
    #[must_use]
    pub fn host(&self) -> &Arc<Host> {
        &self.host
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn accept(listener: TcpListener, port: Port, host: Arc<Host>, stop: CancellationToken) {
    loop {
        let Ok((stream, _peer)) = listener.accept().await else {
            // Out of descriptors: wait for some to be closed rather than spin.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(kind = ?error.kind(), "no TCP_NODELAY");
        }
        let (host, stop) = (Arc::clone(&host), stop.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = host.serve(stream, port) => {}
                () = stop.cancelled() => {}
            }
        });
    }
}
