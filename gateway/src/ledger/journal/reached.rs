//! How far something has got, and those who wait until it has got further. They are woken in the order in which they came; a
//! watch channel wakes them in a random one, and then no run could be replayed.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Position;
use crate::ledger::told::{Told, Waits, tell_all, told};

/// A place that only goes forward.
#[derive(Debug)]
pub(in crate::ledger) struct Reached(Mutex<State>);

#[derive(Debug)]
struct State {
    at: Position,
    /// In the order in which they came, each with the place that it waits for.
    waiting: Vec<(Position, Told<()>)>,
    /// So many may wait before it is looked who has given up.
    look_at: usize,
}

/// Fewer than these are not worth a look.
const LOOK_MIN: usize = 64;

impl State {
    /// Whoever has given up waits for nothing.
    fn forget_the_gone(&mut self) {
        self.waiting.retain(|(_, waiting)| !waiting.has_gone());
        self.look_at = LOOK_MIN.max(2 * self.waiting.len());
    }
}

impl Reached {
    pub(in crate::ledger) fn new(at: Position) -> Self {
        Self(Mutex::new(State { at, waiting: Vec::new(), look_at: LOOK_MIN }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::ledger) fn get(&self) -> Position {
        self.state().at
    }

    /// Goes forward, and wakes those who have waited for that; nobody else.
    pub(in crate::ledger) fn advance(&self, to: Position) {
        let mut state = self.state();
        state.at = to;
        let reached: Vec<_> = state.waiting.extract_if(.., |(wanted, _)| *wanted <= to).collect();
        state.forget_the_gone();
        drop(state);
        tell_all(reached.into_iter().map(|(_, waiting)| (waiting, ())));
    }

    /// Waits until it has got to `position`.
    pub(in crate::ledger) async fn wait_for(&self, position: Position) {
        while let Some(waits) = self.register(position) {
            // An error says that whoever told us is gone; then look again.
            drop(waits.await);
        }
    }

    /// Waits until it has got beyond `position`.
    pub(in crate::ledger) async fn wait_beyond(&self, position: Position) {
        self.wait_for(Position { offset: position.offset + 1, ..position }).await;
    }

    fn register(&self, position: Position) -> Option<Waits<()>> {
        let mut state = self.state();
        if state.at >= position {
            return None;
        }
        if state.waiting.len() >= state.look_at {
            state.forget_the_gone();
        }
        let (told, waits) = told();
        state.waiting.push((position, told));
        Some(waits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn those_who_have_given_up_are_forgotten_although_nothing_moves() {
        let reached = Reached::new(Position::default());
        let there = Position { segment: 1, offset: 0 };
        let waits = reached.register(there).unwrap();
        for _ in 0..10_000 {
            drop(reached.register(there));
        }
        assert!(reached.state().waiting.len() <= LOOK_MIN, "{}", reached.state().waiting.len());
        reached.advance(there);
        waits.await.unwrap();
    }
}
