//! Masked account numbers: the only form in which an account leaves the request path.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An account number of which only the ends can be read.
///
/// Masking works on the zero-padded number as it stands on the wire: from 11 digits on the first 6 and the last 4 are
/// shown, from 7 to 10 the first 2 and the last 2, below that nothing.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MaskedAccount(String);

impl MaskedAccount {
    /// Masks a zero-padded account number.
    #[must_use]
    pub fn of(padded: &str) -> Self {
        let length = padded.chars().count();
        let (head, tail) = match length {
            11.. => (6, 4),
            7..=10 => (2, 2),
            _ => (0, 0),
        };
        let mut masked = String::with_capacity(padded.len());
        for (at, c) in padded.chars().enumerate() {
            masked.push(if at < head || at >= length - tail { c } else { '*' });
        }
        Self(masked)
    }

    /// The masked text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for MaskedAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for MaskedAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::MaskedAccount;

    #[test]
    fn the_ends_are_shown_by_length() {
        for (account, masked) in [
            ("12345678901234", "123456****1234"),
            ("00000000000007", "000000****0007"),
            ("12345678901", "123456*8901"),
            ("1234567890", "12******90"),
            ("1234567", "12***67"),
            ("123456", "******"),
            ("", ""),
        ] {
            assert_eq!(MaskedAccount::of(account).as_str(), masked);
        }
    }
}
