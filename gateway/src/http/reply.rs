//! Writing answers: success, and `application/problem+json` (RFC 9457) from the failure table.

use std::time::Duration;

use axum::body::Body;
use axum::http::header::{AGE, ALLOW, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use codec::View;
use serde::Serialize;

use super::asker::{Asker, CORRELATION};
use super::texts;
use crate::bucket::Standing;
use crate::cache::Served;
use crate::failure::Failure;
use crate::filters::TurnedAway;
use crate::ledger::{Answer, Resolution, ServedFrom, TransactionId};
use crate::resilience::Fault;
use crate::routes::Kind;
use crate::telemetry::Telemetry;
use crate::transaction::{Completed, Refusal, Said};

const TRANSACTION: HeaderName = HeaderName::from_static("x-transaction-id");
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// What a problem was about, for [`sign`].
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

/// Gives an answer its correlation id, and counts and logs what was refused. Every answer passes here last.
#[must_use]
pub fn sign(mut response: Response, asker: Asker, telemetry: &Telemetry) -> Response {
    response.headers_mut().insert(CORRELATION, asker.correlation_id);
    if let Some(told) = response.extensions().get::<ToldAs>() {
        told.observe(telemetry);
    }
    response
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Success<T> {
    transaction_id: TransactionId,
    status: &'static str,
    data: T,
    #[serde(skip_serializing_if = "is_false")]
    stale: bool,
    elapsed_ms: f64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_false(flag: &bool) -> bool {
    !*flag
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
    resolution: Option<&'static str>,
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
    // An answer has about eight headers in the end; the table shall not have to grow.
    *response.headers_mut() = HeaderMap::with_capacity(12);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// Writes the answer to a transaction that ran: its status and its bytes.
#[must_use]
pub fn render(asker: &Asker, kind: Kind, id: TransactionId, elapsed: Duration, served: &Served) -> Answer {
    match &served.result {
        Ok(record) => {
            let elapsed_ms = (elapsed.as_secs_f64() * 1_000_000.0).round() / 1_000.0;
            let data = record.view(View::Answer);
            let stale = served.from == ServedFrom::Stale;
            let body = Success { transaction_id: id, status: "SUCCESS", data, stale, elapsed_ms };
            Answer { http: 200, body: serde_json::to_vec(&body).unwrap_or_default() }
        }
        Err(fault) => {
            let body = problem_body(asker, kind, fault, None, Some(id), None);
            Answer { http: fault.failure.policy(kind).http, body }
        }
    }
}

/// The answer to a transaction that ran, now or when its key was first used.
#[must_use]
pub fn completed(asker: &Asker, kind: Kind, completed: Completed) -> Response {
    let Completed { id, said } = completed;
    let replayed = !matches!(said, Said::Ran(..));
    let mut response = match said {
        Said::Ran(answer, served) => {
            let mut response = of_answer(answer);
            cache_headers(&mut response, &served);
            if let Err(fault) = &served.result {
                finish_problem(&mut response, kind, fault, Some(id));
            }
            response
        }
        Said::Again(answer) => of_answer(answer),
        Said::InDoubt => problem(asker, kind, &Failure::RepeatInDoubt.into(), None, Some(id), None),
        Said::Resolved(resolution) => resolved(asker, kind, id, resolution),
    };
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(id.as_str()) {
        headers.insert(TRANSACTION, id);
    }
    if replayed {
        headers.insert(REPLAYED, HeaderValue::from_static("true"));
    }
    response
}

/// `Age` and `Cache-Status` (RFC 9211), on routes whose replies are kept.
fn cache_headers(response: &mut Response, served: &Served) {
    if !served.cacheable {
        return;
    }
    let status = match (served.from, served.followed) {
        (ServedFrom::Stale, _) => "gwanmun; hit; fwd=stale",
        (ServedFrom::Cache, true) => "gwanmun; fwd=miss; collapsed",
        (ServedFrom::Cache, false) => "gwanmun; hit",
        (ServedFrom::Host, _) => "gwanmun; fwd=miss",
    };
    response.headers_mut().insert(CACHE_STATUS, HeaderValue::from_static(status));
    if served.from != ServedFrom::Host {
        response.headers_mut().insert(AGE, HeaderValue::from(served.age.as_secs()));
    }
}

fn of_answer(answer: Answer) -> Response {
    let status = StatusCode::from_u16(answer.http).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    with_type(status, if answer.http < 400 { JSON } else { PROBLEM }, answer.body)
}

/// The answer to a repeat whose first one was in doubt and is not any more.
fn resolved(asker: &Asker, kind: Kind, id: TransactionId, resolution: Resolution) -> Response {
    let failure = match resolution {
        Resolution::ConfirmedSuccess => {
            let body = serde_json::json!({
                "transactionId": id.as_str(), "status": "SUCCESS", "resolution": resolution.name(), "data": null,
            });
            return json(StatusCode::OK, &body);
        }
        Resolution::ConfirmedFailed => Failure::RepeatNotProcessed,
        Resolution::Canceled => Failure::RepeatCanceled,
        _ => Failure::RepeatInDoubt,
    };
    problem(asker, kind, &failure.into(), None, Some(id), Some(resolution))
}

/// The answer to a request that never became a transaction.
#[must_use]
pub fn refused(asker: &Asker, kind: Kind, refusal: &Refusal) -> Response {
    let field = refusal.field.as_ref().map(|(name, rule)| (&**name, *rule));
    problem(asker, kind, &refusal.failure.into(), field, None, None)
}

/// The answer of a filter that turned a request away.
#[must_use]
pub fn turned_away(asker: &Asker, away: TurnedAway) -> Response {
    let retry_after = away.standing.map(|standing| standing.retry_after);
    let fault = Fault { retry_after, ..Fault::from(away.failure) };
    let mut response = problem(asker, Kind::Inquiry, &fault, None, None, None);
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
    problem(&Asker::of_head(head), Kind::Inquiry, &failure.into(), None, None, None)
}

fn problem(
    asker: &Asker,
    kind: Kind,
    fault: &Fault,
    field: Option<(&str, codec::Rule)>,
    transaction_id: Option<TransactionId>,
    resolution: Option<Resolution>,
) -> Response {
    let body = problem_body(asker, kind, fault, field, transaction_id, resolution);
    let mut response = of_answer(Answer { http: fault.failure.policy(kind).http, body });
    finish_problem(&mut response, kind, fault, transaction_id);
    response
}

fn problem_body(
    asker: &Asker,
    kind: Kind,
    fault: &Fault,
    field: Option<(&str, codec::Rule)>,
    transaction_id: Option<TransactionId>,
    resolution: Option<Resolution>,
) -> Vec<u8> {
    let Fault { failure, host, .. } = fault;
    let policy = failure.policy(kind);
    let title = texts::of_failure(*failure, asker.language);
    let detail = match field {
        Some((name, rule)) => format!("{name}: {}", texts::of_rule(rule, asker.language)),
        None => title.to_owned(),
    };
    // A doubt that was resolved is still UNKNOWN in the ledger; the resolution says how it ended.
    let status = resolution.map(|_| crate::ledger::Status::Unknown).or(fault.record(kind).status());
    let body = Problem {
        r#type: format!("urn:gwanmun:problem:{}", policy.code),
        title,
        status: policy.http,
        code: policy.code,
        detail,
        correlation_id: asker.correlation_text(),
        retryable: failure.is_retryable(kind),
        field: field.map(|(name, _)| name),
        transaction_id,
        ledger_status: transaction_id.and(status).map(crate::ledger::Status::name),
        resolution: resolution.map(Resolution::name),
        host_code: host.as_ref().map(|host| host.code.as_str()),
        host_message: host.as_ref().map(|host| host.message.as_str()),
    };
    serde_json::to_vec(&body).unwrap_or_default()
}

/// What a problem needs beside its body: when to ask again, and what it was for the log.
fn finish_problem(response: &mut Response, kind: Kind, fault: &Fault, transaction_id: Option<TransactionId>) {
    if fault.failure.is_retryable(kind) {
        let seconds = fault.retry_after.map_or(1, seconds_up).max(1);
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response.extensions_mut().insert(ToldAs { failure: fault.failure, transaction_id });
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
