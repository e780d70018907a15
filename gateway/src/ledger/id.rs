//! Transaction ids: `GWMN`, the instance's letter, the business date, a serial of nine base-36 digits.
//!
//! The serial comes from blocks of 36⁵ that are rows of the ledger store: one is taken at the start and the next in the
//! background when half is used. Each is drawn at random among those never taken, so that also a store that is lost or restored
//! from an older copy draws others, but for one chance in some 10⁶ a block. The date is information only: no clock, midnight
//! or restart can repeat an id.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use jiff::civil::Date;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// Ids in one block: 36⁵.
pub(super) const BLOCK_SIZE: u64 = 60_466_176;
/// Blocks that the nine digits allow: 36⁴.
pub(super) const BLOCKS: u64 = 1_679_616;

/// 22 ASCII characters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionId([u8; 22]);

impl TransactionId {
    fn new(instance: Instance, date: Date, serial: u64) -> Self {
        let mut text = *b"GWMNU00000000000000000";
        let mut put = |at: usize, byte: u8| {
            if let Some(slot) = text.get_mut(at) {
                *slot = byte;
            }
        };
        put(4, instance.0);
        let mut rest = u32::try_from(date.year()).unwrap_or_default() * 10_000
            + u32::try_from(date.month()).unwrap_or_default() * 100
            + u32::try_from(date.day()).unwrap_or_default();
        for at in (5..13).rev() {
            put(at, b'0' + u8::try_from(rest % 10).unwrap_or_default());
            rest /= 10;
        }
        let mut rest = serial;
        for at in (13..22).rev() {
            let digit = u8::try_from(rest % 36).unwrap_or_default();
            put(at, if digit < 10 { b'0' + digit } else { b'A' + digit - 10 });
            rest /= 36;
        }
        Self(text)
    }

    /// Reads an id that somebody sent.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let bytes: [u8; 22] = text.as_bytes().try_into().ok()?;
        let plain = |byte: &u8| byte.is_ascii_digit() || byte.is_ascii_uppercase();
        (bytes.starts_with(b"GWMN") && bytes.iter().all(plain)).then_some(Self(bytes))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// The business day (영업일) inside, as YYYYMMDD.
    #[must_use]
    pub fn business_day(&self) -> &str {
        self.as_str().get(5..13).unwrap_or_default()
    }
}

impl fmt::Display for TransactionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for TransactionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for TransactionId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for TransactionId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("not a transaction id"))
    }
}

/// The letter of a gateway instance: one base-36 digit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instance(u8);

impl Default for Instance {
    fn default() -> Self {
        Self(b'U')
    }
}

impl Instance {
    /// Reads `0`-`9` or `A`-`Z`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text.as_bytes() {
            [byte] if byte.is_ascii_digit() || byte.is_ascii_uppercase() => Some(Self(*byte)),
            _ => None,
        }
    }

    /// The letter.
    #[must_use]
    pub fn letter(self) -> char {
        char::from(self.0)
    }
}

/// No id is left and the store has not given another block yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoIds;

/// Draws ids out of blocks.
#[derive(Debug)]
pub struct IdSource {
    instance: Instance,
    blocks: Mutex<Blocks>,
    /// Rung when half of the current block is used.
    pub(super) wanted: Notify,
}

#[derive(Debug, Default)]
struct Blocks {
    next: u64,
    end: u64,
    spare: Option<u64>,
}

impl Blocks {
    /// At half use, while there is no spare.
    fn want_another(&self) -> bool {
        self.spare.is_none() && self.end - self.next <= BLOCK_SIZE / 2
    }
}

impl IdSource {
    /// A source without a block.
    #[must_use]
    pub fn new(instance: Instance) -> Self {
        Self { instance, blocks: Mutex::default(), wanted: Notify::new() }
    }

    /// Whose ids these are.
    #[must_use]
    pub fn instance(&self) -> Instance {
        self.instance
    }

    /// Adds a block that the store has given to nobody else.
    pub fn add(&self, block: u64) {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        if blocks.next == blocks.end {
            (blocks.next, blocks.end) = (block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE);
        } else {
            blocks.spare = Some(block);
        }
    }

    /// Whether another block should be fetched.
    #[must_use]
    pub fn wants_block(&self) -> bool {
        let blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.want_another()
    }

    /// Draws the next id.
    ///
    /// # Errors
    /// [`NoIds`].
    pub fn draw(&self, date: Date) -> Result<TransactionId, NoIds> {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        if blocks.next == blocks.end
            && let Some(block) = blocks.spare.take()
        {
            (blocks.next, blocks.end) = (block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE);
        }
        if blocks.want_another() {
            self.wanted.notify_one();
        }
        if blocks.next == blocks.end {
            return Err(NoIds);
        }
        let serial = blocks.next;
        blocks.next += 1;
        drop(blocks);
        Ok(TransactionId::new(self.instance, date, serial))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source() -> IdSource {
        IdSource::new(Instance::parse("U").unwrap())
    }

    #[test]
    fn an_id_is_the_prefix_the_letter_the_date_and_nine_digits() {
        let source = source();
        source.add(0);
        let date = jiff::civil::date(2026, 11, 29);
        let ids: Vec<_> = (0..37).map(|_| source.draw(date).unwrap().to_string()).collect();
        assert_eq!(ids[0], "GWMNU20261129000000000");
        assert_eq!(ids[35], "GWMNU2026112900000000Z");
        assert_eq!(ids[36], "GWMNU20261129000000010");
        assert_eq!(TransactionId::parse(&ids[36]).unwrap().as_str(), ids[36]);
        for bad in ["", "GWMNU2026112900000001", "XXXXU20261129000000010", "GWMNU2026112900000001-"] {
            assert_eq!(TransactionId::parse(bad), None);
        }
    }

    #[test]
    fn no_block_no_id_and_the_last_block_ends_at_nine_digits() {
        let source = source();
        let date = jiff::civil::date(2026, 1, 1);
        assert_eq!(source.draw(date), Err(NoIds));
        source.add(BLOCKS - 1);
        source.blocks.lock().unwrap().next = BLOCKS * BLOCK_SIZE - 1;
        assert_eq!(source.draw(date).unwrap().as_str(), "GWMNU20260101ZZZZZZZZZ");
        assert_eq!(source.draw(date), Err(NoIds));
    }

    #[test]
    fn the_next_block_is_wanted_at_half_use_and_taken_at_the_end() {
        let source = source();
        let date = jiff::civil::date(2026, 1, 1);
        source.add(5);
        assert!(!source.wants_block());
        source.blocks.lock().unwrap().next = 5 * BLOCK_SIZE + BLOCK_SIZE / 2;
        assert!(source.wants_block());
        source.add(9);
        assert!(!source.wants_block());
        source.blocks.lock().unwrap().next = 6 * BLOCK_SIZE - 1;
        source.draw(date).unwrap();
        let first = source.draw(date).unwrap();
        assert_eq!(first, TransactionId::new(source.instance, date, 9 * BLOCK_SIZE));
    }
}
