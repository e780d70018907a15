//! Who owns a letter, which blocks of ids it has, how far each journal is shipped.

use std::collections::HashMap;
use std::time::Duration;

use super::super::{InstanceLease, JournalMark, Owner, StoreError};
use super::claims::microseconds;
use super::statement::Statement;
use super::{Session, SqlStore};
use crate::ledger::id::{BLOCKS, Instance};
use crate::ledger::journal::Position;

impl SqlStore {
    pub(in crate::ledger::store) async fn take_block(&self, instance: Instance) -> Result<u64, StoreError> {
        loop {
            let mut bytes = [0; 8];
            getrandom::fill(&mut bytes).map_err(|_| StoreError::NoRandomness)?;
            let block = u64::from_le_bytes(bytes) % BLOCKS;
            let take = Statement::new("INSERT INTO id_block_taken (instance, block) VALUES (")
                .bind(instance.letter().to_string())
                .and_bind(block)
                .push(") ON CONFLICT DO NOTHING");
            if self.write(take).await? == 1 {
                return Ok(block);
            }
        }
    }

    pub(in crate::ledger::store) async fn journal_marks(&self) -> Result<HashMap<[u8; 16], JournalMark>, StoreError> {
        let select = Statement::new("SELECT journal_id, segment, byte_offset, retired_at FROM journal_checkpoint");
        let mut marks = HashMap::new();
        for mut cells in self.reading().await?.all(select).await? {
            let journal = cells.number16()?;
            let shipped = Position { segment: cells.unsigned()?, offset: cells.unsigned()? };
            marks.insert(journal, JournalMark { shipped, retired: cells.maybe_int()?.is_some() });
        }
        Ok(marks)
    }

    /// Moves a journal's checkpoint. `false` when the journal was retired, or another life goes on with it.
    pub(super) async fn move_checkpoint(
        &self,
        session: &mut Session,
        owner: Owner,
        upto: Position,
    ) -> Result<bool, StoreError> {
        let journal = owner.journal;
        let look = Statement::new("SELECT incarnation FROM instance_lease WHERE instance = ")
            .bind(owner.instance.letter().to_string())
            .push(" AND journal_id = ")
            .bind(&journal[..])
            .push(self.for_share());
        if let Some(mut cells) = session.first(look).await?
            && cells.int()? != owner.incarnation
        {
            return Ok(false);
        }
        let upsert = Statement::new("INSERT INTO journal_checkpoint (journal_id, segment, byte_offset) VALUES (")
            .bind(&journal[..])
            .and_bind(upto.segment)
            .and_bind(upto.offset)
            .push(
                ") ON CONFLICT (journal_id) DO UPDATE SET segment = EXCLUDED.segment, byte_offset = EXCLUDED.byte_offset \
                 WHERE journal_checkpoint.retired_at IS NULL",
            );
        Ok(session.run(upsert).await? == 1)
    }

    pub(in crate::ledger::store) async fn lease_of(
        &self,
        instance: Instance,
    ) -> Result<Option<InstanceLease>, StoreError> {
        let select = Statement::new("SELECT owner, incarnation, mark, journal_id, lease_until - ")
            .push(self.now())
            .push(" FROM instance_lease WHERE instance = ")
            .bind(instance.letter().to_string());
        let Some(mut cells) = self.reading().await?.first(select).await? else { return Ok(None) };
        Ok(Some(InstanceLease {
            owner: cells.number16()?,
            incarnation: cells.int()?,
            mark: cells.bytes()?.try_into().unwrap_or_default(),
            journal: cells.bytes()?.try_into().unwrap_or_default(),
            left: Duration::from_micros(u64::try_from(cells.int()?).unwrap_or_default()),
        }))
    }

    /// Takes a letter's lease, if nobody took it since it was looked at: `seen` is the incarnation that stood there.
    pub(in crate::ledger::store) async fn take_lease(
        &self,
        instance: Instance,
        lease: &InstanceLease,
        seen: i64,
        mark: Option<[u8; 16]>,
    ) -> Result<bool, StoreError> {
        let take = Statement::new(
            "INSERT INTO instance_lease (instance, owner, incarnation, mark, journal_id, lease_until) VALUES (",
        )
        .bind(instance.letter().to_string())
        .and_bind(&lease.owner[..])
        .and_bind(lease.incarnation)
        .and_bind(&lease.mark[..])
        .and_bind(&lease.journal[..])
        .push(", ")
        .push(self.now())
        .push(" + ")
        .bind(microseconds(lease.left))
        .push(
            ") ON CONFLICT (instance) DO UPDATE SET owner = EXCLUDED.owner, incarnation = EXCLUDED.incarnation, \
             mark = EXCLUDED.mark, journal_id = EXCLUDED.journal_id, lease_until = EXCLUDED.lease_until \
             WHERE instance_lease.incarnation = ",
        )
        .bind(seen)
        .push(" AND (instance_lease.owner = EXCLUDED.owner OR instance_lease.lease_until < ")
        .push(self.now())
        .push(")");
        let take = match mark {
            Some(mark) => take.push(" AND instance_lease.mark = ").bind(&mark[..]),
            None => take,
        };
        Ok(self.write(take).await? == 1)
    }

    /// Renews the lease. `false` when it is somebody else's now.
    pub(in crate::ledger::store) async fn renew_lease(
        &self,
        instance: Instance,
        lease: &InstanceLease,
    ) -> Result<bool, StoreError> {
        let renew = Statement::new("UPDATE instance_lease SET lease_until = ")
            .push(self.now())
            .push(" + ")
            .bind(microseconds(lease.left))
            .push(", mark = ")
            .bind(&lease.mark[..])
            .push(" WHERE instance = ")
            .bind(instance.letter().to_string())
            .push(" AND incarnation = ")
            .bind(lease.incarnation)
            .push(" AND owner = ")
            .bind(&lease.owner[..]);
        Ok(self.write(renew).await? == 1)
    }

    /// Fences a journal that will not come back: its gateway can't claim, ship or start any more. Its open claims become
    /// UNKNOWN rows. Returns how many.
    pub(in crate::ledger::store) async fn retire(&self, journal: [u8; 16]) -> Result<u64, StoreError> {
        let mut session = self.writing().await?;
        self.lock_order_of_rows(&mut session).await?;
        let fence =
            Statement::new("INSERT INTO journal_checkpoint (journal_id, segment, byte_offset, retired_at) VALUES (")
                .bind(&journal[..])
                .push(", 0, 0, ")
                .push(self.now())
                .push(") ON CONFLICT (journal_id) DO UPDATE SET retired_at = EXCLUDED.retired_at");
        session.run(fence).await?;
        let nobody = Statement::new("UPDATE instance_lease SET incarnation = incarnation + 1, journal_id = ")
            .bind(Vec::new())
            .push(", mark = ")
            .bind(Vec::new())
            .push(", lease_until = 0 WHERE journal_id = ")
            .bind(&journal[..]);
        session.run(nobody).await?;
        let closed = self.close_claims_of(&mut session, journal).await?;
        session.commit().await?;
        Ok(closed)
    }
}
