//! The executor actor: building, one batch per message, faults.
//!
//! A message runs one batch and asks for the next, so that other messages get their turn between two batches.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{Actor, AsyncContext, Context, Handler, Message, Recipient};

use super::batch::{Batch, Fate, fate};
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
    /// The first job of the next batch: taken from the queue when the last batch had no room for it.
    held: Option<Job>,
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
        Executor {
            placement,
            factory,
            queue,
            batch_tokens,
            supervisor,
            forward: None,
            held: None,
            strikes: Strikes::default(),
        }
    }

    fn report(&self, event: Event) {
        self.supervisor.do_send(Report { placement: self.placement, event });
    }

    fn next_job(&mut self) -> Option<Job> {
        self.held.take().or_else(|| self.queue.jobs.try_recv().ok())
    }

    fn has_work(&self) -> bool {
        self.held.is_some() || !self.queue.jobs.is_empty()
    }

    /// Whole requests, oldest first, up to `batch_tokens`. What nobody waits for is dropped here, before it costs
    /// the device anything.
    fn next_batch(&mut self) -> Batch {
        let now = Instant::now();
        let mut batch = Batch::default();
        while let Some(job) = self.next_job() {
            match fate(job.reply.is_closed(), job.deadline, now) {
                Fate::Cancelled => self.queue.metrics().cancelled.inc(),
                Fate::Expired => job.answer(Err(Failure::Deadline)),
                Fate::Run => {
                    if let Err(job) = batch.offer(job, self.batch_tokens) {
                        self.held = Some(job);
                        break;
                    }
                }
            }
        }
        batch.jobs.iter_mut().for_each(|job| job.load.leave_queue());
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
                batch.jobs.into_iter().for_each(|job| self.dismiss(job));
                None
            }
            Err(Fault::Error(_)) => self.run_one_by_one(forward, batch),
        }
    }

    /// Ends a job that nobody waits for any more.
    fn dismiss(&self, job: Job) {
        match fate(job.reply.is_closed(), job.deadline, Instant::now()) {
            Fate::Cancelled => self.queue.metrics().cancelled.inc(),
            Fate::Expired | Fate::Run => job.answer(Err(Failure::Deadline)),
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

    /// Answers everything that waits: there is no executor to wait for.
    fn refuse_queue(&mut self) {
        while let Some(job) = self.next_job() {
            job.answer(Err(Failure::Down));
        }
    }
}

impl Actor for Executor {
    type Context = Context<Self>;

    fn stopped(&mut self, _: &mut Self::Context) {
        self.refuse_queue();
    }
}

impl Handler<Build> for Executor {
    type Result = ();

    fn handle(&mut self, build: Build, ctx: &mut Self::Context) {
        // What the last one held is given back first: two members may not fit.
        self.forward = None;
        self.strikes = Strikes::default();
        let built = catch_unwind(AssertUnwindSafe(|| (self.factory)(&build.progress)));
        match built {
            Ok(Ok(Loaded { forward, face })) => {
                self.forward = Some(forward);
                self.report(Event::Ready(face));
                ctx.notify(Wake);
            }
            Ok(Err(error)) => {
                self.refuse_queue();
                self.report(Event::BuildFailed { reason: error.to_string() });
            }
            Err(_) => {
                self.refuse_queue();
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
            return self.report(event);
        }
        self.forward = Some(forward);
        if self.has_work() {
            ctx.notify(Wake);
        }
    }
}

impl Job {
    /// Sends the job's only reply; a submitter that left does not read it. The job is un-counted first: who has an
    /// answer is under way no longer.
    fn answer(self, reply: Result<Computed, Failure>) {
        drop(self.load);
        let _ = self.reply.send(reply);
    }
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
    let logits = catch_unwind(AssertUnwindSafe(|| forward.forward(&trees, &|| Batch::is_wanted(jobs))))
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
        let queue = started.saturating_duration_since(job.submitted);
        job.answer(Ok(Computed { logits, queue, forward }));
    }
}

fn refuse_all(jobs: impl IntoIterator<Item = Job>, failure: &Failure) {
    for job in jobs {
        job.answer(Err(failure.clone()));
    }
}
