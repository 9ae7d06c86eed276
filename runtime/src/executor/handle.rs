//! The ways into an executor: the handle that submits work, and the reply that it owes.
//!
//! An executor lives as long as anybody can still give it work or waits for what it has: when the last [`Handle`] and
//! the last [`Reply`] are gone, it is told to retire. Absent on purpose: a bound on what is submitted. All of it
//! occupies a place that admission hands out, and admission hands out only so many.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use actix::Addr;
use prometheus::IntCounter;

use super::job::{Answer, Job, Waiters, Waiting, Work};
use super::lanes::Place;
use super::rate::Rate;
use super::{Executor, Failure, Occupied, Queue, Retire, Wake};
use crate::metrics::ExecutorMetrics;

/// Submits work to an executor.
#[derive(Clone)]
pub struct Handle(Arc<Link>);

/// What handles and replies have in common.
struct Link {
    queue: Arc<Queue>,
    executor: Addr<Executor>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.executor.do_send(Retire);
    }
}

/// What becomes of a piece of work. Dropping it leaves the job: one that waits and has lost its last waiter is
/// withdrawn, one that runs is abandoned as soon as nobody waits for anything of its batch. That need not be when the
/// client leaves: admission keeps the reply to work that runs for the time in which a retry may come.
pub struct Reply {
    waiting: Waiting,
    waiters: Arc<Waiters>,
    place: Place,
    link: Arc<Link>,
    is_answered: bool,
}

/// A job that others may wait for, too.
pub struct Joinable {
    waiters: Weak<Waiters>,
    place: Place,
    link: Weak<Link>,
}

/// What is under way at an executor, waiting or running, and how fast that is worked off.
pub(super) struct Load {
    tokens: AtomicUsize,
    pub(super) rate: Rate,
    pub(super) metrics: ExecutorMetrics,
}

/// A job's share of the load, while it is under way.
pub(super) struct Counted {
    load: Arc<Load>,
    tokens: usize,
    is_waiting: bool,
}

impl Handle {
    /// A handle on `executor`, which reads `queue`.
    pub fn new(queue: Arc<Queue>, executor: Addr<Executor>) -> Self {
        Handle(Arc::new(Link { queue, executor }))
    }

    /// Whether the executor takes work: it is loaded, and has not failed since.
    pub fn is_open(&self) -> bool {
        self.0.queue.is_open()
    }

    /// Tokens submitted and not yet answered.
    pub fn load_tokens(&self) -> usize {
        self.0.queue.load().tokens.load(Ordering::Relaxed)
    }

    /// How long what is under way will take, at the pace of its last batches; nothing before the first one.
    pub fn backlog(&self) -> Option<Duration> {
        self.0.queue.load().rate.time_for(self.load_tokens())
    }

    /// Tokens per second of its last batches, once there was any.
    pub fn tokens_per_second(&self) -> Option<f64> {
        self.0.queue.load().rate.tokens_per_second()
    }

    /// Queues `work`. An executor that is down answers [`Failure::Lost`] at once.
    pub fn submit(&self, work: Work) -> Reply {
        let Work { plan, lane, received, deadline, occupied, is_suspect } = work;
        let queue = &self.0.queue;
        let (waiters, waiting) = Waiters::new(deadline, occupied);
        let tokens = plan.tokens();
        let load = Counted::new(queue.load(), tokens);
        let submitted = Instant::now();
        let job = Job { plan, tokens, is_suspect, waiters: Arc::clone(&waiters), submitted, load };
        let (place, refused) = queue.push(lane, received, job);
        if let Some(job) = refused {
            job.refuse(&Failure::Lost { is_suspect: false });
        } else if queue.needs_wake() {
            self.0.executor.do_send(Wake);
        }
        Reply { waiting, waiters, place, link: Arc::clone(&self.0), is_answered: false }
    }
}

impl Reply {
    /// The job, for others to wait for.
    pub fn joinable(&self) -> Joinable {
        Joinable { waiters: Arc::downgrade(&self.waiters), place: self.place, link: Arc::downgrade(&self.link) }
    }

    /// Whether the device has begun with it.
    pub fn is_running(&self) -> bool {
        !self.is_answered && self.waiters.is_running()
    }

    /// The executor's count of requests whose clients left.
    pub fn cancelled(&self) -> IntCounter {
        self.link.queue.metrics().cancelled.clone()
    }
}

impl Joinable {
    /// Waits for the job as well, until `deadline`; nothing if it is over.
    pub fn join(&self, deadline: Instant, occupied: Occupied) -> Option<Reply> {
        let (waiters, link) = (self.waiters.upgrade()?, self.link.upgrade()?);
        let waiting = waiters.join(deadline, occupied)?;
        Some(Reply { waiting, waiters, place: self.place, link, is_answered: false })
    }

    /// Whether nobody waits for it, or it is over.
    pub fn is_gone(&self) -> bool {
        self.waiters.upgrade().is_none_or(|waiters| waiters.is_deserted())
    }
}

impl Future for Reply {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let reply = ready!(Pin::new(&mut self.waiting.receiver).poll(cx));
        self.is_answered = true;
        // Only an executor whose thread ended drops a job without an answer.
        Poll::Ready(reply.unwrap_or(Err(Failure::Lost { is_suspect: true })))
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        if self.waiters.leave(&self.waiting) {
            drop(self.link.queue.withdraw(self.place));
        }
    }
}

impl Load {
    pub(super) fn new(metrics: ExecutorMetrics) -> Arc<Self> {
        Arc::new(Load { tokens: AtomicUsize::new(0), rate: Rate::default(), metrics })
    }
}

impl Counted {
    fn new(load: &Arc<Load>, tokens: usize) -> Self {
        load.tokens.fetch_add(tokens, Ordering::Relaxed);
        load.metrics.queue_tokens.add(tokens as i64);
        load.metrics.queue_requests.inc();
        Counted { load: Arc::clone(load), tokens, is_waiting: true }
    }

    /// The job is no longer waiting.
    pub(super) fn leave_queue(&mut self) {
        if self.is_waiting {
            self.is_waiting = false;
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
