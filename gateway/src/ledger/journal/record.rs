//! What a record's payload says, to bytes and back.

use std::sync::Arc;

use crate::ledger::row::{Answer, Facts, Keyed, Outcome, Row, ServedFrom};

/// A payload on its way into the journal.
pub(super) type Written = (RecordKind, postcard::Result<Vec<u8>>);

/// What a record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordKind {
    /// About to send.
    Intent = 1,
    /// How it ended, with the intent's facts.
    Outcome = 2,
    /// The same, and what the caller was told.
    Answered = 3,
    /// How it ended, and that the answer did not come from the institution.
    Served = 4,
    /// About to send, and which key it has.
    Claiming = 5,
    /// How it ended, what the caller was told if that is kept, and which key it has.
    Claimed = 6,
}

impl RecordKind {
    pub(super) fn of(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Intent),
            2 => Some(Self::Outcome),
            3 => Some(Self::Answered),
            4 => Some(Self::Served),
            5 => Some(Self::Claiming),
            6 => Some(Self::Claimed),
            _ => None,
        }
    }
}

/// Reads an intent; `None` for what is none.
pub(super) fn read_intent(kind: RecordKind, payload: &[u8]) -> Option<postcard::Result<Facts>> {
    match kind {
        RecordKind::Intent => Some(postcard::from_bytes(payload)),
        RecordKind::Claiming => {
            let read = postcard::from_bytes(payload);
            Some(read.map(|(facts, keyed): (Facts, Keyed)| Facts { keyed: Some(Arc::new(keyed)), ..facts }))
        }
        _ => None,
    }
}

/// Reads an outcome, with or without an answer; `None` for what is none.
pub(super) fn read_outcome(kind: RecordKind, payload: &[u8]) -> Option<postcard::Result<Outcome>> {
    match kind {
        RecordKind::Intent | RecordKind::Claiming => None,
        RecordKind::Outcome => Some(postcard::from_bytes(payload).map(Outcome::of)),
        RecordKind::Answered => {
            Some(postcard::from_bytes(payload).map(|(row, answer)| Outcome { row, answer: Some(answer) }))
        }
        RecordKind::Served => Some(postcard::from_bytes(payload).map(|(mut row, from): (Row, ServedFrom)| {
            row.closing.served_from = from;
            Outcome::of(row)
        })),
        RecordKind::Claimed => {
            let read = postcard::from_bytes(payload);
            Some(read.map(|(mut row, answer, keyed): (Row, Option<Answer>, Keyed)| {
                row.facts.keyed = Some(Arc::new(keyed));
                Outcome { row, answer }
            }))
        }
    }
}

/// Bytes of most records, so that writing one needs no second room for it.
const RECORD_USUAL: usize = 384;

fn written(record: &impl serde::Serialize) -> postcard::Result<Vec<u8>> {
    postcard::to_extend(record, Vec::with_capacity(RECORD_USUAL))
}

/// The record of an intent.
pub(super) fn intent(facts: &Facts) -> Written {
    match facts.keyed.as_deref() {
        None => (RecordKind::Intent, written(facts)),
        Some(keyed) => (RecordKind::Claiming, written(&(facts, keyed))),
    }
}

/// The record of an outcome.
pub(super) fn outcome(outcome: &Outcome) -> Written {
    let Outcome { row, answer } = outcome;
    let from = row.closing.served_from;
    if let Some(keyed) = row.facts.keyed.as_deref() {
        return (RecordKind::Claimed, written(&(row, answer, keyed)));
    }
    match answer {
        None if from != ServedFrom::Host => (RecordKind::Served, written(&(row, from))),
        None => (RecordKind::Outcome, written(row)),
        Some(answer) => (RecordKind::Answered, written(&(row, answer))),
    }
}
