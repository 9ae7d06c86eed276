//! `POST /v1/decisions`: every question succeeds or fails by itself, and the valid ones are answered as if the others
//! had not been asked (system-one.md).

use serde_json::{Value, json};
use synod_tests::deployment::Deployment;
use synod_tests::fixtures;
use synod_tests::http::Reply;
use synod_tests::json_text;
use synod_tests::server::Server;

const SYNOD: &str = env!("CARGO_BIN_EXE_synod-tested");

fn decide(server: &Server, body: &Value) -> Reply {
    server.client().post("/v1/decisions", body.to_string())
}

/// The answers of an accepted reply: ids and exact texts, in order.
fn answers(reply: &Reply) -> Vec<(String, String)> {
    assert_eq!(reply.status, 200, "{}", reply.text());
    let text = json_text::value_at(reply.text(), &["answers"]).expect("an accepted reply has answers");
    json_text::members(text).into_iter().map(|(id, answer)| (id.to_owned(), answer.to_owned())).collect()
}

fn failed(kind: &Value, code: &str, message: &str) -> String {
    json!({"type": kind, "error": code, "message": message}).to_string()
}

#[test]
fn each_question_fails_in_its_place_and_the_others_are_answered_as_if_asked_alone() {
    let server = Server::start(SYNOD, &Deployment::of(&["tiny-08b"]));
    let state = json!({"request": "Hi, I'm Tom Baker. Is the shop open?", "document": "The shop is open until nine."});
    let good = json!({
        "first": {"type": "noul", "instructions": "Is it a question?"},
        "topic": {"type": "choice", "instructions": "What is it about?", "criteria": {"shops": null, "law": null}},
        "people": {"type": "span", "instructions": "Mark people.", "criteria": {"person": null}, "over": "request"},
        "tags": {"type": "set", "instructions": "Which tags?", "criteria": {"hours": null, "price": null}},
    });
    let mut mixed = serde_json::Map::new();
    for (id, question) in good.as_object().expect("it is written as one") {
        mixed.insert(format!("bad-{id}"), json!({"type": "choice", "instructions": "x", "criteria": {"one": null}}));
        mixed.insert(id.clone(), question.clone());
    }
    mixed.insert("unread".into(), json!(17));
    mixed.insert("odd-type".into(), json!({"type": "box", "instructions": "Where?"}));
    let ask =
        |questions: &Value| decide(&server, &json!({"model": "tiny-08b", "state": state, "questions": questions}));
    let (alone, among) = (ask(&good), ask(&Value::Object(mixed)));

    let (expected, found) = (answers(&alone), answers(&among));
    let ids: Vec<&str> = found.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(
        ids,
        [
            "bad-first",
            "first",
            "bad-topic",
            "topic",
            "bad-people",
            "people",
            "bad-tags",
            "tags.hours",
            "tags.price",
            "unread",
            "odd-type"
        ]
    );
    for (id, answer) in &found {
        let wanted = match id.as_str() {
            "unread" => failed(&Value::Null, "dict_type", "must be an object"),
            "odd-type" => failed(&json!("box"), "literal_error", "must be choice, noul, score, set or span"),
            bad if bad.starts_with("bad-") => failed(&json!("choice"), "too_short", "needs at least 2"),
            good => expected.iter().find(|(id, _)| id == good).expect("it was asked alone too").1.clone(),
        };
        assert_eq!(*answer, wanted, "{id}");
    }
    for rest in ["usage", "spans", "span_heads", "sets", "thresholds"] {
        assert_eq!(json_text::value_at(among.text(), &[rest]), json_text::value_at(alone.text(), &[rest]), "{rest}");
    }
}

#[test]
fn abstain_probability_is_the_last_key_where_the_option_is_shown_and_absent_elsewhere() {
    let server = Server::start(SYNOD, &Deployment::of(&["tiny-08b"]));
    let case = fixtures::cases_in("vela", "tiny-08b").into_iter().find(|case| case.name == "tiny-08b/golden");
    let request = case.expect("the golden case is recorded").request_for("tiny-08b");
    let (decided, asked) = (server.client().post("/v1/decisions", request.clone()), server.ask(request));
    let plain = answers(&asked);
    for ((id, answer), (plain_id, plain_answer)) in answers(&decided).iter().zip(&plain) {
        assert_eq!(id, plain_id);
        let keys: Vec<&str> = json_text::members(answer).into_iter().map(|(key, _)| key).collect();
        if ["domain", "jailbreak"].contains(&id.as_str()) {
            assert_eq!(keys.last(), Some(&"abstain_probability"), "{id}: {answer}");
            assert!(answer.starts_with(plain_answer.trim_end_matches('}')), "{id}: {answer}, not {plain_answer}");
        } else {
            assert_eq!(answer, plain_answer, "{id}");
        }
    }
    // Recorded by the oracle beside the response, which does not show it.
    let recorded: Value =
        serde_json::from_str(&fixtures::text("vela/tiny-08b/golden.json")).expect("a fixture is JSON");
    for id in ["domain", "jailbreak"] {
        let expected = recorded["answering"][id]["abstain_probability"].as_f64().expect("it is recorded");
        let found = decided.json()["answers"][id]["abstain_probability"].as_f64().expect("it is there");
        assert!((found - expected).abs() <= 2e-5, "{id}: expected {expected}, found {found}");
    }
}

/// `tiny-short` takes 400 tokens: the PII schema alone is more, a short question is not.
#[test]
fn a_question_that_does_not_fit_a_row_of_its_own_is_too_long_and_the_row_goes_on_without_it() {
    let server = Server::start(SYNOD, &Deployment::of(&["tiny-short"]));
    let noul = json!({"type": "noul", "instructions": "Is it late?"});
    let ask = |questions: Value| {
        decide(&server, &json!({"model": "tiny-short", "state": "It is late.", "questions": questions}))
    };
    let alone = ask(json!({"late": noul}));
    let among = ask(json!({"pii": {"preset": "pii"}, "late": noul}));
    let found = answers(&among);
    assert_eq!(found.len(), 2);
    let pii: Value = serde_json::from_str(&found[0].1).expect("an answer is JSON");
    assert_eq!((&found[0].0[..], &pii["type"], &pii["error"]), ("pii", &Value::Null, &json!("too_long")));
    assert!(pii["message"].as_str().is_some_and(|message| !message.is_empty()), "{pii}");
    assert_eq!(found[1..], answers(&alone)[..]);
    // All or nothing refuses the same request as a whole.
    let body =
        json!({"model": "tiny-short", "state": "It is late.", "questions": {"pii": {"preset": "pii"}, "late": noul}});
    let refused = server.ask(body.to_string());
    assert_eq!((refused.status, refused.error_code().as_deref()), (413, Some("too_long")), "{}", refused.text());
}

#[test]
fn an_invalid_state_is_refused_as_a_whole() {
    let server = Server::start(SYNOD, &Deployment::of(&["tiny-08b"]));
    let reply = decide(
        &server,
        &json!({"model": "tiny-08b", "state": " ", "questions": {"q": {"type": "noul", "instructions": "x"}}}),
    );
    let expected = json!({"detail": [{"loc": ["body", "state"], "msg": "the state is blank", "type": "blank"}]});
    assert_eq!((reply.status, reply.json()), (422, expected));
}
