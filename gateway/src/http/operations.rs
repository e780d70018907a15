//! What operators read: circuits, pools, metrics, health. These routes stand outside the rate limit and the admission
//! limit on purpose: watching a jam must not be stopped by the jam.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Value, json};

use super::limits::{self, Limits};
use super::reply;
use crate::breaker::State as Circuit;
use crate::ledger::Ledger;
use crate::resilience::Institution;
use crate::telemetry::Telemetry;
use crate::transaction::Transactions;

/// What the handlers need.
#[derive(Debug, Clone)]
pub struct Operations {
    /// Institutions by name.
    pub institutions: Arc<BTreeMap<String, Arc<Institution>>>,
    /// Transactions.
    pub transactions: Arc<Transactions>,
    /// The ledger.
    pub ledger: Arc<Ledger>,
    /// What gateways share.
    pub limits: Limits,
    /// Metrics.
    pub telemetry: Arc<Telemetry>,
}

/// The routes. Who may see which is `auth`'s.
pub fn router(operations: Operations) -> Router {
    Router::new()
        .route("/api/circuit/stats", get(circuits))
        .route("/api/pool/stats", get(pools))
        .route("/api/limits/stats", get(limits))
        .route("/metrics", get(metrics))
        .route("/health/live", get(live))
        .route("/health/ready", get(ready))
        .with_state(operations)
}

async fn limits(State(operations): State<Operations>) -> Response {
    reply::json(StatusCode::OK, &limits::stats(&operations.limits, &operations.institutions))
}

async fn circuits(State(operations): State<Operations>) -> Response {
    let stats = |institution: &Arc<Institution>| {
        let stats = institution.breaker.stats();
        json!({
            "state": stats.state.name(),
            "generation": stats.generation,
            "consecutiveFailures": stats.consecutive_failures,
            "openedTotal": stats.opened_total,
            "rejectedTotal": stats.rejected_total,
            "staleResultsTotal": stats.stale_results_total,
            "probesInFlight": stats.probes_in_flight,
            "since": stats.since.to_string(),
        })
    };
    by_institution(&operations, stats)
}

async fn pools(State(operations): State<Operations>) -> Response {
    let stats = |institution: &Arc<Institution>| {
        let stats = institution.pool.stats();
        json!({
            "max": stats.max,
            "active": stats.active,
            "idle": stats.idle,
            "waiting": stats.waiting,
            "created": stats.created,
            "reused": stats.reused,
            "destroyed": stats.destroyed,
            "expired": stats.expired,
            "exhausted": stats.exhausted,
        })
    };
    by_institution(&operations, stats)
}

fn by_institution(operations: &Operations, stats: impl Fn(&Arc<Institution>) -> Value) -> Response {
    let all: BTreeMap<_, _> = operations.institutions.iter().map(|(name, one)| (name, stats(one))).collect();
    reply::json(StatusCode::OK, &all)
}

#[expect(clippy::cast_precision_loss, reason = "gauges are floats; counts this large do not occur")]
async fn metrics(State(operations): State<Operations>) -> Response {
    let Operations { institutions, transactions, ledger, limits, telemetry } = operations;
    limits::set_metrics(&limits, &institutions, &telemetry);
    for (name, institution) in &*institutions {
        let labels = [("institution", name.as_str())];
        let circuit = institution.breaker.stats();
        let state = match circuit.state {
            Circuit::Closed => 0.0,
            Circuit::HalfOpen => 1.0,
            Circuit::Open => 2.0,
        };
        telemetry.gauge("gwanmun_circuit_state", &labels).set(state);
        telemetry.counter("gwanmun_circuit_opened_total", &labels).absolute(circuit.opened_total);
        telemetry.counter("gwanmun_circuit_rejected_total", &labels).absolute(circuit.rejected_total);
        telemetry.counter("gwanmun_circuit_stale_results_total", &labels).absolute(circuit.stale_results_total);
        let pool = institution.pool.stats();
        for (gauge, value) in [("active", pool.active), ("idle", pool.idle), ("waiting", pool.waiting)] {
            let labels = [("institution", name.as_str()), ("state", gauge)];
            telemetry.gauge("gwanmun_pool_connections", &labels).set(value as f64);
        }
        telemetry.counter("gwanmun_pool_exhausted_total", &labels).absolute(pool.exhausted);
    }
    telemetry.gauge("gwanmun_transactions_in_flight", &[]).set(transactions.in_flight() as f64);
    telemetry.gauge("gwanmun_ledger_open_intents", &[]).set(ledger.journal().in_flight() as f64);
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], telemetry.render()).into_response()
}

async fn live() -> Response {
    reply::json(StatusCode::OK, &json!({"status": "UP"}))
}

/// Ready means that transactions are taken. A store that is down does not make it unready: the journal absorbs that.
async fn ready(State(operations): State<Operations>) -> Response {
    let journal = !operations.ledger.journal().failed().is_cancelled();
    if journal && !operations.transactions.is_draining() {
        reply::json(StatusCode::OK, &json!({"status": "UP"}))
    } else {
        reply::json(StatusCode::SERVICE_UNAVAILABLE, &json!({"status": "DOWN"}))
    }
}
