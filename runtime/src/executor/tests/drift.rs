//! Recorded cases at the start and on idle time.

use synod_config::OnDrift::{Quarantine, Report};

use super::*;
use crate::executor::Standing;

const SOON: Duration = Duration::ZERO;
const LATER: Duration = Duration::from_hours(1);
const REASON: &str = "case case-21: logits.q, row 0: option 0: expected 1 within 2.5e-1, found 1.5";

impl Fixture {
    /// Starts without waiting for anything.
    fn begin(strings: Strings) -> Self {
        let metrics = Arc::new(Metrics::new());
        let (_, roster) = Supervisor::start_all(vec![strings.seat("m")], patient_settings(), Arc::clone(&metrics));
        Fixture { strings, roster, metrics }
    }

    async fn until_state(&mut self, name: &str) -> ExecutorState {
        let is_it = |roster: &Arc<Roster>| roster.members[0].replicas[0].state.name() == name;
        self.roster.wait_for(is_it).await.unwrap().members[0].replicas[0].state.clone()
    }

    async fn until_standing(&mut self, name: &str) -> Standing {
        let is_it = |roster: &Arc<Roster>| roster.members[0].replicas[0].standing.name() == name;
        self.roster.wait_for(is_it).await.unwrap().members[0].replicas[0].standing.clone()
    }

    fn standing(&self) -> Standing {
        self.roster.borrow().members[0].replicas[0].standing.clone()
    }

    fn place_metric(&self, name: &str) -> Option<String> {
        self.metric(&format!(r#"{name}{{device="cpu:0",member="m"}}"#))
    }

    fn case_metric(&self, name: &str, case: &str) -> Option<String> {
        self.metric(&format!(r#"{name}{{case="{case}",device="cpu:0",member="m"}}"#))
    }
}

fn recorded(tokens: &[u32], every: Duration, on_drift: synod_config::OnDrift) -> Strings {
    let mut strings = Strings::new();
    strings.record(tokens, every, on_drift);
    strings
}

#[actix::test]
async fn every_case_is_replayed_before_the_executor_is_ready() {
    let fixture = Fixture::start_with(recorded(&[21, 22], LATER, Quarantine)).await;
    assert_eq!(fixture.strings.calls(), [vec![21], vec![22]]);
    assert_eq!(fixture.standing(), Standing::Verified);
    for case in ["case-21", "case-22"] {
        assert_eq!(fixture.case_metric("synod_drift_logit_max", case).as_deref(), Some("0.0625"));
        assert_eq!(fixture.case_metric("synod_drift_answer_max", case).as_deref(), Some("0"));
    }
    assert_eq!(fixture.place_metric("synod_verified").as_deref(), Some("1"));
    assert_eq!(fixture.place_metric("synod_drift_ok").as_deref(), Some("1"));
    let gate = fixture.metric(r#"synod_drift_gate{device="cpu:0",kind="logit",member="m"}"#);
    assert_eq!(gate.as_deref(), Some("0.25"));
    let tokens = fixture.metric(r#"synod_tokens_total{device="cpu:0",kind="computed",member="m"}"#);
    assert_eq!(tokens.as_deref(), Some("0"), "nobody asked for these");
}

/// What is kept was computed while the device was well, and would hide that it is no more.
#[actix::test]
async fn a_replay_takes_no_kept_prefixes() {
    let fixture = Fixture::start_with(recorded(&[21], LATER, Quarantine)).await;
    let cached = || fixture.strings.puppet.cached_calls.load(Ordering::SeqCst);
    assert_eq!(cached(), 0);
    assert!(logit(fixture.submit(PLAIN, 5)).await.is_ok());
    assert_eq!(cached(), 1);
}

#[actix::test]
async fn a_member_that_is_out_of_its_gate_never_serves() {
    let strings = recorded(&[21, 22], LATER, Quarantine);
    strings.puppet.is_off.store(true, Ordering::SeqCst);
    let mut fixture = Fixture::begin(strings);
    let ExecutorState::Quarantined { reason } = fixture.until_state("quarantined").await else { unreachable!() };
    assert_eq!(reason, format!("{REASON}; 2 cases are out of their gates"));
    assert_eq!(logit(fixture.submit(PLAIN, 5)).await, Err(LOST));
    fixture.strings.dropped(1).await;
    assert_eq!(fixture.strings.calls(), [vec![21], vec![22]], "all of them are told of");
    assert_eq!(fixture.case_metric("synod_drift_logit_max", "case-22").as_deref(), Some("0.5"));
    assert_eq!(fixture.place_metric("synod_verified").as_deref(), Some("0"));
    assert_eq!(fixture.place_metric("synod_drift_ok").as_deref(), Some("0"));
    assert_eq!(fixture.restarts("drift"), 1);
    assert_eq!(fixture.strings.puppet.loads.load(Ordering::SeqCst), 1, "trying again at once would change nothing");
}

#[actix::test]
async fn a_member_that_is_out_of_its_gate_serves_and_says_so_where_that_is_wanted() {
    let strings = recorded(&[21], LATER, Report);
    strings.puppet.is_off.store(true, Ordering::SeqCst);
    let fixture = Fixture::start_with(strings).await;
    assert_eq!(fixture.standing(), Standing::Drifted { reason: REASON.into() });
    assert_eq!(logit(fixture.submit(PLAIN, 5)).await, Ok(PLAIN as f32));
    assert_eq!(fixture.place_metric("synod_verified").as_deref(), Some("0"));
    assert_eq!(fixture.place_metric("synod_drift_ok").as_deref(), Some("0"));
}

#[actix::test]
async fn a_member_without_recorded_cases_is_unverified() {
    let fixture = Fixture::start().await;
    assert_eq!(fixture.standing(), Standing::Unverified);
    assert_eq!(fixture.place_metric("synod_verified").as_deref(), Some("0"));
    assert_eq!(fixture.place_metric("synod_drift_ok"), None, "nothing was out of a gate");
}

/// Whoever comes while a case runs does not wait for it: it is given up, and replayed again after them.
#[actix::test]
async fn work_goes_before_a_case_that_runs() {
    let strings = recorded(&[HOLD, 22], SOON, Quarantine);
    strings.let_go();
    let mut fixture = Fixture::start_with(strings).await;
    fixture.strings.held().await;
    fixture.strings.held().await;
    let replies = [11, 12].map(|first| fixture.submit(first, 60));
    fixture.strings.let_go();
    for reply in replies {
        assert!(logit(reply).await.is_ok());
    }
    fixture.strings.held().await;
    fixture.strings.let_go();
    // The case after it has been replayed once the next round holds.
    fixture.strings.held().await;
    let expected = [HOLD, 22, HOLD, 11, 12, HOLD, 22, HOLD].map(|first| vec![first]);
    assert_eq!(fixture.strings.calls(), expected);
    fixture.assert_nothing_is_counted();
}

/// Where requests come closer together than a case is long, drift must be found all the same.
#[actix::test]
async fn a_case_that_work_has_ended_often_enough_is_run_through() {
    let strings = recorded(&[HOLD, 22], SOON, Quarantine);
    strings.let_go();
    let mut fixture = Fixture::start_with(strings).await;
    fixture.strings.held().await;
    let works = 11..=19;
    for first in works.clone() {
        fixture.strings.held().await;
        let reply = fixture.submit(first, 60);
        fixture.strings.let_go();
        assert!(logit(reply).await.is_ok());
    }
    // The case after it has been replayed once the next round holds.
    fixture.strings.held().await;
    let interrupted = works.flat_map(|first| [HOLD, first]);
    let expected: Vec<_> =
        [HOLD, 22].into_iter().chain(interrupted).chain([22, HOLD]).map(|first| vec![first]).collect();
    assert_eq!(fixture.strings.calls(), expected);
    fixture.strings.let_go();
}

#[actix::test]
async fn drift_on_idle_time_takes_the_executor_out_of_service() {
    let strings = recorded(&[HOLD, 21], SOON, Quarantine);
    strings.let_go();
    let mut fixture = Fixture::start_with(strings).await;
    fixture.strings.held().await;
    fixture.strings.held().await;
    fixture.strings.puppet.is_off.store(true, Ordering::SeqCst);
    fixture.strings.let_go();
    let ExecutorState::Quarantined { reason } = fixture.until_state("quarantined").await else { unreachable!() };
    assert!(reason.starts_with("case case-3: logits.q, row 0: option 0: "), "{reason}");
    assert_eq!(logit(fixture.submit(11, 5)).await, Err(LOST));
    fixture.strings.dropped(1).await;
    assert_eq!(fixture.place_metric("synod_verified").as_deref(), Some("0"));
    assert_eq!(fixture.place_metric("synod_drift_ok").as_deref(), Some("0"));
    assert_eq!(fixture.restarts("drift"), 1);
    fixture.assert_nothing_is_counted();
}

#[actix::test]
async fn reported_drift_comes_and_goes() {
    let mut fixture = Fixture::start_with(recorded(&[21], SOON, Report)).await;
    fixture.until_standing("verified").await;
    fixture.strings.puppet.is_off.store(true, Ordering::SeqCst);
    assert_eq!(fixture.until_standing("drifted").await, Standing::Drifted { reason: REASON.into() });
    fixture.strings.puppet.is_off.store(false, Ordering::SeqCst);
    fixture.until_standing("verified").await;
    assert!(logit(fixture.submit(PLAIN, 5)).await.is_ok());
    assert_eq!(fixture.strings.puppet.loads.load(Ordering::SeqCst), 1);
}

/// A device that fails at a request which it has computed before is at fault, not the request.
#[actix::test]
async fn a_fault_in_a_replay_is_the_devices() {
    for (token, reason) in [(PANIC, "the forward panicked"), (ERROR, "linear")] {
        let mut fixture = Fixture::begin(recorded(&[token], LATER, Report));
        let ExecutorState::Failed { reason: found } = fixture.until_state("failed").await else { unreachable!() };
        assert!(found.starts_with("replay of recorded cases: ") && found.contains(reason), "{found}");
        assert_eq!(fixture.restarts("load"), 1);
    }
}

/// A folder that goes away takes nothing out of service that was held to it; at the start it does.
#[actix::test]
async fn cases_that_cannot_be_read_matter_at_the_start_only() {
    let strings = recorded(&[HOLD, 21], SOON, Quarantine);
    strings.let_go();
    let mut fixture = Fixture::start_with(strings).await;
    fixture.strings.held().await;
    fixture.strings.held().await;
    fixture.strings.puppet.is_unreadable.store(true, Ordering::SeqCst);
    fixture.strings.let_go();
    assert!(logit(fixture.submit(PLAIN, 5)).await.is_ok());
    // A round in which it can be read again comes after those in which it could not.
    fixture.strings.puppet.is_unreadable.store(false, Ordering::SeqCst);
    fixture.strings.held().await;
    assert_eq!(fixture.standing(), Standing::Verified);

    let strings = recorded(&[21], LATER, Quarantine);
    strings.puppet.is_unreadable.store(true, Ordering::SeqCst);
    let mut fixture = Fixture::begin(strings);
    let ExecutorState::Quarantined { reason } = fixture.until_state("quarantined").await else { unreachable!() };
    assert_eq!(reason, "case case-21: case.json: no such file");
}
