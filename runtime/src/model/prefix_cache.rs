//! Which prefixes are kept, and which have to go: a bounded map, least recently used first out.
//!
//! Keys are token ids, compared one by one; a cache belongs to one loaded member, so the member is not part of them.
//! Invariant: what it holds and what [`PrefixCache::make_room`] has granted never exceed the bound together, not even
//! for a moment; what does not fit alone is not kept. What the current pass uses stays until the next one starts.
//!
//! Absent on purpose: locks (the executor's thread is the only one that comes here) and what a state is.

use std::collections::HashMap;
use std::sync::Arc;

/// What an entry takes beside its states and its ids: a counted allocation, a list and a slot in the table.
const ENTRY_OVERHEAD_BYTES: u64 = 128;

/// Prefixes and what was kept of each, within a number of bytes.
pub(super) struct PrefixCache<V> {
    bound_bytes: u64,
    entries: HashMap<Arc<[u32]>, Entry<V>>,
    /// Of all entries.
    bytes: u64,
    /// Counts uses.
    clock: u64,
    /// What the clock said when the current pass started.
    pass: u64,
    evictions: u64,
}

struct Entry<V> {
    value: V,
    bytes: u64,
    last_used: u64,
}

/// Bytes of an entry whose states take `state_bytes`.
pub(super) fn entry_bytes(ids: &[u32], state_bytes: usize) -> u64 {
    (size_of_val(ids) + state_bytes) as u64 + ENTRY_OVERHEAD_BYTES
}

impl<V> PrefixCache<V> {
    /// An empty cache. One of zero bytes keeps nothing.
    pub(super) fn new(bound_bytes: u64) -> Self {
        Self { bound_bytes, entries: HashMap::new(), bytes: 0, clock: 0, pass: 0, evictions: 0 }
    }

    /// Whether it may ever keep anything.
    pub(super) fn is_on(&self) -> bool {
        self.bound_bytes > 0
    }

    /// Bytes of all entries.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Entries that had to go for others since the start.
    pub(super) fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Lets go of what the last pass has used.
    pub(super) fn start_pass(&mut self) {
        self.pass = self.clock;
    }

    /// Whether `ids` are there; then they stay until the next pass starts, and count as used.
    pub(super) fn hold(&mut self, ids: &[u32]) -> bool {
        let Some(entry) = self.entries.get_mut(ids) else { return false };
        entry.last_used = self.clock;
        self.clock += 1;
        true
    }

    /// What was kept of `ids`.
    pub(super) fn get(&self, ids: &[u32]) -> Option<&V> {
        self.entries.get(ids).map(|entry| &entry.value)
    }

    /// Drops the least recently used entries until `bytes` more fit. `false`, and nothing is dropped, if what the
    /// current pass uses leaves no room for them.
    pub(super) fn make_room(&mut self, bytes: u64) -> bool {
        let Some(most) = self.bound_bytes.checked_sub(bytes) else { return false };
        if self.bytes <= most {
            return true;
        }
        let is_held = |entry: &Entry<V>| entry.last_used >= self.pass;
        let held: u64 = self.entries.values().filter(|entry| is_held(entry)).map(|entry| entry.bytes).sum();
        if held > most {
            return false;
        }
        while self.bytes > most {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.last_used).map(|(ids, _)| Arc::clone(ids));
            let Some(entry) = oldest.and_then(|ids| self.entries.remove(&ids)) else { return false };
            self.bytes -= entry.bytes;
            self.evictions += 1;
        }
        true
    }

    /// Keeps `value` of `ids`, which are not there, in room that [`PrefixCache::make_room`] has granted.
    pub(super) fn insert(&mut self, ids: Arc<[u32]>, value: V, bytes: u64) {
        debug_assert!(self.bytes + bytes <= self.bound_bytes, "no room was made");
        let entry = Entry { value, bytes, last_used: self.clock };
        self.clock += 1;
        self.bytes += bytes;
        let before = self.entries.insert(ids, entry);
        debug_assert!(before.is_none(), "a prefix is kept twice");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache after one pass for each of `used`, which are kept where they were not: one id each, with its bytes.
    fn cache(bound_bytes: u64, used: &[(u32, u64)]) -> PrefixCache<u32> {
        let mut cache = PrefixCache::new(bound_bytes);
        for &(id, bytes) in used {
            cache.start_pass();
            keep(&mut cache, id, bytes);
        }
        cache.start_pass();
        cache
    }

    fn keep(cache: &mut PrefixCache<u32>, id: u32, bytes: u64) {
        if !cache.hold(&[id]) && cache.make_room(bytes) {
            cache.insert([id].into(), id, bytes);
        }
        assert!(cache.bytes() <= cache.bound_bytes);
        assert_eq!(cache.bytes(), cache.entries.values().map(|entry| entry.bytes).sum::<u64>());
    }

    fn kept(cache: &PrefixCache<u32>) -> Vec<u32> {
        let mut ids: Vec<u32> = cache.entries.values().map(|entry| entry.value).collect();
        ids.sort_unstable();
        ids
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let check = |used: &[(u32, u64)], expected: &[u32], evictions: u64| {
            let cache = cache(10, used);
            assert_eq!((kept(&cache), cache.evictions()), (expected.to_vec(), evictions), "{used:?}");
        };
        check(&[(1, 4), (2, 4)], &[1, 2], 0);
        check(&[(1, 4), (2, 4), (3, 4)], &[2, 3], 1);
        check(&[(1, 4), (2, 4), (1, 4), (3, 4)], &[1, 3], 1);
        check(&[(1, 2), (2, 2), (3, 2), (4, 2), (5, 2)], &[1, 2, 3, 4, 5], 0);
        check(&[(1, 2), (2, 2), (3, 2), (4, 2), (5, 2), (6, 5)], &[4, 5, 6], 3);
        check(&[(1, 4), (2, 10)], &[2], 1);
    }

    #[test]
    fn what_is_larger_than_the_bound_is_not_kept_and_costs_nobody_their_place() {
        let cache = cache(10, &[(1, 4), (2, 11)]);
        assert_eq!((kept(&cache), cache.evictions()), (vec![1], 0));
        assert!(!PrefixCache::<u32>::new(0).make_room(1));
        assert!(!PrefixCache::<u32>::new(0).is_on());
    }

    /// A pass reads what it holds while others are made room for.
    #[test]
    fn what_the_pass_uses_stays() {
        let mut cache = cache(10, &[(1, 4), (2, 4)]);
        assert!(cache.hold(&[1]));
        keep(&mut cache, 3, 7);
        assert_eq!((kept(&cache), cache.evictions()), (vec![1, 2], 0), "there is no room beside what is held");
        keep(&mut cache, 4, 6);
        assert_eq!(kept(&cache), [1, 4]);
        keep(&mut cache, 5, 1);
        assert_eq!(kept(&cache), [1, 4], "what was kept in this pass is used by it");
        cache.start_pass();
        keep(&mut cache, 5, 1);
        assert_eq!(kept(&cache), [4, 5]);
    }

    #[test]
    fn prefixes_are_told_apart_by_every_id() {
        let mut cache = PrefixCache::new(1000);
        for ids in [&[1, 2, 3][..], &[1, 2], &[1, 2, 4], &[0, 2, 3]] {
            assert!(!cache.hold(ids) && cache.get(ids).is_none());
            cache.insert(ids.into(), ids.to_vec(), 1);
            assert_eq!(cache.get(ids).map(Vec::as_slice), Some(ids));
        }
        assert_eq!(entry_bytes(&[1, 2, 3], 100), 112 + ENTRY_OVERHEAD_BYTES);
    }
}
