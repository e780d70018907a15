//! What a layout file may say. Every rule about layouts lives here; each fault names its line.

use std::collections::HashSet;
use std::sync::Arc;

use serde::Deserialize;
use toml::Spanned;

use super::Layout;
use crate::charset::Charset;
use crate::error::LayoutError;
use crate::field::{Field, FieldType, Fill, Origin};

/// Longest field and longest message, in bytes; no framing carries more in one piece that a host would read.
const LENGTH_MAX: usize = 65_535;

pub(super) fn check(raw: RawLayout, faults: &mut Faults<'_>) -> Option<Layout> {
    if raw.name.get_ref().is_empty() {
        faults.add(raw.name.span().start, "a layout needs a name".to_owned());
    }
    let charset = Charset::by_name(raw.charset.get_ref());
    if charset.is_none() {
        faults.add(raw.charset.span().start, "unknown charset; use `euc-kr` or `cp949`".to_owned());
    }
    let charset = charset?;
    let fields = check_fields(&raw.field, charset, faults, false);
    let lengths = fields.iter().filter(|field| field.kind != FieldType::Group).map(|field| field.length);
    let header_length = lengths.fold(0, usize::saturating_add);
    if header_length > LENGTH_MAX {
        faults.add(raw.length.span().start, format!("a message has at most {LENGTH_MAX} bytes"));
    }
    if header_length != *raw.length.get_ref() {
        let declared = raw.length.get_ref();
        let message = format!("the fields add up to {header_length} bytes, not to the declared {declared}");
        faults.add(raw.length.span().start, message);
    }
    let line = faults.line_of(raw.name.span().start);
    let (version, public) = (raw.version, raw.public);
    let template = |fields: &[Field]| -> Vec<u8> {
        // A longer one is a fault, and the layout is not used.
        let flat = fields.iter().filter(|field| field.kind != FieldType::Group && field.length <= LENGTH_MAX);
        flat.flat_map(Field::template).collect()
    };
    let group = fields.last().filter(|field| field.kind == FieldType::Group);
    let templates = (template(&fields), group.map(|group| template(&group.fields)).unwrap_or_default());
    let places = |fields: &[Field]| fields.iter().enumerate().filter_map(|(index, field)| field.place(index)).collect();
    let places = (places(&fields), group.map(|group| places(&group.fields)).unwrap_or_default());
    let has_group = group.is_some();
    let differences = (0..).zip(&fields).filter_map(|(index, field)| Some((index, field.differs_from?))).collect();
    let name = raw.name.into_inner();
    Some(Layout {
        name,
        version,
        public,
        charset,
        fields,
        header_length,
        templates,
        places,
        has_group,
        differences,
        line,
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawLayout {
    name: Spanned<String>,
    /// What the message is, for people who read the file.
    #[serde(rename = "description")]
    _description: Option<String>,
    #[serde(default = "first_version")]
    version: u32,
    #[serde(default)]
    public: bool,
    charset: Spanned<String>,
    length: Spanned<usize>,
    field: Vec<Spanned<RawField>>,
}

fn first_version() -> u32 {
    1
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
struct RawField {
    name: Option<String>,
    #[serde(rename = "type")]
    kind: Spanned<String>,
    length: usize,
    constant: Option<String>,
    fill: Option<String>,
    #[serde(default)]
    echo: bool,
    #[serde(default)]
    optional: bool,
    min: Option<u64>,
    max: Option<u64>,
    differs_from: Option<String>,
    count: Option<String>,
    total_length: Option<String>,
    #[serde(default)]
    field: Vec<Spanned<RawField>>,
}

pub(super) struct Faults<'a> {
    file: &'a str,
    text: &'a str,
    found: Vec<LayoutError>,
}

impl<'a> Faults<'a> {
    pub(super) fn of(file: &'a str, text: &'a str) -> Self {
        Self { file, text, found: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    pub(super) fn into_found(self) -> Vec<LayoutError> {
        self.found
    }

    pub(super) fn add(&mut self, at: usize, message: String) {
        let line = self.line_of(at);
        self.found.push(LayoutError { file: self.file.to_owned(), line, message });
    }

    fn line_of(&self, at: usize) -> usize {
        let before = self.text.get(..at).unwrap_or(self.text);
        before.matches('\n').count() + 1
    }
}

fn check_fields(raw: &[Spanned<RawField>], charset: Charset, faults: &mut Faults<'_>, inside: bool) -> Vec<Field> {
    let mut fields: Vec<Field> = Vec::with_capacity(raw.len());
    let mut names = HashSet::new();
    let mut fills = Vec::new();
    let mut offset: usize = 0;
    for (index, spanned) in raw.iter().enumerate() {
        let (at, raw_field) = (spanned.span().start, spanned.get_ref());
        let Some(mut field) = check_field(raw_field, at, offset, charset, faults) else { continue };
        if raw_field.name.is_some() && !names.insert(Arc::clone(&field.name)) {
            faults.add(at, format!("the name `{}` stands twice", field.name));
        }
        if let Origin::Filled(fill) = field.origin {
            if fills.contains(&fill) {
                faults.add(at, format!("`{}` is filled like an earlier field", field.name));
            }
            fills.push(fill);
        }
        if inside && (raw_field.differs_from.is_some() || raw_field.echo || raw_field.fill.is_some()) {
            faults
                .add(at, format!("`{}` stands in a group, where differs_from, echo and fill mean nothing", field.name));
        }
        if let Some(other) = &raw_field.differs_from {
            field.differs_from = check_difference(&field, other, at, &fields, faults);
        }
        offset = offset.saturating_add(if field.kind == FieldType::Group { 0 } else { field.length });
        fields.push(field);
        if raw_field.kind.get_ref() == "group" {
            if inside || index + 1 != raw.len() {
                faults.add(at, "a group must be the last field of the message".to_owned());
            }
            bind_counters(raw_field, at, &mut fields, faults);
        }
    }
    fields
}

/// Two fields can only be told apart if they are alike on the wire and both come from the body.
fn check_difference(
    field: &Field,
    other: &str,
    at: usize,
    earlier: &[Field],
    faults: &mut Faults<'_>,
) -> Option<usize> {
    let alike = |known: &Field| {
        let from_body = |field: &Field| matches!(field.origin, Origin::Body { optional: false });
        known.kind == field.kind && known.length == field.length && from_body(known) && from_body(field)
    };
    let found = earlier.iter().position(|known| known.name() == other && alike(known));
    if found.is_none() {
        faults.add(
            at,
            format!("differs_from names `{other}`, which is no earlier body field of the same type and length"),
        );
    }
    found
}

/// Marks the fields that a group names as its count and total length. They must stand before it, count first.
fn bind_counters(group: &RawField, at: usize, fields: &mut [Field], faults: &mut Faults<'_>) {
    let mut bind = |name: &str, origin: Origin, role: &str| {
        let found = fields.iter().position(|field| field.name() == name && field.kind == FieldType::Number);
        match found.and_then(|index| fields.get_mut(index)) {
            Some(field) => field.origin = origin,
            None => faults.add(at, format!("the group's {role} field `{name}` is not an earlier number field")),
        }
        found
    };
    let Some(count) = &group.count else {
        faults.add(at, "a group needs the name of its count field".to_owned());
        return;
    };
    let count = bind(count, Origin::Count, "count");
    let total = group.total_length.as_ref().and_then(|name| bind(name, Origin::TotalLength, "total length"));
    if let (Some(count), Some(total)) = (count, total)
        && total <= count
    {
        faults.add(at, "the total length must stand behind the count".to_owned());
    }
}

fn check_field(raw: &RawField, at: usize, offset: usize, charset: Charset, faults: &mut Faults<'_>) -> Option<Field> {
    let kind = match raw.kind.get_ref().as_str() {
        "text" => FieldType::Text,
        "digits" => FieldType::Digits,
        "number" => FieldType::Number,
        "amount" => FieldType::Amount,
        "date" => FieldType::Date,
        "time" => FieldType::Time,
        "filler" => FieldType::Filler,
        "group" => FieldType::Group,
        _ => {
            faults.add(raw.kind.span().start, "unknown field type".to_owned());
            return None;
        }
    };
    let name = match &raw.name {
        Some(name) if !name.is_empty() => Arc::from(name.as_str()),
        None if kind == FieldType::Filler => Arc::from(""),
        _ => {
            faults.add(at, "a field needs a name".to_owned());
            return None;
        }
    };
    let needed = match kind {
        FieldType::Date => Some(8),
        FieldType::Time => Some(6),
        _ => None,
    };
    if !(1..=LENGTH_MAX).contains(&raw.length) || needed.is_some_and(|needed| needed != raw.length) {
        faults.add(at, format!("`{name}` has a length that its type cannot have"));
        return None;
    }
    let numeric = matches!(kind, FieldType::Number | FieldType::Amount);
    if !numeric && (raw.min.is_some() || raw.max.is_some()) {
        faults.add(at, format!("`{name}` is no number, so it cannot have min or max"));
    }
    if kind != FieldType::Group && (raw.count.is_some() || raw.total_length.is_some() || !raw.field.is_empty()) {
        faults.add(at, format!("`{name}` is no group, so it cannot have count, total_length or fields"));
    }
    let widest =
        u32::try_from(raw.length).ok().and_then(|digits| 10_u64.checked_pow(digits)).map_or(u64::MAX, |n| n - 1);
    let (min, max) = (raw.min.unwrap_or(0), raw.max.unwrap_or(widest));
    if min > max || max > widest {
        faults.add(at, format!("`{name}` has bounds that contradict each other or its length"));
    }
    let mut field = Field {
        name,
        kind,
        offset,
        length: raw.length,
        origin: Origin::Body { optional: raw.optional },
        echo: raw.echo,
        min,
        max,
        differs_from: None,
        fields: Vec::new(),
    };
    field.origin = check_origin(raw, at, &field, charset, faults);
    if kind == FieldType::Group {
        field.fields = check_fields(&raw.field, charset, faults, true);
        let sum = field.fields.iter().map(|inner| inner.length).fold(0, usize::saturating_add);
        if sum != raw.length {
            faults.add(
                at,
                format!("one record of `{}` adds up to {sum} bytes, not to the declared {}", field.name, raw.length),
            );
        }
    }
    Some(field)
}

fn check_origin(raw: &RawField, at: usize, field: &Field, charset: Charset, faults: &mut Faults<'_>) -> Origin {
    let mut refuse = |message: &str| faults.add(at, format!("`{}` {message}", field.name));
    let ways = [raw.constant.is_some(), raw.fill.is_some(), raw.optional, raw.echo];
    if ways.iter().filter(|way| **way).count() > 1 {
        refuse("can only be one of constant, filled, optional and echo");
    }
    if raw.optional && field.kind != FieldType::Text {
        refuse("is not text, and only text may be optional");
    }
    if let Some(constant) = &raw.constant {
        let mut bytes = if field.length <= LENGTH_MAX { field.template() } else { Vec::new() };
        let fits = field.kind == FieldType::Text && field.write_text(constant, charset, &mut bytes).is_ok();
        if !fits {
            refuse("has a constant that does not fit its length, charset or type (constants are text)");
        }
        return Origin::Constant(bytes.into());
    }
    if let Some(fill) = &raw.fill {
        let (fill, kind, length) = match fill.as_str() {
            "transaction-id" => (Fill::TransactionId, FieldType::Text, 22),
            "business-date" => (Fill::BusinessDate, FieldType::Date, 8),
            "time" => (Fill::Time, FieldType::Time, 6),
            _ => {
                refuse("has an unknown fill; use `transaction-id`, `business-date` or `time`");
                return field.origin.clone();
            }
        };
        if field.kind != kind || field.length != length {
            refuse("has a type or length that its fill does not have");
        }
        return Origin::Filled(fill);
    }
    field.origin.clone()
}
