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
    /// This many failures in a row, each after too short a service, are a quarantine.
    pub quarantine_after: u32,
    /// How long a quarantine lasts, unless the deployment is loaded again before.
    pub quarantine: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            first: Duration::from_millis(250),
            longest: Duration::from_mins(1),
            forgiven_after: Duration::from_mins(1),
            quarantine_after: 10,
            quarantine: Duration::from_mins(10),
        }
    }
}

/// One executor's failures in a row.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

/// What follows a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Build again after a pause.
    Again(Duration),
    /// It fails every time: a quarantine.
    Quarantine,
}

impl Backoff {
    /// What follows the failure of an executor that had served for `served`. After a quarantine it starts anew.
    pub(super) fn after_failure(&mut self, served: Duration, policy: &Policy) -> Verdict {
        if served >= policy.forgiven_after {
            self.failures = 0;
        }
        let pause = policy.first.saturating_mul(2u32.saturating_pow(self.failures));
        self.failures = self.failures.saturating_add(1);
        if self.failures >= policy.quarantine_after {
            self.failures = 0;
            return Verdict::Quarantine;
        }
        Verdict::Again(pause.min(policy.longest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Policy = Policy {
        first: Duration::from_secs(1),
        longest: Duration::from_secs(5),
        forgiven_after: Duration::from_mins(1),
        quarantine_after: 6,
        quarantine: Duration::from_mins(1),
    };

    /// Seconds of pause; none for a quarantine.
    fn pauses(served_secs: &[u64]) -> Vec<Option<u64>> {
        let mut backoff = Backoff::default();
        let mut verdict = |s: &u64| match backoff.after_failure(Duration::from_secs(*s), &POLICY) {
            Verdict::Again(pause) => Some(pause.as_secs()),
            Verdict::Quarantine => None,
        };
        served_secs.iter().map(&mut verdict).collect()
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_end_in_a_quarantine() {
        assert_eq!(pauses(&[0, 0, 0, 0, 0, 0, 0]), [Some(1), Some(2), Some(4), Some(5), Some(5), None, Some(1)]);
    }

    #[test]
    fn only_long_service_is_forgiven() {
        assert_eq!(pauses(&[0, 59, 60, 0]), [Some(1), Some(2), Some(1), Some(2)]);
    }

    #[test]
    fn thousands_of_failures_do_not_overflow() {
        let mut backoff = Backoff { failures: u32::MAX - 1 };
        let policy = Policy { quarantine_after: u32::MAX, ..POLICY };
        assert_eq!(backoff.after_failure(Duration::ZERO, &policy), Verdict::Quarantine);
        let mut backoff = Backoff { failures: 1000 };
        assert_eq!(backoff.after_failure(Duration::ZERO, &policy), Verdict::Again(POLICY.longest));
    }
}
