//! The network between a gateway and the bank: connects that fail or hang, writes that break half way.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use gwanmun::pool::{Dial, Dialing, Wire};
use mock_core_banking::{Host, Port};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};

use crate::gates::Life;

/// Of a thousand, how many.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Troubles {
    pub(crate) refused: u64,
    pub(crate) hangs: u64,
    /// Writes that break after some bytes.
    pub(crate) breaks: u64,
}

#[derive(Debug)]
pub(crate) struct SimDial {
    pub(crate) life: Arc<Life>,
    pub(crate) host: Arc<Host>,
    pub(crate) port: Port,
    pub(crate) troubles: Arc<Mutex<Troubles>>,
    pub(crate) dice: Arc<Mutex<fastrand::Rng>>,
}

impl Dial for SimDial {
    fn dial(&self) -> Dialing<'_> {
        Box::pin(async {
            self.life.act_io()?;
            let (troubles, way, roll, breaks) = {
                let mut dice = self.dice.lock().unwrap();
                (*self.troubles.lock().unwrap(), dice.u64(..3_000), dice.u64(..1_000), dice.u64(..1_000))
            };
            if roll < troubles.hangs {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(Duration::from_micros(way)).await;
            if roll < troubles.hangs + troubles.refused {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let (near, far) = tokio::io::duplex(4_096);
            let (host, port) = (Arc::clone(&self.host), self.port);
            tokio::spawn(async move { host.serve(far, port).await });
            // Some lines break at their third write, say, after some bytes of it, or after all of them.
            let breaks_at = (breaks < troubles.breaks).then_some((breaks % 4, usize::try_from(breaks % 200).unwrap()));
            let wire = SimWire {
                life: Arc::clone(&self.life),
                stream: Mutex::new(near),
                peeked: Mutex::default(),
                breaks_at,
                broken: false,
            };
            Ok(Box::new(wire) as Box<dyn Wire>)
        })
    }
}

#[derive(Debug)]
struct SimWire {
    life: Arc<Life>,
    stream: Mutex<DuplexStream>,
    /// A byte that was found when nobody expected one.
    peeked: Mutex<Option<u8>>,
    breaks_at: Option<(u64, usize)>,
    broken: bool,
}

impl SimWire {
    fn over(&self) -> Option<io::Error> {
        (self.broken || self.life.is_over()).then(|| io::ErrorKind::ConnectionReset.into())
    }
}

impl Wire for SimWire {
    fn is_silent(&self) -> bool {
        let mut byte = [0];
        let mut buffer = ReadBuf::new(&mut byte);
        let mut stream = self.stream.lock().unwrap();
        let read = Pin::new(&mut *stream).poll_read(&mut Context::from_waker(Waker::noop()), &mut buffer);
        *self.peeked.lock().unwrap() = buffer.filled().first().copied();
        self.over().is_none() && read.is_pending()
    }

    fn move_here(self: Box<Self>) -> io::Result<Box<dyn Wire>> {
        Ok(self)
    }
}

impl AsyncRead for SimWire {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let Some(error) = self.over() {
            return Poll::Ready(Err(error));
        }
        if let Some(byte) = self.peeked.lock().unwrap().take() {
            buffer.put_slice(&[byte]);
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut *self.stream.lock().unwrap()).poll_read(context, buffer)
    }
}

impl AsyncWrite for SimWire {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if let Some(error) = self.over() {
            return Poll::Ready(Err(error));
        }
        if !self.life.act() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let most = match self.breaks_at {
            Some((0, bytes)) => {
                self.broken = true;
                bytes
            }
            Some((left, bytes)) => {
                self.breaks_at = Some((left - 1, bytes));
                usize::MAX
            }
            None => usize::MAX,
        };
        let taken = bytes.get(..most.min(bytes.len())).unwrap();
        if taken.is_empty() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        Pin::new(&mut *self.stream.lock().unwrap()).poll_write(context, taken)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream.lock().unwrap()).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream.lock().unwrap()).poll_shutdown(context)
    }
}
