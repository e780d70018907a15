//! A disk that forgets: what is written is in the cache, what is synced is durable, and what a failed sync left behind is
//! neither.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::{Disk, SegmentFile};

/// A disk in memory. What is written is in the cache; what is synced is durable.
#[derive(Debug, Default)]
pub(crate) struct MemoryDisk {
    pub(crate) files: Mutex<BTreeMap<u64, Arc<MemoryFile>>>,
    note: Mutex<Option<Vec<u8>>>,
    pub(crate) full: AtomicBool,
    pub(crate) sync_fails: Arc<AtomicU64>,
    /// The next sync panics.
    pub(crate) sync_panics: Arc<AtomicBool>,
    /// The most bytes that one read asked for.
    pub(crate) longest_read: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
pub(crate) struct MemoryFile {
    pub(crate) cache: Mutex<Vec<u8>>,
    durable: Mutex<Vec<u8>>,
    /// Pages that a failed sync left in the cache and marked clean: no later sync writes them, unless they are written anew.
    forgotten: Mutex<BTreeSet<usize>>,
    sync_fails: Arc<AtomicU64>,
    sync_panics: Arc<AtomicBool>,
    longest_read: Arc<AtomicU64>,
    /// It was said that nothing would be written or synced here any more.
    left: AtomicBool,
}

impl MemoryDisk {
    /// Power loss: of each page that differs from its durable content, `keep` decides whether it got to the disk.
    #[allow(dead_code, reason = "not every test that includes this file cuts the power")]
    pub(crate) fn lose_power(&self, mut keep: impl FnMut() -> bool) {
        for file in self.files.lock().unwrap().values() {
            let (mut cache, mut durable) = (file.cache.lock().unwrap(), file.durable.lock().unwrap());
            durable.resize(cache.len(), 0);
            for (new, old) in cache.chunks_mut(4_096).zip(durable.chunks_mut(4_096)) {
                if new != old && !keep() {
                    new.copy_from_slice(old);
                }
            }
            durable.clone_from(&cache);
        }
    }

    #[allow(dead_code, reason = "not every test that includes this file spoils disks")]
    pub(crate) fn edit_last(&self, edit: impl FnOnce(&mut Vec<u8>)) {
        let files = self.files.lock().unwrap();
        let mut cache = files.values().next_back().unwrap().cache.lock().unwrap();
        edit(&mut cache);
    }

    #[allow(dead_code, reason = "not every test that includes this file spoils disks")]
    pub(crate) fn copy(&self) -> Arc<Self> {
        let copy = Self { note: Mutex::new(self.note.lock().unwrap().clone()), ..Self::default() };
        for (number, file) in &*self.files.lock().unwrap() {
            let bytes = file.cache.lock().unwrap().clone();
            let file =
                MemoryFile { cache: Mutex::new(bytes.clone()), durable: Mutex::new(bytes), ..Default::default() };
            copy.files.lock().unwrap().insert(*number, Arc::new(file));
        }
        Arc::new(copy)
    }
}

impl Disk for MemoryDisk {
    fn list(&self) -> io::Result<Vec<u64>> {
        Ok(self.files.lock().unwrap().keys().copied().collect())
    }

    fn create(&self, number: u64, size: u64) -> io::Result<Arc<dyn SegmentFile>> {
        if self.full.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let bytes = vec![0; usize::try_from(size).unwrap()];
        let file = Arc::new(MemoryFile {
            cache: Mutex::new(bytes.clone()),
            durable: Mutex::new(bytes),
            forgotten: Mutex::default(),
            sync_fails: Arc::clone(&self.sync_fails),
            sync_panics: Arc::clone(&self.sync_panics),
            longest_read: Arc::clone(&self.longest_read),
            left: AtomicBool::new(false),
        });
        assert!(self.files.lock().unwrap().insert(number, Arc::clone(&file)).is_none(), "segment {number} twice");
        Ok(file)
    }

    fn open(&self, number: u64) -> io::Result<Arc<dyn SegmentFile>> {
        Ok(Arc::clone(&self.files.lock().unwrap()[&number]) as Arc<dyn SegmentFile>)
    }

    fn remove(&self, number: u64) -> io::Result<()> {
        self.files.lock().unwrap().remove(&number);
        Ok(())
    }

    fn read_note(&self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.note.lock().unwrap().clone())
    }

    fn write_note(&self, bytes: &[u8]) -> io::Result<()> {
        *self.note.lock().unwrap() = Some(bytes.to_vec());
        Ok(())
    }

    fn set_aside(&self, _: &str) -> io::Result<()> {
        self.files.lock().unwrap().clear();
        Ok(())
    }
}

impl SegmentFile for MemoryFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        assert!(!self.left.load(Ordering::Relaxed), "a segment is written that was left");
        let at = usize::try_from(offset).unwrap();
        self.cache.lock().unwrap()[at..at + bytes.len()].copy_from_slice(bytes);
        let pages = at / 4_096..(at + bytes.len()).div_ceil(4_096);
        self.forgotten.lock().unwrap().retain(|page| !pages.contains(page));
        Ok(())
    }

    fn write_awaited_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_at(bytes, offset)
    }

    fn leave(&self) {
        self.left.store(true, Ordering::Relaxed);
    }

    fn read_at(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        self.longest_read.fetch_max(u64::try_from(length).unwrap(), Ordering::Relaxed);
        let cache = self.cache.lock().unwrap();
        let at = usize::try_from(offset).unwrap();
        Ok(cache[at..(at + length).min(cache.len())].to_vec())
    }

    fn sync(&self) -> io::Result<()> {
        assert!(!self.left.load(Ordering::Relaxed), "a segment is synced that was left");
        assert!(!self.sync_panics.load(Ordering::Relaxed), "the test wants this sync to panic");
        let fails = &self.sync_fails;
        if fails.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
            let (cache, durable) = (self.cache.lock().unwrap(), self.durable.lock().unwrap());
            let pages = cache.chunks(4_096).zip(durable.chunks(4_096)).enumerate();
            let dirty = pages.filter(|(_, (new, old))| new != old).map(|(page, _)| page);
            self.forgotten.lock().unwrap().extend(dirty);
            return Err(io::Error::other("the disk lost the pages"));
        }
        let (cache, mut durable) = (self.cache.lock().unwrap(), self.durable.lock().unwrap());
        let forgotten = self.forgotten.lock().unwrap();
        for (page, (new, old)) in cache.chunks(4_096).zip(durable.chunks_mut(4_096)).enumerate() {
            if !forgotten.contains(&page) {
                old.copy_from_slice(new);
            }
        }
        Ok(())
    }
}
