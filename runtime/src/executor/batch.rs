//! Forming batches: which of the waiting jobs run together.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::job::Job;
use super::rate::Rate;
use crate::family::Plan;

/// A batch is answered as a whole: company beyond this time makes everybody wait, and no device is the faster for it.
const LONGEST: Duration = Duration::from_secs(2);
/// Company up to these tokens is worth its time on every device: weights are read once for all of them.
const FEWEST_TOKENS: usize = 512;

/// Tokens of the next batch of a device that has this rate, `most` of them if it is fast enough.
pub(super) fn budget(rate: &Rate, most: usize) -> usize {
    rate.tokens_in(LONGEST).unwrap_or(0).max(FEWEST_TOKENS).min(most)
}

/// Whole requests that run together.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) jobs: Vec<Job>,
    company: Company,
}

/// What is in a batch, as far as the next job's place in it depends on that.
#[derive(Default)]
struct Company {
    plans: usize,
    tokens: usize,
    /// Prefixes that are computed once, whoever shares them.
    prefixes: HashSet<Arc<[u32]>>,
    has_suspect: bool,
}

impl Batch {
    /// Whether `job` belongs to this batch, not to the next.
    pub(super) fn has_room(&self, job: &Job, batch_tokens: usize) -> bool {
        self.company.admits(&job.plan, job.is_suspect, batch_tokens)
    }

    /// Tokens that a device computes for it, if it has kept none of its prefixes.
    pub(super) fn tokens(&self) -> u64 {
        self.company.tokens as u64
    }

    pub(super) fn push(&mut self, mut job: Job) {
        job.load.leave_queue();
        self.company.add(&job.plan, job.is_suspect);
        self.jobs.push(job);
    }
}

impl Company {
    /// The first plan is always admitted, however large it is: it would never run otherwise. A suspect is alone.
    fn admits(&self, plan: &Plan, is_suspect: bool, batch_tokens: usize) -> bool {
        self.plans == 0
            || (!is_suspect && !self.has_suspect && self.tokens.saturating_add(self.tokens_of(plan)) <= batch_tokens)
    }

    fn add(&mut self, plan: &Plan, is_suspect: bool) {
        self.plans += 1;
        self.tokens = self.tokens.saturating_add(self.tokens_of(plan));
        self.prefixes.extend(plan.trees.iter().map(|tree| Arc::clone(&tree.prefix)));
        self.has_suspect |= is_suspect;
    }

    /// Tokens that `plan` would add.
    fn tokens_of(&self, plan: &Plan) -> usize {
        let mut own = HashSet::new();
        let prefixes = plan.trees.iter().map(|tree| &*tree.prefix);
        let new = prefixes.filter(|prefix| !self.prefixes.contains(*prefix) && own.insert(*prefix));
        new.map(<[u32]>::len).sum::<usize>() + plan.block_tokens()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervisor::fakes::plan;

    fn company(plans: &[Plan]) -> Company {
        let mut company = Company::default();
        for plan in plans {
            company.add(plan, false);
        }
        company
    }

    /// A slow device answers early rather than much at once; a fast one takes what the deployment allows.
    #[test]
    fn a_batch_is_as_large_as_its_device_is_fast() {
        let budget_at = |tokens_per_second| {
            let rate = Rate::default();
            rate.observe(tokens_per_second, Duration::from_secs(1));
            budget(&rate, 24_576)
        };
        assert_eq!(budget(&Rate::default(), 24_576), 512);
        assert_eq!([10, 250, 1000, 12_287, 100_000].map(budget_at), [512, 512, 2000, 24_574, 24_576]);
        assert_eq!(budget(&Rate::default(), 100), 100);
    }

    #[test]
    fn a_batch_is_filled_to_its_tokens_and_never_empty() {
        assert!(company(&[]).admits(&plan(11, 100), false, 10), "a job larger than a batch runs alone");
        assert!(company(&[plan(11, 4)]).admits(&plan(12, 6), false, 10));
        assert!(!company(&[plan(11, 4)]).admits(&plan(12, 7), false, 10));
        assert!(!company(&[plan(11, 100)]).admits(&plan(12, 2), false, 10));
    }

    #[test]
    fn a_prefix_that_is_there_costs_nothing_more() {
        let company = company(&[plan(11, 90)]);
        assert!(company.admits(&plan(11, 90), false, 100));
        assert!(!company.admits(&plan(12, 90), false, 100));
    }

    #[test]
    fn a_suspect_is_alone() {
        assert!(company(&[]).admits(&plan(11, 5), true, 100));
        assert!(!company(&[plan(11, 5)]).admits(&plan(12, 5), true, 100));
        let mut suspect = Company::default();
        suspect.add(&plan(11, 5), true);
        assert!(!suspect.admits(&plan(12, 5), false, 100));
    }
}
