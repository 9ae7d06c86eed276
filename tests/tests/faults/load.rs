//! Clients that never stop asking, and what they saw: for each request exactly one correct answer or one honest error.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use synod_tests::fixtures;
use synod_tests::http::{Client, Reply};
use synod_tests::server::{Server, eventually};

use crate::metric;

/// Requests and their answers, as an idle server gave them.
pub(crate) struct Work {
    bodies: Vec<(String, Vec<u8>)>,
    /// The outcomes of asking them: answered, rejected.
    pub(crate) outcomes: [usize; 2],
}

impl Work {
    /// Every recorded case of `member` that is answered. All its cases are asked of `server` once.
    pub(crate) fn of(server: &Server, member: &str) -> Self {
        let cases = fixtures::vela_cases().into_iter().filter(|case| case.member == member);
        let asked = cases.map(|case| {
            let body = case.request_for(member);
            let reply = server.ask(body.as_str());
            (body, reply)
        });
        let (answered, rejected): (Vec<_>, Vec<_>) = asked.partition(|(_, reply)| reply.status == 200);
        assert!(answered.len() > 5, "{} cases of {member} are answered", answered.len());
        let outcomes = [answered.len(), rejected.len()];
        Work { bodies: answered.into_iter().map(|(body, reply)| (body, reply.body)).collect(), outcomes }
    }
}

/// What clients saw. A reply that is neither the right answer nor an error with a code ends the test at once.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) answered: usize,
    /// By `error.code`.
    pub(crate) refused: BTreeMap<String, usize>,
    /// Requests without a reply: the connection was refused or closed.
    pub(crate) unconnected: usize,
}

/// Has `clients` ask, each on connections of its own, while `scene` runs.
pub(crate) fn under_load(server: &Server, work: &Work, clients: usize, scene: impl FnOnce(&AtomicUsize)) -> Seen {
    let (is_over, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    let seen = Mutex::new(Seen::default());
    thread::scope(|scope| {
        for client in 0..clients {
            let (is_over, answered, seen) = (&is_over, &answered, &seen);
            scope.spawn(move || ask(server, work, client, is_over, answered, seen));
        }
        // Clients end when the scene does, also where it fails.
        let _over = SetOnDrop(&is_over);
        scene(&answered);
    });
    let mut seen = seen.into_inner().unwrap_or_else(PoisonError::into_inner);
    seen.answered = answered.into_inner();
    seen
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn ask(server: &Server, work: &Work, number: usize, is_over: &AtomicBool, answered: &AtomicUsize, seen: &Mutex<Seen>) {
    let client = Client::new(server.client().address());
    // Clients start at different cases, so that few are equal at a time.
    for turn in (number * work.bodies.len() / 8).. {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        let (body, right) = &work.bodies[turn % work.bodies.len()];
        let id = format!("{number}-{turn}");
        let headers = [("content-type", "application/json"), ("x-typesafe-request-id", id.as_str())];
        let reply = client.try_request("POST", "/v1/systemone", &headers, body.clone().into_bytes());
        let lock = || seen.lock().unwrap_or_else(PoisonError::into_inner);
        match reply {
            Err(_) => lock().unconnected += 1,
            Ok(reply) => {
                assert_eq!(reply.header("x-typesafe-request-id"), Some(id.as_str()), "the reply to another request");
                if reply.status == 200 {
                    assert!(reply.body == *right, "another answer than an idle server's: {}", reply.text());
                    answered.fetch_add(1, Ordering::Relaxed);
                } else {
                    let code = code(&reply);
                    *lock().refused.entry(code).or_default() += 1;
                }
            }
        }
    }
}

/// The stable code of a refusal. The SDK's own server gives none where an inference failed.
fn code(reply: &Reply) -> String {
    if reply.status == 500 && reply.text() == r#"{"detail":"inference failed"}"# {
        return "internal".to_owned();
    }
    reply.error_code().unwrap_or_else(|| panic!("{} without a code: {}", reply.status, reply.text()))
}

/// Waits until clients were answered `more` times from now on.
pub(crate) fn wait_for_answers(answered: &AtomicUsize, more: usize) {
    let enough = answered.load(Ordering::Relaxed) + more;
    assert!(eventually(|| answered.load(Ordering::Relaxed) >= enough), "no {more} answers within a minute");
}

/// The outcomes that the server has counted: answered, rejected, cancelled, failed.
pub(crate) fn outcomes(client: &Client) -> [usize; 4] {
    ["answered", "rejected", "cancelled", "failed"].map(|outcome| {
        metric(client, &format!("synod_outcomes_total{{outcome=\"{outcome}\"}}")).unwrap_or(0.0) as usize
    })
}
