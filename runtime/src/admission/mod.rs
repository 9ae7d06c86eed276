//! Admission: reading, rendering, queueing and finishing, off the event loop.
//!
//! [`Admission::decide`] takes a body to its answer: a [`Permit`] first (bounds live there, and nowhere else), then
//! the readers' threads decompress, read, route and render; the least loaded executor computes; the readers' threads
//! finish and write. Dropping the future withdraws the request wherever it is.
//!
//! Invariant: whatever way a request ends, its permit ends with it. Absent on purpose: statuses and headers (`http`
//! holds that table), token ids, devices.

mod decompress;
mod permit;
mod reader;

#[cfg(test)]
pub(crate) use decompress::tests as test_bodies;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{Addr, SyncArbiter};
use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::timeout_at;

use crate::executor::{Computed, Failure};
use crate::family::Plan;
use crate::metrics::{Metrics, Phase};
use crate::supervisor::Roster;
use crate::wire::json::JsonError;
use crate::wire::request::{Limits, Strictness};
use crate::wire::response::{Detail, Refusal};

pub use decompress::Encoding;
pub use permit::{Gate, Permit, QueueFull};
use reader::{Finish, Prepared, Read, Reader};

/// The way of a request from its body to its answer.
#[derive(Clone)]
pub struct Admission {
    readers: Addr<Reader>,
    gate: Arc<Gate>,
    roster: watch::Receiver<Arc<Roster>>,
    metrics: Arc<Metrics>,
    request_timeout: Duration,
}

/// What admission is set up with.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Threads that read, render and finish.
    pub threads: usize,
    /// The longest body, after decompression.
    pub max_body_bytes: usize,
    pub max_depth: usize,
    pub limits: Limits,
    /// Requests between reading and answer.
    pub max_requests: usize,
    /// Tokens that these may compute together.
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
#[derive(Clone, Debug, PartialEq)]
pub struct Answered {
    /// The response's JSON.
    pub body: String,
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
    /// The questions alone do not fit the member's input.
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
            Refusal::Internal { reason } => Refused::Internal { reason },
        }
    }
}

impl Admission {
    /// Starts the readers' threads.
    pub fn start(settings: Settings, roster: watch::Receiver<Arc<Roster>>, metrics: Arc<Metrics>) -> Self {
        let gate = Gate::new(settings.max_requests, settings.max_tokens, metrics.inflight.clone());
        let (readers_roster, readers_metrics) = (roster.clone(), Arc::clone(&metrics));
        let name = || std::thread::Builder::new().name("admission".into());
        let readers = SyncArbiter::start_with_thread_builder(settings.threads, name, move || {
            Reader::new(settings, readers_roster.clone(), Arc::clone(&readers_metrics))
        });
        Admission { readers, gate, roster, metrics, request_timeout: settings.request_timeout }
    }

    /// The bounds of what is under way.
    pub fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// Answers a request.
    ///
    /// # Errors
    /// Every [`Refused`].
    pub async fn decide(&self, call: Call) -> Result<Answered, Refused> {
        if self.roster.borrow().draining {
            return Err(Refused::Draining);
        }
        let mut permit = self.gate.enter()?;
        let limit = call.received + self.request_timeout;
        let Prepared { model, rendered, deadline, parse, render } =
            within(limit, self.readers.send(Read { call, limit })).await?.map_err(|_| stopped())??;
        permit.charge(rendered.plan.tokens())?;
        let computed = within(deadline, self.compute(&model, rendered.plan, deadline)).await??;
        let finish = Finish { model, pending: rendered.pending, logits: computed.logits };
        let finished = within(deadline, self.readers.send(finish)).await?.map_err(|_| stopped())??;
        let phases = [parse, render, computed.queue, computed.forward, finished.time];
        for (phase, time) in Phase::ALL.into_iter().zip(phases) {
            self.metrics.phase(phase, time);
        }
        Ok(Answered { body: finished.body, phases })
    }

    /// Has the least loaded ready executor of `model` compute `plan`.
    async fn compute(&self, model: &str, plan: Plan, deadline: Instant) -> Result<Computed, Refused> {
        if plan.trees.is_empty() {
            return Ok(Computed { logits: Vec::new(), queue: Duration::ZERO, forward: Duration::ZERO });
        }
        let roster = Arc::clone(&self.roster.borrow());
        let member = roster.member(model).ok_or_else(stopped)?;
        let replica = member.least_loaded().ok_or_else(|| not_ready(member))?;
        let reply = replica.handle.submit(plan, deadline).map_err(|_| QueueFull::Requests)?;
        match reply.await {
            Ok(Ok(computed)) => Ok(computed),
            Ok(Err(Failure::Inference { reason })) => Err(Refused::Internal { reason }),
            Ok(Err(Failure::Deadline)) => Err(Refused::Deadline),
            Ok(Err(Failure::Down)) => Err(not_ready(member)),
            Err(_) => Err(stopped()),
        }
    }
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
