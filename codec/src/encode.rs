//! Record to bytes: one walk over the layout's fields.

use crate::charset::Charset;
use crate::error::{FieldError, Rule};
use crate::field::{Field, FieldType, Origin};
use crate::record::{Record, Value};

/// Appends the message to `out`.
///
/// The count and total length of a group are computed; if the record carries them they must agree.
///
/// # Errors
/// The first field that breaks a rule; `out` is then as it was.
pub fn encode(record: &Record, out: &mut Vec<u8>) -> Result<(), FieldError> {
    let start = out.len();
    let result =
        encode_fields(record, out).and_then(|()| record.layout.check_differences(out.get(start..).unwrap_or_default()));
    if result.is_err() {
        out.truncate(start);
    }
    result
}

fn encode_fields(record: &Record, out: &mut Vec<u8>) -> Result<(), FieldError> {
    let layout = &record.layout;
    let records = match (layout.group(), record.values.last()) {
        (Some(_), Some(Value::Records(records))) => records.as_slice(),
        (Some(group), Some(Value::Absent)) => return Err(FieldError::new(&group.name, Rule::Missing)),
        (Some(group), _) => return Err(FieldError::new(&group.name, Rule::WrongType)),
        (None, _) => &[],
    };
    let start = out.len();
    out.extend_from_slice(layout.template());
    let header = out.get_mut(start..).unwrap_or_default();
    for (field, value) in layout.fields().iter().zip(&record.values) {
        let computed = match field.origin {
            Origin::Count => counted(field, value, records.len())?,
            Origin::TotalLength => counted(field, value, layout.length_with(records.len()))?,
            // The template has it.
            Origin::Constant(_) => continue,
            _ if field.kind == FieldType::Group => continue,
            _ => {
                write(field, value, layout.charset(), header)?;
                continue;
            }
        };
        write(field, &computed, layout.charset(), header)?;
    }
    let Some(group) = layout.group() else { return Ok(()) };
    for values in records {
        if values.len() != group.fields().len() {
            return Err(FieldError::new(&group.name, Rule::CountMismatch));
        }
        let start = out.len();
        out.extend_from_slice(layout.record_template());
        let record = out.get_mut(start..).unwrap_or_default();
        for (field, value) in group.fields().iter().zip(values) {
            if !matches!(field.origin, Origin::Constant(_)) {
                write(field, value, layout.charset(), record)?;
            }
        }
    }
    Ok(())
}

/// Writes a field into its place in a message that holds the templates.
#[inline]
fn write(field: &Field, value: &Value, charset: Charset, message: &mut [u8]) -> Result<(), FieldError> {
    let own = message.get_mut(field.offset..field.offset + field.length);
    let written = own.ok_or(Rule::WrongLength).and_then(|own| field.write(value, charset, own));
    written.map_err(|rule| FieldError::new(&field.name, rule))
}

fn counted(field: &Field, given: &Value, actual: usize) -> Result<Value, FieldError> {
    let actual = Value::Number(u64::try_from(actual).unwrap_or(u64::MAX));
    if *given != Value::Absent && *given != actual {
        return Err(FieldError::new(&field.name, Rule::CountMismatch));
    }
    Ok(actual)
}
