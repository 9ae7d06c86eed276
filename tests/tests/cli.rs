//! The commands that end by themselves: what they write, and how they end.

use std::fs;

use serde_json::{Value, json};
use synod_tests::deployment::Deployment;
use synod_tests::fixtures::{self, Outcome};
use synod_tests::json_text;
use synod_tests::server::{Finished, Server, run};
use tempfile::TempDir;

const SYNOD: &str = env!("CARGO_BIN_EXE_synod-tested");

fn folder() -> TempDir {
    tempfile::tempdir().expect("there is a place for temporary files")
}

/// `synod ask` of a request to a fixture member, the request on stdin.
fn ask(member: &str, request: &str) -> Finished {
    let package = fixtures::path("members").join(member);
    let path = package.to_str().expect("a fixture's path is UTF-8");
    run(SYNOD, &["ask", "--member", path, "--anchor", &fixtures::anchor(&package), "-"], folder().path(), request)
}

/// A command that fails ends with a code above zero, says nothing on stdout and one line on stderr that has `parts`.
fn fails_in_one_line(finished: &Finished, parts: &[&str]) {
    assert!(finished.code.is_some_and(|code| code > 0), "ended with {:?}: {}", finished.code, finished.stderr);
    assert_eq!((finished.stdout.as_str(), finished.stderr.trim_end().lines().count()), ("", 1), "{}", finished.stderr);
    for part in parts {
        assert!(finished.stderr.contains(part), "{part} is not in: {}", finished.stderr);
    }
}

#[test]
fn ask_writes_the_recorded_response() {
    let golden = |case: &&fixtures::Case| case.name == "tiny-08b/golden";
    let cases = fixtures::cases_in("vela", "tiny-08b");
    let case = cases.iter().find(golden).expect("the golden case is recorded");
    let Outcome::Answered(expected) = &case.outcome else { panic!("the golden case is answered") };
    let finished = ask("tiny-08b", &case.request_text);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    // No deployment names the member here, so it has the package's own name, as in the recording.
    json_text::compare(expected, finished.stdout.trim_end(), 2e-5).unwrap_or_else(|difference| panic!("{difference}"));
}

#[test]
fn ask_reads_a_file_and_answers_as_the_server_does() {
    let folder = folder();
    let package = fixtures::path("members/tiny-router");
    let request = r#"{"state":"It is late.","questions":{"q":{"type":"noul","instructions":"Is it late?"}}}"#;
    fs::write(folder.path().join("request.json"), request).expect("a temporary folder is writable");
    let path = package.to_str().expect("a fixture's path is UTF-8");
    let arguments = ["ask", "--member", path, "--anchor", &fixtures::anchor(&package), "request.json"];
    let finished = run(SYNOD, &arguments, folder.path(), "");
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let server = Server::start(SYNOD, &Deployment::of(&["tiny-router"]));
    let served = server.ask(fixtures::with_model(request, "tiny-router"));
    let answers = |text: &str| json_text::value_at(text.trim_end(), &["answers"]).map(str::to_owned);
    assert!(answers(served.text()).is_some());
    assert_eq!(answers(&finished.stdout), answers(served.text()));
}

#[test]
fn ask_refuses_what_the_server_refuses() {
    fails_in_one_line(&ask("tiny-08b", "not json"), &["JSON"]);
    let blank = r#"{"state":"","questions":{"q":{"type":"noul","instructions":"x"}}}"#;
    fails_in_one_line(&ask("tiny-08b", blank), &["state", "blank"]);
    let question = r#"{"state":"late","questions":{"q":{"type":"noul"}}}"#;
    fails_in_one_line(&ask("tiny-08b", question), &["q", "instructions", "is required"]);
}

#[test]
fn ask_trusts_no_package_without_its_anchor() {
    let package = fixtures::path("members/tiny-08b");
    let path = package.to_str().expect("a fixture's path is UTF-8");
    let wrong = format!("sha256:{}", "0".repeat(64));
    let golden = fixtures::text("golden-request.json");
    let without = run(SYNOD, &["ask", "--member", path, "-"], folder().path(), &golden);
    fails_in_one_line(&without, &["fixtures/tiny-08b"]);
    let other = run(SYNOD, &["ask", "--member", path, "--anchor", &wrong, "-"], folder().path(), &golden);
    fails_in_one_line(&other, &["MODEL_MANIFEST.json", &fixtures::anchor(&package)["sha256:".len()..]]);
    let absent = run(SYNOD, &["ask", "--member", "nowhere", "--anchor", &wrong, "-"], folder().path(), &golden);
    fails_in_one_line(&absent, &["nowhere"]);
}

fn check(toml: &str) -> Finished {
    let folder = folder();
    fs::write(folder.path().join("deployment.toml"), toml).expect("a temporary folder is writable");
    run(SYNOD, &["check", "--config", "deployment.toml"], folder.path(), "")
}

#[test]
fn check_accepts_a_good_deployment() {
    let finished = check(&Deployment::of(&["tiny-08b", "tiny-4b"]).alias("jev-latest").to_toml());
    assert_eq!(finished.code, Some(0), "{}{}", finished.stdout, finished.stderr);
}

/// Each spoiled file is one message that names the key and the line.
#[test]
fn check_names_the_key_and_the_line_of_what_is_wrong() {
    let good = Deployment::of(&["tiny-08b", "tiny-4b"]).server("drain_s = 5").to_toml();
    let with_default = |name: &str| good.replace("drain_s = 5", &format!("default_model = \"{name}\""));
    for (what, toml, key) in [
        ("an unknown key", good.replace("drain_s", "drain_seconds"), "drain_seconds"),
        ("a wrong type", good.replace("drain_s = 5", "drain_s = \"5\""), "drain_s"),
        ("an unknown profile", good.replacen("\"fp32\"", "\"fp8\"", 1), "profile"),
        ("an unknown device", good.replacen("\"cpu:*\"", "\"tpu:0\"", 1), "devices"),
        ("an anchor that is none", good.replacen("sha256:", "md5:", 1), "anchor"),
        ("a name used twice", good.replace("name = \"tiny-4b\"", "name = \"tiny-08b\""), "name"),
        ("an alias that is a name", good.replacen("aliases = []", "aliases = [\"tiny-4b\"]", 1), "tiny-4b"),
        ("a missing path", good.replacen("members/tiny-4b", "members/tiny-5b", 1), "path"),
        ("a default that is not served", with_default("vela-900b"), "default_model"),
        ("an address that is none", good.replacen("127.0.0.1:0", "localhost:port", 1), "bind"),
        ("a key digest that is none", format!("{good}\n[[key]]\nname = \"a\"\nsha256 = \"12\"\n"), "sha256"),
        ("no member", "[server]\nbind = \"127.0.0.1:0\"\n".to_owned(), "member"),
    ] {
        assert_ne!(toml, good, "{what} is not in the file");
        let finished = check(&toml);
        fails_in_one_line(&finished, &[key, "deployment.toml"]);
        let has_line = finished.stderr.split(|c: char| !c.is_ascii_digit()).any(|number| !number.is_empty());
        assert!(what == "no member" || has_line, "{what}: no line in {}", finished.stderr);
    }
}

/// What `serve` would refuse, before any package is opened.
#[test]
fn check_and_serve_refuse_what_this_build_does_not_serve() {
    let folder = folder();
    let good = Deployment::of(&["tiny-08b"]).to_toml();
    let toml = good.replace("\"cpu:*\"", "\"cuda:0\"");
    fails_in_one_line(&check(&toml), &["tiny-08b", "cuda:0"]);
    fs::write(folder.path().join("deployment.toml"), toml).expect("a temporary folder is writable");
    let served = run(SYNOD, &["serve", "--config", "deployment.toml"], folder.path(), "");
    fails_in_one_line(&served, &["tiny-08b", "cuda:0"]);
    let served_on = |bind| run(SYNOD, &["serve", "--demo", "--bind", bind], folder.path(), "");
    fails_in_one_line(&served_on("0.0.0.0:0"), &["demonstration", "0.0.0.0:0", "[[key]]"]);
}

#[test]
fn check_refuses_a_package_that_is_not_its_anchors() {
    let good = Deployment::of(&["tiny-08b"]).to_toml();
    let anchor = fixtures::anchor(&fixtures::path("members/tiny-08b"));
    let finished = check(&good.replace(&anchor, &format!("sha256:{}", "0".repeat(64))));
    fails_in_one_line(&finished, &["MODEL_MANIFEST.json"]);
}

#[test]
fn what_is_no_command_is_told_with_the_usage() {
    let finished = run(SYNOD, &["sing"], folder().path(), "");
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(2), ""));
    assert!(finished.stderr.contains("sing") && finished.stderr.contains("Usage"), "{}", finished.stderr);
    let help = run(SYNOD, &["--help"], folder().path(), "");
    assert_eq!(help.code, Some(0));
    for command in ["serve", "check", "ask", "replay", "synth"] {
        assert!(help.stdout.contains(command), "{command} is not in {}", help.stdout);
    }
}

#[test]
fn serve_on_a_bad_deployment_fails_in_one_line() {
    let folder = folder();
    let finished = run(SYNOD, &["serve", "--config", "absent.toml"], folder.path(), "");
    fails_in_one_line(&finished, &["absent.toml"]);
}

#[test]
fn serve_on_an_address_in_use_fails_in_one_line() {
    let server = Server::start(SYNOD, &Deployment::of(&["tiny-08b"]));
    let address = server.client().address().to_string();
    let finished = run(SYNOD, &["serve", "--demo", "--bind", &address], folder().path(), "");
    assert_eq!(finished.code, Some(1), "{}{}", finished.stdout, finished.stderr);
    assert!(finished.stderr.contains(&address), "{}", finished.stderr);
}

#[test]
fn synth_refuses_a_folder_that_holds_something() {
    let folder = folder();
    fs::create_dir(folder.path().join("out")).expect("a temporary folder is writable");
    fs::write(folder.path().join("out/mine"), "mine").expect("a temporary folder is writable");
    let finished = run(SYNOD, &["synth", "--shape", "tiny", "--out", "out"], folder.path(), "");
    fails_in_one_line(&finished, &["out"]);
    assert_eq!(fs::read_to_string(folder.path().join("out/mine")).expect("it is still there"), "mine");
    let finished = run(SYNOD, &["synth", "--shape", "tiny", "--layers", "5", "--out", "five"], folder.path(), "");
    fails_in_one_line(&finished, &["layers"]);
    assert!(!folder.path().join("five").exists(), "a refused synth leaves nothing");
}

/// `--demo`'s member apart, a synthetic member is local: it is served by its anchor only, like any other.
#[test]
fn a_synthetic_member_answers_the_golden_request_by_its_anchor() {
    let folder = folder();
    let finished = run(SYNOD, &["synth", "--shape", "tiny", "--seed", "1", "--out", "tiny"], folder.path(), "");
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert!(!finished.stderr.contains(['\r', '\u{1b}']), "a bar where nobody looks: {:?}", finished.stderr);
    let package = folder.path().join("tiny");
    let server = Server::start(SYNOD, &Deployment::default().member("tiny", &package));
    let reply = server.ask(fixtures::with_model(&fixtures::text("golden-request.json"), "tiny"));
    assert_eq!(reply.status, 200, "{}", reply.text());
    let found: Value = reply.json();
    assert_eq!(found["usage"], json!({"input_tokens": 1238, "output_tokens": 0}));
}
