//! Deployments that follow each other, over puppet members.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use actix::{Addr, Arbiter};
use tokio::sync::watch;

use super::fakes::{HOLD, PLAIN, Strings, nothing, patient_settings, plan, settings};
use super::{Demand, Outlook, Reload, ReloadError, Reloaded, Replica, Roster, Seat, Supervisor};
use crate::executor::{Lane, Reply, Work};
use crate::metrics::Metrics;
use crate::model::memory::MemoryNeed;

struct Fixture {
    supervisor: Addr<Supervisor>,
    roster: watch::Receiver<Arc<Roster>>,
}

impl Fixture {
    async fn start(seats: Vec<Seat>) -> Self {
        let (supervisor, roster) = Supervisor::start_all(seats, settings(), Arc::new(Metrics::new()));
        let mut fixture = Fixture { supervisor, roster };
        fixture.until(Roster::is_ready).await;
        fixture
    }

    async fn until(&mut self, is_so: impl Fn(&Roster) -> bool) {
        self.roster.wait_for(|roster| is_so(roster)).await.unwrap();
    }

    async fn reload(&self, seats: Vec<Seat>, host_bytes: Option<u64>) -> Result<Reloaded, ReloadError> {
        self.supervisor.send(Reload { seats, settings: settings(), host_bytes }).await.unwrap()
    }

    fn roster(&self) -> Arc<Roster> {
        self.roster.borrow().clone()
    }

    /// Has the `replica`th executor of the first member work.
    fn submit(&self, replica: usize, first: u32) -> Reply {
        let received = Instant::now();
        self.roster().members[0].replicas[replica].handle.submit(Work {
            plan: Arc::new(plan(first, 5)),
            lane: Lane::default(),
            received,
            deadline: received + Duration::from_mins(1),
            occupied: nothing(),
            is_suspect: false,
        })
    }
}

/// The member of `strings` with something to load that is not loaded yet.
fn changed(strings: &mut Strings, devices: &[&str]) -> Seat {
    strings.fingerprint.push('+');
    strings.seat_on("m", devices)
}

fn sized(mut seat: Seat, bytes: u64) -> Seat {
    for placement in &mut seat.placements {
        let need = MemoryNeed { linear: bytes, ..MemoryNeed::default() };
        placement.demand = Some(Demand { member: "m".into(), device: placement.device.clone(), need });
    }
    seat
}

#[actix::test]
async fn what_is_unchanged_keeps_its_executor_and_only_its_listing_is_new() {
    let strings = Strings::new();
    let fixture = Fixture::start(vec![strings.seat("m")]).await;
    let mut seat = strings.seat("m");
    seat.listing.description = "another".into();
    let done = fixture.reload(vec![seat], None).await.unwrap();
    assert_eq!(done, Reloaded { kept: 1, started: 0, stopped: 0 });
    let roster = fixture.roster();
    assert_eq!(roster.members[0].listing.description, "another");
    assert!(roster.is_ready());
    assert_eq!(strings.puppet.loads.load(Ordering::SeqCst), 1);
}

/// The old executor serves until the new one does, and answers everything that it was given.
#[actix::test]
async fn a_changed_member_is_loaded_before_the_old_one_stops() {
    let mut strings = Strings::new();
    let mut fixture = Fixture::start(vec![strings.seat("m")]).await;
    let running = fixture.submit(0, HOLD);
    strings.held().await;
    let queued = fixture.submit(0, PLAIN);
    let old = fixture.roster().members[0].replicas[0].handle.clone();
    let done = fixture.reload(vec![changed(&mut strings, &["cpu:0"])], None).await.unwrap();
    assert_eq!(done, Reloaded { kept: 0, started: 1, stopped: 1 });
    assert!(fixture.roster().is_ready(), "at no time is there none");
    fixture.until(|roster| roster.members[0].replicas.len() == 1 && roster.is_ready()).await;
    assert_eq!(strings.puppet.loads.load(Ordering::SeqCst), 2);
    assert!(old.is_open(), "it has work");
    strings.let_go();
    assert!(running.await.is_ok());
    assert!(queued.await.is_ok());
    drop(old);
    assert!(fixture.submit(0, PLAIN).await.is_ok());
    strings.dropped(1).await;
}

#[actix::test]
async fn a_new_version_that_cannot_be_loaded_leaves_the_old_one() {
    let mut strings = Strings::new();
    let mut fixture = Fixture::start(vec![strings.seat("m")]).await;
    strings.puppet.failing_loads.store(1, Ordering::SeqCst);
    let reload =
        Reload { seats: vec![changed(&mut strings, &["cpu:0"])], settings: patient_settings(), host_bytes: None };
    fixture.supervisor.send(reload).await.unwrap().unwrap();
    fixture.until(|roster| roster.members[0].replicas.iter().any(|r| r.state.name() == "failed")).await;
    assert!(fixture.roster().is_ready());
    assert!(fixture.submit(0, PLAIN).await.is_ok());
    // Back to the first version: its executor is still there, and the failed one goes.
    strings.fingerprint = "first".into();
    let done = fixture.reload(vec![strings.seat("m")], None).await.unwrap();
    assert_eq!(done, Reloaded { kept: 1, started: 0, stopped: 1 });
    fixture.until(|roster| roster.members[0].replicas.len() == 1 && roster.is_ready()).await;
    assert_eq!(strings.puppet.loads.load(Ordering::SeqCst), 2);
}

/// Where old and new do not fit together, the old one stops first; whoever comes meanwhile is to wait.
#[actix::test]
async fn what_does_not_fit_beside_the_old_waits_for_its_end() {
    let mut strings = Strings::new();
    let seat = sized(strings.seat("m"), 60);
    let mut fixture = Fixture::start(vec![seat]).await;
    let running = fixture.submit(0, HOLD);
    strings.held().await;
    let seat = sized(changed(&mut strings, &["cpu:0"]), 70);
    fixture.reload(vec![seat], Some(100)).await.unwrap();
    let roster = fixture.roster();
    assert!(!roster.is_ready());
    assert_eq!(roster.members[0].outlook(), Outlook::Replaced);
    assert_eq!(strings.puppet.loads.load(Ordering::SeqCst), 1, "it waits for the memory");
    drop(roster);
    strings.let_go();
    assert!(running.await.is_ok());
    fixture.until(Roster::is_ready).await;
    assert_eq!(strings.puppet.loads.load(Ordering::SeqCst), 2);
    strings.dropped(1).await;
}

/// What waits for the old one's end still does when the deployment is loaded once more, and is built then.
#[actix::test]
async fn what_waits_for_the_end_of_the_old_is_kept_waiting() {
    let mut strings = Strings::new();
    let mut fixture = Fixture::start(vec![sized(strings.seat("m"), 60)]).await;
    let running = fixture.submit(0, HOLD);
    strings.held().await;
    let seat = sized(changed(&mut strings, &["cpu:0"]), 70);
    fixture.reload(vec![seat], Some(100)).await.unwrap();
    let seat = sized(strings.seat("m"), 70);
    let done = fixture.reload(vec![seat], Some(100)).await.unwrap();
    assert_eq!(done, Reloaded { kept: 1, started: 0, stopped: 0 });
    assert_eq!(fixture.roster().members[0].outlook(), Outlook::Replaced);
    assert_eq!(strings.puppet.loads.load(Ordering::SeqCst), 1, "it waits for the memory");
    strings.let_go();
    assert!(running.await.is_ok());
    fixture.until(Roster::is_ready).await;
    assert_eq!(strings.puppet.loads.load(Ordering::SeqCst), 2);
}

/// Requests wait for whatever takes the place of what waited, and no longer once that has failed.
#[actix::test]
async fn what_waits_for_the_end_of_the_old_gives_way_to_what_does_not() {
    let mut strings = Strings::new();
    let mut fixture = Fixture::start(vec![sized(strings.seat("m"), 60)]).await;
    let running = fixture.submit(0, HOLD);
    strings.held().await;
    let seat = sized(changed(&mut strings, &["cpu:0"]), 70);
    fixture.reload(vec![seat], Some(100)).await.unwrap();
    strings.puppet.failing_loads.store(1, Ordering::SeqCst);
    let seats = vec![changed(&mut strings, &["cpu:0"])];
    let reload = Reload { seats, settings: patient_settings(), host_bytes: None };
    let done = fixture.supervisor.send(reload).await.unwrap().unwrap();
    assert_eq!(done, Reloaded { kept: 0, started: 1, stopped: 1 });
    fixture.until(|roster| roster.members[0].replicas.iter().any(|r| r.state.name() == "failed")).await;
    let roster = fixture.roster();
    assert_eq!((roster.members[0].replicas.len(), roster.members[0].outlook()), (1, Outlook::Down));
    strings.let_go();
    assert!(running.await.is_ok());
}

#[actix::test]
async fn what_never_fits_changes_nothing() {
    let mut strings = Strings::new();
    let seat = sized(strings.seat("m"), 60);
    let fixture = Fixture::start(vec![seat]).await;
    let seat = sized(changed(&mut strings, &["cpu:0"]), 101);
    let Err(ReloadError::Memory(shortage)) = fixture.reload(vec![seat], Some(100)).await else { panic!("it fits") };
    assert_eq!(shortage.available_bytes, 100);
    assert!(fixture.roster().is_ready());
    assert!(fixture.submit(0, PLAIN).await.is_ok());
    assert_eq!(strings.puppet.loads.load(Ordering::SeqCst), 1);
}

/// What could not be loaded gives nothing back, and what waits for its memory will have it.
#[actix::test]
async fn only_what_is_held_comes_free_and_what_is_claimed_is_not_given_twice() {
    let mut strings = Strings::new();
    strings.puppet.failing_loads.store(1, Ordering::SeqCst);
    let seats = vec![sized(strings.seat("m"), 60)];
    let (supervisor, roster) = Supervisor::start_all(seats, patient_settings(), Arc::new(Metrics::new()));
    let mut fixture = Fixture { supervisor, roster };
    fixture.until(|roster| roster.members[0].replicas[0].state.name() == "failed").await;
    let seat = sized(changed(&mut strings, &["cpu:0"]), 41);
    let Err(ReloadError::Memory(shortage)) = fixture.reload(vec![seat], Some(40)).await else { panic!("it fits") };
    assert_eq!(shortage.available_bytes, 40);
    // The failed one is kept and built again: what is left beside it is too little for another.
    strings.fingerprint = "first".into();
    let seats = vec![sized(strings.seat_on("m", &["cpu:0", "cpu:1"]), 60)];
    let Err(ReloadError::Memory(shortage)) = fixture.reload(seats, Some(119)).await else { panic!("it fits") };
    assert_eq!(shortage.available_bytes, 59);
    assert_eq!(strings.puppet.loads.load(Ordering::SeqCst), 1);
    let seats = vec![sized(strings.seat_on("m", &["cpu:0", "cpu:1"]), 60)];
    let done = fixture.reload(seats, Some(120)).await.unwrap();
    assert_eq!(done, Reloaded { kept: 1, started: 1, stopped: 0 });
    fixture.until(|roster| roster.members[0].replicas.iter().all(Replica::is_ready)).await;
}

/// Two copies would load at once: the one that failed, when its pause is over, and the one that replaces it.
#[actix::test]
async fn what_has_failed_goes_as_soon_as_it_is_replaced() {
    let mut strings = Strings::new();
    strings.puppet.failing_loads.store(1, Ordering::SeqCst);
    let seats = vec![strings.seat("m")];
    let (supervisor, roster) = Supervisor::start_all(seats, patient_settings(), Arc::new(Metrics::new()));
    let mut fixture = Fixture { supervisor, roster };
    fixture.until(|roster| roster.members[0].replicas[0].state.name() == "failed").await;
    strings.puppet.failing_loads.store(1, Ordering::SeqCst);
    let seats = vec![changed(&mut strings, &["cpu:0"])];
    let reload = Reload { seats, settings: patient_settings(), host_bytes: None };
    let done = fixture.supervisor.send(reload).await.unwrap().unwrap();
    assert_eq!(done, Reloaded { kept: 0, started: 1, stopped: 1 });
    // The successor fails as well, so that it is not its being ready that ends the other.
    let has_failed = |roster: &Roster| roster.members[0].replicas.iter().any(|r| r.state.name() == "failed");
    fixture.until(|roster| roster.members[0].replicas.len() == 1 && has_failed(roster)).await;
}

/// Where the system gives no more threads, a start is tried again and a reload changes nothing.
#[actix::test]
async fn a_thread_that_cannot_be_started_is_a_failure_like_others() {
    let mut strings = Strings::new();
    let missing = Arc::new(AtomicUsize::new(1));
    let left = Arc::clone(&missing);
    let threads = move || match left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)) {
        Ok(_) => Err(std::io::Error::other("too many open files")),
        Err(_) => Arbiter::try_new(),
    };
    let (seats, metrics) = (vec![strings.seat("m")], Arc::new(Metrics::new()));
    let (supervisor, roster) = Supervisor::start_all_on(Box::new(threads), seats, patient_settings(), metrics);
    let mut fixture = Fixture { supervisor, roster };
    fixture.until(|roster| roster.members[0].replicas.iter().any(|r| r.state.name() == "failed")).await;
    fixture.reload(vec![strings.seat("m")], None).await.unwrap();
    fixture.until(Roster::is_ready).await;
    missing.store(1, Ordering::SeqCst);
    let seat = changed(&mut strings, &["cpu:0"]);
    let refused = fixture.reload(vec![seat], None).await.unwrap_err();
    assert_eq!(refused, ReloadError::Thread("too many open files".into()));
    assert!(fixture.roster().is_ready());
    assert!(fixture.submit(0, PLAIN).await.is_ok());
    assert_eq!(strings.puppet.loads.load(Ordering::SeqCst), 1);
}

#[actix::test]
async fn members_and_devices_come_and_go() {
    let (first, second) = (Strings::new(), Strings::new());
    let mut fixture = Fixture::start(vec![first.seat_on("m", &["cpu:0"])]).await;
    let seats = vec![first.seat_on("m", &["cpu:0", "cpu:1"]), second.seat("other")];
    assert_eq!(fixture.reload(seats, None).await.unwrap(), Reloaded { kept: 1, started: 2, stopped: 0 });
    fixture.until(|roster| roster.members.iter().flat_map(|m| &m.replicas).filter(|r| r.is_ready()).count() == 3).await;
    let done = fixture.reload(vec![first.seat_on("m", &["cpu:1"])], None).await.unwrap();
    assert_eq!(done, Reloaded { kept: 1, started: 0, stopped: 2 });
    let roster = fixture.roster();
    assert!(roster.member("other").is_none());
    assert_eq!(roster.members[0].replicas.len(), 1);
    drop(roster);
    first.dropped(1).await;
    second.dropped(1).await;
}

/// A quarantine ends with the next reload, whatever it changes: the cause may have been mended.
#[actix::test]
async fn a_reload_ends_a_quarantine() {
    let strings = Strings::new();
    strings.puppet.failing_loads.store(10, Ordering::SeqCst);
    let (supervisor, roster) = Supervisor::start_all(vec![strings.seat("m")], settings(), Arc::new(Metrics::new()));
    let mut fixture = Fixture { supervisor, roster };
    fixture.until(|roster| roster.members[0].replicas[0].state.name() == "quarantined").await;
    assert_eq!(strings.puppet.loads.load(Ordering::SeqCst), 10);
    fixture.reload(vec![strings.seat("m")], None).await.unwrap();
    fixture.until(Roster::is_ready).await;
    assert_eq!(strings.puppet.loads.load(Ordering::SeqCst), 11);
}
