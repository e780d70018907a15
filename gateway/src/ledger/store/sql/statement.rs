//! A statement and its values. Its text comes from the program alone: every piece is `'static`.
//!
//! A value's place is written `?`, as SQLite has it. A numbered place has a name there, and looking a name up costs as much as there
//! are names: a statement of 500 rows took a hundred times as long. PostgreSQL wants them numbered.

use std::sync::Arc;

use sqlx::Arguments;
use sqlx::postgres::PgArguments;
use sqlx::sqlite::SqliteArguments;

use crate::ledger::store::StoreError;

/// A bound value.
#[derive(Debug, Clone)]
pub(in crate::ledger::store) enum Arg {
    Int(Option<i64>),
    Text(Option<Arc<str>>),
    Bytes(Option<Vec<u8>>),
}

macro_rules! args {
    ($($from:ty => |$value:ident| $arg:expr;)*) => {
        $(impl From<$from> for Arg {
            fn from($value: $from) -> Self {
                $arg
            }
        })*
    };
}

args! {
    i64 => |value| Self::Int(Some(value));
    Option<i64> => |value| Self::Int(value);
    u32 => |value| Self::Int(Some(i64::from(value)));
    u64 => |value| Self::Int(Some(i64::try_from(value).unwrap_or(i64::MAX)));
    &str => |value| Self::Text(Some(value.into()));
    String => |value| Self::Text(Some(value.into()));
    &String => |value| Self::Text(Some(value.as_str().into()));
    Option<String> => |value| Self::Text(value.map(Into::into));
    Option<&str> => |value| Self::Text(value.map(Into::into));
    &Option<String> => |value| Self::Text(value.as_deref().map(Into::into));
    &[u8] => |value| Self::Bytes(Some(value.to_vec()));
    Vec<u8> => |value| Self::Bytes(Some(value));
    &Vec<u8> => |value| Self::Bytes(Some(value.clone()));
    Option<Vec<u8>> => |value| Self::Bytes(value);
    &Option<Vec<u8>> => |value| Self::Bytes(value.clone());
}

/// A statement and its values.
#[derive(Debug, Clone)]
pub(in crate::ledger::store) struct Statement {
    pub(in crate::ledger::store) text: String,
    args: Vec<Arg>,
    /// Whether the connection keeps it prepared for the next time.
    pub(super) keep: bool,
}

impl Statement {
    pub(in crate::ledger::store) fn new(text: &'static str) -> Self {
        Self { text: text.to_owned(), args: Vec::new(), keep: true }
    }

    /// Its text is unlikely to come again.
    pub(in crate::ledger::store) fn once(mut self) -> Self {
        self.keep = false;
        self
    }

    pub(in crate::ledger::store) fn push(mut self, text: &'static str) -> Self {
        self.text.push_str(text);
        self
    }

    pub(in crate::ledger::store) fn bind(mut self, value: impl Into<Arg>) -> Self {
        self.args.push(value.into());
        self.text.push('?');
        self
    }

    /// The text with numbered places.
    pub(super) fn numbered(&self) -> String {
        let mut text = String::with_capacity(self.text.len() + 4 * self.args.len());
        for (nth, piece) in self.text.split('?').enumerate() {
            if nth > 0 {
                text.push('$');
                text.push_str(&nth.to_string());
            }
            text.push_str(piece);
        }
        text
    }

    /// A value whose place the text has already, or will have.
    pub(in crate::ledger::store) fn value(mut self, value: impl Into<Arg>) -> Self {
        self.args.push(value.into());
        self
    }

    /// `, ` and such a text.
    pub(in crate::ledger::store) fn and_common(self, row: usize, text: &str) -> Self {
        self.push(", ").common(row, text)
    }

    /// A text that many rows have in common: the row before, `row` values back, lends its own if it is the same.
    pub(in crate::ledger::store) fn common(self, row: usize, text: &str) -> Self {
        self.push("?").common_value(row, text)
    }

    /// The same, for a place that the text has already.
    pub(in crate::ledger::store) fn common_value(self, row: usize, text: &str) -> Self {
        let before = self.args.len().checked_sub(row).and_then(|index| self.args.get(index));
        let common = match before {
            Some(Arg::Text(Some(before))) if **before == *text => Some(Arg::Text(Some(Arc::clone(before)))),
            _ => None,
        };
        self.value(common.unwrap_or_else(|| text.into()))
    }

    /// Another statement, here inside.
    pub(in crate::ledger::store) fn then(mut self, inner: Self) -> Self {
        self.text.push_str(&inner.text);
        self.args.extend(inner.args);
        self
    }

    /// `, ` and a value.
    pub(in crate::ledger::store) fn and_bind(self, value: impl Into<Arg>) -> Self {
        self.push(", ").bind(value)
    }

    /// The items as a set: the last one is repeated up to a power of two, above eight up to a multiple of eight. So few texts cover all
    /// numbers of items, and the database has them prepared. For statements to which an item that comes twice is nothing new.
    pub(in crate::ledger::store) fn set<T>(mut self, items: &[T], write: impl Fn(Self, &T) -> Self) -> Self {
        self = self.list(items, &write);
        if let Some(last) = items.last() {
            let few = items.len() <= 8;
            let size = if few { items.len().next_power_of_two() } else { items.len().next_multiple_of(8) };
            for _ in items.len()..size {
                self = write(self.push(", "), last);
            }
        }
        self
    }

    /// The items, each written by `write`, with commas between.
    pub(in crate::ledger::store) fn list<T>(mut self, items: &[T], write: impl Fn(Self, &T) -> Self) -> Self {
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self = self.push(", ");
            }
            self = write(self, item);
        }
        self
    }
}

macro_rules! arguments {
    ($($name:ident -> $type:ty;)*) => {
        impl Statement {
            $(pub(in crate::ledger::store) fn $name(&mut self) -> Result<$type, StoreError> {
                let mut arguments = <$type>::default();
                for arg in std::mem::take(&mut self.args) {
                    let added = match arg {
                        Arg::Int(value) => arguments.add(value),
                        Arg::Text(value) => arguments.add(value),
                        Arg::Bytes(value) => arguments.add(value),
                    };
                    added.map_err(|error| StoreError::Database(sqlx::Error::Encode(error)))?;
                }
                Ok(arguments)
            })*
        }
    };
}

arguments! {
    for_sqlite -> SqliteArguments;
    for_postgres -> PgArguments;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_numbered_for_postgres_and_nameless_for_sqlite() {
        let statement = Statement::new("SELECT a FROM t WHERE b = ").bind(1_i64).push(" AND c IN (");
        let statement = statement.list(&["x", "y"], |statement, text| statement.bind(*text)).push(")");
        assert_eq!(statement.text, "SELECT a FROM t WHERE b = ? AND c IN (?, ?)");
        assert_eq!(statement.numbered(), "SELECT a FROM t WHERE b = $1 AND c IN ($2, $3)");
    }

    #[test]
    fn a_text_is_shared_with_the_row_before_and_with_no_other_value() {
        let row = |statement: Statement, (id, route): &(i64, &str)| {
            statement.push("(").bind(*id).and_common(3, route).and_bind("last").push(")")
        };
        let statement = Statement::new("").list(&[(1, "a"), (2, "a"), (3, "b"), (4, "a")], row);
        let texts: Vec<&Arc<str>> = statement
            .args
            .iter()
            .filter_map(|arg| if let Arg::Text(Some(text)) = arg { Some(text) } else { None })
            .collect();
        assert_eq!(
            texts.iter().map(|text| &***text).collect::<Vec<_>>(),
            ["a", "last", "a", "last", "b", "last", "a", "last"]
        );
        assert!(Arc::ptr_eq(texts[0], texts[2]));
        assert!(!Arc::ptr_eq(texts[2], texts[6]), "only the row before is looked at");
    }

    #[test]
    fn a_set_is_filled_up_to_one_of_few_sizes_with_its_last_item() {
        let text = |items: &[i64]| Statement::new("").set(items, |statement, item| statement.bind(*item));
        assert_eq!(text(&[]).text, "");
        assert_eq!(text(&[1]).text, "?");
        let size = |items| text(&vec![7; items]).args.len();
        assert_eq!([3, 8, 9, 16, 17, 60, 64].map(size), [4, 8, 16, 16, 24, 64, 64]);
        let five = text(&[1, 2, 3, 4, 5]);
        assert_eq!(five.text, "?, ?, ?, ?, ?, ?, ?, ?");
        assert!(five.args[5..].iter().all(|arg| matches!(arg, Arg::Int(Some(5)))), "{:?}", five.args);
    }
}
