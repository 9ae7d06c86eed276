//! Forming batches: which of the waiting jobs run together, and which never run.

use std::time::Instant;

use super::Job;

/// What becomes of a job when a batch is formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Run,
    /// Whoever submitted it no longer waits.
    Cancelled,
    /// Its deadline passed.
    Expired,
}

/// Whoever waited gives up at the deadline, so a job past it is expired whether or not somebody still waits: only a
/// client that left before is counted as gone.
pub(super) fn fate(gone: bool, deadline: Instant, now: Instant) -> Fate {
    match (now >= deadline, gone) {
        (true, _) => Fate::Expired,
        (false, true) => Fate::Cancelled,
        (false, false) => Fate::Run,
    }
}

/// Whether a job of `tokens` joins a batch that has `taken` tokens of `jobs` jobs. The first one always does, however
/// large it is: it would never run otherwise.
pub(super) fn joins(jobs: usize, taken: usize, tokens: usize, batch_tokens: usize) -> bool {
    jobs == 0 || taken.saturating_add(tokens) <= batch_tokens
}

/// Whole requests that run together.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) jobs: Vec<Job>,
    pub(super) tokens: usize,
}

impl Batch {
    /// Whether anybody still waits for any of it.
    pub(super) fn is_wanted(jobs: &[Job]) -> bool {
        let now = Instant::now();
        jobs.iter().any(|job| fate(job.reply.is_closed(), job.deadline, now) == Fate::Run)
    }

    /// Takes `job`, or gives it back when it belongs to the next batch.
    pub(super) fn offer(&mut self, job: Job, batch_tokens: usize) -> Result<(), Job> {
        if !joins(self.jobs.len(), self.tokens, job.tokens, batch_tokens) {
            return Err(job);
        }
        self.tokens += job.tokens;
        self.jobs.push(job);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_job_runs_only_for_someone_who_waits_in_time() {
        let now = Instant::now();
        let later = now + Duration::from_millis(1);
        assert_eq!(fate(false, later, now), Fate::Run);
        assert_eq!(fate(false, now, now), Fate::Expired);
        assert_eq!(fate(true, later, now), Fate::Cancelled);
        assert_eq!(fate(true, now, later), Fate::Expired);
    }

    #[test]
    fn a_batch_is_filled_to_its_tokens_and_never_empty() {
        assert!(joins(0, 0, 100, 10), "a job larger than a batch runs alone");
        assert!(joins(1, 4, 6, 10));
        assert!(!joins(1, 4, 7, 10));
        assert!(!joins(1, 100, 1, 10));
        assert!(!joins(1, usize::MAX, 1, 10), "sizes do not wrap");
    }
}
