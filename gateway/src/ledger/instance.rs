//! This gateway's place in the store: the lease on its letter, and the mark that tells one copy of a data folder from another.
//!
//! The folder and the lease row hold the same random mark. Each start, and each renewal, draws a new one and writes it to both,
//! the folder first and as pending. A start compares the two: if they are unequal, the folder is an old copy or a clone, and
//! its journal is not continued. The incarnation counts the starts; a life that is not the last one can't claim.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::id::Instance;
use super::journal::Disk;
use super::store::{InstanceLease, Owner, Store};
use super::{OpenError, StoreError};

/// What the data folder remembers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    owner: [u8; 16],
    /// The mark that is known to stand in the lease row; all zero before the first start.
    mark: [u8; 16],
    /// Marks that may have got there, or still may: of a renewal that was under way when the process died, of starts that broke
    /// off. A start that gets through ends them all, because it raises the incarnation.
    pending: Vec<[u8; 16]>,
}

impl Note {
    fn read(disk: &dyn Disk) -> Result<Self, OpenError> {
        match disk.read_note().map_err(super::RecoveryError::from)? {
            Some(bytes) => postcard::from_bytes(&bytes).map_err(|_| OpenError::Identity),
            None => Ok(Self { owner: draw()?, ..Self::default() }),
        }
    }

    /// On a thread of the disk's: the runtime goes on meanwhile.
    async fn write(&self, disk: &Arc<dyn Disk>) -> Result<(), OpenError> {
        let bytes = postcard::to_stdvec(self).map_err(|_| OpenError::Identity)?;
        let writing = Arc::clone(disk);
        Ok(disk.apart(move || writing.write_note(&bytes)).await.map_err(super::RecoveryError::from)?)
    }

    fn is_new(&self) -> bool {
        *self == Self { owner: self.owner, ..Self::default() }
    }
}

/// Sixteen random bytes.
fn draw() -> Result<[u8; 16], OpenError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|_| OpenError::Identity)?;
    Ok(bytes)
}

/// What a start found in the folder and in the store, before it changed anything.
#[derive(Debug)]
pub(super) struct Found {
    note: Note,
    /// What stands in the lease row: its incarnation, and its mark.
    seen: Option<(i64, [u8; 16])>,
    /// Whether the folder's journal belongs to another life.
    pub(super) stale: bool,
}

/// Looks who has the letter, and waits until another life's lease is over.
pub(super) async fn look(store: &Store, disk: &dyn Disk, instance: Instance) -> Result<Found, OpenError> {
    let note = Note::read(disk)?;
    let Some(lease) = store.lease_of(instance).await? else {
        // A store that does not know the letter: new, or not the one that this folder knows.
        return Ok(Found { stale: !note.is_new(), note, seen: None });
    };
    let ours = lease.owner == note.owner && (lease.mark == note.mark || note.pending.contains(&lease.mark));
    if !ours && !lease.left.is_zero() {
        tracing::warn!(instance = %instance.letter(), "another gateway has this letter; waiting for its lease to end");
        tokio::time::sleep(lease.left + Duration::from_millis(50)).await;
        let now = store.lease_of(instance).await?;
        if now.is_none_or(|now| now.mark != lease.mark || !now.left.is_zero()) {
            return Err(OpenError::LetterTaken);
        }
    }
    Ok(Found { stale: !ours && !note.is_new(), note, seen: Some((lease.incarnation, lease.mark)) })
}

/// Takes the letter for a new life with this journal.
pub(super) async fn take(
    store: &Store,
    disk: &Arc<dyn Disk>,
    instance: Instance,
    found: Found,
    journal: [u8; 16],
    length: Duration,
) -> Result<InstanceLease, OpenError> {
    let Found { mut note, seen, stale } = found;
    let (before, standing) = seen.unwrap_or_default();
    let mark = draw()?;
    // This start may fail as well, so nothing that may stand in the row is forgotten.
    note.pending.push(mark);
    note.write(disk).await?;
    let lease = InstanceLease { owner: note.owner, incarnation: before + 1, mark, journal, left: length };
    // One that is ours may have been renewed by a statement of the life before that is late; a copy's must stand as it was seen.
    let as_seen = stale.then_some(standing);
    if !store.take_lease(instance, &lease, before, as_seen).await? {
        return Err(OpenError::LetterTaken);
    }
    Note { mark, pending: Vec::new(), ..note }.write(disk).await?;
    Ok(lease)
}

/// Renews the lease for ever, each time with a new mark, so that a copy of the folder is soon out of date. Cancels `fenced` when
/// the letter is somebody else's.
pub(super) async fn keep(
    store: Store,
    disk: Arc<dyn Disk>,
    instance: Instance,
    lease: InstanceLease,
    fenced: CancellationToken,
) {
    let mut note = Note { owner: lease.owner, mark: lease.mark, pending: Vec::new() };
    loop {
        tokio::time::sleep(lease.left / 3).await;
        // One whose fate is not known is offered again: at most one may be pending.
        let Some(mark) = note.pending.first().copied().or_else(|| draw().ok()) else { continue };
        note.pending = vec![mark];
        if note.write(&disk).await.is_err() {
            tracing::warn!("the identity file cannot be written; the instance lease is not renewed");
            continue;
        }
        match store.renew_lease(instance, &InstanceLease { mark, ..lease }).await {
            // The file says so at the next renewal; until then the mark is its pending one.
            Ok(true) => note = Note { mark, pending: Vec::new(), ..note },
            Ok(false) | Err(StoreError::Fenced) => {
                tracing::error!("this gateway's letter was taken over or its journal retired: the process must stop");
                fenced.cancel();
                return;
            }
            // The store is down. Nobody else can take the letter there either, and what runs is safe without it.
            Err(_) => tracing::debug!("the instance lease was not renewed"),
        }
    }
}

/// Lets the letter go at once, so that another folder need not wait.
pub(super) async fn leave(store: &Store, disk: &Arc<dyn Disk>, instance: Instance, lease: InstanceLease) {
    let gone = async {
        let mut note = Note::read(&**disk)?;
        let mark = match note.pending.first() {
            Some(pending) => *pending,
            None => draw()?,
        };
        note.pending = vec![mark];
        note.write(disk).await?;
        let over = InstanceLease { left: Duration::ZERO, mark, ..lease };
        Ok::<_, OpenError>(store.renew_lease(instance, &over).await?)
    };
    if gone.await.is_err() {
        tracing::debug!("the instance lease was not given up");
    }
}

impl InstanceLease {
    /// Who claims under this lease.
    pub(super) fn owner_of(&self, instance: Instance) -> Owner {
        Owner { instance, incarnation: self.incarnation, journal: self.journal }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::clock::Clock;
    use crate::ledger::{Delivery, FolderDisk, Gate, MemoryStore, Passage};

    const LEASE: Duration = Duration::from_secs(5);

    /// Lets statements through as the test says, and all after them.
    #[derive(Debug, Default)]
    struct Script(Mutex<VecDeque<Delivery>>);

    impl Gate for Script {
        fn pass(&self) -> Passage {
            let delivery = self.0.lock().unwrap().pop_front().unwrap_or(Delivery::Whole);
            Passage { wait: Duration::ZERO, delivery }
        }
    }

    fn clock() -> Clock {
        Clock::simulated("2026-11-29T00:00:00Z".parse().unwrap()).unwrap()
    }

    struct Place {
        folder: tempfile::TempDir,
        script: Arc<Script>,
        store: Store,
    }

    fn place() -> Place {
        let script = Arc::new(Script::default());
        let store = MemoryStore::new(clock()).behind(Arc::clone(&script) as Arc<dyn Gate>);
        Place { folder: tempfile::tempdir().unwrap(), script, store: Store::Memory(store) }
    }

    impl Place {
        /// A start; what happens to its two statements is the test's word.
        async fn start(&self, folder: &std::path::Path, deliveries: &[Delivery]) -> Result<(i64, bool), OpenError> {
            self.script.0.lock().unwrap().extend(deliveries);
            let disk: Arc<dyn Disk> = Arc::new(FolderDisk::new(folder).unwrap());
            let found = look(&self.store, &*disk, Instance::default()).await?;
            let stale = found.stale;
            let lease = take(&self.store, &disk, Instance::default(), found, [1; 16], LEASE).await?;
            Ok((lease.incarnation, stale))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn starts_that_break_off_anywhere_do_not_make_a_folder_look_like_a_copy() {
        use Delivery::{AnswerLost, Refused, Whole};
        let place = place();
        let folder = place.folder.path();
        assert_eq!(place.start(folder, &[]).await.unwrap(), (1, false));
        // It got into the row and nobody heard; then it did not get there at all; twice.
        for deliveries in [[Whole, AnswerLost], [Whole, Refused], [Whole, AnswerLost], [Whole, AnswerLost]] {
            assert!(place.start(folder, &deliveries).await.is_err());
            let disk = FolderDisk::new(folder).unwrap();
            let found = look(&place.store, &disk, Instance::default()).await.unwrap();
            assert!(!found.stale, "after {deliveries:?}");
        }
        let (incarnation, stale) = place.start(folder, &[]).await.unwrap();
        assert!(incarnation >= 4 && !stale, "{incarnation}, stale: {stale}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_renewal_of_the_life_before_does_not_make_the_folder_look_like_a_copy() {
        let place = place();
        let folder = place.folder.path();
        let disk: Arc<dyn Disk> = Arc::new(FolderDisk::new(folder).unwrap());
        let found = look(&place.store, &*disk, Instance::default()).await.unwrap();
        let lease = take(&place.store, &disk, Instance::default(), found, [1; 16], LEASE).await.unwrap();
        // It is killed while a renewal is under way, and the statement is carried out only after the next start has looked.
        let mark = [5; 16];
        let mut note = Note::read(&*disk).unwrap();
        note.pending = vec![mark];
        note.write(&disk).await.unwrap();
        let found = look(&place.store, &*disk, Instance::default()).await.unwrap();
        assert!(place.store.renew_lease(Instance::default(), &InstanceLease { mark, ..lease }).await.unwrap());
        // This start breaks off, the next one gets through.
        place.script.0.lock().unwrap().push_back(Delivery::Refused);
        assert!(take(&place.store, &disk, Instance::default(), found, [1; 16], LEASE).await.is_err());
        let found = look(&place.store, &*disk, Instance::default()).await.unwrap();
        assert!(!found.stale);
        let found = Found { seen: Some((lease.incarnation, lease.mark)), ..found };
        assert!(take(&place.store, &disk, Instance::default(), found, [1; 16], LEASE).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_copy_and_a_clone_of_a_folder_are_known_as_such() {
        let place = place();
        let (folder, copy) = (place.folder.path().join("a"), place.folder.path().join("copy"));
        assert_eq!(place.start(&folder, &[]).await.unwrap(), (1, false));
        std::fs::create_dir(&copy).unwrap();
        std::fs::copy(folder.join("identity"), copy.join("identity")).unwrap();
        assert_eq!(place.start(&folder, &[]).await.unwrap(), (2, false));
        let time = clock();
        let began = time.now();
        assert_eq!(place.start(&copy, &[]).await.unwrap(), (3, true), "an old copy");
        assert!(time.now() - began >= LEASE, "it does not take the letter from one that lives");
        assert_eq!(place.start(&folder, &[]).await.unwrap(), (4, true), "now the other one is old");
        assert_eq!(place.start(&folder, &[]).await.unwrap(), (5, false));
        // The store is gone, and with it what it knew.
        let lost = Place { store: Store::Memory(MemoryStore::new(clock())), ..place };
        assert_eq!(lost.start(&folder, &[]).await.unwrap(), (1, true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_copy_that_was_made_since_the_last_start_is_known_after_a_renewal() {
        let place = place();
        let (folder, copy) = (place.folder.path().join("a"), place.folder.path().join("copy"));
        let disk: Arc<dyn Disk> = Arc::new(FolderDisk::new(&folder).unwrap());
        let found = look(&place.store, &*disk, Instance::default()).await.unwrap();
        let lease = take(&place.store, &disk, Instance::default(), found, [1; 16], LEASE).await.unwrap();
        std::fs::create_dir(&copy).unwrap();
        std::fs::copy(folder.join("identity"), copy.join("identity")).unwrap();
        let (store, fenced) = (place.store.clone(), CancellationToken::new());
        let keeping = tokio::spawn(keep(store, Arc::clone(&disk), Instance::default(), lease, fenced));
        tokio::time::sleep(LEASE * 3).await;
        keeping.abort();
        tokio::time::sleep(LEASE * 2).await;
        let seen = async |folder: &std::path::Path| {
            let disk = FolderDisk::new(folder).unwrap();
            look(&place.store, &disk, Instance::default()).await.unwrap().stale
        };
        assert!(seen(&copy).await, "the copy");
        assert!(!seen(&folder).await, "the folder itself");
    }
}
