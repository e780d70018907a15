//! The filters of the request path: plain functions on a request's head.
//!
//! Their order is written in `app/entrance.rs`. The last one makes [`Admitted`], whose fields are private: a handler that takes it
//! can't be reached around the chain.

pub mod auth;
pub mod rate_limit;
pub mod routing;

use std::sync::Arc;

use crate::bucket::Standing;
use crate::failure::Failure;
use crate::redis_store::Patience;
use crate::routes::Route;
use auth::Caller;

/// A request that passed every filter.
#[derive(Debug, Clone)]
pub struct Admitted {
    caller: Arc<Caller>,
    route: Arc<Route>,
    standing: Option<Standing>,
    patience: Patience,
}

impl Admitted {
    /// Who calls.
    #[must_use]
    pub fn caller(&self) -> &Arc<Caller> {
        &self.caller
    }

    /// Where it goes.
    #[must_use]
    pub fn route(&self) -> &Arc<Route> {
        &self.route
    }

    /// What is left of the caller's rate limit, if anybody knows.
    #[must_use]
    pub fn standing(&self) -> Option<Standing> {
        self.standing
    }

    /// How long the request may still wait for Redis.
    #[must_use]
    pub fn patience(&self) -> &Patience {
        &self.patience
    }
}

/// A filter turns a request away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnedAway {
    /// Why.
    pub failure: Failure,
    /// The caller's rate limit, when that is why.
    pub standing: Option<Standing>,
}

impl From<Failure> for TurnedAway {
    fn from(failure: Failure) -> Self {
        Self { failure, standing: None }
    }
}
