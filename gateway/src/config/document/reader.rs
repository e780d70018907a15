//! Reading one section's settings: each by its unit, with its rule.

use std::net::ToSocketAddrs as _;
use std::time::Duration;

use super::{Document, Section};
use crate::config::settings::{Default, Setting, Unit, of_section};

/// Reads the settings of one section; what is wrong is noted in the document and a harmless value stands in.
pub(in crate::config) struct Reader<'a> {
    pub(super) document: &'a mut Document,
    pub(super) index: usize,
}

impl Reader<'_> {
    fn section(&self) -> Option<&Section> {
        self.document.sections.get(self.index)
    }

    /// The section's own name.
    pub(in crate::config) fn name(&self) -> String {
        self.section().map(|section| section.name.clone()).unwrap_or_default()
    }

    /// Where the section stands.
    pub(in crate::config) fn place(&self) -> String {
        self.section().map(|section| section.place.clone()).unwrap_or_default()
    }

    /// Where a setting stands, or else its section.
    pub(in crate::config) fn place_of(&self, name: &str) -> String {
        let given = self.section().and_then(|section| section.given.get(name));
        given.map_or_else(|| self.place(), |given| given.place.clone())
    }

    /// Notes a problem with a setting.
    pub(in crate::config) fn refuse(&mut self, name: &str, message: impl Into<String>) {
        let place = self.place_of(name);
        self.document.problem(place, message);
    }

    fn setting(&self, name: &str) -> Option<&'static Setting> {
        of_section(self.section()?.kind).find(|setting| setting.name == name)
    }

    /// The text, or its default, or nothing.
    pub(in crate::config) fn maybe(&mut self, name: &str) -> Option<String> {
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

    pub(in crate::config) fn text(&mut self, name: &str) -> String {
        self.maybe(name).unwrap_or_default()
    }

    pub(in crate::config) fn list(&mut self, name: &str) -> Vec<String> {
        let text = self.text(name);
        text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()
    }

    /// A count within bounds.
    pub(in crate::config) fn count(&mut self, name: &str, bounds: std::ops::RangeInclusive<u64>) -> u64 {
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
    pub(in crate::config) fn maybe_count(&mut self, name: &str, bounds: std::ops::RangeInclusive<u64>) -> Option<u64> {
        self.maybe(name).map(|_| self.count(name, bounds))
    }

    pub(in crate::config) fn size(&mut self, name: &str, bounds: std::ops::RangeInclusive<u64>) -> usize {
        usize::try_from(self.count(name, bounds)).unwrap_or(usize::MAX)
    }

    pub(in crate::config) fn bytes(&mut self, name: &str, least: u64) -> u64 {
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
    pub(in crate::config) fn maybe_time(&mut self, name: &str) -> Option<Duration> {
        self.maybe(name).map(|_| self.time(name))
    }

    /// A time that is longer than zero.
    pub(in crate::config) fn time(&mut self, name: &str) -> Duration {
        let text = self.text(name);
        match with_unit(&text, &[("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)]) {
            Some(milliseconds) if (1..=86_400_000).contains(&milliseconds) => Duration::from_millis(milliseconds),
            _ => {
                self.refuse(name, format!("`{name}` must be a time such as 200ms, 5s or 2m, from 1ms to 24h"));
                Duration::from_secs(1)
            }
        }
    }

    pub(in crate::config) fn flag(&mut self, name: &str) -> bool {
        let text = self.text(name);
        if text != "true" && text != "false" {
            self.refuse(name, format!("`{name}` must be true or false"));
        }
        text == "true"
    }

    /// `host:port`; a literal address is checked here, a host name when it is used.
    pub(in crate::config) fn address(&mut self, name: &str) -> String {
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
    pub(in crate::config) fn word(&mut self, name: &str) -> String {
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
