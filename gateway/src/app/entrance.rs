//! Where every request comes in: the filter chain, and who answers. Whoever reads this sees the order in which a request is looked at.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::request::Parts;
use axum::response::Response;
use tower::Service as _;

use crate::filters::auth::{Caller, Keys, Role, authenticate, authorize};
use crate::filters::rate_limit::ClientLimit;
use crate::filters::routing::may_submit;
use crate::filters::{Admitted, TurnedAway};
use crate::http::asker::Asker;
use crate::http::reply;
use crate::http::submit::{Submit, submit};
use crate::left_out::{Part, is_left_out};
use crate::routes::{Route, RouteTable};
use crate::telemetry::Telemetry;

/// Answers requests.
#[derive(Debug)]
pub struct Entrance {
    pub(super) telemetry: Arc<Telemetry>,
    pub(super) keys: Arc<Keys>,
    pub(super) routes: RouteTable,
    pub(super) client_limit: Arc<ClientLimit>,
    pub(super) submit: Submit,
    /// Everything that is no transaction. Observation stands beside the chain and not in it: watching a jam must not be stopped by
    /// the jam.
    pub(super) observation: Router,
}

impl Entrance {
    /// Answers a request.
    pub async fn answer(&self, request: Request) -> Response {
        let (head, body) = request.into_parts();
        // First of all a name for the call, so that every answer can carry it.
        let asker = Asker::of(&head.headers);
        let response = self.answer_to(&asker, head, body).await;
        reply::sign(response, asker, &self.telemetry)
    }

    async fn answer_to(&self, asker: &Asker, mut head: Parts, body: Body) -> Response {
        let caller = match known(&self.keys, &head) {
            Ok(caller) => caller,
            Err(away) => return reply::turned_away(asker, away),
        };
        // Where does it go? An unknown path must cost nothing, not even a token.
        if let Some(route) = self.routes.find(head.uri.path()) {
            return match admit(route, caller, &self.client_limit, &head).await {
                Ok(admitted) => submit(&self.submit, asker, admitted, &head, body).await,
                Err(away) => reply::turned_away(asker, away),
            };
        }
        head.extensions.insert(asker.clone());
        caller.map(|caller| head.extensions.insert(caller));
        let Ok(response) = self.observation.clone().call(Request::from_parts(head, body)).await;
        response
    }
}

fn known(keys: &Keys, head: &Parts) -> Result<Option<Arc<Caller>>, TurnedAway> {
    if is_left_out(Part::Auth) {
        return Ok(keys.anybody(Role::Client));
    }
    // Who calls? Before anything else is said, on any path under /api/.
    let caller = authenticate(keys, head)?;
    // May they? Before it is said whether there is anything.
    authorize(head, caller.as_deref())?;
    Ok(caller)
}

async fn admit(
    route: &Arc<Route>,
    caller: Option<Arc<Caller>>,
    limit: &ClientLimit,
    head: &Parts,
) -> Result<Admitted, TurnedAway> {
    // May this caller do such a thing at all, and in this way?
    let caller = may_submit(caller, head)?;
    // How often? After the route, so that only real calls use up a client's limit. Last, because it admits.
    limit.admit(caller, Arc::clone(route)).await
}
