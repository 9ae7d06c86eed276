//! The prefix caches' families, and the children of one executor's cache.

use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};

use super::{counters, gauges};
use crate::model::Tally;

/// The families, of every executor's cache.
pub(super) struct PrefixCaches {
    hits: IntCounterVec,
    misses: IntCounterVec,
    evictions: IntCounterVec,
    bytes: IntGaugeVec,
}

/// One executor's cache.
#[derive(Clone)]
pub struct PrefixCacheMetrics {
    hits: IntCounter,
    misses: IntCounter,
    evictions: IntCounter,
    bytes: IntGauge,
}

impl PrefixCaches {
    pub(super) fn register(registry: &Registry) -> Self {
        let place = ["member", "device"];
        let counters = |name, help| counters(registry, name, help, &place);
        PrefixCaches {
            hits: counters("synod_prefix_cache_hits_total", "Prefixes of a pass that the cache had."),
            misses: counters("synod_prefix_cache_misses_total", "Prefixes of a pass that the cache did not have."),
            evictions: counters("synod_prefix_cache_evictions_total", "Prefixes dropped to make room for others."),
            bytes: gauges(registry, "synod_prefix_cache_bytes", "Bytes of the prefixes that are kept.", &place),
        }
    }

    pub(super) fn of(&self, place: &[&str; 2]) -> PrefixCacheMetrics {
        PrefixCacheMetrics {
            hits: self.hits.with_label_values(place),
            misses: self.misses.with_label_values(place),
            evictions: self.evictions.with_label_values(place),
            bytes: self.bytes.with_label_values(place),
        }
    }
}

impl PrefixCacheMetrics {
    /// Counts what has happened between two tallies of one forward.
    pub(super) fn count(&self, before: &Tally, after: &Tally) {
        self.hits.inc_by(after.prefix_hits - before.prefix_hits);
        self.misses.inc_by(after.prefix_misses - before.prefix_misses);
        self.evictions.inc_by(after.prefix_evictions - before.prefix_evictions);
        self.bytes.set(after.prefix_cache_bytes.try_into().unwrap_or(i64::MAX));
    }

    /// Says that the cache is gone.
    pub fn dropped(&self) {
        self.bytes.set(0);
    }
}
