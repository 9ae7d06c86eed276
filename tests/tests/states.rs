//! `POST /v1/decisions` with `states`: each state is answered as if it had been asked alone (system-one.md).

use serde_json::{Map, Value, json};
use synod_tests::deployment::Deployment;
use synod_tests::fixtures;
use synod_tests::http::Reply;
use synod_tests::json_text;
use synod_tests::server::Server;

const SYNOD: &str = env!("CARGO_BIN_EXE_synod-tested");
const MEMBER: &str = "tiny-08b";

fn decide(server: &Server, body: &Value) -> Reply {
    server.client().post("/v1/decisions", body.to_string())
}

/// A noul question on a state.
fn entry(state: &str) -> Value {
    json!({"state": state, "questions": {"q": {"type": "noul", "instructions": "Is it late?"}}})
}

/// The recorded cases of the member in one call: the same bytes as in a call of each, in the order of the call.
#[test]
fn several_states_are_answered_like_each_alone() {
    let server = Server::start(SYNOD, &Deployment::of(&[MEMBER]));
    let mut states = Map::new();
    let mut alone: Vec<(String, Reply)> = Vec::new();
    for case in fixtures::vela_cases().into_iter().filter(|case| case.member == MEMBER) {
        let request: Value = serde_json::from_str(&case.request_for(MEMBER)).expect("a recorded request is JSON");
        let reply = decide(&server, &request);
        if reply.status == 200 {
            states.insert(case.name.clone(), json!({"state": request["state"], "questions": request["questions"]}));
            alone.push((case.name.clone(), reply));
        }
    }
    assert!(states.len() > 5, "{} cases", states.len());
    let together = decide(&server, &json!({"model": MEMBER, "states": states}));
    assert_eq!(together.status, 200, "{}", together.text());
    let found = json_text::value_at(together.text(), &["states"]).expect("a reply has its states");
    let found = json_text::members(found);
    assert_eq!(found.len(), alone.len());
    let mut tokens = 0;
    for ((name, text), (expected, reply)) in found.iter().zip(&alone) {
        // Names are repeated as JSON writes them; these have nothing to escape.
        assert_eq!(name, expected);
        let lone = reply.text().replacen(&format!("\"model\":\"{MEMBER}\","), "", 1);
        assert_eq!(*text, lone, "{name}");
        tokens += reply.json()["usage"]["input_tokens"].as_u64().expect("a reply counts its tokens");
    }
    assert_eq!(together.json()["usage"], json!({"input_tokens": tokens, "output_tokens": 0}));
    assert_eq!(together.json()["model"], MEMBER);
}

#[test]
fn a_state_that_is_invalid_fails_in_its_place() {
    let server = Server::start(SYNOD, &Deployment::of(&[MEMBER]));
    let good = decide(&server, &json!({"model": MEMBER, "states": {"good": entry("It is late.")}}));
    let among =
        json!({"model": MEMBER, "states": {"blank": entry(" "), "good": entry("It is late."), "odd": entry("")}});
    let among = decide(&server, &among);
    let states = |reply: &Reply| {
        assert_eq!(reply.status, 200, "{}", reply.text());
        let text = json_text::value_at(reply.text(), &["states"]).expect("a reply has its states");
        json_text::members(text)
            .into_iter()
            .map(|(name, state)| (name.to_owned(), state.to_owned()))
            .collect::<Vec<_>>()
    };
    let (good, among) = (states(&good), states(&among));
    let blank = json!({"error": "blank", "message": "the state is blank"}).to_string();
    let expected = [("blank".to_owned(), blank.clone()), good[0].clone(), ("odd".to_owned(), blank)];
    assert_eq!(among, expected);
}

#[test]
fn a_call_has_no_more_states_than_the_deployment_allows() {
    let server = Server::start(SYNOD, &Deployment::of(&[MEMBER]).server("max_states = 2"));
    let body = |count: usize| {
        let states: Map<String, Value> = (0..count).map(|number| (number.to_string(), entry("It is late."))).collect();
        json!({"model": MEMBER, "states": states})
    };
    assert_eq!(decide(&server, &body(2)).status, 200);
    let refused = decide(&server, &body(3));
    assert_eq!((refused.status, &refused.json()["detail"][0]["loc"]), (422, &json!(["body", "states"])));
    let both = json!({"model": MEMBER, "state": "x", "questions": {}, "states": {"a": entry("x")}});
    assert_eq!(decide(&server, &both).status, 422, "either one state or several");
    // One request of several states: one outcome.
    let text = server.client().get("/metrics");
    assert!(text.text().contains("synod_outcomes_total{outcome=\"answered\"} 1\n"), "{}", text.text());
}
