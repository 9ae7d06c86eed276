//! The executor actor: building, one batch per message, replays on idle time, faults.
//!
//! A message runs one batch and asks for the next, so that other messages get their turn between two batches. A fault
//! closes the queue first: what waits is computed elsewhere while this device is built again. A recorded case is replayed
//! only while nothing waits, one per message, and given up for whatever comes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{Actor, ActorContext, Arbiter, AsyncContext, Context, Handler, Message, Recipient, SpawnHandle};
use synod_config::OnDrift;

use super::batch::{Batch, Budget};
use super::drift::{Replay, Round, Standing};
use super::job::{Computed, Failure, Job};
use super::{Face, Factory, LoadProgress, Loaded, Queue};
use crate::family::{Family, Logits, Tree};
use crate::model::{Forward, ModelError};
use crate::wire::response::StateError;

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

/// Says that it is time for another round of replays.
#[derive(Message)]
#[rtype(result = "()")]
struct ReplayDue;

/// Asks for the next case of the round, if nothing waits.
#[derive(Message)]
#[rtype(result = "()")]
struct ReplayNext;

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
    /// The member is loaded and was held to its recorded cases.
    Ready { face: Arc<Face>, standing: Standing },
    /// A replay said something else than the one before; it serves on.
    Judged(Standing),
    /// It is out of its gates and does not serve any more. `reason` names the first case and its place.
    OutOfGate { reason: String },
    /// The member could not be loaded.
    BuildFailed { reason: String },
    /// The forward panicked.
    Panicked,
    /// The device or the member failed, with no request to blame.
    Failing { reason: String },
    /// It has given its device back.
    Retired,
}

/// How batches are formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batching {
    /// Tokens of one batch at most, unless a single request has more. A slow device takes fewer (see [`Budget`]).
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
    /// What the member that was built is held to.
    replay: Option<Replay>,
    /// What the last round said.
    standing: Standing,
    /// Present while a round is under way.
    round: Option<Round>,
    /// The wait for the next round.
    next_round: SpawnHandle,
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
        Executor {
            placement,
            factory,
            queue,
            batching,
            ended: Instant::now(),
            waits_until: None,
            supervisor,
            forward: None,
            replay: None,
            standing: Standing::Unverified,
            round: None,
            next_round: SpawnHandle::default(),
        }
    }

    fn report(&self, event: Event) {
        self.supervisor.do_send(Report { placement: self.placement, event });
    }

    /// Tokens of the next batch.
    fn budget(&self) -> Budget {
        Budget::of(&self.queue.load().rate, self.batching.tokens)
    }

    /// Whole requests, in turn, up to the tokens of a batch. Nobody overtakes the one whose turn it is, so that a long
    /// request is not starved by short ones. What nobody waits for is dropped here, before it costs the device anything.
    fn next_batch(&self) -> Batch {
        let now = Instant::now();
        let (mut batch, budget) = (Batch::default(), self.budget());
        let joins = |batch: &Batch, job: &Job| !job.waiters.is_wanted(now) || batch.has_room(job, budget);
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

    /// Builds the member, has it compute something of every kind and holds it to its recorded cases.
    ///
    /// # Errors
    /// Why it cannot serve.
    fn build(&mut self, build: &Build) -> Result<(Arc<Face>, Standing), Event> {
        let failed = |reason: String| Event::BuildFailed { reason };
        let built = catch_unwind(AssertUnwindSafe(|| (self.factory)(&build.progress)));
        let built = built.map_err(|_| failed("the loader panicked".into()))?;
        let Loaded { mut forward, face, replay } = built.map_err(|error| failed(error.to_string()))?;
        let first = if let Err(reason) = warm_up(&mut *forward, &*face.family) {
            Err(failed(format!("warm-up: {reason}")))
        } else if let Some(replay) = &replay {
            self.first_round(&mut *forward, replay)
        } else {
            self.queue.metrics().drift.unverified();
            Ok(Standing::Unverified)
        };
        let standing = match first {
            Ok(standing) => standing,
            Err(event) => {
                self.discard(Some(forward));
                return Err(event);
            }
        };
        (self.forward, self.replay, self.standing) = (Some(forward), replay, standing.clone());
        Ok((face, standing))
    }

    /// Replays every case, so that all that is wrong is told at once.
    fn first_round(&self, forward: &mut dyn Forward, replay: &Replay) -> Result<Standing, Event> {
        let metrics = &self.queue.metrics().drift;
        metrics.begin(replay.cases.names(), replay.cases.gates());
        let mut round = Round::default();
        while !round.is_over(replay) {
            if let Err(fault) = round.replay_next(forward, replay, &|| true, true, metrics) {
                return Err(Event::BuildFailed { reason: format!("replay of recorded cases: {fault}") });
            }
        }
        let standing = round.standing();
        metrics.judged(standing == Standing::Verified);
        match (standing, replay.on_drift) {
            (Standing::Drifted { reason }, OnDrift::Quarantine) => Err(Event::OutOfGate { reason }),
            (standing, _) => Ok(standing),
        }
    }

    /// Has the next round begin after its time.
    fn wait_for_round(&mut self, ctx: &mut Context<Self>) {
        self.round = None;
        ctx.cancel_future(self.next_round);
        if let Some(replay) = &self.replay {
            self.next_round = ctx.notify_later(ReplayDue, replay.every);
        }
    }

    /// Replays the next case of the round. Returns what takes this executor out of service, if anything does.
    fn continue_round(&mut self, ctx: &mut Context<Self>) -> Option<Event> {
        let (replay, round) = (self.replay.clone()?, self.round.as_mut()?);
        let metrics = &self.queue.metrics().drift;
        if !round.is_over(&replay) {
            let is_overdue = round.is_overdue();
            let is_idle = || is_overdue || self.queue.oldest().is_none();
            match round.replay_next(&mut **self.forward.as_mut()?, &replay, &is_idle, false, metrics) {
                Ok(true) => {}
                Ok(false) => metrics.judged(false),
                Err(Fault::Abandoned) => {
                    round.interrupt();
                    return None;
                }
                // The same request was computed before: it is not to blame.
                Err(fault) => return Some(fault.into_event()),
            }
        }
        let standing = round.standing();
        if let (Standing::Drifted { reason }, OnDrift::Quarantine) = (&standing, replay.on_drift) {
            return Some(Event::OutOfGate { reason: reason.clone() });
        }
        if !round.is_over(&replay) {
            ctx.notify(ReplayNext);
            return None;
        }
        // A round of which nothing could be read says nothing new.
        if standing != Standing::Unverified && standing != self.standing {
            self.report(Event::Judged(standing.clone()));
            self.standing = standing;
        }
        if self.standing != Standing::Unverified {
            metrics.judged(self.standing == Standing::Verified);
        }
        self.wait_for_round(ctx);
        None
    }

    /// Goes on with a round that work has interrupted, once there is none.
    fn resume_round(&mut self, ctx: &mut Context<Self>) {
        if let Some(round) = &mut self.round
            && round.is_interrupted
            && self.queue.oldest().is_none()
        {
            round.is_interrupted = false;
            ctx.notify(ReplayNext);
        }
    }

    /// Runs a batch and answers all of it. Returns what ends this forward, if anything did.
    fn run(&mut self, forward: &mut dyn Forward, batch: Batch) -> Option<Event> {
        let metrics = self.queue.metrics();
        metrics.batch_requests.observe(batch.jobs.len() as f64);
        let (started, before) = (Instant::now(), forward.tally());
        let trees: Vec<&Tree> = batch.jobs.iter().flat_map(|job| &job.plan.trees).collect();
        let result = guarded_forward(forward, &trees, &|| is_wanted(&batch.jobs));
        self.ended = Instant::now();
        let (time, after) = (self.ended - started, forward.tally());
        metrics.batch_done(&before, &after);
        match result {
            Ok(logits) => {
                self.queue.load().rate.observe(after.tokens_computed - before.tokens_computed, time);
                answer_all(batch.jobs, logits, started, time);
                None
            }
            Err(Fault::Abandoned) => {
                self.queue.load().rate.observe_abandoned(batch.tokens(), time);
                batch.jobs.into_iter().for_each(Job::abandon);
                None
            }
            Err(Fault::Request(reason)) if batch.jobs.len() == 1 => {
                refuse_all(batch.jobs, &Failure::Inference { reason });
                None
            }
            Err(Fault::Request(_)) => self.run_one_by_one(forward, batch),
            Err(fault @ (Fault::Panic | Fault::Device(_))) => {
                // Closed before anybody hears of it: nobody may come back to this executor.
                self.queue.close();
                refuse_all(batch.jobs, &Failure::Lost { is_suspect: true });
                Some(fault.into_event())
            }
        }
    }

    /// One of the requests of a batch is to blame, and the others must not pay for it.
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
        (self.replay, self.standing) = (None, Standing::Unverified);
        match self.build(&build) {
            Ok((face, standing)) => {
                self.queue.open();
                self.report(Event::Ready { face, standing });
                ctx.notify(Wake);
            }
            Err(event) => self.down(event),
        }
        self.wait_for_round(ctx);
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
        self.resume_round(ctx);
    }
}

impl Handler<ReplayDue> for Executor {
    type Result = ();

    fn handle(&mut self, ReplayDue: ReplayDue, ctx: &mut Self::Context) {
        self.round = Some(Round::default());
        ctx.notify(ReplayNext);
    }
}

impl Handler<ReplayNext> for Executor {
    type Result = ();

    fn handle(&mut self, ReplayNext: ReplayNext, ctx: &mut Self::Context) {
        let Some(round) = &mut self.round else { return };
        // Whoever waits is served first: a wake for it is on its way, and comes back to the round.
        if self.queue.oldest().is_some() {
            round.is_interrupted = true;
            return;
        }
        if let Some(event) = self.continue_round(ctx) {
            // Closed before anything else, and nothing is computed with it any more.
            self.queue.close();
            (self.round, self.replay) = (None, None);
            let forward = self.forward.take();
            self.discard(forward);
            self.report(event);
        }
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
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("the forward panicked")]
    Panic,
    /// Nobody waits for any job of the batch any more.
    #[error("abandoned")]
    Abandoned,
    /// The trees are to blame.
    #[error("{0}")]
    Request(String),
    /// The device or the member is to blame, or what runs there.
    #[error("{0}")]
    Device(String),
}

impl Fault {
    /// What takes an executor out of service after it.
    fn into_event(self) -> Event {
        match self {
            Fault::Panic => Event::Panicked,
            fault => Event::Failing { reason: fault.to_string() },
        }
    }
}

/// Runs `trees` in one call. A panic is caught here: the forward is not used again after one, so nothing sees what it
/// left half done. Its payload is dropped unread.
pub(super) fn guarded_forward(
    forward: &mut dyn Forward,
    trees: &[&Tree],
    keep_going: &dyn Fn() -> bool,
) -> Result<Vec<Vec<Logits>>, Fault> {
    let logits = catch_unwind(AssertUnwindSafe(|| forward.forward(trees, keep_going)))
        .map_err(|_| Fault::Panic)?
        .map_err(|error| match error {
            ModelError::Abandoned => Fault::Abandoned,
            _ if error.is_of_request() => Fault::Request(error.to_string()),
            _ => Fault::Device(error.to_string()),
        })?;
    let fits =
        logits.len() == trees.len() && logits.iter().zip(trees).all(|(blocks, tree)| blocks.len() == tree.blocks.len());
    if fits { Ok(logits) } else { Err(Fault::Device("the forward gave another number of readouts than asked".into())) }
}

/// Computes the family's warm-up. No metric counts it, and nothing of it is kept.
///
/// # Errors
/// Why the member cannot serve.
fn warm_up(forward: &mut dyn Forward, family: &dyn Family) -> Result<(), String> {
    let plan = catch_unwind(AssertUnwindSafe(|| family.warm_up())).map_err(|_| "the family panicked".to_owned())?;
    let plan = plan.map_err(|refusal| StateError::from(refusal).message)?;
    let trees: Vec<&Tree> = plan.trees.iter().collect();
    forward.use_prefix_cache(false);
    guarded_forward(forward, &trees, &|| true).map_err(|fault| fault.to_string())?;
    forward.use_prefix_cache(true);
    Ok(())
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
