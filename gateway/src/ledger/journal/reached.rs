//! How far something has got, and those who wait until it has got further. They are woken in the order in which they came; a
//! watch channel wakes them in a random one, and then no run could be replayed.

use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

use super::Position;

/// A place that only goes forward.
#[derive(Debug)]
pub(in crate::ledger) struct Reached {
    at: Mutex<Position>,
    moved: Notify,
}

impl Reached {
    pub(in crate::ledger) fn new(at: Position) -> Self {
        Self { at: Mutex::new(at), moved: Notify::new() }
    }

    pub(in crate::ledger) fn get(&self) -> Position {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::ledger) fn advance(&self, to: Position) {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) = to;
        self.moved.notify_waiters();
    }

    /// Waits until it has got to `position`.
    pub(in crate::ledger) async fn wait_for(&self, position: Position) {
        loop {
            // Registered before the look, so that nothing is missed between.
            let moved = self.moved.notified();
            if self.get() >= position {
                return;
            }
            moved.await;
        }
    }

    /// Waits until it has got beyond `position`.
    pub(in crate::ledger) async fn wait_beyond(&self, position: Position) {
        loop {
            let moved = self.moved.notified();
            if self.get() > position {
                return;
            }
            moved.await;
        }
    }
}
