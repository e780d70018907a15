//! Syncs that fail, and disks that are full.

use super::*;

#[tokio::test]
async fn what_a_failed_sync_left_in_the_cache_is_written_again_by_the_next_start() {
    let disk = Arc::new(MemoryDisk::default());
    let (journal, syncer) = start(&disk);
    let first = journal.append_outcome(&row(0)).unwrap();
    journal.durable(first).await.unwrap();
    // The sync fails and no other segment can be made: the process stops. Its pages are still in the cache.
    disk.full.store(true, Ordering::Relaxed);
    disk.sync_fails.store(u64::MAX, Ordering::Relaxed);
    journal.writer().spare = None;
    let lost = journal.append_outcome(&row(1)).unwrap();
    assert!(journal.durable(lost).await.is_err());
    end_life(&disk, journal, syncer).await;
    disk.full.store(false, Ordering::Relaxed);
    disk.sync_fails.store(0, Ordering::Relaxed);
    let (journal, syncer) = start(&disk);
    let end = journal.append_outcome(&row(2)).unwrap();
    journal.durable(end).await.unwrap();
    end_life(&disk, journal, syncer).await;
    // Now the old file's pages, which were marked clean, are gone.
    let old = Arc::clone(&disk.files.lock().unwrap()[&first.segment]);
    old.cache.lock().unwrap()[usize::try_from(page_from(first.offset)).unwrap()..].fill(0);
    assert_eq!(found(&disk).unwrap().0, [0, 1, 2]);
}

#[tokio::test]
async fn a_power_cut_during_a_start_takes_nothing_that_the_life_before_had_acknowledged() {
    let disk = Arc::new(MemoryDisk::default());
    let (journal, syncer) = start(&disk);
    let acknowledged = journal.append_outcome(&row(0)).unwrap();
    journal.durable(acknowledged).await.unwrap();
    end_life(&disk, journal, syncer).await;
    // A kill, a start that writes the record again, and then the power: of what is not synced only the new header got
    // to the disk, and it says that the old copy does not count.
    recover(&disk).unwrap();
    let mut pages = 0;
    disk.lose_power(|| {
        pages += 1;
        pages == 1
    });
    assert_eq!(found(&disk).unwrap().0, [0]);
}

#[tokio::test]
async fn two_failed_syncs_in_a_row_and_a_power_cut_lose_nothing() {
    let disk = Arc::new(MemoryDisk::default());
    let (journal, syncer) = start(&disk);
    let first = journal.append_outcome(&row(0)).unwrap();
    journal.durable(first).await.unwrap();
    disk.sync_fails.store(2, Ordering::Relaxed);
    let second = journal.append_outcome(&row(1)).unwrap();
    journal.durable(second).await.unwrap();
    assert!(journal.end().segment >= first.segment + 2);
    end_life(&disk, journal, syncer).await;
    disk.lose_power(|| false);
    assert_eq!(found(&disk).unwrap().0, [0, 1]);
    assert_eq!(found(&disk).unwrap().0, [0, 1], "and again");
}

#[tokio::test]
async fn after_a_failed_sync_all_since_the_last_good_one_is_durable_in_a_new_segment() {
    let disk = Arc::new(MemoryDisk::default());
    let (journal, syncer) = start(&disk);
    let first = journal.append_outcome(&row(0)).unwrap();
    journal.durable(first).await.unwrap();
    disk.sync_fails.store(1, Ordering::Relaxed);
    let lost = journal.append_outcome(&row(1)).unwrap();
    journal.durable(lost).await.unwrap();
    assert!(journal.end().segment > first.segment);
    end_life(&disk, journal, syncer).await;
    disk.lose_power(|| false);
    assert_eq!(found(&disk).unwrap().0, [0, 1]);
}

#[tokio::test]
async fn when_no_segment_can_be_made_either_the_journal_fails_for_good() {
    let disk = Arc::new(MemoryDisk::default());
    let journal = recover(&disk).unwrap().journal;
    disk.full.store(true, Ordering::Relaxed);
    let _syncer = tokio::spawn(Arc::clone(&journal).run_syncer());
    disk.sync_fails.store(u64::MAX, Ordering::Relaxed);
    let position = journal.append_outcome(&row(0)).unwrap();
    assert!(matches!(journal.durable(position).await, Err(JournalError::Failed)));
    assert!(matches!(journal.append_outcome(&row(1)), Err(JournalError::Failed)));
    assert!(matches!(journal.reserve(), Err(JournalError::Failed)));
}

#[tokio::test]
async fn with_the_disk_full_new_transactions_are_refused_and_those_under_way_record_their_end() {
    let disk = Arc::new(MemoryDisk::default());
    let journal = recover(&disk).unwrap().journal;
    disk.full.store(true, Ordering::Relaxed);
    let _syncer = tokio::spawn(Arc::clone(&journal).run_syncer());
    let mut rooms = Vec::new();
    while let Ok(room) = journal.reserve() {
        rooms.push(room);
    }
    assert!(rooms.len() > 50, "{}", rooms.len());
    for serial in 0..rooms.len() as u64 {
        // Each synced by itself, which wastes the most room.
        journal.durable(journal.append_intent(&facts(serial)).unwrap()).await.unwrap();
        journal.durable(journal.append_outcome(&row(serial)).unwrap()).await.unwrap();
    }
    assert!(matches!(journal.reserve(), Err(JournalError::NoRoom)));
    assert_eq!(found(&disk.copy()).unwrap().0.len(), rooms.len());
    rooms.clear();
    for serial in 1_000.. {
        let Ok(_room) = journal.reserve() else { break };
        journal.durable(journal.append_outcome(&row(serial)).unwrap()).await.unwrap();
    }
    disk.full.store(false, Ordering::Relaxed);
    for _ in 0..500 {
        if journal.reserve().is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("there is space again, and the journal does not notice");
}
