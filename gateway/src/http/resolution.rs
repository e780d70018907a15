//! Routes of resolution and reconciliation. Operators resolve and reconcile; auditors read what came of it.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::Response;
use axum::routing::{get, post};
use jiff::Timestamp;
use jiff::civil::Date;
use serde::Deserialize;
use serde_json::{Value, json};

use super::reply;
use super::submit::{BodyLimits, read_body};
use crate::failure::Failure;
use crate::filters::auth::Caller;
use crate::ledger::{ByHand, Class, Ledger, Resolution, Run, Step, TransactionId};
use crate::resolve::{Reconciler, Resolver};

/// What the handlers need.
#[derive(Debug, Clone)]
pub struct Resolving {
    /// Asks about single transactions.
    pub resolver: Arc<Resolver>,
    /// Compares whole days.
    pub reconciler: Arc<Reconciler>,
    /// For rows that are not shipped yet.
    pub ledger: Arc<Ledger>,
    /// Limits of a body.
    pub body: BodyLimits,
}

/// Most differences on a page.
const PAGE_MAX: u32 = 1_000;

/// The routes. Roles were looked at before.
pub fn router(resolving: Resolving) -> Router {
    Router::new()
        .route("/api/gateway/resolve/{transaction_id}", post(resolve))
        .route("/api/reconciliation/run", post(run))
        .route("/api/reconciliation/runs", get(runs))
        .route("/api/reconciliation/runs/{run_id}", get(one_run))
        .with_state(resolving)
}

/// One step, as an answer shows it.
#[must_use]
pub fn step(step: &Step) -> Value {
    json!({"asked": step.asked, "answered": step.answered, "at": time(step.at)})
}

fn time(microseconds: i64) -> String {
    Timestamp::from_microsecond(microseconds).map(|at| at.to_string()).unwrap_or_default()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Hand {
    r#as: String,
    note: String,
}

async fn resolve(State(resolving): State<Resolving>, Path(id): Path<String>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let resolved = async {
        let id = TransactionId::parse(&id).ok_or(Failure::UnknownTransaction)?;
        // It may have been answered a moment ago.
        if resolving.ledger.store().row(id).await?.is_none() {
            resolving.ledger.catch_up(std::time::Duration::from_millis(500)).await;
            let known = resolving.ledger.row(id).await?;
            if known.is_some_and(|known| known.resolved.state == Resolution::Abandoned) {
                return Err(Failure::NotResolvable);
            }
        }
        let (resolver, body) = (Arc::clone(&resolving.resolver), read_optional(&head, body, resolving.body).await?);
        // In a task of its own: a step that has begun is ended, also when the operator leaves.
        let done = match body {
            None => tokio::spawn(async move { resolver.step_now(id).await }).await,
            Some(body) => {
                let hand: Hand = serde_json::from_slice(&body).map_err(|_| Failure::InvalidRequest)?;
                let by = Arc::clone(head.extensions.get::<Arc<Caller>>().ok_or(Failure::Unauthenticated)?);
                let note = note_of(&hand).ok_or(Failure::InvalidRequest)?.to_owned();
                let state = hand_of(&hand.r#as).ok_or(Failure::InvalidRequest)?;
                let closing =
                    async move { resolver.close_by_hand(id, &ByHand { state, by: &by.name, note: &note }).await };
                tokio::spawn(closing).await
            }
        };
        let done = done.map_err(|_| Failure::InternalBeforeSend)??;
        let steps: Vec<_> = done.steps.iter().map(step).collect();
        let body = json!({
            "transactionId": id.as_str(),
            "status": done.row.row.closing.status.name(),
            "resolution": done.row.resolved.state.name(),
            "steps": steps,
        });
        Ok::<_, Failure>(reply::json(StatusCode::OK, &body))
    };
    resolved.await.unwrap_or_else(|failure| reply::failed(&head, failure))
}

/// A JSON body, or none at all.
async fn read_optional(head: &Parts, body: Body, limits: BodyLimits) -> Result<Option<Bytes>, Failure> {
    let is_empty = body.size_hint().exact() == Some(0);
    if is_empty { Ok(None) } else { read_body(&head.headers, body, limits).await.map(Some) }
}

/// What a person may call a transaction.
fn hand_of(name: &str) -> Option<Resolution> {
    let states = [Resolution::ConfirmedSuccess, Resolution::ConfirmedFailed, Resolution::Canceled];
    states.into_iter().find(|state| state.name() == name)
}

/// A reason of one line, 1 to 500 characters.
fn note_of(hand: &Hand) -> Option<&str> {
    let note = hand.note.trim();
    let fits = (1..=500).contains(&note.chars().count()) && !note.chars().any(char::is_control);
    fits.then_some(note)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Day {
    date: String,
}

async fn run(State(resolving): State<Resolving>, request: Request) -> Response {
    let (head, _) = request.into_parts();
    let started = async {
        let Query(day) = Query::<Day>::try_from_uri(&head.uri).map_err(|_| Failure::InvalidRequest)?;
        let date = Date::strptime("%Y%m%d", &day.date).map_err(|_| Failure::InvalidRequest)?;
        let reconciler = Arc::clone(&resolving.reconciler);
        // In a task of its own: a run that has begun goes on, also when the operator leaves.
        let started = tokio::spawn(async move { reconciler.start(date, false).await }).await;
        let started = started.map_err(|_| Failure::InternalBeforeSend)??;
        let started: Vec<Run> = started.into_iter().map(|(run, _)| run).collect();
        let first = started.first().map(|run| run.id.clone());
        let all: Vec<_> = started.iter().map(|run| json!({"runId": run.id, "institution": run.institution})).collect();
        Ok::<_, Failure>(reply::json(StatusCode::ACCEPTED, &json!({"runId": first, "runs": all})))
    };
    started.await.unwrap_or_else(|failure| reply::failed(&head, failure))
}

fn shown(run: &Run) -> Value {
    let mut counts = json!({"hostLines": run.tally.host_lines, "MATCH": run.tally.matched});
    for (class, count) in Class::ALL.into_iter().zip(run.tally.by_class) {
        if let Some(counts) = counts.as_object_mut() {
            counts.insert(class.name().to_owned(), json!(count));
        }
    }
    json!({
        "runId": run.id,
        "date": run.business_day,
        "institution": run.institution,
        "state": run.state,
        "startedAt": time(run.started_at),
        "endedAt": run.ended_at.map(time),
        "detail": run.detail,
        "counts": counts,
    })
}

async fn runs(State(resolving): State<Resolving>, request: Request) -> Response {
    let (head, _) = request.into_parts();
    let listed = async {
        let runs = resolving.ledger.store().runs(100).await?;
        let items: Vec<_> = runs.iter().map(shown).collect();
        Ok::<_, Failure>(reply::json(StatusCode::OK, &json!({"items": items})))
    };
    listed.await.unwrap_or_else(|failure| reply::failed(&head, failure))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PageOf {
    cursor: Option<i64>,
    limit: Option<u32>,
}

async fn one_run(State(resolving): State<Resolving>, Path(id): Path<String>, request: Request) -> Response {
    let (head, _) = request.into_parts();
    let found = async {
        let page = page_asked(&head)?;
        let store = resolving.ledger.store();
        let run = store.run(&id).await?.ok_or(Failure::UnknownRun)?;
        let limit = page.limit.unwrap_or(PAGE_MAX).clamp(1, PAGE_MAX);
        let differences = store.differences(&id, page.cursor.unwrap_or_default(), limit).await?;
        let full = differences.len() == usize::try_from(limit).unwrap_or(usize::MAX);
        let next = differences.last().filter(|_| full).map(|last| last.seq);
        let items: Vec<_> = differences
            .iter()
            .map(|one| {
                json!({
                    "class": one.class.name(),
                    "transactionId": one.id,
                    "ledgerStatus": one.ledger_status,
                    "ledgerAmount": one.ledger_amount,
                    "coreFlag": one.core_flag,
                    "coreAmount": one.core_amount,
                })
            })
            .collect();
        let mut body = shown(&run);
        if let Some(body) = body.as_object_mut() {
            body.insert("differences".to_owned(), json!(items));
            body.insert("nextCursor".to_owned(), json!(next));
        }
        Ok::<_, Failure>(reply::json(StatusCode::OK, &body))
    };
    found.await.unwrap_or_else(|failure| reply::failed(&head, failure))
}

fn page_asked(head: &Parts) -> Result<PageOf, Failure> {
    let Query(page) = Query::<PageOf>::try_from_uri(&head.uri).map_err(|_| Failure::InvalidRequest)?;
    Ok(page)
}
