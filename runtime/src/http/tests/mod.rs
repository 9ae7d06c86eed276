//! Routes over a puppet member: every line of the table, and that nothing stays counted.

mod keys;
mod sockets;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use actix::{Actor, Addr};
use actix_web::body::to_bytes;
use actix_web::http::StatusCode;
use actix_web::http::header::HeaderMap;
use actix_web::test::{TestRequest, call_service, init_service};
use actix_web::web;
use futures_util::FutureExt;
use futures_util::future::{Either, select};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{Bodies, Keys, Service, Surface, Terms, app};
use crate::admission::{self, Admission, Bounds};
use crate::metrics::{Metrics, Reporter};
use crate::supervisor::fakes::{PLAIN, Strings, patient_settings, settings};
use crate::supervisor::{self, Cards, Drain, Roster, Supervisor};
use crate::wire::request::Limits;

const MAX_BODY_BYTES: usize = 2000;

/// A whole server but for its socket.
struct Harness {
    service: web::Data<Service>,
    supervisor: Addr<Supervisor>,
}

struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    text: String,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error} in {:?}", self.text))
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// Status and stable code; the text must be what the SDK reads.
    fn refusal(&self) -> (u16, String) {
        let body = self.json();
        let code = match (&body["error"], &body["detail"]) {
            (Value::Object(error), Value::Null) => {
                assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{}", self.text);
                error["code"].as_str().unwrap().to_owned()
            }
            (Value::Null, Value::Array(details)) => details[0]["type"].as_str().unwrap().to_owned(),
            (Value::Null, Value::String(detail)) => detail.clone(),
            _ => panic!("not an error body: {}", self.text),
        };
        assert_eq!(self.header("content-type"), "application/json");
        (self.status.as_u16(), code)
    }
}

fn admission_settings() -> admission::Settings {
    admission::Settings {
        max_body_bytes: MAX_BODY_BYTES,
        max_depth: 16,
        limits: Limits::default(),
        bounds: Bounds { max_requests: 4, max_tokens: 1000 },
        request_timeout: Duration::from_mins(1),
    }
}

fn bounded(max_requests: usize, max_tokens: usize) -> admission::Settings {
    admission::Settings { bounds: Bounds { max_requests, max_tokens }, ..admission_settings() }
}

/// What a test may want to be different.
struct Setup {
    threads: usize,
    admission: admission::Settings,
    supervisor: supervisor::Settings,
    keys: Keys,
    strings: Strings,
}

impl Default for Setup {
    fn default() -> Self {
        let (keys, strings) = (Keys::default(), Strings::new());
        Setup { threads: 2, admission: admission_settings(), supervisor: settings(), keys, strings }
    }
}

impl Harness {
    /// A server whose members are loaded.
    async fn start() -> (Self, Strings) {
        Self::start_with(Setup::default()).await
    }

    async fn start_with(setup: Setup) -> (Self, Strings) {
        let (harness, strings) = Self::start_loading(setup);
        harness.ready().await;
        (harness, strings)
    }

    fn start_loading(setup: Setup) -> (Self, Strings) {
        let metrics = Arc::new(Metrics::new());
        let seats = vec![setup.strings.seat("m"), Strings::new().seat("other")];
        let (supervisor, roster) = Supervisor::start_all(seats, setup.supervisor, Arc::clone(&metrics));
        let bodies = Bodies::new(MAX_BODY_BYTES, setup.admission.request_timeout, Arc::default());
        let (_, terms) = watch::channel(Arc::new(Terms { keys: setup.keys, bodies }));
        let (_, settings) = watch::channel(Arc::new(setup.admission));
        let (_, cards) = watch::channel(Arc::new(Cards::Unknown));
        let service = web::Data::new(Service {
            admission: Admission::start(setup.threads, settings, roster.clone(), Arc::clone(&metrics)),
            reporter: Reporter::new(Arc::clone(&metrics), roster.clone(), cards.clone()).start(),
            roster,
            cards,
            metrics,
            terms,
            reload: None,
        });
        (Harness { service, supervisor }, setup.strings)
    }

    /// Waits until every member serves.
    async fn ready(&self) {
        self.service.roster.clone().wait_for(|roster| roster.is_ready()).await.unwrap();
    }

    async fn send(&self, request: TestRequest) -> Reply {
        let app = init_service(app(&self.service, Surface::All)).await;
        let response = call_service(&app, request.to_request()).await;
        let (status, headers) = (response.status(), response.headers().clone());
        let Ok(body) = to_bytes(response.into_body()).await else { panic!("no body") };
        Reply { status, headers, text: String::from_utf8(body.to_vec()).unwrap() }
    }

    async fn ask(&self, state: &str) -> Reply {
        self.send(ask(state)).await
    }

    /// The value of a metric's line.
    fn metric(&self, line: &str) -> u64 {
        let text = self.service.metrics.encode().unwrap();
        text.lines().find_map(|l| l.strip_prefix(line)?.strip_prefix(' ')).map_or(0, |count| count.parse().unwrap())
    }

    fn outcome(&self, outcome: &str) -> u64 {
        self.metric(&format!(r#"synod_outcomes_total{{outcome="{outcome}"}}"#))
    }

    /// Waits until nothing is under way, and then nothing may be left counted.
    async fn assert_nothing_is_counted(&self) {
        self.service.admission.gate().idle().await;
        assert_eq!(self.service.admission.gate().tokens(), 0);
        assert_eq!(self.service.terms.borrow().bodies.held().bytes(), 0);
        assert_eq!(self.metric("synod_inflight"), 0);
    }
}

fn body(state: &str) -> String {
    format!(r#"{{"model":"m","state":"{state}","questions":{{"q":{{"type":"noul"}}}}}}"#)
}

fn post(body: impl Into<web::Bytes>) -> TestRequest {
    TestRequest::post()
        .uri("/v1/systemone")
        .insert_header(("content-type", "application/json"))
        .set_payload(body.into())
}

fn ask(state: &str) -> TestRequest {
    post(body(state))
}

fn get(path: &str) -> TestRequest {
    TestRequest::get().uri(path)
}

/// Runs `held` until its forward holds, and gives it back unfinished.
async fn until_held<F: Future<Output = Reply> + Unpin>(held: F, strings: &mut Strings) -> F {
    match select(held, pin!(strings.held())).await {
        Either::Left((reply, _)) => panic!("not held: {}", reply.text),
        Either::Right(((), held)) => held,
    }
}

#[actix::test]
async fn an_answer_has_its_headers_and_counts() {
    let (harness, _strings) = Harness::start().await;
    let reply = harness.send(ask("x").insert_header(("x-typesafe-request-id", "my-id.1"))).await;
    assert_eq!(reply.status, 200);
    assert_eq!(
        reply.text,
        r#"{"model":"m","answers":{"q":{"type":"noul","noul":10.0}},"usage":{"input_tokens":50,"output_tokens":0}}"#
    );
    assert_eq!(reply.header("content-type"), "application/json");
    assert_eq!(reply.header("x-typesafe-request-id"), "my-id.1");
    let phases: Vec<&str> =
        reply.header("server-timing").split(", ").map(|e| e.split_once(";dur=").unwrap().0).collect();
    assert_eq!(phases, ["parse", "render", "queue", "forward", "finish", "total"]);
    harness.assert_nothing_is_counted().await;
    assert_eq!(harness.outcome("answered"), 1);
    assert_eq!(harness.metric(r#"synod_requests_total{code="200",route="/v1/systemone"}"#), 1);
    assert_eq!(harness.metric(r#"synod_questions_total{kind="noul"}"#), 1);
    assert_eq!(harness.metric(r#"synod_tokens_total{device="cpu:0",kind="computed",member="m"}"#), 50);
    assert_eq!(harness.metric("synod_request_seconds_count"), 1);
}

#[actix::test]
async fn ids_that_may_not_be_repeated_are_replaced() {
    let (harness, _strings) = Harness::start().await;
    for id in ["", "a b", &"x".repeat(129)] {
        let reply = harness.send(ask("x").insert_header(("x-typesafe-request-id", id))).await;
        assert!(uuid::Uuid::parse_str(reply.header("x-typesafe-request-id")).is_ok(), "{id}");
    }
    let reply = harness.send(get("/nowhere")).await;
    assert!(uuid::Uuid::parse_str(reply.header("x-typesafe-request-id")).is_ok(), "errors have an id too");
}

#[actix::test]
async fn models_are_called_by_name_alias_or_default() {
    let supervisor = supervisor::Settings { default_model: Some("m".into()), ..settings() };
    let setup = Setup { supervisor, ..Setup::default() };
    let (harness, _strings) = Harness::start_with(setup).await;
    for model in [r#""model":"m","#, r#""model":"m-latest","#, r#""model":null,"#, ""] {
        let reply = harness.send(post(format!(r#"{{{model}"state":"x","questions":{{"q":{{}}}}}}"#))).await;
        assert_eq!(reply.json()["model"], "m", "{model}: {}", reply.text);
    }
}

/// Every refusal that one request can earn: status, code, and the header that goes with it.
#[actix::test]
async fn every_refusal_is_in_the_table() {
    let (harness, _strings) = Harness::start().await;
    let with = |name: &'static str, value: &'static str| ask("x").insert_header((name, value));
    let long = "x".repeat(MAX_BODY_BYTES);
    let zipped = admission::test_bodies::gzip(long.as_bytes());
    let deep = format!(r#"{{"state":{}{}}}"#, "[".repeat(17), "]".repeat(17));
    let cases = vec![
        (post(""), 400, "invalid_json"),
        (post("{\"state\": NaN}"), 400, "invalid_json"),
        (post(&b"\xff"[..]), 400, "invalid_json"),
        (post(deep), 400, "invalid_json"),
        (with("content-encoding", "br"), 400, "content_encoding"),
        (with("content-encoding", "gzip"), 400, "content_encoding"),
        (get("/nowhere"), 404, "unknown_route"),
        (TestRequest::post().uri("/"), 404, "unknown_route"),
        (post(body("x").replace("\"m\"", "\"someone\"")), 404, "unknown_model"),
        (get("/v1/systemone"), 405, "method_not_allowed"),
        (TestRequest::delete().uri("/v1/decisions"), 405, "method_not_allowed"),
        (TestRequest::post().uri("/v1/models"), 405, "method_not_allowed"),
        (TestRequest::post().uri("/health/ready"), 405, "method_not_allowed"),
        (with("content-type", "text/plain"), 415, "content_type"),
        (TestRequest::post().uri("/v1/systemone").set_payload(body("x")), 415, "content_type"),
        (post(body(&long)), 413, "body_too_large"),
        (post(zipped).insert_header(("content-encoding", "gzip")), 400, "invalid_json"),
        (ask("too long"), 413, "too_long"),
        (ask("invalid"), 422, "type"),
        (post("[]"), 422, "dict_type"),
        (post(r#"{"state":"x","questions":{"q":{}}}"#), 422, "missing"),
        (ask("unknown"), 500, "inference failed"),
        (ask("not finite"), 500, "inference failed"),
        (ask("render panic"), 500, "inference failed"),
    ];
    for (number, (request, status, code)) in cases.into_iter().enumerate() {
        let reply = harness.send(request).await;
        assert_eq!(reply.refusal(), (status, code.to_owned()), "case {number}: {}", reply.text);
        assert_eq!(reply.headers.contains_key("allow"), status == 405, "case {number}");
        assert!(!reply.header("x-typesafe-request-id").is_empty(), "case {number}");
        let good = harness.ask("x").await;
        assert_eq!(good.status, 200, "after case {number}: {}", good.text);
    }
    harness.assert_nothing_is_counted().await;
    assert_eq!(harness.outcome("failed"), 3);
    assert_eq!(harness.outcome("cancelled"), 0);
}

#[actix::test]
async fn compressed_bodies_are_read_and_bounded() {
    let (harness, _strings) = Harness::start().await;
    let (good, long) = (body("x"), body(&"x".repeat(MAX_BODY_BYTES)));
    let gzip = |text: &str| ("gzip", admission::test_bodies::gzip(text.as_bytes()));
    let zstd = |text: &str| ("zstd", admission::test_bodies::zstd(text.as_bytes()));
    for (encoding, bytes) in [gzip(&good), zstd(&good)] {
        let reply = harness.send(post(bytes).insert_header(("content-encoding", encoding))).await;
        assert_eq!(reply.status, 200, "{encoding}: {}", reply.text);
    }
    for (encoding, bytes) in [gzip(&long), zstd(&long)] {
        let reply = harness.send(post(bytes).insert_header(("content-encoding", encoding))).await;
        assert_eq!(reply.refusal(), (413, "body_too_large".into()), "{encoding}");
    }
}

#[actix::test]
async fn unknown_models_are_answered_with_the_known_ones_and_never_become_labels() {
    let (harness, _strings) = Harness::start().await;
    let reply = harness.send(post(body("x").replace("\"m\"", "\"marker-77\""))).await;
    let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(message, "unknown model; known here: m, m-latest, other, other-latest");
    assert!(!harness.service.metrics.encode().unwrap().contains("marker-77"));
}

#[actix::test]
async fn requests_beyond_the_queue_are_told_to_wait() {
    let admission = bounded(1, 1000);
    let (harness, mut strings) = Harness::start_with(Setup { admission, ..Setup::default() }).await;
    let held = until_held(Box::pin(harness.ask("hold")), &mut strings).await;
    let full = harness.ask("x").await;
    assert_eq!(full.refusal(), (429, "queue_requests".into()));
    assert_eq!((full.header("retry-after"), full.header("retry-after-ms")), ("1", "1000"));
    strings.let_go();
    assert_eq!(held.await.status, 200);
    assert_eq!(harness.ask("x").await.status, 200);
    harness.assert_nothing_is_counted().await;
    assert_eq!(harness.metric(r#"synod_rejected_total{reason="queue_requests"}"#), 1);
}

#[actix::test]
async fn tokens_beyond_the_queue_are_told_to_wait() {
    let admission = bounded(4, 99);
    let (harness, mut strings) = Harness::start_with(Setup { admission, ..Setup::default() }).await;
    let held = until_held(Box::pin(harness.ask("hold")), &mut strings).await;
    assert_eq!(harness.ask("x").await.refusal(), (429, "queue_tokens".into()));
    assert_eq!(harness.ask("nothing").await.status, 200, "what computes nothing needs no tokens");
    strings.let_go();
    assert_eq!(held.await.status, 200);
    harness.assert_nothing_is_counted().await;
}

#[actix::test]
async fn a_deadline_ends_the_wait_and_the_work() {
    let (harness, mut strings) = Harness::start().await;
    let held = until_held(Box::pin(harness.ask("hold")), &mut strings).await;
    let late = body("x").replace("{\"model\"", "{\"options\":{\"deadline_ms\":5},\"model\"");
    let reply = harness.send(post(late)).await;
    assert_eq!(reply.refusal(), (504, "deadline".into()));
    strings.let_go();
    assert_eq!(held.await.status, 200);
    assert_eq!(harness.ask("x").await.status, 200);
    assert_eq!(strings.calls().len(), 2, "the late request never ran");
    assert_eq!(harness.metric(r#"synod_cancelled_total{device="cpu:0",member="m"}"#), 0, "its client had not left");
    harness.assert_nothing_is_counted().await;
    assert_eq!(harness.outcome("failed"), 1);
}

/// More work than the deployment takes at a time could never be admitted: trying again would not help.
#[actix::test]
async fn a_request_beyond_the_deployment_is_too_long() {
    let admission = bounded(4, 49);
    let (harness, strings) = Harness::start_with(Setup { admission, ..Setup::default() }).await;
    let reply = harness.ask("x").await;
    assert_eq!(reply.refusal(), (413, "too_long".into()));
    let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(message, "the request is 50 tokens of work; at most 49 are taken here: ask for less");
    assert!(strings.calls().is_empty());
    assert_eq!(harness.metric(r#"synod_questions_total{kind="noul"}"#), 0);
    harness.assert_nothing_is_counted().await;
}

/// Nothing that a client sends may occupy an executor after it has left.
#[actix::test]
async fn a_running_request_ends_when_its_client_leaves() {
    let (harness, mut strings) = Harness::start().await;
    drop(until_held(Box::pin(harness.ask("endless")), &mut strings).await);
    assert_eq!(harness.ask("x").await.status, 200);
    harness.assert_nothing_is_counted().await;
    assert_eq!(harness.outcome("cancelled"), 1);
    assert_eq!(harness.metric(r#"synod_cancelled_total{device="cpu:0",member="m"}"#), 1);
}

/// A request that is read by the lane of long bodies, whatever its length.
fn long(state: &str) -> TestRequest {
    post(admission::test_bodies::gzip(body(state).as_bytes())).insert_header(("content-encoding", "gzip"))
}

#[actix::test]
async fn long_bodies_hold_up_neither_short_ones_nor_answers() {
    let (harness, mut strings) = Harness::start().await;
    let running = until_held(Box::pin(harness.ask("hold")), &mut strings).await;
    let reading = until_held(Box::pin(harness.send(long("render hold"))), &mut strings).await;
    // Behind the one that is read, in the same lane.
    let mut waiting = Box::pin(harness.send(long("x")));
    assert!((&mut waiting).now_or_never().is_none());
    let short = harness.ask("nothing").await;
    assert_eq!(short.status, 200, "a short body was read and answered: {}", short.text);
    // One of the two that hold is let go each time: which one does not matter.
    strings.let_go();
    strings.let_go();
    for reply in [running.await, reading.await, waiting.await] {
        assert_eq!(reply.status, 200, "{}", reply.text);
    }
    harness.assert_nothing_is_counted().await;
}

/// What waits to be read occupies memory although its client has left: it must stay counted until it is gone, or
/// connecting, sending and leaving would grow the process without bound.
#[actix::test]
async fn what_departed_clients_sent_stays_counted_until_it_is_gone() {
    let (harness, mut strings) = Harness::start_with(Setup { threads: 1, ..Setup::default() }).await;
    drop(until_held(Box::pin(harness.send(long("render hold"))), &mut strings).await);
    let reading_bytes = harness.service.terms.borrow().bodies.held().bytes();
    assert!(reading_bytes > 0);
    for left in 2..=4 {
        let mut leaving = Box::pin(harness.send(long("x")));
        while harness.metric("synod_inflight") < left {
            assert!((&mut leaving).now_or_never().is_none());
        }
        drop(leaving);
        assert_eq!(harness.metric("synod_inflight"), left);
    }
    assert!(harness.service.terms.borrow().bodies.held().bytes() > reading_bytes);
    assert_eq!(harness.ask("x").await.refusal(), (429, "queue_requests".into()));
    strings.let_go();
    harness.assert_nothing_is_counted().await;
    assert!(strings.calls().is_empty(), "nobody waited for any of it");
    assert_eq!(harness.ask("x").await.status, 200);
}

/// Whoever is still waiting when the time to drain is over gets an answer, not a lost connection.
#[actix::test]
async fn the_end_of_a_drain_answers_what_is_under_way() {
    let (harness, mut strings) = Harness::start().await;
    let running = until_held(Box::pin(harness.ask("endless")), &mut strings).await;
    harness.supervisor.send(Drain).await.unwrap();
    harness.service.admission.end();
    assert_eq!(running.await.refusal(), (503, "draining".into()));
    harness.assert_nothing_is_counted().await;
    assert_eq!(harness.ask("x").await.refusal(), (503, "draining".into()));
    assert_eq!((harness.outcome("failed"), harness.outcome("rejected")), (1, 1), "given up, and refused at the door");
    assert_eq!(cancelled(&harness), 0, "no client had left");
}

/// A drain ends the process once nothing is under way: an answer that nobody has yet is.
#[actix::test]
async fn a_request_is_under_way_until_its_answer_is_there() {
    let (harness, _strings) = Harness::start().await;
    for round in 0..50 {
        let mut asked = Box::pin(harness.ask("x"));
        let mut reply = None;
        while reply.is_none() && harness.metric("synod_inflight") == 0 {
            reply = (&mut asked).now_or_never();
        }
        if reply.is_some() {
            continue;
        }
        // Where both are ready, the answer wins.
        match select(asked, pin!(harness.service.admission.gate().idle())).await {
            Either::Left((reply, _)) => assert_eq!(reply.status, 200),
            Either::Right(_) => panic!("idle before the answer was there, in round {round}"),
        }
    }
}

fn cancelled(harness: &Harness) -> u64 {
    harness.metric(r#"synod_cancelled_total{device="cpu:0",member="m"}"#)
}

fn several(states: &[&str]) -> TestRequest {
    let state = |state: &str| json!({"state": state, "questions": {"q": {"type": "noul"}}});
    let states: serde_json::Map<String, Value> =
        states.iter().enumerate().map(|(i, text)| (format!("{i}"), state(text))).collect();
    post(json!({"model": "m", "states": states}).to_string()).uri("/v1/decisions")
}

/// A request is one, however many pieces its work has; and the loss of one piece, which drops the others, is nobody's
/// departure.
#[actix::test]
async fn departures_are_counted_by_request() {
    let (harness, mut strings) = Harness::start().await;
    drop(until_held(Box::pin(harness.send(several(&["endless", "x", "error"]))), &mut strings).await);
    harness.assert_nothing_is_counted().await;
    assert_eq!(cancelled(&harness), 1);
    // Once for the batch, and once more if what is dropped runs alone before that is noticed.
    strings.let_go();
    strings.let_go();
    let reply = harness.send(several(&["error", "hold"])).await;
    assert_eq!(reply.refusal(), (500, "inference failed".into()));
    harness.assert_nothing_is_counted().await;
    assert_eq!(cancelled(&harness), 1);
}

/// Routes match what a path says, however it is written: so must what is counted.
#[actix::test]
async fn a_path_is_counted_as_it_is_matched() {
    let (harness, _strings) = Harness::start().await;
    let reply = harness.send(ask("x").uri("/v1/%73ystemone")).await;
    assert_eq!(reply.status, 200);
    assert_eq!(harness.send(get("/v1/%6dodels")).await.status, 200);
    assert_eq!(harness.outcome("answered"), 1);
    assert_eq!(harness.metric(r#"synod_requests_total{code="200",route="/v1/systemone"}"#), 1);
    assert_eq!(harness.metric(r#"synod_requests_total{code="200",route="/v1/models"}"#), 1);
    assert_eq!(harness.metric(r#"synod_requests_total{code="200",route="other"}"#), 0);
    harness.assert_nothing_is_counted().await;
}

/// A forward that hangs costs its own requests their deadline and nobody a crash; once it moves again, so does all.
#[actix::test]
async fn a_frozen_forward_recovers() {
    let admission = admission::Settings { request_timeout: Duration::from_millis(20), ..admission_settings() };
    let (harness, mut strings) = Harness::start_with(Setup { admission, ..Setup::default() }).await;
    // On a busy machine a request may be late before it runs; then it takes another one to freeze the forward.
    let frozen = loop {
        if let Either::Right(((), frozen)) = select(Box::pin(harness.ask("hold")), pin!(strings.held())).await {
            break frozen;
        }
    };
    assert_eq!(frozen.await.refusal(), (504, "deadline".into()));
    assert_eq!(harness.ask("x").await.refusal(), (504, "deadline".into()));
    strings.let_go();
    let mut status = harness.ask("x").await.status;
    while status == 504 {
        status = harness.ask("x").await.status;
    }
    assert_eq!(status, 200);
    harness.assert_nothing_is_counted().await;
}

#[actix::test]
async fn a_client_that_leaves_is_counted_and_its_work_never_runs() {
    let (harness, mut strings) = Harness::start().await;
    let held = until_held(Box::pin(harness.ask("hold")), &mut strings).await;
    let queued = |harness: &Harness| harness.metric(r#"synod_queue_requests{device="cpu:0",member="m"}"#);
    let mut leaving = Box::pin(harness.ask("x"));
    while queued(&harness) == 0 {
        let Either::Right(_) = select(&mut leaving, pin!(tokio::task::yield_now())).await else {
            panic!("answered while the executor is busy");
        };
    }
    drop(leaving);
    strings.let_go();
    assert_eq!(held.await.status, 200);
    assert_eq!(harness.ask("x").await.status, 200);
    assert_eq!(strings.calls().len(), 2);
    harness.assert_nothing_is_counted().await;
    assert_eq!(harness.outcome("cancelled"), 1);
    assert_eq!(harness.metric(r#"synod_cancelled_total{device="cpu:0",member="m"}"#), 1);
}

/// A request that brings its executor down is given one more chance, alone, and brings down no third one.
#[actix::test]
async fn a_panic_or_a_device_error_is_one_honest_error() {
    for state in ["panic", "error", "short"] {
        let (harness, strings) = Harness::start().await;
        let reply = harness.ask(state).await;
        assert_eq!(reply.refusal(), (500, "inference failed".into()), "{state}");
        assert_eq!(reply.text, r#"{"detail":"inference failed"}"#);
        let rebuilt = |roster: &Arc<Roster>| strings.puppet.loads.load(Ordering::SeqCst) == 3 && roster.is_ready();
        harness.service.roster.clone().wait_for(rebuilt).await.unwrap();
        assert_eq!(harness.ask("x").await.status, 200, "after {state}");
        harness.assert_nothing_is_counted().await;
    }
}

/// What a member can no longer do as it is loaded is no request's fault: the next executor answers it.
#[actix::test]
async fn a_changed_file_costs_no_request() {
    let (harness, strings) = Harness::start().await;
    strings.puppet.is_altered.store(true, Ordering::SeqCst);
    let reply = harness.ask("x").await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    assert_eq!(strings.puppet.loads.load(Ordering::SeqCst), 2);
    harness.assert_nothing_is_counted().await;
}

/// What waited behind a request that brings its executor down has had no part in it: it is answered by the next one.
#[actix::test]
async fn what_waits_behind_a_panic_is_answered() {
    let (harness, mut strings) = Harness::start().await;
    let question = json!({"q": {"type": "noul"}});
    let culprit = json!({"model": "m", "states": {
        "a": {"state": "hold", "questions": question},
        "b": {"state": "panic", "questions": question},
    }});
    let culprit = TestRequest::post()
        .uri("/v1/decisions")
        .insert_header(("content-type", "application/json"))
        .set_payload(culprit.to_string());
    let culprit = until_held(Box::pin(harness.send(culprit)), &mut strings).await;
    let mut waiting = Box::pin(harness.ask("x"));
    // It is queued once it is counted there.
    let queued = async {
        while harness.metric(r#"synod_queue_requests{device="cpu:0",member="m"}"#) == 0 {
            tokio::task::yield_now().await;
        }
    };
    let Either::Right(((), _)) = select(&mut waiting, pin!(queued)).await else { panic!("answered while it is held") };
    // The culprit gets its second chance, alone.
    strings.let_go();
    strings.let_go();
    let (culprit, waiting) = futures_util::future::join(culprit, waiting).await;
    assert_eq!((waiting.status, culprit.refusal()), (StatusCode::OK, (500, "inference failed".into())));
    harness.assert_nothing_is_counted().await;
    assert_eq!((harness.outcome("answered"), harness.outcome("failed")), (1, 1));
}

#[actix::test]
async fn a_member_that_cannot_be_loaded_is_not_ready_and_says_why() {
    let strings = Strings::new();
    strings.puppet.failing_loads.store(1, Ordering::SeqCst);
    let setup = Setup { supervisor: patient_settings(), strings, ..Setup::default() };
    let (harness, _strings) = Harness::start_loading(setup);
    let failed = |roster: &Arc<Roster>| roster.members[0].replicas[0].state.name() == "failed";
    harness.service.roster.clone().wait_for(failed).await.unwrap();
    let refused = harness.ask("x").await;
    assert_eq!(refused.refusal(), (503, "not_ready".into()));
    assert_eq!(refused.header("retry-after"), "1");
    let reply = harness.send(get("/health/ready")).await;
    assert_eq!(reply.status, 503);
    let body = reply.json();
    assert!(body["waiting_for"].as_array().unwrap().contains(&"m".into()), "{body}");
    let replica = &body["members"][0]["replicas"][0];
    assert_eq!(replica["state"], "failed");
    assert_eq!(replica["reason"], "model.safetensors: expected a file, found none");
    assert_eq!(harness.send(get("/health/live")).await.status, 200);
}

#[actix::test]
async fn draining_refuses_new_work_and_finishes_the_old() {
    let (harness, mut strings) = Harness::start().await;
    let held = until_held(Box::pin(harness.ask("hold")), &mut strings).await;
    harness.supervisor.send(Drain).await.unwrap();
    let refused = harness.ask("x").await;
    assert_eq!(refused.refusal(), (503, "draining".into()));
    assert_eq!(refused.header("retry-after"), "1");
    assert_eq!(harness.send(get("/health/ready")).await.status, 503);
    strings.let_go();
    assert_eq!(held.await.status, 200);
    harness.assert_nothing_is_counted().await;
}

#[actix::test]
async fn models_list_every_name_with_the_fields_of_the_sdk() {
    let (harness, _strings) = Harness::start().await;
    let reply = harness.send(get("/v1/models")).await;
    let body = reply.json();
    let names: Vec<&str> = body["models"].as_array().unwrap().iter().map(|m| m["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["m", "m-latest", "other", "other-latest"]);
    let entry = &body["models"][1];
    assert_eq!(entry["description"], "a puppet");
    assert_eq!(entry["release_date"], "2026-10-01");
    assert_eq!(entry["served_as"], "m");
    assert_eq!(entry["ready"], true);
    assert_eq!(entry["replicas"][0]["state"], "ready");
    assert_eq!(entry["question_types"][0], "noul");
}

#[actix::test]
async fn a_scrape_shows_states() {
    let (harness, _strings) = Harness::start().await;
    let reply = harness.send(get("/metrics")).await;
    assert_eq!(reply.status, 200);
    assert!(reply.header("content-type").starts_with("text/plain"));
    assert!(
        reply.text.contains(r#"synod_executor_state{device="cpu:0",member="m",state="ready"} 1"#),
        "{}",
        reply.text
    );
}
