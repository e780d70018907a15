//! When a frame arrived. By this process's own clock as it reads, or by the kernel's as the segment came in: a witness that is
//! kept from its processor then still says when the other side sent.

use std::io::{self, IoSliceMut};
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll, ready};

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

/// When the last bytes of one connection came, in microseconds since 1970.
#[derive(Debug, Clone, Default)]
pub(crate) enum ArrivalClock {
    /// When they are looked at.
    #[default]
    OnReading,
    /// When the kernel had them; 0 before the first.
    Kernel(Arc<AtomicI64>),
}

impl ArrivalClock {
    pub(crate) fn last_us(&self) -> i64 {
        match self {
            Self::Kernel(last) => last.load(Ordering::Relaxed),
            Self::OnReading => now_us(),
        }
    }
}

fn now_us() -> i64 {
    #[expect(clippy::disallowed_methods, reason = "the witness has a clock of its own")]
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// A connection of which the kernel says when its bytes came.
pub(crate) struct Stamped {
    stream: TcpStream,
    last: Arc<AtomicI64>,
}

impl Stamped {
    pub(crate) fn new(stream: TcpStream) -> Self {
        if let Err(error) = setsockopt(&stream, sockopt::ReceiveTimestampns, &true) {
            tracing::warn!(%error, "the kernel does not stamp what comes");
        }
        Self { stream, last: Arc::default() }
    }

    pub(crate) fn clock(&self) -> ArrivalClock {
        ArrivalClock::Kernel(Arc::clone(&self.last))
    }

    /// Reads what is there, and when it came. The kernel begins to stamp a moment after the first socket has asked for it: until then it
    /// came when it was read.
    fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        let mut stamp = nix::cmsg_space!(TimeSpec);
        let mut pieces = [IoSliceMut::new(into)];
        let read = recvmsg::<()>(self.stream.as_raw_fd(), &mut pieces, Some(&mut stamp), MsgFlags::empty())?;
        let stamped = read.cmsgs()?.find_map(|told| match told {
            ControlMessageOwned::ScmTimestampns(at) => Some(at.tv_sec() * 1_000_000 + at.tv_nsec() / 1_000),
            _ => None,
        });
        self.last.store(stamped.unwrap_or_else(now_us), Ordering::Relaxed);
        Ok(read.bytes)
    }
}

impl AsyncRead for Stamped {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.stream.poll_read_ready(context))?;
            let free = into.initialize_unfilled();
            match self.stream.try_io(Interest::READABLE, || self.receive(free)) {
                Ok(count) => {
                    into.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Stamped {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn the_kernel_says_when_bytes_came_and_not_when_they_were_read() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut stream = Stamped::new(listener.accept().await.unwrap().0);
        let (clock, own) = (stream.clock(), ArrivalClock::OnReading);
        let mut read = [0; 8];
        let mut stamped = 0;
        for _ in 0..20 {
            let before = own.last_us();
            sender.write_all(b"12345678").await.unwrap();
            let sent = own.last_us();
            tokio::time::sleep(Duration::from_millis(400)).await;
            stream.read_exact(&mut read).await.unwrap();
            assert_eq!(&read, b"12345678");
            assert!(own.last_us() >= sent + 400_000);
            // The clocks are the same one, and a segment is stamped on its way: long before it is read here.
            let came = clock.last_us();
            assert!(came >= before, "{came} {before}");
            stamped = if came < sent + 300_000 { stamped + 1 } else { 0 };
            if stamped == 2 {
                break;
            }
        }
        assert_eq!(stamped, 2, "the kernel says nothing");
        drop(sender);
        assert_eq!(stream.read(&mut read).await.unwrap(), 0);
    }
}
