//! Parts that can be left out, so that each one's price can be measured: `loadtest overhead` makes a build with the feature `overhead` for
//! itself, in which `OVERHEAD_LEAVES_OUT` names one. In every other build nothing can be left out, and the question costs nothing.

/// A part of what happens to each call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Finding the caller by the hash of the key.
    Auth,
    /// The client's token bucket.
    Limit,
    /// What is counted and timed for each transaction.
    Metrics,
    /// The journal's records, and so everything behind them.
    Journal,
    /// Making the journal durable.
    Sync,
    /// Carrying rows to the store.
    Store,
}

/// Says so when this build can leave parts out.
pub(crate) fn warn() {
    if cfg!(feature = "overhead") {
        tracing::warn!("this build can leave parts out, authentication too: it is for measuring and must serve nobody");
    }
}

#[cfg(not(feature = "overhead"))]
pub(crate) const fn is_left_out(_part: Part) -> bool {
    false
}

#[cfg(feature = "overhead")]
#[expect(clippy::disallowed_methods, reason = "no configuration: it is in no build that anybody runs")]
pub(crate) fn is_left_out(part: Part) -> bool {
    static LEFT_OUT: std::sync::OnceLock<Vec<String>> = std::sync::OnceLock::new();
    let left_out = LEFT_OUT.get_or_init(|| {
        let named = std::env::var("OVERHEAD_LEAVES_OUT").unwrap_or_default();
        named.split(',').map(str::to_owned).collect()
    });
    let name = match part {
        Part::Auth => "auth",
        Part::Limit => "limit",
        Part::Metrics => "metrics",
        Part::Journal => "journal",
        Part::Sync => "sync",
        Part::Store => "store",
    };
    left_out.iter().any(|named| named == name)
}
