//! What the ledger counts. The counters go up where rows are written, so they are the ledger's own count.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::metrics::{Counter, Histogram};
use foldhash::HashMap;

use super::row::{Row, Status};
use super::store::Shipment;
use crate::telemetry::Telemetry;

#[derive(Debug)]
pub(super) struct Metrics {
    telemetry: Arc<Telemetry>,
    routes: Mutex<HashMap<String, Arc<RouteMetrics>>>,
    shipped: Counter,
    parked: Counter,
    ship_failures: Counter,
}

#[derive(Debug)]
struct RouteMetrics {
    by_status: [Counter; 3],
    seconds: Histogram,
}

impl Metrics {
    pub(super) fn new(telemetry: &Arc<Telemetry>) -> Self {
        // Nothing is ever dropped; the counter stands here so that an alarm can be set on it.
        telemetry.counter("gwanmun_ledger_dropped_total", &[("reason", "any")]).absolute(0);
        Self {
            telemetry: Arc::clone(telemetry),
            routes: Mutex::default(),
            shipped: telemetry.counter("gwanmun_ledger_shipped_total", &[]),
            parked: telemetry.counter("gwanmun_ledger_parked_total", &[]),
            ship_failures: telemetry.counter("gwanmun_ledger_ship_failures_total", &[]),
        }
    }

    pub(super) fn closed(&self, row: &Row, elapsed: Duration) {
        let metrics = self.of_route(&row.facts.route);
        for (counter, status) in metrics.by_status.iter().zip(Status::ALL) {
            if status == row.closing.status {
                counter.increment(1);
            }
        }
        metrics.seconds.record(elapsed.as_secs_f64());
    }

    fn of_route(&self, route: &str) -> Arc<RouteMetrics> {
        let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(metrics) = routes.get(route) {
            return Arc::clone(metrics);
        }
        let counter = |status: Status| {
            let labels = [("route", route), ("status", status.name())];
            self.telemetry.counter("gwanmun_transactions_total", &labels)
        };
        let seconds = self.telemetry.histogram("gwanmun_transaction_seconds", &[("route", route)]);
        let metrics = Arc::new(RouteMetrics { by_status: Status::ALL.map(counter), seconds });
        routes.insert(route.to_owned(), Arc::clone(&metrics));
        metrics
    }

    pub(super) fn shipped(&self, shipment: Shipment) {
        self.shipped.increment(u64::try_from(shipment.inserted).unwrap_or_default());
        self.parked.increment(u64::try_from(shipment.parked).unwrap_or_default());
    }

    pub(super) fn ship_failed(&self) {
        self.ship_failures.increment(1);
    }
}
