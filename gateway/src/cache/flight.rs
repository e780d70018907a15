//! Single flight: of several that miss the same reply at once one asks, and the others wait for what it hears.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use crate::resilience::Fault;

/// What the one who asked heard: the reply, or why there is none.
pub(super) type Landed = Result<Arc<[u8]>, Fault>;

/// Who asks at the moment, by key.
#[derive(Debug, Default)]
pub(super) struct Flights {
    under_way: Mutex<HashMap<String, watch::Receiver<Option<Landed>>>>,
}

/// One's part in a flight.
pub(super) enum Part {
    /// Asks.
    Lead(Flight),
    /// Waits.
    Follow(watch::Receiver<Option<Landed>>),
}

/// A flight that is led. Dropping it ends it for the followers too; then they hear nothing.
pub(super) struct Flight {
    flights: Arc<Flights>,
    key: String,
    tell: watch::Sender<Option<Landed>>,
}

impl Flights {
    /// Joins the flight of a key, or begins one.
    pub(super) fn join(self: &Arc<Self>, key: &str) -> Part {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(flight) = under_way.get(key) {
            return Part::Follow(flight.clone());
        }
        let (tell, hear) = watch::channel(None);
        under_way.insert(key.to_owned(), hear);
        Part::Lead(Flight { flights: Arc::clone(self), key: key.to_owned(), tell })
    }
}

impl Flight {
    /// Tells the followers. Who comes before the flight is dropped hears it too.
    pub(super) fn land(&self, landed: Landed) {
        self.tell.send_replace(Some(landed));
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.flights.under_way.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}
