//! Who asks, as far as the answer depends on it: the language and the correlation id of a request.

use axum::http::HeaderMap;
use axum::http::header::{HeaderName, HeaderValue};
use axum::http::request::Parts;

use super::texts::Language;

/// The header of a correlation id.
pub(super) const CORRELATION: HeaderName = HeaderName::from_static("x-correlation-id");

/// Who asks, as far as the answer depends on it.
#[derive(Debug, Clone)]
pub struct Asker {
    /// The language of the answer.
    pub language: Language,
    /// The caller's id for this call, if it is a good one, else ours.
    pub correlation_id: HeaderValue,
}

impl Asker {
    /// Who asks by these headers.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        let good = |value: &&HeaderValue| (1..=64).contains(&value.len()) && value.as_bytes().iter().all(plain);
        let correlation_id = headers.get(CORRELATION).filter(good).cloned().unwrap_or_else(|| {
            let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
            let text = new_correlation_id().as_hyphenated().encode_lower(&mut text);
            HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static("none"))
        });
        Self { language: Language::of(headers), correlation_id }
    }

    /// The asker that was put beside a request.
    #[must_use]
    pub fn of_head(head: &Parts) -> Self {
        head.extensions.get::<Self>().cloned().unwrap_or_else(|| Self::of(&head.headers))
    }

    /// The correlation id as text.
    #[must_use]
    pub fn correlation_text(&self) -> &str {
        self.correlation_id.to_str().unwrap_or_default()
    }
}

/// A UUIDv7. Nobody must be unable to guess it, so it costs no call of the system for random bytes.
fn new_correlation_id() -> uuid::Uuid {
    let (seconds, nanoseconds) = uuid::Timestamp::now(uuid::NoContext).to_unix();
    let milliseconds = seconds * 1_000 + u64::from(nanoseconds / 1_000_000);
    let [random @ .., _, _, _, _, _, _] = fastrand::u128(..).to_le_bytes();
    uuid::Builder::from_unix_timestamp_millis(milliseconds, &random).into_uuid()
}
