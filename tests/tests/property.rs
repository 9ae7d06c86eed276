//! A question asked alone and among others gets the same answer, to the last digit, over HTTP.

use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _};
use serde_json::Value;
use synod_tests::deployment::Deployment;
use synod_tests::fixtures;
use synod_tests::http::Reply;
use synod_tests::json_text;
use synod_tests::server::Server;

const SYNOD: &str = env!("CARGO_BIN_EXE_synod-tested");
const ROUNDS: usize = 24;

/// Requests whose parts are read whole however many of their questions are asked; a truncated part depends on them.
const CASES: [(&str, &str); 6] = [
    ("tiny-08b", "golden"),
    ("tiny-08b", "many-rows"),
    ("tiny-08b", "presets"),
    ("tiny-08b", "span-heads"),
    ("tiny-08b", "windows-mixed"),
    ("tiny-4b", "all-kinds"),
];

/// The exact texts of everything that a response says about question `id`.
fn said_about<'a>(reply: &'a Reply, id: &str) -> Vec<(String, &'a str)> {
    assert_eq!(reply.status, 200, "{}", reply.text());
    let answers = json_text::value_at(reply.text(), &["answers"]).expect("an accepted reply has answers");
    let label = format!("{id}.");
    let mut said: Vec<(String, &str)> = json_text::members(answers)
        .into_iter()
        .filter(|(key, _)| *key == id || key.starts_with(&label))
        .map(|(key, answer)| (format!("answers/{key}"), answer))
        .collect();
    for part in ["spans", "span_heads", "sets", "thresholds"] {
        said.extend(json_text::value_at(reply.text(), &[part, id]).map(|value| (format!("{part}/{id}"), value)));
    }
    assert!(!said.is_empty(), "nothing about {id} in {}", reply.text());
    said
}

/// The request with only these of its questions, in this order.
fn with_questions(request: &Value, ids: &[&String]) -> String {
    let questions = ids.iter().map(|id| ((*id).clone(), request["questions"][id.as_str()].clone())).collect();
    let mut asked = request.clone();
    asked["questions"] = Value::Object(questions);
    asked.to_string()
}

#[test]
fn a_question_alone_and_among_others_gets_the_same_bytes() {
    let given = std::env::var("SYNOD_TEST_SEED").ok();
    let seed: u64 = given.map_or_else(rand::random, |seed| seed.parse().unwrap());
    println!("SYNOD_TEST_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let server = Server::start(SYNOD, &Deployment::of(&["tiny-08b", "tiny-4b"]));
    for round in 0..ROUNDS {
        let (member, case) = CASES[round % CASES.len()];
        let recorded: Value =
            serde_json::from_str(&fixtures::text(&format!("vela/{member}/{case}.json"))).expect("JSON");
        let mut request = recorded["request"].clone();
        request["model"] = Value::from(member);
        let questions = request["questions"].as_object().expect("a recorded request has questions");
        let mut ids: Vec<&String> = questions.keys().collect();
        ids.shuffle(&mut random);
        ids.truncate(random.random_range(2..=ids.len().max(2)));
        let among = server.ask(with_questions(&request, &ids));
        let id = ids[random.random_range(0..ids.len())];
        let alone = server.ask(with_questions(&request, &[id]));
        assert_eq!(said_about(&alone, id), said_about(&among, id), "seed {seed}, {member}/{case}: {id} among {ids:?}");
    }
}
