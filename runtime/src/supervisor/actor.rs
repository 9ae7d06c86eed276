//! The supervisor actor.

use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{Actor, Addr, Arbiter, AsyncContext, Context, Handler, Message};
use tokio::sync::watch;

use super::backoff::{Backoff, Policy};
use super::roster::{ExecutorState, Listing, Member, Replica, Roster};
use crate::executor::{Build, Event, Executor, Factory, Handle, LoadProgress, Queue, Report};
use crate::metrics::Metrics;

/// How often lost executors are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A member to serve and the devices to serve it on.
pub struct Seat {
    pub listing: Listing,
    pub placements: Vec<Placement>,
}

/// One device of a member, and how to load the member on it.
pub struct Placement {
    pub device: String,
    pub factory: Factory,
}

/// What every executor is given.
#[derive(Clone, Debug)]
pub struct Settings {
    pub default_model: Option<String>,
    pub batch_tokens: usize,
    pub backoff: Policy,
}

/// Starts executors, watches them and builds failed ones again. The only writer of the [`Roster`].
pub struct Supervisor {
    placed: Vec<Placed>,
    roster: watch::Sender<Arc<Roster>>,
    metrics: Arc<Metrics>,
    backoff: Policy,
}

/// An executor, and where the roster has it.
struct Placed {
    member: usize,
    replica: usize,
    name: String,
    device: String,
    executor: Addr<Executor>,
    queue: Arc<Queue>,
    /// Its thread ended, which nothing in it should be able to make happen.
    is_lost: bool,
    loading_since: Instant,
    ready_since: Option<Instant>,
    failures: Backoff,
}

/// Asks that new work be refused from now on.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Drain;

/// Asks for another build of a failed executor.
#[derive(Message)]
#[rtype(result = "()")]
struct Rebuild(usize);

impl Supervisor {
    /// Starts an executor for every placement, all loading at once, and returns the roster that follows them.
    pub fn start_all(
        seats: Vec<Seat>,
        settings: Settings,
        metrics: Arc<Metrics>,
    ) -> (Addr<Supervisor>, watch::Receiver<Arc<Roster>>) {
        let (sender, roster) = watch::channel(Arc::new(Roster::default()));
        let supervisor = Supervisor::create(|ctx| {
            let mut supervisor = Supervisor { placed: Vec::new(), roster: sender, metrics, backoff: settings.backoff };
            let seats = seats.into_iter().enumerate();
            let members = seats.map(|(member, seat)| supervisor.seat(member, seat, &settings, ctx)).collect();
            let default_model = settings.default_model;
            supervisor.roster.send_replace(Arc::new(Roster { members, default_model, draining: false }));
            supervisor
        });
        (supervisor, roster)
    }

    fn seat(&mut self, member: usize, seat: Seat, settings: &Settings, ctx: &mut Context<Self>) -> Member {
        let name = seat.listing.name.clone();
        let replicas = seat.placements.into_iter().enumerate().map(|(replica, Placement { device, factory })| {
            let queue = Queue::new(self.metrics.executor(&name, &device));
            let executor = start_executor(self.placed.len(), &device, factory, &queue, settings.batch_tokens, ctx);
            let progress = Arc::new(LoadProgress::default());
            executor.do_send(Build { progress: Arc::clone(&progress) });
            let handle = Handle::new(Arc::clone(&queue), executor.clone());
            self.placed.push(Placed {
                member,
                replica,
                name: name.clone(),
                device: device.clone(),
                executor,
                queue,
                is_lost: false,
                loading_since: Instant::now(),
                ready_since: None,
                failures: Backoff::default(),
            });
            Replica { device, state: ExecutorState::Loading(progress), handle }
        });
        let replicas = replicas.collect();
        Member { listing: Arc::new(seat.listing), face: None, replicas }
    }

    /// Publishes a roster in which `change` has been made.
    fn publish(&self, change: impl FnOnce(&mut Roster)) {
        self.roster.send_modify(|roster| change(Arc::make_mut(roster)));
    }

    fn set_state(&self, placement: usize, state: ExecutorState) {
        let Placed { member, replica, .. } = self.placed[placement];
        self.publish(|roster| roster.members[member].replicas[replica].state = state);
    }

    /// Takes a failed executor out of service and has it built again after its pause.
    fn failed(&mut self, placement: usize, cause: &'static str, state: ExecutorState, ctx: &mut Context<Self>) {
        self.set_state(placement, state);
        let policy = self.backoff;
        let placed = &mut self.placed[placement];
        let served = placed.ready_since.take().map_or(Duration::ZERO, |since| since.elapsed());
        let pause = placed.failures.after_failure(served, &policy);
        self.metrics.restarted(&placed.name, &placed.device, cause);
        tracing::info!(member = placed.name, device = placed.device, pause_ms = pause.as_millis(), "builds again");
        ctx.notify_later(Rebuild(placement), pause);
    }

    /// Takes executors out of service whose thread is gone: messages to them are dropped in silence. With the thread
    /// went the factory, so only another process can build them again.
    fn look_for_lost(&mut self) {
        for placement in 0..self.placed.len() {
            let placed = &mut self.placed[placement];
            if placed.is_lost || placed.executor.connected() {
                continue;
            }
            placed.is_lost = true;
            tracing::error!(member = placed.name, device = placed.device, "the executor's thread ended");
            let reason = "the executor's thread ended; restart the server".to_owned();
            self.set_state(placement, ExecutorState::Failed { reason });
            self.placed[placement].queue.refuse_all();
        }
    }
}

/// Starts an executor on a thread of its own.
fn start_executor(
    placement: usize,
    device: &str,
    factory: Factory,
    queue: &Arc<Queue>,
    batch_tokens: usize,
    ctx: &mut Context<Supervisor>,
) -> Addr<Executor> {
    let supervisor = ctx.address().recipient();
    let queue = Arc::clone(queue);
    let thread_name = format!("exec-{device}");
    Executor::start_in_arbiter(&Arbiter::new().handle(), move |_| {
        name_thread(&thread_name);
        Executor::new(placement, factory, queue, batch_tokens, supervisor)
    })
}

/// Names the calling thread for `top` and debuggers, where `/proc` allows it. An arbiter starts its thread under a
/// name of its own.
fn name_thread(name: &str) {
    let _ = std::fs::write("/proc/thread-self/comm", name);
}

impl Actor for Supervisor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.run_interval(LOOK_EVERY, |supervisor, _| supervisor.look_for_lost());
    }
}

impl Handler<Report> for Supervisor {
    type Result = ();

    fn handle(&mut self, Report { placement, event }: Report, ctx: &mut Self::Context) {
        let placed = &mut self.placed[placement];
        let (member, device) = (placed.name.as_str(), placed.device.as_str());
        match event {
            Event::Ready(face) => {
                tracing::info!(member, device, load_s = placed.loading_since.elapsed().as_secs_f64(), "ready");
                placed.ready_since = Some(Instant::now());
                let (member, replica) = (placed.member, placed.replica);
                self.publish(|roster| {
                    let member = &mut roster.members[member];
                    member.face = Some(face);
                    member.replicas[replica].state = ExecutorState::Ready;
                });
            }
            Event::BuildFailed { reason } => {
                tracing::error!(member, device, reason, "could not be loaded");
                self.failed(placement, "load", ExecutorState::Failed { reason }, ctx);
            }
            Event::Panicked => {
                tracing::error!(member, device, "the forward panicked");
                let reason = "the forward panicked".to_owned();
                self.failed(placement, "panic", ExecutorState::Restarting { reason }, ctx);
            }
            Event::Failing { reason } => {
                tracing::error!(member, device, reason, "the forward fails");
                self.failed(placement, "error", ExecutorState::Restarting { reason }, ctx);
            }
        }
    }
}

impl Handler<Rebuild> for Supervisor {
    type Result = ();

    fn handle(&mut self, Rebuild(placement): Rebuild, _: &mut Self::Context) {
        if self.placed[placement].is_lost {
            return;
        }
        let progress = Arc::new(LoadProgress::default());
        self.set_state(placement, ExecutorState::Loading(Arc::clone(&progress)));
        let placed = &mut self.placed[placement];
        placed.loading_since = Instant::now();
        placed.executor.do_send(Build { progress });
    }
}

impl Handler<Drain> for Supervisor {
    type Result = ();

    fn handle(&mut self, Drain: Drain, _: &mut Self::Context) {
        tracing::info!("draining: new work is refused");
        self.publish(|roster| roster.draining = true);
    }
}
