//! Writing answers: success, and `application/problem+json` (RFC 9457) from the failure table. Also who asks: the
//! language and the correlation id of a request.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use codec::View;
use serde::Serialize;

use super::texts::{self, Language};
use crate::failure::Failure;
use crate::filters::TurnedAway;
use crate::filters::rate_limit::Standing;
use crate::ledger::TransactionId;
use crate::resilience::Fault;
use crate::routes::Kind;
use crate::telemetry::Telemetry;
use crate::transaction::{Completed, Refusal};

const CORRELATION: HeaderName = HeaderName::from_static("x-correlation-id");
const TRANSACTION: HeaderName = HeaderName::from_static("x-transaction-id");
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Who asks, as far as the answer depends on it.
#[derive(Debug, Clone)]
pub struct Asker {
    /// The language of the answer.
    pub language: Language,
    /// The caller's id for this call, if it is a good one, else ours.
    pub correlation_id: HeaderValue,
}

impl Asker {
    fn of(headers: &HeaderMap) -> Self {
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        let good = |value: &&HeaderValue| (1..=64).contains(&value.len()) && value.as_bytes().iter().all(plain);
        let correlation_id = headers.get(CORRELATION).filter(good).cloned().unwrap_or_else(|| {
            let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
            let text = uuid::Uuid::now_v7().as_hyphenated().encode_lower(&mut text);
            HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static("none"))
        });
        Self { language: Language::of(headers), correlation_id }
    }

    /// The asker that [`identify`] put beside a request.
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

/// What a problem was about, for the outermost layer.
#[derive(Debug, Clone, Copy)]
struct ToldAs {
    failure: Failure,
    transaction_id: Option<TransactionId>,
}

impl ToldAs {
    /// Counts a refusal at the door, and logs a failure once. What a caller sent is never in it.
    fn observe(self, telemetry: &Telemetry) {
        let Self { failure, transaction_id } = self;
        let policy = failure.policy(Kind::Mutation);
        let (name, http) = (failure.name(), policy.http);
        match transaction_id {
            Some(id) => tracing::info!(failure = name, http, transaction = %id, "a transaction failed"),
            None => {
                telemetry.counter("gwanmun_refused_total", &[("code", policy.code)]).increment(1);
                tracing::debug!(failure = name, http, "a request was refused");
            }
        }
    }
}

/// The outermost layer: notes who asks, gives every answer its correlation id, and counts and logs what was refused.
pub async fn identify(State(telemetry): State<Arc<Telemetry>>, mut request: Request, next: Next) -> Response {
    let asker = Asker::of(request.headers());
    let correlation_id = asker.correlation_id.clone();
    request.extensions_mut().insert(asker);
    let mut response = next.run(request).await;
    response.headers_mut().insert(CORRELATION, correlation_id);
    if let Some(told) = response.extensions().get::<ToldAs>() {
        told.observe(&telemetry);
    }
    response
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Success<T> {
    transaction_id: TransactionId,
    status: &'static str,
    data: T,
    elapsed_ms: f64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Problem<'a> {
    r#type: String,
    title: &'static str,
    status: u16,
    code: &'static str,
    detail: String,
    correlation_id: &'a str,
    retryable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    transaction_id: Option<TransactionId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ledger_status: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host_code: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host_message: Option<&'a str>,
}

/// A JSON answer.
#[must_use]
pub fn json(status: StatusCode, body: &impl Serialize) -> Response {
    with_type(status, JSON, serde_json::to_vec(body).unwrap_or_default())
}

fn with_type(status: StatusCode, content_type: HeaderValue, body: Vec<u8>) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// The answer to a transaction that ran.
#[must_use]
pub fn completed(asker: &Asker, kind: Kind, completed: &Completed) -> Response {
    let Completed { id, elapsed, result } = completed;
    let mut response = match result {
        Ok(record) => {
            let elapsed_ms = (elapsed.as_secs_f64() * 1_000_000.0).round() / 1_000.0;
            let data = record.view(View::Answer);
            json(StatusCode::OK, &Success { transaction_id: *id, status: "SUCCESS", data, elapsed_ms })
        }
        Err(fault) => problem(asker, kind, fault, None, Some(*id)),
    };
    if let Ok(id) = HeaderValue::from_str(id.as_str()) {
        response.headers_mut().insert(TRANSACTION, id);
    }
    response
}

/// The answer to a request that never became a transaction.
#[must_use]
pub fn refused(asker: &Asker, kind: Kind, refusal: &Refusal) -> Response {
    let field = refusal.field.as_ref().map(|(name, rule)| (&**name, *rule));
    problem(asker, kind, &refusal.failure.into(), field, None)
}

/// The answer of a filter that turned a request away.
#[must_use]
pub fn turned_away(head: &Parts, away: TurnedAway) -> Response {
    let retry_after = away.standing.map(|standing| standing.retry_after);
    let fault = Fault { retry_after, ..Fault::from(away.failure) };
    let mut response = problem(&Asker::of_head(head), Kind::Inquiry, &fault, None, None);
    if let Some(standing) = away.standing {
        standing_headers(&mut response, standing);
    }
    let headers = response.headers_mut();
    if away.failure == Failure::MethodNotAllowed {
        // A filter says so about transaction routes only; the router itself knows what its other routes take.
        headers.insert(ALLOW, HeaderValue::from_static("POST"));
    }
    if away.failure == Failure::Unauthenticated {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

/// The answer to a failure that has nothing to do with a transaction.
#[must_use]
pub fn failed(head: &Parts, failure: Failure) -> Response {
    problem(&Asker::of_head(head), Kind::Inquiry, &failure.into(), None, None)
}

fn problem(
    asker: &Asker,
    kind: Kind,
    fault: &Fault,
    field: Option<(&str, codec::Rule)>,
    transaction_id: Option<TransactionId>,
) -> Response {
    let Fault { failure, host, retry_after } = fault;
    let policy = failure.policy(kind);
    let title = texts::of_failure(*failure, asker.language);
    let detail = match field {
        Some((name, rule)) => format!("{name}: {}", texts::of_rule(rule, asker.language)),
        None => title.to_owned(),
    };
    let status = StatusCode::from_u16(policy.http).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let retryable = failure.is_retryable(kind);
    let body = Problem {
        r#type: format!("urn:gwanmun:problem:{}", policy.code),
        title,
        status: policy.http,
        code: policy.code,
        detail,
        correlation_id: asker.correlation_text(),
        retryable,
        field: field.map(|(name, _)| name),
        transaction_id,
        ledger_status: transaction_id.and(policy.record.status()).map(crate::ledger::Status::name),
        host_code: host.as_ref().map(|host| host.code.as_str()),
        host_message: host.as_ref().map(|host| host.message.as_str()),
    };
    let mut response = with_type(status, PROBLEM, serde_json::to_vec(&body).unwrap_or_default());
    if retryable {
        let seconds = retry_after.map_or(1, seconds_up).max(1);
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response.extensions_mut().insert(ToldAs { failure: *failure, transaction_id });
    response
}

fn seconds_up(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

/// Adds the `RateLimit-*` headers.
pub fn standing_headers(response: &mut Response, standing: Standing) {
    let headers = response.headers_mut();
    headers.insert(HeaderName::from_static("ratelimit-limit"), HeaderValue::from(standing.limit));
    headers.insert(HeaderName::from_static("ratelimit-remaining"), HeaderValue::from(standing.remaining));
    headers.insert(HeaderName::from_static("ratelimit-reset"), HeaderValue::from(seconds_up(standing.reset)));
}
