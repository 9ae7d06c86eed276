//! Work under way, found by what it asks: identical requests share one computation.
//!
//! Two requests are identical if the same caller asks the same member for the same tokens. However the bodies were
//! written, they have the same logits. An SDK that gives up after its timeout and asks again sends such a request: so that
//! it finds its work still running, work that a device has begun is not given up the moment its client leaves. A request
//! that may have brought an executor down shares nothing with one that has not: it is computed alone, and its end says
//! something of it only if it was.
//!
//! Invariant: work is found only while somebody waits for it, and nothing of it is kept afterwards.

use std::future::Future;
use std::hash::{Hash, Hasher};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use prometheus::IntCounter;
use tokio::time::timeout;

use crate::executor::{Computed, Face, Failure, Handle, Joinable, Reply, Work};
use crate::family::Plan;

/// The table of work under way.
pub(super) struct Flights {
    by_ask: DashMap<Ask, Joinable>,
    /// How long work that runs outlives its last client.
    grace: Duration,
}

/// What work is found by.
#[derive(Clone)]
struct Ask {
    face: Arc<Face>,
    caller: u64,
    plan: Arc<Plan>,
    is_suspect: bool,
}

impl PartialEq for Ask {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.face, &other.face)
            && (self.caller, self.is_suspect) == (other.caller, other.is_suspect)
            && self.plan == other.plan
    }
}

impl Eq for Ask {}

impl Hash for Ask {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.face).hash(state);
        self.caller.hash(state);
        self.is_suspect.hash(state);
        self.plan.hash(state);
    }
}

/// One request's wait for its work.
pub(super) struct Flight {
    reply: Option<Reply>,
    ask: Ask,
    flights: Arc<Flights>,
}

impl Flights {
    pub(super) fn new(grace: Duration) -> Arc<Self> {
        Arc::new(Flights { by_ask: DashMap::new(), grace })
    }

    /// Joins the work if it is under way; else has `executor` do it.
    pub(super) fn board(self: &Arc<Self>, face: &Arc<Face>, work: Work, executor: &Handle) -> Flight {
        let Work { plan, lane, is_suspect, .. } = &work;
        let ask = Ask { face: Arc::clone(face), caller: lane.caller, plan: Arc::clone(plan), is_suspect: *is_suspect };
        let reply = match self.by_ask.entry(ask.clone()) {
            Entry::Occupied(mut known) => {
                let joined = known.get().join(work.deadline, Arc::clone(&work.occupied));
                joined.unwrap_or_else(|| {
                    let reply = executor.submit(work);
                    known.insert(reply.joinable());
                    reply
                })
            }
            Entry::Vacant(free) => {
                let reply = executor.submit(work);
                free.insert(reply.joinable());
                reply
            }
        };
        Flight { reply: Some(reply), ask, flights: Arc::clone(self) }
    }

    /// Forgets work that nobody waits for. Whoever joins it first, waits for it, and will call this in turn.
    fn forget(&self, ask: &Ask) {
        self.by_ask.remove_if(ask, |_, work| work.is_gone());
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.by_ask.len()
    }
}

impl Flight {
    /// The count of requests whose clients left, of the executor that this one waits for.
    pub(super) fn cancelled(&self) -> Option<IntCounter> {
        self.reply.as_ref().map(Reply::cancelled)
    }
}

impl Future for Flight {
    type Output = Result<Arc<Computed>, Failure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.reply {
            Some(reply) => Pin::new(reply).poll(cx),
            None => Poll::Pending,
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let Some(reply) = self.reply.take() else { return };
        let runtime = tokio::runtime::Handle::try_current();
        if let Ok(runtime) = runtime
            && reply.is_running()
            && !self.flights.grace.is_zero()
        {
            // The client has left, its retry may come: somebody goes on waiting in its place.
            let (flights, ask) = (Arc::clone(&self.flights), self.ask.clone());
            runtime.spawn(async move {
                let _ = timeout(flights.grace, reply).await;
                flights.forget(&ask);
            });
            return;
        }
        drop(reply);
        self.flights.forget(&self.ask);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::sync::watch;

    use super::*;
    use crate::executor::Lane;
    use crate::metrics::Metrics;
    use crate::supervisor::fakes::{HOLD, Strings, nothing, plan, settings};
    use crate::supervisor::{Roster, Supervisor};

    struct Fixture {
        strings: Strings,
        roster: watch::Receiver<Arc<Roster>>,
        flights: Arc<Flights>,
    }

    impl Fixture {
        async fn start(grace: Duration) -> Self {
            let strings = Strings::new();
            let (_, mut roster) = Supervisor::start_all(vec![strings.seat("m")], settings(), Arc::new(Metrics::new()));
            roster.wait_for(|roster| roster.is_ready()).await.unwrap();
            Fixture { strings, roster, flights: Flights::new(grace) }
        }

        fn board(&self, caller: u64, first: u32, tokens: usize) -> Flight {
            self.board_work(work(caller, first, tokens))
        }

        fn board_work(&self, work: Work) -> Flight {
            let roster = self.roster.borrow().clone();
            let replica = &roster.members[0].replicas[0];
            self.flights.board(replica.face.as_ref().unwrap(), work, &replica.handle)
        }

        /// Waits until `count` pieces of work are known.
        async fn knows(&self, count: usize) {
            while self.flights.len() != count {
                tokio::task::yield_now().await;
            }
        }
    }

    fn work(caller: u64, first: u32, tokens: usize) -> Work {
        let now = Instant::now();
        Work {
            plan: Arc::new(plan(first, tokens)),
            lane: Lane { caller, weight: 1 },
            received: now,
            deadline: now + Duration::from_mins(1),
            occupied: nothing(),
            is_suspect: false,
        }
    }

    #[actix::test]
    async fn the_same_question_is_computed_once() {
        let mut fixture = Fixture::start(Duration::ZERO).await;
        let held = fixture.board(1, HOLD, 5);
        fixture.strings.held().await;
        let same = [fixture.board(1, HOLD, 5), fixture.board(1, HOLD, 5)];
        let waiting = [fixture.board(1, 11, 5), fixture.board(1, 11, 5)];
        let others = [fixture.board(2, 11, 5), fixture.board(1, 11, 6)];
        assert_eq!(fixture.flights.len(), 4);
        fixture.strings.let_go();
        assert!(held.await.is_ok());
        for flight in same.into_iter().chain(waiting).chain(others) {
            assert!(flight.await.is_ok());
        }
        let calls: Vec<u32> = fixture.strings.calls().concat();
        assert_eq!(calls, [HOLD, 11, 11, 11], "one of each kind");
        assert_eq!(fixture.flights.len(), 0, "nothing is kept");
        assert!(fixture.board(1, 12, 5).await.is_ok());
        assert_eq!(fixture.flights.len(), 0);
    }

    #[actix::test]
    async fn whoever_leaves_takes_nothing_from_the_others() {
        let mut fixture = Fixture::start(Duration::ZERO).await;
        let held = fixture.board(1, HOLD, 5);
        fixture.strings.held().await;
        let (first, second) = (fixture.board(1, 11, 5), fixture.board(1, 11, 5));
        drop(first);
        drop((fixture.board(1, 12, 5), fixture.board(1, 12, 5)));
        assert_eq!(fixture.flights.len(), 2, "what nobody wants is gone");
        fixture.strings.let_go();
        assert!(held.await.is_ok());
        assert!(second.await.is_ok());
        assert_eq!(fixture.strings.calls().concat(), [HOLD, 11]);
    }

    #[actix::test]
    async fn a_retry_finds_its_work_still_running() {
        let mut fixture = Fixture::start(Duration::from_mins(1)).await;
        let first = fixture.board(1, HOLD, 5);
        fixture.strings.held().await;
        drop(first);
        let again = fixture.board(1, HOLD, 5);
        fixture.strings.let_go();
        assert!(again.await.is_ok());
        assert_eq!(fixture.strings.calls().concat(), [HOLD], "computed once");
    }

    /// Whatever stayed in the table would hold its plan and its member's face as long as the process lives.
    #[actix::test]
    async fn work_that_runs_longer_than_anybody_waits_is_forgotten() {
        let mut fixture = Fixture::start(Duration::from_millis(1)).await;
        let first = fixture.board(1, HOLD, 5);
        fixture.strings.held().await;
        drop(first);
        fixture.knows(0).await;
        let again = fixture.board(1, HOLD, 5);
        fixture.strings.let_go();
        fixture.strings.held().await;
        fixture.strings.let_go();
        assert!(again.await.is_ok());
        assert_eq!(fixture.strings.calls().concat(), [HOLD, HOLD], "afresh");
        assert_eq!(fixture.flights.len(), 0);
    }

    #[actix::test]
    async fn work_whose_client_leaves_in_company_is_forgotten() {
        let mut fixture = Fixture::start(Duration::from_millis(1)).await;
        let held = fixture.board(1, HOLD, 5);
        fixture.strings.held().await;
        let (late, staying) = (fixture.board(1, 11, 5), fixture.board(1, HOLD, 6));
        fixture.strings.let_go();
        assert!(held.await.is_ok());
        fixture.strings.held().await;
        drop(late);
        fixture.knows(1).await;
        fixture.strings.let_go();
        assert!(staying.await.is_ok());
        assert_eq!(fixture.strings.calls(), [vec![HOLD], vec![11, HOLD]], "one batch");
        assert_eq!(fixture.flights.len(), 0);
    }

    /// Between the last waiter and its end, work that runs has a place for one more.
    #[actix::test]
    async fn work_that_runs_for_nobody_may_be_joined() {
        let mut fixture = Fixture::start(Duration::ZERO).await;
        let roster = fixture.roster.borrow().clone();
        let reply = roster.members[0].replicas[0].handle.submit(work(1, HOLD, 5));
        fixture.strings.held().await;
        let job = reply.joinable();
        drop(reply);
        assert!(job.is_gone());
        let joined = job.join(Instant::now() + Duration::from_mins(1), nothing()).unwrap();
        assert!(!job.is_gone(), "whoever came in between keeps it");
        fixture.strings.let_go();
        assert!(joined.await.is_ok());
        assert!(job.is_gone());
    }

    /// In company, a panic would prove nothing against the one that is under suspicion.
    #[actix::test]
    async fn a_suspect_shares_nothing_with_the_others() {
        let mut fixture = Fixture::start(Duration::ZERO).await;
        let held = fixture.board(1, HOLD, 5);
        fixture.strings.held().await;
        let other = fixture.board(1, 11, 5);
        let suspect = fixture.board_work(Work { is_suspect: true, ..work(1, 11, 5) });
        assert_eq!(fixture.flights.len(), 3);
        fixture.strings.let_go();
        for flight in [held, other, suspect] {
            assert!(flight.await.is_ok());
        }
        assert_eq!(fixture.strings.calls(), [vec![HOLD], vec![11], vec![11]]);
    }
}
