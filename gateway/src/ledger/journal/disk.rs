//! The seam to the disk: numbered segment files of one folder. The simulation puts a disk here that forgets what was
//! not synced.

use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mapped::MappedFile;
use rustix::fs::{FallocateFlags, fallocate};

/// A folder of numbered segments.
pub trait Disk: Debug + Send + Sync + 'static {
    /// The numbers of all segments, ascending.
    ///
    /// # Errors
    /// Those of the file system.
    fn list(&self) -> io::Result<Vec<u64>>;
    /// A new segment of `size` bytes that read as zero, its space taken and its name durable.
    ///
    /// # Errors
    /// Those of the file system: a full disk is seen here and not later.
    fn create(&self, number: u64, size: u64) -> io::Result<Arc<dyn SegmentFile>>;
    /// An existing segment.
    ///
    /// # Errors
    /// Those of the file system.
    fn open(&self, number: u64) -> io::Result<Arc<dyn SegmentFile>>;
    /// Removes a segment.
    ///
    /// # Errors
    /// Those of the file system.
    fn remove(&self, number: u64) -> io::Result<()>;
    /// A small note beside the segments, if there is one.
    ///
    /// # Errors
    /// Those of the file system.
    fn read_note(&self) -> io::Result<Option<Vec<u8>>>;
    /// Replaces the note. It is there whole and durable, or as it was before.
    ///
    /// # Errors
    /// Those of the file system.
    fn write_note(&self, bytes: &[u8]) -> io::Result<()>;
    /// Whether its calls return at once and may be made where they are needed; a real disk's are made on a thread of their own.
    fn returns_at_once(&self) -> bool {
        false
    }
    /// Moves every segment out of the way, so that the folder is as new. They are kept.
    ///
    /// # Errors
    /// Those of the file system.
    fn set_aside(&self, name: &str) -> io::Result<()>;
}

/// One segment.
pub trait SegmentFile: Debug + Send + Sync + 'static {
    /// Writes all bytes at an offset. Written is not durable: it survives the process, not the machine.
    ///
    /// # Errors
    /// Those of the file system.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// The same for bytes that somebody waits to be durable, so that they are synced at once.
    ///
    /// # Errors
    /// Those of the file system.
    fn write_awaited_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Nothing will be written or synced here any more.
    fn leave(&self);
    /// Reads up to `length` bytes at an offset.
    ///
    /// # Errors
    /// Those of the file system.
    fn read_at(&self, offset: u64, length: usize) -> io::Result<Vec<u8>>;
    /// Makes everything that was written durable.
    ///
    /// # Errors
    /// Those of the file system. After one, nothing is known about what was written since the last good sync.
    fn sync(&self) -> io::Result<()>;
}

impl dyn Disk {
    /// Does something that waits for the disk, out of the runtime's way.
    pub(in crate::ledger) async fn apart<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        if self.returns_at_once() {
            return work();
        }
        tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(io::Error::other("the disk's thread died")))
    }
}

/// Segments as files of a folder.
#[derive(Debug)]
pub struct FolderDisk {
    folder: PathBuf,
}

impl FolderDisk {
    /// Uses a folder, making it if needed.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn new(folder: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        crate::ledger::sync_folder_of(folder)?;
        Ok(Self { folder: folder.to_owned() })
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{number:012}.journal"))
    }
}

impl Disk for FolderDisk {
    fn list(&self) -> io::Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for entry in std::fs::read_dir(&self.folder)? {
            let name = entry?.file_name();
            let number: Option<u64> = name.to_str().and_then(|name| name.strip_suffix(".journal")?.parse().ok());
            numbers.extend(number);
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn create(&self, number: u64, size: u64) -> io::Result<Arc<dyn SegmentFile>> {
        let path = self.path(number);
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        let prepared = fallocate(&file, FallocateFlags::empty(), 0, size)
            .map_err(io::Error::from)
            .and_then(|()| file.sync_all())
            .and_then(|()| File::open(&self.folder)?.sync_all());
        if let Err(error) = prepared {
            // Half a segment would be found by the next start; without its space it is of no use.
            std::fs::remove_file(&path)?;
            return Err(error);
        }
        let segment = MappedFile::new(file);
        if let Err(error) = segment.map(size) {
            // A dearer way, and all that is lost.
            tracing::debug!(kind = ?error.kind(), "a journal segment cannot be mapped; it is written by system calls");
        }
        Ok(Arc::new(segment))
    }

    fn open(&self, number: u64) -> io::Result<Arc<dyn SegmentFile>> {
        Ok(Arc::new(MappedFile::new(OpenOptions::new().read(true).write(true).open(self.path(number))?)))
    }

    fn remove(&self, number: u64) -> io::Result<()> {
        std::fs::remove_file(self.path(number))
    }

    fn read_note(&self) -> io::Result<Option<Vec<u8>>> {
        match std::fs::read(self.folder.join("identity")) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn write_note(&self, bytes: &[u8]) -> io::Result<()> {
        let half_made = self.folder.join("identity.new");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&half_made)?;
        io::Write::write_all(&mut file, bytes)?;
        file.sync_all()?;
        std::fs::rename(&half_made, self.folder.join("identity"))?;
        File::open(&self.folder)?.sync_all()
    }

    fn set_aside(&self, name: &str) -> io::Result<()> {
        let aside = self.folder.join(name);
        std::fs::create_dir_all(&aside)?;
        for number in self.list()? {
            let path = self.path(number);
            let name = path.file_name().unwrap_or_default();
            std::fs::rename(&path, aside.join(name))?;
        }
        File::open(&aside)?.sync_all()?;
        File::open(&self.folder)?.sync_all()
    }
}

impl SegmentFile for MappedFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_at(bytes, offset)
    }

    fn write_awaited_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_by_call(bytes, offset)
    }

    fn leave(&self) {
        self.unmap();
    }

    fn read_at(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        let mut filled = 0;
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.read_at(rest, offset + u64::try_from(filled).unwrap_or(u64::MAX)) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync()
    }
}

#[cfg(test)]
mod tests {
    use std::ops::RangeInclusive;
    use std::time::Duration;

    use super::*;
    use crate::ledger::journal::tests::{found_in, row};
    use crate::ledger::journal::{Journal, Position, Settings};
    use crate::ledger::row::Outcome;
    use crate::routes::Kind;

    const SETTINGS: Settings = Settings { limit: 32 * 1_048_576, sync_interval: Duration::from_millis(20) };

    fn recover(folder: &Path) -> Arc<Journal> {
        let disk = Arc::new(FolderDisk::new(folder).unwrap());
        Journal::recover(disk, SETTINGS, [7; 16], |_| Position::default()).unwrap().journal
    }

    /// Segments of this folder that are mapped into this process.
    fn mapped(folder: &Path) -> usize {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.contains(folder.to_str().unwrap())).count()
    }

    async fn until_mapped(folder: &Path, segments: RangeInclusive<usize>) {
        let arrived = async {
            while !segments.contains(&mapped(folder)) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let in_time = tokio::time::timeout(Duration::from_secs(10), arrived).await;
        assert!(in_time.is_ok(), "{} segments are mapped", mapped(folder));
    }

    #[tokio::test]
    async fn records_of_both_ways_stand_in_one_segment_and_only_where_one_writes_is_memory() {
        let folder = tempfile::tempdir().unwrap();
        let journal = recover(folder.path());
        let syncer = tokio::spawn(Arc::clone(&journal).run_syncer());
        // A segment has a mebibyte, so that several are left.
        let mut rows = 0;
        while journal.end().segment < 5 {
            let mut outcome: Outcome = row(rows);
            outcome.row.facts.kind = if rows.is_multiple_of(3) { Kind::Mutation } else { Kind::Inquiry };
            outcome.row.facts.correlation_id = "c".repeat(200);
            let position = journal.append_outcome(&outcome).unwrap();
            if rows.is_multiple_of(500) {
                journal.durable(position).await.unwrap();
            }
            rows += 1;
        }
        until_mapped(folder.path(), 1..=2).await;
        syncer.abort();
        journal.syncer_ended().await;
        drop(journal);
        assert_eq!(found_in(&recover(folder.path())), (0..rows).collect::<Vec<_>>());
    }
}
