//! Whether a request may go where its path leads: role, then method.

use std::sync::Arc;

use axum::http::Method;
use axum::http::request::Parts;

use super::TurnedAway;
use super::auth::{Caller, Role, require};
use crate::failure::Failure;

/// The filter: on a path of transactions 403 is said to those who may not transact, and only then is the method looked at.
///
/// # Errors
/// [`Failure::Unauthenticated`], [`Failure::Forbidden`], [`Failure::MethodNotAllowed`].
pub fn may_submit(caller: Option<Arc<Caller>>, head: &Parts) -> Result<Arc<Caller>, TurnedAway> {
    require(Role::Client, caller.as_deref())?;
    if head.method != Method::POST {
        return Err(Failure::MethodNotAllowed.into());
    }
    caller.ok_or(Failure::Unauthenticated.into())
}
