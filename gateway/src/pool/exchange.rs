//! One request and its reply on one connection. The only file that touches an upstream socket.
//!
//! A connection is dirty from before its first write is polled, and clean again only when exactly one whole frame was
//! read and nothing lies behind it in the buffer. A dirty one that is dropped closes its socket: what is still to come
//! on it belongs to nobody.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::{Bytes, BytesMut};
use codec::{FrameCodec, Side};
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::codec::{Decoder, Encoder};

use super::{Line, Shared, raise};
use crate::clock::Deadline;

/// A lent connection. Dropping it closes the socket, unless it was given back.
#[must_use = "dropping a connection closes it"]
#[derive(Debug)]
pub struct Connection {
    // Gone once given back. The line is dropped before the place, so that the cap also holds for sockets.
    line: Option<Line>,
    shared: Arc<Shared>,
    reused: bool,
    dirty: bool,
    _place: OwnedSemaphorePermit,
}

/// A reply, and whether anything lay behind it.
#[derive(Debug)]
pub struct Exchanged {
    /// The whole frame's body.
    pub reply: Bytes,
    /// More bytes were there than the reply has.
    pub surplus: bool,
}

/// How an exchange broke. `written` bytes had entered the kernel by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExchangeError {
    /// The message does not fit the institution's framing; nothing was sent.
    CannotFrame,
    /// `before_write` said no; nothing was sent, and the connection is as it was.
    Withheld,
    /// Writing failed or ran out of time.
    Write {
        /// Bytes that had entered the kernel.
        written: usize,
    },
    /// The reply was not whole when the deadline passed.
    ReadTimeout,
    /// The connection ended before the reply was whole.
    Ended {
        /// Whether a part of the reply had come.
        partial: bool,
    },
    /// The reply's length header makes no sense.
    BadFrame,
}

impl Connection {
    pub(super) fn new(shared: Arc<Shared>, line: Line, place: OwnedSemaphorePermit, reused: bool) -> Self {
        Self { line: Some(line), shared, reused, dirty: false, _place: place }
    }

    /// Whether it carried an exchange before.
    #[must_use]
    pub fn is_reused(&self) -> bool {
        self.reused
    }

    /// Sends one request and reads one reply. `before_write` runs before the first byte can leave, and has the last word on
    /// whether it may: nothing stands between it and the write, and it is asked again when the kernel takes nothing yet. `behind_write`
    /// runs when the kernel took some.
    ///
    /// # Errors
    /// [`ExchangeError`]; except when nothing was sent the connection is then dirty, and dropping it closes it.
    pub async fn exchange(
        &mut self,
        message: &[u8],
        deadline: Deadline,
        before_write: impl FnMut() -> bool,
        behind_write: impl FnOnce(),
    ) -> Result<Exchanged, ExchangeError> {
        let mut frames = FrameCodec::new(self.shared.framing, Side::Gateway);
        let mut buffer = BytesMut::with_capacity(message.len().max(256) + 8);
        frames.encode(message, &mut buffer).map_err(|_| ExchangeError::CannotFrame)?;
        let Some(line) = &mut self.line else { return Err(ExchangeError::Write { written: 0 }) };
        self.dirty = true;
        let mut written = 0;
        let writing = write_counted(&mut *line.wire, &buffer, &mut written, before_write, behind_write);
        match tokio::time::timeout_at(deadline.at(), writing).await {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => {
                self.dirty = false;
                return Err(ExchangeError::Withheld);
            }
            _ => return Err(ExchangeError::Write { written }),
        }
        buffer.clear();
        let reply = match tokio::time::timeout_at(deadline.at(), read_frame(line, &mut frames, &mut buffer)).await {
            Ok(result) => result?,
            Err(_elapsed) => return Err(ExchangeError::ReadTimeout),
        };
        let surplus = !buffer.is_empty();
        self.dirty = surplus;
        Ok(Exchanged { reply, surplus })
    }

    /// Puts a clean connection back for the next caller; a dirty one is closed.
    pub fn give_back(mut self) {
        if !self.dirty
            && let Some(line) = self.line.take()
        {
            self.shared.put_idle(line);
        }
    }

    /// Closes it, and with it every idle connection of the institution: what happened here may have happened there.
    pub fn close_and_flush(self) {
        self.shared.flush();
        drop(self);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.line.take().is_some() {
            raise(&self.shared.counts.destroyed);
        }
    }
}

/// Writes everything, unless `before` says no; counting what the kernel took: a count of zero is the only proof that nothing was
/// sent.
async fn write_counted(
    wire: &mut dyn super::Wire,
    bytes: &[u8],
    written: &mut usize,
    before: impl FnMut() -> bool,
    behind: impl FnOnce(),
) -> io::Result<bool> {
    let mut around = Some((before, behind));
    while let Some(rest) = bytes.get(*written..).filter(|rest| !rest.is_empty()) {
        let writing = std::future::poll_fn(|context| {
            if let Some((before, _)) = &mut around
                && !before()
            {
                return Poll::Ready(Ok(None));
            }
            let taken = Pin::new(&mut *wire).poll_write(context, rest);
            // A kernel that takes nothing yet is asked again later, and then it is looked again.
            if taken.is_ready()
                && let Some((_, behind)) = around.take()
            {
                behind();
            }
            taken.map_ok(Some)
        });
        let Some(count) = writing.await? else { return Ok(false) };
        if count == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        *written += count;
    }
    std::future::poll_fn(|context| AsyncWrite::poll_flush(Pin::new(&mut *wire), context)).await?;
    Ok(true)
}

async fn read_frame(line: &mut Line, frames: &mut FrameCodec, buffer: &mut BytesMut) -> Result<Bytes, ExchangeError> {
    loop {
        match frames.decode(buffer) {
            Ok(Some(reply)) => return Ok(reply),
            Ok(None) => {}
            Err(_) => return Err(ExchangeError::BadFrame),
        }
        let ended = ExchangeError::Ended { partial: !buffer.is_empty() };
        match line.wire.read_buf(buffer).await {
            Ok(0) | Err(_) => return Err(ended),
            Ok(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Context;
    use std::time::Duration;

    use codec::Framing;
    use tokio::io::{AsyncRead, AsyncWriteExt as _, DuplexStream, ReadBuf};

    use super::*;
    use crate::clock::Clock;
    use crate::pool::{Dial, Dialing, LendError, Pool, Settings, Wire};

    impl Wire for DuplexStream {
        fn is_silent(&self) -> bool {
            true
        }

        fn move_here(self: Box<Self>) -> io::Result<Box<dyn Wire>> {
            Ok(self)
        }
    }

    /// Gives streams whose other ends answer each request of four bytes with what the test says.
    #[derive(Debug)]
    struct Scripted(&'static [u8]);

    impl Dial for Scripted {
        fn dial(&self) -> Dialing<'_> {
            Box::pin(async {
                let (near, mut far) = tokio::io::duplex(64);
                let answer = self.0;
                tokio::spawn(async move {
                    let mut request = [0; 4];
                    while far.read_exact(&mut request).await.is_ok() && far.write_all(answer).await.is_ok() {}
                });
                Ok(Box::new(near) as Box<dyn Wire>)
            })
        }
    }

    fn pool(answer: &'static [u8], clock: &Clock) -> Pool {
        pool_of(Arc::new(Scripted(answer)), clock)
    }

    fn pool_of(dial: Arc<dyn Dial>, clock: &Clock) -> Pool {
        let settings = Settings {
            connections_max: 1,
            borrow_wait: Duration::from_millis(100),
            connect_timeout: Duration::from_millis(100),
            idle_ttl: Duration::from_secs(9),
            life_max: Duration::from_secs(9),
        };
        let framing = Framing::Fixed { request: 4, reply: 4 };
        Pool::new(dial, framing, settings, clock.clone())
    }

    async fn idle_after(answer: &'static [u8]) -> u64 {
        let clock = Clock::system().unwrap();
        let pool = pool(answer, &clock);
        let deadline = Deadline::after(clock.now(), Duration::from_millis(50));
        let mut connection = pool.lend(deadline).await.unwrap();
        drop(connection.exchange(b"ping", deadline, || true, || ()).await);
        connection.give_back();
        pool.stats().idle
    }

    #[tokio::test]
    async fn a_wait_that_ends_by_the_deadline_is_told_apart_from_one_that_ends_by_the_pools_own_limit() {
        let clock = Clock::system().unwrap();
        let pool = pool(b"pong", &clock);
        let _busy = pool.lend(Deadline::after(clock.now(), Duration::from_secs(9))).await.unwrap();
        let lend =
            async |within| pool.lend(Deadline::after(clock.now(), Duration::from_millis(within))).await.unwrap_err();
        assert_eq!(lend(20).await, LendError::DeadlineBeforeConnecting);
        assert_eq!(lend(5_000).await, LendError::Exhausted);
        assert_eq!(pool.stats().exhausted, 1);
    }

    /// What happened to a line, in order. It takes nothing at the first time.
    #[derive(Debug, Clone, Default)]
    struct Noted(Arc<std::sync::Mutex<Vec<&'static str>>>);

    impl Noted {
        fn note(&self, what: &'static str) {
            self.0.lock().unwrap().push(what);
        }
    }

    impl AsyncRead for Noted {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            self.note("read");
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Noted {
        fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
            if !self.0.lock().unwrap().contains(&"full") {
                self.note("full");
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            self.note("write");
            Poll::Ready(Ok(3))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    impl Wire for Noted {
        fn is_silent(&self) -> bool {
            true
        }

        fn move_here(self: Box<Self>) -> io::Result<Box<dyn Wire>> {
            Ok(self)
        }
    }

    impl Dial for Noted {
        fn dial(&self) -> Dialing<'_> {
            let wire = self.clone();
            Box::pin(async { Ok(Box::new(wire) as Box<dyn Wire>) })
        }
    }

    #[tokio::test]
    async fn nothing_stands_between_the_last_look_and_the_write_and_a_line_that_was_withheld_is_clean() {
        let (clock, noted) = (Clock::system().unwrap(), Noted::default());
        let pool = pool_of(Arc::new(noted.clone()), &clock);
        let deadline = Deadline::after(clock.now(), Duration::from_secs(9));
        let mut connection = pool.lend(deadline).await.unwrap();
        let look = |good| {
            noted.note("look");
            good
        };
        let ended = connection.exchange(b"ping", deadline, || look(false), || noted.note("gone")).await;
        assert_eq!(ended.unwrap_err(), ExchangeError::Withheld);
        let ended = connection.exchange(b"ping", deadline, || look(true), || noted.note("gone")).await;
        assert_eq!(ended.unwrap_err(), ExchangeError::Ended { partial: false });
        // The rest of a frame that was taken in part needs no second look.
        let all = ["look", "look", "full", "look", "write", "gone", "write", "read"];
        assert_eq!(*noted.0.lock().unwrap(), all);
        drop(connection);
        let mut connection = pool.lend(deadline).await.unwrap();
        drop(connection.exchange(b"ping", deadline, || false, || ()).await);
        connection.give_back();
        assert_eq!(pool.stats().idle, 1);
    }

    #[tokio::test]
    async fn a_line_that_is_not_clean_does_not_go_back_even_when_it_is_given_back() {
        assert_eq!(idle_after(b"pong").await, 1, "a whole reply and nothing behind it");
        assert_eq!(idle_after(b"pong!").await, 0, "a byte behind the reply");
        assert_eq!(idle_after(b"pon").await, 0, "the rest of the reply is still to come");
    }
}
