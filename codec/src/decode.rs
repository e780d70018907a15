//! Bytes to record: one walk over the layout's fields. Every field is decoded by itself, so a half letter at one
//! field's end cannot swallow its neighbour's first byte.

use std::sync::Arc;

use crate::charset::Charset;
use crate::error::{FieldError, Rule};
use crate::field::{Field, FieldType, Origin};
use crate::layout::Layout;
use crate::record::{Record, Value};

/// Reads one whole message.
///
/// # Errors
/// The first field that breaks a rule, or [`Rule::WrongLength`] for the message as a whole.
pub fn decode(layout: &Arc<Layout>, bytes: &[u8]) -> Result<Record, FieldError> {
    let header = layout.header_length();
    if bytes.len() < header || (layout.group().is_none() && bytes.len() != header) {
        return Err(FieldError::message(Rule::WrongLength));
    }
    let mut values = Vec::with_capacity(layout.fields().len());
    let mut count = 0;
    for field in layout.fields() {
        let value = match field.kind {
            FieldType::Group => decode_group(field, layout.charset(), bytes, count)?,
            _ => decode_field(field, layout.charset(), bytes, field.offset)?,
        };
        if let (Origin::Count | Origin::TotalLength, Value::Number(number)) = (&field.origin, &value) {
            if field.origin == Origin::Count {
                count = usize::try_from(*number).unwrap_or(usize::MAX);
            } else if u64::try_from(layout.length_with(count)).ok() != Some(*number) {
                return Err(FieldError::new(&field.name, Rule::CountMismatch));
            }
        }
        values.push(value);
    }
    layout.check_differences(bytes)?;
    Ok(Record { layout: Arc::clone(layout), values })
}

fn decode_group(group: &Field, charset: Charset, bytes: &[u8], count: usize) -> Result<Value, FieldError> {
    let expected = count.checked_mul(group.length).and_then(|length| length.checked_add(group.offset));
    if expected != Some(bytes.len()) {
        return Err(FieldError::new(&group.name, Rule::CountMismatch));
    }
    let mut records = Vec::with_capacity(count);
    for number in 0..count {
        let start = group.offset + number * group.length;
        let mut values = Vec::with_capacity(group.fields().len());
        for field in group.fields() {
            values.push(decode_field(field, charset, bytes, start + field.offset)?);
        }
        records.push(values);
    }
    Ok(Value::Records(records))
}

#[inline]
fn decode_field(field: &Field, charset: Charset, bytes: &[u8], offset: usize) -> Result<Value, FieldError> {
    let own =
        bytes.get(offset..offset + field.length).ok_or_else(|| FieldError::new(&field.name, Rule::WrongLength))?;
    match field.decode(own, charset) {
        Ok(value) => Ok(value),
        Err(rule) => Err(FieldError::new(&field.name, rule)),
    }
}
