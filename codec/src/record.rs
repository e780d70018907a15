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
pub enum Value<'a> {
    /// Nothing: a filler, a constant, an optional field that was left out.
    Absent,
    /// Text, digits, a date or a time.
    Text(&'a str),
    /// A count.
    Number(u64),
    /// Won.
    Amount(i64),
    /// The records of a group.
    Records(Vec<Vec<Value<'a>>>),
}

/// The values of one message.
#[derive(Debug, Clone)]
pub struct Record {
    pub(crate) layout: Arc<Layout>,
    /// In the order of the layout's fields.
    pub(crate) slots: Vec<Slot>,
    pub(crate) texts: Texts,
}

/// A value as a record keeps it: its text stands among the record's texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Slot {
    Absent,
    Text(Span),
    Number(u64),
    Amount(i64),
    Records(Vec<Vec<Slot>>),
}

/// Where a text stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    from: u32,
    to: u32,
}

impl Span {
    #[inline]
    fn range(self) -> std::ops::Range<usize> {
        let place = |place: u32| usize::try_from(place).unwrap_or(usize::MAX);
        place(self.from)..place(self.to)
    }
}

/// All texts of a record, one behind the other, so that a message costs one allocation and not one for each of its fields.
#[derive(Debug, Clone, Default)]
pub(crate) struct Texts(String);

impl Texts {
    /// Room for the texts of a message with so many bytes: a letter of two bytes becomes three.
    pub(crate) fn for_message_of(bytes: usize) -> Self {
        Self(String::with_capacity(bytes + bytes / 2))
    }

    /// Adds what `write` adds.
    #[inline]
    pub(crate) fn add<E>(&mut self, write: impl FnOnce(&mut String) -> Result<(), E>) -> Result<Span, E> {
        let from = self.end();
        write(&mut self.0)?;
        Ok(Span { from, to: self.end() })
    }

    #[inline]
    pub(crate) fn push(&mut self, text: &str) -> Span {
        let from = self.end();
        self.0.push_str(text);
        Span { from, to: self.end() }
    }

    /// Texts of four gibibytes are beyond any message; what stands behind them would be lost.
    fn end(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    #[inline]
    pub(crate) fn of(&self, span: Span) -> &str {
        self.0.get(span.range()).unwrap_or_default()
    }

    #[inline]
    pub(crate) fn bytes_of(&self, span: Span) -> &[u8] {
        self.0.as_bytes().get(span.range()).unwrap_or_default()
    }

    fn keep(&mut self, value: Value<'_>) -> Slot {
        match value {
            Value::Absent => Slot::Absent,
            Value::Text(text) => Slot::Text(self.push(text)),
            Value::Number(number) => Slot::Number(number),
            Value::Amount(won) => Slot::Amount(won),
            Value::Records(records) => {
                let record = |values: Vec<Value<'_>>| values.into_iter().map(|value| self.keep(value)).collect();
                Slot::Records(records.into_iter().map(record).collect())
            }
        }
    }

    #[inline]
    pub(crate) fn value(&self, slot: &Slot) -> Value<'_> {
        match slot {
            Slot::Absent => Value::Absent,
            Slot::Text(span) => Value::Text(self.of(*span)),
            Slot::Number(number) => Value::Number(*number),
            Slot::Amount(won) => Value::Amount(*won),
            Slot::Records(records) => {
                let record = |slots: &Vec<Slot>| slots.iter().map(|slot| self.value(slot)).collect();
                Value::Records(records.iter().map(record).collect())
            }
        }
    }
}

impl PartialEq for Record {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.layout, &other.layout)
            && self.slots.len() == other.slots.len()
            && (0..self.slots.len()).all(|index| self.at(index) == other.at(index))
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
        let slots = vec![Slot::Absent; layout.fields().len()];
        Self { layout: Arc::clone(layout), slots, texts: Texts::for_message_of(layout.header_length()) }
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
    pub fn at(&self, index: usize) -> Value<'_> {
        self.slots.get(index).map_or(Value::Absent, |slot| self.texts.value(slot))
    }

    /// The value of a field by name; [`Value::Absent`] for an unknown one. For the request path, look the index up
    /// once with [`Layout::index_of`] and use [`Record::at`].
    #[must_use]
    pub fn get(&self, name: &str) -> Value<'_> {
        self.layout.index_of(name).map_or(Value::Absent, |index| self.at(index))
    }

    /// The text of a field by name; empty when it has none.
    #[must_use]
    pub fn text(&self, name: &str) -> &str {
        match self.get(name) {
            Value::Text(text) => text,
            _ => "",
        }
    }

    /// Sets a field by index. An index that the layout does not have is ignored. A text that stood there before keeps its room.
    pub fn set_at(&mut self, index: usize, value: Value<'_>) {
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = self.texts.keep(value);
        }
    }

    /// Sets a field by name and hands the record on.
    ///
    /// # Errors
    /// [`Rule::UnknownField`].
    pub fn with(mut self, name: &str, value: Value<'_>) -> Result<Self, FieldError> {
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
        Written { fields: self.layout.fields(), slots: &self.slots, texts: &self.texts, view }
    }
}

struct Written<'a> {
    fields: &'a [Field],
    slots: &'a [Slot],
    texts: &'a Texts,
    view: View,
}

impl Serialize for Written<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (field, slot) in self.fields.iter().zip(self.slots) {
            if self.view == View::Answer && (field.echo || field.origin == Origin::TotalLength) {
                continue;
            }
            match slot {
                _ if field.is_silent() => {}
                Slot::Absent => {}
                Slot::Text(span) => map.serialize_entry(field.name(), self.texts.of(*span))?,
                Slot::Number(number) => map.serialize_entry(field.name(), number)?,
                Slot::Amount(won) => map.serialize_entry(field.name(), won)?,
                Slot::Records(records) => {
                    let rows: Vec<_> = records
                        .iter()
                        .map(|slots| Written { fields: field.fields(), slots, texts: self.texts, view: self.view })
                        .collect();
                    map.serialize_entry(field.name(), &rows)?;
                }
            }
        }
        map.end()
    }
}
