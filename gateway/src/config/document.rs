//! A configuration file and the environment as one set of texts, each with its place. Knows TOML and where a line is;
//! what a setting means is `config`'s.

mod reader;

use std::collections::BTreeMap;
use std::fmt;

use toml::de::{DeTable, DeValue};

use super::settings::of_section;
pub(super) use reader::Reader;
pub use reader::is_word;

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
        // Looked up once for each setting: counting lines each time, 20,000 keys took 45 seconds.
        let line_ends: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
        let place = |at: usize| format!("{file}:{}", line_ends.partition_point(|end| *end < at) + 1);
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
