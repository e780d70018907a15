//! The seam to the disk: numbered segment files of one folder. The simulation puts a disk here that forgets what was
//! not synced.

use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
        Ok(Arc::new(file))
    }

    fn open(&self, number: u64) -> io::Result<Arc<dyn SegmentFile>> {
        Ok(Arc::new(OpenOptions::new().read(true).write(true).open(self.path(number))?))
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

impl SegmentFile for File {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn read_at(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        let mut filled = 0;
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match FileExt::read_at(self, rest, offset + u64::try_from(filled).unwrap_or(u64::MAX)) {
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
        self.sync_data()
    }
}
