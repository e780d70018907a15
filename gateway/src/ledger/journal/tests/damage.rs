//! What a start makes of a segment that does not read back.

use super::*;

#[tokio::test]
async fn a_tail_torn_at_any_byte_is_cut_and_loses_nothing_before_it() {
    let disk = Arc::new(MemoryDisk::default());
    let journal = recover(&disk).unwrap().journal;
    let ends: Vec<_> = (0..12).map(|serial| journal.append_outcome(&row(serial)).unwrap().offset).collect();
    for tear in PAGE..*ends.last().unwrap() {
        let copy = disk.copy();
        copy.edit_last(|bytes| bytes[usize::try_from(tear).unwrap()..].fill(0));
        let whole = u64::try_from(ends.iter().filter(|end| **end <= tear).count()).unwrap();
        // Zeros at a record's very end may be what was there anyway, so one more may survive; never one less.
        let (closed, _) = found(&copy).unwrap();
        assert!(closed.len() as u64 >= whole, "torn at {tear}");
        assert_eq!(closed, (0..closed.len() as u64).collect::<Vec<_>>(), "torn at {tear}");
    }
}

#[tokio::test]
async fn damage_to_what_was_durable_refuses_the_start_and_says_where() {
    let disk = Arc::new(MemoryDisk::default());
    let (journal, syncer) = start(&disk);
    let first = journal.append_outcome(&row(0)).unwrap();
    journal.durable(first).await.unwrap();
    let second = journal.append_outcome(&row(1)).unwrap();
    journal.durable(second).await.unwrap();
    end_life(&disk, journal, syncer).await;
    let damaged = disk.copy();
    {
        let files = damaged.files.lock().unwrap();
        let file = &files[&first.segment];
        file.cache.lock().unwrap()[usize::try_from(first.offset).unwrap() - 1] ^= 1;
    }
    match found(&damaged) {
        Err(RecoveryError::Corrupt { segment, offset }) => assert_eq!((segment, offset), (first.segment, PAGE)),
        other => panic!("{other:?}"),
    }
    assert!(found(&disk).is_ok());
}

/// Every way to destroy a durable record in place that leaves the rest of the segment readable.
#[tokio::test]
async fn a_hole_in_what_was_durable_is_corruption_and_never_stepped_over() {
    let disk = Arc::new(MemoryDisk::default());
    let (journal, syncer) = start(&disk);
    let ends: Vec<_> = (0..4).map(|serial| journal.append_outcome(&row(serial)).unwrap().offset).collect();
    let last = Position { segment: journal.end().segment, offset: ends[3] };
    journal.durable(last).await.unwrap();
    let behind = journal.append_outcome(&row(9)).unwrap();
    journal.durable(behind).await.unwrap();
    end_life(&disk, journal, syncer).await;
    assert_eq!(found(&disk.copy()).unwrap().0, [0, 1, 2, 3, 9]);
    let (second, third) = (usize::try_from(ends[0]).unwrap(), usize::try_from(ends[1]).unwrap());
    let page_end = second.next_multiple_of(4_096);
    for (what, hole) in [("a length", second..second + 4), ("a record", second..third), ("the rest", second..page_end)]
    {
        let damaged = disk.copy();
        {
            let files = damaged.files.lock().unwrap();
            files[&last.segment].cache.lock().unwrap()[hole].fill(0);
        }
        assert!(matches!(found(&damaged), Err(RecoveryError::Corrupt { .. })), "{what} is gone and nobody noticed");
    }
}
