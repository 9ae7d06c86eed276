//! Counters and histograms for Prometheus.
