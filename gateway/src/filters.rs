//! The filters of the request path: plain functions on a request's head, each behind the one generic service here.
//!
//! Their order is written in `app.rs`. The last one inserts [`Admitted`], whose fields are private: a handler that takes
//! it can't be reached around the chain.

pub mod auth;
pub mod rate_limit;
pub mod routing;

use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::extract::Request;
use axum::http::request::Parts;
use axum::response::Response;
use tokio_util::either::Either;
use tower::{Layer, Service};

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

/// A filter: looks at the head, may add to its extensions, may turn the request away.
pub trait Filter: Fn(&mut Parts) -> Result<(), TurnedAway> + Clone + Send + Sync + 'static {}

impl<F: Fn(&mut Parts) -> Result<(), TurnedAway> + Clone + Send + Sync + 'static> Filter for F {}

/// Writes the answer to a request that was turned away.
pub type Refuse = fn(&Parts, TurnedAway) -> Response;

/// Puts a filter in front of a service.
#[derive(Debug, Clone)]
pub struct FilterLayer<F> {
    filter: F,
    refuse: Refuse,
}

impl<F: Filter> FilterLayer<F> {
    /// A layer of this filter.
    pub fn new(filter: F, refuse: Refuse) -> Self {
        Self { filter, refuse }
    }
}

impl<F: Filter, S> Layer<S> for FilterLayer<F> {
    type Service = Filtered<F, S>;

    fn layer(&self, inner: S) -> Filtered<F, S> {
        Filtered { filter: self.filter.clone(), refuse: self.refuse, inner }
    }
}

/// A service behind a filter.
#[derive(Debug, Clone)]
pub struct Filtered<F, S> {
    filter: F,
    refuse: Refuse,
    inner: S,
}

impl<F, S> Service<Request> for Filtered<F, S>
where
    F: Filter,
    S: Service<Request, Response = Response>,
{
    type Response = Response;
    type Error = S::Error;
    type Future = Either<S::Future, Ready<Result<Response, S::Error>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let (mut head, body) = request.into_parts();
        match (self.filter)(&mut head) {
            Ok(()) => Either::Left(self.inner.call(Request::from_parts(head, body))),
            Err(away) => Either::Right(ready(Ok((self.refuse)(&head, away)))),
        }
    }
}
