//! One connection's bytes: reading frames, and sending replies whole, short, in half or a byte at a time.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use codec::{FrameCodec, Framing, Side};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_util::codec::{Decoder, Encoder};

use crate::arrival::ArrivalClock;

/// One connection's stream and framing.
pub(crate) struct Wire<S> {
    stream: S,
    arrivals: ArrivalClock,
    buffer: BytesMut,
    frames: FrameCodec,
    fixed: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    pub(crate) fn new(stream: S, arrivals: ArrivalClock, framing: Framing) -> Self {
        Self {
            stream,
            arrivals,
            buffer: BytesMut::with_capacity(256),
            frames: FrameCodec::new(framing, Side::Host),
            fixed: matches!(framing, Framing::Fixed { .. }),
        }
    }

    /// `None` when the other side closed, or sent something that is no frame.
    pub(crate) async fn read_frame(&mut self) -> io::Result<Option<bytes::Bytes>> {
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

    /// When the last bytes came.
    pub(crate) fn arrived_us(&self) -> i64 {
        self.arrivals.last_us()
    }

    pub(crate) fn framed(&mut self, body: &[u8]) -> io::Result<BytesMut> {
        let mut bytes = BytesMut::with_capacity(body.len() + 8);
        self.frames.encode(body, &mut bytes).map_err(io::Error::other)?;
        Ok(bytes)
    }

    /// Says nothing until the other side leaves; what it sends is thrown away.
    pub(crate) async fn say_nothing(&mut self) {
        while self.stream.read_buf(&mut self.buffer).await.is_ok_and(|count| count > 0) {
            self.buffer.clear();
        }
    }

    pub(crate) async fn send(&mut self, body: &[u8]) -> io::Result<()> {
        self.send_with(body, b"").await
    }

    pub(crate) async fn send_with(&mut self, body: &[u8], behind: &[u8]) -> io::Result<()> {
        let mut bytes = self.framed(body)?;
        bytes.extend_from_slice(behind);
        self.stream.write_all(&bytes).await
    }

    /// A body of a length that fixed framing does not allow, sent all the same.
    pub(crate) async fn send_unchecked(&mut self, body: &[u8]) -> io::Result<()> {
        if self.fixed { self.stream.write_all(body).await } else { self.send(body).await }
    }

    pub(crate) async fn send_half(&mut self, body: &[u8]) -> io::Result<()> {
        let bytes = self.framed(body)?;
        let half = bytes.get(..bytes.len() / 2).unwrap_or_default();
        self.stream.write_all(half).await?;
        Err(io::ErrorKind::ConnectionAborted.into())
    }

    pub(crate) async fn drip(&mut self, body: &[u8]) -> io::Result<()> {
        for byte in self.framed(body)? {
            self.stream.write_all(&[byte]).await?;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }
}
