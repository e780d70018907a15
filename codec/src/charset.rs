//! The two charsets of the wire. The only file that names `encoding_rs`; its replacing `encode` and `decode` are never
//! called, so no character is ever silently exchanged for another.
//!
//! What the library calls EUC-KR is windows-949: KS X 1001 plus 8,822 extension syllables. A strict KS X 1001 host cannot
//! read those, so [`Charset::EucKr`] also demands that both bytes of a pair are in 0xA1-0xFE. Both must be looked at:
//! 햏 is C1 64, an extension code whose lead byte alone looks harmless.

use encoding_rs::{EUC_KR, EncoderResult};

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

    /// Appends `text` to `out`.
    ///
    /// # Errors
    /// [`Rule::ControlCharacter`] or [`Rule::Unmappable`]; `out` is then as it was.
    pub fn encode_into(self, text: &str, out: &mut Vec<u8>) -> Result<(), Rule> {
        if text.chars().any(char::is_control) {
            return Err(Rule::ControlCharacter);
        }
        if text.is_ascii() {
            out.extend_from_slice(text.as_bytes());
            return Ok(());
        }
        let start = out.len();
        let mut encoder = EUC_KR.new_encoder();
        let room = encoder.max_buffer_length_from_utf8_without_replacement(text.len()).ok_or(Rule::TooLong)?;
        out.reserve(room);
        let (result, _read) = encoder.encode_from_utf8_to_vec_without_replacement(text, out, true);
        let written = out.get(start..).unwrap_or_default();
        if result == EncoderResult::InputEmpty && self.allows(written) {
            return Ok(());
        }
        out.truncate(start);
        Err(Rule::Unmappable)
    }

    /// Decodes the bytes of one field, whose padding is already off.
    ///
    /// Each field is decoded by itself: across a boundary a cut letter would quietly join the neighbour's first byte.
    ///
    /// # Errors
    /// [`Rule::ControlCharacter`] or [`Rule::Malformed`].
    pub fn decode(self, bytes: &[u8]) -> Result<String, Rule> {
        if bytes.iter().any(u8::is_ascii_control) {
            return Err(Rule::ControlCharacter);
        }
        if !self.allows(bytes) {
            return Err(Rule::Malformed);
        }
        EUC_KR
            .decode_without_bom_handling_and_without_replacement(bytes)
            .map(std::borrow::Cow::into_owned)
            .ok_or(Rule::Malformed)
    }

    /// Whether every byte pair is one that this charset has.
    fn allows(self, bytes: &[u8]) -> bool {
        match self {
            Self::Cp949 => true,
            Self::EucKr => {
                let mut rest = bytes.iter();
                while let Some(lead) = rest.next() {
                    if lead.is_ascii() {
                        continue;
                    }
                    let in_row = |byte: &u8| (0xA1..=0xFE).contains(byte);
                    if !in_row(lead) || !rest.next().is_some_and(in_row) {
                        return false;
                    }
                }
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(charset: Charset, text: &str) -> Result<Vec<u8>, Rule> {
        let mut out = b"kept".to_vec();
        let result = charset.encode_into(text, &mut out);
        if result.is_err() {
            assert_eq!(out, b"kept", "a refusal leaves the buffer as it was");
        }
        result.map(|()| out.split_off(4))
    }

    #[test]
    fn extension_syllables_are_refused_under_euc_kr_and_encoded_under_cp949() {
        for (text, bytes) in [("똠", [0x8C, 0x63]), ("뷁", [0x94, 0xEE]), ("힣", [0xC6, 0x52]), ("햏", [0xC1, 0x64])]
        {
            assert_eq!(encode(Charset::EucKr, text), Err(Rule::Unmappable), "{text}");
            assert_eq!(encode(Charset::Cp949, text).as_deref(), Ok(&bytes[..]), "{text}");
            assert_eq!(Charset::EucKr.decode(&bytes), Err(Rule::Malformed), "{text}");
            assert_eq!(Charset::Cp949.decode(&bytes).as_deref(), Ok(text));
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
    fn bytes_that_look_like_a_byte_order_mark_are_letters() {
        for charset in [Charset::EucKr, Charset::Cp949] {
            assert_eq!(charset.decode(&[0xEF, 0xBB, 0xBF, 0xA1]).as_deref(), Ok("癤에"));
        }
    }

    #[test]
    fn control_characters_are_refused_both_ways() {
        for text in ["\0", "a\nb", "\u{7F}", "\u{85}"] {
            assert_eq!(encode(Charset::Cp949, text), Err(Rule::ControlCharacter));
        }
        for bytes in [&[0x00][..], &[0x7F], &[0xB0, 0xA1, 0x0A]] {
            assert_eq!(Charset::Cp949.decode(bytes), Err(Rule::ControlCharacter));
        }
    }

    #[test]
    fn half_letters_and_the_bytes_80_and_ff_are_malformed() {
        for bytes in [&[0xB0][..], &[0x80], &[0xFF], &[0xB0, 0xA1, 0xB0], &[0xB0, 0x20]] {
            for charset in [Charset::EucKr, Charset::Cp949] {
                assert_eq!(charset.decode(bytes), Err(Rule::Malformed), "{bytes:02X?}");
            }
        }
    }
}
