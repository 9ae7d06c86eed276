//! Members held to their recorded cases, at the start of a server and on its idle time.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use synod_tests::deployment::Deployment;
use synod_tests::fixtures;
use synod_tests::server::{Server, eventually};
use tempfile::TempDir;

const SYNOD: &str = env!("CARGO_BIN_EXE_synod-tested");
const GOOD: &str =
    r#"{"model":"tiny-08b","state":"It is late.","questions":{"q":{"type":"noul","instructions":"Is it late?"}}}"#;
const PLACE: &str = "device=\"cpu:*\",member=\"tiny-08b\"";

/// A folder with these cases of the member `tiny-08b`.
fn cases(names: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().expect("there is a place for temporary files");
    for name in names {
        write(folder.path(), name, &fixtures::text(&format!("vela/tiny-08b/{name}.json")));
    }
    folder
}

/// Puts a case in its place at once: a replay must not find half of it.
fn write(folder: &Path, name: &str, text: &str) {
    let staged = folder.join("staged");
    fs::write(&staged, text).expect("a temporary folder is writable");
    fs::rename(staged, folder.join(format!("{name}.json"))).expect("a temporary folder is writable");
}

/// The golden case with one logit off: that of an abstention, which the response does not show.
fn spoiled() -> String {
    let mut case: Value =
        serde_json::from_str(&fixtures::text("vela/tiny-08b/golden.json")).expect("a fixture is JSON");
    let logit = case.pointer_mut("/logits/jailbreak/0/values/2").expect("the case has this logit");
    *logit = json!(logit.as_f64().expect("a logit is a number") + 0.01);
    case.to_string()
}

/// Whatever the replay says, the server is up: the member is not required.
fn deployment(cases: &Path, lines: &[&str]) -> Deployment {
    let replay = format!("replay = {:?}", cases.to_str().expect("a temporary path is UTF-8"));
    let deployment = Deployment::of(&["tiny-08b"]).member_line(&replay).member_line("required = false");
    lines.iter().fold(deployment, |deployment, line| deployment.member_line(line))
}

/// The member's one executor, as `/health/ready` shows it.
fn executor(server: &Server) -> Value {
    server.client().get("/health/ready").json()["members"][0]["replicas"][0].clone()
}

fn reaches(server: &Server, key: &str, value: &str) -> bool {
    eventually(|| executor(server)[key] == value)
}

fn metric(server: &Server, name: &str, labels: &str) -> Option<f64> {
    let text = server.client().get("/metrics").text().to_owned();
    let series = format!("{name}{{{labels}}} ");
    text.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok())
}

fn case_metric(server: &Server, name: &str, case: &str) -> Option<f64> {
    metric(server, name, &format!("case=\"{case}\",{PLACE}"))
}

#[test]
fn a_member_within_its_gates_is_verified() {
    let names = ["golden", "list-forms", "bad-questions"];
    let folder = cases(&names);
    let server = Server::start(SYNOD, &deployment(folder.path(), &[]));
    assert!(reaches(&server, "verification", "verified"), "{}", executor(&server));
    for case in &names[..2] {
        let distance = |name| case_metric(&server, name, case).unwrap_or_else(|| panic!("no {name} of {case}"));
        assert!((0.0..1e-4).contains(&distance("synod_drift_logit_max")), "{case}");
        assert!((0.0..2e-5).contains(&distance("synod_drift_answer_max")), "{case}");
    }
    assert_eq!(case_metric(&server, "synod_drift_logit_max", "bad-questions"), None, "no device has a part in it");
    for (name, value) in [("synod_drift_ok", 1.0), ("synod_verified", 1.0)] {
        assert_eq!(metric(&server, name, PLACE), Some(value), "{name}");
    }
    let gate = metric(&server, "synod_drift_gate", "device=\"cpu:*\",kind=\"answer\",member=\"tiny-08b\"");
    assert_eq!(gate, Some(2e-5));
    let models = server.client().get("/v1/models").json();
    assert_eq!(models["models"][0]["replicas"][0]["verification"], "verified", "{models}");
}

/// In BF16 a member is held to wider gates, and `/v1/models` says so; a rounded bundle serves nothing else.
#[test]
fn a_member_in_bf16_is_verified_within_wider_gates() {
    let folder = cases(&["golden", "list-forms"]);
    let server = Server::start(SYNOD, &deployment(folder.path(), &[]).bf16());
    assert!(reaches(&server, "verification", "verified"), "{}", executor(&server));
    let distance = case_metric(&server, "synod_drift_logit_max", "golden").expect("a distance of the case");
    assert!((1e-4..0.35).contains(&distance), "{distance}");
    assert_eq!(server.client().get("/v1/models").json()["models"][0]["profile"], "bf16");
    assert_eq!(server.ask(GOOD).status, 200);
}

#[test]
fn a_member_without_recorded_cases_serves_as_unverified() {
    let server = Server::start(SYNOD, &Deployment::of(&["tiny-08b"]));
    assert_eq!(executor(&server)["verification"], "unverified");
    assert_eq!(server.client().get("/v1/models").json()["models"][0]["replicas"][0]["verification"], "unverified");
    assert_eq!(metric(&server, "synod_verified", PLACE), Some(0.0));
    assert_eq!(server.ask(GOOD).status, 200);
}

#[test]
fn a_member_that_is_out_of_its_gate_does_not_serve_and_its_case_is_named() {
    let folder = cases(&["golden", "list-forms"]);
    write(folder.path(), "golden", &spoiled());
    let server = Server::start(SYNOD, &deployment(folder.path(), &[]));
    assert!(reaches(&server, "state", "quarantined"), "{}", executor(&server));
    let reason = executor(&server)["reason"].as_str().expect("a quarantine has a reason").to_owned();
    let expected = "case golden: logits.jailbreak, row 0: option 2: expected ";
    assert!(reason.starts_with(expected) && reason.contains(" within 3.4"), "{reason}");
    let health = server.client().get("/health/ready").json();
    assert_eq!(health["members"][0]["ready"], false, "{health}");
    assert_eq!(server.ask(GOOD).status, 503);
    assert!(case_metric(&server, "synod_drift_logit_max", "golden").is_some_and(|distance| distance > 1e-4));
    assert!(case_metric(&server, "synod_drift_logit_max", "list-forms").is_some_and(|distance| distance < 1e-4));
    for name in ["synod_drift_ok", "synod_verified"] {
        assert_eq!(metric(&server, name, PLACE), Some(0.0), "{name}");
    }
    let output = server.output();
    assert!(output.lines().any(|line| line.contains("out of its gate") && line.contains("golden")), "{output}");
}

#[test]
fn a_member_that_is_out_of_its_gate_serves_and_says_so_where_that_is_wanted() {
    let folder = cases(&[]);
    write(folder.path(), "golden", &spoiled());
    let server = Server::start(SYNOD, &deployment(folder.path(), &["on_drift = \"report\""]));
    assert!(reaches(&server, "verification", "drifted"), "{}", executor(&server));
    let reason = executor(&server)["reason"].to_string();
    assert!(reason.contains("case golden: logits.jailbreak, row 0: option 2: "), "{reason}");
    assert_eq!(server.ask(GOOD).status, 200);
    for name in ["synod_drift_ok", "synod_verified"] {
        assert_eq!(metric(&server, name, PLACE), Some(0.0), "{name}");
    }
}

/// A gate of the deployment is the one that counts.
#[test]
fn a_tighter_gate_is_heeded() {
    let folder = cases(&["golden"]);
    let server = Server::start(SYNOD, &deployment(folder.path(), &["gates = { logit = 1e-9 }"]));
    assert!(reaches(&server, "state", "quarantined"), "{}", executor(&server));
    let reason = executor(&server)["reason"].to_string();
    assert!(reason.contains("case golden: logits."), "{reason}");
}

/// A case that changes under the server looks, from outside, as a device that drifts.
#[test]
fn drift_on_idle_time_ends_the_service_and_a_reload_tries_again() {
    let folder = cases(&["golden"]);
    let deployment = deployment(folder.path(), &["drift_every_s = 1"]);
    let server = Server::start(SYNOD, &deployment);
    assert!(reaches(&server, "verification", "verified"), "{}", executor(&server));
    assert_eq!(server.ask(GOOD).status, 200);
    write(folder.path(), "golden", &spoiled());
    assert!(reaches(&server, "state", "quarantined"), "{}", executor(&server));
    assert_eq!(server.ask(GOOD).status, 503);
    assert_eq!(metric(&server, "synod_drift_ok", PLACE), Some(0.0));
    let restarts = format!("{PLACE},reason=\"drift\"");
    assert_eq!(metric(&server, "synod_executor_restarts_total", &restarts), Some(1.0));
    write(folder.path(), "golden", &fixtures::text("vela/tiny-08b/golden.json"));
    let status = Command::new("kill").args(["-HUP", &server.id().to_string()]).status().expect("kill is there");
    assert!(status.success(), "kill -HUP: {status}");
    assert!(reaches(&server, "verification", "verified"), "{}", executor(&server));
    assert_eq!(server.ask(GOOD).status, 200);
    assert_eq!(metric(&server, "synod_drift_ok", PLACE), Some(1.0));
}

/// An empty folder is no member's recording: whoever names one means to be held to it.
#[test]
fn a_folder_without_cases_is_told() {
    let folder = cases(&[]);
    let server = Server::start(SYNOD, &deployment(folder.path(), &[]));
    assert!(reaches(&server, "state", "failed"), "{}", executor(&server));
    let reason = executor(&server)["reason"].to_string();
    assert!(reason.contains("expected recorded cases (*.json), found none"), "{reason}");
}
