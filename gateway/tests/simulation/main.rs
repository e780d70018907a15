//! The whole gateway in one process under paused time: the production code over its four seams, in a world that a seed makes
//! hostile. After each run three witnesses are compared: the bank's own books, the ledger, and what the callers saw.
//!
//! `SEEDS=n` runs more of them, `SEED=n` replays one and tells its story.
#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test stops at the first surprise")]
#![expect(clippy::disallowed_methods, reason = "tests read the environment themselves")]

mod callers;
mod check;
mod gates;
mod net;
mod world;

#[path = "../parts/memory_disk.rs"]
mod memory_disk;

use gwanmun::ledger::{Disk, SegmentFile};

use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    /// Panics on this thread, also those that a task of the gateway's keeps to itself.
    static PANICS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Counts panics beside what happens to them anyway.
fn count_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.set(PANICS.get() + 1);
            before(info);
        }));
    });
}

/// Runs one seed. What it says tells one run from another.
fn run(seed: u64, telling: bool) -> world::Totals {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    // The production code's own dice: jitter, first blocks.
    fastrand::seed(seed);
    count_panics();
    PANICS.set(0);
    let totals = runtime.block_on(world::live(seed, telling));
    assert_eq!(PANICS.get(), 0, "seed {seed}: something panicked inside");
    totals
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} must be a number")))
}

#[test]
fn under_every_seed_the_books_the_ledger_and_the_callers_agree() {
    if let Some(seed) = number("SEED") {
        println!("{}", run(seed, true));
        return;
    }
    let (first, count) = (number("FIRST").unwrap_or(0), number("SEEDS").unwrap_or(2_000));
    let next = AtomicU64::new(first);
    let workers = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let totals = std::sync::Mutex::new(world::Totals::default());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        return;
                    }
                    let ran = std::panic::catch_unwind(|| run(seed, false));
                    let Ok(said) = ran else {
                        eprintln!("seed {seed} failed; SEED={seed} replays it");
                        next.store(u64::MAX / 2, Ordering::Relaxed);
                        panic!("seed {seed}");
                    };
                    totals.lock().unwrap().add(&said);
                }
            });
        }
    });
    let totals = totals.into_inner().unwrap();
    println!("{count} seeds: {totals}");
    totals.assert_that_something_happened(count);
}

#[test]
fn a_seed_replays() {
    for seed in 0..20 {
        assert_eq!(run(seed, false), run(seed, false), "seed {seed}");
    }
}
