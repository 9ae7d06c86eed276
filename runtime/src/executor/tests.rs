//! Executors under their supervisor, with faults to order.

mod drift;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::{Failure, Handle, Lane, Occupied, Reply, Work};
use crate::family::{Plan, Tree};
use crate::metrics::Metrics;
use crate::supervisor::fakes::{
    ENDLESS, ERROR, HOLD, PANIC, PLAIN, SHORT, Strings, UNKNOWN, nothing, patient_settings, plan, settings,
};
use crate::supervisor::{ExecutorState, Roster, Supervisor};

struct Fixture {
    strings: Strings,
    roster: watch::Receiver<Arc<Roster>>,
    metrics: Arc<Metrics>,
}

impl Fixture {
    async fn start() -> Self {
        Self::start_with(Strings::new()).await
    }

    async fn start_with(strings: Strings) -> Self {
        let metrics = Arc::new(Metrics::new());
        let (_, roster) = Supervisor::start_all(vec![strings.seat("m")], settings(), Arc::clone(&metrics));
        let mut fixture = Fixture { strings, roster, metrics };
        fixture.ready_after(1).await;
        fixture
    }

    /// Waits until the executor serves after `loads` attempts to load it.
    async fn ready_after(&mut self, loads: usize) {
        let puppet = Arc::clone(&self.strings.puppet);
        let ready = |roster: &Arc<Roster>| {
            puppet.loads.load(Ordering::SeqCst) == loads && roster.members[0].replicas[0].is_ready()
        };
        self.roster.wait_for(ready).await.unwrap();
    }

    fn handle(&self) -> Handle {
        self.roster.borrow().members[0].replicas[0].handle.clone()
    }

    fn submit(&self, first: u32, tokens: usize) -> Reply {
        self.handle().submit(work(first, tokens))
    }

    /// Submits work that keeps the executor busy until it is let go.
    async fn hold(&mut self) -> Reply {
        let held = self.submit(HOLD, 2);
        self.strings.held().await;
        held
    }

    fn restarts(&self, reason: &str) -> u64 {
        let series = format!(r#"synod_executor_restarts_total{{device="cpu:0",member="m",reason="{reason}"}}"#);
        self.metric(&series).map_or(0, |count| count.parse().unwrap())
    }

    /// The value of a series, if it is there.
    fn metric(&self, series: &str) -> Option<String> {
        let text = self.metrics.encode().unwrap();
        text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ').map(str::to_owned))
    }

    /// Whatever happened, nothing may be left counted.
    fn assert_nothing_is_counted(&self) {
        let executor = self.metrics.executor("m", "cpu:0");
        assert_eq!(executor.queue_requests.get(), 0);
        assert_eq!(executor.queue_tokens.get(), 0);
        assert_eq!(self.handle().load_tokens(), 0);
    }
}

const LOST: Failure = Failure::Lost { is_suspect: false };
const SUSPECT: Failure = Failure::Lost { is_suspect: true };

fn work(first: u32, tokens: usize) -> Work {
    let received = Instant::now();
    Work {
        plan: Arc::new(plan(first, tokens)),
        lane: Lane::default(),
        received,
        deadline: received + Duration::from_mins(1),
        occupied: nothing(),
        is_suspect: false,
    }
}

async fn logit(reply: Reply) -> Result<f32, Failure> {
    reply.await.map(|computed| computed.logits[0][0].values[0])
}

fn is_inference(reply: &Result<f32, Failure>) -> bool {
    matches!(reply, Err(Failure::Inference { .. }))
}

#[actix::test]
async fn every_job_of_a_batch_gets_its_own_logits() {
    let mut fixture = Fixture::start().await;
    let held = fixture.hold().await;
    let replies = [11, 12, 13].map(|first| fixture.submit(first, 5));
    assert_eq!(fixture.metrics.executor("m", "cpu:0").queue_tokens.get(), 15);
    assert_eq!(fixture.handle().load_tokens(), 17);
    fixture.strings.let_go();
    assert_eq!(logit(held).await, Ok(HOLD as f32));
    for (first, reply) in [11.0, 12.0, 13.0].into_iter().zip(replies) {
        assert_eq!(logit(reply).await, Ok(first));
    }
    assert_eq!(fixture.strings.calls(), [vec![HOLD], vec![11, 12, 13]]);
    fixture.assert_nothing_is_counted();
}

#[actix::test]
async fn batches_are_filled_in_order_up_to_their_tokens() {
    let mut fixture = Fixture::start().await;
    let held = fixture.hold().await;
    let replies = [(11, 60), (12, 40), (13, 1000), (14, 50), (15, 51)].map(|(first, n)| fixture.submit(first, n));
    fixture.strings.let_go();
    assert!(logit(held).await.is_ok());
    for reply in replies {
        assert!(logit(reply).await.is_ok());
    }
    assert_eq!(fixture.strings.calls(), [vec![HOLD], vec![11, 12], vec![13], vec![14], vec![15]]);
    fixture.assert_nothing_is_counted();
}

#[actix::test]
async fn a_bad_request_fails_alone() {
    let mut fixture = Fixture::start().await;
    let held = fixture.hold().await;
    let [first, bad, last] = [11, UNKNOWN, 12].map(|first| fixture.submit(first, 5));
    fixture.strings.let_go();
    assert!(logit(held).await.is_ok());
    assert_eq!(logit(first).await, Ok(11.0));
    assert!(is_inference(&logit(bad).await));
    assert_eq!(logit(last).await, Ok(12.0));
    assert_eq!(fixture.strings.puppet.loads.load(Ordering::SeqCst), 1, "one bad request costs no rebuild");
    fixture.assert_nothing_is_counted();
}

/// Whoever waits is told at once, so that another executor may do it while this one is built again.
#[actix::test]
async fn a_panic_gives_back_its_batch_and_its_queue() {
    let mut fixture = Fixture::start().await;
    let held = fixture.hold().await;
    let [company, bad, waiting] = [(11, 50), (PANIC, 50), (12, 100)].map(|(first, n)| fixture.submit(first, n));
    fixture.strings.let_go();
    assert!(logit(held).await.is_ok());
    assert_eq!(logit(company).await, Err(SUSPECT));
    assert_eq!(logit(bad).await, Err(SUSPECT));
    assert_eq!(logit(waiting).await, Err(LOST), "it never ran");
    fixture.ready_after(2).await;
    assert_eq!(logit(fixture.submit(12, 100)).await, Ok(12.0));
    assert_eq!(fixture.restarts("panic"), 1);
    fixture.assert_nothing_is_counted();
}

/// What a forward has kept goes with it, and the metrics say so.
#[actix::test]
async fn a_panic_drops_what_was_kept() {
    let mut fixture = Fixture::start().await;
    let kept = |fixture: &Fixture| {
        let text = fixture.metrics.encode().unwrap();
        text.contains("synod_prefix_cache_bytes{device=\"cpu:0\",member=\"m\"} 5\n")
    };
    assert_eq!(logit(fixture.submit(PLAIN, 5)).await, Ok(PLAIN as f32));
    assert!(kept(&fixture));
    assert_eq!(logit(fixture.submit(PANIC, 5)).await, Err(SUSPECT));
    fixture.ready_after(2).await;
    assert!(!kept(&fixture));
    assert_eq!(logit(fixture.submit(PLAIN, 5)).await, Ok(PLAIN as f32));
    assert!(kept(&fixture), "the new one's only");
}

/// No request is to blame for a device that fails, or for logits that do not fit the plan: they would be handed to the
/// wrong request, or read out of bounds. Another executor may do better.
#[actix::test]
async fn a_device_error_gives_back_its_batch_and_builds_the_executor_again() {
    for bad in [ERROR, SHORT] {
        let mut fixture = Fixture::start().await;
        let held = fixture.hold().await;
        let [company, bad, waiting] = [(11, 50), (bad, 50), (12, 100)].map(|(first, n)| fixture.submit(first, n));
        fixture.strings.let_go();
        assert!(logit(held).await.is_ok());
        assert_eq!(logit(company).await, Err(SUSPECT));
        assert_eq!(logit(bad).await, Err(SUSPECT));
        assert_eq!(logit(waiting).await, Err(LOST), "it never ran");
        fixture.ready_after(2).await;
        assert_eq!(logit(fixture.submit(PLAIN, 5)).await, Ok(PLAIN as f32));
        assert_eq!(fixture.restarts("error"), 1);
        fixture.assert_nothing_is_counted();
    }
}

#[actix::test]
async fn work_that_nobody_waits_for_never_runs() {
    let mut fixture = Fixture::start().await;
    let held = fixture.hold().await;
    drop(fixture.submit(11, 5));
    let kept = fixture.submit(12, 5);
    fixture.strings.let_go();
    assert!(logit(held).await.is_ok());
    assert_eq!(logit(kept).await, Ok(12.0));
    assert_eq!(fixture.strings.calls(), [vec![HOLD], vec![12]]);
    fixture.assert_nothing_is_counted();
}

/// One request may be hours of work: what nobody waits for any more ends between two passes.
#[actix::test]
async fn running_work_that_nobody_waits_for_ends_at_the_next_pass() {
    let mut fixture = Fixture::start().await;
    let leaving = fixture.submit(ENDLESS, 5);
    fixture.strings.held().await;
    drop(leaving);
    assert_eq!(logit(fixture.submit(PLAIN, 5)).await, Ok(PLAIN as f32));
    assert_eq!(fixture.restarts("error"), 0, "nobody is to blame");
    fixture.assert_nothing_is_counted();
}

#[actix::test]
async fn running_work_past_its_deadline_is_told_so_at_the_next_pass() {
    let fixture = Fixture::start().await;
    let deadline = Instant::now() + Duration::from_millis(20);
    let late = fixture.handle().submit(Work { deadline, ..work(ENDLESS, 5) });
    assert_eq!(logit(late).await, Err(Failure::Deadline));
    assert_eq!(logit(fixture.submit(PLAIN, 5)).await, Ok(PLAIN as f32));
    fixture.assert_nothing_is_counted();
}

/// Company keeps a batch going: one client that leaves takes nothing from the others.
#[actix::test]
async fn a_batch_goes_on_while_anybody_waits() {
    let mut fixture = Fixture::start().await;
    let held = fixture.hold().await;
    // The one that stays comes last, so that all of the batch is over when it is answered.
    let (leaving, staying) = (fixture.submit(11, 5), fixture.submit(HOLD, 5));
    fixture.strings.let_go();
    assert!(logit(held).await.is_ok());
    fixture.strings.held().await;
    drop(leaving);
    fixture.strings.let_go();
    assert_eq!(logit(staying).await, Ok(HOLD as f32));
    assert_eq!(fixture.strings.calls(), [vec![HOLD], vec![11, HOLD]]);
    fixture.assert_nothing_is_counted();
}

/// What several trees share is computed once, and what is given up was too much for its device.
#[actix::test]
async fn only_tokens_that_are_computed_make_the_rate() {
    let fixture = Fixture::start().await;
    let tree = plan(PLAIN, 50).trees.remove(0);
    let copy = Tree { prefix: Arc::from(&*tree.prefix), ..tree.clone() };
    let twice = Plan { trees: vec![tree, copy] };
    assert_eq!(twice.tokens(), 100, "it shares by allocation");
    let computed = fixture.handle().submit(Work { plan: Arc::new(twice), ..work(PLAIN, 50) }).await.unwrap();
    let (rate, seconds) = (fixture.handle().tokens_per_second().unwrap(), computed.forward.as_secs_f64());
    assert!((rate * seconds - 51.0).abs() < 0.01, "{rate} tokens per second for {seconds} s");

    // Longer than as many tokens took before.
    let time = Duration::from_secs_f64(2.0 * 51.0 / rate).max(Duration::from_millis(20));
    let late = fixture.handle().submit(Work { deadline: Instant::now() + time, ..work(ENDLESS, 50) });
    assert_eq!(logit(late).await, Err(Failure::Deadline));
    let lowered = fixture.handle().tokens_per_second().unwrap();
    assert!(lowered < rate, "{lowered} tokens per second, {rate} before");
}

#[actix::test]
async fn work_past_its_deadline_never_runs() {
    let fixture = Fixture::start().await;
    let late = fixture.handle().submit(Work { deadline: Instant::now(), ..work(11, 5) });
    assert_eq!(logit(late).await, Err(Failure::Deadline));
    assert_eq!(fixture.strings.calls(), Vec::<Vec<u32>>::new());
    fixture.assert_nothing_is_counted();
}

/// Clients that connect, ask and leave must not fill the queue of an executor that is busy.
#[actix::test]
async fn whoever_leaves_the_queue_leaves_it_at_once() {
    let mut fixture = Fixture::start().await;
    let held = fixture.hold().await;
    let place: Occupied = Arc::new("a place");
    let submit = |first| fixture.handle().submit(Work { occupied: Arc::clone(&place), ..work(first, 50) });
    let kept = submit(12);
    for _ in 0..1000 {
        drop(submit(11));
        assert_eq!(Arc::strong_count(&place), 2, "only the one that waits occupies anything");
    }
    assert_eq!(fixture.handle().load_tokens(), 52);
    fixture.strings.let_go();
    assert!(logit(held).await.is_ok());
    assert_eq!(logit(kept).await, Ok(12.0));
    assert_eq!(Arc::strong_count(&place), 1);
    fixture.assert_nothing_is_counted();
}

/// A thread that is gone builds nothing, and messages to it are dropped in silence: another takes its place.
#[actix::test]
async fn an_executor_whose_thread_ended_is_replaced() {
    let mut fixture = Fixture::start().await;
    fixture.strings.puppet.fatal_loads.store(1, Ordering::SeqCst);
    let bad = fixture.submit(PANIC, 5);
    assert_eq!(logit(bad).await, Err(SUSPECT));
    fixture.ready_after(3).await;
    assert_eq!(logit(fixture.submit(PLAIN, 5)).await, Ok(PLAIN as f32));
    assert_eq!((fixture.restarts("panic"), fixture.restarts("lost")), (1, 1));
    fixture.assert_nothing_is_counted();
}

#[actix::test]
async fn an_executor_that_is_down_takes_nothing() {
    let strings = Strings::new();
    strings.puppet.failing_loads.store(1, Ordering::SeqCst);
    let metrics = Arc::new(Metrics::new());
    let (_, roster) = Supervisor::start_all(vec![strings.seat("m")], patient_settings(), Arc::clone(&metrics));
    let fixture = Fixture { strings, roster, metrics };
    assert_eq!(logit(fixture.submit(PLAIN, 5)).await, Err(LOST));
    fixture.assert_nothing_is_counted();
}

#[actix::test]
async fn a_suspect_runs_alone() {
    let mut fixture = Fixture::start().await;
    let held = fixture.hold().await;
    let first = fixture.submit(11, 5);
    let suspect = fixture.handle().submit(Work { is_suspect: true, ..work(12, 5) });
    let last = fixture.submit(13, 5);
    fixture.strings.let_go();
    for reply in [held, first, suspect, last] {
        assert!(logit(reply).await.is_ok());
    }
    assert_eq!(fixture.strings.calls(), [vec![HOLD], vec![11], vec![12], vec![13]]);
}

/// A batch that is not full waits for company after another one ended, but never when the device was idle.
#[actix::test]
async fn a_batch_waits_for_company_only_after_another() {
    let mut strings = Strings::new();
    strings.window = Duration::from_hours(1);
    let mut fixture = Fixture::start_with(strings).await;
    assert_eq!(logit(fixture.submit(11, 5)).await, Ok(11.0), "an idle device does not wait");
    let held = fixture.hold().await;
    let waiting = fixture.submit(12, 50);
    fixture.strings.let_go();
    assert!(logit(held).await.is_ok());
    let company = fixture.submit(13, 50);
    assert_eq!(logit(waiting).await, Ok(12.0), "the batch is full");
    assert_eq!(logit(company).await, Ok(13.0));
    assert_eq!(fixture.strings.calls(), [vec![11], vec![HOLD], vec![12, 13]]);
}

#[actix::test]
async fn loads_that_fail_are_tried_again() {
    let strings = Strings::new();
    strings.puppet.failing_loads.store(3, Ordering::SeqCst);
    let metrics = Arc::new(Metrics::new());
    let (_, roster) = Supervisor::start_all(vec![strings.seat("m")], settings(), Arc::clone(&metrics));
    let mut fixture = Fixture { strings, roster, metrics };
    fixture.ready_after(4).await;
    assert_eq!(fixture.restarts("load"), 3);
    assert_eq!(logit(fixture.submit(PLAIN, 5)).await, Ok(PLAIN as f32));
}

/// What fails the first time fails before anybody asks.
#[actix::test]
async fn a_warm_up_that_fails_is_a_failed_load() {
    let strings = Strings::new();
    strings.puppet.failing_warm_ups.store(1, Ordering::SeqCst);
    let metrics = Arc::new(Metrics::new());
    let (_, roster) = Supervisor::start_all(vec![strings.seat("m")], patient_settings(), Arc::clone(&metrics));
    let mut fixture = Fixture { strings, roster, metrics };
    let has_failed = |roster: &Arc<Roster>| roster.members[0].replicas[0].state.name() == "failed";
    let failed = fixture.roster.wait_for(has_failed).await.unwrap().members[0].replicas[0].state.clone();
    let ExecutorState::Failed { reason } = failed else { unreachable!() };
    assert_eq!(reason, "warm-up: linear: no memory");
    fixture.strings.dropped(1).await;
    assert_eq!(fixture.restarts("load"), 1);
}

#[actix::test]
async fn every_load_is_warmed_up_and_nothing_of_that_is_counted() {
    let mut fixture = Fixture::start().await;
    let warm_ups = |fixture: &Fixture| fixture.strings.puppet.warm_ups.load(Ordering::SeqCst);
    assert_eq!(warm_ups(&fixture), 1);
    let tokens = fixture.metric(r#"synod_tokens_total{device="cpu:0",kind="computed",member="m"}"#);
    assert_eq!(tokens.as_deref(), Some("0"));
    assert_eq!(fixture.handle().tokens_per_second(), None);
    assert_eq!(logit(fixture.submit(PANIC, 5)).await, Err(SUSPECT));
    fixture.ready_after(2).await;
    assert_eq!(warm_ups(&fixture), 2);
}

#[actix::test]
async fn a_failed_load_shows_its_reason_and_a_running_one_its_progress() {
    let strings = Strings::new();
    strings.puppet.failing_loads.store(1, Ordering::SeqCst);
    let (_, mut roster) = Supervisor::start_all(vec![strings.seat("m")], patient_settings(), Arc::new(Metrics::new()));
    let state = |roster: &Arc<Roster>| roster.members[0].replicas[0].state.clone();
    let ExecutorState::Loading(progress) = state(&roster.borrow().clone()) else { panic!("expected a load") };
    let failed = roster.wait_for(|roster| matches!(state(roster), ExecutorState::Failed { .. })).await.unwrap();
    let ExecutorState::Failed { reason } = state(&failed) else { unreachable!() };
    assert_eq!(reason, "model.safetensors: expected a file, found none");
    assert_eq!(progress.bytes(), (40, 100));
}
