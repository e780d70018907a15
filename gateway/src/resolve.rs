//! Resolution of UNKNOWN mutations: undone, or asked about, until somebody knows. Works on shipped rows alone and wholly in the
//! store, so that any gateway may go on where another one stopped.
//!
//! A resolver holds a row for a while; every write says that it still does. A net-cancel's intent is in the store before its
//! first byte can leave, and from then on only a net-cancel's answer may close the row.

mod judgement;
mod reconcile;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use codec::{Record, Value};
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, Deadline, Instant};
use crate::failure::Failure;
use crate::ledger::{
    ByHand, Doubt, Ledger, Resolution, ResolveAs, Step, StepEnd, Store, StoreError, StoredRow, TransactionId, Verdict,
    Wanted,
};
use crate::redis_store::Patience;
use crate::resilience::{Fault, Institution, Outgoing, Transcript};
use crate::routes::{Kind, OnDoubt, Route, RouteTable};
use crate::telemetry::Telemetry;
use judgement::{Heard, Question, Terms};
pub use reconcile::{Daily, Finishing, Reconciler};

/// The resolver's rules.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Whether rows are resolved without being asked to.
    pub enabled: bool,
    /// How often to look for rows in doubt.
    pub poll: Duration,
    /// Rows that one gateway asks about at a time.
    pub at_once: u32,
    /// Wait after the first question that decided nothing.
    pub wait_min: Duration,
    /// Longest wait.
    pub wait_max: Duration,
}

/// What a mutation's route says of its doubts.
#[derive(Debug, Clone)]
struct Rule {
    institution: String,
    on_doubt: OnDoubt,
    deadline: Duration,
    /// How long after the deadline an original may still arrive.
    settle_time: Duration,
}

/// What a resolver works on.
#[derive(Debug)]
pub struct Resolver {
    store: Store,
    institutions: Arc<BTreeMap<String, Arc<Institution>>>,
    /// By route.
    routes: HashMap<String, Rule>,
    settings: Settings,
    /// How long a row is held.
    lease: Duration,
    clock: Clock,
    telemetry: Arc<Telemetry>,
}

/// A row and the steps that were made for it.
#[derive(Debug)]
pub struct Resolving {
    /// The row as it stands now.
    pub row: StoredRow,
    /// Its steps, oldest first.
    pub steps: Vec<Step>,
}

impl Resolver {
    /// A resolver over these institutions.
    #[must_use]
    pub fn new(
        store: Store,
        institutions: Arc<BTreeMap<String, Arc<Institution>>>,
        routes: &RouteTable,
        settings: Settings,
        (clock, telemetry): (Clock, Arc<Telemetry>),
    ) -> Self {
        let questions = institutions.values().flat_map(|one| {
            [&one.questions.status, &one.questions.net_cancel].into_iter().flatten().map(|route| route.deadline)
        });
        // Long enough for two questions, one after the other.
        let lease = 2 * questions.max().unwrap_or_default() + Duration::from_secs(4);
        let mutations = routes.all().into_iter().filter(|route| route.kind == Kind::Mutation);
        let rule = |route: &Arc<Route>| Rule {
            institution: route.institution.clone(),
            on_doubt: route.on_doubt,
            deadline: route.deadline,
            settle_time: route.settle_time,
        };
        let routes = mutations.map(|route| (route.name.clone(), rule(route))).collect();
        Self { store, institutions, routes, settings, lease, clock, telemetry }
    }

    /// Resolves what is due, for ever.
    pub async fn run(self: Arc<Self>, ledger: Arc<Ledger>, stop: CancellationToken) {
        loop {
            // A step that has begun is ended and recorded, also when the process stops.
            let found = self.pass(&Wanted::Due(&self.askable()), self.settings.at_once).await.unwrap_or(0);
            if stop.is_cancelled() {
                return;
            }
            if found >= usize::try_from(self.settings.at_once).unwrap_or(usize::MAX) {
                continue;
            }
            tokio::select! {
                biased;
                () = tokio::time::sleep(self.settings.poll) => {}
                () = ledger.doubted().notified() => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// The routes whose doubts this gateway knows how to resolve, and whose institution takes calls at the moment: a row that
    /// nobody could ask about is not even held.
    fn askable(&self) -> Vec<String> {
        let takes_calls = |institution: &String| {
            let institution = self.institutions.get(institution);
            institution.is_some_and(|one| !one.breaker.is_waiting() && !one.gate.is_out())
        };
        let known = self.routes.iter().filter(|(_, rule)| takes_calls(&rule.institution));
        known.map(|(route, _)| route.clone()).collect()
    }

    /// Holds up to `limit` rows, makes a step for each, and says how many there were.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn pass(self: &Arc<Self>, wanted: &Wanted<'_>, limit: u32) -> Result<usize, StoreError> {
        let token = uuid::Uuid::now_v7().simple().to_string();
        let doubts = self.store.hold_doubts(wanted, &token, self.lease, limit).await?;
        let count = doubts.len();
        let mut steps = tokio::task::JoinSet::new();
        for doubt in doubts {
            let (resolver, token) = (Arc::clone(self), token.clone());
            steps.spawn(async move { resolver.resolve(doubt, &token).await });
        }
        while let Some(done) = steps.join_next().await {
            if !matches!(done, Ok(Ok(()))) {
                // Held until the lease is over, then somebody tries again.
                tracing::warn!("a resolution step could not be recorded");
            }
        }
        Ok(count)
    }

    /// Makes a step for one transaction now, due or not.
    ///
    /// # Errors
    /// [`Failure::UnknownTransaction`], [`Failure::NotResolvable`], [`Failure::ResolutionInProgress`],
    /// [`Failure::LedgerUnreadable`].
    pub async fn step_now(self: &Arc<Self>, id: TransactionId) -> Result<Resolving, Failure> {
        let before = self.store.row(id).await?.ok_or(Failure::UnknownTransaction)?;
        let is_doubt = before.resolved.state != Resolution::None && before.row.facts.kind == Kind::Mutation;
        let is_open = before.resolved.state.is_open();
        if !is_doubt || (is_open && before.resolved.resolve_as == Some(ResolveAs::Hand)) {
            return Err(Failure::NotResolvable);
        }
        if is_open && self.pass(&Wanted::One(id), 1).await? == 0 {
            return Err(Failure::ResolutionInProgress);
        }
        self.standing(id).await
    }

    /// Closes a MANUAL row by an operator's word.
    ///
    /// # Errors
    /// As [`Resolver::step_now`].
    pub async fn close_by_hand(&self, id: TransactionId, hand: &ByHand<'_>) -> Result<Resolving, Failure> {
        let before = self.store.row(id).await?.ok_or(Failure::UnknownTransaction)?;
        if !self.store.close_by_hand(id, hand).await? {
            // Manual, and what is asked for could be said: then somebody is asking the host just now.
            let is_held = before.resolved.state == Resolution::Manual && hand.state != Resolution::ConfirmedSuccess;
            return Err(if is_held { Failure::ResolutionInProgress } else { Failure::NotResolvable });
        }
        self.count(hand.state);
        tracing::warn!(transaction = %id, resolution = hand.state.name(), by = hand.by, "closed by hand");
        self.standing(id).await
    }

    async fn standing(&self, id: TransactionId) -> Result<Resolving, Failure> {
        let row = self.store.row(id).await?.ok_or(Failure::UnknownTransaction)?;
        Ok(Resolving { row, steps: self.store.steps(id).await? })
    }

    fn count(&self, state: Resolution) {
        self.telemetry.counter("gwanmun_resolved_total", &[("resolution", state.name())]).increment(1);
    }

    /// Asks about one row until something is decided, or nothing more can be asked now.
    async fn resolve(&self, mut doubt: Doubt, token: &str) -> Result<(), StoreError> {
        let id = doubt.row.facts.id;
        loop {
            let institution = self.institutions.get(&doubt.row.facts.institution);
            let terms = self.terms(&doubt, institution.map(Arc::as_ref));
            let question = terms.question(&doubt);
            let asked = institution.and_then(|one| Some((one, question.route(&one.questions)?)));
            let Some((institution, route)) = asked else {
                // A route that is for people stays theirs; one that this gateway can't ask about, another one might.
                let for_people = terms.on_doubt == OnDoubt::Manual && !doubt.cancel_intended;
                let verdict = if for_people { Verdict::Hand } else { Verdict::Manual };
                tracing::warn!(transaction = %id, "nothing can be asked about a transaction in doubt: it is manual");
                return self.end(id, token, question, "nobody to ask", verdict, false).await.map(drop);
            };
            let mut asking = Asking::new(&self.store, id, token, question);
            let heard = ask(institution, route, &mut asking, &self.clock).await;
            if asking.lost {
                tracing::info!(transaction = %id, "a row in doubt is another resolver's by now");
                return Ok(());
            }
            doubt.cancel_intended |= asking.sent && question == Question::Cancel;
            let decided = terms.decide(question, &heard, &doubt);
            let wait_more = matches!(decided, Verdict::GoOn);
            let not_processed = heard == Heard::NotProcessed;
            if !self.end(id, token, question, heard.name(), decided, not_processed).await? || !wait_more {
                return Ok(());
            }
            doubt.not_processed_since = doubt.not_processed_since.or(Some(Duration::ZERO));
        }
    }

    async fn end(
        &self,
        id: TransactionId,
        token: &str,
        question: Question,
        answered: &str,
        verdict: Verdict,
        not_processed: bool,
    ) -> Result<bool, StoreError> {
        let end = StepEnd { asked: question.name(), answered, verdict, not_processed };
        let recorded = self.store.end_step(id, token, &end).await?;
        match verdict {
            Verdict::ByCancel(state) | Verdict::ByInquiry(state) if recorded => {
                self.count(state);
                tracing::info!(transaction = %id, resolution = state.name(), "a transaction in doubt is resolved");
            }
            Verdict::Manual | Verdict::Hand if recorded => self.count(Resolution::Manual),
            _ => {}
        }
        Ok(recorded)
    }

    fn terms(&self, doubt: &Doubt, institution: Option<&Institution>) -> Terms {
        let rule = self.routes.get(&doubt.row.facts.route);
        let on_doubt = match doubt.resolve_as {
            Some(ResolveAs::Confirm) => OnDoubt::Confirm,
            _ => rule.map_or(OnDoubt::Manual, |rule| rule.on_doubt),
        };
        let may_arrive = rule.map_or(Duration::from_mins(2), |rule| rule.deadline + rule.settle_time);
        let doubled = self.settings.wait_min.saturating_mul(2_u32.saturating_pow(doubt.tries.min(20)));
        let jitter = 0.5 + fastrand::f64() / 2.0;
        let today = self.clock.business_date().strftime("%Y%m%d").to_string();
        Terms {
            on_doubt,
            tombstones: institution.is_some_and(|one| one.questions.tombstones),
            may_arrive,
            wait: doubled.min(self.settings.wait_max).mul_f64(jitter),
            day_is_over: today.as_str() > doubt.row.facts.id.business_day(),
        }
    }
}

/// Sends one question about an original and understands the answer.
async fn ask(institution: &Institution, route: &Route, asking: &mut Asking<'_>, clock: &Clock) -> Heard {
    let mut record = Record::new(&route.request);
    let Some(index) = route.request.index_of("origTranId") else { return Heard::Nothing("internal") };
    record.set_at(index, Value::Text(asking.id.as_str()));
    let mut frame = Vec::new();
    if codec::encode(&record, &mut frame).is_err() {
        return Heard::Nothing("internal");
    }
    let deadline = Deadline::after(clock.now(), route.deadline);
    let patience = Patience::default();
    let outgoing = Outgoing { route, frame: &frame, deadline, patience: &patience };
    match institution.call(outgoing, asking).await {
        Ok(reply) => asking.question.understand(&reply),
        Err(Fault { failure, retry_after, .. }) => match failure {
            Failure::CircuitOpen => Heard::Suspended(failure.name(), retry_after.unwrap_or_default()),
            Failure::BudgetExhausted | Failure::BudgetUnavailable => {
                Heard::Denied(failure.name(), retry_after.unwrap_or_default())
            }
            _ => Heard::Nothing(failure.name()),
        },
    }
}

/// One question about one row: a net-cancel's intent goes into the store before its first byte can leave.
struct Asking<'a> {
    store: &'a Store,
    id: TransactionId,
    token: &'a str,
    question: Question,
    /// Whether a byte may have left.
    sent: bool,
    /// Whether the row turned out to be another resolver's.
    lost: bool,
}

impl<'a> Asking<'a> {
    fn new(store: &'a Store, id: TransactionId, token: &'a str, question: Question) -> Self {
        Self { store, id, token, question, sent: false, lost: false }
    }
}

impl Transcript for Asking<'_> {
    async fn intend(&mut self, deadline: Deadline) -> Result<(), Failure> {
        if self.question != Question::Cancel {
            return Ok(());
        }
        // In a task of its own: a line to the host is held meanwhile, and a statement that is dropped costs its connection.
        let (store, id, token) = (self.store.clone(), self.id, self.token.to_owned());
        let intending = tokio::spawn(async move { store.intend_cancel(id, &token).await });
        match tokio::time::timeout_at(deadline.at(), intending).await {
            Ok(Ok(Ok(true))) => {
                self.sent = true;
                Ok(())
            }
            Ok(Ok(Ok(false))) => {
                self.lost = true;
                Err(Failure::IntentNotDurable)
            }
            _ => Err(Failure::IntentNotDurable),
        }
    }

    /// The resolver waits and asks again by itself; each question that left has a step that says what was answered.
    fn may_retry(&self) -> bool {
        false
    }

    fn mark_maybe_sent(&self) {}

    fn note_attempt(&mut self, _: &str, _: Instant) {}
}
