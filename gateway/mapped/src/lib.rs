//! A file that can be written through memory: a write is then a copy into the kernel's page cache, and no system call.
//!
//! What was written survives the process, kill -9 included, as after `write(2)`: the pages belong to the kernel. It survives the
//! machine once [`MappedFile::sync`] has returned.
//!
//! Reading is `pread(2)`, which sees the same pages. So this memory is written here and never looked at: whatever another process
//! does to the file breaks no promise that was given to the compiler. The rest of the price is the kernel's: where it can't have a
//! page at the moment of the copy (the file was cut short, the disk can't read, a file system that copies on writing is full) there
//! is no error but SIGBUS, and the process ends. So the file's space must be taken beforehand, and the file be nobody else's. What
//! goes wrong on the way from a page to the disk is an error of [`MappedFile::sync`], as after `write(2)`.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use memmap2::{Advice, MmapOptions, MmapRaw};

/// A file whose first bytes may stand in memory.
#[derive(Debug)]
pub struct MappedFile {
    file: File,
    /// The lock keeps two copies from the same byte. One that writes by a call meanwhile is the kernel's to order.
    memory: Mutex<Option<MmapRaw>>,
}

impl MappedFile {
    /// A file that is written by system calls until it is mapped.
    #[must_use]
    pub fn new(file: File) -> Self {
        Self { file, memory: Mutex::new(None) }
    }

    fn memory(&self) -> MutexGuard<'_, Option<MmapRaw>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maps the first `size` bytes, which must be there.
    ///
    /// # Errors
    /// Those of the file system, and some can't do it at all; [`io::ErrorKind::InvalidInput`] when the file is shorter. It is
    /// written by system calls then, as before.
    pub fn map(&self, size: u64) -> io::Result<()> {
        if self.file.metadata()?.len() < size {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let length = usize::try_from(size).map_err(|_| io::ErrorKind::InvalidInput)?;
        let memory = MmapOptions::new().len(length).map_raw(&self.file)?;
        // A page at a time, and none of the neighbours that were synced already: a larger piece would be written again as a whole.
        memory.advise(Advice::Random)?;
        *self.memory() = Some(memory);
        Ok(())
    }

    /// Gives the memory back. What was written stays written.
    pub fn unmap(&self) {
        let memory = self.memory().take();
        // Behind the lock: taking many pages out of this process takes a while.
        drop(memory);
    }

    /// Writes all bytes at an offset, through memory where they fit.
    ///
    /// # Errors
    /// Those of the file system, for what does not go through memory.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if let Some(memory) = &*self.memory()
            && let Some(place) = Place::of(memory, offset, bytes.len())
        {
            place.fill(bytes);
            return Ok(());
        }
        self.write_by_call(bytes, offset)
    }

    /// Writes all bytes at an offset by a system call. It costs more than a copy; but a page that was written through memory must be
    /// taken out of this process for its next sync, which interrupts every processor that the process runs on. So this is for what is
    /// synced at once.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write_by_call(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    /// Reads into a buffer at an offset; returns how many bytes were there.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }

    /// Makes everything that was written durable. Pages that were written through memory are dirty pages of the file like others, so
    /// `fdatasync(2)` covers both.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// A part of a mapping.
struct Place<'a> {
    memory: &'a MmapRaw,
    start: usize,
    length: usize,
}

impl<'a> Place<'a> {
    /// `None` where it would go beyond the mapping.
    fn of(memory: &'a MmapRaw, offset: u64, length: usize) -> Option<Self> {
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(length)?;
        (end <= memory.len()).then_some(Self { memory, start, length })
    }

    /// Copies as many bytes as the place has.
    #[expect(unsafe_code, reason = "no safe type stands for memory behind which a file is")]
    fn fill(self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.length);
        // SAFETY: by `of`, `start` is in the mapping or right behind it.
        let target = unsafe { self.memory.as_mut_ptr().add(self.start) };
        // SAFETY: by `of`, `length` bytes from `start` on are in the mapping, which lives while it is borrowed, and `bytes` has as
        // many. Nobody else writes there: the only caller holds the lock. Nothing overlaps: no reference to this memory is ever made.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_zeros(size: u64) -> MappedFile {
        let file = tempfile::tempfile().unwrap();
        file.set_len(size).unwrap();
        MappedFile::new(file)
    }

    fn all(file: &MappedFile) -> Vec<u8> {
        let mut bytes = vec![0; 20_000];
        let count = file.read_at(&mut bytes, 0).unwrap();
        bytes.truncate(count);
        bytes
    }

    #[test]
    fn both_ways_write_the_same_file_in_turns() {
        let file = of_zeros(8_192);
        file.map(8_192).unwrap();
        let mut expected = vec![0; 8_192];
        // Pieces that begin and end inside pages and go over their edges.
        for (index, start) in (0..8_150).step_by(37).enumerate() {
            let bytes = [u8::try_from(index % 250).unwrap() + 1; 40];
            let offset = u64::try_from(start).unwrap();
            let write = if index % 2 == 0 { MappedFile::write_at } else { MappedFile::write_by_call };
            write(&file, &bytes, offset).unwrap();
            expected.get_mut(start..start + 40).unwrap().copy_from_slice(&bytes);
            assert!(all(&file) == expected, "piece {index}");
        }
        file.sync().unwrap();
        file.unmap();
        assert!(all(&file) == expected);
    }

    #[test]
    fn what_does_not_fit_into_the_mapping_goes_by_a_call_and_leaves_the_rest_alone() {
        let file = of_zeros(4_096);
        file.map(4_096).unwrap();
        file.write_at(b"edge", 4_092).unwrap();
        file.write_at(b"over", 4_094).unwrap();
        file.write_at(b"far", 10_000).unwrap();
        file.write_at(b"", 4_096).unwrap();
        let bytes = all(&file);
        assert_eq!(bytes.len(), 10_003);
        assert_eq!(bytes.get(4_090..4_100).unwrap(), b"\0\0edover\0\0");
        assert!(file.write_at(b"x", u64::MAX).is_err());
    }

    #[test]
    fn what_is_not_there_is_not_mapped_and_still_written() {
        let file = of_zeros(4_095);
        assert_eq!(file.map(4_096).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(file.memory().is_none());
        file.write_at(b"here", 0).unwrap();
        assert_eq!(all(&file).get(..5).unwrap(), b"here\0");
    }

    #[test]
    fn a_file_that_may_only_be_read_is_not_mapped() {
        let named = tempfile::NamedTempFile::new().unwrap();
        named.as_file().set_len(4_096).unwrap();
        let file = MappedFile::new(File::open(named.path()).unwrap());
        assert!(file.map(4_096).is_err());
        assert!(file.write_at(b"x", 0).is_err(), "an error and no signal");
    }

    #[test]
    fn what_is_written_behind_unmapping_is_written() {
        let file = of_zeros(4_096);
        file.map(4_096).unwrap();
        file.write_at(b"before", 0).unwrap();
        file.unmap();
        assert!(file.memory().is_none());
        file.write_at(b"after", 6).unwrap();
        assert_eq!(all(&file).get(..12).unwrap(), b"beforeafter\0");
    }

    #[test]
    fn writers_in_many_threads_lose_nothing() {
        let file = of_zeros(16_384);
        file.map(16_384).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                let file = &file;
                scope.spawn(move || {
                    for place in 0..1_000_u64 {
                        file.write_at(&[thread + 1; 4], (place * 4 + u64::from(thread)) * 4).unwrap();
                    }
                });
            }
        });
        let bytes = all(&file);
        for (index, piece) in bytes.chunks(4).take(4_000).enumerate() {
            assert_eq!(piece, [u8::try_from(index % 4).unwrap() + 1; 4]);
        }
    }
}
