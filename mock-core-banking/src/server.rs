//! The bank's four ports and its control port, as one thing that can be started and dropped.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use codec::{Framing, LayoutError, LengthForm, LengthPrefix};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::arrival::Stamped;
use crate::control;
use crate::faults::FaultSchedule;
use crate::host::Host;

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

    pub(crate) fn framing(self) -> Framing {
        match self {
            Self::Banking => Framing::Fixed { request: 52, reply: 61 },
            _ => Framing::LengthPrefixed(LengthPrefix {
                form: LengthForm::AsciiDigits(4),
                counts_itself: false,
                body_max: 9_999,
            }),
        }
    }

    pub(crate) fn speaks(self, kind: &str) -> bool {
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
    /// Whether the kernel says when a frame came, so that what keeps this process from reading is not counted in. It costs each
    /// segment that this machine receives a look at the clock.
    pub kernel_stamps: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            base: None,
            control: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            delay: Duration::from_secs(5),
            faults: FaultSchedule::default(),
            kernel_stamps: false,
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
            let accepting = accept(listener, port, settings.kernel_stamps, Arc::clone(&host), stop.clone());
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

async fn accept(listener: TcpListener, port: Port, kernel_stamps: bool, host: Arc<Host>, stop: CancellationToken) {
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
            let serving = async {
                if !kernel_stamps {
                    return host.serve(stream, port).await;
                }
                let stream = Stamped::new(stream);
                let clock = stream.clock();
                host.serve_by(stream, clock, port).await;
            };
            tokio::select! {
                () = serving => {}
                () = stop.cancelled() => {}
            }
        });
    }
}
