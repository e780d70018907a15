//! A configuration file and the environment as one set of texts, each with its place. Knows TOML and where a line is;
//! what a setting means is `config`'s.

use std::collections::BTreeMap;
use std::fmt;
use std::net::ToSocketAddrs as _;
use std::time::Duration;

use toml::de::{DeTable, DeValue};

use super::settings::{Default, Setting, Unit, of_section};

/// Something that is wrong, and where. Says the rule, never a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// `file:line`, or an environment variable's name.
    pub place: String,
    /// The rule.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

#[derive(Debug, Clone)]
struct Given {
    text: String,
    place: String,
}

/// One table of the file, with what the environment puts over it.
#[derive(Debug)]
pub(super) struct Section {
    /// `institution` for `institution.core-banking`.
    kind: &'static str,
    /// `core-banking` for `institution.core-banking`; empty for plain sections.
    pub(super) name: String,
    place: String,
    given: BTreeMap<String, Given>,
}

/// All tables.
#[derive(Debug, std::default::Default)]
pub(super) struct Document {
    sections: Vec<Section>,
    pub(super) problems: Vec<Problem>,
}

const PLAIN: [&str; 11] = [
    "server",
    "ledger",
    "redis",
    "budget",
    "cache",
    "resolver",
    "reconciliation",
    "client_limit",
    "log",
    "layouts",
    "demo",
];
pub(super) const PREFIX: &str = "GWANMUN_";

impl Document {
    /// Reads the file's text and the environment's variables; those without our prefix are passed over.
    pub(super) fn read(file: &str, text: &str, environment: &[(String, String)]) -> Self {
        let mut document = Self::default();
        let (table, errors) = DeTable::parse_recoverable(text);
        let place = |at: usize| {
            let before = text.get(..at).unwrap_or(text);
            format!("{file}:{}", before.matches('\n').count() + 1)
        };
        for error in errors {
            let message = error.message().to_owned();
            document.problem(place(error.span().map_or(0, |span| span.start)), message);
        }
        document.sections.extend(PLAIN.map(|kind| Section::new(kind, "", format!("{file}:1"))));
        for (key, value) in table.get_ref() {
            let at = place(key.span().start);
            document.take_table(key.get_ref(), value.get_ref(), at, &place);
        }
        for (name, value) in environment {
            if let Some(path) = name.strip_prefix(PREFIX) {
                document.take_variable(name, path, value);
            }
        }
        document
    }

    pub(super) fn problem(&mut self, place: impl Into<String>, message: impl Into<String>) {
        self.problems.push(Problem { place: place.into(), message: message.into() });
    }

    fn take_table(&mut self, key: &str, value: &DeValue<'_>, at: String, place: &dyn Fn(usize) -> String) {
        match (key, value) {
            (_, DeValue::Table(table)) if PLAIN.contains(&key) => {
                let index = self.sections.iter().position(|section| section.kind == key).unwrap_or_default();
                self.fill(index, table, at, place);
            }
            ("institution", DeValue::Table(institutions)) => {
                for (name, value) in institutions {
                    let at = place(name.span().start);
                    let DeValue::Table(table) = value.get_ref() else {
                        self.problem(at, "an institution is a table");
                        continue;
                    };
                    self.sections.push(Section::new("institution", name.get_ref(), at.clone()));
                    self.fill(self.sections.len() - 1, table, at, place);
                }
            }
            ("route" | "client", DeValue::Array(entries)) => {
                let kind = if key == "route" { "route" } else { "client" };
                for entry in entries {
                    let at = place(entry.span().start);
                    let DeValue::Table(table) = entry.get_ref() else {
                        self.problem(at, format!("each `{kind}` is a table, written as [[{kind}]]"));
                        continue;
                    };
                    self.sections.push(Section::new(kind, "", at.clone()));
                    self.fill(self.sections.len() - 1, table, at, place);
                }
            }
            _ => self.problem(at, format!("there is no section `{key}`, or it is not written as a table")),
        }
    }

    fn fill(&mut self, index: usize, table: &DeTable<'_>, at: String, place: &dyn Fn(usize) -> String) {
        let Some(section) = self.sections.get_mut(index) else { return };
        section.place = at;
        let mut problems = Vec::new();
        for (key, value) in table {
            let place = place(key.span().start);
            let key = key.get_ref().as_ref();
            if !of_section(section.kind).any(|setting| setting.name == key) {
                problems.push((place, format!("there is no setting `{key}` in `{}`", section.kind)));
            } else if let Some(text) = text_of(value.get_ref()) {
                section.given.insert(key.to_owned(), Given { text, place });
            } else {
                problems.push((place, format!("`{key}` has a type that no setting has")));
            }
        }
        for (place, message) in problems {
            self.problem(place, message);
        }
    }

    fn take_variable(&mut self, variable: &str, path: &str, value: &str) {
        let parts: Vec<_> = path.split("__").collect();
        let upper = |text: &str| text.to_uppercase().replace('-', "_");
        let section = match &parts[..] {
            [section, _] => {
                self.sections.iter_mut().find(|known| known.name.is_empty() && upper(known.kind) == *section)
            }
            ["INSTITUTION", name, _] => {
                self.sections.iter_mut().find(|known| known.kind == "institution" && upper(&known.name) == *name)
            }
            _ => None,
        };
        let section = section.filter(|section| !matches!(section.kind, "route" | "client"));
        let setting = section.as_ref().and_then(|section| {
            of_section(section.kind).find(|setting| Some(upper(setting.name).as_str()) == parts.last().copied())
        });
        match (section, setting) {
            (Some(section), Some(setting)) => {
                let given = Given { text: value.to_owned(), place: variable.to_owned() };
                section.given.insert(setting.name.to_owned(), given);
            }
            _ => self.problem(variable, "this environment variable names no setting"),
        }
    }

    /// The plain section of this name.
    pub(super) fn section(&mut self, kind: &str) -> Reader<'_> {
        let index = self.sections.iter().position(|section| section.kind == kind).unwrap_or_default();
        self.reader(index)
    }

    /// Indexes of all institutions, routes or clients.
    pub(super) fn entries(&self, kind: &str) -> Vec<usize> {
        let indexed = self.sections.iter().enumerate();
        indexed.filter(|(_, section)| section.kind == kind).map(|(index, _)| index).collect()
    }

    /// A reader of one entry.
    pub(super) fn reader(&mut self, index: usize) -> Reader<'_> {
        Reader { document: self, index }
    }
}

impl Section {
    fn new(kind: &'static str, name: &str, place: String) -> Self {
        Self { kind, name: name.to_owned(), place, given: BTreeMap::new() }
    }
}

fn text_of(value: &DeValue<'_>) -> Option<String> {
    Some(match value {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Array(items) => {
            items.iter().map(|item| text_of(item.get_ref())).collect::<Option<Vec<_>>>()?.join(",")
        }
        _ => return None,
    })
}

/// Reads the settings of one section; what is wrong is noted in the document and a harmless value stands in.
pub(super) struct Reader<'a> {
    document: &'a mut Document,
    index: usize,
}

impl Reader<'_> {
    fn section(&self) -> Option<&Section> {
        self.document.sections.get(self.index)
    }

    /// The section's own name.
    pub(super) fn name(&self) -> String {
        self.section().map(|section| section.name.clone()).unwrap_or_default()
    }

    /// Where the section stands.
    pub(super) fn place(&self) -> String {
        self.section().map(|section| section.place.clone()).unwrap_or_default()
    }

    /// Where a setting stands, or else its section.
    pub(super) fn place_of(&self, name: &str) -> String {
        let given = self.section().and_then(|section| section.given.get(name));
        given.map_or_else(|| self.place(), |given| given.place.clone())
    }

    /// Notes a problem with a setting.
    pub(super) fn refuse(&mut self, name: &str, message: impl Into<String>) {
        let place = self.place_of(name);
        self.document.problem(place, message);
    }

    fn setting(&self, name: &str) -> Option<&'static Setting> {
        of_section(self.section()?.kind).find(|setting| setting.name == name)
    }

    /// The text, or its default, or nothing.
    pub(super) fn maybe(&mut self, name: &str) -> Option<String> {
        let setting = self.setting(name)?;
        if let Some(given) = self.section().and_then(|section| section.given.get(name)) {
            let text = given.text.clone();
            if let Unit::Choice(words) = setting.unit
                && !words.contains(&text.as_str())
            {
                self.refuse(name, format!("`{name}` must be one of: {}", words.join(", ")));
                return words.first().map(|word| (*word).to_owned());
            }
            return Some(text);
        }
        match setting.default {
            Default::Is(text) => Some(text.to_owned()),
            Default::None => None,
            Default::Required => {
                self.refuse(name, format!("`{name}` is required"));
                None
            }
        }
    }

    pub(super) fn text(&mut self, name: &str) -> String {
        self.maybe(name).unwrap_or_default()
    }

    pub(super) fn list(&mut self, name: &str) -> Vec<String> {
        let text = self.text(name);
        text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()
    }

    /// A count within bounds.
    pub(super) fn count(&mut self, name: &str, bounds: std::ops::RangeInclusive<u64>) -> u64 {
        let least = *bounds.start();
        let Some(text) = self.maybe(name) else { return least };
        match text.parse() {
            Ok(number) if bounds.contains(&number) => number,
            _ => {
                let message = format!("`{name}` must be a whole number from {least} to {}", bounds.end());
                self.refuse(name, message);
                least
            }
        }
    }

    /// A count within bounds, if it is given.
    pub(super) fn maybe_count(&mut self, name: &str, bounds: std::ops::RangeInclusive<u64>) -> Option<u64> {
        self.maybe(name).map(|_| self.count(name, bounds))
    }

    pub(super) fn size(&mut self, name: &str, bounds: std::ops::RangeInclusive<u64>) -> usize {
        usize::try_from(self.count(name, bounds)).unwrap_or(usize::MAX)
    }

    pub(super) fn bytes(&mut self, name: &str, least: u64) -> u64 {
        let text = self.text(name);
        match with_unit(&text, &[("KiB", 1_024), ("MiB", 1_048_576), ("GiB", 1_073_741_824), ("", 1)]) {
            Some(bytes) if bytes >= least => bytes,
            _ => {
                self.refuse(name, format!("`{name}` must be bytes such as 16KiB, at least {least}"));
                least
            }
        }
    }

    /// A time that is longer than zero, if it is given.
    pub(super) fn maybe_time(&mut self, name: &str) -> Option<Duration> {
        self.maybe(name).map(|_| self.time(name))
    }

    /// A time that is longer than zero.
    pub(super) fn time(&mut self, name: &str) -> Duration {
        let text = self.text(name);
        match with_unit(&text, &[("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)]) {
            Some(milliseconds) if (1..=86_400_000).contains(&milliseconds) => Duration::from_millis(milliseconds),
            _ => {
                self.refuse(name, format!("`{name}` must be a time such as 200ms, 5s or 2m, from 1ms to 24h"));
                Duration::from_secs(1)
            }
        }
    }

    pub(super) fn flag(&mut self, name: &str) -> bool {
        let text = self.text(name);
        if text != "true" && text != "false" {
            self.refuse(name, format!("`{name}` must be true or false"));
        }
        text == "true"
    }

    /// `host:port`; a literal address is checked here, a host name when it is used.
    pub(super) fn address(&mut self, name: &str) -> String {
        let Some(text) = self.maybe(name) else { return String::new() };
        let port_is_good =
            text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
        let literal = text.starts_with(|c: char| c.is_ascii_digit() || c == '[');
        if !port_is_good || (literal && text.to_socket_addrs().is_err()) {
            self.refuse(name, format!("`{name}` must be host:port"));
        }
        text
    }

    /// A name of our own vocabulary: letters, digits and a few signs, so that it can stand in logs and metrics.
    pub(super) fn word(&mut self, name: &str) -> String {
        let text = self.text(name);
        if !is_word(&text) {
            self.refuse(name, format!("`{name}` must be 1 to 64 of A-Z, a-z, 0-9, dot, hyphen, underscore"));
        }
        text
    }
}

/// A whole number with the first unit that fits, in the smallest unit.
fn with_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    units.iter().find_map(|(unit, factor)| text.strip_suffix(unit)?.parse::<u64>().ok()?.checked_mul(*factor))
}

/// Whether a text can be a name of our own: it stands in logs, metrics and the ledger.
#[must_use]
pub fn is_word(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    (1..=64).contains(&text.len()) && text.bytes().all(plain)
}
