//! A call that is dropped after any number of polls leaves its three guards in order: the permit neutral, the line closed or
//! clean, the entry closed by what is certain. And the next call gets its own reply.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use codec::{Accepts, Record, Value};
use gwanmun::breaker::{Breaker, State};
use gwanmun::budget::{Admin, ClassRule, Gate, Keeper, Settings, SlotStore, StoreSettings, Stores, key_of};
use gwanmun::clock::{Clock, Deadline};
use gwanmun::config::Config;
use gwanmun::ledger::{
    End, Facts, FolderDisk, Instance, JournalSettings, Ledger, MemoryStore, ServedFrom, Status, Store, TransactionId,
    Witness,
};
use gwanmun::lookup::SystemLookup;
use gwanmun::pool::{Pool, TcpDial};
use gwanmun::redis_store::Patience;
use gwanmun::resilience::{Fault, Institution, Outgoing};
use gwanmun::routes::{Kind, Route};
use gwanmun::telemetry::Telemetry;
use mock_core_banking::{Fault as HostFault, FaultRule, FaultSchedule, Port, Simulator, opening_balance};

use crate::harness::{config_text, configure, eventually, simulator, start_logging};
use crate::postgres::Postgres;

/// Everything below the transaction, put together by hand.
struct World {
    simulator: Simulator,
    institution: Institution,
    ledger: Arc<Ledger>,
    route: Arc<Route>,
    clock: Clock,
    _data: tempfile::TempDir,
}

async fn world(kind: Kind, slots: Option<&SlotStore>) -> World {
    start_logging();
    let (simulator, data) = (simulator(Duration::from_millis(1)).await, tempfile::tempdir().unwrap());
    // Late enough that a reply is never there at the first look.
    let late = FaultRule { message: None, fault: HostFault::Late, probability: 1.0, delay_ms: Some(2), code: None };
    simulator.host().set_faults(FaultSchedule { seed: 1, rules: vec![late] });
    let port = if kind == Kind::Inquiry { Port::Banking } else { Port::Transfer };
    let path = if kind == Kind::Inquiry { "/api/gateway/balance" } else { "/api/gateway/transfer" };
    // One connection, one failure that opens, one probe: any leak shows at once.
    let name = port.institution().to_uppercase().replace('-', "_");
    let settings = [("CONNECTIONS_MAX", "1"), ("BREAKER_FAILURES", "1"), ("BREAKER_OPEN", "1ms"), ("RETRIES", "0")];
    let settings = settings.map(|(setting, value)| (format!("INSTITUTION__{name}__{setting}"), value));
    let overrides: Vec<_> = settings.iter().map(|(setting, value)| (setting.as_str(), *value)).collect();
    let config: Config = configure(data.path(), &simulator, &config_text(), &overrides);
    let (clock, telemetry) = (Clock::system().unwrap(), Arc::new(Telemetry::new()));
    let own = &config.institutions[port.institution()];
    let institution = Institution {
        name: port.institution().to_owned(),
        pool: Pool::new(Arc::new(TcpDial::to(simulator.address(port))), own.framing, own.pool, clock.clone()),
        breaker: Breaker::new(own.breaker, clock.clone()),
        gate: Gate::new(
            budget(slots.is_some()),
            BTreeSet::new(),
            Stores { redis: None, slots: slots.cloned() },
            clock.clone(),
        ),
        retry: own.retry,
        questions: Arc::default(),
        clock: clock.clone(),
        telemetry: Arc::clone(&telemetry),
    };
    let settings = gwanmun::ledger::Settings {
        journal: JournalSettings { limit: 32 << 20, sync_interval: Duration::from_millis(5) },
        instance: Instance::default(),
        search_key: vec![1; 32],
        instance_lease: Duration::from_secs(9),
        claim_keep: Duration::from_secs(9),
    };
    let disk = Arc::new(FolderDisk::new(&Path::new(data.path()).join("journal")).unwrap());
    let store = Store::Memory(MemoryStore::new(clock.clone()));
    let ledger = Ledger::open(disk, store, settings, clock.clone(), &telemetry).await.unwrap();
    let route = Arc::clone(config.routes.find(path).unwrap());
    World { simulator, institution, ledger, route, clock, _data: data }
}

/// Slots every ten milliseconds, or none.
fn budget(slots: bool) -> Settings {
    let class = |kind: Kind| ClassRule { name: kind.name().to_owned(), priority: 1, floor_percent: 0 };
    Settings {
        keeper: if slots { Keeper::Postgres } else { Keeper::Off },
        key: key_of("bank", "contract"),
        limit: 100,
        burst: 1,
        window: Duration::from_millis(200),
        jitter: Duration::from_millis(50),
        rtt_max: Duration::from_millis(150),
        max_wait: None,
        open_without_redis: false,
        classes: vec![class(Kind::Inquiry), class(Kind::Mutation)],
    }
}

impl World {
    fn facts(&self) -> Facts {
        let id = self.ledger.draw_id(self.clock.business_date()).unwrap();
        Facts {
            id,
            tx_code: self.route.tx_code.clone(),
            route: self.route.name.clone(),
            kind: self.route.kind,
            institution: self.route.institution.clone(),
            client: "fintech-a".into(),
            account: None,
            account_hash: None,
            counter_account: None,
            counter_account_hash: None,
            amount: None,
            requested_at: 0,
            correlation_id: "c".into(),
            idempotency_key_hash: None,
            layout_version: 1,
            keyed: None,
        }
    }

    /// A whole call, as a transaction makes it.
    async fn call(&self, facts: Facts, account: &str) -> Result<Record, Fault> {
        let body = match self.route.kind {
            Kind::Inquiry => format!(r#"{{"accountNo":"{account}"}}"#),
            Kind::Mutation => format!(r#"{{"fromAccount":"{account}","toAccount":"2","amount":1,"payeeName":"A"}}"#),
        };
        let mut record = Record::from_json(&self.route.request, body.as_bytes(), Accepts::Body).unwrap();
        for (index, _) in &self.route.fills {
            record.set_at(*index, Value::Text(facts.id.as_str()));
        }
        let mut frame = Vec::new();
        codec::encode(&record, &mut frame).unwrap();
        let deadline = Deadline::after(self.clock.now(), Duration::from_secs(5));
        let mut entry = self.ledger.accept(facts, self.ledger.reserve().unwrap(), Witness::default());
        let patience = Patience::default();
        let outgoing = Outgoing { route: &self.route, frame: &frame, deadline, patience: &patience };
        let result = self.institution.call(outgoing, &mut entry).await;
        let status = if result.is_ok() { Status::Success } else { Status::Unknown };
        entry
            .close(
                End {
                    status,
                    proof: None,
                    response_code: None,
                    detail: None,
                    served_from: ServedFrom::Host,
                    answer: None,
                },
                deadline,
            )
            .await
            .unwrap();
        result
    }

    fn sent(&self) -> u64 {
        self.simulator.host().counters().requests.values().sum()
    }

    async fn status_of(&self, id: TransactionId) -> Status {
        // A mutation's row is not shown before it is durable.
        assert!(self.ledger.catch_up(Duration::from_secs(5)).await);
        let row = self.ledger.row(id).await.unwrap().expect("exactly one row, however it ends");
        row.row.closing.status
    }
}

/// Polls a future so many times, each time giving everything else the time to go on, then drops it. Says whether it ended.
async fn poll_and_drop<T>(future: impl Future<Output = T>, polls: usize) -> bool {
    let mut future = std::pin::pin!(future);
    for _ in 0..polls {
        let ended = std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await;
        if ended {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    false
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_dropped_at_any_poll_leaves_its_guards_in_order() {
    for kind in [Kind::Inquiry, Kind::Mutation] {
        for (warm, half_open) in [(false, false), (true, false), (false, true), (true, true)] {
            let mut ended = false;
            let mut polls = 0;
            while !ended {
                ended = one_drop(kind, (warm, half_open), polls, None).await;
                polls += 1;
                assert!(polls < 60, "a call does not end");
            }
            assert!(polls >= 3, "{kind:?}: only {polls} polls");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_dropped_while_it_waits_for_a_slot_leaves_its_place_to_the_next() {
    let postgres = Postgres::shared();
    let url = postgres.new_database();
    gwanmun::ledger::migrate_postgres(&url).await.unwrap();
    Admin::connect(&url).await.unwrap().set(&budget(true)).await.unwrap();
    let (statement_timeout, outage_max) = (Duration::from_millis(500), Duration::from_secs(2));
    let rules = StoreSettings { statement_timeout, outage_max, patience: StoreSettings::PATIENCE };
    let slots = SlotStore::new(&url, rules, Arc::new(SystemLookup), Clock::system().unwrap()).unwrap();
    for kind in [Kind::Inquiry, Kind::Mutation] {
        let (mut ended, mut polls) = (false, 0);
        while !ended {
            ended = one_drop(kind, (true, false), polls, Some(&slots)).await;
            polls += 1;
            assert!(polls < 60, "a call does not end");
        }
        assert!(polls >= 4, "{kind:?}: only {polls} polls");
    }
}

async fn one_drop(kind: Kind, (warm, half_open): (bool, bool), polls: usize, slots: Option<&SlotStore>) -> bool {
    let world = world(kind, slots).await;
    let told = format!("{kind:?}, warm {warm}, half open {half_open}, {polls} polls");
    if warm {
        world.call(world.facts(), "7").await.unwrap();
    }
    if half_open {
        world.institution.breaker.admit().unwrap().settle(gwanmun::breaker::Outcome::Failure);
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    let (facts, sent_before) = (world.facts(), world.sent());
    let id = facts.id;
    let ended = poll_and_drop(world.call(facts, "8"), polls).await;

    let pool = &world.institution.pool;
    eventually(&format!("{told}: the line is free"), async || pool.stats().active == 0).await;
    let status = if polls == 0 { None } else { Some(world.status_of(id).await) };
    match status {
        // Also when the drop came while the outcome was being synced: it was written by then.
        Some(Status::Success) => assert_eq!(world.sent(), sent_before + 1, "{told}"),
        Some(Status::Unknown) => assert!(!ended, "{told}"),
        Some(Status::Failed) => {
            tokio::time::sleep(Duration::from_millis(5)).await;
            assert_eq!(world.sent(), sent_before, "{told}: FAILED, and the host has it");
        }
        None => {}
    }
    let circuit = world.institution.breaker.stats();
    assert_eq!(circuit.probes_in_flight, 0, "{told}");
    let neutral = if half_open && status != Some(Status::Success) { State::HalfOpen } else { State::Closed };
    assert_eq!((circuit.state, circuit.consecutive_failures), (neutral, 0), "{told}");
    // The next call gets its own reply, over a line that nobody left anything on.
    let account = "12345678901234";
    let record = world.call(world.facts(), account).await.unwrap_or_else(|fault| panic!("{told}: {fault:?}"));
    let balance = Value::Amount(opening_balance(account).unwrap() - i64::from(kind == Kind::Mutation));
    let field = if kind == Kind::Inquiry { "balance" } else { "balanceAfter" };
    assert_eq!(record.get(field), balance, "{told}");
    let sockets = world.simulator.host().counters().connections.open;
    assert!(sockets <= 1, "{told}: {sockets} sockets for one place");
    ended
}
