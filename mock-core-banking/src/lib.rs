//! The core banking simulator: a small bank that remembers, with faults on demand and an outside witness.
//!
//! A first-class part and not a stub: it keeps balances, refuses duplicates, leaves tombstones behind a net-cancel, and
//! its control port tells what really happened, so that a test need not believe the gateway. It depends on the codec
//! only; what it says is checked against golden bytes that another encoder made.

mod answer;
mod arrival;
mod bank;
mod control;
mod faults;
mod host;
mod server;
mod wire;

pub use bank::{Bank, Booking, BookingState, opening_balance};
pub use faults::{Fault, FaultRule, FaultSchedule};
pub use host::{Arrival, Connections, Counters, Host};
pub use server::{Port, Settings, Simulator, StartError};
