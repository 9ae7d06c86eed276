//! The prefix cache from outside: what it saves by `synod_tokens_total`, what it keeps to, and that no byte of an answer
//! shows whether it is there.

use std::thread;

use serde_json::{Value, json};
use synod_tests::deployment::Deployment;
use synod_tests::fixtures::{self, Case};
use synod_tests::http::{Client, Reply};
use synod_tests::server::{Server, eventually};

const SYNOD: &str = env!("CARGO_BIN_EXE_synod-tested");
const MIB: u64 = 1 << 20;

/// All fixture members, whose executors keep as much as that of prefixes.
fn deployment(members: &[&str], mib: u64) -> Deployment {
    members.iter().fold(Deployment::default(), |deployment, member| {
        let line = format!("prefix_cache_mib = {mib}");
        deployment.member(member, &fixtures::path(&format!("members/{member}"))).member_line(&line)
    })
}

/// A series' sum over all executors, of those lines that have `label`.
fn sum(client: &Client, name: &str, label: &str) -> u64 {
    let metrics = client.get("/metrics");
    let lines = metrics.text().lines().filter(|line| line.starts_with(&format!("{name}{{")) && line.contains(label));
    lines.map(|line| line.rsplit(' ').next().and_then(|value| value.parse::<u64>().ok()).expect("a whole number")).sum()
}

fn computed(client: &Client) -> u64 {
    sum(client, "synod_tokens_total", r#"kind="computed""#)
}

fn cached(client: &Client) -> u64 {
    sum(client, "synod_tokens_total", r#"kind="cached""#)
}

/// Hits, misses, evictions and bytes.
fn cache(client: &Client) -> [u64; 4] {
    ["hits_total", "misses_total", "evictions_total", "bytes"]
        .map(|name| sum(client, &format!("synod_prefix_cache_{name}"), ""))
}

fn question(state: &Value, number: usize) -> String {
    let question = json!({"type": "noul", "instructions": format!("Is it the arrival of number {number}?")});
    json!({"model": "tiny-08b", "state": state, "questions": {"q": question}}).to_string()
}

fn input_tokens(reply: &Reply) -> u64 {
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()["usage"]["input_tokens"].as_u64().expect("a count")
}

/// The issue's own words: the same state asked ten different questions costs at most one prefix.
#[test]
fn a_state_that_is_asked_ten_questions_is_computed_once() {
    let [on, off] = [16, 0].map(|mib| Server::start(SYNOD, &deployment(&["tiny-08b"], mib)));
    let state = json!("The harbour office logged seventeen arrivals before noon. ".repeat(20));
    let before = [computed(on.client()), cached(on.client())];
    let (mut asked, mut prefix) = (0, 0);
    for number in 0..10 {
        let reply = on.ask(question(&state, number));
        assert_eq!(reply.body, off.ask(question(&state, number)).body, "question {number}");
        asked += input_tokens(&reply);
        if number == 1 {
            prefix = cached(on.client()) - before[1];
        }
    }
    assert!(prefix > 100, "a state of so many words has more than {prefix} tokens");
    let [computed_on, cached_on] = [computed(on.client()) - before[0], cached(on.client()) - before[1]];
    assert_eq!((computed_on, cached_on), (asked - 9 * prefix, 9 * prefix));
    let [hits, misses, evictions, bytes] = cache(on.client());
    assert!(hits >= 9 && misses >= 1 && evictions == 0 && bytes > 0, "{hits}, {misses}, {evictions}, {bytes}");
    // A server without a cache says so.
    assert_eq!((cached(off.client()), cache(off.client())), (0, [0; 4]));
    assert!(computed(off.client()) >= asked);
}

/// A state that is there already costs nothing in a call that has it twice, in whichever batches it runs.
#[test]
fn calls_of_several_states_share_what_is_kept() {
    let server = Server::start(SYNOD, &deployment(&["tiny-08b"], 16));
    let state = json!("Seventeen arrivals were logged. ".repeat(20));
    for number in 0..2 {
        input_tokens(&server.ask(question(&state, number)));
    }
    let prefix = cached(server.client());
    let before = computed(server.client());
    // No two are equal: those would be one.
    let ask = |state: &Value, first: usize| {
        let question = |number| json!({"type": "noul", "instructions": format!("Is it {number}?")});
        let questions = (first..first + 5).map(|number| (format!("q{number}"), question(number)));
        json!({"state": state, "questions": questions.collect::<serde_json::Map<_, _>>()})
    };
    let states = json!({"a": ask(&state, 0), "b": ask(&json!("Another one."), 0), "c": ask(&state, 5)});
    let call = json!({"model": "tiny-08b", "states": states});
    let reply = server.client().post("/v1/decisions", call.to_string());
    assert_eq!(reply.status, 200, "{}", reply.text());
    let tokens = |id: &str| reply.json()["states"][id]["usage"]["input_tokens"].as_u64().expect("a count");
    let asked: u64 = ["a", "b", "c"].map(tokens).iter().sum();
    assert_eq!(computed(server.client()) - before, asked - 2 * prefix, "of {asked} tokens, {prefix} of a prefix");
}

/// A cache that holds a few of many states drops those that were asked longest ago, never exceeds its bound, and answers
/// as a server without one.
#[test]
fn under_pressure_states_are_dropped_and_answers_stay() {
    let [on, off] = [1, 0].map(|mib| Server::start(SYNOD, &deployment(&["tiny-08b"], mib)));
    let states: Vec<Value> = (0..24).map(|number| json!(format!("Ship {number} is in. ").repeat(30))).collect();
    for (number, state) in states.iter().chain(&states[..4]).chain(&states[..4]).enumerate() {
        let body = question(state, number);
        assert_eq!(on.ask(body.clone()).body, off.ask(body).body, "state {number}");
        let [.., bytes] = cache(on.client());
        assert!(bytes <= MIB, "{bytes} bytes");
    }
    let [hits, misses, evictions, bytes] = cache(on.client());
    assert!(evictions > 0 && misses >= 28 && bytes > MIB / 2, "{misses} misses, {evictions} evictions, {bytes} bytes");
    assert!(hits >= 4, "{hits}: the last four states came twice");
}

/// Every recorded request of every member, from several clients at once and in different orders, so that batches have
/// hits and misses side by side.
#[test]
fn no_byte_of_a_recorded_answer_depends_on_the_cache() {
    let cases = fixtures::vela_cases();
    let off = Server::start(SYNOD, &deployment(&fixtures::MEMBERS, 0));
    let expected: Vec<Vec<u8>> = cases.iter().map(|case| answer(off.client(), case)).collect();
    for mib in [64, 1] {
        let on = Server::start(SYNOD, &deployment(&fixtures::MEMBERS, mib));
        thread::scope(|scope| {
            for client in 0..3 {
                let (on, cases, expected) = (&on, &cases, &expected);
                scope.spawn(move || {
                    let http = Client::new(on.client().address());
                    for number in 0..cases.len() {
                        let number = if client == 1 { cases.len() - 1 - number } else { number };
                        let found = answer(&http, &cases[number]);
                        assert!(found == expected[number], "{mib} MiB, client {client}: {}", cases[number].name);
                    }
                });
            }
        });
        let [hits, _, evictions, bytes] = cache(on.client());
        println!("{mib} MiB: {hits} hits, {evictions} evictions, {bytes} bytes");
        assert!(hits > 0 && bytes <= mib * MIB * fixtures::MEMBERS.len() as u64);
        assert_eq!(evictions > 0, mib == 1);
    }
}

fn answer(client: &Client, case: &Case) -> Vec<u8> {
    client.post("/v1/systemone", case.request_for(&case.member)).body
}

/// A reload that changes a member's cache starts another executor, whose cache is empty; the old one's is gone.
#[test]
fn a_reload_drops_what_was_kept() {
    let server = Server::start(SYNOD, &deployment(&["tiny-08b"], 16));
    let state = json!("Seventeen arrivals were logged.");
    assert_eq!(server.ask(question(&state, 0)).status, 200);
    let [_, misses, _, bytes] = cache(server.client());
    assert!(bytes > 0);
    server.change(&deployment(&["tiny-08b"], 17).to_toml());
    server.hang_up();
    assert!(eventually(|| cache(server.client())[3] == 0), "the old executor's cache is still counted");
    assert_eq!(server.ask(question(&state, 0)).status, 200);
    assert!(cache(server.client())[1] > misses);
}
