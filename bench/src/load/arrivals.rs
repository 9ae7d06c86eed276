//! When requests are due.

use std::time::Duration;

use clap::ValueEnum;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// How the time between two requests varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Arrivals {
    /// All the same.
    Constant,
    /// Exponentially distributed: callers that know nothing of each other (a Poisson process).
    Poisson,
}

impl Arrivals {
    /// The times at which `rate` requests per second are due, without end.
    pub(super) fn times(self, rate: f64, seed: u64) -> impl Iterator<Item = Duration> {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut next = 0.0;
        std::iter::repeat_with(move || {
            let time = Duration::try_from_secs_f64(next / rate).unwrap_or(Duration::MAX);
            next += match self {
                Arrivals::Constant => 1.0,
                // In (0, 1], so that its logarithm is finite.
                Arrivals::Poisson => -(1.0 - rng.random::<f64>()).ln(),
            };
            time
        })
    }

    /// Its name on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Arrivals::Constant => "constant",
            Arrivals::Poisson => "poisson",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constant_arrivals_are_evenly_spaced() {
        let times: Vec<u128> = Arrivals::Constant.times(40.0, 0).take(4).map(|time| time.as_millis()).collect();
        assert_eq!(times, [0, 25, 50, 75]);
    }

    /// Mean and variance of an exponential distribution are its parameter's and that one's square.
    #[test]
    fn poisson_gaps_are_exponential_and_follow_the_seed() {
        let seed = rand::rng().random();
        println!("seed {seed}");
        let times = |seed| Arrivals::Poisson.times(50.0, seed).take(20_001).collect::<Vec<_>>();
        let gaps: Vec<f64> =
            times(seed).windows(2).map(|pair| (pair[1].as_secs_f64() - pair[0].as_secs_f64()) * 50.0).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((0.95..1.05).contains(&mean) && (0.85..1.15).contains(&variance), "{mean}, {variance}");
        assert_eq!(times(seed), times(seed));
        assert_ne!(times(seed), times(seed ^ 1));
    }

    #[test]
    fn the_lowest_rate_has_one_request() {
        let times: Vec<Duration> = Arrivals::Constant.times(f64::MIN_POSITIVE, 0).take(2).collect();
        assert_eq!(times, [Duration::ZERO, Duration::MAX]);
    }
}
