//! What can be wrong with a value, a frame or a layout file. Every message names the place and the rule; no message
//! ever contains a value, because values are account numbers and names.

use std::fmt;
use std::sync::Arc;

/// The rule that a value or a run of bytes broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Rule {
    /// The charset of the layout has no code for a character.
    #[error("holds a character that the message's charset cannot carry")]
    Unmappable,
    /// More bytes than the field has.
    #[error("does not fit into the field")]
    TooLong,
    /// Something other than ASCII 0-9 in an identifier or a count.
    #[error("must be ASCII digits only")]
    NotDigits,
    /// An identifier without a single digit.
    #[error("must not be empty")]
    Empty,
    /// A number outside the bounds that the layout gives it.
    #[error("is outside the range that the message allows")]
    OutOfRange,
    /// Not a day of the calendar as YYYYMMDD.
    #[error("must be a calendar date as YYYYMMDD")]
    NotADate,
    /// Not a time of day as HHMMSS.
    #[error("must be a time of day as HHMMSS")]
    NotATime,
    /// NUL, a line break, DEL or another control character.
    #[error("must not hold control characters")]
    ControlCharacter,
    /// A space at the end would be taken for padding and lost.
    #[error("must not end with a space")]
    TrailingSpace,
    /// Bytes that are not text in the layout's charset.
    #[error("holds bytes that are no text in the message's charset")]
    Malformed,
    /// A fixed part of the message has other bytes than the layout says.
    #[error("differs from the constant that the layout gives")]
    NotTheConstant,
    /// The frame is longer or shorter than the layout and its counts say.
    #[error("has another length than the layout says")]
    WrongLength,
    /// A count or a total length that disagrees with the records.
    #[error("disagrees with the records that follow")]
    CountMismatch,
    /// A field that the message needs is not there.
    #[error("is required")]
    Missing,
    /// A field that the message does not have, or that the gateway fills itself.
    #[error("is not a field of this message")]
    UnknownField,
    /// The same field twice in one object.
    #[error("appears twice")]
    Duplicate,
    /// Another JSON type than the field takes.
    #[error("has the wrong JSON type")]
    WrongType,
    /// A fraction, an exponent, or a number beyond 64 bits.
    #[error("must be a plain integer")]
    NotAPlainInteger,
    /// Two fields that must differ are the same.
    #[error("must differ from the other field")]
    MustDiffer,
}

/// A field and the rule that it broke.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {rule}")]
pub struct FieldError {
    /// The field's name in the layout; `(message)` when the message as a whole is meant.
    pub field: Arc<str>,
    /// The rule that was broken.
    pub rule: Rule,
}

impl FieldError {
    pub(crate) fn new(field: &Arc<str>, rule: Rule) -> Self {
        Self { field: Arc::clone(field), rule }
    }

    pub(crate) fn message(rule: Rule) -> Self {
        Self { field: Arc::from("(message)"), rule }
    }
}

/// What is wrong with a frame. After any of these the byte stream has no known position: close the connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The length header holds a byte that is not a digit.
    #[error("frame length is not a number")]
    LengthNotDigits,
    /// The length header is smaller than itself, or larger than the body limit.
    #[error("frame length is outside its limits")]
    LengthOutOfRange,
    /// The body to send has a length that this framing cannot carry.
    #[error("message of {actual} bytes cannot be framed")]
    CannotFrame {
        /// Length of the refused body in bytes.
        actual: usize,
    },
    /// The transport failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// One thing that is wrong with a layout file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayoutError {
    /// The file, as it was given to the catalog.
    pub file: String,
    /// Line in the file, counted from 1.
    pub line: usize,
    /// The rule, in a sentence.
    pub message: String,
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}

impl std::error::Error for LayoutError {}
