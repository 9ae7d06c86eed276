//! A piece of work, and everybody who waits for it.
//!
//! Several requests that ask the same of the same member wait for one computation: the first one's job. Invariant:
//! every waiter gets exactly one reply, and a job that somebody may still join is neither answered nor withdrawn.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::handle::Counted;
use super::lanes::Lane;
use crate::family::{Logits, Plan};

/// What a request occupies elsewhere. It is dropped when nothing of the request is left here; who made it decides
/// what that means.
pub type Occupied = Arc<dyn Any + Send + Sync>;

/// What is submitted to an executor.
#[derive(Clone)]
pub struct Work {
    pub plan: Arc<Plan>,
    pub lane: Lane,
    /// When its request came: the oldest of a lane is computed first.
    pub received: Instant,
    pub deadline: Instant,
    pub occupied: Occupied,
    /// It was in a batch that brought an executor down. It has no company until it is known not to be the cause.
    pub is_suspect: bool,
}

/// Work that waits or runs.
pub(super) struct Job {
    pub(super) plan: Arc<Plan>,
    pub(super) tokens: usize,
    pub(super) is_suspect: bool,
    pub(super) waiters: Arc<Waiters>,
    pub(super) submitted: Instant,
    /// Un-counts the job's tokens wherever it ends.
    pub(super) load: Counted,
}

/// A job's logits, and how long they took.
#[derive(Debug, Default)]
pub struct Computed {
    /// `[tree][block]` in the order of the plan.
    pub logits: Vec<Vec<Logits>>,
    /// From submission to the start of the batch.
    pub queue: Duration,
    /// Of the whole batch that it was computed in.
    pub forward: Duration,
}

/// Why a job has no logits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// This job's trees are to blame. `reason` is for the log: it holds numbers and names of tensors, never a
    /// text of the request.
    #[error("inference failed: {reason}")]
    Inference { reason: String },
    /// The deadline passed while the job waited or ran.
    #[error("the deadline passed")]
    Deadline,
    /// The executor went down before it had computed the job, or is down; another one may do it.
    #[error("the executor is down")]
    Lost {
        /// Whether this job ran when the executor went down.
        is_suspect: bool,
    },
}

pub(super) type Answer = Result<Arc<Computed>, Failure>;

/// Those who wait for a job.
pub(super) struct Waiters {
    state: Mutex<State>,
}

struct State {
    phase: Phase,
    waiting: Vec<Waiter>,
    next_number: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Queued,
    Running,
    /// Answered, or withdrawn because everybody had left.
    Over,
}

struct Waiter {
    number: u64,
    deadline: Instant,
    reply: oneshot::Sender<Answer>,
    /// What the waiting request holds, given back before it is answered.
    occupied: Occupied,
}

/// One waiter's end.
pub(super) struct Waiting {
    pub(super) receiver: oneshot::Receiver<Answer>,
    number: u64,
}

impl Waiters {
    /// A queued job's, with its first waiter.
    pub(super) fn new(deadline: Instant, occupied: Occupied) -> (Arc<Self>, Waiting) {
        let state = Mutex::new(State { phase: Phase::Queued, waiting: Vec::new(), next_number: 0 });
        let waiters = Waiters { state };
        let first = waiters.state().add(deadline, occupied);
        (Arc::new(waiters), first)
    }

    /// Nothing can panic while it is locked.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a waiter, unless the job is over.
    pub(super) fn join(&self, deadline: Instant, occupied: Occupied) -> Option<Waiting> {
        let mut state = self.state();
        (state.phase != Phase::Over).then(|| state.add(deadline, occupied))
    }

    /// Removes a waiter. True if it was the last one of a job that still waits: nobody can join that any more.
    pub(super) fn leave(&self, waiting: &Waiting) -> bool {
        let mut state = self.state();
        state.waiting.retain(|waiter| waiter.number != waiting.number);
        let is_withdrawn = state.waiting.is_empty() && state.phase == Phase::Queued;
        if is_withdrawn {
            state.phase = Phase::Over;
        }
        is_withdrawn
    }

    /// Starts the job, if anybody wants it at `now`. If not, it is over.
    pub(super) fn begin(&self, now: Instant) -> bool {
        let mut state = self.state();
        let is_wanted = state.is_wanted(now);
        state.phase = if is_wanted { Phase::Running } else { Phase::Over };
        is_wanted
    }

    /// Whether anybody still waits at `now`.
    pub(super) fn is_wanted(&self, now: Instant) -> bool {
        self.state().is_wanted(now)
    }

    pub(super) fn is_running(&self) -> bool {
        self.state().phase == Phase::Running
    }

    /// Whether the job is over, or nobody waits for it: one that runs may still be joined then, until it is abandoned.
    pub(super) fn is_deserted(&self) -> bool {
        let state = self.state();
        state.phase == Phase::Over || state.waiting.is_empty()
    }

    /// Ends the job: everybody gets what `answer` says of their deadline.
    pub(super) fn end(&self, answer: impl Fn(Instant) -> Answer) {
        let waiting = {
            let mut state = self.state();
            state.phase = Phase::Over;
            std::mem::take(&mut state.waiting)
        };
        for Waiter { deadline, reply, occupied, .. } in waiting {
            drop(occupied);
            // Who left does not read it.
            let _ = reply.send(answer(deadline));
        }
    }
}

impl State {
    fn add(&mut self, deadline: Instant, occupied: Occupied) -> Waiting {
        let (reply, receiver) = oneshot::channel();
        let number = self.next_number;
        self.next_number += 1;
        self.waiting.push(Waiter { number, deadline, reply, occupied });
        Waiting { receiver, number }
    }

    fn is_wanted(&self, now: Instant) -> bool {
        self.phase != Phase::Over && self.waiting.iter().any(|waiter| now < waiter.deadline)
    }
}

impl Job {
    /// Answers everybody who waits; the job is un-counted first: who has an answer is under way no longer.
    pub(super) fn answer(self, computed: Computed) {
        let Job { waiters, load, .. } = self;
        drop(load);
        let computed = Arc::new(computed);
        waiters.end(|_| Ok(Arc::clone(&computed)));
    }

    /// As [`answer`](Self::answer), without logits.
    pub(super) fn refuse(self, failure: &Failure) {
        let Job { waiters, load, .. } = self;
        drop(load);
        waiters.end(|_| Err(failure.clone()));
    }

    /// Nobody was waiting when the job was given up: those who joined after that are not late, and may try again.
    pub(super) fn abandon(self) {
        let Job { waiters, load, .. } = self;
        drop(load);
        let now = Instant::now();
        waiters
            .end(|deadline| Err(if now < deadline { Failure::Lost { is_suspect: false } } else { Failure::Deadline }));
    }
}
