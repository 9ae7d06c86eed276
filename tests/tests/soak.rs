//! A server at nine tenths of what it can do: every request has one correct count, and neither memory nor waiting drifts.
//!
//! A minute, or as long as `SYNOD_SOAK_S` says; the figures are printed. It has a test binary of its own, so that no
//! other test takes its cores.

use std::time::Duration;

use serde_json::{Map, Value, json};
use synod_bench::load::{Arrivals, Kind, Load, Pace, Report};
use synod_tests::deployment::Deployment;
use synod_tests::server::Server;

const SYNOD: &str = env!("CARGO_BIN_EXE_synod-tested");

/// Connections of the load, more than fill the largest batch. Capacity is measured with as many clients: the workspace has
/// grown to its size when the soak begins, and the server has had as many connections as it will.
const CONNECTIONS: usize = 256;
/// How much memory may grow from the first tenth of the soak to the last.
const MAX_GROWTH: f64 = 1.03;

fn seconds() -> f64 {
    std::env::var("SYNOD_SOAK_S").map_or(60.0, |text| text.parse().expect("SYNOD_SOAK_S is a number of seconds"))
}

fn load(server: &Server, pace: Pace, duration: Duration) -> Report {
    let load = Load {
        url: format!("http://{}", server.client().address()),
        metrics_url: None,
        key: None,
        model: None,
        kind: Kind::Small,
        pace,
        duration,
        connections: CONNECTIONS,
        timeout: Duration::from_mins(2),
        warmup: 8,
        seed: 1,
    };
    let report = load.run().unwrap_or_else(|error| panic!("{error:#}"));
    println!("{report}\n");
    assert_eq!(report.answered, report.sent, "{:?}", report.statuses);
    assert_eq!(report.disagreement, None);
    report
}

/// Fills both of the member's caches of tokens, of pieces and of parts, with texts as short as those of the soak: it would
/// take its requests minutes. A request is tokenised before it is known to have more work than the queue takes.
fn fill_token_caches(server: &Server) {
    for request in 0..256 {
        let text = |at: usize| format!("Message {request}.{at}: the night shift described the new opening hours.");
        let parts: Map<_, _> = (0..256).map(|at| (format!("part {at}"), Value::from(text(at)))).collect();
        let ask = |at| (format!("question {at}"), json!({"type": "noul", "instructions": text(at)}));
        let body = json!({"state": parts, "questions": (0..256).map(ask).collect::<Map<_, _>>()});
        let reply = server.client().post("/v1/systemone", body.to_string());
        assert_eq!((reply.status, reply.error_code().as_deref()), (413, Some("too_long")), "{}", reply.text());
    }
}

#[test]
fn nothing_drifts_at_nine_tenths_of_capacity() {
    // Whatever fills is full before the soak begins: token caches, the prefix cache, the workspace.
    let deployment = Deployment::of(&["tiny-08b"])
        .member_line("prefix_cache_mib = 16")
        .tables("[queue]\nbatch_tokens = 8192\nmax_tokens = 262144");
    let server = Server::start(SYNOD, &deployment.server("default_model = \"tiny-08b\""));
    fill_token_caches(&server);
    let capacity = load(&server, Pace::Closed { clients: CONNECTIONS }, Duration::from_secs(10)).requests_per_second();
    let pace = Pace::Open { rate: 0.9 * capacity, arrivals: Arrivals::Poisson };
    let report = load(&server, pace, Duration::from_secs_f64(seconds()));
    let memory: Vec<u64> = report.windows.iter().filter_map(|window| window.resident_bytes).collect();
    let (first, last) = (memory[0], memory[memory.len() - 1]);
    assert!(last as f64 <= MAX_GROWTH * first as f64, "memory grew from {first} to {last} bytes");
    // A queue that grows doubles its wait from half to half; one that does not varies by less than a second here.
    let wait = |windows: &[synod_bench::load::Window]| {
        let mut waits: Vec<Duration> = windows.iter().map(|window| window.latency.p50).collect();
        waits.sort_unstable();
        waits[waits.len() / 2]
    };
    let (before, after) = (wait(&report.windows[..5]), wait(&report.windows[5..]));
    assert!(after <= 2 * before + Duration::from_secs(1), "p50 went from {before:?} to {after:?}");
}
