//! Frames come out the same however the stream was cut.

use bytes::BytesMut;
use codec::{FrameCodec, FrameError, Framing, LengthForm, LengthPrefix, Side};
use proptest::prelude::*;
use tokio_util::codec::{Decoder, Encoder};

fn prefixed(form: LengthForm, counts_itself: bool, body_max: usize) -> Framing {
    Framing::LengthPrefixed(LengthPrefix { form, counts_itself, body_max })
}

fn any_framing() -> impl Strategy<Value = Framing> {
    let form = prop_oneof![
        (3_usize..=8).prop_map(LengthForm::AsciiDigits),
        Just(LengthForm::BigEndian16),
        Just(LengthForm::BigEndian32),
    ];
    let short = any::<bool>().prop_map(|counts| prefixed(LengthForm::AsciiDigits(2), counts, 90));
    prop_oneof![
        Just(Framing::Fixed { request: 5, reply: 7 }),
        (form, any::<bool>()).prop_map(|(form, counts)| prefixed(form, counts, 200)),
        short,
    ]
}

proptest! {
    #[test]
    fn frames_are_the_same_in_one_piece_many_pieces_or_byte_by_byte(
        framing in any_framing(),
        answering in any::<bool>(),
        bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..90), 1..6),
        cuts in prop::collection::vec(1_usize..40, 1..20),
    ) {
        let bodies: Vec<Vec<u8>> = bodies.into_iter().map(|mut body| {
            if let Framing::Fixed { request, reply } = framing { body.resize(if answering { reply } else { request }, b'x'); }
            body
        }).collect();
        let (from, to) = if answering { (Side::Host, Side::Gateway) } else { (Side::Gateway, Side::Host) };
        let mut stream = BytesMut::new();
        for body in &bodies {
            FrameCodec::new(framing, from).encode(body, &mut stream).unwrap();
        }
        let mut reader = FrameCodec::new(framing, to);
        let (mut buffer, mut frames, mut sizes) = (BytesMut::new(), Vec::new(), cuts.iter().cycle());
        let mut rest = &stream[..];
        while !rest.is_empty() {
            let (now, later) = rest.split_at((*sizes.next().unwrap()).min(rest.len()));
            rest = later;
            buffer.extend_from_slice(now);
            while let Some(frame) = reader.decode(&mut buffer).unwrap() {
                frames.push(frame.to_vec());
            }
        }
        prop_assert_eq!(frames, bodies);
        prop_assert!(buffer.is_empty());
    }
}

fn decode(framing: Framing, bytes: &[u8]) -> Result<Option<Vec<u8>>, FrameError> {
    let frame = FrameCodec::new(framing, Side::Gateway).decode(&mut BytesMut::from(bytes))?;
    Ok(frame.map(|frame| frame.to_vec()))
}

#[test]
fn a_length_that_is_no_plain_number_is_malformed() {
    let ascii = prefixed(LengthForm::AsciiDigits(4), false, 9_999);
    for bytes in [&b"+012xxxxxxxxxxxx"[..], b"-001x", b" 012xxxxxxxxxxxx", b"00 1x", b"0x01x", b"X"] {
        assert!(matches!(decode(ascii, bytes), Err(FrameError::LengthNotDigits)), "{bytes:?}");
    }
    assert_eq!(decode(ascii, b"0003abc").unwrap().unwrap(), b"abc");
    assert!(decode(ascii, b"0003ab").unwrap().is_none());
    assert!(decode(ascii, b"00").unwrap().is_none());
}

#[test]
fn a_length_beyond_the_limits_is_malformed() {
    let small = prefixed(LengthForm::AsciiDigits(4), false, 100);
    assert!(matches!(decode(small, b"0101"), Err(FrameError::LengthOutOfRange)));
    let counting = prefixed(LengthForm::BigEndian16, true, 100);
    assert!(matches!(decode(counting, &[0, 1]), Err(FrameError::LengthOutOfRange)));
    assert_eq!(decode(counting, &[0, 3, 7]).unwrap().unwrap(), [7]);
}

#[test]
fn a_body_that_the_framing_cannot_carry_is_not_sent() {
    for (framing, body) in [
        (Framing::Fixed { request: 52, reply: 61 }, vec![b'x'; 51]),
        (prefixed(LengthForm::AsciiDigits(2), true, 9_999), vec![b'x'; 98]),
        (prefixed(LengthForm::AsciiDigits(4), false, 10), vec![b'x'; 11]),
    ] {
        let mut stream = BytesMut::new();
        let refused = FrameCodec::new(framing, Side::Gateway).encode(&body, &mut stream);
        assert!(matches!(refused, Err(FrameError::CannotFrame { .. })));
        assert!(stream.is_empty());
    }
}
