//! The one handler that all messages share: reads the body, parses it by the route's layout, runs the transaction.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::HeaderMap;
use axum::http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use axum::http::request::Parts;
use axum::response::Response;
use codec::{Accepts, Record};
use http_body_util::{BodyExt, Limited};

use super::asker::Asker;
use super::reply;
use crate::failure::Failure;
use crate::filters::Admitted;
use crate::routes::Kind;
use crate::transaction::{Completed, Refusal, Render, Submission, Transactions};

/// What the handler needs.
#[derive(Debug, Clone)]
pub struct Submit {
    /// Where transactions run.
    pub transactions: Arc<Transactions>,
    /// Limits of a body.
    pub body: BodyLimits,
}

/// Limits of a request body.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    /// In bytes.
    pub max: usize,
    /// From the head to the last byte.
    pub time: Duration,
}

/// Handles a request that passed every filter.
pub async fn submit(shared: &Submit, asker: &Asker, admitted: Admitted, head: &Parts, body: Body) -> Response {
    let kind = admitted.route().kind;
    let result = run(shared, &head.headers, head.uri.path(), body, asker, &admitted).await;
    let hurried = matches!(&result, Err(Refusal { failure: Failure::RequestTimeout | Failure::BodyTooLarge, .. }));
    let mut response = match result {
        Ok(completed) => reply::completed(asker, kind, completed),
        Err(refusal) => reply::refused(asker, kind, &refusal),
    };
    if let Some(standing) = admitted.standing() {
        reply::standing_headers(&mut response, standing);
    }
    if hurried {
        // The rest of the body is still to come; nobody shall take it for a request.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

async fn run(
    shared: &Submit,
    headers: &HeaderMap,
    path: &str,
    body: Body,
    asker: &Asker,
    admitted: &Admitted,
) -> Result<Completed, Refusal> {
    let route = Arc::clone(admitted.route());
    let body = read_body(headers, body, shared.body).await?;
    let idempotency_key = match route.kind {
        Kind::Inquiry => None,
        Kind::Mutation => Some(idempotency_key(headers)?),
    };
    let record = Record::from_json(&route.request, &body, Accepts::Body).map_err(|error| match error {
        Some(error) => error.into(),
        None => Refusal::from(Failure::InvalidRequest),
    })?;
    let (kind, asking) = (route.kind, asker.clone());
    let render: Render = Box::new(move |id, elapsed, served| reply::render(&asking, kind, id, elapsed, served));
    let submission = Submission {
        path: path.to_owned(),
        client: Arc::clone(&admitted.caller().name),
        correlation_id: asker.correlation_text().to_owned(),
        route,
        record,
        patience: admitted.patience().clone(),
        idempotency_key,
        render,
    };
    shared.transactions.submit(submission).await
}

/// Reads a JSON body within its limits.
///
/// # Errors
/// [`Failure::UnsupportedMediaType`], [`Failure::BodyTooLarge`], [`Failure::RequestTimeout`],
/// [`Failure::InvalidRequest`] when the caller breaks off.
pub async fn read_body(headers: &HeaderMap, body: Body, limits: BodyLimits) -> Result<Bytes, Failure> {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case("application/json") {
        return Err(Failure::UnsupportedMediaType);
    }
    let declared = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if declared.is_some_and(|declared| declared > limits.max) {
        return Err(Failure::BodyTooLarge);
    }
    match tokio::time::timeout(limits.time, Limited::new(body, limits.max).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(Failure::BodyTooLarge),
        Ok(Err(_)) => Err(Failure::InvalidRequest),
        Err(_) => Err(Failure::RequestTimeout),
    }
}

fn idempotency_key(headers: &HeaderMap) -> Result<String, Failure> {
    let mut keys = headers.get_all("idempotency-key").iter();
    let key = keys.next().ok_or(Failure::IdempotencyKeyMissing)?;
    let visible = key.as_bytes().iter().all(u8::is_ascii_graphic);
    if keys.next().is_some() || !visible || !(1..=255).contains(&key.len()) {
        return Err(Failure::IdempotencyKeyInvalid);
    }
    key.to_str().map(str::to_owned).map_err(|_| Failure::IdempotencyKeyInvalid)
}
