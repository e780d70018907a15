//! The bytes of a segment, pure: header, batches, records.
//!
//! A segment starts with a header page that names the journal and how much of the predecessor is valid. Then come
//! batches, each on a page of its own start, so that a page which was synced is never written again. A batch header says
//! up to where its segment was known to be durable; that is how recovery tells a torn tail from corruption. The segment's
//! number is inside every checksum, so bytes of an older life are never taken for ours.

use super::RecordKind;

/// Batches start at multiples of this.
pub(super) const PAGE: u64 = 4_096;
/// Bytes of a batch header.
pub(super) const BATCH_HEADER: usize = 24;
/// Bytes of a record before its payload.
pub(super) const RECORD_HEADER: usize = 9;

const SEGMENT_MAGIC: &[u8; 8] = b"GWJRNL01";
/// Larger than any record length, so that the two can't be confused.
const BATCH_MAGIC: &[u8; 4] = b"BTCH";

/// The first page of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) journal: [u8; 16],
    pub(super) number: u64,
    /// The segment before this one, 0 for none, and how many bytes of it count.
    pub(super) predecessor: u64,
    pub(super) predecessor_end: u64,
}

/// The next multiple of a page, at or behind `offset`.
pub(super) fn page_from(offset: u64) -> u64 {
    offset.next_multiple_of(PAGE)
}

/// Where a record may start, at or behind `offset`: its header never crosses into another page. Else the first bytes of a
/// record and the zeros behind a batch's end could not be told apart.
pub(super) fn record_from(offset: u64) -> u64 {
    let left = page_from(offset) - offset;
    if left > 0 && left < u64::try_from(RECORD_HEADER).unwrap_or(PAGE) { page_from(offset) } else { offset }
}

impl Header {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = SEGMENT_MAGIC.to_vec();
        bytes.extend_from_slice(&self.journal);
        for number in [self.number, self.predecessor, self.predecessor_end] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        let check = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&check.to_le_bytes());
        bytes
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (body, rest) = bytes.split_at_checked(48)?;
        if !body.starts_with(SEGMENT_MAGIC) || read_u32(rest, 0)? != crc32fast::hash(body) {
            return None;
        }
        Some(Self {
            journal: body.get(8..24)?.try_into().ok()?,
            number: read_u64(body, 24)?,
            predecessor: read_u64(body, 32)?,
            predecessor_end: read_u64(body, 40)?,
        })
    }
}

pub(super) fn push_batch_header(number: u64, synced_upto: u64, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(BATCH_MAGIC);
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&synced_upto.to_le_bytes());
    let check = crc32fast::hash(out.get(start..).unwrap_or_default());
    out.extend_from_slice(&check.to_le_bytes());
}

/// How much was durable when the batch began, if these bytes start a batch of this segment.
pub(super) fn parse_batch_header(bytes: &[u8], number: u64) -> Option<u64> {
    let header = bytes.get(..BATCH_HEADER)?;
    let body = header.get(..20)?;
    let ours =
        body.starts_with(BATCH_MAGIC) && read_u64(body, 4)? == number && read_u32(header, 20)? == crc32fast::hash(body);
    if ours { read_u64(body, 12) } else { None }
}

pub(super) fn push_record(number: u64, kind: RecordKind, payload: &[u8], out: &mut Vec<u8>) {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&check(number, kind as u8, payload).to_le_bytes());
    out.push(kind as u8);
    out.extend_from_slice(payload);
}

/// What stands at a place in a batch.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Read<'a> {
    /// A whole record and its length with header.
    Record(RecordKind, &'a [u8], usize),
    /// Nothing was written here.
    End,
    /// Something that is no record of this segment.
    Bad,
}

pub(super) fn parse_record(bytes: &[u8], number: u64) -> Read<'_> {
    let Some(length) = read_u32(bytes, 0) else {
        return if bytes.iter().all(|byte| *byte == 0) { Read::End } else { Read::Bad };
    };
    if length == 0 {
        return Read::End;
    }
    let read = || {
        let end = RECORD_HEADER + usize::try_from(length).ok()?;
        let payload = bytes.get(RECORD_HEADER..end)?;
        let kind = *bytes.get(8)?;
        let whole = read_u32(bytes, 4)? == check(number, kind, payload);
        if whole { Some(Read::Record(RecordKind::of(kind)?, payload, end)) } else { None }
    };
    read().unwrap_or(Read::Bad)
}

fn check(number: u64, kind: u8, payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&number.to_le_bytes());
    hasher.update(&[kind]);
    hasher.update(payload);
    hasher.finalize()
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// One record found by a [`Walk`].
pub(super) struct Found<'a> {
    pub(super) kind: RecordKind,
    pub(super) payload: &'a [u8],
    /// Where the record starts.
    pub(super) start: u64,
}

/// Walks the records in bytes that start at `base` of a segment.
pub(super) struct Walk<'a> {
    bytes: &'a [u8],
    base: u64,
    number: u64,
    at: u64,
    /// Behind the last good record.
    pub(super) good: u64,
}

impl<'a> Walk<'a> {
    /// `base` must be where a batch or a record starts.
    pub(super) fn new(bytes: &'a [u8], base: u64, number: u64) -> Self {
        Self { bytes, base, number, at: base, good: base }
    }

    fn rest(&self, at: u64) -> &'a [u8] {
        let from = usize::try_from(at - self.base).unwrap_or(usize::MAX);
        self.bytes.get(from..).unwrap_or_default()
    }

    /// The highest durable mark that a batch at or behind `at` carries; recovery looks past a bad place with it.
    pub(super) fn durable_mark_from(&self, at: u64) -> Option<u64> {
        let mut page = page_from(at);
        let mut mark = None;
        while !self.rest(page).is_empty() {
            mark = mark.max(parse_batch_header(self.rest(page), self.number));
            page += PAGE;
        }
        mark
    }
}

impl<'a> Iterator for Walk<'a> {
    type Item = Found<'a>;

    fn next(&mut self) -> Option<Found<'a>> {
        loop {
            self.at = record_from(self.at);
            let on_page = self.at.is_multiple_of(PAGE);
            let rest = self.rest(self.at);
            let mark = if on_page { parse_batch_header(rest, self.number) } else { None };
            if mark.is_some_and(|mark| mark > self.good) {
                // It says that more was durable than has been read: there is a hole before it, not an end.
                return None;
            }
            if mark.is_some() {
                self.at += u64::try_from(BATCH_HEADER).unwrap_or_default();
                continue;
            }
            match parse_record(rest, self.number) {
                Read::Record(kind, payload, length) => {
                    let start = self.at;
                    self.at += u64::try_from(length).unwrap_or_default();
                    self.good = self.at;
                    return Some(Found { kind, payload, start });
                }
                Read::End if !on_page && !rest.is_empty() => self.at = page_from(self.at),
                Read::End | Read::Bad => return None,
            }
        }
    }
}
