//! The bounded queue in front of an executor, and the handle that fills it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use actix::Addr;
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use tokio::sync::oneshot;

use super::{Computed, Executor, Failure, Job, Wake};
use crate::family::Plan;
use crate::metrics::ExecutorMetrics;

/// The queue has no room.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("executor queue is full")]
pub struct Full;

/// Jobs between submitters and one executor. It outlives the executor's faults: what waits is there after a rebuild.
pub struct Queue {
    sender: Sender<Job>,
    pub(super) jobs: Receiver<Job>,
    load: Arc<Load>,
    /// Set while a wake is on its way, so that a burst of jobs sends one.
    awake: AtomicBool,
}

/// What is under way, waiting or running.
struct Load {
    tokens: AtomicUsize,
    metrics: ExecutorMetrics,
}

/// A job's share of the load, while it is under way.
pub(super) struct Counted {
    load: Arc<Load>,
    tokens: usize,
    waiting: bool,
}

/// Submits work to an executor.
#[derive(Clone)]
pub struct Handle {
    queue: Arc<Queue>,
    executor: Addr<Executor>,
}

impl Queue {
    /// A queue of at most `max_requests` jobs.
    pub fn new(max_requests: usize, metrics: ExecutorMetrics) -> Arc<Self> {
        let (sender, jobs) = bounded(max_requests);
        let load = Arc::new(Load { tokens: AtomicUsize::new(0), metrics });
        Arc::new(Queue { sender, jobs, load, awake: AtomicBool::new(false) })
    }

    pub(super) fn metrics(&self) -> &ExecutorMetrics {
        &self.load.metrics
    }

    /// Called before jobs are looked for: whoever submits afterwards wakes the executor again.
    pub(super) fn wake_arrived(&self) {
        self.awake.store(false, Ordering::SeqCst);
    }
}

impl Counted {
    fn new(load: &Arc<Load>, tokens: usize) -> Self {
        load.tokens.fetch_add(tokens, Ordering::Relaxed);
        load.metrics.queue_tokens.add(tokens as i64);
        load.metrics.queue_requests.inc();
        Counted { load: Arc::clone(load), tokens, waiting: true }
    }

    /// The job is no longer waiting.
    pub(super) fn leave_queue(&mut self) {
        if self.waiting {
            self.waiting = false;
            self.load.metrics.queue_tokens.sub(self.tokens as i64);
            self.load.metrics.queue_requests.dec();
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.leave_queue();
        self.load.tokens.fetch_sub(self.tokens, Ordering::Relaxed);
    }
}

impl Handle {
    /// A handle on `executor`, which reads `queue`.
    pub fn new(queue: Arc<Queue>, executor: Addr<Executor>) -> Self {
        Handle { queue, executor }
    }

    /// Tokens submitted and not yet answered.
    pub fn load_tokens(&self) -> usize {
        self.queue.load.tokens.load(Ordering::Relaxed)
    }

    /// Queues `plan`. Dropping the receiver withdraws it.
    ///
    /// # Errors
    /// [`Full`] when the queue has no room.
    pub fn submit(&self, plan: Plan, deadline: Instant) -> Result<oneshot::Receiver<Result<Computed, Failure>>, Full> {
        let (reply, receiver) = oneshot::channel();
        let tokens = plan.tokens();
        let load = Counted::new(&self.queue.load, tokens);
        let job = Job { plan, tokens, submitted: Instant::now(), deadline, reply, load };
        // The executor holds the receiving end for as long as the queue lives, so a send fails for want of room only.
        self.queue.sender.try_send(job).map_err(|_: TrySendError<Job>| Full)?;
        if !self.queue.awake.swap(true, Ordering::SeqCst) {
            self.executor.do_send(Wake);
        }
        Ok(receiver)
    }
}
