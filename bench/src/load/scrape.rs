//! The server's own account, from its metrics.

/// How a server counts the end of a decision request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Answered,
    Rejected,
    Cancelled,
    Failed,
}

impl Outcome {
    const ALL: [Outcome; 4] = [Outcome::Answered, Outcome::Rejected, Outcome::Cancelled, Outcome::Failed];

    /// As docs/http.md has it: 200 is an answer, what fails after it was taken has failed, the rest was refused before.
    pub(super) fn of(status: u16, code: &str) -> Self {
        match (status, code) {
            (200, _) => Outcome::Answered,
            (400, "body_incomplete") => Outcome::Cancelled,
            (503, _) | (504, "body_timeout") => Outcome::Rejected,
            (500.., _) => Outcome::Failed,
            _ => Outcome::Rejected,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Outcome::Answered => "answered",
            Outcome::Rejected => "rejected",
            Outcome::Cancelled => "cancelled",
            Outcome::Failed => "failed",
        }
    }
}

/// Counts by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcomes([u64; Outcome::ALL.len()]);

impl Outcomes {
    pub(super) fn add(&mut self, outcome: Outcome) {
        self.0[outcome as usize] += 1;
    }

    /// What was counted since `before`.
    fn since(self, before: Outcomes) -> Self {
        Outcomes(std::array::from_fn(|index| self.0[index].saturating_sub(before.0[index])))
    }

    /// Names and counts.
    pub fn entries(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Outcome::ALL.into_iter().map(|outcome| (outcome.name(), self.0[outcome as usize]))
    }

    /// Why a server that counted this since the load began does not agree with clients that saw `seen`, and lost
    /// `lost` requests otherwise: those it may have counted as cancelled, answered too late, or never had.
    pub(super) fn disagreement(&self, seen: &Outcomes, lost: u64) -> Option<String> {
        let mut unseen = 0;
        for ((name, counted), (_, seen)) in self.entries().zip(seen.entries()) {
            if counted < seen {
                return Some(format!(
                    "synod_outcomes_total: expected {seen} {name} as the clients saw, found {counted}"
                ));
            }
            unseen += counted - seen;
        }
        (unseen > lost).then(|| {
            format!("synod_outcomes_total: expected at most {lost} that no client saw, found {unseen}: {self:?} for {seen:?}")
        })
    }
}

/// One reading of the metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Scrape {
    outcomes: Outcomes,
    pub(super) inflight: u64,
    pub(super) resident_bytes: Option<u64>,
}

impl Scrape {
    pub(super) fn read(text: &str) -> Self {
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
            line.trim().parse::<f64>().ok().map(|value| value as u64)
        };
        let outcome = |outcome: Outcome| value(&format!(r#"synod_outcomes_total{{outcome="{}"}}"#, outcome.name()));
        Scrape {
            outcomes: Outcomes(Outcome::ALL.map(|it| outcome(it).unwrap_or(0))),
            inflight: value("synod_inflight").unwrap_or(0),
            resident_bytes: value("process_resident_memory_bytes"),
        }
    }

    /// What was counted since `before`.
    pub(super) fn outcomes_since(&self, before: &Scrape) -> Outcomes {
        self.outcomes.since(before.outcomes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counters_are_read() {
        let text = "# TYPE synod_outcomes_total counter\nsynod_outcomes_total{outcome=\"answered\"} 12\n\
                    synod_outcomes_total{outcome=\"failed\"} 1\nsynod_inflight 3\nprocess_resident_memory_bytes 1.5e9\n";
        let scrape = Scrape::read(text);
        assert_eq!(
            scrape,
            Scrape { outcomes: Outcomes([12, 0, 0, 1]), inflight: 3, resident_bytes: Some(1_500_000_000) }
        );
    }

    #[test]
    fn every_request_must_be_counted_once_and_as_it_was_seen() {
        let agrees = |counted, seen, lost| Outcomes(counted).disagreement(&Outcomes(seen), lost).is_none();
        assert!(agrees([5, 2, 0, 1], [5, 2, 0, 1], 0));
        assert!(agrees([5, 2, 1, 1], [5, 2, 0, 1], 2), "one was cancelled, one never came");
        assert!(agrees([6, 2, 0, 1], [5, 2, 0, 1], 1), "an answer that no client waited for");
        assert!(!agrees([4, 2, 0, 1], [5, 2, 0, 1], 0), "one is not counted");
        assert!(!agrees([5, 1, 0, 2], [5, 2, 0, 1], 9), "one is counted as another");
        assert!(!agrees([6, 2, 0, 1], [5, 2, 0, 1], 0), "one is counted twice");
    }
}
