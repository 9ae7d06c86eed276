//! The queue in front of an executor.
//!
//! Invariant: a job whose last waiter leaves while it waits is gone at once, wherever it stands, and so is what it
//! occupied. Departed clients never fill a queue, however long the batch before them takes. A queue that is closed
//! takes nothing and holds nothing: whoever waited in it was told to go elsewhere.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::handle::Load;
use super::job::{Failure, Job};
use super::lanes::{Lane, Lanes, Place};
use crate::metrics::ExecutorMetrics;

/// Jobs between submitters and one executor. It outlives the executor's faults.
pub struct Queue {
    waiting: Mutex<Lanes<Job>>,
    /// Whether an executor works on it. Changed under the lock, read anywhere.
    is_open: AtomicBool,
    load: Arc<Load>,
    /// Set while a wake is on its way, so that a burst of jobs sends one.
    awake: AtomicBool,
}

impl Queue {
    /// An empty queue, closed.
    pub fn new(metrics: ExecutorMetrics) -> Arc<Self> {
        let is_open = AtomicBool::new(false);
        Arc::new(Queue { waiting: Mutex::default(), is_open, load: Load::new(metrics), awake: AtomicBool::new(false) })
    }

    /// Nothing can panic while it is locked; jobs are dropped and answered outside.
    fn waiting(&self) -> MutexGuard<'_, Lanes<Job>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Takes jobs from now on.
    pub(super) fn open(&self) {
        let _waiting = self.waiting();
        self.is_open.store(true, Ordering::Release);
    }

    /// Takes no more jobs, and has everybody who waits try elsewhere.
    pub fn close(&self) {
        let jobs = {
            let mut waiting = self.waiting();
            self.is_open.store(false, Ordering::Release);
            waiting.take_all()
        };
        for job in jobs {
            job.refuse(&Failure::Lost { is_suspect: false });
        }
    }

    /// Adds a job; a closed queue gives it back.
    pub(super) fn push(&self, lane: Lane, received: Instant, job: Job) -> (Place, Option<Job>) {
        let mut waiting = self.waiting();
        let tokens = job.tokens;
        let place = waiting.push(lane, received, tokens, job);
        let refused = if self.is_open() { None } else { waiting.remove(place) };
        (place, refused)
    }

    /// The job whose turn it is, if `take` wants it.
    pub(super) fn next_if(&self, take: impl FnOnce(&Job) -> bool) -> Option<Job> {
        self.waiting().next_if(take)
    }

    pub(super) fn withdraw(&self, place: Place) -> Option<Job> {
        self.waiting().remove(place)
    }

    /// Tokens of the jobs that wait.
    pub(super) fn waiting_tokens(&self) -> usize {
        usize::try_from(self.load.metrics.queue_tokens.get()).unwrap_or(0)
    }

    /// Since when the oldest job has waited.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.waiting().oldest()
    }

    pub(super) fn load(&self) -> &Arc<Load> {
        &self.load
    }

    pub(super) fn metrics(&self) -> &ExecutorMetrics {
        &self.load.metrics
    }

    /// Whether the executor must be told of a job: a wake that is on its way already will find it.
    pub(super) fn needs_wake(&self) -> bool {
        !self.awake.swap(true, Ordering::SeqCst)
    }

    /// Called before jobs are looked for: whoever submits afterwards wakes the executor again.
    pub(super) fn wake_arrived(&self) {
        self.awake.store(false, Ordering::SeqCst);
    }
}
