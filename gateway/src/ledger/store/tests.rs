//! The contract of a store, run on every kind.

use super::*;
use crate::clock::Clock;
use crate::ledger::row::{Answer, Attempt, Closing, DUPLICATE_ID, Proof, ServedFrom};
use crate::parts::postgres::Postgres;
use crate::routes::Kind;

const JOURNAL: [u8; 16] = [3; 16];

fn id(serial: u64) -> TransactionId {
    TransactionId::parse(&format!("GWMNU20261129{serial:09}")).unwrap()
}

fn row(serial: u64, status: Status) -> Row {
    let facts = Facts {
        id: id(serial),
        tx_code: if serial.is_multiple_of(2) { "IN01" } else { "TR01" }.into(),
        route: "balance".into(),
        kind: if serial.is_multiple_of(2) { Kind::Inquiry } else { Kind::Mutation },
        institution: "core-banking".into(),
        client: if serial.is_multiple_of(3) { "a" } else { "b" }.into(),
        account: Some(codec::MaskedAccount::of("12345678901234")),
        account_hash: Some(vec![u8::try_from(serial % 5).unwrap(); 16]),
        counter_account: None,
        counter_account_hash: (serial.is_multiple_of(7)).then(|| vec![9; 16]),
        amount: Some(1_000),
        requested_at: i64::try_from(serial).unwrap() * 1_000,
        correlation_id: format!("c-{serial}"),
        idempotency_key_hash: Some(vec![1; 32]),
        layout_version: 3,
        keyed: None,
    };
    let attempts = vec![Attempt { outcome: "success".into(), elapsed_us: 12 }];
    let closing = Closing {
        status,
        proof: (status == Status::Failed).then_some(Proof::P1),
        response_code: Some("0000".into()),
        detail: None,
        attempts,
        responded_at: 5,
        elapsed_us: 6,
        // A failure has no reply that could have been kept.
        served_from: if status == Status::Success { ServedFrom::Stale } else { ServedFrom::Host },
    };
    Row { facts, closing }
}

/// What the stores stand on; dropped last.
struct Grounds {
    _folder: tempfile::TempDir,
    _postgres: std::sync::Arc<Postgres>,
}

async fn stores() -> (Grounds, Vec<Store>) {
    let grounds = Grounds { _folder: tempfile::tempdir().unwrap(), _postgres: Postgres::shared() };
    let sqlite = Store::sqlite(&grounds._folder.path().join("ledger.sqlite")).await.unwrap();
    let postgres = Store::postgres(&grounds._postgres.new_database()).await.unwrap();
    let memory = Store::Memory(MemoryStore::new(Clock::system().unwrap()));
    (grounds, vec![sqlite, postgres, memory])
}

/// The routes whose doubts are looked for.
fn routes() -> [String; 1] {
    ["balance".to_owned()]
}

fn outcomes(rows: &[Row]) -> Vec<Outcome> {
    rows.iter().cloned().map(Outcome::of).collect()
}

/// Ships up to this place, for a life that holds no letter.
fn shipper(segment: u64, offset: u64) -> Shipper {
    Shipper::Journal(Owner { instance: Instance::default(), incarnation: 1, journal: JOURNAL }, at(segment, offset))
}

fn at(segment: u64, offset: u64) -> Position {
    Position { segment, offset }
}

#[tokio::test]
async fn a_row_comes_back_as_it_was_and_shipping_it_again_changes_nothing() {
    let (_folder, stores) = stores().await;
    for store in stores {
        let rows = [row(1, Status::Unknown), row(2, Status::Success), row(3, Status::Failed)];
        let shipment = store.ship(&outcomes(&rows), shipper(1, 10)).await.unwrap();
        assert_eq!(shipment, Shipment { inserted: 3, parked: 0 }, "{store:?}");
        let again = store.ship(&outcomes(&rows), shipper(1, 20)).await.unwrap();
        assert_eq!(again, Shipment::default(), "{store:?}");
        for row in &rows {
            let stored = store.row(row.facts.id).await.unwrap().unwrap();
            assert_eq!(stored.row, *row, "{store:?}");
            let wanted = if row.facts.id == id(1) { Resolution::Pending } else { Resolution::None };
            assert_eq!(stored.resolved.state, wanted);
        }
        assert_eq!(store.row(id(9)).await.unwrap(), None);
        assert_eq!(store.journal_marks().await.unwrap()[&JOURNAL].shipped, at(1, 20));
    }
}

#[tokio::test]
async fn whatever_one_row_says_otherwise_than_the_others_of_its_statement_comes_back() {
    // What all of them are, and what one is besides.
    let unknown = |row: &mut Row| row.closing.status = Status::Unknown;
    let failed = |row: &mut Row| (row.closing.status, row.closing.proof) = (Status::Failed, Some(Proof::P1));
    type Change = fn(&mut Row);
    let cases: [(Change, Change); 22] = [
        (|_| {}, |_| {}),
        (|_| {}, |row| row.facts.id = TransactionId::parse(&row.facts.id.as_str().replace("1129", "1130")).unwrap()),
        (|_| {}, |row| row.facts.tx_code = "XX01".into()),
        (|_| {}, |row| row.facts.route = "other".into()),
        (|_| {}, |row| row.facts.kind = Kind::Mutation),
        (|_| {}, |row| row.facts.institution = "other".into()),
        (|_| {}, |row| row.facts.client = "other".into()),
        (|_| {}, |row| row.facts.layout_version = 4),
        (|_| {}, |row| row.facts.amount = None),
        (|_| {}, |row| row.facts.counter_account = Some(codec::MaskedAccount::of("20000000000002"))),
        (|_| {}, |row| row.facts.counter_account_hash = Some(vec![8; 16])),
        (|_| {}, |row| row.facts.idempotency_key_hash = None),
        (|_| {}, failed),
        (|_| {}, unknown),
        (|_| {}, |row| row.closing.response_code = None),
        (|_| {}, |row| row.closing.detail = Some("late".into())),
        (|_| {}, |row| row.closing.attempts.clear()),
        (|_| {}, |row| row.closing.served_from = ServedFrom::Host),
        (failed, |row| row.closing.proof = Some(Proof::H)),
        // A doubt that must be resolved beside one that need not.
        (unknown, |row| row.facts.kind = Kind::Mutation),
        (unknown, |row| (row.facts.kind, row.closing.detail) = (Kind::Mutation, Some(DUPLICATE_ID.into()))),
        (unknown, |_| {}),
    ];
    let (_folder, stores) = stores().await;
    for store in stores {
        let mut serial = 0;
        // The second of each three is another one than its neighbours, in one thing; then the last.
        for ((all, one), place) in cases.iter().flat_map(|case| [(case, 1), (case, 2)]) {
            let mut rows: Vec<Row> = (0..3).map(|_| row(2 * serial, Status::Success)).collect();
            for (row, next) in rows.iter_mut().zip(serial..) {
                row.facts.id = id(next);
            }
            rows.iter_mut().for_each(all);
            one(&mut rows[place]);
            serial += 3;
            let shipment = store.ship(&outcomes(&rows), shipper(1, serial)).await.unwrap();
            assert_eq!(shipment, Shipment { inserted: 3, parked: 0 }, "{rows:?} {store:?}");
            for row in rows {
                let stored = store.row(row.facts.id).await.unwrap().unwrap();
                let doubt = (stored.resolved.state, stored.resolved.resolve_as);
                assert_eq!((&stored.row, doubt), (&row, row.doubt()), "{store:?}");
            }
        }
        if let Store::Sql(SqlStore::Sqlite { readers, .. }) = &store {
            let wrong = "SELECT COUNT(*) FROM ledger WHERE business_day <> substr(transaction_id, 6, 8) \
                         OR attempts <> json_array_length(attempt_log)";
            assert_eq!(sqlx::query_scalar::<_, i64>(wrong).fetch_one(readers).await.unwrap(), 0);
        }
    }
}

#[tokio::test]
async fn a_row_that_contradicts_the_one_that_is_there_is_parked_and_the_rest_goes_on() {
    let (_folder, stores) = stores().await;
    for store in stores {
        store.ship(&outcomes(&[row(1, Status::Success)]), shipper(1, 10)).await.unwrap();
        let rows = [row(0, Status::Success), row(1, Status::Unknown), row(2, Status::Success)];
        let shipment = store.ship(&outcomes(&rows), shipper(1, 20)).await.unwrap();
        assert_eq!(shipment, Shipment { inserted: 2, parked: 1 }, "{store:?}");
        assert_eq!(store.row(id(1)).await.unwrap().unwrap().row.closing.status, Status::Success);
    }
}

#[tokio::test]
async fn a_row_that_sql_refuses_is_parked_and_the_rest_goes_on() {
    let (_folder, stores) = stores().await;
    for store in &stores[..2] {
        let mut refused = row(1, Status::Success);
        refused.closing.proof = Some(Proof::H);
        let rows = [row(0, Status::Success), refused, row(2, Status::Success)];
        let shipment = store.ship(&outcomes(&rows), shipper(1, 20)).await.unwrap();
        assert_eq!(shipment, Shipment { inserted: 2, parked: 1 }, "{store:?}");
    }
}

#[tokio::test]
async fn pages_are_newest_first_and_stable_while_rows_come_in() {
    let (_folder, stores) = stores().await;
    for store in stores {
        let rows: Vec<_> = (0..25).map(|serial| row(serial, Status::Success)).collect();
        store.ship(&outcomes(&rows), shipper(1, 10)).await.unwrap();
        let (mut seen, mut before, mut next_serial) = (Vec::new(), None, 100);
        loop {
            let page = store.page(&Filter::default(), before, 10).await.unwrap();
            let Some(last) = page.last() else { break };
            before = Some(last.seq);
            seen.extend(page.iter().map(|stored| stored.row.facts.id));
            store.ship(&outcomes(&[row(next_serial, Status::Success)]), shipper(1, 11)).await.unwrap();
            next_serial += 1;
        }
        assert_eq!(seen, (0..25).rev().map(id).collect::<Vec<_>>(), "{store:?}");
    }
}

#[tokio::test]
async fn every_filter_finds_what_it_says() {
    let (_folder, stores) = stores().await;
    for store in stores {
        let status = |serial: u64| if serial.is_multiple_of(4) { Status::Unknown } else { Status::Success };
        let rows: Vec<_> = (0..28).map(|serial| row(serial, status(serial))).collect();
        store.ship(&outcomes(&rows), shipper(1, 10)).await.unwrap();
        let none = Filter::default;
        type Takes<'a> = &'a dyn Fn(u64) -> bool;
        let cases: [(Filter, Takes<'_>); 9] = [
            (Filter { status: Some(Status::Unknown), ..none() }, &|s| s.is_multiple_of(4)),
            (Filter { tx_code: Some("TR01".into()), ..none() }, &|s| s % 2 == 1),
            (Filter { client: Some("a".into()), ..none() }, &|s| s.is_multiple_of(3)),
            (Filter { institution: Some("other".into()), ..none() }, &|_| false),
            (Filter { correlation_id: Some("c-7".into()), ..none() }, &|s| s == 7),
            (Filter { from: Some(5_000), to: Some(8_000), ..none() }, &|s| (5..8).contains(&s)),
            (Filter { account_hash: Some(vec![2; 16]), ..none() }, &|s| s % 5 == 2),
            (Filter { account_hash: Some(vec![9; 16]), ..none() }, &|s| s.is_multiple_of(7)),
            (Filter { unresolved: true, ..none() }, &|_| false),
        ];
        for (filter, takes) in cases {
            let page = store.page(&filter, None, 100).await.unwrap();
            let found: Vec<_> = page.iter().rev().map(|stored| stored.row.facts.id).collect();
            let wanted: Vec<_> = (0..28).filter(|serial| takes(*serial)).map(id).collect();
            assert_eq!(found, wanted, "{filter:?} {store:?}");
            let counts = store.summary(&filter).await.unwrap();
            assert_eq!(counts.iter().sum::<u64>(), wanted.len() as u64, "{filter:?}");
        }
        assert_eq!(store.summary(&none()).await.unwrap(), [21, 0, 7]);
        store.ship(&outcomes(&[row(31, Status::Unknown)]), shipper(1, 11)).await.unwrap();
        let unresolved = Filter { unresolved: true, ..none() };
        assert_eq!(store.page(&unresolved, None, 9).await.unwrap()[0].row.facts.id, id(31));
    }
}

#[tokio::test]
async fn blocks_of_one_letter_never_repeat_and_letters_are_independent() {
    let (_folder, stores) = stores().await;
    for store in stores {
        let (u, v) = (Instance::parse("U").unwrap(), Instance::parse("V").unwrap());
        let mut blocks = Vec::new();
        for _ in 0..50 {
            blocks.push(store.take_block(u).await.unwrap());
        }
        let different: std::collections::HashSet<_> = blocks.iter().collect();
        assert_eq!(different.len(), 50, "{store:?}");
        store.take_block(v).await.unwrap();
    }
}

mod accounts;
mod claims;
mod doubts;
mod log;
mod runs;
