//! A record: the values of one message, in the layout's order, and its way to JSON. Its way from JSON is in `json`.

use std::sync::Arc;

use serde::de::DeserializeSeed;
use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::error::{FieldError, Rule};
use crate::field::{Field, Origin};
use crate::json::RecordSeed;
use crate::layout::Layout;

/// The value of one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Nothing: a filler, a constant, an optional field that was left out.
    Absent,
    /// Text, digits, a date or a time.
    Text(String),
    /// A count.
    Number(u64),
    /// Won.
    Amount(i64),
    /// The records of a group.
    Records(Vec<Vec<Value>>),
}

/// The values of one message.
#[derive(Debug, Clone)]
pub struct Record {
    pub(crate) layout: Arc<Layout>,
    pub(crate) values: Vec<Value>,
}

impl PartialEq for Record {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.layout, &other.layout) && self.values == other.values
    }
}

/// Which fields JSON may set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepts {
    /// What a caller of the gateway may send: fields from the body only.
    Body,
    /// Everything but constants and fillers; for tools, tests and the simulator.
    All,
}

/// Which fields are written to JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// What a caller gets: no constant, no filler, no echo, no total length.
    Answer,
    /// Everything but constants and fillers.
    All,
}

impl Record {
    /// A record with no values yet.
    #[must_use]
    pub fn new(layout: &Arc<Layout>) -> Self {
        Self { layout: Arc::clone(layout), values: vec![Value::Absent; layout.fields().len()] }
    }

    /// Reads a JSON object.
    ///
    /// # Errors
    /// `Some` names the field and the rule; `None` means that the text is no JSON object, or holds a number beyond all bounds.
    pub fn from_json(layout: &Arc<Layout>, json: &[u8], accepts: Accepts) -> Result<Self, Option<FieldError>> {
        let seed = RecordSeed::new(layout, accepts);
        let mut reader = serde_json::Deserializer::from_slice(json);
        let record = seed.deserialize(&mut reader).map_err(|_| seed.take_fault())?;
        reader.end().map_err(|_| None)?;
        Ok(record)
    }

    /// The layout that it belongs to.
    #[must_use]
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// The value at a field's index in the layout.
    #[must_use]
    pub fn at(&self, index: usize) -> &Value {
        self.values.get(index).unwrap_or(&Value::Absent)
    }

    /// The value of a field by name; [`Value::Absent`] for an unknown one. For the request path, look the index up
    /// once with [`Layout::index_of`] and use [`Record::at`].
    #[must_use]
    pub fn get(&self, name: &str) -> &Value {
        self.layout.index_of(name).map_or(&Value::Absent, |index| self.at(index))
    }

    /// The text of a field by name; empty when it has none.
    #[must_use]
    pub fn text(&self, name: &str) -> &str {
        match self.get(name) {
            Value::Text(text) => text,
            _ => "",
        }
    }

    /// Sets a field by index. An index that the layout does not have is ignored.
    pub fn set_at(&mut self, index: usize, value: Value) {
        if let Some(slot) = self.values.get_mut(index) {
            *slot = value;
        }
    }

    /// Sets a field by name and hands the record on.
    ///
    /// # Errors
    /// [`Rule::UnknownField`].
    pub fn with(mut self, name: &str, value: Value) -> Result<Self, FieldError> {
        let index = self
            .layout
            .index_of(name)
            .ok_or_else(|| FieldError { field: Arc::from(name), rule: Rule::UnknownField })?;
        self.set_at(index, value);
        Ok(self)
    }

    /// The record as something to write with serde.
    #[must_use]
    pub fn view(&self, view: View) -> impl Serialize + '_ {
        Written { fields: self.layout.fields(), values: &self.values, view }
    }
}

struct Written<'a> {
    fields: &'a [Field],
    values: &'a [Value],
    view: View,
}

impl Serialize for Written<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (field, value) in self.fields.iter().zip(self.values) {
            if self.view == View::Answer && (field.echo || field.origin == Origin::TotalLength) {
                continue;
            }
            match value {
                _ if field.is_silent() => {}
                Value::Absent => {}
                Value::Text(text) => map.serialize_entry(field.name(), text)?,
                Value::Number(number) => map.serialize_entry(field.name(), number)?,
                Value::Amount(won) => map.serialize_entry(field.name(), won)?,
                Value::Records(records) => {
                    let rows: Vec<_> = records
                        .iter()
                        .map(|values| Written { fields: field.fields(), values, view: self.view })
                        .collect();
                    map.serialize_entry(field.name(), &rows)?;
                }
            }
        }
        map.end()
    }
}
