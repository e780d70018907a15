//! How SQLite finds what is few among many: an account in every run of the index, open claims among themselves.

use sqlx::{AssertSqlSafe, Row as _};

use super::*;

#[tokio::test]
async fn an_account_is_found_in_every_run_of_the_index_by_the_index_alone() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::sqlite(&folder.path().join("ledger.sqlite")).await.unwrap();
    let Store::Sql(sql @ SqlStore::Sqlite { writer, readers, .. }) = &store else { unreachable!() };
    // Serials 7 and 14 have it as the counter account too. The second twenty lie on both sides of an edge, the third behind empty runs.
    for (segment, (serials, behind)) in (1..).zip([(0..20, (1 << 13) - 11), (20..40, 5 << 13), (40..60, 0)]) {
        let rows: Vec<Row> = serials.map(|serial| row(serial, Status::Success)).collect();
        store.ship(&outcomes(&rows), shipper(segment, 10)).await.unwrap();
        sqlx::query("UPDATE sqlite_sequence SET seq = MAX(seq, ?) WHERE name = 'ledger'")
            .bind(i64::from(behind))
            .execute(writer)
            .await
            .unwrap();
    }
    let of = |hash: u8| Filter { account_hash: Some(vec![hash; 16]), ..Filter::default() };
    for (hash, is_wanted) in [(2, (|serial| serial % 5 == 2) as fn(u64) -> bool), (9, |serial| serial % 7 == 0)] {
        let page = store.page(&of(hash), None, 100).await.unwrap();
        let wanted: Vec<_> = (0..60).rev().filter(|serial| is_wanted(*serial)).map(id).collect();
        assert_eq!(page.iter().map(|stored| stored.row.facts.id).collect::<Vec<_>>(), wanted);
    }
    let of_client = Filter { client: Some("a".to_owned()), status: Some(Status::Unknown), ..of(2) };
    let questions = [
        sql.look_for(&of(2), None, 20),
        sql.look_for(&of(2), Some(9), 20),
        sql.look_for(&of_client, None, 20),
        sql.count(&of(2)),
    ];
    for mut question in questions {
        let arguments = question.for_sqlite().unwrap();
        let plan = sqlx::query_with(AssertSqlSafe(format!("EXPLAIN QUERY PLAN {}", question.text)), arguments);
        let plan: Vec<String> = plan.fetch_all(readers).await.unwrap().iter().map(|row| row.get(3)).collect();
        for index in [
            "ledger_account (<expr>=? AND account_hash=?",
            "ledger_counter_account (<expr>=? AND counter_account_hash=?",
        ] {
            assert!(plan.iter().any(|step| step.contains(index)), "{index} in {plan:#?}");
        }
        assert!(!plan.iter().any(|step| step.starts_with("SCAN ledger")), "{plan:#?}");
    }
}

#[tokio::test]
async fn open_claims_are_looked_for_among_open_ones_alone() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::sqlite(&folder.path().join("ledger.sqlite")).await.unwrap();
    let Store::Sql(sql @ SqlStore::Sqlite { readers, .. }) = &store else { unreachable!() };
    let mut question = sql.look_for_claims("", 100);
    let arguments = question.for_sqlite().unwrap();
    let plan = sqlx::query_with(AssertSqlSafe(format!("EXPLAIN QUERY PLAN {}", question.text)), arguments);
    let plan: Vec<String> = plan.fetch_all(readers).await.unwrap().iter().map(|row| row.get(3)).collect();
    assert!(plan.iter().any(|step| step.contains("claim_open")), "{plan:#?}");
}

#[tokio::test]
async fn a_key_is_looked_for_in_its_index() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::sqlite(&folder.path().join("ledger.sqlite")).await.unwrap();
    let Store::Sql(sql @ SqlStore::Sqlite { readers, .. }) = &store else { unreachable!() };
    let claims = ["a", "b", "c"].map(|key| claims::claim(key, 1, Duration::ZERO));
    let mut question = sql.who_has(&claims.iter().collect::<Vec<_>>());
    let arguments = question.for_sqlite().unwrap();
    let plan = sqlx::query_with(AssertSqlSafe(format!("EXPLAIN QUERY PLAN {}", question.text)), arguments);
    let plan: Vec<String> = plan.fetch_all(readers).await.unwrap().iter().map(|row| row.get(3)).collect();
    let whole = "(client=? AND method=? AND path=? AND key_hash=?)";
    assert!(plan.iter().any(|step| step.starts_with("SEARCH c") && step.ends_with(whole)), "{plan:#?}");
    assert!(!plan.iter().any(|step| step.starts_with("SCAN c")), "{plan:#?}");
}
