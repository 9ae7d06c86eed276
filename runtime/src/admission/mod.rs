//! Admission: reading, rendering, queueing and finishing, off the event loop.
//!
//! [`Admission::decide`] takes a body to its answer: a [`Ticket`] first (bounds live there, and nowhere else), then a
//! reader's thread decompresses, reads, routes and renders; the least loaded executor computes, unless the same is
//! under way already ([`flights`]); a finisher's thread turns logits into answers and writes them. Dropping the future
//! withdraws the request wherever it is. Work that an executor lost is read and computed again, by another executor or by
//! the same one when it is back: once alone if it ran when the executor went down, [`MOST_LOSSES`] times if it waited.
//!
//! Readers work in two lanes. Long bodies, and compressed ones, whose length nobody knows yet, have their own threads,
//! so that however many of them come, short ones are read beside them.
//!
//! Invariant: a request's ticket moves with its work and ends with it, not with whoever waited. Queues that have no
//! bound of their own (the arbiters', the executors') are bounded by the tickets of what lies in them. Absent on
//! purpose: statuses and headers (`http` holds that table), token ids, devices.

mod decompress;
mod flights;
mod held;
mod permit;
mod reader;

#[cfg(test)]
pub(crate) use decompress::tests as test_bodies;

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{Actor, Addr, SyncArbiter, SyncContext};
use bytes::Bytes;
use futures_util::future::{Either, select, try_join_all};
use prometheus::IntCounter;
use tokio::sync::watch;
use tokio::time::timeout_at;

use crate::executor::{Computed, Failure, Lane, Occupied, Work};
use crate::metrics::{Metrics, Phase};
use crate::supervisor::{Member, Outlook, Roster};
use crate::wire::json::JsonError;
use crate::wire::request::{Limits, Strictness};
use crate::wire::response::{Detail, Refusal};

pub use decompress::Encoding;
use flights::{Flight, Flights};
pub use held::{Held, HeldBytes};
pub use permit::{Bounds, Gate, Permit, QueueFull, Ticket};
use reader::{Finish, Finished, Finisher, Prepared, Read, Reader, Unread};

/// The longest body, as it was sent, that is read beside the short ones.
const SHORT_BODY_BYTES: usize = 64 << 10;

/// How long work that runs outlives a client that has left: an SDK's first retry comes sooner.
const RETRY_GRACE: Duration = Duration::from_secs(2);
/// What a client is asked to wait while nothing is known better.
const PATIENCE: Duration = Duration::from_secs(1);
/// The longest that a client is asked to wait.
const LONGEST_WAIT: Duration = Duration::from_mins(1);

/// The way of a request from its body to its answer.
#[derive(Clone)]
pub struct Admission {
    short: Addr<Reader>,
    long: Addr<Reader>,
    finishers: Addr<Finisher>,
    gate: Arc<Gate>,
    flights: Arc<Flights>,
    /// Set when requests under way are given up.
    ended: Arc<watch::Sender<bool>>,
    settings: watch::Receiver<Arc<Settings>>,
    roster: watch::Receiver<Arc<Roster>>,
    metrics: Arc<Metrics>,
}

/// On which terms requests are taken. Another deployment may change them.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The longest body, after decompression.
    pub max_body_bytes: usize,
    pub max_depth: usize,
    pub limits: Limits,
    pub bounds: Bounds,
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
    /// Whose queued work it waits with.
    pub lane: Lane,
    /// The served names that the caller's key allows; all without a list.
    pub allowed: Option<Arc<[String]>>,
}

/// An answered request.
#[derive(Debug)]
pub struct Answered {
    /// The response's JSON.
    pub body: String,
    /// Its share of what is held, until it is written.
    pub held: Arc<Held>,
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
    #[error("{full}")]
    QueueFull { full: QueueFull, retry_after: Duration },
    /// The member has no ready executor.
    #[error("{model} has no ready executor; {state}")]
    NotReady { model: String, state: String },
    /// The process is about to end.
    #[error("the server is shutting down")]
    Draining,
    /// The process ends before the request, which was under way, could be answered.
    #[error("the server is shutting down")]
    GivenUp,
    #[error("no answer was ready before the deadline")]
    Deadline,
    /// Something failed that the client cannot mend. `reason` is for the log: it holds no text of the request.
    #[error("inference failed")]
    Internal { reason: String },
}

/// Where nothing is known of how long it will be so.
impl From<QueueFull> for Refused {
    fn from(full: QueueFull) -> Self {
        Refused::QueueFull { full, retry_after: PATIENCE }
    }
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
    /// Starts the readers' and finishers' threads: `threads` that read short requests, and that finish requests; long
    /// ones are read by one fewer.
    pub fn start(
        threads: usize,
        settings: watch::Receiver<Arc<Settings>>,
        roster: watch::Receiver<Arc<Roster>>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let reader = |threads: usize| {
            let (settings, roster) = (settings.clone(), roster.clone());
            start_threads("reader", threads, move || Reader::new(settings.clone(), roster.clone()))
        };
        let (short, long) = (reader(threads), reader(threads.saturating_sub(1).max(1)));
        let finishers = start_threads("finisher", threads, || Finisher);
        let gate = Gate::new(metrics.inflight.clone());
        let (flights, ended) = (Flights::new(RETRY_GRACE), Arc::new(watch::Sender::new(false)));
        Admission { short, long, finishers, gate, flights, ended, settings, roster, metrics }
    }

    /// What is under way.
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
        let permit = self.enter(&self.settings.borrow())?;
        let departure = Departure::default();
        let mut ended = self.ended.subscribe();
        let (answer, ended) = (self.answer(call, permit, held, &departure), ended.wait_for(|ended| *ended));
        let answer = match select(pin!(answer), pin!(ended)).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => Err(Refused::GivenUp),
        };
        departure.is_none();
        answer
    }

    async fn answer(&self, call: Call, permit: Permit, held: Held, departure: &Departure) -> Result<Answered, Refused> {
        let settings = Arc::clone(&self.settings.borrow());
        let ticket = Ticket { permit: Arc::new(permit), held: Arc::new(held) };
        let limit = call.received + settings.request_timeout;
        let mut attempt = Attempt::default();
        let (prepared, computed) = loop {
            let prepared = self.prepare(&call, &ticket, limit, attempt).await?;
            if attempt.is_first() {
                prepared.kinds.iter().for_each(|kind| self.metrics.question(kind));
            }
            match within(prepared.deadline, self.compute(&prepared, &call, &ticket, attempt, departure)).await? {
                Ok(computed) => break (prepared, computed),
                Err(failure) => attempt = attempt.after(failure, &prepared)?,
            }
        };
        let Prepared { model, parts, deadline, parse, render, .. } = prepared;
        let longest = |time: fn(&Computed) -> Duration| computed.iter().map(|it| time(it)).max().unwrap_or_default();
        let (queue, forward) = (longest(|it| it.queue), longest(|it| it.forward));
        let finish = Finish { model, parts, computed, ticket: ticket.clone() };
        // The ticket stays here until this future ends: a drain that found the place empty before would give up a
        // request whose answer is on its way back.
        let Finished { body, held, time } =
            within(deadline, self.finishers.send(finish)).await?.map_err(|_| stopped())??;
        let phases = [parse, render, queue, forward, time];
        for (phase, time) in Phase::ALL.into_iter().zip(phases) {
            self.metrics.phase(phase, time);
        }
        Ok(Answered { body, held, phases })
    }

    /// A place for a request. While a drain waits for every place, there is none: that is no full queue.
    fn enter(&self, settings: &Settings) -> Result<Permit, Refused> {
        let is_draining = || self.roster.borrow().draining;
        if is_draining() {
            return Err(Refused::Draining);
        }
        self.gate.enter(settings.bounds).map_err(|full| if is_draining() { Refused::Draining } else { self.full(full) })
    }

    /// A refusal that says when to come again: when what is under way now will be done.
    pub fn full(&self, full: QueueFull) -> Refused {
        let roster = self.roster.borrow().clone();
        Refused::QueueFull { full, retry_after: retry_after(roster.members.iter().filter_map(Member::backlog).max()) }
    }

    /// Reads and renders, and waits for the member where there is something to wait for.
    async fn prepare(
        &self,
        call: &Call,
        ticket: &Ticket,
        limit: Instant,
        attempt: Attempt,
    ) -> Result<Prepared, Refused> {
        let is_short = call.encoding == Encoding::Identity && call.body.len() <= SHORT_BODY_BYTES;
        let lane = if is_short { &self.short } else { &self.long };
        let mut roster = self.roster.clone();
        loop {
            roster.mark_unchanged();
            let read = Read { call: call.clone(), ticket: ticket.clone(), limit };
            match within(limit, lane.send(read)).await?.map_err(|_| stopped())? {
                Ok(prepared) => return Ok(prepared),
                Err(Unread::Absent { outlook, deadline, .. }) if attempt.waits_for(outlook) => {
                    within(deadline, roster.changed()).await?.map_err(|_| stopped())?;
                }
                Err(Unread::Absent { refused, .. } | Unread::Refused(refused)) => return Err(refused),
                Err(Unread::Full(full)) => return Err(self.full(full)),
            }
        }
    }

    /// Has each part's plan computed, all at once, each by the executor that is least loaded then.
    async fn compute(
        &self,
        prepared: &Prepared,
        call: &Call,
        ticket: &Ticket,
        attempt: Attempt,
        departure: &Departure,
    ) -> Result<Vec<Arc<Computed>>, Failure> {
        let occupied: Occupied = Arc::new(ticket.clone());
        let plans = prepared.parts.plans().map(async |plan| {
            if plan.trees.is_empty() {
                return Ok(Arc::default());
            }
            let work = Work {
                plan: Arc::clone(plan),
                lane: call.lane,
                received: call.received,
                deadline: prepared.deadline,
                occupied: Arc::clone(&occupied),
                is_suspect: attempt.is_suspect,
            };
            let replica = prepared.member.least_loaded_of(&prepared.face);
            let replica = replica.ok_or(Failure::Lost { is_suspect: false })?;
            let flight = self.flights.board(&prepared.face, work, &replica.handle);
            departure.is_from(&flight);
            flight.await
        });
        let computed = try_join_all(plans).await;
        departure.is_none();
        computed
    }
}

/// Counts, once, a request that is dropped with work waiting or running: its client has left. Whatever else ends work,
/// such as a deadline or the loss of another part, is no client's departure.
#[derive(Default)]
struct Departure(Cell<Option<IntCounter>>);

impl Departure {
    /// The work waits at the executor of `flight`; of several, the last one counts.
    fn is_from(&self, flight: &Flight) {
        self.0.set(flight.cancelled());
    }

    /// No work is left to be dropped.
    fn is_none(&self) {
        self.0.set(None);
    }
}

impl Drop for Departure {
    fn drop(&mut self) {
        if let Some(cancelled) = self.0.take() {
            cancelled.inc();
        }
    }
}

/// How often an executor may go down with a request waiting behind the one that it went down over. That one is given a
/// second chance, so that two are nobody's bad luck.
const MOST_LOSSES: u32 = 2;

/// What has become of a request so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Attempt {
    /// An executor went down over it: the next one computes it alone.
    is_suspect: bool,
    /// Executors that went down and left it undone.
    losses: u32,
}

impl Attempt {
    fn is_first(self) -> bool {
        self == Attempt::default()
    }

    /// Whether to wait for a member that is not there. Lost work waits for an executor that is being built again; new
    /// work is told so.
    fn waits_for(self, outlook: Outlook) -> bool {
        match outlook {
            Outlook::Replaced => true,
            Outlook::Returning => !self.is_first(),
            Outlook::Down => false,
        }
    }

    /// What follows a failure.
    fn after(self, failure: Failure, prepared: &Prepared) -> Result<Self, Refused> {
        match failure {
            Failure::Deadline => Err(Refused::Deadline),
            Failure::Inference { reason } => Err(Refused::Internal { reason }),
            Failure::Lost { is_suspect: true } if self.is_suspect => {
                Err(Refused::Internal { reason: "a second executor went down over this request alone".into() })
            }
            Failure::Lost { is_suspect: true } => Ok(Attempt { is_suspect: true, ..self }),
            Failure::Lost { is_suspect: false } if self.losses < MOST_LOSSES => {
                Ok(Attempt { losses: self.losses + 1, ..self })
            }
            Failure::Lost { is_suspect: false } => Err(not_ready(&prepared.member)),
        }
    }
}

/// When to come again, if what is under way takes as long as `backlog`.
fn retry_after(backlog: Option<Duration>) -> Duration {
    backlog.unwrap_or(PATIENCE).clamp(PATIENCE, LONGEST_WAIT)
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

fn not_ready(member: &Member) -> Refused {
    let mut states: Vec<&str> = member.replicas.iter().map(|replica| replica.state.name()).collect();
    states.dedup();
    Refused::NotReady { model: member.listing.name.clone(), state: states.join(", ") }
}
