//! The executor actor: building, one batch per message, faults.
//!
//! A message runs one batch and asks for the next, so that other messages get their turn between two batches.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{Actor, AsyncContext, Context, Handler, Message, Recipient};

use super::batch::Batch;
use super::health::Strikes;
use super::{Computed, Face, Factory, Failure, Job, LoadProgress, Loaded, Queue};
use crate::family::{Logits, Tree};
use crate::model::{Forward, ModelError};

/// Asks for a (new) member on this executor's device.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Build {
    pub progress: Arc<LoadProgress>,
}

/// Says that there is work.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Wake;

/// What an executor tells its supervisor.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Report {
    /// The placement that the supervisor gave it.
    pub placement: usize,
    pub event: Event,
}

/// A change of an executor.
pub enum Event {
    /// The member is loaded.
    Ready(Arc<Face>),
    /// The member could not be loaded.
    BuildFailed { reason: String },
    /// The forward panicked.
    Panicked,
    /// The forward failed too often in a row; `reason` is the last error.
    Failing { reason: String },
}

/// Owns one device's forward.
pub struct Executor {
    placement: usize,
    factory: Factory,
    queue: Arc<Queue>,
    batch_tokens: usize,
    supervisor: Recipient<Report>,
    /// Absent until built, and from a fault to the next build.
    forward: Option<Box<dyn Forward>>,
    strikes: Strikes,
}

impl Executor {
    /// An executor that waits to be told to [`Build`].
    pub fn new(
        placement: usize,
        factory: Factory,
        queue: Arc<Queue>,
        batch_tokens: usize,
        supervisor: Recipient<Report>,
    ) -> Self {
        Executor { placement, factory, queue, batch_tokens, supervisor, forward: None, strikes: Strikes::default() }
    }

    fn report(&self, event: Event) {
        self.supervisor.do_send(Report { placement: self.placement, event });
    }

    /// Whole requests, oldest first, up to `batch_tokens`. What nobody waits for is dropped here, before it costs
    /// the device anything.
    fn next_batch(&self) -> Batch {
        let now = Instant::now();
        let mut batch = Batch::default();
        let joins = |batch: &Batch, job: &Job| !job.is_wanted(now) || batch.has_room(job, self.batch_tokens);
        while let Some(job) = self.queue.next_if(|job| joins(&batch, job)) {
            if job.is_wanted(now) {
                batch.push(job);
            } else {
                job.refuse(Failure::Deadline);
            }
        }
        batch
    }

    /// Runs a batch and answers all of it. Returns what ends this forward, if anything did.
    fn run(&mut self, forward: &mut dyn Forward, batch: Batch) -> Option<Event> {
        let metrics = self.queue.metrics();
        metrics.batch_requests.observe(batch.jobs.len() as f64);
        let (started, before) = (Instant::now(), forward.tokens_computed());
        let result = guarded_forward(forward, &batch.jobs);
        let computed_tokens = forward.tokens_computed() - before;
        metrics.batch_tokens.observe(computed_tokens as f64);
        metrics.computed_tokens.inc_by(computed_tokens);
        match result {
            Ok(logits) => {
                self.strikes.succeeded();
                answer_all(batch.jobs, logits, started, started.elapsed());
                None
            }
            Err(fault @ Fault::Panic) => {
                refuse_all(batch.jobs, &fault.failure());
                Some(Event::Panicked)
            }
            Err(fault @ Fault::Error(_)) if batch.jobs.len() == 1 => {
                refuse_all(batch.jobs, &fault.failure());
                self.strikes.failed().then(|| Event::Failing { reason: fault.to_string() })
            }
            Err(Fault::Abandoned(_)) => {
                // Whoever is not late has left, and does not read it.
                refuse_all(batch.jobs, &Failure::Deadline);
                None
            }
            Err(Fault::Error(_)) => self.run_one_by_one(forward, batch),
        }
    }

    /// A batch failed: one of its requests may be to blame, and the others must not pay for it.
    fn run_one_by_one(&mut self, forward: &mut dyn Forward, batch: Batch) -> Option<Event> {
        let mut jobs = batch.jobs.into_iter();
        while let Some(job) = jobs.next() {
            let tokens = job.tokens;
            if let Some(event) = self.run(forward, Batch { jobs: vec![job], tokens }) {
                refuse_all(jobs, &Failure::Inference { reason: "the executor failed on another request".into() });
                return Some(event);
            }
        }
        None
    }
}

impl Actor for Executor {
    type Context = Context<Self>;

    fn stopped(&mut self, _: &mut Self::Context) {
        self.queue.refuse_all();
    }
}

impl Handler<Build> for Executor {
    type Result = ();

    fn handle(&mut self, build: Build, ctx: &mut Self::Context) {
        // What the last one held is given back first: two members may not fit.
        discard(self.forward.take());
        self.strikes = Strikes::default();
        let built = catch_unwind(AssertUnwindSafe(|| (self.factory)(&build.progress)));
        match built {
            Ok(Ok(Loaded { forward, face })) => {
                self.forward = Some(forward);
                self.report(Event::Ready(face));
                ctx.notify(Wake);
            }
            Ok(Err(error)) => {
                self.queue.refuse_all();
                self.report(Event::BuildFailed { reason: error.to_string() });
            }
            Err(_) => {
                self.queue.refuse_all();
                self.report(Event::BuildFailed { reason: "the loader panicked".into() });
            }
        }
    }
}

impl Handler<Wake> for Executor {
    type Result = ();

    fn handle(&mut self, Wake: Wake, ctx: &mut Self::Context) {
        self.queue.wake_arrived();
        // Out of the actor while it runs, so that a forward that failed is gone whatever happens next.
        let Some(mut forward) = self.forward.take() else { return };
        let batch = self.next_batch();
        let event = if batch.jobs.is_empty() { None } else { self.run(forward.as_mut(), batch) };
        if let Some(event) = event {
            discard(Some(forward));
            return self.report(event);
        }
        self.forward = Some(forward);
        if !self.queue.is_empty() {
            ctx.notify(Wake);
        }
    }
}

impl Job {
    /// Sends the job's only reply; a submitter that left does not read it. The job is un-counted first: who has an
    /// answer is under way no longer.
    fn answer(self, logits: Vec<Vec<Logits>>, started: Instant, forward: Duration) {
        let Job { ticket, submitted, reply, load, .. } = self;
        drop(load);
        let queue = started.saturating_duration_since(submitted);
        let _ = reply.send(Ok(Computed { logits, ticket, queue, forward }));
    }

    /// As [`answer`](Self::answer); what the request occupied is given back first, too.
    pub(super) fn refuse(self, failure: Failure) {
        let Job { ticket, reply, load, .. } = self;
        drop((load, ticket));
        let _ = reply.send(Err(failure));
    }
}

/// Whether anybody still waits for any of `jobs`.
fn is_wanted(jobs: &[Job]) -> bool {
    let now = Instant::now();
    jobs.iter().any(|job| job.is_wanted(now))
}

/// Drops a forward that is not used again. A device that failed may fail at this, too: it must not cost the thread.
fn discard(forward: Option<Box<dyn Forward>>) {
    let _ = catch_unwind(AssertUnwindSafe(|| drop(forward)));
}

/// Why a forward gave nothing.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("the forward panicked")]
    Panic,
    /// Nobody waits for any job of the batch any more.
    #[error(transparent)]
    Abandoned(ModelError),
    #[error("{0}")]
    Error(String),
}

impl Fault {
    fn failure(&self) -> Failure {
        Failure::Inference { reason: self.to_string() }
    }
}

/// Runs the trees of all `jobs`, in order, in one call. A panic is caught here: the forward is not used again after
/// one, so nothing sees what it left half done. Its payload is dropped unread.
fn guarded_forward(forward: &mut dyn Forward, jobs: &[Job]) -> Result<Vec<Vec<Logits>>, Fault> {
    let trees: Vec<&Tree> = jobs.iter().flat_map(|job| &job.plan.trees).collect();
    let logits = catch_unwind(AssertUnwindSafe(|| forward.forward(&trees, &|| is_wanted(jobs))))
        .map_err(|_| Fault::Panic)?
        .map_err(|error| match error {
            ModelError::Abandoned => Fault::Abandoned(error),
            _ => Fault::Error(error.to_string()),
        })?;
    let fits = logits.len() == trees.len()
        && logits.iter().zip(&trees).all(|(blocks, tree)| blocks.len() == tree.blocks.len());
    if fits { Ok(logits) } else { Err(Fault::Error("the forward gave another number of readouts than asked".into())) }
}

fn answer_all(jobs: Vec<Job>, logits: Vec<Vec<Logits>>, started: Instant, forward: Duration) {
    let mut logits = logits.into_iter();
    for job in jobs {
        let logits = logits.by_ref().take(job.plan.trees.len()).collect();
        job.answer(logits, started, forward);
    }
}

fn refuse_all(jobs: impl IntoIterator<Item = Job>, failure: &Failure) {
    for job in jobs {
        job.refuse(failure.clone());
    }
}
