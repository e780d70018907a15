//! The two charsets of the wire. The only file that names `encoding_rs`; its replacing `encode` and `decode` are never
//! called, so no character is ever silently exchanged for another.
//!
//! What the library calls EUC-KR is windows-949: KS X 1001 plus 8,822 extension syllables. A strict KS X 1001 host cannot
//! read those, so [`Charset::EucKr`] also demands that both bytes of a pair are in 0xA1-0xFE. Both must be looked at:
//! 햏 is C1 64, an extension code whose lead byte alone looks harmless.

use encoding_rs::{DecoderResult, EUC_KR, EncoderResult};

use crate::ascii::is_plain;
use crate::error::Rule;

/// How text is written on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Charset {
    /// Strict KS X 1001 in EUC: lead and trail bytes 0xA1-0xFE only.
    EucKr,
    /// windows-949 (UHC): all 11,172 modern Hangul syllables.
    Cp949,
}

impl Charset {
    /// Finds a charset by the name that layout files use.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        match name {
            "euc-kr" => Some(Self::EucKr),
            "cp949" => Some(Self::Cp949),
            _ => None,
        }
    }

    /// The name that layout files use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::EucKr => "euc-kr",
            Self::Cp949 => "cp949",
        }
    }

    /// Writes `text` to the start of `place` and returns how many bytes it took.
    ///
    /// # Errors
    /// [`Rule::ControlCharacter`], [`Rule::Unmappable`], or [`Rule::TooLong`], in this order; what `place` then holds is nothing.
    pub fn encode_to(self, text: &str, place: &mut [u8]) -> Result<usize, Rule> {
        let bytes = text.as_bytes();
        if is_plain(bytes) {
            place.get_mut(..bytes.len()).ok_or(Rule::TooLong)?.copy_from_slice(bytes);
            return Ok(bytes.len());
        }
        if bytes.iter().any(u8::is_ascii_control) {
            return Err(Rule::ControlCharacter);
        }
        let (result, _read, written) = EUC_KR.new_encoder().encode_from_utf8_without_replacement(text, place, true);
        match result {
            EncoderResult::InputEmpty if self.allows(place.get(..written).unwrap_or_default()) => Ok(written),
            // The encoder wants room for a pair also when a single byte is to come.
            EncoderResult::OutputFull => self.encode_apart(text, place),
            _ => Err(Self::unmappable(text)),
        }
    }

    /// The same, with spaces behind it: the encoder may leave anything there.
    pub(crate) fn encode_padded(self, text: &str, place: &mut [u8]) -> Result<(), Rule> {
        let written = self.encode_to(text, place)?;
        place.get_mut(written..).unwrap_or_default().fill(b' ');
        Ok(())
    }

    fn unmappable(text: &str) -> Rule {
        if text.chars().any(char::is_control) { Rule::ControlCharacter } else { Rule::Unmappable }
    }

    /// Encodes with all the room that there may be need for, and takes what fits.
    fn encode_apart(self, text: &str, place: &mut [u8]) -> Result<usize, Rule> {
        let mut encoder = EUC_KR.new_encoder();
        let room = encoder.max_buffer_length_from_utf8_without_replacement(text.len()).ok_or(Rule::TooLong)?;
        let mut out = Vec::with_capacity(room);
        let (result, _read) = encoder.encode_from_utf8_to_vec_without_replacement(text, &mut out, true);
        if result != EncoderResult::InputEmpty || !self.allows(&out) {
            return Err(Self::unmappable(text));
        }
        place.get_mut(..out.len()).ok_or(Rule::TooLong)?.copy_from_slice(&out);
        Ok(out.len())
    }

    /// Decodes the bytes of one field, whose padding is already off, and adds them to `text`.
    ///
    /// Each field is decoded by itself: across a boundary a cut letter would quietly join the neighbour's first byte.
    ///
    /// # Errors
    /// [`Rule::ControlCharacter`] or [`Rule::Malformed`]; what was added to `text` is then nothing.
    pub fn decode_to(self, bytes: &[u8], text: &mut String) -> Result<(), Rule> {
        if is_plain(bytes) {
            text.push_str(std::str::from_utf8(bytes).map_err(|_| Rule::Malformed)?);
            return Ok(());
        }
        if !self.allows(bytes) {
            return Err(Self::malformed(bytes));
        }
        let mut decoder = EUC_KR.new_decoder_without_bom_handling();
        text.reserve(decoder.max_utf8_buffer_length_without_replacement(bytes.len()).ok_or(Rule::TooLong)?);
        match decoder.decode_to_string_without_replacement(bytes, text, true) {
            (DecoderResult::InputEmpty, _) => Ok(()),
            _ => Err(Self::malformed(bytes)),
        }
    }

    fn malformed(bytes: &[u8]) -> Rule {
        if bytes.iter().any(u8::is_ascii_control) { Rule::ControlCharacter } else { Rule::Malformed }
    }

    /// Whether no byte is a control character, and every pair is one that this charset has.
    fn allows(self, bytes: &[u8]) -> bool {
        if self == Self::Cp949 {
            return !bytes.iter().any(u8::is_ascii_control);
        }
        let in_row = |byte: u8| (0xA1..=0xFE).contains(&byte);
        let mut rest = bytes;
        loop {
            rest = match rest {
                [] => return true,
                [lead, trail, after @ ..] if in_row(*lead) && in_row(*trail) => after,
                [0x20..=0x7E, after @ ..] => after,
                _ => return false,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(charset: Charset, bytes: &[u8]) -> Result<String, Rule> {
        let mut text = "before ".to_owned();
        charset.decode_to(bytes, &mut text)?;
        Ok(text.split_off("before ".len()))
    }

    fn encode(charset: Charset, text: &str) -> Result<Vec<u8>, Rule> {
        let mut place = [0; 64];
        let written = charset.encode_to(text, &mut place)?;
        let bytes = place[..written].to_vec();
        assert_eq!(charset.encode_to(text, &mut place[..written]), Ok(written), "a place that is just long enough");
        if let Some(short) = written.checked_sub(1) {
            assert_eq!(charset.encode_to(text, &mut place[..short]), Err(Rule::TooLong), "and one that is not");
        }
        Ok(bytes)
    }

    #[test]
    fn what_cannot_be_written_is_told_apart_from_what_has_no_room() {
        let mut place = [0; 3];
        for (text, rule) in [
            ("가나", Rule::TooLong),
            ("abcd", Rule::TooLong),
            ("가나😀", Rule::Unmappable),
            ("가나똠", Rule::Unmappable),
            ("abcdé", Rule::Unmappable),
            ("가나\n", Rule::ControlCharacter),
            ("가나\u{85}", Rule::ControlCharacter),
            ("똠\u{85}", Rule::ControlCharacter),
        ] {
            assert_eq!(Charset::EucKr.encode_to(text, &mut place), Err(rule), "{text:?}");
        }
    }

    #[test]
    fn extension_syllables_are_refused_under_euc_kr_and_encoded_under_cp949() {
        for (text, bytes) in [("똠", [0x8C, 0x63]), ("뷁", [0x94, 0xEE]), ("힣", [0xC6, 0x52]), ("햏", [0xC1, 0x64])]
        {
            assert_eq!(encode(Charset::EucKr, text), Err(Rule::Unmappable), "{text}");
            assert_eq!(encode(Charset::Cp949, text).as_deref(), Ok(&bytes[..]), "{text}");
            assert_eq!(decode(Charset::EucKr, &bytes), Err(Rule::Malformed), "{text}");
            assert_eq!(decode(Charset::Cp949, &bytes).as_deref(), Ok(text));
        }
    }

    #[test]
    fn characters_outside_both_charsets_are_refused_under_both() {
        for text in ["😀", "é", "\u{20A9}", "\u{A0}", "\u{FFFD}", "홍é동"] {
            for charset in [Charset::EucKr, Charset::Cp949] {
                assert_eq!(encode(charset, text), Err(Rule::Unmappable), "{text} {charset:?}");
            }
        }
        assert_eq!(encode(Charset::EucKr, "\u{FFE6}").as_deref(), Ok(&[0xA3, 0xDC][..]));
    }

    #[test]
    fn a_text_that_ends_with_its_place_is_written_whatever_its_last_letter_is() {
        for text in ["가", "가9", "9가", "입99", "가 나", "급여이체 A", "가나다라마바사아자차카타파하9"]
        {
            for charset in [Charset::EucKr, Charset::Cp949] {
                let bytes = encode(charset, text).unwrap();
                assert_eq!(decode(charset, &bytes).as_deref(), Ok(text));
            }
        }
    }

    #[test]
    fn bytes_that_look_like_a_byte_order_mark_are_letters() {
        for charset in [Charset::EucKr, Charset::Cp949] {
            assert_eq!(decode(charset, &[0xEF, 0xBB, 0xBF, 0xA1]).as_deref(), Ok("癤에"));
        }
    }

    #[test]
    fn control_characters_are_refused_both_ways() {
        for text in ["\0", "a\nb", "\u{7F}", "\u{85}"] {
            assert_eq!(encode(Charset::Cp949, text), Err(Rule::ControlCharacter));
        }
        for bytes in [&[0x00][..], &[0x7F], &[0xB0, 0xA1, 0x0A]] {
            assert_eq!(decode(Charset::Cp949, bytes), Err(Rule::ControlCharacter));
        }
    }

    #[test]
    fn half_letters_and_the_bytes_80_and_ff_are_malformed() {
        for bytes in [&[0xB0][..], &[0x80], &[0xFF], &[0xB0, 0xA1, 0xB0], &[0xB0, 0x20]] {
            for charset in [Charset::EucKr, Charset::Cp949] {
                assert_eq!(decode(charset, bytes), Err(Rule::Malformed), "{bytes:02X?}");
            }
        }
    }
}
