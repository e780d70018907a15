//! Send slots from PostgreSQL: asking for one, and the connections that this takes.
//!
//! Whatever happens to a question, its caller hears of it within its own time, and what is uncertain is told as a failure. The
//! whole connecting (look-up, TCP, log-in) runs in one task, at most one at a time, and callers wait on it with times of
//! their own. Questions run in tasks of their own too: a statement that is dropped half-way costs its connection.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use sqlx::ConnectOptions as _;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use tokio::sync::{Notify, oneshot};

use super::outage::Outage;
use super::question::{Answered, Claimant, Unreachable, Verdict};
use crate::clock::{Clock, Deadline, Instant};
use crate::lookup::Lookup;

/// Connections at most: one does for thousands of questions a second, more only keep institutions from waiting for each other.
const CONNECTIONS_MAX: usize = 4;
/// Pause between two looks for a connection that nobody rang for.
const LOOK: Duration = Duration::from_millis(20);
/// How long connecting may take once the address is known.
const CONNECT: Duration = Duration::from_secs(2);
/// Pause between two tries to connect.
const PAUSE: Duration = Duration::from_millis(250);
/// What a question may take beyond the server's own limit.
const GRACE: Duration = Duration::from_millis(500);

/// The rules of a slot store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreSettings {
    /// The server's own limit for one question.
    pub statement_timeout: Duration,
    /// How long after a first failure everybody is refused at once, if nothing has succeeded since.
    pub outage_max: Duration,
    /// How long a caller waits for connections that others use before another one is made.
    pub patience: Duration,
}

impl StoreSettings {
    /// The patience of a process that serves callers: dozens of questions fit into it.
    pub const PATIENCE: Duration = Duration::from_millis(20);
}

/// The store of all slots that a process asks for. Cloning shares its connections and its verdict.
#[derive(Clone)]
pub struct SlotStore {
    shared: Arc<Shared>,
}

/// The URL may hold a password, so it is in no debug print.
impl std::fmt::Debug for SlotStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SlotStore").field("state", &self.shared.state()).finish_non_exhaustive()
    }
}

struct Shared {
    options: PgConnectOptions,
    lookup: Arc<dyn Lookup>,
    settings: StoreSettings,
    clock: Clock,
    /// Names this process among those that wait.
    caller: Arc<str>,
    state: Mutex<State>,
    /// Rung when a connection came free, and when the verdict changed.
    changed: Notify,
    lost: AtomicU64,
}

#[derive(Default)]
struct State {
    idle: Vec<PgConnection>,
    /// Idle and in use.
    open: usize,
    connecting: bool,
    outage: Outage,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("open", &self.open).field("idle", &self.idle.len()).finish_non_exhaustive()
    }
}

impl SlotStore {
    /// A store at a URL; it connects when somebody asks.
    ///
    /// # Errors
    /// The rule that the URL breaks, never the URL.
    pub fn new(
        url: &str,
        settings: StoreSettings,
        lookup: Arc<dyn Lookup>,
        clock: Clock,
    ) -> Result<Self, &'static str> {
        let options: PgConnectOptions = url.parse().map_err(|_| "must be postgres://user:password@host/database")?;
        let timeout = format!("{}ms", settings.statement_timeout.as_millis());
        let options = options.application_name("gwanmun-budget").disable_statement_logging().options([
            ("statement_timeout", timeout.as_str()),
            ("idle_in_transaction_session_timeout", "5s"),
            // A promise that a crash forgets has run out by the time that the quarantine behind the crash is over.
            ("synchronous_commit", "off"),
            ("default_transaction_isolation", "read committed"),
        ]);
        let caller = format!("{:016x}", fastrand::u64(..)).into();
        let state = Mutex::default();
        let (changed, lost) = (Notify::new(), AtomicU64::new(0));
        let shared = Shared { options, lookup, settings, clock, caller, state, changed, lost };
        Ok(Self { shared: Arc::new(shared) })
    }

    pub(super) fn claimant(&self, key: &str, class: &str) -> Claimant {
        Claimant { key: key.into(), class: class.into(), caller: Arc::clone(&self.shared.caller) }
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// Whether everybody is refused at the moment.
    #[must_use]
    pub fn is_out(&self) -> bool {
        let (now, after) = (self.shared.clock.now(), self.shared.settings.outage_max);
        self.shared.state().outage.is_out(now, after)
    }

    /// Whether nothing has succeeded since a failure.
    #[must_use]
    pub(super) fn is_suspected(&self) -> bool {
        self.shared.state().outage.is_suspected()
    }

    /// Slots that the server may have granted though nobody heard of it.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }

    /// Connections to the server.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.state().open
    }

    /// Asks once.
    ///
    /// # Errors
    /// [`Unreachable`], by `until` and within the statement's time-out and half a second, waiting for a connection included.
    pub(super) async fn acquire(
        &self,
        claimant: &Claimant,
        until: Instant,
        more: bool,
    ) -> Result<Answered, Unreachable> {
        let shared = &self.shared;
        let max_wait = until.saturating_duration_since(shared.clock.now());
        let until = Deadline::after(shared.clock.now(), shared.question_max()).at().min(until);
        let connection = shared.connection(until).await?;
        let (give, take) = oneshot::channel();
        let asking = ask(Arc::clone(shared), connection, (claimant.clone(), max_wait, more), give);
        tokio::spawn(asking);
        match tokio::time::timeout_at(until, take).await {
            Ok(Ok(answered)) => answered,
            _ => Err(Unreachable),
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connection(self: &Arc<Self>, until: Instant) -> Result<PgConnection, Unreachable> {
        // Since when all connections have been in others' hands: the time that the first one took to make is none of it.
        let mut busy_since = None;
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let now = self.clock.now();
            {
                let mut state = self.state();
                if state.outage.is_out(now, self.settings.outage_max) {
                    return Err(Unreachable);
                }
                if now >= until {
                    // Without a connection all the time: also when nothing has said yet that it can't be had.
                    if state.open == 0 {
                        self.note_failure(&mut state);
                    }
                    return Err(Unreachable);
                }
                if let Some(connection) = state.idle.pop() {
                    return Ok(connection);
                }
                busy_since = (state.open > 0).then_some(busy_since.unwrap_or(now));
                let waited = busy_since.is_none_or(|since| now >= since + self.settings.patience);
                if waited && state.open < CONNECTIONS_MAX {
                    self.begin_to_connect(&mut state);
                }
            }
            let soon = Deadline::after(now, LOOK).at().min(until);
            // Woken or not: look again.
            drop(tokio::time::timeout_at(soon, changed).await);
        }
    }

    fn give_back(&self, connection: PgConnection) {
        let recovered = {
            let mut state = self.state();
            state.idle.push(connection);
            state.outage.succeeded()
        };
        if recovered {
            tracing::info!("the call budget's database answers again");
        }
        self.changed.notify_one();
    }

    /// A question failed, and its connection with it. What struck it may have struck the idle ones too.
    fn failed(self: &Arc<Self>) {
        let mut state = self.state();
        let idle = std::mem::take(&mut state.idle);
        state.open = state.open.saturating_sub(1 + idle.len());
        self.note_failure(&mut state);
        drop(state);
        drop(idle);
        self.changed.notify_waiters();
    }

    /// What a question may take in all.
    fn question_max(&self) -> Duration {
        self.settings.statement_timeout + GRACE
    }

    fn begin_to_connect(self: &Arc<Self>, state: &mut State) {
        if !std::mem::replace(&mut state.connecting, true) {
            tokio::spawn(connect(Connecting(Arc::downgrade(self))));
        }
    }

    /// From the first failure on somebody asks, also when no caller comes any more: or nobody would ever hear that it is over.
    fn note_failure(self: &Arc<Self>, state: &mut State) {
        if !state.outage.is_suspected() {
            tracing::warn!("the call budget's database does not answer; nothing is sent without a slot");
        }
        state.outage.failed(self.clock.now());
        self.begin_to_connect(state);
    }

    async fn try_connect(&self) -> Result<PgConnection, sqlx::Error> {
        let options = match self.options.get_socket() {
            Some(_) => self.options.clone(),
            None => {
                let found = self.lookup.look_up(self.options.get_host(), self.options.get_port()).await?;
                self.options.clone().host(&found.ip().to_string()).port(found.port())
            }
        };
        let late = |_| sqlx::Error::Io(std::io::ErrorKind::TimedOut.into());
        let mut connection = tokio::time::timeout(CONNECT, options.connect()).await.map_err(late)??;
        if self.state().outage.is_suspected() {
            // A log-in proves little: one that is answered and then falls silent, or has no such function, would be taken for
            // a recovery.
            let nobody = Claimant::nobody();
            let asking = nobody.ask(&mut connection, (Duration::ZERO, false), &self.clock);
            tokio::time::timeout(self.question_max(), asking).await.map_err(late)??;
        }
        Ok(connection)
    }
}

/// The task that connects, while there is one.
struct Connecting(Weak<Shared>);

impl Drop for Connecting {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade() {
            shared.state().connecting = false;
        }
    }
}

/// The one task that connects. It goes on until it has, and so is the prober too.
async fn connect(connecting: Connecting) {
    loop {
        let Some(store) = connecting.0.upgrade() else { return };
        match store.try_connect().await {
            Ok(connection) => {
                store.state().open += 1;
                // Before the connection can be seen: who finds none may begin another task.
                drop(connecting);
                store.give_back(connection);
                return;
            }
            Err(error) => {
                // The kind and the code alone: a driver's text may hold an address or a user's name.
                let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
                tracing::debug!(code = code.as_deref(), "cannot connect to the call budget's database");
                store.note_failure(&mut store.state());
            }
        }
        store.changed.notify_waiters();
        drop(store);
        tokio::time::sleep(PAUSE).await;
    }
}

/// Asks one question over one connection, whether or not its caller still waits.
async fn ask(
    shared: Arc<Shared>,
    mut connection: PgConnection,
    (claimant, max_wait, more): (Claimant, Duration, bool),
    give: oneshot::Sender<Result<Answered, Unreachable>>,
) {
    let asking = claimant.ask(&mut connection, (max_wait, more), &shared.clock);
    let told = match tokio::time::timeout(shared.question_max(), asking).await {
        Ok(Ok(answered)) => {
            shared.give_back(connection);
            let granted = matches!(answered, Some(Answered { verdict: Verdict::Granted { .. }, .. }));
            if give.send(answered.ok_or(Unreachable)).is_err() && granted {
                shared.lost.fetch_add(1, Ordering::Relaxed);
            }
            return;
        }
        // The server itself says that it did not do it: a statement's time-out, a table that is not there.
        Ok(Err(error)) if error.as_database_error().is_some() => {
            tracing::warn!(
                code = error.as_database_error().and_then(sqlx::error::DatabaseError::code).as_deref(),
                "no slot"
            );
            Err(Unreachable)
        }
        // What it did is not known.
        _ => {
            shared.lost.fetch_add(1, Ordering::Relaxed);
            Err(Unreachable)
        }
    };
    drop(connection);
    shared.failed();
    if give.send(told).is_err() {
        tracing::debug!("nobody waits for this any more");
    }
}
