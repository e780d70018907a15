//! The store on a PostgreSQL server that several gateways share. A start refuses a server that would call a commit durable
//! before it is.

use std::str::FromStr;
use std::time::Duration;

use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions as _, SqlStr};

use super::sqlite::migrations;
use super::{SqlStore, Store, StoreError};

/// Connections to the server for claims, shipping, resolution and leases.
const WRITERS_MAX: u32 = 8;
/// Connections for what people read.
const READERS_MAX: u32 = 4;

impl Store {
    /// Connects to a server by its URL (`postgres://user:password@host/database`) and brings the tables up to date.
    ///
    /// # Errors
    /// [`StoreError`]; [`StoreError::NotDurable`] for a server that runs with `fsync` off or `synchronous_commit` below `on`.
    pub async fn postgres(url: &str) -> Result<Self, StoreError> {
        let options = PgConnectOptions::from_str(url)?
            .application_name("gwanmun")
            // Statements are in no log: their values are accounts and amounts.
            .disable_statement_logging()
            .options([("statement_timeout", "10s"), ("idle_in_transaction_session_timeout", "30s")]);
        let pool = |most| PgPoolOptions::new().max_connections(most).acquire_timeout(Duration::from_millis(500));
        let writers = pool(WRITERS_MAX).connect_with(options.clone()).await?;
        let readers = pool(READERS_MAX).connect_with(options).await?;
        refuse_less_than_durable(&writers).await?;
        migrator().run(&writers).await?;
        Ok(Self::Sql(SqlStore::Postgres { writers, readers }))
    }
}

/// Brings the tables of a server up to date that is no ledger's store: the call budgets may have a database of their own.
///
/// # Errors
/// [`StoreError`].
pub async fn migrate(url: &str) -> Result<(), StoreError> {
    let options = PgConnectOptions::from_str(url)?.application_name("gwanmun").disable_statement_logging();
    let mut connection = options.connect().await?;
    migrator().run(&mut connection).await?;
    Ok(())
}

fn migrator() -> Migrator {
    Migrator::with_migrations(migrations!("postgres":
        1 "ledger" "0001_ledger.sql",
        2 "call budget" "0002_call_budget.sql"))
}

async fn refuse_less_than_durable(pool: &PgPool) -> Result<(), StoreError> {
    let show = async |setting: &'static str| -> Result<String, StoreError> {
        Ok(sqlx::query_scalar(SqlStr::from_static(setting)).fetch_one(pool).await?)
    };
    if !matches!(show("SHOW synchronous_commit").await?.as_str(), "on" | "remote_apply") {
        return Err(StoreError::NotDurable("synchronous_commit must be on"));
    }
    if show("SHOW fsync").await? != "on" {
        return Err(StoreError::NotDurable("fsync must be on"));
    }
    if show("SHOW full_page_writes").await? != "on" {
        return Err(StoreError::NotDurable("full_page_writes must be on"));
    }
    Ok(())
}
