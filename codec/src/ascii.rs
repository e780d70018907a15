//! Classes of ASCII letters, eight at a time: most of a message's bytes are looked at for nothing else.

/// Printable letters: one byte each in both charsets, as in UTF-8.
pub(crate) fn is_plain(bytes: &[u8]) -> bool {
    all_within::<0x20, 0x7E>(bytes)
}

pub(crate) fn is_digits(bytes: &[u8]) -> bool {
    all_within::<b'0', b'9'>(bytes)
}

/// Copies printable letters to a place of their length. Says whether they are; if not, the place holds nothing.
pub(crate) fn copy_plain(bytes: &[u8], place: &mut [u8]) -> bool {
    copy_within::<0x20, 0x7E>(bytes, place)
}

/// The same for digits.
pub(crate) fn copy_digits(bytes: &[u8], place: &mut [u8]) -> bool {
    copy_within::<b'0', b'9'>(bytes, place)
}

/// Most places are of 8 to 32 bytes. Their two ends, which may overlap, are looked at and copied in one go; two passes and a call of
/// `memcpy` cost more than the letters.
fn copy_within<const LOW: u8, const HIGH: u8>(bytes: &[u8], place: &mut [u8]) -> bool {
    if bytes.len() != place.len() {
        return false;
    }
    let copied = match bytes.len() {
        8..=16 => copy_ends::<8, LOW, HIGH>(bytes, place),
        17..=32 => copy_ends::<16, LOW, HIGH>(bytes, place),
        _ => None,
    };
    copied.unwrap_or_else(|| {
        place.copy_from_slice(bytes);
        all_within::<LOW, HIGH>(bytes)
    })
}

fn copy_ends<const N: usize, const LOW: u8, const HIGH: u8>(bytes: &[u8], place: &mut [u8]) -> Option<bool> {
    let (first, last) = (*bytes.first_chunk::<N>()?, *bytes.last_chunk::<N>()?);
    *place.first_chunk_mut::<N>()? = first;
    *place.last_chunk_mut::<N>()? = last;
    let eights = first.as_chunks::<8>().0.iter().chain(last.as_chunks::<8>().0);
    Some(eights.fold(0, |found, eight| found | outside::<LOW, HIGH>(*eight)) == 0)
}

/// What digits say, wrapping around where a `u64` ends. The bytes must be digits.
pub(crate) fn number_of(digits: &[u8]) -> u64 {
    let (first, eights) = digits.as_rchunks::<8>();
    let first = first.iter().fold(0, |number, digit| number * 10 + u64::from(digit & 0x0F));
    eights.iter().fold(first, |number, eight| number.wrapping_mul(100_000_000).wrapping_add(eight_digits(*eight)))
}

/// Neighbours are joined three times: digits to pairs, pairs to fours, fours to the whole.
fn eight_digits(eight: [u8; 8]) -> u64 {
    // The first digit, which is worth most, stands lowest.
    let digits = u64::from_le_bytes(eight) & 0x0F0F_0F0F_0F0F_0F0F;
    let pairs = (digits.wrapping_mul(10 * 0x100 + 1) >> 8) & 0x00FF_00FF_00FF_00FF;
    let fours = (pairs.wrapping_mul(100 * 0x1_0000 + 1) >> 16) & 0x0000_FFFF_0000_FFFF;
    fours.wrapping_mul(10_000 * 0x1_0000_0000 + 1) >> 32
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
    fn digits_say_what_they_say_in_each_length() {
        let digits = "98765432109876543219";
        for length in 0..=19 {
            for from in 0..=digits.len() - length {
                let text = &digits[from..from + length];
                assert_eq!(number_of(text.as_bytes()), text.parse().unwrap_or(0), "{text:?}");
            }
        }
        for text in
            ["00000000", "99999999", "12345678", "10000000", "00000001", "000000000000007", "9999999999999999999"]
        {
            assert_eq!(Ok(number_of(text.as_bytes())), text.parse(), "{text}");
        }
    }

    #[test]
    fn each_byte_is_judged_alone_at_each_place_and_in_each_length() {
        for length in 1..=35 {
            for at in 0..length {
                for byte in 0..=u8::MAX {
                    let mut bytes = vec![b'5'; length];
                    bytes[at] = byte;
                    assert_eq!(is_digits(&bytes), byte.is_ascii_digit(), "{byte} at {at} of {length}");
                    assert_eq!(is_plain(&bytes), (0x20..=0x7E).contains(&byte), "{byte} at {at} of {length}");
                    let mut place = vec![0; length];
                    for (is_good, copied) in [
                        (is_digits(&bytes), copy_digits(&bytes, &mut place)),
                        (is_plain(&bytes), copy_plain(&bytes, &mut place)),
                    ] {
                        assert_eq!(copied, is_good, "{byte} at {at} of {length}");
                        assert!(!is_good || place == bytes, "{byte} at {at} of {length}");
                    }
                }
            }
        }
        assert!(is_digits(b"") && is_plain(b""));
        assert!(!copy_plain(b"12345678", &mut [0; 9]), "a place of another length");
    }
}
