//! What a second executor, a second core and company in a batch are worth, on layers of a released shape.
//!
//! Takes a quiet machine of two cores, so that it runs where `SYNOD_FULL=1` is set, as `.ci/full` does. It has a test
//! binary of its own: no other test takes its cores.

use std::io::{self, Write as _};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use synod_bench::load::{Kind, Load, Pace};
use synod_tests::deployment::Deployment;
use synod_tests::http::Client;
use synod_tests::server::{Server, run};

const SYNOD: &str = env!("CARGO_BIN_EXE_synod-tested");
const MEMBER: &str = "wide";

/// A server of the member on these devices, without a prefix cache: what is measured is computed.
fn serve(package: &Path, devices: &[&str]) -> Server {
    let deployment = Deployment::default().member(MEMBER, package).devices(devices).member_line("prefix_cache_mib = 0");
    Server::start(SYNOD, &deployment.server(&format!("default_model = {MEMBER:?}")))
}

/// Requests per second for eight clients that always ask.
fn capacity(package: &Path, devices: &[&str]) -> f64 {
    let server = serve(package, devices);
    let load = Load {
        url: format!("http://{}", server.client().address()),
        metrics_url: None,
        key: None,
        model: None,
        kind: Kind::Small,
        pace: Pace::Closed { clients: 8 },
        duration: Duration::from_secs(20),
        connections: 8,
        timeout: Duration::from_mins(2),
        warmup: 8,
        seed: 1,
    };
    let report = load.run().unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!((report.answered, report.disagreement.clone()), (report.sent, None), "{report}");
    println!("{devices:?}: {:.2} requests/s", report.requests_per_second());
    report.requests_per_second()
}

/// Eight questions of one state, one after another or all at once: the seconds that they take.
fn company(package: &Path) -> (f64, f64) {
    let server = serve(package, &["cpu:0-1"]);
    let ask = |state: &str, number: usize| {
        let body = json!({
            "state": format!("{state} {}", "The harbour office logged seventeen arrivals. ".repeat(60)),
            "questions": {"q": {"type": "noul", "instructions": format!("Is arrival {number} late?")}},
        });
        let reply = Client::new(server.client().address()).post("/v1/systemone", body.to_string());
        assert_eq!(reply.status, 200, "{}", reply.text());
    };
    // The first pass grows the workspace.
    ask("Warm.", 0);
    let since = Instant::now();
    (0..8).for_each(|number| ask("Alone.", number));
    let alone = since.elapsed().as_secs_f64();
    let since = Instant::now();
    thread::scope(|scope| (0..8).for_each(|number| drop(scope.spawn(move || ask("Together.", number)))));
    (alone, since.elapsed().as_secs_f64())
}

#[test]
fn executors_cores_and_company_are_worth_what_they_take() {
    let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if std::env::var("SYNOD_FULL").as_deref() != Ok("1") || cores < 2 {
        // The capture of the test runner would hide a skip.
        let _ = writeln!(io::stderr(), "skipped: throughput, which takes SYNOD_FULL=1 and two cores");
        return;
    }
    let folder = tempfile::tempdir().expect("there is a place for temporary files");
    let arguments = ["synth", "--shape", "0.8b", "--layers", "4", "--seed", "1", "--out", "member"];
    let written = run(SYNOD, &arguments, folder.path(), "");
    assert_eq!(written.code, Some(0), "{}", written.stderr);
    let package = folder.path().join("member");

    let one = capacity(&package, &["cpu:0"]);
    let two_executors = capacity(&package, &["cpu:0", "cpu:1"]) / one;
    let two_cores = capacity(&package, &["cpu:0-1"]) / one;
    let (alone, together) = company(&package);
    println!(
        "two executors {two_executors:.2}, two cores {two_cores:.2}, eight of one state at once {:.2}",
        alone / together
    );
    assert!(two_executors >= 1.8, "two executors of one core each: {two_executors:.2} times one");
    assert!(two_cores >= 1.7, "an executor on two cores: {two_cores:.2} times one on one");
    assert!(
        alone / together >= 2.0,
        "eight questions of one state took {together:.1} s at once, {alone:.1} s one by one"
    );
}
