//! The contract of claims and leases.

use std::sync::Arc;

use super::*;
use crate::ledger::row::Keyed;

const LONG: Duration = Duration::from_mins(1);

fn letter(letter: &str) -> Instance {
    Instance::parse(letter).unwrap()
}

/// Takes a letter for a life with this journal.
async fn owner(store: &Store, name: &str, journal: u8) -> Owner {
    let there = store.lease_of(letter(name)).await.unwrap();
    let (seen, mark) = there.map_or((0, [0; 16]), |lease| (lease.incarnation, lease.mark));
    let lease = InstanceLease {
        owner: [journal; 16],
        incarnation: seen + 1,
        mark: [9; 16],
        journal: [journal; 16],
        left: Duration::ZERO,
    };
    assert!(store.take_lease(letter(name), &lease, seen, Some(mark)).await.unwrap(), "{store:?}");
    lease.owner_of(letter(name))
}

pub(super) fn claim(key: &str, serial: u64, lease: Duration) -> Claim {
    let facts =
        Facts { idempotency_key_hash: Some(key.into()), kind: Kind::Mutation, ..row(serial, Status::Success).facts };
    let key =
        ClaimKey { client: "a".into(), method: "POST".into(), path: "/t".into(), key_hash: key.as_bytes().to_vec() };
    Claim::new(key, facts, vec![7; 32], lease)
}

async fn claim_one(store: &Store, owner: Owner, claim: &Claim) -> Claimed {
    store.claim(owner, std::slice::from_ref(claim)).await.unwrap().remove(0)
}

async fn taken(store: &Store, owner: Owner, claim: &Claim) -> Taken {
    match claim_one(store, owner, claim).await {
        Claimed::Taken(taken) => *taken,
        free @ (Claimed::Ours | Claimed::LetGo) => panic!("the key was free: {free:?}, {store:?}"),
    }
}

/// The outcome of a claimed transaction.
fn outcome(claim: &Claim, status: Status, proof: Option<Proof>) -> Outcome {
    let mut row = Row::in_doubt(claim.facts.clone(), "test", 5);
    (row.closing.status, row.closing.proof) = (status, proof);
    let answer = (status != Status::Unknown).then(|| Answer { http: 200, body: b"{}".to_vec() });
    Outcome { row, answer }
}

#[tokio::test]
async fn a_key_is_ours_once_and_then_says_whose_it_is() {
    let (_grounds, stores) = stores().await;
    for store in stores {
        let owner = owner(&store, "U", 1).await;
        let first = claim("k", 1, LONG);
        assert_eq!(claim_one(&store, owner, &first).await, Claimed::Ours, "{store:?}");
        let before = taken(&store, owner, &claim("k", 3, LONG)).await;
        assert_eq!((before.id, before.journal, before.progress), (id(1), [1; 16], Progress::Running), "{store:?}");
        let mut elsewhere = claim("k", 5, LONG);
        elsewhere.key.path = "/u".into();
        let mut other = claim("k", 7, LONG);
        other.key.client = "b".into();
        let both = store.claim(owner, &[elsewhere, other]).await.unwrap();
        assert_eq!(both, [Claimed::Ours, Claimed::Ours], "{store:?}");
        // Whoever does not know whether his claim got in asks again.
        assert_eq!(claim_one(&store, owner, &first).await, Claimed::Ours, "{store:?}");
        store.ship(&[outcome(&first, Status::Success, None)], Shipper::Journal(owner, at(1, 9))).await.unwrap();
        assert_eq!(taken(&store, owner, &first).await.id, id(1), "what has ended is not run again: {store:?}");
    }
}

#[tokio::test]
async fn a_group_gets_its_answers_in_its_own_order() {
    let (_grounds, stores) = stores().await;
    for store in stores {
        let owner = owner(&store, "U", 1).await;
        claim_one(&store, owner, &claim("b", 1, LONG)).await;
        let group = [claim("c", 3, LONG), claim("b", 5, LONG), claim("a", 7, LONG)];
        let claimed = store.claim(owner, &group).await.unwrap();
        assert_eq!((&claimed[0], &claimed[2]), (&Claimed::Ours, &Claimed::Ours), "{store:?}");
        assert!(matches!(&claimed[1], Claimed::Taken(taken) if taken.id == id(1)), "{store:?}");
    }
}

#[tokio::test]
async fn a_holder_that_does_not_read_concerns_its_own_key_alone() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::sqlite(&folder.path().join("ledger.sqlite")).await.unwrap();
    let Store::Sql(SqlStore::Sqlite { writer, .. }) = &store else { unreachable!() };
    let owner = owner(&store, "U", 1).await;
    claim_one(&store, owner, &claim("b", 1, LONG)).await;
    sqlx::query("UPDATE idempotency_claim SET transaction_id = 'x'").execute(writer).await.unwrap();
    let claimed = store.claim(owner, &[claim("a", 3, LONG), claim("b", 5, LONG)]).await.unwrap();
    assert_eq!(claimed, [Claimed::Ours, Claimed::LetGo]);
}

#[tokio::test]
async fn shipping_an_outcome_ends_its_claim_or_frees_its_key() {
    let (_grounds, stores) = stores().await;
    for store in stores {
        let owner = owner(&store, "U", 1).await;
        let group = [claim("s", 1, LONG), claim("h", 3, LONG), claim("p", 5, LONG), claim("u", 7, LONG)];
        store.claim(owner, &group).await.unwrap();
        let ended = [
            outcome(&group[0], Status::Success, None),
            outcome(&group[1], Status::Failed, Some(Proof::H)),
            outcome(&group[2], Status::Failed, Some(Proof::P1)),
            outcome(&group[3], Status::Unknown, None),
        ];
        store.ship(&ended, Shipper::Journal(owner, at(1, 9))).await.unwrap();
        let success = taken(&store, owner, &claim("s", 9, LONG)).await;
        assert_eq!(success.clone().repeat(&[7; 32]), Repeat::Same(id(1), ended[0].answer.clone().unwrap()));
        assert_eq!(success.repeat(&[8; 32]), Repeat::Reused, "{store:?}");
        let declined = taken(&store, owner, &claim("h", 9, LONG)).await;
        assert_eq!(declined.repeat(&[7; 32]), Repeat::Same(id(3), ended[1].answer.clone().unwrap()), "{store:?}");
        let doubt = taken(&store, owner, &claim("u", 9, LONG)).await;
        assert_eq!(doubt.repeat(&[7; 32]), Repeat::InDoubt(id(7)), "{store:?}");
        assert_eq!(claim_one(&store, owner, &claim("p", 9, LONG)).await, Claimed::Ours, "{store:?}");
        assert_eq!(store.open_claims(owner.journal, 10).await.unwrap()[0].id, id(9), "{store:?}");
    }
}

#[tokio::test]
async fn a_released_key_runs_anew_and_an_ended_one_is_not_released() {
    let (_grounds, stores) = stores().await;
    for store in stores {
        let owner = owner(&store, "U", 1).await;
        let group = [claim("a", 1, LONG), claim("b", 3, LONG)];
        store.claim(owner, &group).await.unwrap();
        store.ship(&[outcome(&group[1], Status::Success, None)], Shipper::Journal(owner, at(1, 9))).await.unwrap();
        store.release(owner, &[id(1), id(3)]).await.unwrap();
        assert_eq!(claim_one(&store, owner, &claim("a", 5, LONG)).await, Claimed::Ours, "{store:?}");
        assert_eq!(taken(&store, owner, &claim("b", 7, LONG)).await.id, id(3), "{store:?}");
    }
}

#[tokio::test]
async fn a_claim_of_another_journal_is_abandoned_when_its_lease_is_over_and_its_own_outcome_still_wins() {
    let (_grounds, stores) = stores().await;
    for store in stores {
        let (gone, other) = (owner(&store, "U", 1).await, owner(&store, "V", 2).await);
        let (short, long) = (claim("s", 1, Duration::from_millis(1)), claim("l", 3, LONG));
        store.claim(gone, &[short.clone(), long]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(store.abandon_overdue(gone).await.unwrap(), 0, "not by itself: {store:?}");
        assert_eq!(store.abandon_overdue(other).await.unwrap(), 1, "{store:?}");
        let abandoned = store.abandoned(Of::Everybody, 9).await.unwrap();
        assert_eq!(abandoned.iter().map(|facts| facts.id).collect::<Vec<_>>(), [id(1)], "{store:?}");
        assert!(store.abandoned(Of::Transaction(id(3)), 9).await.unwrap().is_empty());
        assert_eq!(taken(&store, other, &claim("s", 5, LONG)).await.repeat(&[7; 32]), Repeat::InDoubt(id(1)));
        assert_eq!(taken(&store, other, &claim("l", 5, LONG)).await.repeat(&[7; 32]), Repeat::InProgress);
        store.ship(&[outcome(&short, Status::Success, None)], Shipper::Journal(gone, at(1, 9))).await.unwrap();
        let ended = taken(&store, other, &claim("s", 5, LONG)).await.repeat(&[7; 32]);
        assert!(matches!(ended, Repeat::Same(..)), "{store:?}: {ended:?}");
        assert_eq!(store.abandon_journal(gone.journal).await.unwrap(), 1, "{store:?}");
    }
}

#[tokio::test]
async fn another_life_fences_the_one_before_it() {
    let (_grounds, stores) = stores().await;
    for store in stores {
        let before = owner(&store, "U", 1).await;
        let now = owner(&store, "U", 1).await;
        assert_eq!(now.incarnation, before.incarnation + 1);
        let refused = store.claim(before, &[claim("k", 1, LONG)]).await;
        assert!(matches!(refused, Err(StoreError::Fenced)), "{store:?}: {refused:?}");
        assert_eq!(claim_one(&store, now, &claim("k", 3, LONG)).await, Claimed::Ours, "{store:?}");
        // The same journal goes on in another life: what the old one says of it is not heard any more.
        let shipped = store.ship(&[], Shipper::Journal(before, at(9, 9))).await;
        assert!(matches!(shipped, Err(StoreError::Fenced)), "{store:?}: {shipped:?}");
        store.ship(&[], Shipper::Journal(now, at(1, 9))).await.unwrap();
        assert_eq!(store.journal_marks().await.unwrap()[&now.journal].shipped, at(1, 9), "{store:?}");
        // One that is set aside says what it knows and moves no checkpoint.
        store.ship(&outcomes(&[row(9, Status::Success)]), Shipper::SetAside).await.unwrap();
        assert_eq!(store.journal_marks().await.unwrap()[&now.journal].shipped, at(1, 9), "{store:?}");
        assert!(store.row(id(9)).await.unwrap().is_some(), "{store:?}");
    }
}

#[tokio::test]
async fn a_proof_that_contradicts_frees_no_key() {
    let (_grounds, stores) = stores().await;
    for store in stores {
        let owner = owner(&store, "U", 1).await;
        let one = claim("k", 1, LONG);
        claim_one(&store, owner, &one).await;
        store.ship(&[outcome(&one, Status::Success, None)], Shipper::Journal(owner, at(1, 1))).await.unwrap();
        let contradicts = outcome(&one, Status::Failed, Some(Proof::P0));
        let shipment = store.ship(&[contradicts], Shipper::Journal(owner, at(1, 2))).await.unwrap();
        assert_eq!(shipment.parked, 1, "{store:?}");
        assert_eq!(taken(&store, owner, &claim("k", 3, LONG)).await.id, id(1), "{store:?}");
    }
}

#[tokio::test]
async fn a_letter_belongs_to_its_owner_until_the_lease_is_over() {
    let (_grounds, stores) = stores().await;
    for store in stores {
        let lease = |owner, incarnation, left| InstanceLease {
            owner: [owner; 16],
            incarnation,
            mark: [owner; 16],
            journal: [owner; 16],
            left,
        };
        let take =
            async |lease, seen, mark: u8| store.take_lease(letter("U"), &lease, seen, Some([mark; 16])).await.unwrap();
        assert!(take(lease(1, 1, LONG), 0, 0).await, "{store:?}");
        assert!(!take(lease(2, 2, LONG), 1, 1).await, "another folder waits: {store:?}");
        assert!(!take(lease(1, 2, LONG), 0, 1).await, "it has changed since it was looked at: {store:?}");
        assert!(!take(lease(1, 2, LONG), 1, 7).await, "its mark has changed since: {store:?}");
        assert!(take(lease(1, 2, LONG), 1, 1).await, "its own folder takes it at once: {store:?}");
        assert!(!store.renew_lease(letter("U"), &lease(1, 1, LONG)).await.unwrap(), "{store:?}");
        assert!(store.renew_lease(letter("U"), &lease(1, 2, Duration::ZERO)).await.unwrap(), "{store:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(take(lease(2, 3, LONG), 2, 1).await, "{store:?}");
        let there = store.lease_of(letter("U")).await.unwrap().unwrap();
        assert_eq!((there.owner, there.incarnation), ([2; 16], 3), "{store:?}");
        assert!(there.left > LONG / 2 && there.left <= LONG, "{store:?}: {:?}", there.left);
    }
}

#[tokio::test]
async fn a_retired_journal_can_do_nothing_more_and_its_claims_become_doubts_that_are_asked_about() {
    let (_grounds, stores) = stores().await;
    for store in stores {
        let (gone, other) = (owner(&store, "U", 1).await, owner(&store, "V", 2).await);
        let one = claim("k", 1, LONG);
        claim_one(&store, gone, &one).await;
        assert_eq!(store.retire(gone.journal).await.unwrap(), 1, "{store:?}");
        assert_eq!(store.retire(gone.journal).await.unwrap(), 0, "again changes nothing: {store:?}");
        let shipped = store.ship(&[outcome(&one, Status::Success, None)], Shipper::Journal(gone, at(1, 9))).await;
        assert!(matches!(shipped, Err(StoreError::Fenced)), "{store:?}: {shipped:?}");
        let claimed = store.claim(gone, &[claim("x", 3, LONG)]).await;
        assert!(matches!(claimed, Err(StoreError::Fenced)), "{store:?}: {claimed:?}");
        assert!(store.journal_marks().await.unwrap()[&gone.journal].retired, "{store:?}");
        let row = store.row(id(1)).await.unwrap().unwrap();
        assert_eq!(row.row.closing.status, Status::Unknown, "{store:?}");
        assert_eq!(row.resolved.resolve_as, Some(ResolveAs::Confirm), "{store:?}");
        assert_eq!(row.resolved.state, Resolution::Pending, "{store:?}");
        assert_eq!(taken(&store, other, &claim("k", 5, LONG)).await.repeat(&[7; 32]), Repeat::InDoubt(id(1)));
    }
}

#[tokio::test]
async fn keys_expire_and_never_while_their_transaction_is_in_doubt() {
    let (_grounds, stores) = stores().await;
    for store in stores {
        let owner = owner(&store, "U", 1).await;
        let group = [claim("s", 1, LONG), claim("u", 3, LONG), claim("r", 5, LONG)];
        store.claim(owner, &group).await.unwrap();
        let ended = [outcome(&group[0], Status::Success, None), outcome(&group[1], Status::Unknown, None)];
        store.ship(&ended, Shipper::Journal(owner, at(1, 9))).await.unwrap();
        assert_eq!(store.purge_claims(LONG).await.unwrap(), 0, "{store:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
        let keep = Duration::from_millis(10);
        assert_eq!(store.purge_claims(keep).await.unwrap(), 1, "one has ended, one is in doubt, one runs: {store:?}");
        // Once it is resolved its time begins anew.
        let held = store.hold_doubts(&Wanted::Due(&routes()), "t", LONG, 9).await.unwrap();
        assert_eq!(held.len(), 1, "{store:?}");
        assert!(store.intend_cancel(id(3), "t").await.unwrap());
        let verdict = Verdict::ByCancel(Resolution::Canceled);
        let end = StepEnd { asked: "net-cancel", answered: "cancelled", verdict, not_processed: false };
        assert!(store.end_step(id(3), "t", &end).await.unwrap(), "{store:?}");
        assert_eq!(store.purge_claims(Duration::from_secs(5)).await.unwrap(), 0, "{store:?}");
        let repeat = taken(&store, owner, &claim("u", 7, LONG)).await.repeat(&[7; 32]);
        assert_eq!(repeat, Repeat::Resolved(id(3), Resolution::Canceled), "{store:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(store.purge_claims(keep).await.unwrap(), 1, "{store:?}");
    }
}

#[tokio::test]
async fn of_many_gateways_one_gets_a_key() {
    let (_grounds, stores) = stores().await;
    for store in stores {
        let mut owners = Vec::new();
        for (nth, name) in ["A", "B", "C", "D"].iter().enumerate() {
            owners.push(owner(&store, name, u8::try_from(nth).unwrap() + 1).await);
        }
        let mut tasks = tokio::task::JoinSet::new();
        for serial in 0..100_usize {
            let (store, owner) = (store.clone(), owners[serial % 4]);
            // Each group holds the one key and others, in an order of its own.
            let serial = u64::try_from(serial).unwrap() * 10;
            let mut group = vec![claim("one", serial + 1, LONG), claim(&format!("x{}", serial % 70), serial + 2, LONG)];
            if serial % 20 == 0 {
                group.reverse();
            }
            tasks.spawn(async move {
                // Sorted, two groups never wait for each other in a circle.
                let claimed = store.claim(owner, &group).await.unwrap();
                claimed.into_iter().zip(group).collect::<Vec<_>>()
            });
        }
        let all: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
        let ours = |key: &str| {
            let key = key.as_bytes();
            all.iter().filter(|(claimed, claim)| *claimed == Claimed::Ours && claim.key.key_hash == key).count()
        };
        assert_eq!(ours("one"), 1, "{store:?}");
        assert!((0..70).step_by(10).all(|nth| ours(&format!("x{nth}")) == 1), "{store:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn groups_that_want_the_same_keys_in_other_orders_never_wait_in_a_circle() {
    let (_grounds, stores) = stores().await;
    for store in stores {
        let owners = [owner(&store, "A", 1).await, owner(&store, "B", 2).await];
        for round in 0..15_u64 {
            let mut tasks = tokio::task::JoinSet::new();
            for (nth, owner) in owners.into_iter().enumerate() {
                let store = store.clone();
                let first = round * 1_000 + u64::try_from(nth).unwrap() * 200;
                let mut group: Vec<_> =
                    (0..100).map(|key| claim(&format!("{round}-{key:03}"), 2 * (first + key) + 1, LONG)).collect();
                if nth == 1 {
                    group.reverse();
                }
                tasks.spawn(async move { store.claim(owner, &group).await.map(|claimed| (claimed, group)) });
            }
            let mut ours = 0;
            for done in tasks.join_all().await {
                let (claimed, _) = done.unwrap_or_else(|error| panic!("{store:?}: {error}"));
                ours += claimed.iter().filter(|claimed| **claimed == Claimed::Ours).count();
            }
            assert_eq!(ours, 100, "{store:?}");
        }
    }
}

#[tokio::test]
async fn a_look_for_keys_claims_nothing_and_finds_what_was_shipped_with_its_key() {
    let (_grounds, stores) = stores().await;
    for store in stores {
        let owner = owner(&store, "U", 1).await;
        let keyed = |mut claim: Claim| {
            let (method, path) = (claim.key.method.clone(), claim.key.path.clone());
            claim.facts.keyed = Some(Arc::new(Keyed { method, path, fingerprint: claim.fingerprint.clone() }));
            claim.facts.client.clone_from(&claim.key.client);
            claim.facts.idempotency_key_hash = Some(claim.key.key_hash.clone());
            claim
        };
        let group = [claim("s", 1, LONG), claim("p", 3, LONG), claim("u", 5, LONG), claim("h", 13, LONG)].map(keyed);
        for _ in 0..2 {
            assert_eq!(store.find_claims(owner, &group).await.unwrap(), vec![Claimed::Ours; 4], "{store:?}");
        }
        let ended = [
            outcome(&group[0], Status::Success, None),
            outcome(&group[1], Status::Failed, Some(Proof::P0)),
            outcome(&group[2], Status::Unknown, None),
            outcome(&group[3], Status::Failed, Some(Proof::H)),
        ];
        // One of them was written down while it ran. One's key was let go by another transaction, whose claim comes too late. And rows
        // come twice when the answer to their shipment was lost.
        store.write_claims(owner, &[group[0].clone(), claim("h", 15, LONG)]).await.unwrap();
        for inserted in [4, 0] {
            let shipment = store.ship(&ended, Shipper::Journal(owner, at(1, 9))).await.unwrap();
            assert_eq!(shipment, Shipment { inserted, parked: 0 }, "{store:?}");
        }
        assert_eq!(taken(&store, owner, &claim("h", 17, LONG)).await.id, id(13), "{store:?}");
        let again = [claim("s", 7, LONG), claim("p", 9, LONG), claim("u", 11, LONG)];
        let found = store.find_claims(owner, &again).await.unwrap();
        let [Claimed::Taken(success), Claimed::Ours, Claimed::Taken(doubt)] = &found[..] else {
            panic!("{found:?} {store:?}")
        };
        let same = Repeat::Same(id(1), ended[0].answer.clone().unwrap());
        assert_eq!(success.clone().repeat(&[7; 32]), same, "{store:?}");
        assert_eq!(success.clone().repeat(&[8; 32]), Repeat::Reused, "{store:?}");
        assert_eq!(doubt.clone().repeat(&[7; 32]), Repeat::InDoubt(id(5)), "{store:?}");
        assert_eq!(store.open_claims([1; 16], 9).await.unwrap(), [], "{store:?}");
        store.retire([1; 16]).await.unwrap();
        let fenced = store.find_claims(owner, &again).await;
        assert!(matches!(fenced, Err(StoreError::Fenced)), "{fenced:?} {store:?}");
    }
}
