//! Forming batches: which of the waiting jobs run together, and which are wanted at all.

use std::time::Instant;

use super::Job;

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
    /// Whether `job` belongs to this batch, not to the next.
    pub(super) fn has_room(&self, job: &Job, batch_tokens: usize) -> bool {
        joins(self.jobs.len(), self.tokens, job.tokens, batch_tokens)
    }

    pub(super) fn push(&mut self, mut job: Job) {
        job.load.leave_queue();
        self.tokens += job.tokens;
        self.jobs.push(job);
    }
}

impl Job {
    /// Whether somebody still waits for it at `now`.
    pub(super) fn is_wanted(&self, now: Instant) -> bool {
        now < self.deadline && !self.reply.is_closed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_filled_to_its_tokens_and_never_empty() {
        assert!(joins(0, 0, 100, 10), "a job larger than a batch runs alone");
        assert!(joins(1, 4, 6, 10));
        assert!(!joins(1, 4, 7, 10));
        assert!(!joins(1, 100, 1, 10));
        assert!(!joins(1, usize::MAX, 1, 10), "sizes do not wrap");
    }
}
