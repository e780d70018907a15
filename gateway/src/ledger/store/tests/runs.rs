//! The contract of reconciliation.

use super::*;

fn line(id: &str, position: u64) -> HostLine {
    HostLine { id: id.to_owned(), position, amount: 7, flag: "00".to_owned() }
}

#[tokio::test]
async fn a_staged_list_is_read_back_by_id_and_page() {
    let (_grounds, stores) = stores().await;
    for store in stores {
        store.begin_run("r", "20261129", "core", false).await.unwrap();
        store.begin_run("other", "20261129", "core", false).await.unwrap();
        store.stage("r", &[line("B", 0), line("A", 1), line("C", 2), line("A", 3)]).await.unwrap();
        store.stage("other", &[line("A", 0)]).await.unwrap();
        let first = store.staged("r", ("", 0), 2).await.unwrap();
        assert_eq!(first, [line("A", 1), line("A", 3)], "{store:?}");
        let second = store.staged("r", ("A", 3), 9).await.unwrap();
        assert_eq!(second, [line("B", 0), line("C", 2)], "{store:?}");
    }
}

#[tokio::test]
async fn a_days_mutations_come_in_the_order_of_their_ids() {
    let (_grounds, stores) = stores().await;
    for store in stores {
        let rows: Vec<_> = [9, 3, 5, 2, 7].map(|serial| row(serial, Status::Success)).into();
        store.ship(&outcomes(&rows), shipper(1, 1)).await.unwrap();
        let all = store.ledger_lines("20261129", "core-banking", "", 3).await.unwrap();
        assert_eq!(all.iter().map(|line| line.id).collect::<Vec<_>>(), [id(3), id(5), id(7)], "{store:?}");
        let rest = store.ledger_lines("20261129", "core-banking", id(7).as_str(), 3).await.unwrap();
        assert_eq!(rest.iter().map(|line| (line.id, line.amount)).collect::<Vec<_>>(), [(id(9), Some(1_000))]);
        assert!(store.ledger_lines("20261128", "core-banking", "", 3).await.unwrap().is_empty(), "{store:?}");
        assert!(store.ledger_lines("20261129", "core-other", "", 3).await.unwrap().is_empty(), "{store:?}");
    }
}

#[tokio::test]
async fn a_run_ends_with_its_counts_and_its_differences_are_paged() {
    let (_grounds, stores) = stores().await;
    for store in stores {
        let before = store.horizon().await.unwrap();
        assert!(store.begin_run("r1", "20261129", "core", false).await.unwrap(), "{store:?}");
        assert!(!store.begin_run("r0", "20261129", "core", true).await.unwrap(), "it has one: {store:?}");
        assert!(store.begin_run("x", "20261129", "other", true).await.unwrap(), "{store:?}");
        store.end_run("x", Tally::default(), Some("no list")).await.unwrap();
        store.ship(&outcomes(&[row(1, Status::Success)]), shipper(1, 1)).await.unwrap();
        let after = store.horizon().await.unwrap();
        assert!(after.seq > before.seq && after.now >= before.now && after.now < before.now + 60_000_000, "{store:?}");
        store.stage("r1", &[line("A", 0)]).await.unwrap();
        let found: Vec<_> = (1..=5)
            .zip(Class::ALL)
            .map(|(seq, class)| Difference {
                seq,
                class,
                id: format!("T{seq}"),
                ledger_status: Some("SUCCESS".into()),
                ledger_amount: Some(5),
                core_flag: None,
                core_amount: None,
            })
            .collect();
        store.add_differences("r1", &found).await.unwrap();
        let mut tally = Tally { host_lines: 9, matched: 4, ..Tally::default() };
        found.iter().for_each(|one| tally.add(one.class));
        store.end_run("r1", tally, None).await.unwrap();
        let run = store.run("r1").await.unwrap().unwrap();
        assert_eq!((run.state.as_str(), run.tally, run.detail), ("DONE", tally, None), "{store:?}");
        assert_eq!(store.differences("r1", 0, 3).await.unwrap(), found[..3], "{store:?}");
        assert_eq!(store.differences("r1", 3, 3).await.unwrap(), found[3..], "{store:?}");
        assert!(store.staged("r1", ("", 0), 9).await.unwrap().is_empty(), "the list is not kept: {store:?}");
        store.begin_run("r2", "20261130", "core", false).await.unwrap();
        store.end_run("r2", Tally::default(), Some("no list")).await.unwrap();
        // In the same moment, by their numbers.
        let runs = store.runs(9).await.unwrap();
        assert_eq!(
            runs.iter().map(|run| run.state.as_str()).collect::<Vec<_>>(),
            ["FAILED", "FAILED", "DONE"],
            "{store:?}"
        );
        assert_eq!(store.run("nothing").await.unwrap(), None);
    }
}
