//! Where replies are kept: in this process, within a bound, or in Redis.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::Kept;
use crate::clock::{Clock, Instant};
use crate::redis_store::{Patience, RedisStore};
use crate::routes::CacheRule;

/// Where replies are kept.
#[derive(Debug)]
pub(super) enum Shelf {
    Memory(MemoryShelf),
    Redis(RedisStore),
}

impl Shelf {
    /// What is kept, fresh or not, unless its grace is over. A Redis that does not answer has nothing.
    pub(super) async fn find(&self, key: &str, rule: CacheRule, patience: &Patience, clock: &Clock) -> Option<Kept> {
        match self {
            Self::Memory(shelf) => shelf.find(key, rule, clock.now()),
            Self::Redis(redis) => {
                let (reply, left) = redis.get(key, patience).await??;
                // Its age by the server's clock: gateways whose clocks differ agree on what is fresh.
                Some(Kept { reply: reply.into(), age: (rule.ttl + rule.grace).saturating_sub(left), at: clock.now() })
            }
        }
    }

    /// Replies that are kept in this process.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Memory(shelf) => shelf.replies().len(),
            Self::Redis(_) => 0,
        }
    }
}

#[derive(Debug)]
struct OnShelf {
    reply: Box<[u8]>,
    since: Instant,
    until: Instant,
}

/// Replies in memory.
#[derive(Debug)]
pub(super) struct MemoryShelf {
    replies: Mutex<HashMap<String, OnShelf>>,
    entries_max: usize,
}

impl MemoryShelf {
    pub(super) fn new(entries_max: usize) -> Self {
        Self { replies: Mutex::default(), entries_max }
    }

    fn replies(&self) -> std::sync::MutexGuard<'_, HashMap<String, OnShelf>> {
        self.replies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, key: &str, rule: CacheRule, now: Instant) -> Option<Kept> {
        let replies = self.replies();
        let kept = replies.get(key)?;
        let age = now.saturating_duration_since(kept.since);
        (age < rule.ttl + rule.grace).then(|| Kept { reply: kept.reply.clone(), age, at: now })
    }

    /// Keeps a reply.
    pub(super) fn put(&self, key: &str, rule: CacheRule, reply: &[u8], now: Instant) {
        let mut replies = self.replies();
        if replies.len() >= self.entries_max && !replies.contains_key(key) {
            replies.retain(|_, kept| kept.until > now);
            // Nothing ran out: the oldest goes.
            let oldest = replies.iter().min_by_key(|(_, kept)| kept.since).map(|(key, _)| key.clone());
            if let Some(oldest) = oldest.filter(|_| replies.len() >= self.entries_max) {
                replies.remove(&oldest);
            }
        }
        let until = now + rule.ttl + rule.grace;
        replies.insert(key.to_owned(), OnShelf { reply: reply.into(), since: now, until });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const RULE: CacheRule = CacheRule { ttl: Duration::from_secs(10), grace: Duration::from_secs(20) };

    #[test]
    fn a_reply_is_kept_for_ttl_and_grace_and_no_longer() {
        let (shelf, now) = (MemoryShelf::new(2), Clock::system().unwrap().now());
        let at = |seconds| now + Duration::from_secs(seconds);
        shelf.put("a", RULE, b"one", at(0));
        assert_eq!(shelf.find("a", RULE, at(10)).unwrap().age, RULE.ttl);
        assert!(shelf.find("a", RULE, at(29)).is_some());
        assert!(shelf.find("a", RULE, at(30)).is_none());
        assert!(shelf.find("b", RULE, at(0)).is_none());
    }

    #[test]
    fn a_full_shelf_lets_go_of_what_ran_out_and_else_of_the_oldest() {
        let (shelf, now) = (MemoryShelf::new(2), Clock::system().unwrap().now());
        let at = |seconds| now + Duration::from_secs(seconds);
        shelf.put("a", RULE, b"1", at(0));
        shelf.put("b", RULE, b"2", at(1));
        shelf.put("c", RULE, b"3", at(2));
        let there = |key, seconds| shelf.find(key, RULE, at(seconds)).is_some();
        assert!(!there("a", 2) && there("b", 2) && there("c", 2));
        shelf.put("d", RULE, b"4", at(31));
        assert!(there("c", 31) && there("d", 31) && shelf.replies().len() == 2);
        shelf.put("d", RULE, b"5", at(32));
        assert_eq!(&*shelf.find("d", RULE, at(32)).unwrap().reply, b"5");
        assert!(there("c", 31), "the same key again pushes nothing out");
    }
}
