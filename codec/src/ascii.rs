//! Classes of ASCII letters, eight at a time: most of a message's bytes are looked at for nothing else.

/// Printable letters: one byte each in both charsets, as in UTF-8.
pub(crate) fn is_plain(bytes: &[u8]) -> bool {
    all_within::<0x20, 0x7E>(bytes)
}

pub(crate) fn is_digits(bytes: &[u8]) -> bool {
    all_within::<b'0', b'9'>(bytes)
}

/// Whether every byte is one of `LOW..=HIGH`, which must be ASCII.
fn all_within<const LOW: u8, const HIGH: u8>(bytes: &[u8]) -> bool {
    let Some(last) = bytes.last_chunk::<8>() else {
        return bytes.iter().all(|byte| (LOW..=HIGH).contains(byte));
    };
    // The last eight may be looked at twice.
    let (eights, _rest) = bytes.as_chunks::<8>();
    let outside = eights.iter().fold(outside::<LOW, HIGH>(*last), |found, eight| found | outside::<LOW, HIGH>(*eight));
    outside == 0
}

/// The top bit of each byte that is not one of `LOW..=HIGH`.
fn outside<const LOW: u8, const HIGH: u8>(eight: [u8; 8]) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    const TOP: u64 = 0x80 * EACH;
    let letters = u64::from_le_bytes(eight);
    // Without their top bits no sum reaches into the next byte.
    let low_bits = letters & !TOP;
    let above = low_bits + (EACH * (0x7F - HIGH as u64));
    let not_below = low_bits + (EACH * (0x80 - LOW as u64));
    (letters | above | !not_below) & TOP
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_is_judged_alone_at_each_place_and_in_each_length() {
        for length in 1..=25 {
            for at in 0..length {
                for byte in 0..=u8::MAX {
                    let mut bytes = vec![b'5'; length];
                    bytes[at] = byte;
                    assert_eq!(is_digits(&bytes), byte.is_ascii_digit(), "{byte} at {at} of {length}");
                    assert_eq!(is_plain(&bytes), (0x20..=0x7E).contains(&byte), "{byte} at {at} of {length}");
                }
            }
        }
        assert!(is_digits(b"") && is_plain(b""));
    }
}
