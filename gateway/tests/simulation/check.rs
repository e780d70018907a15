//! What must hold when all is over: docs/FAILURES.md's invariants, seen from outside.

use std::collections::{BTreeMap, BTreeSet};

use gwanmun::ledger::{Resolution, Status, Store, StoredRow};
use gwanmun::routes::Kind;
use mock_core_banking::{Bank, BookingState};

use crate::callers::{Told, Wanted};
use crate::world::World;

/// Whether the ledger says that the money moved and stands. `None`: a person must say.
fn says_applied(row: &StoredRow) -> Option<bool> {
    match (row.row.closing.status, row.resolved.state) {
        (Status::Success, _) | (_, Resolution::ConfirmedSuccess) => Some(true),
        (_, Resolution::Manual) => None,
        _ => Some(false),
    }
}

pub(crate) async fn agree(world: &World) {
    let seed = world.seed;
    assert_eq!(world.host.bank(Bank::delta), 0, "seed {seed}: money is conserved");
    assert!(world.store.parked().is_empty(), "seed {seed}: rows contradict: {:?}", world.store.parked());
    let rows: BTreeMap<String, StoredRow> =
        world.store.all_rows().into_iter().map(|row| (row.row.facts.id.to_string(), row)).collect();
    assert_eq!(rows.len(), world.store.all_rows().len(), "seed {seed}: a row twice");
    books_and_ledger(world, &rows);
    callers_and_ledger(world, &rows);
    one_execution_a_key(world, &rows);
    for id in rows.keys() {
        let frames = world.host.transfer_frames(id);
        assert!(frames <= 1, "seed {seed}: {id} was on the wire {frames} times");
    }
    reconcile(world, &rows).await;
    count(world, &rows);
}

fn books_and_ledger(world: &World, rows: &BTreeMap<String, StoredRow>) {
    let seed = world.seed;
    let applied: BTreeSet<String> = world.host.bank(|bank| {
        let applied = bank.bookings().filter(|(_, booking)| booking.state == BookingState::Applied);
        applied.map(|(id, _)| id.to_owned()).collect()
    });
    for id in &applied {
        let row = rows.get(id).unwrap_or_else(|| panic!("seed {seed}: {id} is booked and not in the ledger"));
        assert_ne!(says_applied(row), Some(false), "seed {seed}: {id} is booked and the ledger says {row:?}");
    }
    for (id, row) in rows.iter().filter(|(_, row)| row.row.facts.kind == Kind::Mutation) {
        if says_applied(row) == Some(true) {
            assert!(applied.contains(id), "seed {seed}: {id} is not booked and the ledger says {row:?}");
        }
    }
}

fn callers_and_ledger(world: &World, rows: &BTreeMap<String, StoredRow>) {
    let seed = world.seed;
    let (power_cut, retired) = {
        let totals = world.totals.lock().unwrap();
        (totals.power_cuts > 0, totals.retired > 0)
    };
    let seen = world.seen.lock().unwrap();
    for (key, wanted) in &seen.transfers {
        let mut successes = BTreeSet::new();
        for told in wanted.told.iter().filter(|told| !told.id.is_empty()) {
            let Some(row) = rows.get(&told.id) else {
                // What was provably not sent is all that a retired journal may take with it.
                let status = told.status;
                assert!(retired && status == 503, "seed {seed}: {key} was told {status} {} without a row", told.id);
                continue;
            };
            let (status, resolution) = (row.row.closing.status, row.resolved.state);
            let context = || format!("seed {seed}: {key} was told {} {}, {row:?}", told.status, told.json());
            match told.status {
                200 => {
                    assert_eq!(says_applied(row), Some(true), "{}", context());
                    booked_as_wanted(world, wanted, told);
                    // A confirmed one has no data of its own; every other answer is the first one, byte for byte.
                    if !told.json()["data"].is_null() {
                        successes.insert(told.body.clone());
                    }
                }
                // A proof that was lost with its journal: the host says the same, and the key stays spent.
                503 | 500 if retired && status == Status::Unknown => {
                    assert_eq!(says_applied(row), Some(false), "{}", context());
                }
                503 | 500 => assert!(row.row.is_provably_unsent() && !told.replayed, "{}", context()),
                // Another gateway calls a claim abandoned when its time is over; its own gateway's word wins in the end.
                504 if !told.replayed => assert!(!row.row.is_provably_unsent(), "{}", context()),
                504 => {
                    let abandoned = world.seats.len() > 1;
                    assert!(status == Status::Unknown || abandoned, "{}", context());
                }
                422 if told.json()["code"] == "TRANSACTION_CANCELED" => {
                    assert_eq!(resolution, Resolution::Canceled, "{}", context());
                }
                422 if told.json()["code"] == "TRANSACTION_NOT_PROCESSED" => {
                    assert_eq!(resolution, Resolution::ConfirmedFailed, "{}", context());
                }
                // Told, and lost with its journal: the host says the same.
                422 | 502 if retired && status == Status::Unknown => {
                    assert_ne!(says_applied(row), Some(true), "{}", context());
                }
                422 | 502 => assert_eq!(status, Status::Failed, "{}", context()),
                other => panic!("seed {seed}: {key} was told {other}"),
            }
        }
        assert!(successes.len() <= 1, "seed {seed}: {key} was told different successes");
    }
    for told in seen.inquiries.iter().filter(|told| !told.id.is_empty()) {
        match rows.get(&told.id) {
            Some(row) if power_cut && row.row.closing.detail.as_deref() == Some("recovered") => {}
            Some(row) => assert_eq!(
                row.row.closing.status == Status::Success,
                told.status == 200,
                "seed {seed}: an inquiry was told {}, {row:?}",
                told.status
            ),
            // The last moment of an inquiry may be lost with the power, and with nothing else.
            None => {
                assert!(power_cut || retired, "seed {seed}: an inquiry was answered {} and has no row", told.status)
            }
        }
    }
}

/// The bank moved just what this caller wanted to have moved.
fn booked_as_wanted(world: &World, wanted: &Wanted, told: &Told) {
    let body: serde_json::Value = serde_json::from_str(&wanted.body).unwrap();
    let booking = world.host.bank(|bank| bank.booking(&told.id).cloned()).unwrap();
    let account = |name: &str| format!("{:0>14}", body[name].as_str().unwrap());
    let wanted = (account("fromAccount"), account("toAccount"), body["amount"].as_i64().unwrap());
    assert_eq!((booking.from, booking.to, booking.amount), wanted, "seed {}", world.seed);
}

/// A key runs again only after a proof that nothing was sent.
fn one_execution_a_key(world: &World, rows: &BTreeMap<String, StoredRow>) {
    let mut ran: BTreeMap<_, Vec<&StoredRow>> = BTreeMap::new();
    for row in rows.values().filter(|row| row.row.facts.kind == Kind::Mutation && !row.row.is_provably_unsent()) {
        let key = row.row.facts.idempotency_key_hash.clone().expect("a mutation has a key");
        ran.entry((row.row.facts.client.clone(), key)).or_default().push(row);
    }
    for rows in ran.values() {
        assert_eq!(rows.len(), 1, "seed {}: one key was executed more than once: {rows:#?}", world.seed);
    }
}

/// Every day in the ledger has no difference but what waits for a person.
async fn reconcile(world: &World, rows: &BTreeMap<String, StoredRow>) {
    let days: BTreeSet<&str> = rows.keys().map(|id| &id[5..13]).collect();
    let running = world.anyone().await;
    let store = Store::Memory(world.store.clone());
    let manual = rows.values().filter(|row| row.resolved.state == Resolution::Manual).count();
    for day in days {
        let date = jiff::civil::Date::strptime("%Y%m%d", day).unwrap();
        let started = running.reconciler.start(date, false).await.unwrap();
        assert_eq!(started.len(), 1, "one institution is listed");
        for (run, handle) in started {
            handle.await.unwrap().unwrap();
            let done = store.run(&run.id).await.unwrap().unwrap();
            assert_eq!(done.state, "DONE", "seed {}: {done:?}", world.seed);
            let differences = store.differences(&run.id, 0, 100).await.unwrap();
            let found = differences.iter().filter(|one| one.class != gwanmun::ledger::Class::InDoubt).count();
            let open = differences.len() - found;
            assert!(found == 0 && open <= manual, "seed {}: {differences:?}", world.seed);
        }
    }
}

fn count(world: &World, rows: &BTreeMap<String, StoredRow>) {
    let mut totals = world.totals.lock().unwrap();
    totals.rows = u64::try_from(rows.len()).unwrap();
    for row in rows.values() {
        totals.unknown += u64::from(row.row.closing.status == Status::Unknown && row.row.facts.kind == Kind::Mutation);
        let counter = match row.resolved.state {
            Resolution::ConfirmedSuccess => &mut totals.confirmed,
            Resolution::Canceled => &mut totals.canceled,
            Resolution::ConfirmedFailed => &mut totals.confirmed_failed,
            Resolution::Manual => &mut totals.manual,
            _ => continue,
        };
        *counter += 1;
    }
}
