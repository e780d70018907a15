//! The ledger's routes: listings by keyset cursor, one row, a search by account, a summary. A client sees its own rows
//! and nothing that tells of others: a foreign id is answered exactly like an unknown one.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::Response;
use axum::routing::{get, post};
use jiff::Timestamp;
use jiff::civil::Date;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::reply;
use super::submit::{BodyLimits, read_body};
use crate::failure::Failure;
use crate::filters::auth::{Caller, Role};
use crate::ledger::{Attempt, Filter, Ledger, Resolution, Row, Status, Step, StoredRow, TransactionId};

/// What the handlers need.
#[derive(Debug, Clone)]
pub struct Auditing {
    /// The ledger.
    pub ledger: Arc<Ledger>,
    /// Limits of a search's body.
    pub body: BodyLimits,
}

/// The routes. Keys and roles were looked at before; here only whose rows a client may see.
pub fn router(auditing: Auditing) -> Router {
    Router::new()
        .route("/api/ledger", get(list))
        .route("/api/ledger/recent", get(recent))
        .route("/api/ledger/unknown", get(unknown))
        .route("/api/ledger/summary", get(summary))
        .route("/api/ledger/search", post(search))
        .route("/api/ledger/{transaction_id}", get(one))
        .with_state(auditing)
}

const LIMIT_DEFAULT: u32 = 50;
const LIMIT_MAX: u32 = 200;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Asked {
    status: Option<String>,
    tx_code: Option<String>,
    client: Option<String>,
    institution: Option<String>,
    from: Option<String>,
    to: Option<String>,
    correlation_id: Option<String>,
    limit: Option<u32>,
    cursor: Option<String>,
}

/// A listing that was understood.
struct Listing {
    filter: Filter,
    before: Option<i64>,
    limit: u32,
}

impl Asked {
    fn understand(self) -> Result<Listing, Failure> {
        let invalid = || Failure::InvalidRequest;
        let texts = [&self.tx_code, &self.client, &self.institution, &self.correlation_id];
        if texts.into_iter().flatten().any(|text| text.chars().any(char::is_control)) {
            return Err(Failure::InvalidRequest);
        }
        let status = self.status.map(|name| Status::by_name(&name).ok_or_else(invalid)).transpose()?;
        let limit = self.limit.unwrap_or(LIMIT_DEFAULT);
        if !(1..=LIMIT_MAX).contains(&limit) {
            return Err(Failure::InvalidRequest);
        }
        let before = self.cursor.map(|cursor| i64::from_str_radix(&cursor, 36).map_err(|_| invalid())).transpose()?;
        let filter = Filter {
            status,
            tx_code: self.tx_code,
            client: self.client,
            institution: self.institution,
            correlation_id: self.correlation_id,
            from: self.from.map(|text| instant(&text, false)).transpose()?,
            to: self.to.map(|text| instant(&text, true)).transpose()?,
            ..Filter::default()
        };
        Ok(Listing { filter, before, limit })
    }
}

/// An RFC 3339 time, or a day in Seoul as YYYYMMDD; as the end of a span the whole day counts.
fn instant(text: &str, end: bool) -> Result<i64, Failure> {
    // In a query an unescaped `+` is a space: `…T00:00:00+09:00` shall work as people write it.
    if let Ok(timestamp) = text.replace(' ', "+").parse::<Timestamp>() {
        return Ok(timestamp.as_microsecond());
    }
    let date = Date::strptime("%Y%m%d", text).map_err(|_| Failure::InvalidRequest)?;
    let date = if end { date.tomorrow().map_err(|_| Failure::InvalidRequest)? } else { date };
    let start = date.in_tz("Asia/Seoul").map_err(|_| Failure::InvalidRequest)?;
    Ok(start.timestamp().as_microsecond())
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Item<'a> {
    transaction_id: TransactionId,
    tx_code: &'a str,
    route: &'a str,
    kind: &'static str,
    institution: &'a str,
    client: &'a str,
    account_masked: Option<&'a str>,
    counter_account_masked: Option<&'a str>,
    amount: Option<i64>,
    status: &'static str,
    proof: Option<&'static str>,
    response_code: Option<&'a str>,
    detail: Option<&'a str>,
    attempts: usize,
    requested_at: String,
    responded_at: String,
    elapsed_us: i64,
    correlation_id: &'a str,
    idempotency_key_hash: Option<String>,
    layout_version: u32,
    served_from: &'static str,
    resolution: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    resolution_method: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resolved_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resolved_by: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resolution_note: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt_log: Option<&'a [Attempt]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resolution_steps: Option<Vec<serde_json::Value>>,
}

fn item(stored: &StoredRow, whole: bool, role: Role) -> Item<'_> {
    // Who closed a row and why is between operators and auditors.
    let inside = role.includes(Role::Auditor);
    let Row { facts, closing } = &stored.row;
    let time = |microseconds| Timestamp::from_microsecond(microseconds).map(|at| at.to_string()).unwrap_or_default();
    Item {
        transaction_id: facts.id,
        tx_code: &facts.tx_code,
        route: &facts.route,
        kind: facts.kind.name(),
        institution: &facts.institution,
        client: &facts.client,
        account_masked: facts.account.as_ref().map(codec::MaskedAccount::as_str),
        counter_account_masked: facts.counter_account.as_ref().map(codec::MaskedAccount::as_str),
        amount: facts.amount,
        status: closing.status.name(),
        proof: closing.proof.map(crate::ledger::Proof::name),
        response_code: closing.response_code.as_deref(),
        detail: closing.detail.as_deref(),
        attempts: closing.attempts.len(),
        requested_at: time(facts.requested_at),
        responded_at: time(closing.responded_at),
        elapsed_us: closing.elapsed_us,
        correlation_id: &facts.correlation_id,
        idempotency_key_hash: facts.idempotency_key_hash.as_ref().map(hex::encode),
        layout_version: facts.layout_version,
        served_from: closing.served_from.name(),
        resolution: stored.resolved.state.name(),
        resolution_method: stored.resolved.method.as_deref(),
        resolved_at: stored.resolved.at.map(time),
        resolved_by: stored.resolved.by.as_deref().filter(|_| inside),
        resolution_note: stored.resolved.note.as_deref().filter(|_| inside),
        attempt_log: whole.then_some(&closing.attempts),
        resolution_steps: None,
    }
}

/// A row with everything that is known of it, as an auditor sees it.
#[must_use]
pub fn item_json(stored: &StoredRow, steps: &[Step]) -> serde_json::Value {
    let mut item = item(stored, true, Role::Auditor);
    item.resolution_steps = Some(steps.iter().map(super::resolution::step).collect());
    json!(item)
}

fn caller_of(head: &Parts) -> Result<&Arc<Caller>, Failure> {
    head.extensions.get::<Arc<Caller>>().ok_or(Failure::Unauthenticated)
}

async fn list(state: State<Auditing>, request: Request) -> Response {
    answer_listing(&state, &request.into_parts().0, |_| {}).await
}

async fn recent(state: State<Auditing>, request: Request) -> Response {
    answer_listing(&state, &request.into_parts().0, |_| {}).await
}

async fn unknown(state: State<Auditing>, request: Request) -> Response {
    answer_listing(&state, &request.into_parts().0, |filter| filter.unresolved = true).await
}

async fn answer_listing(auditing: &Auditing, head: &Parts, narrow: impl FnOnce(&mut Filter)) -> Response {
    match listing(auditing, head, narrow).await {
        Ok(response) => response,
        Err(failure) => reply::failed(head, failure),
    }
}

async fn listing(auditing: &Auditing, head: &Parts, narrow: impl FnOnce(&mut Filter)) -> Result<Response, Failure> {
    let caller = caller_of(head)?;
    let Query(asked) = Query::<Asked>::try_from_uri(&head.uri).map_err(|_| Failure::InvalidRequest)?;
    let mut listing = asked.understand()?;
    narrow(&mut listing.filter);
    if caller.role == Role::Client {
        let own = caller.name.to_string();
        if listing.filter.client.as_ref().is_some_and(|other| *other != own) {
            return Ok(reply::json(StatusCode::OK, &json!({"items": [], "nextCursor": null, "complete": true})));
        }
        listing.filter.client = Some(own);
    }
    page(auditing, &listing, caller.role).await
}

async fn page(auditing: &Auditing, listing: &Listing, role: Role) -> Result<Response, Failure> {
    // One more than asked for tells whether there is a next page.
    let (mut rows, complete) = auditing.ledger.page(&listing.filter, listing.before, listing.limit + 1).await?;
    let limit = usize::try_from(listing.limit).unwrap_or(usize::MAX);
    let more = rows.len() > limit;
    rows.truncate(limit);
    let next_cursor = rows.last().filter(|_| more).map(|last| base36(last.seq));
    // Claims whose gateway is gone have no row and no place in the order: they stand before the first page.
    let mut abandoned = Vec::new();
    if listing.filter.unresolved && listing.before.is_none() {
        abandoned = auditing.ledger.abandoned(listing.filter.client.as_deref(), LIMIT_MAX).await?;
    }
    let items: Vec<_> = abandoned.iter().chain(&rows).map(|stored| item(stored, false, role)).collect();
    Ok(reply::json(StatusCode::OK, &json!({"items": items, "nextCursor": next_cursor, "complete": complete})))
}

fn base36(number: i64) -> String {
    let mut rest = u64::try_from(number).unwrap_or_default();
    let mut digits = Vec::new();
    loop {
        let digit = u32::try_from(rest % 36).unwrap_or_default();
        digits.push(char::from_digit(digit, 36).unwrap_or('0'));
        rest /= 36;
        if rest == 0 {
            return digits.iter().rev().collect();
        }
    }
}

async fn summary(State(auditing): State<Auditing>, request: Request) -> Response {
    let (head, _) = request.into_parts();
    let counted = async {
        let Query(asked) = Query::<Asked>::try_from_uri(&head.uri).map_err(|_| Failure::InvalidRequest)?;
        Ok::<_, Failure>(auditing.ledger.summary(&asked.understand()?.filter).await?)
    };
    match counted.await {
        Ok(([success, failed, unknown], complete)) => {
            let body = json!({"SUCCESS": success, "FAILED": failed, "UNKNOWN": unknown, "complete": complete});
            reply::json(StatusCode::OK, &body)
        }
        Err(failure) => reply::failed(&head, failure),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Search {
    account_no: String,
    limit: Option<u32>,
    cursor: Option<String>,
}

async fn search(State(auditing): State<Auditing>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let found = async {
        let body = read_body(&head.headers, body, auditing.body).await?;
        let search: Search = serde_json::from_slice(&body).map_err(|_| Failure::InvalidRequest)?;
        let digits = search.account_no.as_bytes();
        if !(1..=14).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
            return Err(Failure::InvalidRequest);
        }
        let asked = Asked { limit: search.limit, cursor: search.cursor, ..Asked::default() };
        let mut listing = asked.understand()?;
        let padded = format!("{:0>14}", search.account_no);
        listing.filter.account_hash = Some(auditing.ledger.account_hash(&padded));
        page(&auditing, &listing, Role::Auditor).await
    };
    found.await.unwrap_or_else(|failure| reply::failed(&head, failure))
}

async fn one(State(auditing): State<Auditing>, Path(id): Path<String>, request: Request) -> Response {
    let (head, _) = request.into_parts();
    let found = async {
        let caller = caller_of(&head)?;
        let id = TransactionId::parse(&id).ok_or(Failure::UnknownTransaction)?;
        let stored = auditing.ledger.row(id).await?.ok_or(Failure::UnknownTransaction)?;
        if caller.role == Role::Client && *stored.row.facts.client != *caller.name {
            return Err(Failure::UnknownTransaction);
        }
        let mut item = item(&stored, true, caller.role);
        if stored.resolved.state != Resolution::None {
            let steps = auditing.ledger.store().steps(id).await?;
            item.resolution_steps = Some(steps.iter().map(super::resolution::step).collect());
        }
        Ok::<_, Failure>(reply::json(StatusCode::OK, &item))
    };
    found.await.unwrap_or_else(|failure| reply::failed(&head, failure))
}
