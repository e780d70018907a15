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
    for (field, value) in layout.fields().iter().zip(&record.values) {
        let computed;
        let value = match field.origin {
            Origin::Count => {
                computed = counted(field, value, records.len())?;
                &computed
            }
            Origin::TotalLength => {
                computed = counted(field, value, layout.length_with(records.len()))?;
                &computed
            }
            _ => value,
        };
        if field.kind == FieldType::Group {
            for values in records {
                if values.len() != field.fields().len() {
                    return Err(FieldError::new(&field.name, Rule::CountMismatch));
                }
                for (inner, value) in field.fields().iter().zip(values) {
                    encode_field(inner, value, layout.charset(), out)?;
                }
            }
            continue;
        }
        encode_field(field, value, layout.charset(), out)?;
    }
    Ok(())
}

fn encode_field(field: &Field, value: &Value, charset: Charset, out: &mut Vec<u8>) -> Result<(), FieldError> {
    if let Origin::Constant(constant) = &field.origin {
        out.extend_from_slice(constant);
        return Ok(());
    }
    field.encode(value, charset, out).map_err(|rule| FieldError::new(&field.name, rule))
}

fn counted(field: &Field, given: &Value, actual: usize) -> Result<Value, FieldError> {
    let actual = Value::Number(u64::try_from(actual).unwrap_or(u64::MAX));
    if *given != Value::Absent && *given != actual {
        return Err(FieldError::new(&field.name, Rule::CountMismatch));
    }
    Ok(actual)
}
