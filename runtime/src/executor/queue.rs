//! The queue in front of an executor, the handle that fills it, and the reply that it owes.
//!
//! It has no bound of its own: every job carries its request's [`Ticket`], and admission hands out only so many.
//!
//! Invariant: a job whose submitter leaves while it waits is gone at once, wherever it stands, and its ticket with it.
//! Departed clients never fill a queue, however long the batch before them takes.

use std::collections::BTreeMap;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use actix::Addr;
use tokio::sync::oneshot;

use super::{Computed, Executor, Failure, Job, Wake};
use crate::admission::Ticket;
use crate::family::Plan;
use crate::metrics::ExecutorMetrics;

/// Jobs between submitters and one executor. It outlives the executor's faults: what waits is there after a rebuild.
pub struct Queue {
    waiting: Mutex<Waiting>,
    load: Arc<Load>,
    /// Set while a wake is on its way, so that a burst of jobs sends one.
    awake: AtomicBool,
}

/// Jobs by the number under which they came: the first is the oldest.
#[derive(Default)]
struct Waiting {
    jobs: BTreeMap<u64, Job>,
    next_number: u64,
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

/// What becomes of a job. Dropping it withdraws the job: one that waits leaves the queue, one that runs is abandoned
/// as soon as nobody waits for anything of its batch. Whoever leaves before the deadline is counted as gone.
pub struct Reply {
    receiver: oneshot::Receiver<Result<Computed, Failure>>,
    queue: Arc<Queue>,
    number: u64,
    deadline: Instant,
    is_answered: bool,
}

impl Queue {
    /// An empty queue.
    pub fn new(metrics: ExecutorMetrics) -> Arc<Self> {
        let load = Arc::new(Load { tokens: AtomicUsize::new(0), metrics });
        Arc::new(Queue { waiting: Mutex::default(), load, awake: AtomicBool::new(false) })
    }

    /// Nothing can panic while it is locked; jobs are dropped and answered outside.
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, job: Job) -> u64 {
        let mut waiting = self.waiting();
        let number = waiting.next_number;
        waiting.next_number += 1;
        waiting.jobs.insert(number, job);
        number
    }

    /// The oldest job, if `take` wants it.
    pub(super) fn next_if(&self, take: impl FnOnce(&Job) -> bool) -> Option<Job> {
        let mut waiting = self.waiting();
        let oldest = waiting.jobs.first_entry()?;
        take(oldest.get()).then(|| oldest.remove())
    }

    fn withdraw(&self, number: u64) -> Option<Job> {
        self.waiting().jobs.remove(&number)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting().jobs.is_empty()
    }

    /// Answers everything that waits: there is no executor to wait for.
    pub fn refuse_all(&self) {
        let jobs = mem::take(&mut self.waiting().jobs);
        for job in jobs.into_values() {
            job.refuse(Failure::Down);
        }
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

    /// Queues `plan`, with what its request occupies.
    pub fn submit(&self, plan: Plan, ticket: Ticket, deadline: Instant) -> Reply {
        let (reply, receiver) = oneshot::channel();
        let tokens = plan.tokens();
        let load = Counted::new(&self.queue.load, tokens);
        let job = Job { plan, ticket, tokens, submitted: Instant::now(), deadline, reply, load };
        let number = self.queue.push(job);
        if !self.queue.awake.swap(true, Ordering::SeqCst) {
            self.executor.do_send(Wake);
        }
        Reply { receiver, queue: Arc::clone(&self.queue), number, deadline, is_answered: false }
    }
}

impl Future for Reply {
    type Output = Result<Computed, Failure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let reply = ready!(Pin::new(&mut self.receiver).poll(cx));
        self.is_answered = true;
        // Only an executor whose thread ended drops a job without an answer.
        Poll::Ready(reply.unwrap_or(Err(Failure::Down)))
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        self.receiver.close();
        drop(self.queue.withdraw(self.number));
        if Instant::now() < self.deadline {
            self.queue.metrics().cancelled.inc();
        }
    }
}
