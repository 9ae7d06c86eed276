//! Clients that leave, dawdle, or are too many.

use std::io::Write as _;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use synod_tests::deployment::Deployment;
use synod_tests::fixtures;
use synod_tests::http::{raw_post, read_reply};
use synod_tests::server::{Launch, Server, eventually};

use crate::load::outcomes;
use crate::{MEMBER, SYNOD, deployment, metric};

pub(crate) const GOOD: &str =
    r#"{"state":"It is late.","questions":{"q":{"type":"noul","instructions":"Is it late?"}}}"#;

fn assert_serves(server: &Server) {
    let since = Instant::now();
    assert_eq!(server.ask(fixtures::with_model(GOOD, MEMBER)).status, 200);
    assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
}

fn connections(server: &Server) -> usize {
    let table = std::fs::read_dir(format!("/proc/{}/fd", server.id())).expect("the server runs");
    table.count()
}

#[test]
fn a_thousand_clients_that_send_half_and_leave_leave_nothing() {
    let server = Server::start(SYNOD, &deployment());
    assert_serves(&server);
    let before = connections(&server);
    let request = raw_post("/v1/systemone", fixtures::with_model(GOOD, MEMBER).as_bytes());
    for turn in 0..1000 {
        // In the head, at its end, in the body, and one byte before its end.
        let length = [30, request.len() - 100, request.len() - 50, request.len() - 1][turn % 4];
        server.client().connect().write_all(&request[..length]).expect("the server reads");
    }
    assert_serves(&server);
    assert!(eventually(|| connections(&server) <= before + 2), "{} and {before}", connections(&server));
    let [answered, rejected, cancelled, failed] = outcomes(server.client());
    assert_eq!((answered, rejected, failed), (2, 0, 0));
    assert!(cancelled <= 750, "a request without its whole head is none: {cancelled}");
    assert_eq!(metric(server.client(), "synod_inflight"), Some(0.0));
}

/// Heads that come byte by byte are given up after ten seconds; meanwhile everybody else is served.
#[test]
fn clients_that_dawdle_keep_nobody_waiting() {
    let server = Server::start(SYNOD, &deployment());
    let mut slow: Vec<TcpStream> = (0..300).map(|_| server.client().connect()).collect();
    let since = Instant::now();
    let head = b"POST /v1/systemone HTTP/1.1\r\nhost: synod\r\nx-a: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    for byte in head {
        // The server may have given up some already.
        slow.retain_mut(|connection| connection.write_all(&[*byte]).is_ok());
        assert_serves(&server);
    }
    let is_closed = |connection: &mut TcpStream| match read_reply(connection) {
        Ok(reply) => reply.status == 408,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    };
    assert!(slow.iter_mut().all(is_closed), "a dawdling connection is still open");
    assert!(since.elapsed() < Duration::from_secs(40), "{:?}", since.elapsed());
    assert_serves(&server);
}

/// Ten thousand at a time, of which an executor can answer only some before their deadline: each gets its answer or a
/// 504 near its deadline, none waits longer, and the memory that they took is not taken again by the next ones.
#[test]
fn ten_thousand_queued_requests_end_at_their_deadlines() {
    const REQUESTS: usize = 10_000;
    let queue = "[queue]\nmax_requests = 20000\nmax_tokens = 10000000";
    let server = Server::start(SYNOD, &deployment().devices(&["cpu:0"]).tables(queue));
    assert_serves(&server);
    let deadline = Duration::from_secs(3);
    let since = Instant::now();
    let mut open: Vec<TcpStream> = (0..REQUESTS)
        .map(|number| {
            // Different states, so that none is computed for two.
            let body = json!({
                "model": MEMBER,
                "state": format!("Ship {number} is late. {}", "It was seen near the coast. ".repeat(20)),
                "questions": {"q": {"type": "noul", "instructions": "Is it late?"}},
                "options": {"deadline_ms": deadline.as_millis() as u64},
            });
            let mut connection = server.client().connect();
            connection.write_all(&raw_post("/v1/systemone", body.to_string().as_bytes())).expect("the server reads");
            connection
        })
        .collect();
    let sent = since.elapsed();
    let mut by_status = std::collections::BTreeMap::<u16, usize>::new();
    for connection in &mut open {
        let reply = read_reply(connection).unwrap_or_else(|error| panic!("no reply: {error}"));
        *by_status.entry(reply.status).or_default() += 1;
    }
    // The last one was sent a deadline ago, and reading takes its time on a busy machine.
    assert!(since.elapsed() < sent + deadline + Duration::from_secs(20), "{:?}, sent {sent:?}", since.elapsed());
    let (answered, late) = (by_status.remove(&200).unwrap_or(0), by_status.remove(&504).unwrap_or(0));
    assert!(by_status.is_empty() && answered > 0 && late > 0, "answered {answered}, late {late}, else {by_status:?}");
    drop(open);
    assert_serves(&server);
    assert!(eventually(|| outcomes(server.client()).iter().sum::<usize>() == REQUESTS + 2));
    let queued = metric(server.client(), "synod_queue_requests{device=\"cpu:0\",member=\"tiny-08b\"}");
    assert_eq!((queued, metric(server.client(), "synod_inflight")), (Some(0.0), Some(0.0)));
}

/// More connections than descriptors: they wait, and nothing breaks.
#[test]
fn descriptors_that_run_out_are_survived() {
    let deployment = Deployment::of(&[MEMBER]);
    let server = Launch::of(SYNOD).through(&["sh", "-c", "ulimit -n 96; exec \"$0\" \"$@\""]).start(&deployment);
    assert_serves(&server);
    let idle: Vec<TcpStream> = (0..200).map(|_| server.client().connect()).collect();
    // Those that were accepted before may still ask.
    let mut first = idle[0].try_clone().expect("this process has descriptors");
    first.write_all(&raw_post("/v1/systemone", fixtures::with_model(GOOD, MEMBER).as_bytes())).expect("it is read");
    assert_eq!(read_reply(&mut first).expect("it is answered").status, 200);
    drop((idle, first));
    assert_serves(&server);
}

/// The event loops are not the executors': whoever asks whether the process lives is told at once.
#[test]
fn liveness_is_told_while_every_executor_is_saturated() {
    let server = Server::start(SYNOD, &deployment());
    let work = crate::load::Work::of(&server, MEMBER);
    let mut p99 = Duration::MAX;
    crate::load::under_load(&server, &work, 8, |answered| {
        crate::load::wait_for_answers(answered, 20);
        // Other tests share the cores: the best of five stretches is the server's own.
        for _ in 0..5 {
            let mut times: Vec<Duration> = (0..200)
                .map(|_| {
                    let since = Instant::now();
                    assert_eq!(server.client().get("/health/live").status, 200);
                    let time = since.elapsed();
                    thread::sleep(Duration::from_millis(2));
                    time
                })
                .collect();
            times.sort();
            p99 = p99.min(times[198]);
        }
    });
    assert!(p99 < Duration::from_millis(20), "{p99:?}");
}
