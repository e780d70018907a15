//! Seams that fail on command: a disk and a dial, for failures that no script on a socket can reach.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::{Context, Poll};

use gwanmun::app::Seams;
use gwanmun::clock::Clock;
use gwanmun::ledger::{Disk, FolderDisk, MemoryStore, SegmentFile, Store};
use gwanmun::pool::{Dial, Dialing, TcpDial, Wire};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

#[derive(Debug, Default)]
pub(crate) struct Switches {
    /// No more writes, syncs or new segments.
    pub(crate) disk_fails: AtomicBool,
    /// The next journal write panics.
    pub(crate) disk_panics: AtomicBool,
    /// Each sync takes three seconds.
    pub(crate) disk_is_slow: AtomicBool,
    /// No more segments.
    pub(crate) disk_full: AtomicBool,
    /// What writing to the host does: 0 writes, see [`WRITE_NOTHING`] and [`WRITE_TEN`].
    pub(crate) write: AtomicU8,
    /// No descriptor is left to connect with.
    pub(crate) no_descriptors: AtomicBool,
    /// Reading from the host panics.
    pub(crate) read_panics: AtomicBool,
}

/// The write fails before a byte is taken.
pub(crate) const WRITE_NOTHING: u8 = 1;
/// The write takes ten bytes and then fails.
pub(crate) const WRITE_TEN: u8 = 2;

impl Switches {
    fn let_write(&self) -> io::Result<()> {
        if self.disk_panics.swap(false, Ordering::SeqCst) {
            panic!("the disk seam panics");
        }
        if is_on(&self.disk_fails) { Err(io::Error::other("switched off")) } else { Ok(()) }
    }

    pub(crate) fn set(switch: &AtomicBool) {
        switch.store(true, Ordering::SeqCst);
    }
}

fn is_on(switch: &AtomicBool) -> bool {
    switch.load(Ordering::SeqCst)
}

/// Real TCP and a real folder, behind switches; the store in memory.
pub(crate) fn switched(folder: &Path, switches: &Arc<Switches>) -> Seams {
    let disk = SwitchedDisk { inner: FolderDisk::new(folder).unwrap(), switches: Arc::clone(switches) };
    let switches = Arc::clone(switches);
    let clock = Clock::system().unwrap();
    Seams {
        store: Store::Memory(MemoryStore::new(clock.clone())),
        clock,
        disk: Arc::new(disk),
        dial: Box::new(move |_, address| {
            let inner = TcpDial { address: address.to_owned() };
            Arc::new(SwitchedDial { inner, switches: Arc::clone(&switches) })
        }),
        search_key: vec![7; 32],
    }
}

#[derive(Debug)]
struct SwitchedDisk {
    inner: FolderDisk,
    switches: Arc<Switches>,
}

#[derive(Debug)]
struct SwitchedFile {
    inner: Arc<dyn SegmentFile>,
    switches: Arc<Switches>,
}

impl Disk for SwitchedDisk {
    fn list(&self) -> io::Result<Vec<u64>> {
        self.inner.list()
    }

    fn create(&self, number: u64, size: u64) -> io::Result<Arc<dyn SegmentFile>> {
        if is_on(&self.switches.disk_fails) || is_on(&self.switches.disk_full) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let inner = self.inner.create(number, size)?;
        Ok(Arc::new(SwitchedFile { inner, switches: Arc::clone(&self.switches) }))
    }

    fn open(&self, number: u64) -> io::Result<Arc<dyn SegmentFile>> {
        self.inner.open(number)
    }

    fn remove(&self, number: u64) -> io::Result<()> {
        self.inner.remove(number)
    }

    fn read_note(&self) -> io::Result<Option<Vec<u8>>> {
        self.inner.read_note()
    }

    fn write_note(&self, bytes: &[u8]) -> io::Result<()> {
        self.inner.write_note(bytes)
    }

    fn set_aside(&self, name: &str) -> io::Result<()> {
        self.inner.set_aside(name)
    }
}

impl SegmentFile for SwitchedFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.switches.let_write()?;
        self.inner.write_at(bytes, offset)
    }

    fn write_awaited_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.switches.let_write()?;
        self.inner.write_awaited_at(bytes, offset)
    }

    fn leave(&self) {
        self.inner.leave();
    }

    fn read_at(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        self.inner.read_at(offset, length)
    }

    fn sync(&self) -> io::Result<()> {
        if is_on(&self.switches.disk_is_slow) {
            std::thread::sleep(std::time::Duration::from_secs(3));
        }
        if is_on(&self.switches.disk_fails) { Err(io::Error::other("switched off")) } else { self.inner.sync() }
    }
}

#[derive(Debug)]
struct SwitchedDial {
    inner: TcpDial,
    switches: Arc<Switches>,
}

impl Dial for SwitchedDial {
    fn dial(&self) -> Dialing<'_> {
        Box::pin(async {
            if is_on(&self.switches.no_descriptors) {
                return Err(io::Error::from_raw_os_error(24));
            }
            let inner = TcpStream::connect(&self.inner.address).await?;
            Ok(Box::new(SwitchedWire { inner, taken: 0, switches: Arc::clone(&self.switches) }) as Box<dyn Wire>)
        })
    }
}

#[derive(Debug)]
struct SwitchedWire {
    inner: TcpStream,
    taken: usize,
    switches: Arc<Switches>,
}

impl Wire for SwitchedWire {
    fn is_silent(&self) -> bool {
        self.inner.is_silent()
    }

    fn move_here(self: Box<Self>) -> io::Result<Box<dyn Wire>> {
        let Self { inner, taken, switches } = *self;
        let inner = TcpStream::from_std(inner.into_std()?)?;
        Ok(Box::new(Self { inner, taken, switches }))
    }
}

impl AsyncRead for SwitchedWire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        assert!(!is_on(&self.switches.read_panics), "the wire seam panics");
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl AsyncWrite for SwitchedWire {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let broken = Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        match self.switches.write.load(Ordering::SeqCst) {
            WRITE_NOTHING => broken,
            WRITE_TEN if self.taken > 0 => broken,
            WRITE_TEN => {
                self.taken = 10;
                Pin::new(&mut self.inner).poll_write(context, &bytes[..10])
            }
            _ => Pin::new(&mut self.inner).poll_write(context, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
