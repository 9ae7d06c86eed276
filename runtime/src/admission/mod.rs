//! Admission: reading, rendering, queueing and finishing, off the event loop.
//!
//! [`Admission::decide`] takes a body to its answer: a [`Ticket`] first (bounds live there, and nowhere else), then a
//! reader's thread decompresses, reads, routes and renders; the least loaded executor computes; a finisher's thread
//! turns logits into answers and writes them. Dropping the future withdraws the request wherever it is.
//!
//! Readers work in two lanes. Long bodies, and compressed ones, whose length nobody knows yet, have their own threads,
//! so that however many of them come, short ones are read beside them.
//!
//! Invariant: a request's ticket moves with its work and ends with it, not with whoever waited. Queues that have no
//! bound of their own (the arbiters', the executors') are bounded by the tickets of what lies in them. Absent on
//! purpose: statuses and headers (`http` holds that table), token ids, devices.

mod decompress;
mod held;
mod permit;
mod reader;

#[cfg(test)]
pub(crate) use decompress::tests as test_bodies;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{Actor, Addr, SyncArbiter, SyncContext};
use bytes::Bytes;
use futures_util::future::{Either, select};
use tokio::sync::watch;
use tokio::time::timeout_at;

use crate::executor::{Computed, Failure};
use crate::family::{Plan, Rendered};
use crate::metrics::{Metrics, Phase};
use crate::supervisor::Roster;
use crate::wire::json::JsonError;
use crate::wire::request::{Limits, Strictness};
use crate::wire::response::{Detail, Refusal};

pub use decompress::Encoding;
pub use held::{Held, HeldBytes};
pub use permit::{Gate, Permit, QueueFull, Ticket};
use reader::{Finish, Finisher, Prepared, Read, Reader};

/// The longest body, as it was sent, that is read beside the short ones.
const SHORT_BODY_BYTES: usize = 64 << 10;

/// The way of a request from its body to its answer.
#[derive(Clone)]
pub struct Admission {
    short: Addr<Reader>,
    long: Addr<Reader>,
    finishers: Addr<Finisher>,
    gate: Arc<Gate>,
    /// Set when requests under way are given up.
    ended: Arc<watch::Sender<bool>>,
    roster: watch::Receiver<Arc<Roster>>,
    metrics: Arc<Metrics>,
    request_timeout: Duration,
}

/// What admission is set up with.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Threads that read and render short requests, and that finish requests; long ones are read by one fewer.
    pub threads: usize,
    /// The longest body, after decompression.
    pub max_body_bytes: usize,
    pub max_depth: usize,
    pub limits: Limits,
    /// Requests between reading and answer.
    pub max_requests: usize,
    /// Tokens that these may compute together, and the most that one of them may.
    pub max_tokens: usize,
    /// The longest that a request may take; its own `deadline_ms` can only be shorter.
    pub request_timeout: Duration,
}

/// A request as `http` hands it over.
#[derive(Clone, Debug)]
pub struct Call {
    pub body: Bytes,
    pub encoding: Encoding,
    pub strictness: Strictness,
    /// When its head had been read: deadlines count from here.
    pub received: Instant,
    /// The served names that the caller's key allows; all without a list.
    pub allowed: Option<Arc<[String]>>,
}

/// An answered request.
#[derive(Debug)]
pub struct Answered {
    /// The response's JSON.
    pub body: String,
    /// Its share of what is held, until it is written.
    pub held: Held,
    /// How long it spent in each phase, in the order of [`Phase::ALL`].
    pub phases: [Duration; Phase::ALL.len()],
}

/// Why a request has no answer. Every message may be shown to the client that sent the request; what is for the log
/// only is in a field of its own.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refused {
    /// The body does not decompress as its encoding says.
    #[error("the body is not {encoding}, as its content-encoding says")]
    Encoding { encoding: &'static str },
    /// The body is longer than the limit, before or after decompression.
    #[error("the body is longer than {max_bytes} bytes")]
    BodyTooLarge { max_bytes: usize },
    #[error(transparent)]
    Json(#[from] JsonError),
    /// One entry per problem.
    #[error("the request is invalid")]
    Invalid(Vec<Detail>),
    /// The questions alone do not fit the member's input, or the request is more work than the deployment takes.
    #[error("{message}")]
    TooLong { message: String },
    /// No member has the name.
    #[error("unknown model; known here: {}", .known.join(", "))]
    UnknownModel { known: Vec<String> },
    #[error("the key does not allow the model {model}")]
    ModelNotAllowed { model: String },
    /// Too much is under way.
    #[error(transparent)]
    QueueFull(#[from] QueueFull),
    /// The member has no ready executor.
    #[error("{model} has no ready executor; {state}")]
    NotReady { model: String, state: String },
    /// The process is about to end.
    #[error("the server is shutting down")]
    Draining,
    #[error("no answer was ready before the deadline")]
    Deadline,
    /// Something failed that the client cannot mend. `reason` is for the log: it holds no text of the request.
    #[error("inference failed")]
    Internal { reason: String },
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Invalid(details) => Refused::Invalid(details),
            Refusal::TooLong { message } => Refused::TooLong { message },
            Refusal::InvalidModelOutput { .. } => Refused::Internal { reason: "a logit is not finite".into() },
        }
    }
}

impl Admission {
    /// Starts the readers' and finishers' threads.
    pub fn start(settings: Settings, roster: watch::Receiver<Arc<Roster>>, metrics: Arc<Metrics>) -> Self {
        let gate = Gate::new(settings.max_requests, settings.max_tokens, metrics.inflight.clone());
        let reader = |threads: usize| {
            let (roster, metrics) = (roster.clone(), Arc::clone(&metrics));
            start_threads("reader", threads, move || Reader::new(settings, roster.clone(), Arc::clone(&metrics)))
        };
        let (short, long) = (reader(settings.threads), reader(settings.threads.saturating_sub(1).max(1)));
        let finishers = start_threads("finisher", settings.threads, || Finisher);
        let ended = Arc::new(watch::Sender::new(false));
        let request_timeout = settings.request_timeout;
        Admission { short, long, finishers, gate, ended, roster, metrics, request_timeout }
    }

    /// The bounds of what is under way.
    pub fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// Answers every request under way that the server is shutting down: there is no more time for them.
    pub fn end(&self) {
        self.ended.send_replace(true);
    }

    /// Answers a request, whose body has the share `held` of what is held.
    ///
    /// # Errors
    /// Every [`Refused`].
    pub async fn decide(&self, call: Call, held: Held) -> Result<Answered, Refused> {
        let mut ended = self.ended.subscribe();
        match select(pin!(self.answer(call, held)), pin!(ended.wait_for(|ended| *ended))).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => Err(Refused::Draining),
        }
    }

    async fn answer(&self, call: Call, held: Held) -> Result<Answered, Refused> {
        let ticket = Ticket { permit: self.enter()?, held };
        let limit = call.received + self.request_timeout;
        let is_short = call.encoding == Encoding::Identity && call.body.len() <= SHORT_BODY_BYTES;
        let lane = if is_short { &self.short } else { &self.long };
        let Prepared { model, rendered: Rendered { plan, pending }, ticket, deadline, parse, render } =
            within(limit, lane.send(Read { call, ticket, limit })).await?.map_err(|_| stopped())??;
        let Computed { logits, ticket, queue, forward } =
            within(deadline, self.compute(&model, plan, ticket, deadline)).await??;
        let finish = Finish { model, pending, logits, ticket };
        let finished = within(deadline, self.finishers.send(finish)).await?.map_err(|_| stopped())??;
        let phases = [parse, render, queue, forward, finished.time];
        for (phase, time) in Phase::ALL.into_iter().zip(phases) {
            self.metrics.phase(phase, time);
        }
        Ok(Answered { body: finished.body, held: finished.held, phases })
    }

    /// A place for a request. While a drain waits for every place, there is none: that is no full queue.
    fn enter(&self) -> Result<Permit, Refused> {
        let is_draining = || self.roster.borrow().draining;
        if is_draining() {
            return Err(Refused::Draining);
        }
        self.gate.enter().map_err(|full| if is_draining() { Refused::Draining } else { full.into() })
    }

    /// Has the least loaded ready executor of `model` compute `plan`.
    async fn compute(&self, model: &str, plan: Plan, ticket: Ticket, deadline: Instant) -> Result<Computed, Refused> {
        if plan.trees.is_empty() {
            return Ok(Computed { logits: Vec::new(), ticket, queue: Duration::ZERO, forward: Duration::ZERO });
        }
        let roster = Arc::clone(&self.roster.borrow());
        let member = roster.member(model).ok_or_else(stopped)?;
        let replica = member.least_loaded().ok_or_else(|| not_ready(member))?;
        replica.handle.submit(plan, ticket, deadline).await.map_err(|failure| match failure {
            Failure::Inference { reason } => Refused::Internal { reason },
            Failure::Deadline => Refused::Deadline,
            Failure::Down => not_ready(member),
        })
    }
}

/// Starts actors that share one queue, each on a thread of its own.
fn start_threads<A>(name: &'static str, threads: usize, make: impl Fn() -> A + Send + Sync + 'static) -> Addr<A>
where
    A: Actor<Context = SyncContext<A>> + Send,
{
    SyncArbiter::start_with_thread_builder(threads, move || std::thread::Builder::new().name(name.into()), make)
}

/// Awaits `work` until `deadline`.
async fn within<T>(deadline: Instant, work: impl Future<Output = T>) -> Result<T, Refused> {
    timeout_at(deadline.into(), work).await.map_err(|_| Refused::Deadline)
}

/// An actor is gone, which it is only when the process ends.
fn stopped() -> Refused {
    Refused::Internal { reason: "an actor stopped before it answered".into() }
}

fn not_ready(member: &crate::supervisor::Member) -> Refused {
    let mut states: Vec<&str> = member.replicas.iter().map(|replica| replica.state.name()).collect();
    states.dedup();
    Refused::NotReady { model: member.listing.name.clone(), state: states.join(", ") }
}
