//! The control port: the outside witness, and the place where faults are set. Loopback only, which `server` checks.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::bank::BookingState;
use crate::faults::FaultSchedule;
use crate::host::{Arrival, Counters, Host};

pub(crate) async fn serve(listener: TcpListener, host: Arc<Host>) {
    let router = Router::new()
        .route("/counters", get(counters))
        .route("/arrivals", get(arrivals))
        .route("/books/{tran_id}", get(book))
        .route("/total", get(total))
        .route("/faults", get(faults).put(set_faults))
        .route("/close-idle", post(close_idle))
        .with_state(host);
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(kind = ?error.kind(), "the simulator's control port stopped");
    }
}

async fn counters(State(host): State<Arc<Host>>) -> Json<Counters> {
    Json(host.counters())
}

async fn arrivals(State(host): State<Arc<Host>>) -> Json<Vec<Arrival>> {
    Json(host.arrivals())
}

async fn book(State(host): State<Arc<Host>>, Path(id): Path<String>) -> Json<Value> {
    let booking = host.bank(|bank| bank.booking(&id).cloned());
    let Some(booking) = booking else {
        return Json(json!({"state": "unknown", "amount": 0, "from": "", "to": ""}));
    };
    let state = match booking.state {
        BookingState::Applied => "applied",
        BookingState::Cancelled => "cancelled",
        BookingState::Tombstone => "tombstone",
        BookingState::Declined => "declined",
    };
    Json(json!({"state": state, "amount": booking.amount, "from": booking.from, "to": booking.to}))
}

async fn total(State(host): State<Arc<Host>>) -> Json<Value> {
    Json(json!({"delta": host.bank(crate::bank::Bank::delta)}))
}

async fn faults(State(host): State<Arc<Host>>) -> Json<FaultSchedule> {
    Json(host.faults())
}

async fn set_faults(State(host): State<Arc<Host>>, Json(schedule): Json<FaultSchedule>) -> StatusCode {
    if !schedule.is_possible() {
        return StatusCode::UNPROCESSABLE_ENTITY;
    }
    host.set_faults(schedule);
    StatusCode::NO_CONTENT
}

async fn close_idle(State(host): State<Arc<Host>>) -> StatusCode {
    host.close_idle();
    StatusCode::NO_CONTENT
}
