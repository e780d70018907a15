//! The seam to the network: how a connection is made, and what a connection can do. The simulation puts its own
//! streams here.

use std::fmt::Debug;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;

use rustix::net::RecvFlags;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// A connection under way.
pub type Dialing<'a> = Pin<Box<dyn Future<Output = io::Result<Box<dyn Wire>>> + Send + 'a>>;

/// Connects to one institution.
pub trait Dial: Debug + Send + Sync + 'static {
    /// A new connection.
    fn dial(&self) -> Dialing<'_>;
}

/// A connection's byte stream.
pub trait Wire: AsyncRead + AsyncWrite + Debug + Send + Unpin {
    /// Whether nothing has happened on an idle stream: no end, no error, not a byte. Must not wait.
    fn is_silent(&self) -> bool;

    /// Lets the current runtime wait for its bytes from now on.
    ///
    /// # Errors
    /// Those of the system; the connection is closed then.
    fn move_here(self: Box<Self>) -> io::Result<Box<dyn Wire>>;
}

/// Whether connecting failed for want of something of this machine's: descriptors, ports, buffers, memory.
pub(super) fn is_local(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let local = [Errno::MFILE, Errno::NFILE, Errno::ADDRNOTAVAIL, Errno::NOBUFS, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|errno| local.contains(&errno))
}

/// Connects over TCP.
#[derive(Debug, Clone)]
pub struct TcpDial {
    /// `host:port`, or an address.
    pub address: String,
}

impl TcpDial {
    /// A dial to a socket address.
    #[must_use]
    pub fn to(address: SocketAddr) -> Self {
        Self { address: address.to_string() }
    }
}

impl Dial for TcpDial {
    fn dial(&self) -> Dialing<'_> {
        Box::pin(async {
            let stream = TcpStream::connect(&self.address).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as Box<dyn Wire>)
        })
    }
}

impl Wire for TcpStream {
    /// Asks the kernel itself: the runtime learns of an end only when its driver is next polled, and a caller in that
    /// gap would write into a dead connection.
    fn is_silent(&self) -> bool {
        let mut byte = [0_u8; 1];
        let looked = rustix::net::recv(self, &mut byte[..], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        matches!(looked, Err(rustix::io::Errno::AGAIN))
    }

    fn move_here(self: Box<Self>) -> io::Result<Box<dyn Wire>> {
        Ok(Box::new(TcpStream::from_std(self.into_std()?)?))
    }
}
