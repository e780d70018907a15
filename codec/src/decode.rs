//! Bytes to record: one walk over the layout's fields. Every field is decoded by itself, so a half letter at one
//! field's end cannot swallow its neighbour's first byte.

use std::sync::Arc;

use crate::charset::Charset;
use crate::error::{FieldError, Rule};
use crate::field::{Field, FieldType, Origin};
use crate::layout::Layout;
use crate::record::{Record, Slot, Texts};

/// Reads one whole message.
///
/// # Errors
/// The first field that breaks a rule, or [`Rule::WrongLength`] for the message as a whole.
pub fn decode(layout: &Arc<Layout>, bytes: &[u8]) -> Result<Record, FieldError> {
    let header = layout.header_length();
    if bytes.len() < header || (layout.group().is_none() && bytes.len() != header) {
        return Err(FieldError::message(Rule::WrongLength));
    }
    let (mut slots, mut texts) = (Vec::with_capacity(layout.fields().len()), Texts::for_message_of(bytes.len()));
    let mut count = 0;
    for field in layout.fields() {
        match field.kind {
            FieldType::Group => slots.push(decode_group(field, layout.charset(), bytes, count, &mut texts)?),
            _ => decode_field(field, layout.charset(), (bytes, field.offset), &mut slots, &mut texts)?,
        }
        let is_computed = matches!(field.origin, Origin::Count | Origin::TotalLength);
        if is_computed && let Some(Slot::Number(number)) = slots.last() {
            if field.origin == Origin::Count {
                count = usize::try_from(*number).unwrap_or(usize::MAX);
            } else if u64::try_from(layout.length_with(count)).ok() != Some(*number) {
                return Err(FieldError::new(&field.name, Rule::CountMismatch));
            }
        }
    }
    layout.check_differences(bytes)?;
    Ok(Record { layout: Arc::clone(layout), slots, texts })
}

fn decode_group(
    group: &Field,
    charset: Charset,
    bytes: &[u8],
    count: usize,
    texts: &mut Texts,
) -> Result<Slot, FieldError> {
    let expected = count.checked_mul(group.length).and_then(|length| length.checked_add(group.offset));
    if expected != Some(bytes.len()) {
        return Err(FieldError::new(&group.name, Rule::CountMismatch));
    }
    let mut records = Vec::with_capacity(count);
    for number in 0..count {
        let start = group.offset + number * group.length;
        let mut slots = Vec::with_capacity(group.fields().len());
        for field in group.fields() {
            decode_field(field, charset, (bytes, start + field.offset), &mut slots, texts)?;
        }
        records.push(slots);
    }
    Ok(Slot::Records(records))
}

/// Reads the field that begins at an offset of these bytes.
#[inline]
fn decode_field(
    field: &Field,
    charset: Charset,
    (bytes, offset): (&[u8], usize),
    slots: &mut Vec<Slot>,
    texts: &mut Texts,
) -> Result<(), FieldError> {
    let own = bytes.get(offset..offset + field.length).ok_or(Rule::WrongLength);
    let decoded = own.and_then(|own| field.decode(own, charset, slots, texts));
    decoded.map_err(|rule| FieldError::new(&field.name, rule))
}
