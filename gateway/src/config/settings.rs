//! Every setting: section, name, unit, default, and what it is for. The reader refuses what is not in this table, and the
//! table in docs/OPERATIONS.md is rendered from it.

mod entries;
mod plain;

use entries::ENTRIES;
use plain::PLAIN;

/// What a value is, and so how its text is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// `host:port`.
    Address,
    /// A whole number.
    Count,
    /// Bytes: `16KiB`, `1GiB`, or a plain number.
    Bytes,
    /// A time: `200ms`, `5s`, `2m`.
    Time,
    /// Text.
    Text,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// `true` or `false`.
    Flag,
    /// A folder.
    Folder,
    /// A list of texts.
    List,
    /// A secret; never shown.
    Secret,
}

impl Unit {
    /// The word in the documentation.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Address => "host:port".to_owned(),
            Self::Count => "count".to_owned(),
            Self::Bytes => "bytes".to_owned(),
            Self::Time => "time".to_owned(),
            Self::Text => "text".to_owned(),
            Self::Choice(words) => words.join(" \\| "),
            Self::Flag => "true \\| false".to_owned(),
            Self::Folder => "folder".to_owned(),
            Self::List => "list".to_owned(),
            Self::Secret => "secret".to_owned(),
        }
    }
}

/// What stands when a setting is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Default {
    /// This.
    Is(&'static str),
    /// The setting must be given.
    Required,
    /// Nothing.
    None,
}

/// One setting.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// The table in the file; `institution` stands for each `institution.NAME`, `route` and `client` for each entry.
    pub section: &'static str,
    /// The key.
    pub name: &'static str,
    /// What the value is.
    pub unit: Unit,
    /// What stands when it is left out.
    pub default: Default,
    /// What it is for.
    pub about: &'static str,
}

const fn is(
    section: &'static str,
    name: &'static str,
    unit: Unit,
    default: &'static str,
    about: &'static str,
) -> Setting {
    Setting { section, name, unit, default: Default::Is(default), about }
}

const fn required(section: &'static str, name: &'static str, unit: Unit, about: &'static str) -> Setting {
    Setting { section, name, unit, default: Default::Required, about }
}

const fn optional(section: &'static str, name: &'static str, unit: Unit, about: &'static str) -> Setting {
    Setting { section, name, unit, default: Default::None, about }
}

/// All settings, in the order of the documentation.
pub fn all() -> impl Iterator<Item = &'static Setting> {
    PLAIN.iter().chain(ENTRIES)
}

/// The settings of one section.
pub(super) fn of_section(section: &str) -> impl Iterator<Item = &'static Setting> + '_ {
    all().filter(move |setting| setting.section == section)
}

/// The table for docs/OPERATIONS.md.
#[must_use]
pub fn render_markdown() -> String {
    let mut text = String::from("| section | setting | unit | default | what it is for |\n|---|---|---|---|---|\n");
    for setting in all() {
        let default = match setting.default {
            Default::Is("") => "none".to_owned(),
            Default::Is(text) => format!("`{text}`"),
            Default::Required => "**required**".to_owned(),
            Default::None => "none".to_owned(),
        };
        let section = match setting.section {
            "institution" => "institution.NAME",
            "route" => "[[route]]",
            "client" => "[[client]]",
            section => section,
        };
        text.push_str(&format!(
            "| `{section}` | `{}` | {} | {default} | {} |\n",
            setting.name,
            setting.unit.name(),
            setting.about
        ));
    }
    text
}
