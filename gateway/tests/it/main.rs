//! The gateway's integration tests: through HTTP, against the simulator or a scripted host.
#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test stops at the first surprise")]
#![expect(clippy::disallowed_methods, reason = "tests read the clock and the environment themselves")]

mod adding_a_message;
mod budget;
mod budget_cost;
mod budget_slots;
mod cache;
mod callers;
mod circuit;
mod client;
mod command_line;
mod contract;
mod documents;
mod drill;
mod drop_at_every_poll;
mod edge;
mod fault_accounts;
mod harness;
mod idempotency;
mod ids;
mod kill;
mod ledger_routes;
mod place;
mod planted;
mod pool;
#[path = "../parts/postgres.rs"]
mod postgres;
mod process;
#[expect(dead_code, reason = "what the unit tests do with it is more")]
#[path = "../parts/proxy.rs"]
mod proxy;
#[path = "../parts/redis.rs"]
mod redis;
mod reconciliation;
mod reconciliation_at_size;
mod resolution;
mod scripted_host;
mod secrets;
mod seams;
mod shared_limits;
mod taxonomy;
mod two_gateways;
