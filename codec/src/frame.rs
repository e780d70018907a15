//! Framing: where one message ends on the byte stream. Knows lengths only, never fields.
//!
//! A frame whose length header is not a number or out of bounds is an error after which the stream has no known
//! position. Nothing is skipped to find the next frame: the connection is closed.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio_util::codec::{Decoder, Encoder};

use crate::error::FrameError;

/// How messages are cut out of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// Every request and every reply has one length, in bytes.
    Fixed {
        /// Length of a request.
        request: usize,
        /// Length of a reply.
        reply: usize,
    },
    /// A length header, then the body.
    LengthPrefixed(LengthPrefix),
}

/// The header of a length-prefixed frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LengthPrefix {
    /// How the number is written.
    pub form: LengthForm,
    /// Whether the number counts the header too.
    pub counts_itself: bool,
    /// Longest body in bytes.
    pub body_max: usize,
}

/// How the number in a length header is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LengthForm {
    /// This many ASCII digits (2 to 8).
    AsciiDigits(usize),
    /// Two bytes, big-endian.
    BigEndian16,
    /// Four bytes, big-endian.
    BigEndian32,
}

/// Which messages a codec cuts out of the stream that it reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// It reads requests and writes replies: the host.
    Host,
    /// It reads replies and writes requests: the gateway.
    Gateway,
}

/// The tokio-util codec of one connection.
#[derive(Debug, Clone, Copy)]
pub struct FrameCodec {
    framing: Framing,
    side: Side,
}

impl FrameCodec {
    /// A codec for one end of a connection.
    #[must_use]
    pub fn new(framing: Framing, side: Side) -> Self {
        Self { framing, side }
    }
}

impl Decoder for FrameCodec {
    type Item = Bytes;
    type Error = FrameError;

    fn decode(&mut self, stream: &mut BytesMut) -> Result<Option<Bytes>, FrameError> {
        let (header, body) = match self.framing {
            Framing::Fixed { request, reply } => match self.side {
                Side::Host => (0, request),
                Side::Gateway => (0, reply),
            },
            Framing::LengthPrefixed(prefix) => {
                let Some(header) = stream.get(..prefix.form.width()) else {
                    return prefix.check_early(stream).map(|()| None);
                };
                (header.len(), prefix.body_length(header)?)
            }
        };
        if stream.len() < header + body {
            stream.reserve(header + body - stream.len());
            return Ok(None);
        }
        stream.advance(header);
        Ok(Some(stream.split_to(body).freeze()))
    }
}

impl Encoder<&[u8]> for FrameCodec {
    type Error = FrameError;

    fn encode(&mut self, body: &[u8], stream: &mut BytesMut) -> Result<(), FrameError> {
        let cannot = FrameError::CannotFrame { actual: body.len() };
        match self.framing {
            Framing::Fixed { request, reply } => {
                let length = if self.side == Side::Gateway { request } else { reply };
                if body.len() != length {
                    return Err(cannot);
                }
            }
            Framing::LengthPrefixed(prefix) => {
                if body.len() > prefix.body_max {
                    return Err(cannot);
                }
                let own = if prefix.counts_itself { prefix.form.width() } else { 0 };
                prefix.form.write(body.len() + own, stream).ok_or(cannot)?;
            }
        }
        stream.extend_from_slice(body);
        Ok(())
    }
}

impl LengthPrefix {
    /// Whether a body of this length can be sent and read.
    #[must_use]
    pub fn carries(self, body: usize) -> bool {
        let own = if self.counts_itself { self.form.width() } else { 0 };
        body <= self.body_max && self.form.write(body.saturating_add(own), &mut BytesMut::new()).is_some()
    }

    fn body_length(self, header: &[u8]) -> Result<usize, FrameError> {
        let number = self.form.read(header)?;
        let own = if self.counts_itself { header.len() } else { 0 };
        number.checked_sub(own).filter(|body| *body <= self.body_max).ok_or(FrameError::LengthOutOfRange)
    }

    /// A first byte that is no digit will not become one: say so before the rest of the header is here.
    fn check_early(self, partial: &[u8]) -> Result<(), FrameError> {
        match self.form {
            LengthForm::AsciiDigits(_) if !partial.iter().all(u8::is_ascii_digit) => Err(FrameError::LengthNotDigits),
            _ => Ok(()),
        }
    }
}

impl LengthForm {
    fn width(self) -> usize {
        match self {
            Self::AsciiDigits(digits) => digits,
            Self::BigEndian16 => 2,
            Self::BigEndian32 => 4,
        }
    }

    fn read(self, header: &[u8]) -> Result<usize, FrameError> {
        // Each byte is looked at: `"+012".parse()` would be 12.
        if matches!(self, Self::AsciiDigits(_)) && !header.iter().all(u8::is_ascii_digit) {
            return Err(FrameError::LengthNotDigits);
        }
        let (base, zero) = if matches!(self, Self::AsciiDigits(_)) { (10, b'0') } else { (256, 0) };
        let add = |number: usize, byte: &u8| number.checked_mul(base)?.checked_add(usize::from(byte - zero));
        header.iter().try_fold(0, add).ok_or(FrameError::LengthOutOfRange)
    }

    /// `None` when the number does not fit.
    fn write(self, number: usize, stream: &mut BytesMut) -> Option<()> {
        match self {
            Self::AsciiDigits(digits) => {
                let text = format!("{number:0>digits$}");
                (text.len() == digits).then(|| stream.extend_from_slice(text.as_bytes()))
            }
            Self::BigEndian16 => u16::try_from(number).ok().map(|number| stream.put_u16(number)),
            Self::BigEndian32 => u32::try_from(number).ok().map(|number| stream.put_u32(number)),
        }
    }
}
