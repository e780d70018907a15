//! What an error of a database says about the statement that it answers.

use crate::ledger::store::StoreError;

fn code_of(error: &StoreError) -> Option<String> {
    let StoreError::Database(error) = error else { return None };
    error.as_database_error()?.code().map(std::borrow::Cow::into_owned)
}

/// Whether the database refuses the data itself and will do so each time: SQLite's constraint (19) and mismatch (20);
/// PostgreSQL's classes 22, data, and 23, integrity.
pub(super) fn is_refusal(error: &StoreError) -> bool {
    let Some(code) = code_of(error) else { return false };
    let sqlite = code.parse::<u32>().is_ok_and(|code| matches!(code & 0xFF, 19 | 20));
    (code.len() == 5 && (code.starts_with("22") || code.starts_with("23"))) || (code.len() < 5 && sqlite)
}

/// Whether the transaction certainly did not happen because others were in the way: SQLite's busy (5) and locked (6);
/// PostgreSQL's serialization failure, deadlock and lock timeout.
pub(in crate::ledger::store) fn is_contention(error: &StoreError) -> bool {
    let Some(code) = code_of(error) else { return false };
    if code.len() == 5 {
        return matches!(code.as_str(), "40001" | "40P01" | "55P03");
    }
    code.parse::<u32>().is_ok_and(|code| matches!(code & 0xFF, 5 | 6))
}
