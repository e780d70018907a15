//! Lives on one disk that are ended by kills and power cuts, compared with a model.

use super::*;

/// What a run knows of its transactions, beside the journal.
#[derive(Default)]
struct Model {
    next: u64,
    open: Vec<u64>,
    outcomes: BTreeSet<u64>,
    /// Written, and so to be found after a kill.
    written: BTreeSet<u64>,
    written_outcomes: BTreeSet<u64>,
    acknowledged_intents: BTreeSet<u64>,
    acknowledged_outcomes: BTreeSet<u64>,
}

/// Starts on what the last life left, and compares.
fn next_life(disk: &Arc<MemoryDisk>, model: &mut Model, killed: bool, told: &str) -> Arc<Journal> {
    let recovered = recover(disk).unwrap_or_else(|error| panic!("{told}: {error}"));
    let serial = |id: TransactionId| id.as_str()[13..].parse::<u64>().unwrap();
    let open: BTreeSet<u64> = recovered.open.iter().map(|facts| serial(facts.id)).collect();
    let journal = recovered.journal;
    let closed: BTreeSet<u64> = {
        let writer = journal.writer();
        let closed = writer.live.iter().filter(|(_, live)| matches!(live, Live::Closed { .. }));
        closed.map(|(id, _)| serial(*id)).collect()
    };
    assert!(closed.is_superset(&model.acknowledged_outcomes), "{told}: an acknowledged outcome is gone");
    assert!(closed.is_subset(&model.outcomes), "{told}: an outcome that nobody wrote");
    let known: BTreeSet<u64> = open.union(&closed).copied().collect();
    let gone: Vec<_> = model.acknowledged_intents.difference(&known).collect();
    assert!(gone.is_empty(), "{told}: acknowledged intents are gone: {gone:?}");
    if killed {
        assert!(closed.is_superset(&model.written_outcomes), "{told}: a kill lost an outcome");
        assert!(known.is_superset(&model.written), "{told}: a kill lost an intent");
    }
    // What a power cut took is gone; from here on only what is there can be lost.
    model.written = known;
    model.written_outcomes = closed;
    assert!(open.iter().all(|serial| *serial < model.next), "{told}: an intent that nobody wrote");
    // As the ledger does: what is open becomes UNKNOWN.
    model.open.clear();
    for serial in open {
        model.outcomes.insert(serial);
        journal.append_outcome(&row(serial)).unwrap_or_else(|error| panic!("{told}: {error}"));
        model.written_outcomes.insert(serial);
    }
    journal
}

/// One step of a life; says whether the journal goes on.
async fn step(journal: &Journal, disk: &MemoryDisk, model: &mut Model, dice: &mut fastrand::Rng) -> bool {
    let letters = 1 + usize::from(dice.u8(..64));
    let written = match dice.u8(..10) {
        0..=3 => {
            let serial = model.next;
            model.next += 1;
            let written = journal.append_intent(&row_of(serial, letters).row.facts);
            model.open.push(serial);
            written.map(|position| (position, serial, false))
        }
        4..=8 if !model.open.is_empty() => {
            let serial = model.open.swap_remove(dice.usize(..model.open.len()));
            model.outcomes.insert(serial);
            journal.append_outcome(&maybe_answered(serial, letters)).map(|position| (position, serial, true))
        }
        9 => {
            disk.sync_fails.store(u64::from(dice.u8(..3)), Ordering::Relaxed);
            return true;
        }
        _ => return true,
    };
    let Ok((position, serial, outcome)) = written else { return false };
    model.written.insert(serial);
    if outcome {
        model.written_outcomes.insert(serial);
    }
    if dice.u8(..) < 90 {
        if journal.durable(position).await.is_err() {
            return false;
        }
        if outcome {
            model.acknowledged_outcomes.insert(serial);
        } else {
            model.acknowledged_intents.insert(serial);
        }
    }
    true
}

/// Three lives on one disk, each ended by a kill or by a power cut, with syncs that fail and pages that are lost in any
/// order. `JOURNAL_SEEDS=n` runs more of them.
#[tokio::test]
async fn what_was_acknowledged_survives_kills_power_cuts_and_failed_syncs_in_any_order() {
    #[expect(clippy::disallowed_methods, reason = "a test's own switch")]
    let seeds = std::env::var("JOURNAL_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(300);
    for seed in 0..seeds {
        let mut dice = fastrand::Rng::with_seed(seed);
        let (disk, mut model) = (Arc::new(MemoryDisk::default()), Model::default());
        let mut killed = false;
        for life in 0..3 {
            let told = format!("seed {seed}, life {life}");
            let journal = next_life(&disk, &mut model, killed, &told);
            let syncer = tokio::spawn(Arc::clone(&journal).run_syncer());
            for _ in 0..dice.usize(1..120) {
                if !step(&journal, &disk, &mut model, &mut dice).await {
                    break;
                }
            }
            end_life(&disk, journal, syncer).await;
            // The task that syncs may be in the middle of it; let that end, as a disk would.
            tokio::task::yield_now().await;
            disk.sync_fails.store(0, Ordering::Relaxed);
            killed = dice.bool();
            if !killed {
                disk.lose_power(|| dice.bool());
            }
        }
        next_life(&disk, &mut model, killed, &format!("seed {seed}, the end"));
    }
}
