//! The journal of a folder that turned out to be an old copy or a clone. What it knows for certain is shipped; what it has
//! open may have gone on in another life, so it is left to the claims, which become ABANDONED. Then it is set aside, and the
//! gateway begins a journal of its own.

use std::collections::HashSet;
use std::sync::Arc;

use tokio_util::task::AbortOnDropHandle;

use super::journal::{Disk, Journal, Position};
use super::row::{Outcome, Row};
use super::store::{Claim, Owner, Shipper, Store};
use super::{OpenError, RecoveryError, Settings};
use crate::clock::Clock;
use crate::routes::Kind;

pub(super) async fn settle(
    store: &Store,
    disk: &Arc<dyn Disk>,
    settings: &Settings,
    clock: &Clock,
) -> Result<(), OpenError> {
    let marks = store.journal_marks().await?;
    let mut mark = None;
    let recovered = Journal::recover(Arc::clone(disk), settings.journal, [0; 16], |journal| {
        mark = marks.get(&journal).copied();
        Position::default()
    })?;
    let journal = recovered.journal;
    let name = format!("stale-{}", hex::encode(journal.id()));
    tracing::warn!(aside = name, "this data folder is an old copy or a clone: its journal is set aside");
    if mark.is_some_and(|mark| mark.retired) {
        return Err(OpenError::Retired);
    }
    // The keys that only this journal has: the store shall have them too, and say the same of them.
    let owner = Owner { instance: settings.instance, incarnation: 0, journal: journal.id() };
    let mut kept = Vec::new();
    for claim in recovered.open.iter().cloned().filter_map(Claim::kept) {
        // Of one whose row is there the store knows the end, and what became of its key.
        if store.row(claim.facts.id).await?.is_none() {
            kept.push(claim);
        }
    }
    for some in kept.chunks(128) {
        store.write_claims(owner, some).await?;
    }
    store.abandon_journal(journal.id()).await?;
    let _syncing = AbortOnDropHandle::new(tokio::spawn(Arc::clone(&journal).run_syncer()));
    let claimed: HashSet<_> =
        store.open_claims(journal.id(), u32::MAX / 2).await?.into_iter().map(|facts| facts.id).collect();
    for facts in recovered.open {
        let elsewhere = facts.kind == Kind::Mutation && claimed.contains(&facts.id);
        if !elsewhere && store.row(facts.id).await?.is_none() {
            let now = clock.wall().as_microsecond();
            journal.append_outcome(&Outcome::of(Row::in_doubt(facts, "recovered", now)))?;
        }
    }
    journal.durable(journal.end()).await?;
    ship(store, &journal).await?;
    Ok(disk.set_aside(&name).map_err(RecoveryError::from)?)
}

/// Ships all that is here: how far another life has got says nothing about this copy. What is there already is passed over.
async fn ship(store: &Store, journal: &Journal) -> Result<(), OpenError> {
    let mut from = Position::default();
    loop {
        let (outcomes, next) = journal.outcomes_from(from).map_err(RecoveryError::from)?;
        if next == from {
            return Ok(());
        }
        store.ship(&outcomes, Shipper::SetAside).await?;
        from = next;
    }
}
