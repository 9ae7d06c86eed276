//! A server at nine tenths of what it can do: every request has one correct count, and neither memory nor waiting drifts.
//!
//! A minute, or as long as `SYNOD_SOAK_S` says; the figures are printed. It has a test binary of its own, so that no
//! other test takes its cores.

use std::time::Duration;

use synod_bench::load::{Arrivals, Kind, Load, Pace, Report};
use synod_tests::deployment::Deployment;
use synod_tests::server::Server;

const SYNOD: &str = env!("CARGO_BIN_EXE_synod-tested");

/// Clients that fill the largest batch: capacity is measured with as many, and the workspace has grown to its size when
/// the soak begins.
const CLIENTS: usize = 200;
/// How much memory may grow from the first tenth of the soak to the last.
const MAX_GROWTH: f64 = 1.03;
/// What a member's caches of tokens may still take meanwhile, two of 16 MiB: unlike others they are not full after a minute.
const TOKEN_CACHES: f64 = (32 << 20) as f64;
/// A soak this long has them full by its middle: from there on nothing may grow.
const LONG: f64 = 600.0;

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
        connections: 256,
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

#[test]
fn nothing_drifts_at_nine_tenths_of_capacity() {
    // Bounds that are reached before the soak begins: prefixes that fill their cache, a workspace that grows.
    let deployment =
        Deployment::of(&["tiny-08b"]).member_line("prefix_cache_mib = 16").tables("[queue]\nbatch_tokens = 4096");
    let server = Server::start(SYNOD, &deployment.server("default_model = \"tiny-08b\""));
    let capacity = load(&server, Pace::Closed { clients: CLIENTS }, Duration::from_secs(10)).requests_per_second();
    let pace = Pace::Open { rate: 0.9 * capacity, arrivals: Arrivals::Poisson };
    let report = load(&server, pace, Duration::from_secs_f64(seconds()));
    let memory: Vec<u64> = report.windows.iter().filter_map(|window| window.resident_bytes).collect();
    let (first, last) = (memory[0], memory[memory.len() - 1]);
    assert!(last as f64 <= MAX_GROWTH * first as f64 + TOKEN_CACHES, "memory grew from {first} to {last} bytes");
    let middle = memory[memory.len() / 2];
    assert!(seconds() < LONG || last as f64 <= MAX_GROWTH * middle as f64, "memory grew from {middle} to {last} bytes");
    // A queue that grows doubles its wait from half to half; one that does not varies by less than a second here.
    let wait = |windows: &[synod_bench::load::Window]| {
        let mut waits: Vec<Duration> = windows.iter().map(|window| window.latency.p50).collect();
        waits.sort_unstable();
        waits[waits.len() / 2]
    };
    let (before, after) = (wait(&report.windows[..5]), wait(&report.windows[5..]));
    assert!(after <= 2 * before + Duration::from_secs(1), "p50 went from {before:?} to {after:?}");
}
