//! A stream of any bytes, cut anywhere, under any framing: the same frames as in one piece, and no panic.
#![no_main]

use bytes::{Bytes, BytesMut};
use codec::{FrameCodec, Framing, LengthForm, LengthPrefix, Side};
use libfuzzer_sys::fuzz_target;
use tokio_util::codec::Decoder;

/// What comes out of a stream, and whether it ended in a frame that makes no sense.
fn frames(framing: Framing, pieces: &[&[u8]]) -> (Vec<Bytes>, bool) {
    let (mut codec, mut buffer, mut found) = (FrameCodec::new(framing, Side::Gateway), BytesMut::new(), Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            match codec.decode(&mut buffer) {
                Ok(Some(frame)) => found.push(frame),
                Ok(None) => break,
                Err(_) => return (found, true),
            }
        }
    }
    (found, false)
}

fuzz_target!(|data: &[u8]| {
    let [kind, cut, stream @ ..] = data else { return };
    let form = match kind % 4 {
        0 => LengthForm::AsciiDigits(2 + usize::from(kind / 4 % 7)),
        1 => LengthForm::BigEndian16,
        2 => LengthForm::BigEndian32,
        _ => LengthForm::AsciiDigits(4),
    };
    let framing = if *kind >= 250 {
        Framing::Fixed { request: 5, reply: usize::from(*cut % 60) + 1 }
    } else {
        Framing::LengthPrefixed(LengthPrefix { form, counts_itself: kind & 64 != 0, body_max: 300 })
    };
    let whole = frames(framing, &[stream]);
    let (first, second) = stream.split_at(usize::from(*cut) % (stream.len() + 1));
    assert_eq!(frames(framing, &[first, second]), whole);
    let single: Vec<&[u8]> = stream.chunks(1).collect();
    assert_eq!(frames(framing, &single), whole);
});
