//! Any bytes behind what was synced in a journal's last segment, as a crash may leave them: the start goes on, and everything that
//! was durable is still there.
#![no_main]

#[path = "../../../tests/parts/memory_disk.rs"]
mod memory_disk;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use gwanmun::ledger::{Disk, Facts, Journal, JournalSettings, Keyed, Position, SegmentFile, TransactionId};
use gwanmun::routes::Kind;
use libfuzzer_sys::fuzz_target;
use memory_disk::MemoryDisk;

const SETTINGS: JournalSettings = JournalSettings { limit: 16 << 20, sync_interval: Duration::from_millis(1) };
const DURABLE: usize = 8;

fn facts(serial: usize) -> Facts {
    Facts {
        id: TransactionId::parse(&format!("GWMNU20261129{serial:09}")).expect("an id"),
        tx_code: "TR01".into(),
        route: "transfer".into(),
        kind: Kind::Mutation,
        institution: "core".into(),
        client: "a".into(),
        account: None,
        account_hash: None,
        counter_account: None,
        counter_account_hash: None,
        amount: Some(1),
        requested_at: 0,
        correlation_id: "c".into(),
        idempotency_key_hash: Some(vec![1; 32]),
        layout_version: 1,
        keyed: serial.is_multiple_of(2).then(|| {
            Arc::new(Keyed { method: "POST".into(), path: "/api/gateway/transfer".into(), fingerprint: vec![2; 32] })
        }),
    }
}

/// A disk with some durable intents, and where the last one ends.
static DISK: LazyLock<(Arc<MemoryDisk>, Position)> = LazyLock::new(|| {
    let disk = Arc::new(MemoryDisk::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let end = runtime.block_on(async {
        let recovered = Journal::recover(Arc::clone(&disk) as Arc<dyn Disk>, SETTINGS, [7; 16], |_| Position::default());
        let journal = recovered.expect("an empty disk").journal;
        let syncer = tokio::spawn(Arc::clone(&journal).run_syncer());
        let mut end = Position::default();
        for serial in 0..DURABLE {
            end = journal.append_intent(&facts(serial)).expect("room");
            journal.durable(end).await.expect("a sync");
        }
        syncer.abort();
        end
    });
    (disk, end)
});

fuzz_target!(|data: &[u8]| {
    let (original, end) = &*DISK;
    let disk = original.copy();
    let Some((shift, garbage)) = data.split_first() else { return };
    // The next batch would start on a page of its own.
    let at = end.offset.next_multiple_of(4_096) + u64::from(*shift % 3) * 4_096;
    disk.open(end.segment).expect("the segment").write_at(&garbage[..garbage.len().min(60_000)], at).expect("a write");
    let recovered = Journal::recover(disk as Arc<dyn Disk>, SETTINGS, [7; 16], |_| Position::default());
    let recovered = recovered.expect("garbage behind what is durable is a torn tail");
    assert!((0..DURABLE).all(|serial| recovered.open.contains(&facts(serial))), "something durable is gone");
});
