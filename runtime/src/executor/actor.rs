//! The executor actor: building, one batch per message, faults.
//!
//! A message runs one batch and asks for the next, so that other messages get their turn between two batches. A fault
//! closes the queue first: what waits is computed elsewhere while this device is built again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{Actor, ActorContext, Arbiter, AsyncContext, Context, Handler, Message, Recipient};

use super::batch::Batch;
use super::health::Strikes;
use super::job::{Computed, Failure, Job};
use super::{Face, Factory, LoadProgress, Loaded, Queue};
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

/// Says that nobody can give it work or waits for any: it gives its device back and ends.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Retire;

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
    /// It has given its device back.
    Retired,
}

/// How batches are formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batching {
    /// Tokens of one batch, unless a single request has more.
    pub tokens: usize,
    /// How long a batch that is not full waits for company, after another one ended. An idle device never waits.
    pub window: Duration,
}

/// Owns one device's forward.
pub struct Executor {
    placement: usize,
    factory: Factory,
    queue: Arc<Queue>,
    batching: Batching,
    /// When the last batch ended: whoever came before has met a busy device.
    ended: Instant,
    /// Until when the next batch waits for company.
    waits_until: Option<Instant>,
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
        batching: Batching,
        supervisor: Recipient<Report>,
    ) -> Self {
        let (forward, strikes) = (None, Strikes::default());
        let ended = Instant::now();
        Executor { placement, factory, queue, batching, ended, waits_until: None, supervisor, forward, strikes }
    }

    fn report(&self, event: Event) {
        self.supervisor.do_send(Report { placement: self.placement, event });
    }

    /// Whole requests, in turn, up to the tokens of a batch. Nobody overtakes the one whose turn it is, so that a long
    /// request is not starved by short ones. What nobody waits for is dropped here, before it costs the device anything.
    fn next_batch(&self) -> Batch {
        let now = Instant::now();
        let mut batch = Batch::default();
        let joins = |batch: &Batch, job: &Job| !job.waiters.is_wanted(now) || batch.has_room(job, self.batching.tokens);
        while let Some(job) = self.queue.next_if(|job| joins(&batch, job)) {
            if job.waiters.begin(now) {
                batch.push(job);
            } else {
                job.refuse(&Failure::Deadline);
            }
        }
        batch
    }

    /// Whether the next batch is still to wait for company.
    fn is_waiting(&self, now: Instant) -> bool {
        let is_full = || self.queue.waiting_tokens() >= self.batching.tokens;
        self.waits_until.is_some_and(|until| now < until) && !is_full()
    }

    /// Has the next batch formed: now, or when it had time to find company.
    fn continue_soon(&mut self, ctx: &mut Context<Self>) {
        let Some(oldest) = self.queue.oldest() else { return };
        let wait = self.batching.window.saturating_sub(oldest.elapsed());
        if wait.is_zero() || oldest > self.ended {
            ctx.notify(Wake);
        } else {
            self.waits_until = Some(Instant::now() + wait);
            ctx.notify_later(Wake, wait);
        }
    }

    /// Drops a forward that is not used again, with all that it has kept. A device that failed may fail at this, too: it
    /// must not cost the thread.
    fn discard(&self, forward: Option<Box<dyn Forward>>) {
        let Some(forward) = forward else { return };
        self.queue.metrics().prefix_cache.dropped(&forward.tally());
        let _ = catch_unwind(AssertUnwindSafe(|| drop(forward)));
    }

    /// Takes this executor out of service until it is built again.
    fn down(&mut self, event: Event) {
        self.queue.close();
        self.report(event);
    }

    /// Runs a batch and answers all of it. Returns what ends this forward, if anything did.
    fn run(&mut self, forward: &mut dyn Forward, batch: Batch) -> Option<Event> {
        let metrics = self.queue.metrics();
        metrics.batch_requests.observe(batch.jobs.len() as f64);
        let (started, before) = (Instant::now(), forward.tally());
        let result = guarded_forward(forward, &batch.jobs);
        self.ended = Instant::now();
        metrics.batch_done(&before, &forward.tally());
        match result {
            Ok(logits) => {
                let time = started.elapsed();
                self.queue.load().rate.observe(batch.jobs.iter().map(|job| job.tokens).sum(), time);
                self.strikes.succeeded();
                answer_all(batch.jobs, logits, started, time);
                None
            }
            Err(Fault::Panic) => {
                // Closed before anybody hears of it: nobody may come back to this executor.
                self.queue.close();
                refuse_all(batch.jobs, &Failure::Lost { is_suspect: true });
                Some(Event::Panicked)
            }
            Err(Fault::Error(reason)) if batch.jobs.len() == 1 => {
                refuse_all(batch.jobs, &Failure::Inference { reason: reason.clone() });
                self.strikes.failed().then_some(Event::Failing { reason })
            }
            Err(Fault::Abandoned) => {
                batch.jobs.into_iter().for_each(Job::abandon);
                None
            }
            Err(Fault::Error(_)) => self.run_one_by_one(forward, batch),
        }
    }

    /// A batch failed: one of its requests may be to blame, and the others must not pay for it.
    fn run_one_by_one(&mut self, forward: &mut dyn Forward, batch: Batch) -> Option<Event> {
        let mut jobs = batch.jobs.into_iter();
        while let Some(job) = jobs.next() {
            let mut alone = Batch::default();
            alone.push(job);
            if let Some(event) = self.run(forward, alone) {
                self.queue.close();
                refuse_all(jobs, &Failure::Lost { is_suspect: false });
                return Some(event);
            }
        }
        None
    }
}

impl Actor for Executor {
    type Context = Context<Self>;

    fn stopped(&mut self, _: &mut Self::Context) {
        self.queue.close();
    }
}

/// Also where its thread ends without a word.
impl Drop for Executor {
    fn drop(&mut self) {
        let forward = self.forward.take();
        self.discard(forward);
    }
}

impl Handler<Build> for Executor {
    type Result = ();

    fn handle(&mut self, build: Build, ctx: &mut Self::Context) {
        // What the last one held is given back first: two members may not fit.
        let forward = self.forward.take();
        self.discard(forward);
        self.strikes = Strikes::default();
        let built = catch_unwind(AssertUnwindSafe(|| (self.factory)(&build.progress)));
        match built {
            Ok(Ok(Loaded { forward, face })) => {
                self.forward = Some(forward);
                self.queue.open();
                self.report(Event::Ready(face));
                ctx.notify(Wake);
            }
            Ok(Err(error)) => self.down(Event::BuildFailed { reason: error.to_string() }),
            Err(_) => self.down(Event::BuildFailed { reason: "the loader panicked".into() }),
        }
    }
}

impl Handler<Wake> for Executor {
    type Result = ();

    fn handle(&mut self, Wake: Wake, ctx: &mut Self::Context) {
        self.queue.wake_arrived();
        if self.is_waiting(Instant::now()) {
            return;
        }
        self.waits_until = None;
        // Out of the actor while it runs, so that a forward that failed is gone whatever happens next.
        let Some(mut forward) = self.forward.take() else { return };
        let batch = self.next_batch();
        let event = if batch.jobs.is_empty() { None } else { self.run(forward.as_mut(), batch) };
        if let Some(event) = event {
            self.queue.close();
            self.discard(Some(forward));
            return self.report(event);
        }
        self.forward = Some(forward);
        self.continue_soon(ctx);
    }
}

impl Handler<Retire> for Executor {
    type Result = ();

    fn handle(&mut self, Retire: Retire, ctx: &mut Self::Context) {
        let forward = self.forward.take();
        self.discard(forward);
        self.down(Event::Retired);
        ctx.stop();
        Arbiter::current().stop();
    }
}

/// Whether anybody still waits for any of `jobs`.
fn is_wanted(jobs: &[Job]) -> bool {
    let now = Instant::now();
    jobs.iter().any(|job| job.waiters.is_wanted(now))
}

/// Why a forward gave nothing.
enum Fault {
    Panic,
    /// Nobody waits for any job of the batch any more.
    Abandoned,
    Error(String),
}

/// Runs the trees of all `jobs`, in order, in one call. A panic is caught here: the forward is not used again after
/// one, so nothing sees what it left half done. Its payload is dropped unread.
fn guarded_forward(forward: &mut dyn Forward, jobs: &[Job]) -> Result<Vec<Vec<Logits>>, Fault> {
    let trees: Vec<&Tree> = jobs.iter().flat_map(|job| &job.plan.trees).collect();
    let logits = catch_unwind(AssertUnwindSafe(|| forward.forward(&trees, &|| is_wanted(jobs))))
        .map_err(|_| Fault::Panic)?
        .map_err(|error| match error {
            ModelError::Abandoned => Fault::Abandoned,
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
        job.answer(Computed { logits, queue, forward });
    }
}

fn refuse_all(jobs: impl IntoIterator<Item = Job>, failure: &Failure) {
    for job in jobs {
        job.refuse(failure);
    }
}
