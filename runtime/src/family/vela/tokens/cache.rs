//! The tokenizer's memory of texts that requests repeat.
//!
//! Invariant: never more than [`Bounds`] entries and bytes, whatever is asked in whatever order. Each shard keeps two
//! generations of half its share; when the young one is full it becomes the old one, and the old one goes in one
//! piece. So an insertion costs the same whether the cache is full or not, and what is asked again survives. A miss
//! under contention computes twice rather than waits.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Ids, PartEncoding};

/// Enough that threads seldom meet, few enough that each has room.
const SHARDS: usize = 16;
/// What an entry takes beside its text and its tokens: two counted allocations and a slot in the table.
const ENTRY_OVERHEAD_BYTES: usize = 128;

/// What a cache may hold in all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) entries: usize,
    pub(super) bytes: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds { entries: 32_768, bytes: 16 << 20 }
    }
}

/// What is remembered of a text. A clone shares it.
pub(super) trait Remembered: Clone {
    /// Of what it shares.
    fn shared_bytes(&self) -> usize;
}

impl Remembered for Ids {
    fn shared_bytes(&self) -> usize {
        size_of_val::<[u32]>(self)
    }
}

impl Remembered for Arc<PartEncoding> {
    fn shared_bytes(&self) -> usize {
        size_of_val(self.ids.as_slice()) + size_of_val(self.offsets.as_slice())
    }
}

/// Text to its tokens, bounded.
pub(super) struct TextCache<T> {
    shards: Vec<Mutex<Shard<T>>>,
    /// Keyed at random, so that no choice of texts crowds one shard.
    hasher: RandomState,
    /// Of one generation of one shard.
    generation: Bounds,
}

struct Shard<T> {
    young: Generation<T>,
    old: Generation<T>,
}

struct Generation<T> {
    entries: HashMap<Box<str>, T>,
    bytes: usize,
}

impl<T> Default for Generation<T> {
    fn default() -> Self {
        Generation { entries: HashMap::new(), bytes: 0 }
    }
}

impl<T: Remembered> TextCache<T> {
    pub(super) fn new(bounds: Bounds) -> Self {
        let share = 2 * SHARDS;
        let shard = || Shard { young: Generation::default(), old: Generation::default() };
        TextCache {
            shards: (0..SHARDS).map(|_| Mutex::new(shard())).collect(),
            hasher: RandomState::new(),
            generation: Bounds { entries: bounds.entries / share, bytes: bounds.bytes / share },
        }
    }

    /// What is remembered of a text, if anything; it then outlives the next change of generation.
    pub(super) fn get(&self, text: &str) -> Option<T> {
        let mut shard = self.shard(text);
        if let Some(ids) = shard.young.entries.get(text) {
            return Some(ids.clone());
        }
        let (key, ids) = shard.old.take(text)?;
        let found = ids.clone();
        let dropped = shard.insert(key, ids, self.generation);
        drop(shard);
        drop(dropped);
        Some(found)
    }

    /// Remembers a text. What alone exceeds a generation is not kept.
    pub(super) fn insert(&self, text: &str, ids: &T) {
        let dropped = self.shard(text).insert(text.into(), ids.clone(), self.generation);
        // The guard is gone: a generation is freed outside the lock.
        drop(dropped);
    }

    fn shard(&self, text: &str) -> MutexGuard<'_, Shard<T>> {
        let index = self.hasher.hash_one(text) as usize % SHARDS;
        // A panic while it was held leaves at worst an entry uncounted for its bytes; nothing there can panic.
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Entries and bytes that are held now.
    #[cfg(test)]
    pub(super) fn held(&self) -> Bounds {
        let mut held = Bounds { entries: 0, bytes: 0 };
        for shard in &self.shards {
            let shard = shard.lock().unwrap();
            for generation in [&shard.young, &shard.old] {
                held.entries += generation.entries.len();
                held.bytes += generation.entries.iter().map(|(text, ids)| entry_bytes(text, ids)).sum::<usize>();
            }
        }
        held
    }
}

impl<T: Remembered> Shard<T> {
    /// Puts an entry among the young; the generation that no longer has room is the caller's to drop.
    fn insert(&mut self, text: Box<str>, ids: T, bounds: Bounds) -> Option<Generation<T>> {
        let bytes = entry_bytes(&text, &ids);
        if bytes > bounds.bytes || bounds.entries == 0 {
            return None;
        }
        let full = self.young.entries.len() >= bounds.entries || self.young.bytes + bytes > bounds.bytes;
        let dropped = full.then(|| mem::replace(&mut self.old, mem::take(&mut self.young)));
        if self.young.entries.insert(text, ids).is_none() {
            self.young.bytes += bytes;
        }
        dropped
    }
}

impl<T: Remembered> Generation<T> {
    fn take(&mut self, text: &str) -> Option<(Box<str>, T)> {
        let (text, ids) = self.entries.remove_entry(text)?;
        self.bytes -= entry_bytes(&text, &ids);
        Some((text, ids))
    }
}

fn entry_bytes(text: &str, ids: &impl Remembered) -> usize {
    ENTRY_OVERHEAD_BYTES + text.len() + ids.shared_bytes()
}
