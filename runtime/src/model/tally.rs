//! What a forward has done: the numbers behind the metrics of an executor.

/// Counts since loading, and the present size of the prefix cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Tokens computed. A prefix that several trees of a pass share counts once.
    pub tokens_computed: u64,
    /// Tokens of prefixes whose states were kept, and which would have been computed otherwise; counted the same way.
    pub tokens_cached: u64,
    /// Distinct prefixes of a pass whose states were kept. This and the next count only while there is a cache in use.
    pub prefix_hits: u64,
    /// Distinct prefixes of a pass that had to be computed.
    pub prefix_misses: u64,
    /// Prefixes that were kept and had to go for others.
    pub prefix_evictions: u64,
    /// Bytes of the prefix cache now.
    pub prefix_cache_bytes: u64,
}
