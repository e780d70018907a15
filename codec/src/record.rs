//! A record: the values of one message, in the layout's order, and its way from and to JSON.
//!
//! JSON is read straight into the record, without a map between, so that a duplicate key is seen and a number never goes
//! through a float. An error names the field and the rule; the value never leaves this file.

use std::cell::RefCell;
use std::sync::Arc;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::error::{FieldError, Rule};
use crate::field::{Field, FieldType, Origin};
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
    /// `Some` names the field and the rule; `None` means that the text is not a JSON object at all.
    pub fn from_json(layout: &Arc<Layout>, json: &[u8], accepts: Accepts) -> Result<Self, Option<FieldError>> {
        let seed = RecordSeed::new(layout, accepts);
        let mut reader = serde_json::Deserializer::from_slice(json);
        let record = seed.deserialize(&mut reader).map_err(|_| seed.fault.take())?;
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

    /// Checks the pairs of fields that must hold different values.
    pub(crate) fn check_differences(&self) -> Result<(), FieldError> {
        for (field, value) in self.layout.fields().iter().zip(&self.values) {
            if field.differs_from.is_some_and(|other| self.at(other) == value) {
                return Err(FieldError::new(&field.name, Rule::MustDiffer));
            }
        }
        Ok(())
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

impl Field {
    /// Fields that JSON never shows and never sets.
    pub(crate) fn is_silent(&self) -> bool {
        self.kind == FieldType::Filler || matches!(self.origin, Origin::Constant(_))
    }

    fn settable(&self, accepts: Accepts) -> bool {
        match accepts {
            Accepts::All => !self.is_silent(),
            Accepts::Body => !self.is_silent() && matches!(self.origin, Origin::Body { .. }),
        }
    }
}

/// Reads one record from any serde format, so that a record can stand inside a larger body.
pub struct RecordSeed<'a> {
    layout: &'a Arc<Layout>,
    accepts: Accepts,
    /// serde's own errors are texts and may quote the value, so the typed error travels beside them.
    fault: RefCell<Option<FieldError>>,
}

impl<'a> RecordSeed<'a> {
    /// A seed for one layout.
    #[must_use]
    pub fn new(layout: &'a Arc<Layout>, accepts: Accepts) -> Self {
        Self { layout, accepts, fault: RefCell::new(None) }
    }

    fn refuse<E: serde::de::Error>(&self, field: &Arc<str>, rule: Rule) -> E {
        self.fault.borrow_mut().get_or_insert_with(|| FieldError::new(field, rule));
        E::custom(rule)
    }

    /// For keys that are not ours: the name is the caller's text and is not repeated.
    fn refuse_unknown<E: serde::de::Error>(&self) -> E {
        self.fault.borrow_mut().get_or_insert_with(|| FieldError::message(Rule::UnknownField));
        E::custom(Rule::UnknownField)
    }
}

impl<'de> DeserializeSeed<'de> for &RecordSeed<'_> {
    type Value = Record;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Record, D::Error> {
        let values = deserializer.deserialize_map(Fields { seed: self, fields: self.layout.fields() })?;
        Ok(Record { layout: Arc::clone(self.layout), values })
    }
}

/// The keys of one object: the message itself, or one record of its group.
#[derive(Clone, Copy)]
struct Fields<'a> {
    seed: &'a RecordSeed<'a>,
    fields: &'a [Field],
}

impl<'de> DeserializeSeed<'de> for Fields<'_> {
    type Value = Vec<Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<Value>, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Fields<'_> {
    type Value = Vec<Value>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<Value>, A::Error> {
        use serde::de::Error;
        let seed = self.seed;
        let mut values = vec![Value::Absent; self.fields.len()];
        while let Some(index) = map.next_key_seed(Key(self))? {
            let (Some(field), Some(slot)) = (self.fields.get(index), values.get_mut(index)) else {
                return Err(A::Error::custom("no such field"));
            };
            if *slot != Value::Absent {
                return Err(seed.refuse(&field.name, Rule::Duplicate));
            }
            *slot = map.next_value_seed(OneValue { seed, field })?;
        }
        for (field, value) in self.fields.iter().zip(&mut values) {
            match field.origin {
                _ if *value != Value::Absent || field.is_silent() => {}
                Origin::Body { optional: true } => *value = Value::Text(String::new()),
                Origin::Body { optional: false } => return Err(seed.refuse(&field.name, Rule::Missing)),
                _ => {}
            }
        }
        Ok(values)
    }
}

struct Key<'a>(Fields<'a>);

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<usize, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = usize;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a field name")
    }

    fn visit_str<E: serde::de::Error>(self, key: &str) -> Result<usize, E> {
        let Fields { seed, fields } = self.0;
        let known = |field: &Field| field.name() == key && field.settable(seed.accepts);
        fields.iter().position(known).ok_or_else(|| seed.refuse_unknown())
    }
}

struct OneValue<'a> {
    seed: &'a RecordSeed<'a>,
    field: &'a Field,
}

impl OneValue<'_> {
    fn refuse<E: serde::de::Error>(&self, rule: Rule) -> E {
        self.seed.refuse(&self.field.name, rule)
    }

    fn is_number(&self) -> bool {
        matches!(self.field.kind, FieldType::Number | FieldType::Amount)
    }
}

impl<'de> DeserializeSeed<'de> for OneValue<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for OneValue<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the field's type")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Value, E> {
        match self.field.kind {
            FieldType::Text | FieldType::Date | FieldType::Time => Ok(Value::Text(text.to_owned())),
            // Zero-padded at once, so that a record holds what a reply would read back.
            FieldType::Digits if !text.is_empty() && text.is_ascii() => {
                Ok(Value::Text(format!("{text:0>width$}", width = self.field.length)))
            }
            FieldType::Digits => Err(self.refuse(if text.is_empty() { Rule::Empty } else { Rule::NotDigits })),
            _ => Err(self.refuse(Rule::WrongType)),
        }
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Value, E> {
        match self.field.kind {
            FieldType::Number => Ok(Value::Number(number)),
            FieldType::Amount => i64::try_from(number).map(Value::Amount).map_err(|_| self.refuse(Rule::OutOfRange)),
            _ => Err(self.refuse(Rule::WrongType)),
        }
    }

    fn visit_i64<E: serde::de::Error>(self, _negative: i64) -> Result<Value, E> {
        Err(self.refuse(if self.is_number() { Rule::OutOfRange } else { Rule::WrongType }))
    }

    fn visit_f64<E: serde::de::Error>(self, _float: f64) -> Result<Value, E> {
        Err(self.refuse(if self.is_number() { Rule::NotAPlainInteger } else { Rule::WrongType }))
    }

    fn visit_bool<E: serde::de::Error>(self, _flag: bool) -> Result<Value, E> {
        Err(self.refuse(Rule::WrongType))
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Value, E> {
        Err(self.refuse(Rule::WrongType))
    }

    fn visit_map<A: MapAccess<'de>>(self, _map: A) -> Result<Value, A::Error> {
        Err(self.refuse(Rule::WrongType))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        if self.field.kind != FieldType::Group {
            return Err(self.refuse(Rule::WrongType));
        }
        let mut records = Vec::new();
        while let Some(values) = seq.next_element_seed(Fields { seed: self.seed, fields: self.field.fields() })? {
            records.push(values);
        }
        Ok(Value::Records(records))
    }
}
