//! The known defects of the reference implementation (the list at the end of bundle.md), seen from outside.
//!
//! Of 3 (drift over arrays that are not numbers or differ in length) the comparisons occur already: `json_text` here and
//! the gates of `runtime/src/model/tests` are each shown spoiled input. The drift gate itself, 7 (memory advice) and
//! 5 (nested export) come with what they are defects of. Each of the others has its test here.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use synod_tests::deployment::Deployment;
use synod_tests::fixtures::{self, sha256};
use synod_tests::http::Client;
use synod_tests::server::{Finished, Server, run};
use tempfile::TempDir;

const SYNOD: &str = env!("CARGO_BIN_EXE_synod-tested");

/// A writable copy of the member `tiny-08b`.
fn copied_member() -> TempDir {
    let folder = tempfile::tempdir().expect("there is a place for temporary files");
    for entry in fs::read_dir(fixtures::path("members/tiny-08b")).expect("the fixture is there") {
        let entry = entry.expect("the fixture is readable");
        fs::copy(entry.path(), folder.path().join(entry.file_name())).expect("a temporary folder is writable");
    }
    folder
}

/// Asks a member for a small answer with the anchor of the unspoiled fixture.
fn ask(package: &Path, anchor: &str) -> Finished {
    let request = r#"{"state":"It is late.","questions":{"q":{"type":"noul","instructions":"Is it late?"}}}"#;
    let path = package.to_str().expect("a temporary path is UTF-8");
    run(SYNOD, &["ask", "--member", path, "--anchor", anchor, "-"], package.parent().expect("it has one"), request)
}

fn is_refused(finished: &Finished, named: &str) {
    assert_ne!(finished.code, Some(0), "accepted: {}", finished.stdout);
    assert_eq!(finished.stderr.trim_end().lines().count(), 1, "{}", finished.stderr);
    assert!(finished.stderr.contains(named), "{named} is not in: {}", finished.stderr);
}

fn fixture_anchor() -> String {
    fixtures::anchor(&fixtures::path("members/tiny-08b"))
}

/// Defect 1: spans were joined across a rejected word. Over recorded responses: between two spans of one answer that
/// carry the same label there is always text, and no span of several words holds a word that was rejected.
#[test]
fn defect_1_a_rejected_word_ends_a_span() {
    let server = Server::start(SYNOD, &Deployment::of(&["tiny-08b"]));
    let state = "Alice met Bob, then Carol met Dave and Erin wrote to Frank about Grace.";
    // At threshold t a word is accepted exactly if its own probability is above t, which the lowest threshold that
    // still rejects it shows; so every span at a threshold is inside one span at each lower threshold.
    let spans_at = |threshold: f64| {
        let body = json!({"model": "tiny-08b", "state": state, "questions": {"people": {
            "type": "span", "instructions": "Mark names.", "criteria": {"name": null}, "threshold": threshold}}});
        let reply = server.ask(body.to_string());
        assert_eq!(reply.status, 200, "{}", reply.text());
        let spans = reply.json()["spans"]["people"].as_array().expect("a span question has spans").clone();
        spans.iter().map(|span| (offset(span, "start"), offset(span, "end"))).collect::<Vec<_>>()
    };
    let words = |(start, end): (usize, usize)| state[start..end].split(' ').count();
    let thresholds: Vec<f64> = (1..100).map(|percent| f64::from(percent) / 100.0).collect();
    let mut split = false;
    for pair in thresholds.windows(2) {
        let (lower, higher) = (spans_at(pair[0]), spans_at(pair[1]));
        for &(start, end) in &higher {
            assert!(
                lower.iter().any(|&(s, e)| s <= start && end <= e),
                "{start}..{end} at {} is not below it",
                pair[1]
            );
        }
        // A span that falls apart when a word inside it is rejected: the joined reading would keep it whole.
        split |= lower.iter().any(|&(s, e)| {
            words((s, e)) > 2 && higher.iter().filter(|&&(start, end)| s <= start && end <= e).count() > 1
        });
    }
    assert!(split, "no span fell apart at any threshold, so this text shows nothing");
}

fn offset(span: &Value, key: &str) -> usize {
    span[key].as_u64().expect("an offset is a count") as usize
}

/// Defect 2: long targets, read in windows, came back with no spans at all.
#[test]
fn defect_2_a_target_read_in_windows_has_its_spans() {
    let server = Server::start(SYNOD, &Deployment::of(&["tiny-08b"]));
    let text = "Write to tom.baker@example.com or call 020 7946 0018 before noon. ".repeat(40);
    let body = json!({"model": "tiny-08b", "state": text, "questions": {"pii": {"preset": "pii", "threshold": 0.0}}});
    let reply = server.ask(body.to_string());
    assert_eq!(reply.status, 200, "{}", reply.text());
    let found = reply.json();
    let spans = found["spans"]["pii"].as_array().expect("a span question has spans");
    assert!(!spans.is_empty(), "{found}");
    let last = spans.last().map(|span| offset(span, "end")).expect("there is one");
    assert!(
        last > text.len() / 2,
        "nothing in the second half of {} characters, the last span ends at {last}",
        text.len()
    );
}

/// Defect 4: the gate trusted the package's own digests.
#[test]
fn defect_4_a_package_rewritten_together_with_its_manifest_is_refused() {
    let package = copied_member();
    assert_eq!(ask(package.path(), &fixture_anchor()).code, Some(0), "the unspoiled copy is served");
    let calibration = package.path().join("calibration.json");
    let spoiled = fs::read_to_string(&calibration).expect("it is there").replacen("1.15", "1.16", 1);
    fs::write(&calibration, &spoiled).expect("a temporary folder is writable");
    is_refused(&ask(package.path(), &fixture_anchor()), "calibration.json");
    // The manifest is made to agree: now it is the manifest that is not the anchor's.
    let manifest_path = package.path().join("MODEL_MANIFEST.json");
    let manifest = fs::read_to_string(&manifest_path).expect("it is there");
    let mut manifest: Value = serde_json::from_str(&manifest).expect("a manifest is JSON");
    manifest["files_sha256"]["calibration.json"] = json!(sha256(spoiled.as_bytes()));
    fs::write(&manifest_path, manifest.to_string()).expect("a temporary folder is writable");
    is_refused(&ask(package.path(), &fixture_anchor()), "MODEL_MANIFEST.json");
}

/// Defect 4, second half: entries that lead outside were accepted.
#[test]
fn defect_4_an_entry_that_leads_outside_is_refused() {
    for outside in ["../outside.json", "/etc/hostname", "a/../../outside.json", "a\\b.json", "./calibration.json", ""] {
        let package = copied_member();
        let manifest_path = package.path().join("MODEL_MANIFEST.json");
        let mut manifest: Value = serde_json::from_str(&fs::read_to_string(&manifest_path).expect("it is there"))
            .expect("a manifest is JSON");
        manifest["files_sha256"][outside] = json!(sha256(b""));
        fs::write(&manifest_path, manifest.to_string()).expect("a temporary folder is writable");
        // Anchored as it now is: the name alone must be enough to refuse it.
        is_refused(&ask(package.path(), &fixtures::anchor(package.path())), "MODEL_MANIFEST.json");
    }
}

/// Defect 4, third form: a file that is a link to somewhere else.
#[test]
fn defect_4_a_link_out_of_the_package_is_refused() {
    let package = copied_member();
    let calibration = package.path().join("calibration.json");
    fs::remove_file(&calibration).expect("a temporary folder is writable");
    let target = fixtures::path("members/tiny-08b/calibration.json");
    std::os::unix::fs::symlink(target, &calibration).expect("links can be made");
    // The bytes behind the link are the right ones; the way to them is not.
    is_refused(&ask(package.path(), &fixture_anchor()), "calibration.json");
}

/// Defect 6: importing a package wrote into it, so that the next verification failed.
#[test]
fn defect_6_serving_leaves_the_package_as_it_was_and_executes_nothing_of_it() {
    let package = copied_member();
    fs::write(package.path().join("modeling_vela.py"), "open('executed', 'w')")
        .expect("a temporary folder is writable");
    let state = |package: &Path| {
        let mut files: Vec<_> = fs::read_dir(package)
            .expect("the copy is there")
            .map(|entry| entry.expect("it is readable"))
            .map(|entry| (entry.file_name(), sha256(&fs::read(entry.path()).expect("only files are in it"))))
            .collect();
        files.sort();
        files
    };
    let before = state(package.path());
    for _ in 0..2 {
        let finished = ask(package.path(), &fixture_anchor());
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    }
    assert_eq!(state(package.path()), before);
}

/// Defect 8: the token cache grew without bound. Distinct texts by the thousand leave the process as large as some did.
#[test]
fn defect_8_memory_does_not_grow_with_the_texts_that_were_seen() {
    let server = Server::start(SYNOD, &Deployment::of(&["tiny-08b"]).server("default_model = \"tiny-08b\""));
    let resident_mib = || {
        let status = fs::read_to_string(format!("/proc/{}/status", server.id())).expect("the process runs");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a process has a size").to_owned();
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("in KiB") / 1024
    };
    // Distinct pieces that are tokenised alone: a state, a text and 200 options of about 300 characters each.
    let round = |client: &Client, round: usize| {
        let filler = "lorem ipsum dolor sit amet ".repeat(10);
        let labels: serde_json::Map<String, Value> =
            (0..200).map(|i| (format!("label {i}"), json!(format!("{round} {i} {filler}")))).collect();
        let body = json!({"state": format!("state {round} {filler}"), "questions": {"q": {
            "type": "choice", "instructions": format!("question {round} {filler}"), "criteria": labels}}});
        // Far too many tokens to answer: everything is tokenised, nothing is computed.
        let reply = client.post("/v1/systemone", body.to_string());
        assert_eq!(reply.status, 413, "{}", reply.text());
    };
    for i in 0..120 {
        round(server.client(), i);
    }
    let early = resident_mib();
    for i in 120..280 {
        round(server.client(), i);
    }
    let late = resident_mib();
    // 32,000 further texts of 300 characters and 100 tokens would be some 24 MiB.
    assert!(late <= early + 12, "{early} MiB after 120 requests, {late} MiB after 280");
}

/// Defect 8, second half: tokenizer failures panicked. Texts that are hard on a tokenizer are all answered.
#[test]
fn defect_8_no_text_makes_the_tokenizer_fail() {
    let server = Server::start(SYNOD, &Deployment::of(&["tiny-08b"]).server("default_model = \"tiny-08b\""));
    for text in [
        "\u{0}",
        "\u{10ffff}\u{fffe}",
        "e\u{301}".repeat(200).as_str(),
        "\u{200d}\u{feff}a",
        "<|im_end|>",
        "\u{1f468}\u{200d}\u{1f469}",
    ] {
        let body = json!({"state": text, "questions": {
            "q": {"type": "noul", "instructions": text}, "s": {"type": "span", "instructions": "Mark.", "criteria": {text: null}}}});
        let reply = server.ask(body.to_string());
        assert_eq!(reply.status, 200, "{text:?}: {}", reply.text());
    }
}

/// Defect 9: a request with 40 readouts paid for its state 40 times. This one has 48, three a question, in one row: the
/// tokens that are computed are exactly those that the response counts, the state once among them.
#[test]
fn defect_9_the_state_is_read_once_for_all_questions() {
    let server = Server::start(SYNOD, &Deployment::of(&["tiny-08b"]).server("default_model = \"tiny-08b\""));
    let computed = || {
        let metrics = server.client().get("/metrics");
        let value = |line: &str| line.rsplit(' ').next().and_then(|value| value.parse::<u64>().ok());
        let lines = metrics.text().lines().filter(|line| line.starts_with("synod_tokens_total{"));
        lines.filter(|line| line.contains(r#"kind="computed""#)).filter_map(value).sum::<u64>()
    };
    let state = "The harbour office logged seventeen arrivals before noon. ".repeat(40);
    let questions: serde_json::Map<String, Value> = (0..16)
        .map(|i| (format!("q{i}"), json!({"type": "noul", "instructions": format!("Is it number {i}?")})))
        .collect();
    let before = computed();
    let reply = server.ask(json!({"state": state, "questions": questions}).to_string());
    assert_eq!(reply.status, 200, "{}", reply.text());
    let counted = reply.json()["usage"]["input_tokens"].as_u64().expect("a count");
    assert_eq!(computed() - before, counted, "tokens computed for those of the request");
}
