//! Where a request goes: path, role, method, in this order.

use std::sync::Arc;

use axum::http::Method;
use axum::http::request::Parts;

use super::TurnedAway;
use super::auth::{Role, require};
use crate::failure::Failure;
use crate::routes::RouteTable;

/// The filter: finds the route of the path. An unknown path is 404 for everybody, a known one 403 for those who may not
/// transact, and only then is the method looked at.
pub fn find_route(routes: &RouteTable, head: &mut Parts) -> Result<(), TurnedAway> {
    let route = Arc::clone(routes.find(head.uri.path()).ok_or(Failure::UnknownRoute)?);
    require(Role::Client, head)?;
    if head.method != Method::POST {
        return Err(Failure::MethodNotAllowed.into());
    }
    head.extensions.insert(route);
    Ok(())
}
