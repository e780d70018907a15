//! A layout: one message (전문) as a list of fields. It is read from TOML and checked by `rules`, so a layout that exists is
//! one that can be walked without further checks.

mod rules;

use crate::charset::Charset;
use crate::error::{FieldError, LayoutError, Rule};
use crate::field::{Field, Fill, Origin, Place};
use rules::Faults;

/// A message's fields in order, with offsets and total length computed and checked.
#[derive(Debug, Clone)]
pub struct Layout {
    name: String,
    version: u32,
    public: bool,
    charset: Charset,
    fields: Vec<Field>,
    header_length: usize,
    /// With constants and padding and no value yet: everything but the records of a group, and one such record.
    templates: (Vec<u8>, Vec<u8>),
    /// Where values are written into the template; the same of one record.
    places: (Vec<Place>, Vec<Place>),
    /// Whether the last field is one.
    has_group: bool,
    /// Pairs of fields that must not hold the same.
    differences: Vec<(usize, usize)>,
    /// Where its name stands in the file.
    line: usize,
}

impl Layout {
    /// Reads and checks one layout file.
    ///
    /// # Errors
    /// Every fault, each with its line.
    pub fn from_toml(file: &str, text: &str) -> Result<Self, Vec<LayoutError>> {
        let mut faults = Faults::of(file, text);
        let raw = match toml::from_str(text) {
            Ok(raw) => raw,
            Err(error) => {
                let at = error.span().map_or(0, |span| span.start);
                faults.add(at, error.message().to_owned());
                return Err(faults.into_found());
            }
        };
        let layout = rules::check(raw, &mut faults);
        match layout {
            Some(layout) if faults.is_empty() => Ok(layout),
            _ => Err(faults.into_found()),
        }
    }

    /// The name that routes and tools use.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn line(&self) -> usize {
        self.line
    }

    /// The version that the file states; it stands in every ledger row.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Whether the file states that the message holds nothing about a person, so that it may be kept and given to others.
    #[must_use]
    pub fn is_public(&self) -> bool {
        self.public
    }

    /// The charset of its text fields.
    #[must_use]
    pub fn charset(&self) -> Charset {
        self.charset
    }

    /// Its fields in order. A group is one field.
    #[must_use]
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// Length in bytes of everything but the records of a group.
    #[must_use]
    pub fn header_length(&self) -> usize {
        self.header_length
    }

    /// The bytes of a message before its values are written, without the records of a group.
    pub(crate) fn template(&self) -> &[u8] {
        &self.templates.0
    }

    /// The same of one record.
    pub(crate) fn record_template(&self) -> &[u8] {
        &self.templates.1
    }

    /// Where values are written, without the group.
    pub(crate) fn places(&self) -> &[Place] {
        &self.places.0
    }

    /// The same in one record.
    pub(crate) fn record_places(&self) -> &[Place] {
        &self.places.1
    }

    /// The index of a field, to be looked up once when a route is loaded.
    #[must_use]
    pub fn index_of(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|field| field.name() == name)
    }

    /// The field of this name.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name() == name)
    }

    /// The index of the field that the gateway fills in this way.
    #[must_use]
    pub fn index_of_fill(&self, fill: Fill) -> Option<usize> {
        self.fields.iter().position(|field| field.origin == Origin::Filled(fill))
    }

    /// The group of repeated records, if the message has one.
    #[must_use]
    pub fn group(&self) -> Option<&Field> {
        if self.has_group { self.fields.last() } else { None }
    }

    /// Length in bytes of the message with this many records.
    #[must_use]
    pub fn length_with(&self, records: usize) -> usize {
        let group = self.group().map_or(0, |group| group.length.saturating_mul(records));
        self.header_length.saturating_add(group)
    }

    /// Checks the pairs of fields that must differ, as they stand on the wire: `7` and `007` are one account.
    pub(crate) fn check_differences(&self, message: &[u8]) -> Result<(), FieldError> {
        for (one, other) in &self.differences {
            if let (Some(field), Some(other)) = (self.fields.get(*one), self.fields.get(*other))
                && self.bytes_of(field, message) == self.bytes_of(other, message)
            {
                return Err(FieldError::new(&field.name, Rule::MustDiffer));
            }
        }
        Ok(())
    }

    /// The bytes of a field inside an encoded message.
    #[must_use]
    pub fn bytes_of<'m>(&self, field: &Field, message: &'m [u8]) -> Option<&'m [u8]> {
        message.get(field.offset..field.offset + field.length)
    }
}
