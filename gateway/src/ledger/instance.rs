//! This gateway's place in the store: the lease on its letter, and the incarnation that tells one life, and one copy of a data
//! folder, from another.
//!
//! The folder and the lease row hold the same number. A start compares the two, then raises both, the folder first and as
//! pending. If they are unequal, the folder is an old copy or a clone: its journal is not continued.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::id::Instance;
use super::journal::Disk;
use super::store::{InstanceLease, Owner, Store};
use super::{OpenError, StoreError};

/// What the data folder remembers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    owner: [u8; 16],
    incarnation: i64,
    /// A number that may or may not have got into the lease row.
    pending: Option<i64>,
}

/// What a start found in the folder and in the store, before it changed anything.
#[derive(Debug)]
pub(super) struct Found {
    note: Note,
    seen: i64,
    /// Whether the folder's journal belongs to another life.
    pub(super) stale: bool,
}

/// Looks who has the letter, and waits until another one's lease is over.
pub(super) async fn look(store: &Store, disk: &dyn Disk, instance: Instance) -> Result<Found, OpenError> {
    let note = match disk.read_note().map_err(super::RecoveryError::from)? {
        Some(bytes) => postcard::from_bytes(&bytes).map_err(|_| OpenError::Identity)?,
        None => Note { owner: uuid::Uuid::now_v7().into_bytes(), ..Note::default() },
    };
    let Some(lease) = store.lease_of(instance).await? else {
        // A store that does not know the letter: new, or not the one that this folder knows.
        return Ok(Found { stale: note.incarnation != 0, note, seen: 0 });
    };
    if lease.owner == note.owner {
        let stale = lease.incarnation != note.incarnation && Some(lease.incarnation) != note.pending;
        return Ok(Found { note, seen: lease.incarnation, stale });
    }
    if !lease.left.is_zero() {
        tracing::warn!(instance = %instance.letter(), "another gateway has this letter; waiting for its lease to end");
        tokio::time::sleep(lease.left + Duration::from_millis(50)).await;
        let now = store.lease_of(instance).await?;
        if now.is_none_or(|now| now.incarnation != lease.incarnation || !now.left.is_zero()) {
            return Err(OpenError::LetterTaken);
        }
    }
    Ok(Found { stale: note.incarnation != 0, note, seen: lease.incarnation })
}

/// Takes the letter for a new life with this journal.
pub(super) async fn take(
    store: &Store,
    disk: &dyn Disk,
    instance: Instance,
    found: Found,
    journal: [u8; 16],
    length: Duration,
) -> Result<InstanceLease, OpenError> {
    let Found { note, seen, .. } = found;
    let incarnation = seen.max(note.incarnation) + 1;
    let write = |note: Note| -> Result<(), OpenError> {
        let bytes = postcard::to_stdvec(&note).map_err(|_| OpenError::Identity)?;
        Ok(disk.write_note(&bytes).map_err(super::RecoveryError::from)?)
    };
    write(Note { pending: Some(incarnation), ..note })?;
    let lease = InstanceLease { owner: note.owner, incarnation, journal, left: length };
    if !store.take_lease(instance, &lease, seen).await? {
        return Err(OpenError::LetterTaken);
    }
    write(Note { incarnation, pending: None, ..note })?;
    Ok(lease)
}

/// Renews the lease for ever; cancels `fenced` when it is somebody else's.
pub(super) async fn keep(store: Store, instance: Instance, lease: InstanceLease, fenced: CancellationToken) {
    loop {
        tokio::time::sleep(lease.left / 3).await;
        match store.renew_lease(instance, &lease).await {
            Ok(true) => {}
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
pub(super) async fn leave(store: &Store, instance: Instance, lease: InstanceLease) {
    let over = InstanceLease { left: Duration::ZERO, ..lease };
    if store.renew_lease(instance, &over).await.is_err() {
        tracing::debug!("the instance lease was not given up");
    }
}

impl InstanceLease {
    /// Who claims under this lease.
    pub(super) fn owner_of(&self, instance: Instance) -> Owner {
        Owner { instance, incarnation: self.incarnation, journal: self.journal }
    }
}
