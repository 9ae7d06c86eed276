//! How fast an executor works, measured, and how long what it has will take.
//!
//! Only tokens that were computed count: what a prefix cache gives costs a device nothing, and says nothing of its pace.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How much of the past a batch of one second makes forgotten: the mean is of about the last ten seconds of work.
const MEMORY: Duration = Duration::from_secs(10);

/// Tokens per second of forward, as a mean in which older batches count less.
#[derive(Debug, Default)]
pub(super) struct Rate {
    /// An `f64`'s bits; 0 until the first batch.
    tokens_per_second: AtomicU64,
}

impl Rate {
    /// Counts a batch of which `tokens` were computed. Only the executor's own thread does.
    pub(super) fn observe(&self, tokens: u64, time: Duration) {
        let seconds = time.as_secs_f64();
        if tokens == 0 || seconds <= 0.0 {
            return;
        }
        let (old, new) = (self.tokens_per_second(), tokens as f64 / seconds);
        let kept = (-seconds / MEMORY.as_secs_f64()).exp();
        let mean = old.map_or(new, |old| old * kept + new * (1.0 - kept));
        self.tokens_per_second.store(mean.to_bits(), Ordering::Relaxed);
    }

    /// Counts a batch that was given up after `time` with `tokens` to compute, or fewer. It would have taken longer, so
    /// its pace is at most what these say: the mean may fall, not rise. Without this a mean that is too high would never
    /// be put right, where it makes batches that nobody waits for to the end.
    pub(super) fn observe_abandoned(&self, tokens: u64, time: Duration) {
        if self.time_for(tokens as usize).is_some_and(|expected| expected < time) {
            self.observe(tokens, time);
        }
    }

    /// The mean, once there is any.
    pub(super) fn tokens_per_second(&self) -> Option<f64> {
        Some(f64::from_bits(self.tokens_per_second.load(Ordering::Relaxed))).filter(|rate| *rate > 0.0)
    }

    /// Tokens that it computes in `time`, if anything was measured yet.
    pub(super) fn tokens_in(&self, time: Duration) -> Option<usize> {
        self.tokens_per_second().map(|rate| (rate * time.as_secs_f64()) as usize)
    }

    /// How long `tokens` will take, if anything was measured yet. Too long where some of them turn out to be kept in the
    /// prefix cache, which is known only when they run: whoever is told to come again later loses little.
    pub(super) fn time_for(&self, tokens: usize) -> Option<Duration> {
        self.tokens_per_second().and_then(|rate| Duration::try_from_secs_f64(tokens as f64 / rate).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_known_before_the_first_batch() {
        let rate = Rate::default();
        assert_eq!(rate.time_for(1000), None);
        rate.observe(0, Duration::from_secs(1));
        rate.observe(10, Duration::ZERO);
        assert_eq!(rate.time_for(1000), None);
        rate.observe(500, Duration::from_secs(2));
        assert_eq!(rate.time_for(1000), Some(Duration::from_secs(4)));
        assert_eq!(rate.tokens_in(Duration::from_secs(2)), Some(500));
    }

    #[test]
    fn a_change_of_pace_is_noticed_within_the_memory() {
        let rate = Rate::default();
        rate.observe(100, Duration::from_secs(1));
        for _ in 0..5 {
            rate.observe(1000, Duration::from_secs(1));
        }
        let after_five = rate.tokens_per_second().unwrap();
        assert!((400.0..600.0).contains(&after_five), "{after_five}");
        for _ in 0..60 {
            rate.observe(1000, Duration::from_secs(1));
        }
        assert!(rate.tokens_per_second().unwrap() > 990.0);
    }

    #[test]
    fn a_batch_that_was_given_up_only_lowers_the_mean() {
        let rate = Rate::default();
        rate.observe_abandoned(100, Duration::from_secs(1));
        assert_eq!(rate.tokens_per_second(), None, "it says only what the pace is not");
        rate.observe(1000, Duration::from_secs(1));
        rate.observe_abandoned(1000, Duration::from_millis(10));
        assert_eq!(rate.tokens_per_second(), Some(1000.0));
        for _ in 0..10 {
            rate.observe_abandoned(1000, Duration::from_secs(10));
        }
        let lowered = rate.tokens_per_second().unwrap();
        assert!((100.0..101.0).contains(&lowered), "{lowered}");
    }
}
