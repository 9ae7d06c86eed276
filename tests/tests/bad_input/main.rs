//! What a client may not send, by rule of `system-one.md`: the exact status, a body that the SDK can read, and a server
//! that answers a good request after each.
//!
//! A row is named by its rule. A 422 is expected entry by entry (`loc`, `type`, and `msg` where the recorded cases or
//! the oracle give it); any other refusal by its status and `error.code`. The table also holds what must be accepted
//! although it looks wrong, because a reader that refuses too much breaks clients as well.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;

use serde_json::{Value, json};
use synod_tests::deployment::Deployment;
use synod_tests::fixtures;
use synod_tests::http::{Reply, raw_post};
use synod_tests::server::Server;

mod envelope;
mod questions;
mod text;
mod transport;

const SYNOD: &str = env!("CARGO_BIN_EXE_synod-tested");
const JSON: &str = "application/json";
/// A question that every fixture member answers, and quickly.
const NOUL: &str = r#"{"type":"noul","instructions":"Is it late?"}"#;

/// One body and what must come of it.
struct Row {
    rule: String,
    method: &'static str,
    path: &'static str,
    headers: Vec<(&'static str, &'static str)>,
    body: Vec<u8>,
    expected: Expected,
}

enum Expected {
    /// 200.
    Accepted,
    /// This status, with this `error.code`.
    Error(u16, &'static str),
    /// 422 with exactly these entries. An entry without `msg` leaves the sentence open.
    Entries(Vec<Value>),
}

impl Row {
    fn new(rule: impl Into<String>, body: impl Into<Vec<u8>>, expected: Expected) -> Self {
        let headers = vec![("content-type", JSON)];
        Self { rule: rule.into(), method: "POST", path: "/v1/systemone", headers, body: body.into(), expected }
    }

    fn to(self, method: &'static str, path: &'static str) -> Self {
        Self { method, path, ..self }
    }

    fn content_type(self, content_type: &'static str) -> Self {
        Self { headers: vec![("content-type", content_type)], ..self }
    }

    fn encoded(mut self, encoding: &'static str) -> Self {
        self.headers.push(("content-encoding", encoding));
        self
    }

    /// Sends the row as bytes on a connection of its own, so that a refusal before the end of a large body is read too.
    fn send(&self, server: &Server) -> Reply {
        let (method, path, length) = (self.method, self.path, self.body.len());
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: synod\r\ncontent-length: {length}\r\n");
        for (name, value) in &self.headers {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        server.client().exchange(&[head.as_bytes(), b"\r\n", &self.body].concat())
    }

    /// Why a reply is not what the row expects.
    fn problem(&self, reply: &Reply) -> Option<String> {
        let body = serde_json::from_slice::<Value>(&reply.body).unwrap_or(Value::Null);
        let (expected, matches) = match &self.expected {
            Expected::Accepted => ("200".to_owned(), reply.status == 200 && body["answers"].is_object()),
            Expected::Error(status, code) => {
                let matches = body["error"]["code"] == *code && is_sentence(&body["error"]["message"]);
                (format!("{status} {code}"), reply.status == *status && matches)
            }
            Expected::Entries(entries) => {
                let matches = entries_match(entries, &body["detail"]);
                (format!("422 {}", Value::from(entries.clone())), reply.status == 422 && matches)
            }
        };
        let found = String::from_utf8_lossy(&reply.body);
        (!matches).then(|| format!("{}: expected {expected}, found {} {found:.400}", self.rule, reply.status))
    }

    fn is_refused(&self) -> bool {
        !matches!(self.expected, Expected::Accepted)
    }
}

/// Whether `detail` has exactly these entries; their `msg` must be a sentence even where the table leaves it open.
fn entries_match(expected: &[Value], detail: &Value) -> bool {
    let Some(found) = detail.as_array() else { return false };
    let entry_matches = |(expected, found): (&Value, &Value)| {
        let keys: Vec<&String> = found.as_object().into_iter().flat_map(|entry| entry.keys()).collect();
        keys == ["loc", "msg", "type"]
            && found["loc"] == expected["loc"]
            && found["type"] == expected["type"]
            && is_sentence(&found["msg"])
            && expected.get("msg").is_none_or(|msg| *msg == found["msg"])
    };
    expected.len() == found.len() && expected.iter().zip(found).all(entry_matches)
}

fn is_sentence(message: &Value) -> bool {
    message.as_str().is_some_and(|message| !message.trim().is_empty() && !message.contains('\n'))
}

/// One entry, its `loc` below `body`; an empty `msg` leaves the sentence open.
fn entry(steps: Value, kind: &str, msg: &str) -> Value {
    let Value::Array(steps) = steps else { panic!("a loc is an array") };
    let loc: Vec<Value> = std::iter::once(json!("body")).chain(steps).collect();
    if msg.is_empty() { json!({"loc": loc, "type": kind}) } else { json!({"loc": loc, "msg": msg, "type": kind}) }
}

/// A body with this state (JSON text) and one good question.
fn with_state(state: &str) -> String {
    format!(r#"{{"model":"tiny-08b","state":{state},"questions":{{"q":{NOUL}}}}}"#)
}

/// A body with a good state of two parts and these questions (JSON text).
fn with_questions(questions: &str) -> String {
    format!(r#"{{"model":"tiny-08b","state":{{"request":"It is late.","note":"At night."}},"questions":{questions}}}"#)
}

/// A body whose one question is called `q` (JSON text).
fn with_question(question: &str) -> String {
    with_questions(&format!(r#"{{"q":{question}}}"#))
}

/// An array in `depth - 1` arrays, around a number.
fn nested(depth: usize) -> String {
    "[".repeat(depth) + "1" + &"]".repeat(depth)
}

fn table() -> Vec<Row> {
    [text::rows(), transport::rows(), envelope::rows(), questions::rows()].into_iter().flatten().collect()
}

#[test]
fn every_bad_body_is_refused_by_its_rule_and_the_next_request_is_answered() {
    let deployment = Deployment::of(&["tiny-08b", "tiny-router"]).server("default_model = \"tiny-08b\"");
    let server = Server::start(SYNOD, &deployment);
    let good = with_state("\"It is late.\"");
    let answer = server.ask(good.clone());
    assert_eq!(answer.status, 200, "{}", answer.text());
    let rows = table();
    let mut problems = Vec::new();
    for row in &rows {
        problems.extend(row.problem(&row.send(&server)));
        let after = server.ask(good.clone());
        if after.body != answer.body {
            problems.push(format!("after {}: {} {}", row.rule, after.status, after.text()));
        }
    }
    println!("{} bodies, {} of them refused", rows.len(), rows.iter().filter(|row| row.is_refused()).count());
    assert!(problems.is_empty(), "{} problems in {} rows:\n{}", problems.len(), rows.len(), problems.join("\n"));
}

#[test]
fn the_table_is_large_enough_and_names_each_rule_once() {
    let rows = table();
    let refused = rows.iter().filter(|row| row.is_refused()).count();
    assert!(refused >= 60, "{refused} bad bodies");
    let mut rules: Vec<&str> = rows.iter().map(|row| row.rule.as_str()).collect();
    rules.sort_unstable();
    let repeated: Vec<&str> = rules.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
    assert!(repeated.is_empty(), "rules named twice: {repeated:?}");
}

/// A rule that loses its last row is missed here. Kev's codes and `state_too_long` come with Kev.
#[test]
fn the_table_has_every_code_of_a_422_entry() {
    let rows = table();
    let entries = rows.iter().filter_map(|row| match &row.expected {
        Expected::Entries(entries) => Some(entries),
        _ => None,
    });
    let found: BTreeSet<&str> = entries.flatten().filter_map(|entry| entry["type"].as_str()).collect();
    let codes = "missing extra_forbidden dict_type list_type string_type float_type type literal_error too_short too_long \
                 blank blank_part empty_object duplicate range unknown_part one_part name_taken unsupported";
    let missing: Vec<&str> = codes.split_whitespace().filter(|code| !found.contains(code)).collect();
    assert!(missing.is_empty(), "no row for {missing:?}");
}

/// The check itself must be able to fail.
#[test]
fn a_reply_that_breaks_its_rule_is_a_problem() {
    let reply = |status, body: &str| Reply { status, headers: Vec::new(), body: body.as_bytes().to_vec() };
    let detail = r#"{"detail":[{"loc":["body","model"],"msg":"is required","type":"missing"}]}"#;
    let row = Row::new("r", "{}", Expected::Entries(vec![entry(json!(["model"]), "missing", "is required")]));
    assert_eq!(row.problem(&reply(422, detail)), None);
    for (status, from, to) in [
        (400, "missing", "missing"),
        (422, "missing", "absent"),
        (422, "is required", "must be there"),
        (422, r#""model""#, r#""questions""#),
        (422, r#"{"loc""#, r#"{"loc":[],"msg":"a","type":"b"},{"loc""#),
        (422, "detail", "error"),
    ] {
        assert!(row.problem(&reply(status, &detail.replacen(from, to, 1))).is_some(), "{status}: {to} for {from}");
    }
    let row = Row::new("r", "{}", Expected::Error(400, "invalid_json"));
    assert_eq!(row.problem(&reply(400, r#"{"error":{"code":"invalid_json","message":"at 1"}}"#)), None);
    assert!(row.problem(&reply(400, "not json")).is_some());
    assert!(row.problem(&reply(400, r#"{"error":{"code":"invalid_json","message":""}}"#)).is_some());
}

#[test]
fn a_missing_model_is_an_entry_where_the_deployment_has_no_default() {
    let server = Server::start(SYNOD, &Deployment::of(&["tiny-08b", "tiny-router"]));
    let reply = server.ask(format!(r#"{{"state":"late","questions":{{"q":{NOUL}}}}}"#));
    let matches = entries_match(&[entry(json!(["model"]), "missing", "")], &reply.json()["detail"]);
    assert_eq!((reply.status, matches), (422, true), "{}", reply.text());
}

/// All fixture members have every schema, so this one is a copy that lacks one.
#[test]
fn a_preset_that_the_member_has_no_schema_for_is_unsupported() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    for file in fs::read_dir(fixtures::path("members/tiny-router")).expect("the fixture is there") {
        let file = file.expect("a fixture is readable").path();
        fs::copy(&file, folder.path().join(file.file_name().expect("a file has a name"))).expect("a copy is written");
    }
    let rewrite = |name: &str, change: &dyn Fn(&mut Value)| {
        let path = folder.path().join(name);
        let mut json = serde_json::from_slice(&fs::read(&path).expect("it was copied")).expect("it is JSON");
        change(&mut json);
        fs::write(&path, json.to_string()).expect("a temporary file is writable");
        fixtures::sha256(&fs::read(&path).expect("it was written"))
    };
    let digest = rewrite("calibration.json", &|json| {
        json.as_object_mut().and_then(|json| json.remove("halu_schema")).expect("it has the schema");
    });
    rewrite("MODEL_MANIFEST.json", &|json| json["files_sha256"]["calibration.json"] = digest.clone().into());

    let server = Server::start(SYNOD, &Deployment::default().member("tiny-08b", folder.path()));
    let reply = server.ask(with_question(r#"{"preset":"halu"}"#));
    let expected = entry(json!(["questions", "q", "preset"]), "unsupported", "this member has no halu schema");
    assert!(entries_match(&[expected], &reply.json()["detail"]), "{} {}", reply.status, reply.text());
}

#[test]
fn a_smaller_body_limit_is_the_one_that_is_applied() {
    let server = Server::start(SYNOD, &Deployment::of(&["tiny-08b"]).server("max_body_mib = 1"));
    let body = with_state(&format!("\"{}\"", "a".repeat(1 << 20)));
    let reply = server.client().exchange(&raw_post("/v1/systemone", body.as_bytes()));
    assert_eq!((reply.status, reply.error_code().as_deref()), (413, Some("body_too_large")), "{}", reply.text());
}
