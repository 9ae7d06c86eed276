//! How long a failed executor waits before it is built again.

use std::time::Duration;

/// The pauses between an executor's failures and its next builds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// After the first failure; doubled by each further one.
    pub first: Duration,
    pub longest: Duration,
    /// Serving for this long makes the earlier failures forgotten.
    pub forgiven_after: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            first: Duration::from_millis(250),
            longest: Duration::from_mins(1),
            forgiven_after: Duration::from_mins(1),
        }
    }
}

/// One executor's failures in a row.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The pause after a failure of an executor that had served for `served`.
    pub(super) fn after_failure(&mut self, served: Duration, policy: &Policy) -> Duration {
        if served >= policy.forgiven_after {
            self.failures = 0;
        }
        let pause = policy.first.saturating_mul(2u32.saturating_pow(self.failures));
        self.failures = self.failures.saturating_add(1);
        pause.min(policy.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Policy = Policy {
        first: Duration::from_secs(1),
        longest: Duration::from_secs(5),
        forgiven_after: Duration::from_mins(1),
    };

    fn pauses(served_secs: &[u64]) -> Vec<u64> {
        let mut backoff = Backoff::default();
        served_secs.iter().map(|s| backoff.after_failure(Duration::from_secs(*s), &POLICY).as_secs()).collect()
    }

    #[test]
    fn pauses_double_up_to_the_longest() {
        assert_eq!(pauses(&[0, 0, 0, 0, 0]), [1, 2, 4, 5, 5]);
    }

    #[test]
    fn only_long_service_is_forgiven() {
        assert_eq!(pauses(&[0, 59, 60, 0]), [1, 2, 1, 2]);
    }

    #[test]
    fn thousands_of_failures_do_not_overflow() {
        let mut backoff = Backoff { failures: u32::MAX };
        assert_eq!(backoff.after_failure(Duration::ZERO, &POLICY), POLICY.longest);
        assert_eq!(backoff.after_failure(Duration::ZERO, &POLICY), POLICY.longest);
    }
}
