//! Forming batches: which of the waiting jobs run together.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::job::Job;
use super::rate::Rate;
use crate::family::Plan;

/// A batch is answered as a whole: nobody waits longer than this for company, and no device is the faster for more.
const LONGEST_COMPANY: Duration = Duration::from_secs(2);
/// Company of these tokens is worth its time on every device: weights are read once for all of them.
const LEAST_COMPANY: usize = 512;

/// Tokens that the next batch may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Budget {
    /// In all.
    most: usize,
    /// Beyond those of its first job.
    company: usize,
}

impl Budget {
    /// Of a device with this rate, under a deployment that allows `most`.
    pub(super) fn of(rate: &Rate, most: usize) -> Self {
        Budget { most, company: rate.tokens_in(LONGEST_COMPANY).unwrap_or(0).max(LEAST_COMPANY) }
    }
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
    /// Of the job that came first.
    first_tokens: usize,
    /// Prefixes that are computed once, whoever shares them.
    prefixes: HashSet<Arc<[u32]>>,
    has_suspect: bool,
}

impl Batch {
    /// Whether `job` belongs to this batch, not to the next.
    pub(super) fn has_room(&self, job: &Job, budget: Budget) -> bool {
        self.company.admits(&job.plan, job.is_suspect, budget)
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
    fn admits(&self, plan: &Plan, is_suspect: bool, budget: Budget) -> bool {
        let fits = || {
            let tokens = self.tokens.saturating_add(self.tokens_of(plan));
            tokens <= budget.most && tokens - self.first_tokens <= budget.company
        };
        self.plans == 0 || (!is_suspect && !self.has_suspect && fits())
    }

    fn add(&mut self, plan: &Plan, is_suspect: bool) {
        self.tokens = self.tokens.saturating_add(self.tokens_of(plan));
        if self.plans == 0 {
            self.first_tokens = self.tokens;
        }
        self.plans += 1;
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

    const fn most(most: usize) -> Budget {
        Budget { most, company: usize::MAX }
    }

    /// A slow device answers early rather than much at once; a fast one takes what the deployment allows.
    #[test]
    fn company_is_as_large_as_its_device_is_fast() {
        let company_at = |tokens_per_second| {
            let rate = Rate::default();
            rate.observe(tokens_per_second, Duration::from_secs(1));
            Budget::of(&rate, 24_576).company
        };
        assert_eq!(Budget::of(&Rate::default(), 24_576), Budget { most: 24_576, company: 512 });
        assert_eq!([10, 250, 1000, 100_000].map(company_at), [512, 512, 2000, 200_000]);
    }

    /// However long the first one is, others that add little to it run along.
    #[test]
    fn company_is_counted_beyond_the_first() {
        let budget = Budget { most: 1000, company: 10 };
        let company = company(&[plan(11, 900), plan(12, 4)]);
        assert!(company.admits(&plan(13, 6), false, budget));
        assert!(!company.admits(&plan(13, 7), false, budget));
        assert!(company.admits(&plan(13, 96), false, most(1000)));
        assert!(!company.admits(&plan(13, 97), false, most(1000)));
    }

    #[test]
    fn a_batch_is_filled_to_its_tokens_and_never_empty() {
        assert!(company(&[]).admits(&plan(11, 100), false, most(10)), "a job larger than a batch runs alone");
        assert!(company(&[plan(11, 4)]).admits(&plan(12, 6), false, most(10)));
        assert!(!company(&[plan(11, 4)]).admits(&plan(12, 7), false, most(10)));
        assert!(!company(&[plan(11, 100)]).admits(&plan(12, 2), false, most(10)));
    }

    #[test]
    fn a_prefix_that_is_there_costs_nothing_more() {
        let company = company(&[plan(11, 90)]);
        assert!(company.admits(&plan(11, 90), false, most(100)));
        assert!(!company.admits(&plan(12, 90), false, most(100)));
    }

    #[test]
    fn a_suspect_is_alone() {
        assert!(company(&[]).admits(&plan(11, 5), true, most(100)));
        assert!(!company(&[plan(11, 5)]).admits(&plan(12, 5), true, most(100)));
        let mut suspect = Company::default();
        suspect.add(&plan(11, 5), true);
        assert!(!suspect.admits(&plan(12, 5), false, most(100)));
    }
}
