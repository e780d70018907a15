//! Reconciliation (대사): the day as the host lists it against the day as the ledger has it. Doubts are resolved first, the host's
//! list is staged in the store, then both are walked once in the order of ids, so memory does not grow with the day.

mod walk;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use codec::{Record, Value};
use jiff::civil::Date;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Resolver;
use crate::clock::{Clock, Deadline, Instant};
use crate::failure::Failure;
use crate::ledger::{Class, HostLine, Ledger, Run, Store, StoreError, Tally, TransactionId, Wanted};
use crate::redis_store::Patience;
use crate::resilience::{Institution, Outgoing, Transcript};
use crate::routes::Route;
use walk::Walk;

/// Rows that are read at a time.
const PAGE: u32 = 250;
/// Claims that are read at a time: each page looks at all open ones.
const PAGE_OF_CLAIMS: u32 = 1_000;
/// Lines of the host's list that are staged at a time.
const STAGE: usize = 1_000;

/// Within this time a gateway that has its store to itself has written down what runs: a sweep a second, and as much again.
const WRITTEN_DOWN: Duration = Duration::from_secs(2);
/// How long the ledger of this process may take to tell the store all that it knows.
const TOLD: Duration = Duration::from_secs(10);

/// How long one page of the host's list may wait for the call budget.
const BUDGET_PATIENCE: Duration = Duration::from_mins(5);
/// Pause before the budget is asked again.
const BUDGET_PAUSE: Duration = Duration::from_millis(500);

/// A time of day in Seoul.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Daily {
    hour: i8,
    minute: i8,
}

impl Daily {
    /// Reads `HH:MM`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let time = jiff::civil::Time::strptime("%H:%M", text).ok()?;
        Some(Self { hour: time.hour(), minute: time.minute() })
    }

    /// Whether it has come today.
    fn has_come(self, now: jiff::civil::DateTime) -> bool {
        (now.hour(), now.minute()) >= (self.hour, self.minute)
    }
}

/// What a reconciliation works on.
#[derive(Debug)]
pub struct Reconciler {
    store: Store,
    /// The ledger of this process, if it has one.
    ledger: Option<Arc<Ledger>>,
    resolver: Arc<Resolver>,
    institutions: Arc<BTreeMap<String, Arc<Institution>>>,
    /// Whose mutations are listed by whom.
    settled_by: BTreeMap<String, String>,
    clock: Clock,
}

/// A run that goes on.
pub type Finishing = tokio::task::JoinHandle<Result<(), StoreError>>;

/// Why a run has no counts.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error("the ledger store failed")]
    Store(#[from] StoreError),
    #[error("the host's list could not be read: {0}")]
    Host(&'static str),
}

impl Reconciler {
    /// A reconciler over these institutions, beside this process's ledger or without one.
    #[must_use]
    pub fn new(
        (store, ledger): (Store, Option<Arc<Ledger>>),
        resolver: Arc<Resolver>,
        institutions: Arc<BTreeMap<String, Arc<Institution>>>,
        settled_by: BTreeMap<String, String>,
        clock: Clock,
    ) -> Self {
        Self { store, ledger, resolver, institutions, settled_by, clock }
    }

    /// Begins a run for each institution whose mutations somebody lists; with `once` only where the day has none. They go on by
    /// themselves; the handles end with them.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn start(self: &Arc<Self>, day: Date, once: bool) -> Result<Vec<(Run, Finishing)>, StoreError> {
        let day = day.strftime("%Y%m%d").to_string();
        let mut runs = Vec::new();
        for institution in self.settled_by.keys() {
            let id = uuid::Uuid::now_v7().to_string();
            if !self.store.begin_run(&id, &day, institution, once).await? {
                continue;
            }
            let run = self.store.run(&id).await?.ok_or(StoreError::Malformed)?;
            let (reconciler, going) = (Arc::clone(self), run.clone());
            runs.push((run, tokio::spawn(async move { reconciler.finish(&going).await })));
        }
        Ok(runs)
    }

    /// Reconciles yesterday once a day, for ever: when the time has come and nobody has done it yet.
    pub async fn run_daily(self: Arc<Self>, at: Daily, stop: CancellationToken) {
        let mut done: Option<Date> = None;
        loop {
            let now = self.clock.in_seoul(self.clock.wall());
            if at.has_come(now)
                && done != Some(now.date())
                && let Ok(yesterday) = now.date().yesterday()
            {
                match self.reconcile_once(yesterday).await {
                    Ok(true) => done = Some(now.date()),
                    Ok(false) => tracing::debug!("yesterday is not reconciled yet"),
                    Err(_) => tracing::error!("the daily reconciliation could not begin; trying again"),
                }
            }
            tokio::select! {
                biased;
                () = tokio::time::sleep(std::time::Duration::from_mins(1)) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Reconciles a day unless somebody has done so. Whether it is done for every institution.
    async fn reconcile_once(self: &Arc<Self>, day: Date) -> Result<bool, StoreError> {
        for (_, finishing) in self.start(day, true).await? {
            if !matches!(finishing.await, Ok(Ok(()))) {
                return Ok(false);
            }
        }
        let (day, runs) = (day.strftime("%Y%m%d").to_string(), self.store.runs(1_000).await?);
        let is_done = |institution: &String| {
            runs.iter().any(|run| run.state == "DONE" && run.business_day == day && run.institution == *institution)
        };
        Ok(self.settled_by.keys().all(is_done))
    }

    async fn finish(&self, run: &Run) -> Result<(), StoreError> {
        match self.reconcile(run).await {
            Ok(tally) => {
                let differences = tally.differences();
                tracing::info!(run = run.id, matched = tally.matched, differences, "reconciled");
                self.store.end_run(&run.id, tally, None).await
            }
            Err(error) => {
                tracing::error!(run = run.id, "a reconciliation failed: {error}");
                self.store.end_run(&run.id, Tally::default(), Some(&error.to_string())).await
            }
        }
    }

    async fn reconcile(&self, run: &Run) -> Result<Tally, RunError> {
        self.resolve_first(run).await?;
        let horizon = self.store.horizon().await?;
        let host_lines = self.stage_list(run).await?;
        let mut walk = Walk::new(&self.store, run);
        let mut tally = Tally { host_lines, ..Tally::default() };
        let (mut found, mut seq, mut told) = (Vec::new(), 0, None);
        while let Some(met) = walk.next().await? {
            let mut class = met.judge(horizon);
            if class == Some(Class::CoreOnly)
                && let Some(id) = TransactionId::parse(&met.id)
                && self.may_come_in(id, &mut told).await?
            {
                class = Some(Class::InDoubt);
            }
            let Some(class) = class else {
                tally.matched += 1;
                continue;
            };
            tally.add(class);
            seq += 1;
            found.push(met.difference(class, seq));
            if found.len() >= 500 {
                self.store.add_differences(&run.id, &std::mem::take(&mut found)).await?;
            }
        }
        self.store.add_differences(&run.id, &found).await?;
        Ok(tally)
    }

    /// Whether a transaction that only the host has may be under way, or has come in behind the page that would have had it. Once in a
    /// run it is waited for what journals have: the one of this process tells it; of another process, that has its store to itself, it is
    /// known when it does so.
    async fn may_come_in(&self, id: TransactionId, told: &mut Option<bool>) -> Result<bool, StoreError> {
        if self.store.row(id).await?.is_some() {
            return Ok(true);
        }
        let all_told = match (*told, &self.ledger) {
            (Some(all_told), _) => all_told,
            (None, Some(ledger)) => ledger.is_all_told(TOLD).await,
            (None, None) => {
                if self.store.is_private() {
                    tokio::time::sleep(WRITTEN_DOWN).await;
                }
                true
            }
        };
        *told = Some(all_told);
        if !all_told || self.store.row(id).await?.is_some() {
            return Ok(true);
        }
        // Those whose ids differ in the last digit alone stand behind what they have in common, 36 at most.
        let siblings = id.as_str().get(..id.as_str().len() - 1).unwrap_or_default();
        let claimed = self.store.claims_without_outcome(siblings, 36).await?;
        // It may have ended between the two looks.
        Ok(claimed.iter().any(|facts| facts.id == id) || self.store.row(id).await?.is_some())
    }

    /// Makes a step for every open row of the day, a few at a time. What that leaves open is in doubt for this run.
    async fn resolve_first(&self, run: &Run) -> Result<(), StoreError> {
        let (mut after, mut steps) = (String::new(), JoinSet::new());
        loop {
            let page = self.store.ledger_lines(&run.business_day, &run.institution, &after, PAGE).await?;
            let Some(last) = page.last() else { break };
            after = last.id.to_string();
            for line in page.iter().filter(|line| line.resolution.is_open()) {
                let (resolver, wanted) = (Arc::clone(&self.resolver), Wanted::One(line.id));
                steps.spawn(async move { resolver.pass(&wanted, 1).await.map(drop) });
                if steps.len() >= usize::try_from(self.resolver.settings.at_once).unwrap_or(usize::MAX)
                    && let Some(Ok(done)) = steps.join_next().await
                {
                    done?;
                }
            }
        }
        while let Some(done) = steps.join_next().await {
            if let Ok(done) = done {
                done?;
            }
        }
        Ok(())
    }

    /// Takes the host's list page by page into the store; says how many lines there were.
    async fn stage_list(&self, run: &Run) -> Result<u64, RunError> {
        let lister = self.settled_by.get(&run.institution).and_then(|name| self.institutions.get(name));
        let asked = lister.and_then(|one| Some((one, one.questions.settlement.as_ref()?)));
        let (institution, route) = asked.ok_or(RunError::Host("nobody lists it"))?;
        let paged = route.request.index_of("pageKey");
        let (mut position, mut staged) = (0_u64, Vec::new());
        loop {
            let reply =
                self.ask_page(institution, route, &run.business_day, paged.map(|index| (index, position))).await?;
            let lines = lines_of(&reply, position).ok_or(RunError::Host("a line does not read"))?;
            let count = u64::try_from(lines.len()).unwrap_or_default();
            position += count;
            staged.extend(lines);
            let more = route.codes.more.iter().any(|code| code == reply.text("responseCode"));
            if staged.len() >= STAGE || !more {
                self.store.stage(&run.id, &std::mem::take(&mut staged)).await?;
            }
            match (more, paged, count) {
                (false, ..) => return Ok(position),
                (true, None, _) => return Err(RunError::Host("more pages follow and the layout has no pageKey")),
                (true, _, 0) => return Err(RunError::Host("an empty page that is not the last")),
                (true, ..) => {}
            }
        }
    }

    async fn ask_page(
        &self,
        institution: &Institution,
        route: &Route,
        day: &str,
        page: Option<(usize, u64)>,
    ) -> Result<Record, RunError> {
        let mut record = Record::new(&route.request);
        if let Some(index) = route.request.index_of("settleDate") {
            record.set_at(index, Value::Text(day));
        }
        if let Some((index, already)) = page {
            record.set_at(index, Value::Text(&format!("{already:08}")));
        }
        let mut frame = Vec::new();
        codec::encode(&record, &mut frame).map_err(|_| RunError::Host("the request does not fit"))?;
        let end = Deadline::after(self.clock.now(), BUDGET_PATIENCE);
        loop {
            let deadline = Deadline::after(self.clock.now(), route.deadline);
            let outgoing = Outgoing { route, frame: &frame, deadline, patience: &Patience::default() };
            let fault = match institution.call(outgoing, &mut Unrecorded).await {
                Ok(page) => return Ok(page),
                Err(fault) => fault,
            };
            // Others have the calls at the moment; a list of many pages has time.
            if fault.failure != Failure::BudgetExhausted || end.has_passed(self.clock.now()) {
                return Err(RunError::Host(fault.failure.name()));
            }
            tokio::time::sleep(fault.retry_after.unwrap_or_default().max(BUDGET_PAUSE)).await;
        }
    }
}

/// A question that leaves no trace in the ledger.
struct Unrecorded;

impl Transcript for Unrecorded {
    async fn intend(&mut self, _: Deadline) -> Result<(), Failure> {
        Ok(())
    }

    fn mark_maybe_sent(&self) {}

    fn note_attempt(&mut self, _: &str, _: Instant) {}
}

/// The lines of a page. Their accounts are not kept.
fn lines_of(reply: &Record, already: u64) -> Option<Vec<HostLine>> {
    let group = reply.layout().group()?;
    let index = |name: &str| group.fields().iter().position(|field| field.name() == name);
    let (id, amount, flag) = (index("tranId")?, index("amount")?, index("statusFlag")?);
    let Value::Records(rows) = reply.get(group.name()) else { return None };
    let line = |(nth, row): (usize, &Vec<Value<'_>>)| match (row.get(id)?, row.get(amount)?, row.get(flag)?) {
        (Value::Text(id), Value::Amount(amount), Value::Text(flag)) => Some(HostLine {
            id: (*id).to_owned(),
            position: already + u64::try_from(nth).ok()?,
            amount: *amount,
            flag: (*flag).to_owned(),
        }),
        _ => None,
    };
    rows.iter().enumerate().map(line).collect()
}
