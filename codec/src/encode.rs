//! Record to bytes: one walk over the layout's fields.

use crate::error::{FieldError, Rule};
use crate::field::{Field, Origin};
use crate::record::{Record, Slot};

/// Appends the message to `out`.
///
/// The count and total length of a group are computed; if the record carries them they must agree.
///
/// # Errors
/// The first field that breaks a rule; `out` is then as it was.
pub fn encode(record: &Record, out: &mut Vec<u8>) -> Result<(), FieldError> {
    let start = out.len();
    let result = encode_fields(record, start, out);
    if result.is_err() {
        out.truncate(start);
    }
    result
}

fn encode_fields(record: &Record, start: usize, out: &mut Vec<u8>) -> Result<(), FieldError> {
    let layout = &*record.layout;
    let records = match layout.group() {
        Some(group) => records_of(group, record.slots.last())?,
        None => &[],
    };
    out.extend_from_slice(layout.template());
    let header = out.get_mut(start..).unwrap_or_default();
    for place in layout.places() {
        let Some(slot) = record.slots.get(place.index) else { continue };
        if place.write_usual(slot, &record.texts, header) {
            continue;
        }
        let Some(field) = layout.fields().get(place.index) else { continue };
        let computed = match field.origin {
            Origin::Count => &counted(field, slot, records.len())?,
            Origin::TotalLength => &counted(field, slot, layout.length_with(records.len()))?,
            _ => slot,
        };
        if let Err(rule) = write(field, computed, record, header) {
            return Err(FieldError::new(&field.name, rule));
        }
    }
    if let Some(group) = layout.group() {
        encode_records(group, records, record, out)?;
    }
    layout.check_differences(out.get(start..).unwrap_or_default())
}

/// The records that a group is to have.
fn records_of<'a>(group: &Field, slot: Option<&'a Slot>) -> Result<&'a [Vec<Slot>], FieldError> {
    match slot {
        Some(Slot::Records(records)) => Ok(records),
        Some(Slot::Absent) => Err(FieldError::new(&group.name, Rule::Missing)),
        _ => Err(FieldError::new(&group.name, Rule::WrongType)),
    }
}

fn encode_records(group: &Field, records: &[Vec<Slot>], record: &Record, out: &mut Vec<u8>) -> Result<(), FieldError> {
    let layout = &*record.layout;
    for slots in records {
        if slots.len() != group.fields().len() {
            return Err(FieldError::new(&group.name, Rule::CountMismatch));
        }
        let start = out.len();
        out.extend_from_slice(layout.record_template());
        let own = out.get_mut(start..).unwrap_or_default();
        for place in layout.record_places() {
            let (Some(field), Some(slot)) = (group.fields().get(place.index), slots.get(place.index)) else { continue };
            if !place.write_usual(slot, &record.texts, own) {
                write(field, slot, record, own).map_err(|rule| FieldError::new(&field.name, rule))?;
            }
        }
    }
    Ok(())
}

/// Writes a field into its place in a message that holds the templates.
#[inline]
fn write(field: &Field, slot: &Slot, record: &Record, message: &mut [u8]) -> Result<(), Rule> {
    match message.get_mut(field.offset..field.offset + field.length) {
        Some(own) => field.write(slot, &record.texts, record.layout.charset(), own),
        None => Err(Rule::WrongLength),
    }
}

fn counted(field: &Field, given: &Slot, actual: usize) -> Result<Slot, FieldError> {
    let actual = Slot::Number(u64::try_from(actual).unwrap_or(u64::MAX));
    if *given != Slot::Absent && *given != actual {
        return Err(FieldError::new(&field.name, Rule::CountMismatch));
    }
    Ok(actual)
}
