use serde_json::{Value as Json, json};

use super::*;
use crate::family::vela::state::read_state;
use crate::family::vela::tests::assert_linear;
use crate::wire::json::parse_text;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures");

fn read(path: &str) -> Json {
    serde_json::from_slice(&std::fs::read(format!("{FIXTURES}/{path}")).unwrap()).unwrap()
}

/// A fixture member: its calibration, and whether it has a broad head.
fn member(name: &str) -> (Calibration, bool) {
    let folder = format!("{FIXTURES}/members/{name}");
    let calibration = Calibration::parse(&std::fs::read(format!("{folder}/calibration.json")).unwrap()).unwrap();
    (calibration, std::fs::exists(format!("{folder}/broad_head.safetensors")).unwrap())
}

/// The state and the questions of a request's text.
fn parse_request(text: &str) -> (Value, Vec<(String, Value)>) {
    let request = parse_text(text).unwrap();
    let request = request.as_object().unwrap();
    let questions = request.get("questions").unwrap().as_object().unwrap().clone();
    (request.get("state").unwrap().clone(), questions.into_iter().collect())
}

fn loc_data(loc: &[Loc]) -> Json {
    loc.iter()
        .map(|step| match step {
            Loc::Key(key) => json!(key),
            Loc::Index(index) => json!(index),
        })
        .collect()
}

/// A question in the form that fixtures record.
fn question_data(question: &Question) -> Json {
    let roles: Vec<_> = question.roles.iter().map(|role| role.name()).collect();
    let field = question.over_field.as_ref().map(|field| json!([field.name, field.range.start, field.range.end]));
    json!({
        "id": question.id, "kind": question.kind.name(), "engine": question.kind.engine(), "text": question.text,
        "key": question.key, "roles": roles, "field": field, "shown": question.options, "names": question.names,
        "abstain": question.abstain, "legend": question.legend, "threshold": question.threshold,
        "head": (question.kind == Kind::Span).then(|| question.head.name()),
    })
}

fn parts_data(state: &State) -> Json {
    let fields = |fields: &[Field]| -> Json {
        fields.iter().map(|field| json!([field.name, field.range.start, field.range.end])).collect()
    };
    state.parts.iter().map(|part| json!([part.role.name(), part.text, fields(&part.fields)])).collect()
}

/// Every key that the fixture records of a question, and nothing about the rest.
fn assert_understood(found: &Question, recorded: &Json, about: &str) {
    let found = question_data(found);
    for (key, value) in recorded.as_object().unwrap().iter().filter(|(key, _)| *key != "head_rule") {
        assert_eq!(&found[key], value, "{about}: {key} of {}", recorded["id"]);
    }
}

/// Every visible case: what was understood, or the problem of every invalid question.
#[test]
fn recorded_cases_are_read_as_the_reference_reads_them() {
    let (mut understood, mut refused) = (0, 0);
    for name in ["tiny-08b", "tiny-4b", "tiny-router", "tiny-short"] {
        let (calibration, has_broad) = member(name);
        for entry in std::fs::read_dir(format!("{FIXTURES}/vela/{name}")).unwrap() {
            let file = entry.unwrap().file_name().into_string().unwrap();
            let case = read(&format!("vela/{name}/{file}"));
            let (state, questions) = parse_request(case["request_text"].as_str().unwrap());
            let state = match read_state(&state) {
                Ok(state) => state,
                Err(problem) => {
                    let detail =
                        json!([{"loc": ["body", "state"], "msg": problem.to_string(), "type": problem.code()}]);
                    assert_eq!(case["error"]["detail"], detail, "{file}");
                    refused += 1;
                    continue;
                }
            };
            let parts = case["parts"].as_array().unwrap().iter();
            let parts: Json = parts.map(|part| json!([part["role"], part["text"], part["fields"]])).collect();
            assert_eq!(parts_data(&state), parts, "{file}");
            let found = read_questions(&questions, &state, &calibration, has_broad, &Limits::default());
            let detail: Vec<Json> = questions
                .iter()
                .zip(&found)
                .filter_map(|((id, _), outcome)| {
                    let problem = outcome.as_ref().err()?;
                    let mut loc = json!(["body", "questions", id]);
                    loc.as_array_mut().unwrap().extend(loc_data(&problem.loc).as_array().unwrap().iter().cloned());
                    Some(json!({"loc": loc, "msg": problem.msg, "type": problem.code}))
                })
                .collect();
            refused += detail.len();
            assert_eq!(case["error"].get("detail").cloned().unwrap_or(json!([])), json!(detail), "{file}");
            for (recorded, found) in case["questions"].as_array().into_iter().flatten().zip(&found) {
                assert_understood(found.as_ref().unwrap(), recorded, &file);
                understood += 1;
            }
        }
    }
    assert!(understood > 200 && refused > 20, "{understood} understood, {refused} refused");
}

/// Generated requests, valid and not: `recipe/reading/questions.py`.
#[test]
fn generated_requests_are_read_as_the_reference_reads_them() {
    let cases = read("questions.json")["cases"].as_array().unwrap().clone();
    assert!(cases.len() >= 100);
    for case in &cases {
        let text = case["request"].as_str().unwrap();
        let (calibration, has_broad) = member(case["member"].as_str().unwrap());
        let (state, questions) = parse_request(text);
        let state = match read_state(&state) {
            Ok(state) => state,
            Err(problem) => {
                assert_eq!(case["state"], json!({"code": problem.code(), "msg": problem.to_string()}), "{text}");
                continue;
            }
        };
        assert_eq!(parts_data(&state), case["parts"], "{text}");
        let found = read_questions(&questions, &state, &calibration, has_broad, &Limits::default());
        let recorded = case["questions"].as_array().unwrap();
        assert_eq!(found.len(), recorded.len());
        for (found, recorded) in found.iter().zip(recorded) {
            match found {
                Ok(question) => assert_understood(question, recorded, text),
                Err(problem) => {
                    let found = json!({"loc": loc_data(&problem.loc), "code": problem.code, "msg": problem.msg});
                    assert_eq!(&found, recorded, "{text}");
                }
            }
        }
    }
}

/// Reads one question of a state with a `user` part (`request`) and a `context` part (`it's`).
fn read_one(body: &str, calibration: &Calibration, has_broad: bool) -> Result<Question, Problem> {
    let state = read_state(&parse_text(r#"{"request": "R", "it's": "S"}"#).unwrap()).unwrap();
    let questions = [("q".to_owned(), parse_text(body).unwrap())];
    read_questions(&questions, &state, calibration, has_broad, &Limits::default()).pop().unwrap()
}

/// The first problem in the order of system-one.md, where a question has several.
#[test]
fn the_first_problem_is_the_one_that_is_told() {
    let (calibration, has_broad) = member("tiny-08b");
    let check = |body: &str, loc: Json, code: &str| {
        let problem = read_one(body, &calibration, has_broad).unwrap_err();
        assert_eq!((loc_data(&problem.loc), problem.code), (loc, code), "{body}");
    };
    check("[]", json!([]), "dict_type");
    check(r#"{"preset": 1, "x": 1}"#, json!(["preset"]), "literal_error");
    check(r#"{"preset": "pii", "x": 1, "type": "set"}"#, json!(["x"]), "extra_forbidden");
    check(r#"{"preset": "pii", "type": "set", "over": 1}"#, json!(["type"]), "literal_error");
    check(r#"{"preset": "pii", "threshold": 2, "over": 1}"#, json!(["over"]), "string_type");
    check(r#"{"type": "rank", "x": 1}"#, json!(["type"]), "literal_error");
    check(r#"{"type": "set", "head": 1, "x": 1}"#, json!(["head"]), "extra_forbidden");
    check(r#"{"type": "set", "criteria": 1}"#, json!(["instructions"]), "missing");
    check(r#"{"type": "set", "instructions": null, "labels": 1}"#, json!(["instructions"]), "string_type");
    check(r#"{"type": "set", "instructions": "?", "threshold": 2}"#, json!(["criteria"]), "missing");
    let span = |rest: &str| format!(r#"{{"type": "span", "instructions": "?", {rest}}}"#);
    check(&span(r#""criteria": {}, "labels": [], "head": 1"#), json!(["labels"]), "extra_forbidden");
    check(
        &span(r#""labels": [{"key": "a"}, {"key": " ", "description": " "}]"#),
        json!(["labels", 1, "description"]),
        "blank",
    );
    check(&span(r#""labels": [{"key": " "}], "threshold": 2"#), json!(["labels"]), "blank");
    check(&span(r#""criteria": {"a": null}, "threshold": 2, "head": 1, "over": 1"#), json!(["threshold"]), "range");
    check(&span(r#""criteria": {"a": null}, "head": 1, "over": 1"#), json!(["head"]), "literal_error");
    check(&span(r#""criteria": {"a": null}, "over": {}"#), json!(["over"]), "string_type");
}

#[test]
fn thresholds_are_numbers_of_any_size() {
    let (calibration, has_broad) = member("tiny-08b");
    let read = |threshold: &str| {
        let body =
            format!(r#"{{"type": "set", "instructions": "?", "labels": [{{"key": "a"}}], "threshold": {threshold}}}"#);
        read_one(&body, &calibration, has_broad).map(|question| question.threshold).map_err(|problem| problem.code)
    };
    let digits = "9".repeat(4_300);
    for (threshold, expected) in [
        ("0", Ok(Some(0.0))),
        ("-0", Ok(Some(0.0))),
        ("1", Ok(Some(1.0))),
        ("1e-3", Ok(Some(0.001))),
        ("null", Ok(None)),
        ("1.0000000000000002", Err("range")),
        ("-1e-300", Err("range")),
        (digits.as_str(), Err("range")),
        (format!("-{digits}").as_str(), Err("range")),
        ("true", Err("float_type")),
        ("\"0.5\"", Err("float_type")),
    ] {
        assert_eq!(read(threshold), expected, "{threshold}");
    }
}

/// What `relevance`, a member without schemas and an alias with a description of the member's own come to.
#[test]
fn presets_and_aliases_follow_the_member() {
    let (mut calibration, has_broad) = member("tiny-08b");
    let relevance = read_one(r#"{"preset": "relevance", "threshold": 0.5}"#, &calibration, has_broad).unwrap();
    assert_eq!((relevance.kind, relevance.threshold, relevance.key.as_str()), (Kind::Score, None, "relevance"));
    assert_eq!(relevance.legend, relevance.options.iter().map(|(_, text)| text.clone()).collect::<Vec<_>>());
    assert_eq!(relevance.roles, [Role::User, Role::Context]);

    let alias = r#"{"type": "span", "instructions": "?", "criteria": {"Not-Supported ": "x"}}"#;
    let shown = |calibration: &Calibration, has_broad| {
        let question = read_one(alias, calibration, has_broad).unwrap();
        assert_eq!((question.names, question.head), (vec!["Not-Supported ".to_owned()], SpanHead::Router));
        question.options[0].clone()
    };
    let pair = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    assert_eq!(shown(&calibration, true), pair("unsupported", "a statement that the context does not support"));
    assert_eq!(shown(&calibration, false), pair("Not-Supported ", "x"));
    calibration.halu_schema = None;
    assert_eq!(shown(&calibration, true), pair("unsupported", "a claim not supported by the context"));
    let problem = read_one(r#"{"preset": "halu"}"#, &calibration, has_broad).unwrap_err();
    assert_eq!((problem.code, problem.msg.as_str()), ("unsupported", "this member has no halu schema"));
}

#[test]
fn a_deployment_can_lower_every_limit() {
    let (calibration, has_broad) = member("tiny-08b");
    let limits = Limits { max_question_id_chars: 2, max_options: 3, max_score_levels: 2, ..Limits::default() };
    let state = read_state(&Value::Text("R".to_owned())).unwrap();
    let check = |id: &str, body: &str, expected: Result<(), (Json, &str)>| {
        let questions = [(id.to_owned(), parse_text(body).unwrap())];
        let found = read_questions(&questions, &state, &calibration, has_broad, &limits).pop().unwrap();
        let found = found.map(drop).map_err(|problem| (loc_data(&problem.loc), problem.msg));
        assert_eq!(found, expected.map_err(|(loc, msg)| (loc, msg.to_owned())), "{id} {body}");
    };
    // Code points, not bytes.
    check("éé", r#"{"type": "noul", "instructions": "?"}"#, Ok(()));
    check("ééé", "[]", Err((json!([]), "takes at most 2 characters")));
    for kind in ["choice", "set", "span"] {
        let question = |criteria: &str| format!(r#"{{"type": "{kind}", "instructions": "?", "criteria": {criteria}}}"#);
        check("q", &question(r#"{"a": null, "b": null, "c": null}"#), Ok(()));
        let four = question(r#"{"a": null, "b": null, "c": null, "d": null}"#);
        check("q", &four, Err((json!(["criteria"]), "takes at most 3")));
    }
    check("q", r#"{"type": "score", "instructions": "?", "levels": ["a", "b"]}"#, Ok(()));
    let three = r#"{"type": "score", "instructions": "?", "levels": ["a", "b", "c"]}"#;
    check("q", three, Err((json!(["levels"]), "takes at most 2")));
}

/// A body of megabytes is read once, whatever it repeats: keys of one list, names of `over`, fields of the state.
#[test]
fn large_questions_take_linear_time() {
    let (calibration, has_broad) = member("tiny-08b");
    assert_linear("a list of labels", |scale| {
        let entries: Vec<String> = (0..5_000 * scale).map(|i| format!(r#"{{"key": "{i}"}}"#)).collect();
        let body = format!(r#"{{"type": "set", "instructions": "?", "labels": [{}]}}"#, entries.join(","));
        assert_eq!(read_one(&body, &calibration, has_broad).unwrap_err().code, "too_long");
    });
    assert_linear("a list of keys", |scale| {
        let keys: Vec<String> = (0..5_000 * scale).map(|i| format!(r#""k{i}": "x""#)).collect();
        let state = read_state(&parse_text(&format!("{{{}}}", keys.join(","))).unwrap()).unwrap();
        let names: Vec<String> = (0..5_000 * scale).rev().map(|i| format!(r#""k{i}""#)).collect();
        let body = format!(r#"{{"type": "noul", "instructions": "?", "over": [{}]}}"#, names.join(","));
        let questions = [("q".to_owned(), parse_text(&body).unwrap())];
        assert!(read_questions(&questions, &state, &calibration, has_broad, &Limits::default())[0].is_ok());
    });
}

/// Labels of metrics come from here: a kind, or nothing, never what the client wrote.
#[test]
fn a_questions_kind_is_its_type_or_its_presets() {
    let check = |text: &str, expected| assert_eq!(kind(&parse_text(text).unwrap()), expected, "{text}");
    check(r#"{"type": "noul"}"#, Some(Kind::Noul));
    check(r#"{"type": "set", "unknown": 1}"#, Some(Kind::Set));
    check(r#"{"preset": "pii"}"#, Some(Kind::Span));
    check(r#"{"preset": "halu", "type": "span"}"#, Some(Kind::Span));
    check(r#"{"preset": "relevance"}"#, Some(Kind::Score));
    for other in [r#"{"type": "my secret"}"#, r#"{"preset": "my secret"}"#, r#"{"preset": 1}"#, "{}", "[]", "1"] {
        check(other, None);
    }
}
