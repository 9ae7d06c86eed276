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
    pub hits: IntCounter,
    pub misses: IntCounter,
    pub evictions: IntCounter,
    pub bytes: IntGauge,
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
        self.bytes.add(bytes(after) - bytes(before));
    }

    /// Says that a cache is gone with its forward, whose last tally was `last`. Another executor of the same member and
    /// device may have one by then: what they keep is added up.
    pub fn dropped(&self, last: &Tally) {
        self.bytes.sub(bytes(last));
    }
}

fn bytes(tally: &Tally) -> i64 {
    tally.prefix_cache_bytes.try_into().unwrap_or(i64::MAX)
}
