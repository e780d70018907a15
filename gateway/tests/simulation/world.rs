//! One run: a bank, a store, one or two gateways, callers, and a troublemaker who has until the callers are done. Then everything
//! is made well again, and what is still in doubt has time to be resolved.

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gwanmun::app::{App, Entrance, Seams};
use gwanmun::clock::Clock;
use gwanmun::config::Config;
use gwanmun::ledger::{Ledger, MemoryStore, Store};
use gwanmun::resolve::Reconciler;
use mock_core_banking::{Fault, FaultRule, FaultSchedule, Host, Port};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use crate::callers::{self, Seen};
use crate::check;
use crate::gates::{Life, LifeDisk, StoreGate, Weather};
use crate::memory_disk::MemoryDisk;
use crate::net::{SimDial, Troubles};

pub(crate) const KEYS: [(&str, &str, &str); 3] =
    [("a", "client", "key-a"), ("b", "client", "key-b"), ("op", "operator", "key-op")];

/// A gateway that is up.
#[derive(Clone)]
pub(crate) struct Running {
    pub(crate) life: Arc<Life>,
    pub(crate) entrance: Arc<Entrance>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) reconciler: Arc<Reconciler>,
}

/// A gateway's place: its folder and its clock, and whoever lives there at the moment.
pub(crate) struct Seat {
    letter: &'static str,
    disk: Arc<MemoryDisk>,
    wall: Clock,
    weather: Arc<Weather>,
    running: Mutex<Option<Running>>,
    /// Whether the next death is a power cut.
    power_cut: AtomicBool,
    /// Whether it comes back after a death.
    comes_back: AtomicBool,
}

impl Seat {
    pub(crate) fn running(&self) -> Option<Running> {
        self.running.lock().unwrap().clone().filter(|running| !running.life.is_over())
    }
}

pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) host: Arc<Host>,
    pub(crate) store: MemoryStore,
    /// Never put forward or back.
    pub(crate) store_clock: Clock,
    pub(crate) seats: Vec<Arc<Seat>>,
    pub(crate) seen: Mutex<Seen>,
    troubles: Arc<Mutex<Troubles>>,
    config: String,
    dice: Mutex<fastrand::Rng>,
    telling: bool,
    pub(crate) totals: Mutex<Totals>,
}

/// What happened in some runs, so that a run in which nothing happens is not taken for a good one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) deaths: u64,
    pub(crate) power_cuts: u64,
    pub(crate) answers: [u64; 5],
    pub(crate) rows: u64,
    pub(crate) unknown: u64,
    pub(crate) confirmed: u64,
    pub(crate) canceled: u64,
    pub(crate) confirmed_failed: u64,
    pub(crate) manual: u64,
    pub(crate) replayed: u64,
    pub(crate) retired: u64,
    pub(crate) retired_claims: u64,
    /// Of the troublemaker's: store down, failed syncs, clock steps.
    pub(crate) troubles: [u64; 3],
}

impl Totals {
    pub(crate) fn add(&mut self, other: &Self) {
        let pairs = [
            (&mut self.deaths, other.deaths),
            (&mut self.power_cuts, other.power_cuts),
            (&mut self.rows, other.rows),
            (&mut self.unknown, other.unknown),
            (&mut self.confirmed, other.confirmed),
            (&mut self.canceled, other.canceled),
            (&mut self.confirmed_failed, other.confirmed_failed),
            (&mut self.manual, other.manual),
            (&mut self.replayed, other.replayed),
            (&mut self.retired, other.retired),
            (&mut self.retired_claims, other.retired_claims),
        ];
        for (sum, more) in pairs {
            *sum += more;
        }
        for (sum, more) in self.answers.iter_mut().zip(other.answers) {
            *sum += more;
        }
        for (sum, more) in self.troubles.iter_mut().zip(other.troubles) {
            *sum += more;
        }
    }

    /// Every kind of end must have been seen, or the world was too kind.
    pub(crate) fn assert_that_something_happened(&self, seeds: u64) {
        if seeds < 200 {
            return;
        }
        let all = [self.deaths, self.power_cuts, self.unknown, self.confirmed, self.canceled, self.confirmed_failed];
        assert!(all.iter().all(|count| *count > seeds / 20), "{self}");
        assert!(self.replayed > seeds && self.retired_claims > 0, "{self}");
        assert!(self.troubles.iter().all(|count| *count > seeds / 10), "{self}");
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [none, ok, client, unsent, doubt] = self.answers;
        write!(
            f,
            "{} deaths ({} power cuts), {} rows; callers saw {ok} successes, {client} refusals, {unsent} not processed, \
             {doubt} in doubt, {none} no answer, {} replays; {} UNKNOWN mutations: {} confirmed, {} canceled, {} confirmed as \
             failed, {} manual; {} journals retired with {} claims; {:?} outages of the store, failed syncs, clock steps",
            self.deaths,
            self.power_cuts,
            self.rows,
            self.replayed,
            self.unknown,
            self.confirmed,
            self.canceled,
            self.confirmed_failed,
            self.manual,
            self.retired,
            self.retired_claims,
            self.troubles
        )
    }
}

/// The demo's routes with short times, so that much happens.
fn config_text(on_doubt: &str, tombstones: bool) -> String {
    let mut text = include_str!("../../routes.toml")
        .replace("deadline = \"8s\"", "deadline = \"2s\"")
        .replace("settle_time = \"2s\"", "settle_time = \"3s\"")
        .replace("tombstones = true", &format!("tombstones = {tombstones}"))
        .replace("amount = \"amount\"", &format!("amount = \"amount\"\non_doubt = \"{on_doubt}\""))
        .replace("framing = ", "connections_max = 3\nbreaker_open = \"500ms\"\nbreaker_open_max = \"3s\"\nframing = ");
    for (name, role, key) in KEYS {
        let hash = hex::encode(Sha256::digest(key));
        text += &format!("\n[[client]]\nname = \"{name}\"\nrole = \"{role}\"\nkey_sha256 = \"{hash}\"\n");
    }
    text += "\n[server]\nadmission_max = 30\n[ledger]\njournal_limit = \"16MiB\"\ninstance_lease = \"4s\"\n";
    text += "[resolver]\npoll = \"200ms\"\nwait_min = \"200ms\"\nwait_max = \"4s\"\n";
    text += "[client_limit]\nburst = 100000\nrate = 100000\n";
    text
}

/// Lives through one seed.
pub(crate) async fn live(seed: u64, telling: bool) -> Totals {
    let mut dice = fastrand::Rng::with_seed(seed);
    // Some runs cross midnight in Seoul.
    let start = if dice.u8(..4) == 0 { "2026-11-29T14:59:50Z" } else { "2026-11-29T03:00:00Z" };
    let start: jiff::Timestamp = start.parse().unwrap();
    let host = Host::new(FaultSchedule::default(), Duration::from_secs(1)).unwrap();
    let store_clock = Clock::simulated(start).unwrap();
    let store = MemoryStore::new(store_clock.clone());
    let letters = if dice.bool() { &["A"][..] } else { &["A", "B"] };
    // Who is alone has the store to itself, as with SQLite, in two of three runs.
    let store = if letters.len() == 1 && !seed.is_multiple_of(3) { store.private() } else { store };
    let seat = |letter: &&'static str| {
        Arc::new(Seat {
            letter,
            disk: Arc::new(MemoryDisk::default()),
            wall: Clock::simulated(start).unwrap(),
            weather: Arc::default(),
            running: Mutex::default(),
            power_cut: AtomicBool::new(false),
            comes_back: AtomicBool::new(true),
        })
    };
    let (on_doubt, tombstones) = (["net-cancel", "confirm"][dice.usize(..2)], dice.u8(..5) != 0);
    let world = Arc::new(World {
        seed,
        host,
        store,
        store_clock,
        seats: letters.iter().map(seat).collect(),
        seen: Mutex::default(),
        troubles: Arc::default(),
        config: config_text(on_doubt, tombstones),
        dice: Mutex::new(dice),
        telling,
        totals: Mutex::default(),
    });
    let done = CancellationToken::new();
    for seat in &world.seats {
        tokio::spawn(Arc::clone(&world).inhabit(Arc::clone(seat)));
    }
    let trouble = tokio::spawn(Arc::clone(&world).make_trouble(done.clone(), tombstones));
    callers::call_for_a_while(&world).await;
    done.cancel();
    trouble.await.unwrap();
    world.make_well().await;
    world.settle().await;
    callers::repeat_every_key(&world).await;
    callers::every_circuit_closes(&world).await;
    world.settle().await;
    check::agree(&world).await;
    std::mem::take(&mut *world.totals.lock().unwrap())
}

impl World {
    pub(crate) fn tell(&self, what: impl FnOnce() -> String) {
        if self.telling {
            let now = self.store.all_rows().len();
            println!("[{now} rows] {}", what());
        }
    }

    pub(crate) fn roll(&self, bound: u64) -> u64 {
        self.dice.lock().unwrap().u64(..bound)
    }

    /// One life after the other.
    async fn inhabit(self: Arc<Self>, seat: Arc<Seat>) {
        while seat.comes_back.load(Ordering::Relaxed) {
            let life = Life::new(u64::MAX);
            let Some(running) = self.start(&seat, &life).await else {
                life.dead.cancel();
                tokio::time::sleep(Duration::from_millis(300)).await;
                continue;
            };
            *seat.running.lock().unwrap() = Some(running.clone());
            life.dead.cancelled().await;
            self.tell(|| format!("{} dies", seat.letter));
            self.totals.lock().unwrap().deaths += 1;
            *seat.running.lock().unwrap() = None;
            // What is left of it can do nothing; it shall not even try.
            running.ledger.close(Duration::ZERO).await;
            if seat.power_cut.swap(false, Ordering::Relaxed) {
                self.totals.lock().unwrap().power_cuts += 1;
                let mut dice = fastrand::Rng::with_seed(self.roll(u64::MAX));
                seat.disk.lose_power(|| dice.bool());
            }
            tokio::time::sleep(Duration::from_millis(50 + self.roll(2_000))).await;
        }
    }

    async fn start(&self, seat: &Seat, life: &Arc<Life>) -> Option<Running> {
        let variables = [("GWANMUN_LEDGER__INSTANCE".to_owned(), seat.letter.to_owned())];
        let config = Config::from_text("simulation", &self.config, Path::new("."), &variables);
        let config = config.unwrap_or_else(|problems| panic!("{problems:?}"));
        let fork = || Mutex::new(fastrand::Rng::with_seed(self.roll(u64::MAX)));
        let gate = StoreGate { life: Arc::clone(life), weather: Arc::clone(&seat.weather), dice: fork() };
        let (host, troubles, dice) = (Arc::clone(&self.host), Arc::clone(&self.troubles), Arc::new(fork()));
        let its_life = Arc::clone(life);
        let seams = Seams {
            clock: seat.wall.clone(),
            disk: Arc::new(LifeDisk { life: Arc::clone(life), disk: Arc::clone(&seat.disk) }),
            store: Store::Memory(self.store.behind(Arc::new(gate))),
            dial: Box::new(move |name, _| {
                let port = Port::ALL.into_iter().find(|port| port.institution() == name).unwrap();
                Arc::new(SimDial {
                    life: Arc::clone(&its_life),
                    host: Arc::clone(&host),
                    port,
                    troubles: Arc::clone(&troubles),
                    dice: Arc::clone(&dice),
                })
            }),
            search_key: vec![1; 32],
        };
        let app = match App::assemble(config, seams).await {
            Ok(app) => app,
            Err(error) => {
                self.tell(|| format!("{} does not start: {error}", seat.letter));
                assert!(
                    !error.to_string().contains("corrupt"),
                    "seed {}: a start was refused for what was no corruption: {error}",
                    self.seed
                );
                return None;
            }
        };
        // Its background tasks end with the life.
        app.start_background(&life.dead);
        let fenced = app.ledger().fenced().clone();
        let (failed, dies) = (app.ledger().journal().failed().clone(), Arc::clone(life));
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = fenced.cancelled() => dies.dead.cancel(),
                () = failed.cancelled() => dies.dead.cancel(),
                () = dies.dead.cancelled() => {}
            }
        });
        let (ledger, reconciler) = (Arc::clone(app.ledger()), Arc::clone(app.reconciler()));
        Some(Running { life: Arc::clone(life), entrance: Arc::new(app.entrance()), ledger, reconciler })
    }

    fn random_faults(&self, tombstones: bool) -> FaultSchedule {
        const FAULTS: [Fault; 15] = [
            Fault::Late,
            Fault::CloseBefore,
            Fault::CloseAfter,
            Fault::Short,
            Fault::Garbage,
            Fault::WrongEcho,
            Fault::Drip,
            Fault::Half,
            Fault::LateOriginal,
            Fault::Stall,
            Fault::Jitter,
            Fault::Surplus,
            Fault::Twice,
            Fault::IdleClose,
            Fault::HalfOpen,
        ];
        let mut rules = Vec::new();
        for _ in 0..self.roll(4) {
            let fault = FAULTS[usize::try_from(self.roll(15)).unwrap()];
            let message = [Some("0600"), Some("0600"), Some("0420"), None];
            let message = message[usize::try_from(self.roll(4)).unwrap()].map(str::to_owned);
            // Without tombstones the proof is that nothing can be under way any more: the host keeps to its word there.
            let longest = if tombstones { 6_000 } else { 2_500 };
            rules.push(FaultRule {
                message,
                fault,
                probability: 0.05 + f64::from(u32::try_from(self.roll(60)).unwrap()) / 100.0,
                delay_ms: Some(1 + self.roll(longest)),
                code: None,
            });
        }
        if self.roll(6) == 0 {
            let code = ["0098", "0099", "7777"][usize::try_from(self.roll(3)).unwrap()].to_owned();
            let fault = Fault::Code;
            let message = Some(["0600", "0420", "0400"][usize::try_from(self.roll(3)).unwrap()].to_owned());
            rules.push(FaultRule { message, fault, probability: 0.3, delay_ms: None, code: Some(code) });
        }
        FaultSchedule { seed: self.roll(u64::MAX), rules }
    }

    async fn make_trouble(self: Arc<Self>, done: CancellationToken, tombstones: bool) {
        while !done.is_cancelled() {
            tokio::select! {
                biased;
                () = tokio::time::sleep(Duration::from_millis(20 + self.roll(500))) => {}
                () = done.cancelled() => return,
            }
            let seat = &self.seats[usize::try_from(self.roll(u64::try_from(self.seats.len()).unwrap())).unwrap()];
            match self.roll(12) {
                0..=2 => {
                    let faults = self.random_faults(tombstones);
                    self.tell(|| format!("the bank: {faults:?}"));
                    self.host.set_faults(faults);
                }
                3..=5 => {
                    if let Some(running) = seat.running() {
                        seat.power_cut.store(self.roll(2) == 0, Ordering::Relaxed);
                        running.life.die_within(self.roll(40));
                    }
                }
                6 => {
                    let down = self.roll(2) == 0;
                    self.tell(|| format!("the store is down for {}: {down}", seat.letter));
                    self.totals.lock().unwrap().troubles[0] += u64::from(down);
                    seat.weather.down.store(down, Ordering::Relaxed);
                }
                7 => {
                    seat.weather.lossy.store(self.roll(300), Ordering::Relaxed);
                    seat.weather.slow.store(self.roll(300), Ordering::Relaxed);
                }
                8 => {
                    let hours = i64::try_from(self.roll(3)).unwrap() - 1;
                    self.totals.lock().unwrap().troubles[2] += 1;
                    seat.wall.step(hours * 3_600);
                }
                9 => {
                    self.totals.lock().unwrap().troubles[1] += 1;
                    seat.disk.sync_fails.store(1 + self.roll(2), Ordering::Relaxed);
                }
                10 if self.seats.len() == 2 && self.roll(6) == 0 => self.retire(&self.seats[1]).await,
                10 => self.host.close_idle(),
                _ => {
                    let troubles = Troubles { refused: self.roll(300), hangs: self.roll(200), breaks: self.roll(400) };
                    *self.troubles.lock().unwrap() = troubles;
                }
            }
        }
    }

    /// Ends all trouble.
    async fn make_well(&self) {
        self.tell(|| "all is well".to_owned());
        self.host.set_faults(FaultSchedule::default());
        *self.troubles.lock().unwrap() = Troubles::default();
        for seat in &self.seats {
            let Weather { down, lossy, slow } = &*seat.weather;
            down.store(false, Ordering::Relaxed);
            lossy.store(0, Ordering::Relaxed);
            slow.store(0, Ordering::Relaxed);
            seat.disk.sync_fails.store(0, Ordering::Relaxed);
        }
        // Nobody shall die of what was rolled before.
        tokio::time::sleep(Duration::from_secs(10)).await;
    }

    async fn retire(&self, lost: &Seat) {
        let Some(running) = lost.running() else { return };
        lost.comes_back.store(false, Ordering::Relaxed);
        let journal = running.ledger.journal().id();
        // It dies with whatever is under way.
        running.life.dead.cancel();
        // An operator takes a while; what it had sent is over by then, as its institution promises.
        tokio::time::sleep(Duration::from_millis(self.roll(4_000))).await;
        let claims = Store::Memory(self.store.clone()).retire(journal).await.unwrap();
        self.tell(|| format!("{} is gone for good, with {claims} claims", lost.letter));
        let mut totals = self.totals.lock().unwrap();
        totals.retired += 1;
        totals.retired_claims += claims;
    }

    /// Some gateway that is up.
    pub(crate) async fn anyone(&self) -> Running {
        for _ in 0..300 {
            if let Some(running) = self.seats.iter().find_map(|seat| seat.running()) {
                return running;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        panic!("seed {}: no gateway comes up again", self.seed);
    }

    /// Waits until nothing is open any more and every journal is in the store, half an hour at most.
    async fn settle(&self) {
        let store = Store::Memory(self.store.clone());
        let mut shipped = false;
        for _ in 0..1_800 {
            let open = self.store.all_rows().iter().any(|row| row.resolved.state.is_open());
            let claimed = !store.claims_without_outcome("", 1).await.unwrap().is_empty();
            shipped = true;
            for seat in &self.seats {
                shipped &= match seat.running() {
                    Some(running) => running.ledger.catch_up(Duration::from_secs(5)).await,
                    None => !seat.comes_back.load(Ordering::Relaxed),
                };
            }
            if !open && !claimed && shipped {
                return;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let left: Vec<_> = self.store.all_rows().into_iter().filter(|row| row.resolved.state.is_open()).collect();
        for row in &left {
            let steps = store.steps(row.row.facts.id).await.unwrap();
            self.tell(|| format!("{row:?}: {steps:?}"));
        }
        let claims = store.claims_without_outcome("", 9).await.unwrap();
        // What the payee has spent can't be undone: such a row waits for a person.
        let unexplained = |row: &&gwanmun::ledger::StoredRow| row.resolved.state != gwanmun::ledger::Resolution::Manual;
        assert!(
            shipped && claims.is_empty() && left.iter().filter(unexplained).count() == 0,
            "seed {}: after half an hour shipped: {shipped}, still open: {claims:?} {left:?}",
            self.seed
        );
    }
}
