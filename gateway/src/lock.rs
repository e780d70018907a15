//! The locks and counters that threads meet at in the breaker and in the pool: the standard ones, and under `cfg(interleave)`
//! loom's, which try every order.

#[cfg(not(interleave))]
pub(crate) use std::sync::atomic::AtomicU64;
#[cfg(not(interleave))]
pub(crate) use std::sync::{Mutex, MutexGuard};

#[cfg(interleave)]
pub(crate) use loom::sync::atomic::AtomicU64;
#[cfg(interleave)]
pub(crate) use loom::sync::{Mutex, MutexGuard};
