//! Setting up a budget's rows, and looking at them: what `gwanmun budget` does. Never on the way of a call.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions as _, Connection as _, SqlStr};

use super::{ClassRule, Settings};

/// What the database has of one budget.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the columns; the migration explains each")]
pub struct Shown {
    pub limit: i32,
    pub window: Duration,
    pub jitter: Duration,
    pub lookahead: Duration,
    pub interval: Duration,
    pub epoch: i64,
    pub classes: Vec<ClassRule>,
}

/// A connection for setting up budgets.
#[derive(Debug)]
pub struct Admin {
    connection: PgConnection,
}

impl Admin {
    /// Connects; the tables must be there.
    ///
    /// # Errors
    /// What the database says.
    pub async fn connect(url: &str) -> Result<Self, sqlx::Error> {
        let options: PgConnectOptions = url.parse()?;
        let options = options.application_name("gwanmun-budget-admin").disable_statement_logging();
        Ok(Self { connection: options.options([("statement_timeout", "10s")]).connect().await? })
    }

    /// Writes what a configuration says. Where that changes something, no slot is given before the old promises have run out.
    ///
    /// # Errors
    /// What the database says; then nothing has changed.
    pub async fn set(&mut self, settings: &Settings) -> Result<(), sqlx::Error> {
        let micros = |time: Duration| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        let mut transaction = self.connection.begin().await?;
        sqlx::query(SqlStr::from_static(
            "INSERT INTO call_budget (budget_key, limit_per_second, window_us, jitter_us, lookahead_us) \
             VALUES ($1, $2, $3, $4, $5) \
             ON CONFLICT (budget_key) DO UPDATE SET limit_per_second = EXCLUDED.limit_per_second, \
             window_us = EXCLUDED.window_us, jitter_us = EXCLUDED.jitter_us, lookahead_us = EXCLUDED.lookahead_us, next_slot_at_us = 0, \
             quarantine_at_us = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + greatest(call_budget.lookahead_us, EXCLUDED.lookahead_us) \
             + greatest(call_budget.window_us, EXCLUDED.window_us) + greatest(call_budget.jitter_us, EXCLUDED.jitter_us) \
             WHERE (call_budget.limit_per_second, call_budget.window_us, call_budget.jitter_us, call_budget.lookahead_us) \
             IS DISTINCT FROM (EXCLUDED.limit_per_second, EXCLUDED.window_us, EXCLUDED.jitter_us, EXCLUDED.lookahead_us)",
        ))
        .bind(&settings.key)
        .bind(i32::try_from(settings.limit).unwrap_or(i32::MAX))
        .bind(micros(settings.window))
        .bind(micros(settings.jitter))
        .bind(micros(settings.lookahead()))
        .execute(&mut *transaction)
        .await?;
        let names: Vec<&str> = settings.classes.iter().map(|class| class.name.as_str()).collect();
        sqlx::query(SqlStr::from_static("DELETE FROM call_budget_class WHERE budget_key = $1 AND class <> ALL($2)"))
            .bind(&settings.key)
            .bind(&names)
            .execute(&mut *transaction)
            .await?;
        for class in &settings.classes {
            sqlx::query(SqlStr::from_static(
                "INSERT INTO call_budget_class (budget_key, class, priority, floor_percent) VALUES ($1, $2, $3, $4) \
                 ON CONFLICT (budget_key, class) DO UPDATE SET priority = EXCLUDED.priority, \
                 floor_percent = EXCLUDED.floor_percent",
            ))
            .bind(&settings.key)
            .bind(&class.name)
            .bind(class.priority)
            .bind(class.floor_percent)
            .execute(&mut *transaction)
            .await?;
        }
        transaction.commit().await
    }

    /// Takes away what measurements that were broken off have left.
    ///
    /// # Errors
    /// What the database says.
    pub async fn clean(&mut self) -> Result<(), sqlx::Error> {
        let query = "DELETE FROM call_budget WHERE budget_key LIKE 'measure:%'";
        sqlx::query(SqlStr::from_static(query)).execute(&mut self.connection).await.map(drop)
    }

    /// What the database has under a key.
    ///
    /// # Errors
    /// What the database says.
    pub async fn show(&mut self, key: &str) -> Result<Option<Shown>, sqlx::Error> {
        let row = sqlx::query_as::<_, (i32, i64, i64, i64, i64, i64)>(SqlStr::from_static(
            "SELECT limit_per_second, window_us, jitter_us, lookahead_us, interval_us, epoch FROM call_budget \
             WHERE budget_key = $1",
        ))
        .bind(key)
        .fetch_optional(&mut self.connection)
        .await?;
        let Some((limit, window, jitter, lookahead, interval, epoch)) = row else { return Ok(None) };
        let classes = sqlx::query_as::<_, (String, i32, i32)>(SqlStr::from_static(
            "SELECT class, priority, floor_percent FROM call_budget_class WHERE budget_key = $1 ORDER BY priority, class",
        ))
        .bind(key)
        .fetch_all(&mut self.connection)
        .await?;
        let time = |micros: i64| Duration::from_micros(u64::try_from(micros).unwrap_or_default());
        let class = |(name, priority, floor_percent)| ClassRule { name, priority, floor_percent };
        Ok(Some(Shown {
            limit,
            window: time(window),
            jitter: time(jitter),
            lookahead: time(lookahead),
            interval: time(interval),
            epoch,
            classes: classes.into_iter().map(class).collect(),
        }))
    }

    /// Takes a budget away. Calls under it are refused from then on.
    ///
    /// # Errors
    /// What the database says.
    pub async fn remove(&mut self, key: &str) -> Result<(), sqlx::Error> {
        let query = sqlx::query(SqlStr::from_static("DELETE FROM call_budget WHERE budget_key = $1"));
        query.bind(key).execute(&mut self.connection).await.map(drop)
    }

    /// Transactions that the database has committed since it was made.
    ///
    /// # Errors
    /// What the database says.
    pub async fn committed(&mut self) -> Result<i64, sqlx::Error> {
        let query = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()";
        sqlx::query_scalar(SqlStr::from_static(query)).fetch_one(&mut self.connection).await
    }
}
