//! A caller's rate: a token bucket, one token a request.
//!
//! It holds a second's worth of requests, and one at least: a caller that was quiet may send as many at once, and in
//! any stretch of time sends at most that many more than the rate. Who is refused spends nothing, so that waiting as
//! long as the refusal says always helps.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The longest wait that a refusal names, where a rate is so low that it would be longer.
const LONGEST_WAIT: Duration = Duration::from_hours(24);

/// What is left of a caller's rate. The rate itself may change from call to call, as it does when a deployment is
/// loaded again.
#[derive(Debug)]
pub(super) struct Bucket(Mutex<Level>);

#[derive(Debug)]
struct Level {
    tokens: f64,
    /// When `tokens` were counted.
    at: Option<Instant>,
}

/// Full, whatever the rate.
impl Default for Bucket {
    fn default() -> Self {
        Bucket(Mutex::new(Level { tokens: f64::INFINITY, at: None }))
    }
}

impl Bucket {
    /// Takes a request's token at `now`.
    ///
    /// # Errors
    /// How long it takes at `rate` (requests per second, above 0) until there is one.
    pub(super) fn take(&self, rate: f64, now: Instant) -> Result<(), Duration> {
        // Nothing can panic while it is locked.
        let mut level = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed = level.at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        level.tokens = (level.tokens + elapsed.as_secs_f64() * rate).min(rate.max(1.0));
        level.at = level.at.max(Some(now));
        if level.tokens < 1.0 {
            return Err(wait((1.0 - level.tokens) / rate));
        }
        level.tokens -= 1.0;
        Ok(())
    }
}

/// In whole milliseconds, up: who comes back by then must not be refused for a rounding.
fn wait(seconds: f64) -> Duration {
    let milliseconds = (seconds * 1e3).ceil().max(1.0);
    Duration::from_millis(milliseconds as u64).min(LONGEST_WAIT)
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    /// How many requests pass at once.
    fn burst(bucket: &Bucket, rate: f64, now: Instant) -> usize {
        (0..1000).take_while(|_| bucket.take(rate, now).is_ok()).count()
    }

    #[test]
    fn a_second_of_the_rate_passes_at_once_and_one_at_least() {
        for (rate, expected) in [(200.0, 200), (2.5, 2), (1.0, 1), (0.01, 1), (f64::MIN_POSITIVE, 1)] {
            assert_eq!(burst(&Bucket::default(), rate, Instant::now()), expected, "{rate}");
        }
    }

    #[test]
    fn a_refusal_says_when_there_is_a_token_and_no_later() {
        let start = Instant::now();
        for (rate, milliseconds) in [(4.0, 250), (3.0, 334), (0.5, 2000), (1e-300, 86_400_000)] {
            let bucket = Bucket::default();
            burst(&bucket, rate, start);
            let wait = bucket.take(rate, start).unwrap_err();
            let too_early = wait.saturating_sub(Duration::from_millis(2));
            assert_eq!(wait, Duration::from_millis(milliseconds), "{rate}");
            if rate > 0.1 {
                assert!(bucket.take(rate, start + too_early).is_err(), "{rate}");
                assert_eq!(bucket.take(rate, start + wait), Ok(()), "{rate}");
            }
        }
    }

    /// Clocks of two threads are read in one order and used in another.
    #[test]
    fn an_earlier_time_fills_nothing_twice() {
        let (bucket, start) = (Bucket::default(), Instant::now());
        let later = start + Duration::from_secs(10);
        assert_eq!(burst(&bucket, 2.0, later), 2);
        assert!(bucket.take(2.0, start).is_err());
        assert!(bucket.take(2.0, later).is_err());
    }

    #[test]
    fn another_rate_fills_from_what_was_left() {
        let (bucket, start) = (Bucket::default(), Instant::now());
        burst(&bucket, 10.0, start);
        assert_eq!(burst(&bucket, 100.0, start), 0, "a new rate brings no tokens");
        let later = start + Duration::from_secs(5);
        assert_eq!(burst(&bucket, 3.0, later), 3, "nor keeps more than its own second");
    }

    /// However callers time themselves, no stretch has more than the rate allows.
    #[test]
    fn no_stretch_of_time_has_more_than_the_rate_and_a_burst() {
        let seed = rand::rng().random();
        println!("seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        let (bucket, rate, start) = (Bucket::default(), 7.5, Instant::now());
        let (mut now, mut passed) = (Duration::ZERO, Vec::new());
        for _ in 0..5000 {
            now += Duration::from_micros(if rng.random_ratio(1, 50) { 900_000 } else { rng.random_range(0..100_000) });
            if bucket.take(rate, start + now).is_ok() {
                passed.push(now.as_secs_f64());
            }
        }
        for (first, begin) in passed.iter().enumerate() {
            for (count, end) in passed[first..].iter().enumerate() {
                assert!(count as f64 + 1.0 <= rate * (end - begin) + rate + 1e-6, "{count} from {begin} to {end}");
            }
        }
        assert!(passed.len() > 1000, "too little passed: {}", passed.len());
    }
}
