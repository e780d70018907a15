//! Gwanmun (관문): a gateway between JSON over HTTP and fixed-length bank messages over TCP that is right on a bad day.
//!
//! Modules stand in the order in which a request flows. A module uses only what is listed below it; a test enforces that.

pub mod cli;
pub mod app;
pub mod config;
pub mod http;
pub mod filters;
pub mod resolve;
pub mod transaction;
pub mod cache;
pub mod resilience;
pub mod failure;
pub mod budget;
pub mod pool;
pub mod breaker;
pub mod ledger;
pub mod routes;
pub mod redis_store;
pub mod bucket;
pub mod lookup;
mod left_out;
pub mod telemetry;
mod lock;
pub mod clock;

/// Real servers for the tests, and what spoils the way to them.
#[cfg(test)]
#[path = "../tests/parts"]
mod parts {
    pub(crate) mod postgres;
    pub(crate) mod proxy;
    pub(crate) mod redis;
}
