//! The field types: how each pads, what it accepts, how it reads back. Knows one field at a time; a message's walk is
//! in `encode` and `decode`.

use std::sync::Arc;

use crate::ascii::{copy_digits, copy_plain, is_digits, number_of};
use crate::charset::Charset;
use crate::error::Rule;
use crate::record::{Slot, Span, Texts};

/// What a field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldType {
    /// Left-aligned text, padded with spaces.
    Text,
    /// An identifier of digits, right-aligned, padded with `0`; every zero is kept.
    Digits,
    /// A count, padded with `0`.
    Number,
    /// Won, padded with `0`; never goes through a float.
    Amount,
    /// A calendar date, YYYYMMDD.
    Date,
    /// A time of day, HHMMSS.
    Time,
    /// Spaces that mean nothing.
    Filler,
    /// Repeated records whose number stands in an earlier field.
    Group,
}

/// What the gateway itself puts into a request field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// The id of the transaction (거래), 22 characters.
    TransactionId,
    /// The business date in Seoul, YYYYMMDD.
    BusinessDate,
    /// The time of day in Seoul, HHMMSS.
    Time,
}

/// Where a field's value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// From the body (of the request, or of the reply). An optional one that is missing is padding only.
    Body {
        /// Whether it may be missing.
        optional: bool,
    },
    /// These bytes, always.
    Constant(Arc<[u8]>),
    /// Filled by the gateway.
    Filled(Fill),
    /// The number of records in the group.
    Count,
    /// The length in bytes of the header and all records.
    TotalLength,
}

/// One field of a layout.
#[derive(Debug, Clone)]
pub struct Field {
    pub(crate) name: Arc<str>,
    pub(crate) kind: FieldType,
    pub(crate) offset: usize,
    /// In bytes; of one record for a group.
    pub(crate) length: usize,
    pub(crate) origin: Origin,
    pub(crate) echo: bool,
    pub(crate) min: u64,
    pub(crate) max: u64,
    /// Index of the field that must hold another value.
    pub(crate) differs_from: Option<usize>,
    /// The fields of one record, for a group.
    pub(crate) fields: Vec<Field>,
}

/// Where a value goes, with what most values need to get there. A field has the rest.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// The field's index.
    pub(crate) index: usize,
    from: usize,
    to: usize,
    shape: Shape,
}

#[derive(Debug, Clone, Copy)]
enum Shape {
    Text,
    Digits,
    Other,
}

impl Place {
    /// Writes a text that is what most texts are: printable letters of one byte each that fit, and end with none of the padding. Says
    /// whether it was; else nothing is written that counts.
    #[inline]
    pub(crate) fn write_usual(&self, slot: &Slot, texts: &Texts, message: &mut [u8]) -> bool {
        let Slot::Text(span) = slot else { return false };
        let text = texts.bytes_of(*span);
        let Some(own) = message.get_mut(self.from..self.to) else { return false };
        match self.shape {
            Shape::Text => {
                let own = own.get_mut(..text.len());
                text.last() != Some(&b' ') && own.is_some_and(|own| copy_plain(text, own))
            }
            Shape::Digits => {
                let own = own.len().checked_sub(text.len()).and_then(|start| own.get_mut(start..));
                !text.is_empty() && own.is_some_and(|own| copy_digits(text, own))
            }
            Shape::Other => false,
        }
    }
}

impl Field {
    /// Where its value goes, if one is written.
    pub(crate) fn place(&self, index: usize) -> Option<Place> {
        let shape = match self.kind {
            FieldType::Group => return None,
            _ if self.is_silent() => return None,
            FieldType::Text => Shape::Text,
            FieldType::Digits => Shape::Digits,
            _ => Shape::Other,
        };
        Some(Place { index, from: self.offset, to: self.offset.saturating_add(self.length), shape })
    }

    /// The name, in camelCase.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it holds.
    #[must_use]
    pub fn kind(&self) -> FieldType {
        self.kind
    }

    /// First byte, counted from the start of the message (or of the record, inside a group).
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Length in bytes; of one record for a group.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// Where its value comes from.
    #[must_use]
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Whether a reply must repeat the request's field of the same name.
    #[must_use]
    pub fn is_echo(&self) -> bool {
        self.echo
    }

    /// The fields of one record, for a group; else none.
    #[must_use]
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// What the field's bytes are before a value is written: a constant, or padding.
    pub(crate) fn template(&self) -> Vec<u8> {
        match (&self.origin, self.kind) {
            (Origin::Constant(constant), _) => constant.to_vec(),
            (_, FieldType::Digits | FieldType::Number | FieldType::Amount) => vec![b'0'; self.length],
            _ => vec![b' '; self.length],
        }
    }

    /// Writes a value into the field's own bytes, which hold its template.
    #[inline]
    pub(crate) fn write(&self, slot: &Slot, texts: &Texts, charset: Charset, place: &mut [u8]) -> Result<(), Rule> {
        match (slot, self.kind) {
            (Slot::Text(span), _) => self.write_text(texts.of(*span), charset, place),
            (Slot::Number(number), FieldType::Number) => self.write_number(*number, place),
            (Slot::Amount(won), FieldType::Amount) => {
                self.write_number(u64::try_from(*won).map_err(|_| Rule::OutOfRange)?, place)
            }
            (Slot::Absent, FieldType::Text) if matches!(self.origin, Origin::Body { optional: true }) => Ok(()),
            (Slot::Absent, _) => Err(Rule::Missing),
            _ => Err(Rule::WrongType),
        }
    }

    /// The same for a text.
    #[inline]
    pub(crate) fn write_text(&self, text: &str, charset: Charset, place: &mut [u8]) -> Result<(), Rule> {
        let bytes = text.as_bytes();
        match self.kind {
            FieldType::Text => {
                if bytes.last() == Some(&b' ') {
                    return Err(Rule::TrailingSpace);
                }
                charset.encode_padded(text, place)
            }
            FieldType::Digits => {
                if bytes.is_empty() {
                    return Err(Rule::Empty);
                }
                check_digits(bytes)?;
                let start = place.len().checked_sub(bytes.len()).ok_or(Rule::TooLong)?;
                fill(place.get_mut(start..), bytes)
            }
            FieldType::Date => {
                check_date(bytes)?;
                fill(Some(place), bytes)
            }
            FieldType::Time => {
                check_time(bytes)?;
                fill(Some(place), bytes)
            }
            _ => Err(Rule::WrongType),
        }
    }

    fn write_number(&self, number: u64, place: &mut [u8]) -> Result<(), Rule> {
        if number < self.min || number > self.max {
            return Err(Rule::OutOfRange);
        }
        let mut rest = number;
        for digit in place.iter_mut().rev() {
            *digit = b'0' + u8::try_from(rest % 10).unwrap_or_default();
            rest /= 10;
            if rest == 0 {
                return Ok(());
            }
        }
        Err(Rule::OutOfRange)
    }

    /// Reads the field's own bytes and adds what they say to the slots.
    #[inline]
    pub(crate) fn decode(
        &self,
        bytes: &[u8],
        charset: Charset,
        slots: &mut Vec<Slot>,
        texts: &mut Texts,
    ) -> Result<(), Rule> {
        if let Origin::Constant(constant) = &self.origin {
            // A record holds no constants: they are the layout's.
            slots.push(Slot::Absent);
            return if bytes == &constant[..] { Ok(()) } else { Err(Rule::NotTheConstant) };
        }
        match self.kind {
            FieldType::Filler | FieldType::Group => slots.push(Slot::Absent),
            FieldType::Text => {
                let span = texts.add(|text| charset.decode_to(without_padding(bytes), text))?;
                slots.push(Slot::Text(span));
            }
            FieldType::Digits => slots.push(Slot::Text(ascii(bytes, check_digits, texts)?)),
            FieldType::Date => slots.push(Slot::Text(ascii(bytes, check_date, texts)?)),
            FieldType::Time => slots.push(Slot::Text(ascii(bytes, check_time, texts)?)),
            FieldType::Number => slots.push(Slot::Number(self.decode_number(bytes)?)),
            FieldType::Amount => {
                let won = i64::try_from(self.decode_number(bytes)?).map_err(|_| Rule::OutOfRange)?;
                slots.push(Slot::Amount(won));
            }
        }
        Ok(())
    }

    fn decode_number(&self, bytes: &[u8]) -> Result<u64, Rule> {
        check_digits(bytes)?;
        // So many digits always fit.
        const SAFE: usize = 19;
        let number = if bytes.len() <= SAFE {
            number_of(bytes)
        } else {
            let add = |number: u64, digit: &u8| number.checked_mul(10)?.checked_add(u64::from(digit - b'0'));
            bytes.iter().try_fold(0, add).ok_or(Rule::OutOfRange)?
        };
        if number < self.min || number > self.max { Err(Rule::OutOfRange) } else { Ok(number) }
    }
}

/// Only 0x20 is padding; the standard `trim_ascii_end` would also eat line breaks, which are errors here.
fn without_padding(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|byte| *byte != b' ').map_or(0, |last| last + 1);
    bytes.get(..end).unwrap_or_default()
}

#[inline]
fn ascii(bytes: &[u8], check: impl Fn(&[u8]) -> Result<(), Rule>, texts: &mut Texts) -> Result<Span, Rule> {
    check(bytes)?;
    let ascii = std::str::from_utf8(bytes).map_err(|_| Rule::Malformed)?;
    Ok(texts.push(ascii))
}

fn fill(place: Option<&mut [u8]>, bytes: &[u8]) -> Result<(), Rule> {
    match place {
        Some(place) if place.len() == bytes.len() => {
            place.copy_from_slice(bytes);
            Ok(())
        }
        _ => Err(Rule::TooLong),
    }
}

fn check_digits(bytes: &[u8]) -> Result<(), Rule> {
    if is_digits(bytes) { Ok(()) } else { Err(Rule::NotDigits) }
}

/// Two-digit groups of an all-digit run, or nothing when it has another length.
fn pairs<const N: usize>(bytes: &[u8]) -> Option<[u32; N]> {
    if bytes.len() != N * 2 || !bytes.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let mut numbers = [0; N];
    for (number, pair) in numbers.iter_mut().zip(bytes.as_chunks::<2>().0) {
        let [tens, ones] = *pair;
        *number = u32::from(tens - b'0') * 10 + u32::from(ones - b'0');
    }
    Some(numbers)
}

fn check_date(bytes: &[u8]) -> Result<(), Rule> {
    let [century, year_in_century, month, day] = pairs(bytes).ok_or(Rule::NotADate)?;
    let year = century * 100 + year_in_century;
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => 0,
    };
    if (1..=days).contains(&day) { Ok(()) } else { Err(Rule::NotADate) }
}

fn check_time(bytes: &[u8]) -> Result<(), Rule> {
    let [hour, minute, second] = pairs(bytes).ok_or(Rule::NotATime)?;
    if hour < 24 && minute < 60 && second < 60 { Ok(()) } else { Err(Rule::NotATime) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_follow_the_calendar() {
        for good in ["20260601", "20240229", "20000229", "20261231"] {
            assert_eq!(check_date(good.as_bytes()), Ok(()), "{good}");
        }
        for bad in ["20260230", "20250229", "19000229", "20260431", "20261301", "20260100", "2026060", "2026060a", ""] {
            assert_eq!(check_date(bad.as_bytes()), Err(Rule::NotADate), "{bad}");
        }
    }

    #[test]
    fn times_follow_the_clock() {
        assert_eq!(check_time(b"235959"), Ok(()));
        for bad in ["240000", "236000", "235960", "23595", "+23595"] {
            assert_eq!(check_time(bad.as_bytes()), Err(Rule::NotATime), "{bad}");
        }
    }
}
