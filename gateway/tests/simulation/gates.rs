//! One life of a gateway: everything it reaches the world through, and the moment of its death. Once dead, nothing that is left
//! of it has any effect: its disk, its store and its sockets are shut, in the middle of whatever it did.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gwanmun::ledger::{Delivery, Disk, Gate, Passage, SegmentFile};
use tokio_util::sync::CancellationToken;

use crate::memory_disk::MemoryDisk;

/// Counts what a life does at its seams, and ends it at a given count: between any two of its effects.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) dead: CancellationToken,
    done: AtomicU64,
    /// The count at which it dies.
    dies_at: AtomicU64,
}

impl Life {
    pub(crate) fn new(dies_at: u64) -> Arc<Self> {
        Arc::new(Self { dead: CancellationToken::new(), done: AtomicU64::new(0), dies_at: AtomicU64::new(dies_at) })
    }

    pub(crate) fn is_over(&self) -> bool {
        self.dead.is_cancelled()
    }

    /// Lets it die at its next effects instead of at a far one.
    pub(crate) fn die_within(&self, effects: u64) {
        let at = self.done.load(Ordering::Relaxed) + effects;
        self.dies_at.fetch_min(at, Ordering::Relaxed);
    }

    /// One effect is about to happen. Whether it still does.
    pub(crate) fn act(&self) -> bool {
        if self.done.fetch_add(1, Ordering::Relaxed) >= self.dies_at.load(Ordering::Relaxed) {
            self.dead.cancel();
        }
        !self.is_over()
    }

    pub(crate) fn act_io(&self) -> io::Result<()> {
        if self.act() { Ok(()) } else { Err(io::Error::other("dead")) }
    }
}

/// How the way to the store is at the moment; all gateways share the store, each has its own way.
#[derive(Debug, Default)]
pub(crate) struct Weather {
    pub(crate) down: AtomicBool,
    /// Of a thousand statements, how many are carried out and not answered, and how many are slow.
    pub(crate) lossy: AtomicU64,
    pub(crate) slow: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct StoreGate {
    pub(crate) life: Arc<Life>,
    pub(crate) weather: Arc<Weather>,
    pub(crate) dice: Mutex<fastrand::Rng>,
}

impl Gate for StoreGate {
    fn pass(&self) -> Passage {
        let mut dice = self.dice.lock().unwrap();
        let mut chance = |of: &AtomicU64| dice.u64(..1_000) < of.load(Ordering::Relaxed);
        let (lost, slow) = (chance(&self.weather.lossy), chance(&self.weather.slow));
        let wait =
            if slow { Duration::from_millis(dice.u64(1..4_000)) } else { Duration::from_micros(dice.u64(..900)) };
        // Dies on the way there, or on the way back.
        let was_alive = !self.life.is_over();
        let lives = self.life.act();
        let dies_after = dice.bool();
        let delivery = match (was_alive, lives) {
            (true, true) if self.weather.down.load(Ordering::Relaxed) => Delivery::Refused,
            (true, true) if lost => Delivery::AnswerLost,
            (true, true) => Delivery::Whole,
            (true, false) if dies_after => Delivery::AnswerLost,
            _ => Delivery::Refused,
        };
        Passage { wait, delivery }
    }
}

/// The disk as one life sees it.
#[derive(Debug)]
pub(crate) struct LifeDisk {
    pub(crate) life: Arc<Life>,
    pub(crate) disk: Arc<MemoryDisk>,
}

#[derive(Debug)]
struct LifeFile {
    life: Arc<Life>,
    file: Arc<dyn SegmentFile>,
}

impl LifeDisk {
    fn file(&self, file: Arc<dyn SegmentFile>) -> Arc<dyn SegmentFile> {
        Arc::new(LifeFile { life: Arc::clone(&self.life), file })
    }
}

impl Disk for LifeDisk {
    fn list(&self) -> io::Result<Vec<u64>> {
        self.life.act_io()?;
        self.disk.list()
    }

    fn create(&self, number: u64, size: u64) -> io::Result<Arc<dyn SegmentFile>> {
        self.life.act_io()?;
        Ok(self.file(self.disk.create(number, size)?))
    }

    fn open(&self, number: u64) -> io::Result<Arc<dyn SegmentFile>> {
        self.life.act_io()?;
        Ok(self.file(self.disk.open(number)?))
    }

    fn remove(&self, number: u64) -> io::Result<()> {
        self.life.act_io()?;
        self.disk.remove(number)
    }

    fn read_note(&self) -> io::Result<Option<Vec<u8>>> {
        self.life.act_io()?;
        self.disk.read_note()
    }

    fn write_note(&self, bytes: &[u8]) -> io::Result<()> {
        self.life.act_io()?;
        self.disk.write_note(bytes)
    }

    fn returns_at_once(&self) -> bool {
        true
    }

    fn set_aside(&self, name: &str) -> io::Result<()> {
        self.life.act_io()?;
        self.disk.set_aside(name)
    }
}

impl SegmentFile for LifeFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.life.act_io()?;
        self.file.write_at(bytes, offset)
    }

    fn write_awaited_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.life.act_io()?;
        self.file.write_awaited_at(bytes, offset)
    }

    fn leave(&self) {
        self.file.leave();
    }

    fn read_at(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        if self.life.is_over() { Err(io::Error::other("dead")) } else { self.file.read_at(offset, length) }
    }

    fn sync(&self) -> io::Result<()> {
        self.life.act_io()?;
        self.file.sync()
    }
}
