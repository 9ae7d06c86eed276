//! The supervisor actor: executors in their lives, and the roster that shows them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{Actor, Addr, Arbiter, AsyncContext, Context, Handler, Message};
use tokio::sync::watch;

use super::backoff::{Backoff, Policy, Verdict};
use super::reload::{Claims, Reload, ReloadError, Reloaded, Room};
use super::roster::{ExecutorState, Listing, Member, Replica, Roster};
use super::{Demand, Seat};
use crate::executor::{Batching, Build, Event, Executor, Face, Factory, Handle, LoadProgress, Queue, Report, Standing};
use crate::metrics::Metrics;

/// How often lost executors are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What every executor is given.
#[derive(Clone, Debug)]
pub struct Settings {
    pub default_model: Option<String>,
    pub backoff: Policy,
}

/// Starts executors, watches them and builds failed ones again. The only writer of the [`Roster`].
pub struct Supervisor {
    listings: Vec<Arc<Listing>>,
    /// By the number under which they were started, which reports name.
    placed: BTreeMap<usize, Placed>,
    next_number: usize,
    settings: Settings,
    is_draining: bool,
    roster: watch::Sender<Arc<Roster>>,
    metrics: Arc<Metrics>,
    threads: Threads,
}

/// Starts a thread for an executor.
pub(super) type Threads = Box<dyn Fn() -> io::Result<Arbiter>>;

/// An executor.
struct Placed {
    member: String,
    device: String,
    fingerprint: String,
    demand: Option<Demand>,
    batching: Batching,
    factory: Factory,
    queue: Arc<Queue>,
    /// Absent while it has no thread: before its first build, and after its thread was found to have ended.
    executor: Option<Addr<Executor>>,
    /// Gone once it retires: it ends when the last request has let go of it, too.
    handle: Option<Handle>,
    role: Role,
    state: ExecutorState,
    face: Option<Arc<Face>>,
    /// What its last replay said.
    standing: Standing,
    /// Whether requests wait for it, because a reload has stopped what served before.
    is_awaited: bool,
    loading_since: Instant,
    ready_since: Option<Instant>,
    failures: Backoff,
    /// Counts builds, so that a pause that ends after a reload has built already is not heeded.
    builds: u64,
}

/// What an executor is in the deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// It is part of it.
    Current,
    /// It will be, once those before it have given back what they hold.
    Held,
    /// It was, and serves until its successors do.
    Former,
    /// It finishes what it has.
    Retiring,
}

/// Asks that new work be refused from now on.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Drain;

/// Asks for another build of a failed executor, unless it had one since.
#[derive(Message)]
#[rtype(result = "()")]
struct Rebuild {
    placement: usize,
    builds: u64,
}

impl Supervisor {
    /// Starts an executor for every placement, all loading at once, and returns the roster that follows them.
    pub fn start_all(
        seats: Vec<Seat>,
        settings: Settings,
        metrics: Arc<Metrics>,
    ) -> (Addr<Supervisor>, watch::Receiver<Arc<Roster>>) {
        Self::start_all_on(Box::new(Arbiter::try_new), seats, settings, metrics)
    }

    pub(super) fn start_all_on(
        threads: Threads,
        seats: Vec<Seat>,
        settings: Settings,
        metrics: Arc<Metrics>,
    ) -> (Addr<Supervisor>, watch::Receiver<Arc<Roster>>) {
        let (sender, roster) = watch::channel(Arc::new(Roster::default()));
        let supervisor = Supervisor::create(|ctx| {
            let mut supervisor = Supervisor {
                listings: Vec::new(),
                placed: BTreeMap::new(),
                next_number: 0,
                settings,
                is_draining: false,
                roster: sender,
                metrics,
                threads,
            };
            supervisor.seat_all(seats, false, ctx);
            supervisor
        });
        (supervisor, roster)
    }

    /// Makes `seats` the deployment. Placements that have an executor of the same fingerprint keep it.
    fn seat_all(&mut self, seats: Vec<Seat>, stops_first: bool, ctx: &mut Context<Self>) -> Reloaded {
        let mut done = Reloaded::default();
        let awaited = self.placed.values().filter(|placed| placed.is_awaited).map(|placed| placed.member.clone());
        let awaited: BTreeSet<String> = awaited.collect();
        for placed in self.placed.values_mut().filter(|placed| placed.role != Role::Retiring) {
            placed.role = Role::Former;
        }
        self.listings.clear();
        for Seat { listing, placements } in seats {
            for placement in placements {
                if let Some(number) = self.find_former(&listing.name, &placement.device, &placement.fingerprint) {
                    self.keep(number, stops_first, ctx);
                    done.kept += 1;
                } else {
                    let role = if stops_first { Role::Held } else { Role::Current };
                    let is_awaited = stops_first || awaited.contains(&listing.name);
                    self.place(&listing.name, placement, role, is_awaited, ctx);
                    done.started += 1;
                }
            }
            self.listings.push(Arc::new(listing));
        }
        done.stopped = self.of_role(Role::Former).len();
        for number in self.of_role(Role::Former) {
            let Some(former) = self.placed.get_mut(&number) else { continue };
            former.is_awaited = false;
            // One that was never built, or failed, would serve nobody until its successors do.
            if stops_first || !former.is_alive() {
                self.retire(number);
            }
        }
        self.settle(ctx);
        done
    }

    fn find_former(&self, member: &str, device: &str, fingerprint: &str) -> Option<usize> {
        let is_it = |placed: &Placed| {
            placed.role == Role::Former
                && placed.member == member
                && placed.device == device
                && placed.fingerprint == fingerprint
        };
        self.placed.iter().find(|(_, placed)| is_it(placed)).map(|(number, _)| *number)
    }

    fn of_role(&self, role: Role) -> Vec<usize> {
        self.placed.iter().filter(|(_, placed)| placed.role == role).map(|(number, _)| *number).collect()
    }

    /// Keeps an executor. One that has failed is built as soon as there is room: the cause may have been mended.
    fn keep(&mut self, number: usize, stops_first: bool, ctx: &mut Context<Self>) {
        let Some(placed) = self.placed.get_mut(&number) else { return };
        let has_failed = matches!(placed.state, ExecutorState::Failed { .. } | ExecutorState::Quarantined { .. });
        // What was never built still waits for what an earlier deployment had stopped.
        let is_held = placed.builds == 0 || (stops_first && has_failed);
        placed.role = if is_held { Role::Held } else { Role::Current };
        if has_failed && !is_held {
            ctx.notify(Rebuild { placement: number, builds: placed.builds });
        }
    }

    /// Adds an executor. It is started at once if it is `Current`.
    fn place(
        &mut self,
        member: &str,
        placement: super::Placement,
        role: Role,
        is_awaited: bool,
        ctx: &mut Context<Self>,
    ) {
        let super::Placement { device, fingerprint, demand, batching, factory } = placement;
        let number = self.next_number;
        self.next_number += 1;
        let queue = Queue::new(self.metrics.executor(member, &device));
        let placed = Placed {
            member: member.to_owned(),
            device,
            fingerprint,
            demand,
            batching,
            factory,
            handle: Some(Handle::new(Arc::clone(&queue), nobody())),
            queue,
            executor: None,
            role,
            state: ExecutorState::Loading(Arc::default()),
            face: None,
            standing: Standing::Unverified,
            is_awaited,
            loading_since: Instant::now(),
            ready_since: None,
            failures: Backoff::default(),
            builds: 0,
        };
        self.placed.insert(number, placed);
        if role == Role::Current {
            self.build(number, ctx);
        }
    }

    /// Has an executor load, on another thread if it has none.
    fn build(&mut self, number: usize, ctx: &mut Context<Self>) {
        let Some(placed) = self.placed.get_mut(&number) else { return };
        let progress = Arc::new(LoadProgress::default());
        placed.state = ExecutorState::Loading(Arc::clone(&progress));
        placed.loading_since = Instant::now();
        placed.builds += 1;
        if placed.is_lost() {
            tracing::error!(member = placed.member, device = placed.device, "the executor's thread ended");
            self.metrics.restarted(&placed.member, &placed.device, "lost");
            placed.executor = None;
        }
        let executor = match placed.executor.clone().map_or_else(|| placed.start_on(&self.threads, number, ctx), Ok) {
            Ok(executor) => executor,
            Err(error) => {
                let reason = format!("no thread for the executor: {error}");
                tracing::error!(member = placed.member, device = placed.device, reason, "could not be loaded");
                return self.failed(number, "load", |reason| ExecutorState::Failed { reason }, reason, ctx);
            }
        };
        executor.do_send(Build { progress });
    }

    /// Lets go of an executor: requests that have it finish, and then it ends.
    fn retire(&mut self, number: usize) {
        let Some(placed) = self.placed.get_mut(&number) else { return };
        tracing::info!(member = placed.member, device = placed.device, "retires once it has answered what it has");
        placed.role = Role::Retiring;
        placed.is_awaited = false;
        placed.handle = None;
        if placed.executor.is_none() {
            self.remove(number);
        }
    }

    /// After any change: what has served its time retires, what waited for room is built, and everybody is told.
    fn settle(&mut self, ctx: &mut Context<Self>) {
        for number in self.of_role(Role::Former) {
            if self.placed.get(&number).is_some_and(|former| self.is_succeeded(&former.member)) {
                self.retire(number);
            }
        }
        if self.of_role(Role::Retiring).is_empty() {
            for number in self.of_role(Role::Held) {
                if let Some(placed) = self.placed.get_mut(&number) {
                    placed.role = Role::Current;
                }
                self.build(number, ctx);
            }
        }
        self.publish();
    }

    /// Whether the former executors of `member` can go: it is not served any more, or by others.
    fn is_succeeded(&self, member: &str) -> bool {
        let mut current = self.placed.values().filter(|placed| placed.role == Role::Current && placed.member == member);
        let is_listed = self.listings.iter().any(|listing| listing.name == member);
        let is_coming = |placed: &Placed| matches!(placed.state, ExecutorState::Loading(_));
        let (ready, coming) = current.by_ref().fold((false, false), |(ready, coming), placed| {
            (ready || placed.state.is_ready(), coming || is_coming(placed))
        });
        !is_listed || (ready && !coming)
    }

    fn publish(&self) {
        let members = self.listings.iter().map(|listing| {
            let of_member = || self.placed.values().filter(|placed| placed.member == listing.name);
            Member {
                listing: Arc::clone(listing),
                replicas: of_member().filter_map(Placed::replica).collect(),
                is_replaced: of_member().any(|placed| placed.is_awaited),
            }
        });
        let default_model = self.settings.default_model.clone();
        let roster = Roster { members: members.collect(), default_model, draining: self.is_draining };
        self.roster.send_replace(Arc::new(roster));
    }

    /// Takes a failed executor out of service and has it built again after its pause.
    fn failed(
        &mut self,
        number: usize,
        cause: &'static str,
        state: impl FnOnce(String) -> ExecutorState,
        reason: String,
        ctx: &mut Context<Self>,
    ) {
        let policy = self.settings.backoff;
        let Some(placed) = self.placed.get_mut(&number) else { return };
        let served = placed.ready_since.take().map_or(Duration::ZERO, |since| since.elapsed());
        let verdict = placed.failures.after_failure(served, &policy);
        self.metrics.restarted(&placed.member, &placed.device, cause);
        match verdict {
            Verdict::Again(pause) => {
                placed.state = state(reason);
                placed.is_awaited = false;
                let (member, device) = (&placed.member, &placed.device);
                tracing::info!(member, device, pause_ms = pause.as_millis(), "builds again");
                ctx.notify_later(Rebuild { placement: number, builds: placed.builds }, pause);
            }
            Verdict::Quarantine => self.quarantine(number, reason, ctx),
        }
    }

    fn quarantine(&mut self, number: usize, reason: String, ctx: &mut Context<Self>) {
        let pause = self.settings.backoff.quarantine;
        let Some(placed) = self.placed.get_mut(&number) else { return };
        let (member, device) = (&placed.member, &placed.device);
        tracing::error!(member, device, reason, pause_s = pause.as_secs(), "quarantined");
        placed.state = ExecutorState::Quarantined { reason };
        placed.is_awaited = false;
        ctx.notify_later(Rebuild { placement: number, builds: placed.builds }, pause);
    }

    /// Removes an executor that has ended, and what is said of its drift, unless another one has its place already.
    fn remove(&mut self, number: usize) {
        let Some(Placed { member, device, .. }) = self.placed.remove(&number) else { return };
        if !self.placed.values().any(|placed| placed.member == member && placed.device == device) {
            self.metrics.forget_drift(&member, &device);
        }
    }

    /// Takes executors out of service whose thread is gone: messages to them are dropped in silence. Those that wait
    /// to be built get another one then.
    fn look_for_lost(&mut self, ctx: &mut Context<Self>) {
        let runs = |state: &ExecutorState| matches!(state, ExecutorState::Loading(_) | ExecutorState::Ready);
        let is_due = |placed: &Placed| placed.is_lost() && (placed.role == Role::Retiring || runs(&placed.state));
        let lost = self.placed.iter().filter(|(_, placed)| is_due(placed));
        let lost: Vec<usize> = lost.map(|(number, _)| *number).collect();
        for &number in &lost {
            let Some(placed) = self.placed.get_mut(&number) else { continue };
            tracing::error!(member = placed.member, device = placed.device, "the executor's thread ended");
            placed.queue.close();
            placed.executor = None;
            if placed.role == Role::Retiring {
                self.remove(number);
                continue;
            }
            let reason = "the executor's thread ended".to_owned();
            self.failed(number, "lost", |reason| ExecutorState::Restarting { reason }, reason, ctx);
        }
        if !lost.is_empty() {
            self.settle(ctx);
        }
    }
}

impl Placed {
    /// Whether its thread has ended without being told to.
    fn is_lost(&self) -> bool {
        self.executor.as_ref().is_some_and(|executor| !executor.connected())
    }

    /// Starts it on a thread of its own, where it waits to be told to build.
    fn start_on(
        &mut self,
        threads: &Threads,
        number: usize,
        ctx: &mut Context<Supervisor>,
    ) -> io::Result<Addr<Executor>> {
        let thread = threads()?;
        let supervisor = ctx.address().recipient();
        let (factory, queue, batching) = (Arc::clone(&self.factory), Arc::clone(&self.queue), self.batching);
        let thread_name = format!("exec-{}", self.device);
        let executor = Executor::start_in_arbiter(&thread.handle(), move |_| {
            name_thread(&thread_name);
            Executor::new(number, factory, queue, batching, supervisor)
        });
        self.executor = Some(executor.clone());
        self.handle = Some(Handle::new(Arc::clone(&self.queue), executor.clone()));
        Ok(executor)
    }

    fn need_bytes(&self) -> u64 {
        self.demand.as_ref().map_or(0, |demand| demand.need.total())
    }

    /// Whether it serves, or is about to: whatever else it is, it holds no memory.
    fn is_alive(&self) -> bool {
        self.builds > 0 && matches!(self.state, ExecutorState::Ready | ExecutorState::Loading(_))
    }

    /// Its entry in the roster.
    fn replica(&self) -> Option<Replica> {
        let handle = self.handle.clone()?;
        Some(Replica {
            device: self.device.clone(),
            state: self.state.clone(),
            standing: self.standing.clone(),
            face: self.face.clone(),
            need: self.demand.as_ref().map(|demand| demand.need),
            handle,
        })
    }
}

/// The address of an executor that has no thread.
fn nobody() -> Addr<Executor> {
    Context::<Executor>::new().address()
}

/// Names the calling thread for `top` and debuggers, where `/proc` allows it. An arbiter starts its thread under a
/// name of its own.
fn name_thread(name: &str) {
    let _ = std::fs::write("/proc/thread-self/comm", name);
}

impl Actor for Supervisor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.run_interval(LOOK_EVERY, Supervisor::look_for_lost);
    }
}

impl Handler<Report> for Supervisor {
    type Result = ();

    fn handle(&mut self, Report { placement, event }: Report, ctx: &mut Self::Context) {
        let Some(placed) = self.placed.get_mut(&placement) else { return };
        let (member, device) = (placed.member.as_str(), placed.device.as_str());
        match event {
            Event::Ready { face, standing } => {
                let load_s = placed.loading_since.elapsed().as_secs_f64();
                tracing::info!(member, device, load_s, standing = standing.name(), "ready");
                placed.standing = standing;
                placed.ready_since = Some(Instant::now());
                placed.face = Some(face);
                placed.state = ExecutorState::Ready;
                placed.is_awaited = false;
            }
            Event::Judged(standing) => {
                tracing::info!(member, device, standing = standing.name(), "replayed");
                placed.standing = standing;
            }
            Event::OutOfGate { reason } => {
                self.metrics.restarted(member, device, "drift");
                placed.ready_since = None;
                self.quarantine(placement, reason, ctx);
            }
            Event::BuildFailed { reason } => {
                tracing::error!(member, device, reason, "could not be loaded");
                self.failed(placement, "load", |reason| ExecutorState::Failed { reason }, reason, ctx);
            }
            Event::Panicked => {
                tracing::error!(member, device, "the forward panicked");
                let reason = "the forward panicked".to_owned();
                self.failed(placement, "panic", |reason| ExecutorState::Restarting { reason }, reason, ctx);
            }
            Event::Failing { reason } => {
                tracing::error!(member, device, reason, "the forward fails");
                self.failed(placement, "error", |reason| ExecutorState::Restarting { reason }, reason, ctx);
            }
            Event::Retired => {
                tracing::info!(member, device, "retired");
                self.remove(placement);
            }
        }
        self.settle(ctx);
    }
}

impl Handler<Rebuild> for Supervisor {
    type Result = ();

    fn handle(&mut self, Rebuild { placement, builds }: Rebuild, ctx: &mut Self::Context) {
        let is_due = |placed: &Placed| placed.builds == builds && !matches!(placed.role, Role::Retiring | Role::Held);
        if self.placed.get(&placement).is_some_and(is_due) {
            self.build(placement, ctx);
            self.publish();
        }
    }
}

impl Handler<Drain> for Supervisor {
    type Result = ();

    fn handle(&mut self, Drain: Drain, _: &mut Self::Context) {
        tracing::info!("draining: new work is refused");
        self.is_draining = true;
        self.publish();
    }
}

impl Handler<Reload> for Supervisor {
    type Result = Result<Reloaded, ReloadError>;

    fn handle(&mut self, reload: Reload, ctx: &mut Self::Context) -> Self::Result {
        let Reload { seats, settings, host_bytes } = reload;
        let keeps = |placed: &Placed| {
            if placed.role == Role::Retiring {
                return false;
            }
            let of_member = seats.iter().filter(|seat| seat.listing.name == placed.member);
            let mut placements = of_member.flat_map(|seat| &seat.placements);
            placements.any(|it| it.device == placed.device && it.fingerprint == placed.fingerprint)
        };
        let (kept, gone): (Vec<&Placed>, Vec<&Placed>) = self.placed.values().partition(|placed| keeps(placed));
        let is_kept = |seat: &Seat, placement: &super::Placement| {
            kept.iter().any(|placed| placed.member == seat.listing.name && placed.device == placement.device)
        };
        let wanted = seats.iter().flat_map(|seat| seat.placements.iter().filter(|it| !is_kept(seat, it)));
        let wanted: Vec<Demand> = wanted.filter_map(|placement| placement.demand.clone()).collect();
        let claims = Claims {
            kept: kept.iter().map(|placed| placed.need_bytes()).sum(),
            gone: gone.iter().filter(|placed| placed.is_alive()).map(|placed| placed.need_bytes()).sum(),
        };
        let room = host_bytes.map_or(Ok(Room::Beside), |bytes| Room::find(&wanted, &claims, bytes))?;
        if room == Room::After {
            tracing::warn!("old and new executors do not fit together: the old ones stop first, and requests wait");
        }
        if seats.iter().any(|seat| seat.placements.iter().any(|it| !is_kept(seat, it))) {
            // Whether there is a thread at all is better known before anything stops.
            (self.threads)().map_err(|error| ReloadError::Thread(error.to_string()))?.stop();
        }
        self.settings = settings;
        Ok(self.seat_all(seats, room == Room::After, ctx))
    }
}
