//! The contract of resolution.

use super::*;

const LEASE: Duration = Duration::from_mins(1);

/// Ships one doubt; the serials of mutations are odd.
async fn doubt(store: &Store, serial: u64) -> TransactionId {
    store.ship(&outcomes(&[row(serial, Status::Unknown)]), shipper(1, serial)).await.unwrap();
    id(serial)
}

fn end(verdict: Verdict) -> StepEnd<'static> {
    StepEnd { asked: "net-cancel", answered: "heard", verdict, not_processed: false }
}

async fn state(store: &Store, id: TransactionId) -> Resolution {
    store.row(id).await.unwrap().unwrap().resolved.state
}

#[tokio::test]
async fn a_doubt_is_held_by_one_at_a_time_and_only_when_it_is_due() {
    let (_grounds, stores) = stores().await;
    for store in stores {
        let one = doubt(&store, 1).await;
        doubt(&store, 2).await;
        let held = store.hold_doubts(&Wanted::Due(&routes()), "a", LEASE, 9).await.unwrap();
        assert_eq!(held.len(), 1, "an inquiry's doubt matters to nobody: {store:?}");
        assert_eq!((held[0].row.facts.id, held[0].resolution, held[0].tries), (one, Resolution::Pending, 0));
        assert!(store.hold_doubts(&Wanted::Due(&routes()), "b", LEASE, 9).await.unwrap().is_empty(), "{store:?}");
        assert!(store.hold_doubts(&Wanted::One(one), "b", LEASE, 9).await.unwrap().is_empty(), "{store:?}");
        assert!(!store.intend_cancel(one, "b").await.unwrap(), "not its holder: {store:?}");
        assert!(!store.end_step(one, "b", &end(Verdict::Manual)).await.unwrap(), "{store:?}");
        assert!(store.end_step(one, "a", &end(Verdict::Again(LEASE))).await.unwrap(), "{store:?}");
        assert!(
            store.hold_doubts(&Wanted::Due(&routes()), "b", LEASE, 9).await.unwrap().is_empty(),
            "not due: {store:?}"
        );
        let held = store.hold_doubts(&Wanted::One(one), "b", LEASE, 9).await.unwrap();
        assert_eq!(held[0].tries, 1, "{store:?}");
        assert_eq!(store.steps(one).await.unwrap().len(), 1, "{store:?}");
    }
}

#[tokio::test]
async fn when_the_lease_is_over_its_holder_can_do_nothing_more() {
    let (_grounds, stores) = stores().await;
    for store in stores {
        let one = doubt(&store, 1).await;
        store.hold_doubts(&Wanted::Due(&routes()), "a", Duration::from_millis(1), 9).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!store.intend_cancel(one, "a").await.unwrap(), "{store:?}");
        assert!(!store.end_step(one, "a", &end(Verdict::Manual)).await.unwrap(), "{store:?}");
        assert_eq!(store.hold_doubts(&Wanted::Due(&routes()), "b", LEASE, 9).await.unwrap().len(), 1, "{store:?}");
    }
}

#[tokio::test]
async fn after_a_net_cancels_intent_only_its_answer_closes_the_row() {
    let (_grounds, stores) = stores().await;
    for store in stores {
        let one = doubt(&store, 1).await;
        let hold = async |token: &str| store.hold_doubts(&Wanted::One(one), token, LEASE, 9).await.unwrap();
        assert!(!hold("a").await[0].cancel_intended, "{store:?}");
        let cancelled = end(Verdict::ByCancel(Resolution::Canceled));
        assert!(!store.end_step(one, "a", &cancelled).await.unwrap(), "none was intended: {store:?}");
        assert!(store.intend_cancel(one, "a").await.unwrap(), "{store:?}");
        let success = end(Verdict::ByInquiry(Resolution::ConfirmedSuccess));
        assert!(!store.end_step(one, "a", &success).await.unwrap(), "{store:?}");
        assert!(store.end_step(one, "a", &end(Verdict::Manual)).await.unwrap(), "{store:?}");
        assert_eq!(state(&store, one).await, Resolution::Manual, "{store:?}");
        let hand = |state| ByHand { state, by: "op", note: "seen at the counter" };
        assert!(
            !store.close_by_hand(one, &hand(Resolution::ConfirmedSuccess)).await.unwrap(),
            "one is on its way: {store:?}"
        );
        assert!(hold("b").await[0].cancel_intended, "manual ones go on: {store:?}");
        assert!(!store.close_by_hand(one, &hand(Resolution::Canceled)).await.unwrap(), "it is held: {store:?}");
        assert!(store.end_step(one, "b", &cancelled).await.unwrap(), "{store:?}");
        assert_eq!(state(&store, one).await, Resolution::Canceled, "{store:?}");
        assert!(hold("c").await.is_empty(), "it is closed: {store:?}");
        assert!(!store.close_by_hand(one, &hand(Resolution::ConfirmedFailed)).await.unwrap(), "{store:?}");
    }
}

#[tokio::test]
async fn an_operator_closes_a_manual_row_and_is_named() {
    let (_grounds, stores) = stores().await;
    for store in stores {
        let one = doubt(&store, 1).await;
        let hand = ByHand { state: Resolution::ConfirmedSuccess, by: "op", note: "statement of the bank" };
        assert!(!store.close_by_hand(one, &hand).await.unwrap(), "it is not manual: {store:?}");
        store.hold_doubts(&Wanted::Due(&routes()), "a", LEASE, 9).await.unwrap();
        store.end_step(one, "a", &end(Verdict::Hand)).await.unwrap();
        assert!(store.hold_doubts(&Wanted::One(one), "b", LEASE, 9).await.unwrap().is_empty(), "by hand: {store:?}");
        assert!(store.close_by_hand(one, &hand).await.unwrap(), "{store:?}");
        let resolved = store.row(one).await.unwrap().unwrap().resolved;
        assert_eq!(resolved.state, Resolution::ConfirmedSuccess, "{store:?}");
        assert_eq!((resolved.by.as_deref(), resolved.note.as_deref()), (Some("op"), Some("statement of the bank")));
        assert_eq!(resolved.method.as_deref(), Some("by-hand"), "{store:?}");
        assert!(resolved.at.is_some() && store.steps(one).await.unwrap()[0].asked == "by-hand", "{store:?}");
    }
}

#[tokio::test]
async fn a_host_that_did_not_process_it_is_remembered_and_what_was_not_asked_leaves_no_step() {
    let (_grounds, stores) = stores().await;
    for store in stores {
        let one = doubt(&store, 1).await;
        let hold = async |token: &str| store.hold_doubts(&Wanted::One(one), token, LEASE, 9).await.unwrap().remove(0);
        hold("a").await;
        assert!(store.end_step(one, "a", &end(Verdict::PutOff(Duration::from_millis(1)))).await.unwrap());
        let second = hold("b").await;
        assert_eq!((second.tries, second.not_processed_since), (0, None), "{store:?}");
        let not_processed = StepEnd { not_processed: true, ..end(Verdict::GoOn) };
        assert!(store.end_step(one, "b", &not_processed).await.unwrap(), "{store:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(store.end_step(one, "b", &end(Verdict::Again(LEASE))).await.unwrap(), "it stayed held: {store:?}");
        let third = hold("c").await;
        assert_eq!(third.tries, 2, "{store:?}");
        let since = third.not_processed_since.unwrap();
        assert!(since >= Duration::from_millis(15) && since < LEASE, "{store:?}: {since:?}");
    }
}

#[tokio::test]
async fn an_id_that_the_host_had_seen_before_is_left_to_people() {
    let (_grounds, stores) = stores().await;
    for store in stores {
        let mut twice = row(1, Status::Unknown);
        twice.closing.detail = Some("duplicate-id".into());
        store.ship(&outcomes(&[twice]), shipper(1, 1)).await.unwrap();
        assert_eq!(state(&store, id(1)).await, Resolution::Manual, "{store:?}");
        assert!(store.hold_doubts(&Wanted::One(id(1)), "a", LEASE, 9).await.unwrap().is_empty(), "{store:?}");
    }
}

#[tokio::test]
async fn a_success_by_hand_needs_that_every_net_cancel_was_answered_that_it_cannot_be_undone() {
    let (_grounds, stores) = stores().await;
    for store in stores {
        let one = doubt(&store, 1).await;
        let hand = ByHand { state: Resolution::ConfirmedSuccess, by: "op", note: "it stands" };
        let ask = async |token: &str, answered: Option<&str>| {
            assert_eq!(store.hold_doubts(&Wanted::One(one), token, LEASE, 9).await.unwrap().len(), 1, "{store:?}");
            assert!(store.intend_cancel(one, token).await.unwrap(), "{store:?}");
            let answered = answered.unwrap_or("read-timeout");
            let end = StepEnd { answered, ..end(Verdict::Manual) };
            assert!(store.end_step(one, token, &end).await.unwrap(), "{store:?}");
        };
        ask("a", Some("cannot-undo")).await;
        ask("b", None).await;
        assert!(!store.close_by_hand(one, &hand).await.unwrap(), "one is on its way: {store:?}");
        if let Store::Sql(sql) = &store {
            // A quarter of an hour later nothing is on its way any more.
            sql.make_steps_older().await;
            assert!(store.close_by_hand(one, &hand).await.unwrap(), "{store:?}");
        }
        let two = doubt(&store, 3).await;
        store.hold_doubts(&Wanted::One(two), "c", LEASE, 9).await.unwrap();
        store.intend_cancel(two, "c").await.unwrap();
        store.end_step(two, "c", &StepEnd { answered: "cannot-undo", ..end(Verdict::Manual) }).await.unwrap();
        assert!(store.close_by_hand(two, &hand).await.unwrap(), "{store:?}");
        assert_eq!(state(&store, two).await, Resolution::ConfirmedSuccess, "{store:?}");
    }
}

#[tokio::test]
async fn a_row_of_a_route_that_is_not_known_here_is_left_alone() {
    let (_grounds, stores) = stores().await;
    for store in stores {
        doubt(&store, 1).await;
        for routes in [&[][..], &["another".to_owned()][..]] {
            assert!(store.hold_doubts(&Wanted::Due(routes), "a", LEASE, 9).await.unwrap().is_empty(), "{store:?}");
        }
        assert_eq!(store.hold_doubts(&Wanted::Due(&routes()), "a", LEASE, 9).await.unwrap().len(), 1, "{store:?}");
    }
}
