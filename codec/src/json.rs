//! JSON to record, straight and without a map between, so that a duplicate key is seen and a number never goes through a
//! float. An error names the field and the rule; the value never leaves this file.

use std::cell::RefCell;
use std::sync::Arc;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::error::{FieldError, Rule};
use crate::field::{Field, FieldType, Origin};
use crate::layout::Layout;
use crate::record::{Accepts, Record, Slot, Texts};

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

/// Reads one record.
pub(crate) struct RecordSeed<'a> {
    layout: &'a Arc<Layout>,
    accepts: Accepts,
    /// serde's own errors are texts and may quote the value, so the typed error travels beside them.
    fault: RefCell<Option<FieldError>>,
    texts: RefCell<Texts>,
}

impl<'a> RecordSeed<'a> {
    pub(crate) fn new(layout: &'a Arc<Layout>, accepts: Accepts) -> Self {
        let texts = RefCell::new(Texts::for_message_of(layout.header_length()));
        Self { layout, accepts, fault: RefCell::new(None), texts }
    }

    /// The typed error behind a failed read, if there is one.
    pub(crate) fn take_fault(&self) -> Option<FieldError> {
        self.fault.take()
    }

    fn text(&self, text: &str) -> Slot {
        self.padded(text, 0)
    }

    /// A text with zeros before it, up to a length in bytes.
    fn padded(&self, text: &str, length: usize) -> Slot {
        let Ok(span) = self.texts.borrow_mut().add(|texts| {
            texts.extend(std::iter::repeat_n('0', length.saturating_sub(text.len())));
            texts.push_str(text);
            Ok::<_, std::convert::Infallible>(())
        });
        Slot::Text(span)
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
        let slots = deserializer.deserialize_map(Fields { seed: self, fields: self.layout.fields() })?;
        Ok(Record { layout: Arc::clone(self.layout), slots, texts: self.texts.take() })
    }
}

/// The keys of one object: the message itself, or one record of its group.
#[derive(Clone, Copy)]
struct Fields<'a> {
    seed: &'a RecordSeed<'a>,
    fields: &'a [Field],
}

impl<'de> DeserializeSeed<'de> for Fields<'_> {
    type Value = Vec<Slot>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<Slot>, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Fields<'_> {
    type Value = Vec<Slot>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<Slot>, A::Error> {
        use serde::de::Error;
        let seed = self.seed;
        let mut slots = vec![Slot::Absent; self.fields.len()];
        while let Some(index) = map.next_key_seed(Key(self))? {
            let (Some(field), Some(slot)) = (self.fields.get(index), slots.get_mut(index)) else {
                return Err(A::Error::custom("no such field"));
            };
            if *slot != Slot::Absent {
                return Err(seed.refuse(&field.name, Rule::Duplicate));
            }
            *slot = map.next_value_seed(OneValue { seed, field })?;
        }
        for (field, slot) in self.fields.iter().zip(&mut slots) {
            match field.origin {
                _ if *slot != Slot::Absent || field.is_silent() => {}
                Origin::Body { optional: true } => *slot = seed.text(""),
                Origin::Body { optional: false } => return Err(seed.refuse(&field.name, Rule::Missing)),
                _ => {}
            }
        }
        Ok(slots)
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
    type Value = Slot;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Slot, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for OneValue<'_> {
    type Value = Slot;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the field's type")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Slot, E> {
        match self.field.kind {
            FieldType::Text | FieldType::Date | FieldType::Time => Ok(self.seed.text(text)),
            // Zero-padded at once, so that a record holds what a reply would read back.
            FieldType::Digits if !text.is_empty() && text.is_ascii() => Ok(self.seed.padded(text, self.field.length)),
            FieldType::Digits => Err(self.refuse(if text.is_empty() { Rule::Empty } else { Rule::NotDigits })),
            _ => Err(self.refuse(Rule::WrongType)),
        }
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Slot, E> {
        match self.field.kind {
            FieldType::Number => Ok(Slot::Number(number)),
            FieldType::Amount => i64::try_from(number).map(Slot::Amount).map_err(|_| self.refuse(Rule::OutOfRange)),
            _ => Err(self.refuse(Rule::WrongType)),
        }
    }

    fn visit_i64<E: serde::de::Error>(self, _negative: i64) -> Result<Slot, E> {
        Err(self.refuse(if self.is_number() { Rule::OutOfRange } else { Rule::WrongType }))
    }

    fn visit_f64<E: serde::de::Error>(self, _float: f64) -> Result<Slot, E> {
        Err(self.refuse(if self.is_number() { Rule::NotAPlainInteger } else { Rule::WrongType }))
    }

    fn visit_bool<E: serde::de::Error>(self, _flag: bool) -> Result<Slot, E> {
        Err(self.refuse(Rule::WrongType))
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Slot, E> {
        Err(self.refuse(Rule::WrongType))
    }

    fn visit_map<A: MapAccess<'de>>(self, _map: A) -> Result<Slot, A::Error> {
        Err(self.refuse(Rule::WrongType))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Slot, A::Error> {
        if self.field.kind != FieldType::Group {
            return Err(self.refuse(Rule::WrongType));
        }
        let mut records = Vec::new();
        while let Some(slots) = seq.next_element_seed(Fields { seed: self.seed, fields: self.field.fields() })? {
            records.push(slots);
        }
        Ok(Slot::Records(records))
    }
}
