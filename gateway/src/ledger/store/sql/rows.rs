//! Rows as SQL: the columns, their way in and their way out, and what is shipped with them.

use super::super::{Filter, Resolved, Shipment, Shipper, StoreError, StoredRow};
use super::insertion::{New, ROWS_PER_STATEMENT};
use super::statement::Statement;
use super::{Cells, Session, SqlStore};
use crate::ledger::id::TransactionId;
use crate::ledger::row::{Attempt, Closing, Facts, Outcome, Proof, Resolution, ResolveAs, Row, ServedFrom, Status};
use crate::routes::Kind;

/// What a row says, in the order in which [`read`] reads.
pub(super) const COLUMNS: &str = "seq, transaction_id, tx_code, route, kind, institution, client, account_masked, \
     account_hash, counter_account_masked, counter_account_hash, amount, status, proof, response_code, detail, attempt_log, \
     requested_at, responded_at, elapsed_us, correlation_id, idempotency_key_hash, layout_version, served_from, \
     resolution, resolution_method, resolved_at, resolved_by, resolution_note, resolve_as";

/// What happens when the database refuses a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Care {
    /// The transaction is given up: nothing has to be kept that a statement could be undone with, which costs as much as the rows.
    None,
    /// The row is parked, and all others get in.
    ForEachRow,
}

impl SqlStore {
    pub(in crate::ledger::store) async fn ship(
        &self,
        outcomes: &[Outcome],
        shipper: Shipper,
    ) -> Result<Shipment, StoreError> {
        let shipped = match self.ship_in_one(outcomes, shipper, Care::None).await {
            Err(error) if super::is_refusal(&error) => self.ship_in_one(outcomes, shipper, Care::ForEachRow).await,
            shipped => shipped,
        }?;
        // A claim that ends is a row too.
        let keyed = outcomes.iter().filter(|outcome| outcome.row.facts.idempotency_key_hash.is_some()).count();
        self.wrote(outcomes.len() + keyed);
        Ok(shipped)
    }

    async fn ship_in_one(&self, outcomes: &[Outcome], shipper: Shipper, care: Care) -> Result<Shipment, StoreError> {
        let mut session = self.writing().await?;
        self.lock_order_of_rows(&mut session).await?;
        if let Shipper::Journal(owner, upto) = shipper
            && !self.move_checkpoint(&mut session, owner, upto).await?
        {
            session.roll_back().await?;
            return Err(StoreError::Fenced);
        }
        let mut shipment = Shipment::default();
        for chunk in outcomes.chunks(ROWS_PER_STATEMENT) {
            let new: Vec<New<'_>> = chunk.iter().map(|outcome| new(&outcome.row)).collect();
            self.insert(&mut session, &new, care, &mut shipment).await?;
        }
        self.end_claims(&mut session, outcomes).await?;
        session.commit().await?;
        Ok(shipment)
    }

    /// `seq` is the order of listings; with several gateways it must also be the order of commits, or a reader could pass a
    /// row that comes in behind it.
    pub(super) async fn lock_order_of_rows(&self, session: &mut Session) -> Result<(), StoreError> {
        if let Self::Postgres { .. } = self {
            session.all(Statement::new("SELECT pg_advisory_xact_lock(5070001)::text")).await?;
        }
        Ok(())
    }

    /// Inserts rows. Those that are there already are passed over; those that contradict are parked, and with care those that the
    /// database refuses too.
    pub(super) async fn insert(
        &self,
        session: &mut Session,
        rows: &[New<'_>],
        care: Care,
        shipment: &mut Shipment,
    ) -> Result<(), StoreError> {
        let inserted = match care {
            Care::None => Some(session.run(self.row_insertion(rows)).await?),
            Care::ForEachRow => session.attempt(self.row_insertion(rows)).await?,
        };
        match inserted {
            Some(count) if count == u64::try_from(rows.len()).unwrap_or_default() => shipment.inserted += rows.len(),
            Some(count) => {
                shipment.inserted += usize::try_from(count).unwrap_or_default();
                for (row, ..) in rows {
                    shipment.parked += usize::from(park_contradiction(session, row).await?);
                }
            }
            None => {
                for one in rows {
                    match session.attempt(self.row_insertion(std::slice::from_ref(one))).await? {
                        Some(0) => shipment.parked += usize::from(park_contradiction(session, one.0).await?),
                        Some(_) => shipment.inserted += 1,
                        None => {
                            park(session, one.0, "refused by the store").await?;
                            shipment.parked += 1;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// The question for a page.
    pub(in crate::ledger::store) fn look_for(&self, filter: &Filter, before: Option<i64>, limit: u32) -> Statement {
        let mut query = self.filtered(select(), filter);
        if let Some(before) = before {
            query = query.push(" AND seq < ").bind(before);
        }
        query.push(" ORDER BY seq DESC LIMIT ").bind(limit)
    }

    /// The question for a summary.
    pub(in crate::ledger::store) fn count(&self, filter: &Filter) -> Statement {
        self.filtered(Statement::new("SELECT status, COUNT(*) FROM ledger WHERE 1 = 1"), filter)
            .push(" GROUP BY status")
    }

    fn filtered(&self, mut statement: Statement, filter: &Filter) -> Statement {
        // An account has few rows; whatever else is asked for is looked at in them, and no index over it may seem better.
        let plain = if filter.account_hash.is_some() { self.dialect().no_index } else { "" };
        let equal = [
            (plain, "status = ", filter.status.map(Status::name)),
            (plain, "tx_code = ", filter.tx_code.as_deref()),
            (plain, "client = ", filter.client.as_deref()),
            (plain, "institution = ", filter.institution.as_deref()),
            ("", "correlation_id = ", filter.correlation_id.as_deref()),
        ];
        for (plain, column, value) in equal {
            if let Some(value) = value {
                statement = statement.push(" AND ").push(plain).push(column).bind(value);
            }
        }
        if let Some(from) = filter.from {
            statement = statement.push(" AND requested_at >= ").bind(from);
        }
        if let Some(to) = filter.to {
            statement = statement.push(" AND requested_at < ").bind(to);
        }
        if let Some(hash) = &filter.account_hash {
            let run = self.dialect().in_any_run;
            statement = statement.push(" AND ((").push(run).push("account_hash = ").bind(hash).push(") OR (").push(run);
            statement = statement.push("counter_account_hash = ").bind(hash).push("))");
        }
        if filter.unresolved { statement.push(" AND resolution IN ('PENDING', 'MANUAL')") } else { statement }
    }

    pub(in crate::ledger::store) async fn row(&self, id: TransactionId) -> Result<Option<StoredRow>, StoreError> {
        let mut session = self.reading().await?;
        let found = session.first(select().push(" AND transaction_id = ").bind(id.as_str())).await?;
        found.map(|mut cells| read(&mut cells)).transpose()
    }

    pub(in crate::ledger::store) async fn page(
        &self,
        filter: &Filter,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<StoredRow>, StoreError> {
        let found = self.reading().await?.all(self.look_for(filter, before, limit)).await?;
        found.into_iter().map(|mut cells| read(&mut cells)).collect()
    }

    pub(in crate::ledger::store) async fn summary(&self, filter: &Filter) -> Result<[u64; 3], StoreError> {
        let mut counts = [0; 3];
        for mut cells in self.reading().await?.all(self.count(filter)).await? {
            let (name, count) = (cells.text()?, cells.unsigned()?);
            for (slot, status) in counts.iter_mut().zip(Status::ALL) {
                if status.name() == name {
                    *slot = count;
                }
            }
        }
        Ok(counts)
    }
}

fn new(row: &Row) -> New<'_> {
    let (resolution, resolve_as) = row.doubt();
    (row, resolution, resolve_as)
}

/// If the row that is there under this id says something else, parks this one.
async fn park_contradiction(session: &mut Session, row: &Row) -> Result<bool, StoreError> {
    let there = session.first(select().push(" AND transaction_id = ").bind(row.facts.id.as_str())).await?;
    let Some(mut there) = there else { return Ok(false) };
    if read(&mut there)?.row.says_what(row) {
        return Ok(false);
    }
    park(session, row, "contradicts the row that is there").await?;
    Ok(true)
}

async fn park(session: &mut Session, row: &Row, reason: &'static str) -> Result<(), StoreError> {
    let mut json = serde_json::to_value(row).unwrap_or_default();
    if let Some(closing) = json.get_mut("closing").and_then(serde_json::Value::as_object_mut) {
        closing.insert("served_from".to_owned(), row.closing.served_from.name().into());
    }
    let statement = Statement::new("INSERT INTO ledger_parked (transaction_id, reason, row_json) VALUES (")
        .bind(row.facts.id.as_str())
        .and_bind(reason)
        .and_bind(json.to_string())
        .push(") ON CONFLICT DO NOTHING");
    session.run(statement).await?;
    Ok(())
}

fn select() -> Statement {
    Statement::new("SELECT ").push(COLUMNS).push(" FROM ledger WHERE 1 = 1")
}

/// Reads [`COLUMNS`].
pub(super) fn read(cells: &mut Cells) -> Result<StoredRow, StoreError> {
    let malformed = || StoreError::Malformed;
    let masked = |text: Option<String>| -> Result<Option<codec::MaskedAccount>, StoreError> {
        let json = text.map(serde_json::Value::String);
        json.map(serde_json::from_value).transpose().map_err(|_| StoreError::Malformed)
    };
    let seq = cells.int()?;
    let id = TransactionId::parse(&cells.text()?).ok_or_else(malformed)?;
    let (tx_code, route) = (cells.text()?, cells.text()?);
    let kind = Kind::by_name(&cells.text()?).ok_or_else(malformed)?;
    let (institution, client) = (cells.text()?, cells.text()?);
    let (account, account_hash) = (masked(cells.maybe_text()?)?, cells.maybe_bytes()?);
    let (counter_account, counter_account_hash) = (masked(cells.maybe_text()?)?, cells.maybe_bytes()?);
    let amount = cells.maybe_int()?;
    let status = Status::by_name(&cells.text()?).ok_or_else(malformed)?;
    let proof = cells.maybe_text()?.map(|name| Proof::by_name(&name).ok_or_else(malformed)).transpose()?;
    let (response_code, detail) = (cells.maybe_text()?, cells.maybe_text()?);
    let attempts: Vec<Attempt> = serde_json::from_str(&cells.text()?).map_err(|_| StoreError::Malformed)?;
    let (requested_at, responded_at, elapsed_us) = (cells.int()?, cells.int()?, cells.int()?);
    let (correlation_id, idempotency_key_hash) = (cells.text()?, cells.maybe_bytes()?);
    let layout_version = u32::try_from(cells.int()?).map_err(|_| StoreError::Malformed)?;
    let served_from = ServedFrom::by_name(&cells.text()?).ok_or_else(malformed)?;
    let resolved = Resolved {
        state: Resolution::by_name(&cells.text()?).ok_or_else(malformed)?,
        method: cells.maybe_text()?,
        at: cells.maybe_int()?,
        by: cells.maybe_text()?,
        note: cells.maybe_text()?,
        resolve_as: cells.maybe_text()?.map(|name| ResolveAs::by_name(&name).ok_or_else(malformed)).transpose()?,
    };
    let facts = Facts {
        id,
        tx_code,
        route,
        kind,
        institution,
        client,
        account,
        account_hash,
        counter_account,
        counter_account_hash,
        amount,
        requested_at,
        correlation_id,
        idempotency_key_hash,
        layout_version,
        keyed: None,
    };
    let closing = Closing { status, proof, response_code, detail, attempts, responded_at, elapsed_us, served_from };
    Ok(StoredRow { seq, row: Row { facts, closing }, resolved })
}
