//! Everything around the answers: models, health, request ids, timing, metrics, keys, the full queue, clients that go
//! away, and the end of the process.

use std::collections::HashSet;
use std::fs;
use std::io::Write as _;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use synod_tests::deployment::Deployment;
use synod_tests::fixtures;
use synod_tests::http::{Client, Reply, raw_post};
use synod_tests::server::{Launch, Server, eventually, run};

const SYNOD: &str = env!("CARGO_BIN_EXE_synod-tested");
const GOOD: &str = r#"{"state":"It is late.","questions":{"q":{"type":"noul","instructions":"Is it late?"}}}"#;

/// A request that takes the longest of the recorded ones: a long text read in windows.
fn slow_request(model: &str) -> String {
    let words = "On 1 March 2010 the harbour office of Rotterdam logged 17 arrivals. ".repeat(120);
    json!({
        "model": model,
        "state": {"document": words},
        "questions": {"people": {"type": "span", "instructions": "Mark people.", "criteria": {"person": null}, "over": "document"}},
    })
    .to_string()
}

/// A metric's value: the first line with this name and these labels.
fn metric(client: &Client, name: &str) -> Option<f64> {
    let text = client.get("/metrics");
    let line = text.text().lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[test]
fn models_lists_every_name_and_alias_with_what_the_sdk_requires() {
    let deployment = Deployment::of(&["tiny-08b"])
        .member_line("description = \"the first\"")
        .member_line("release_date = \"2026-10-01\"")
        .alias("jev-latest")
        .member("second", &fixtures::path("members/tiny-router"));
    let server = Server::start(SYNOD, &deployment);
    let reply = server.client().get("/v1/models");
    assert_eq!(reply.status, 200, "{}", reply.text());
    let models = reply.json()["models"].as_array().expect("models is a list").clone();
    let names: HashSet<&str> = models.iter().filter_map(|model| model["name"].as_str()).collect();
    assert_eq!((models.len(), names), (3, HashSet::from(["tiny-08b", "jev-latest", "second"])));
    for model in &models {
        for field in ["name", "description", "release_date"] {
            assert!(model[field].is_string(), "{field} of {model}");
        }
        if model["name"] != "second" {
            assert_eq!((&model["description"], &model["release_date"]), (&json!("the first"), &json!("2026-10-01")));
        }
    }
}

#[test]
fn an_alias_answers_like_the_member_and_under_the_members_name() {
    let server = Server::start(SYNOD, &Deployment::of(&["tiny-08b"]).alias("jev-latest"));
    let by_alias = server.ask(fixtures::with_model(GOOD, "jev-latest"));
    let by_name = server.ask(fixtures::with_model(GOOD, "tiny-08b"));
    assert_eq!((by_alias.status, by_alias.text()), (200, by_name.text()));
    assert_eq!(by_alias.json()["model"], "tiny-08b");
}

#[test]
fn an_unknown_model_is_refused_with_the_known_ones() {
    let server = Server::start(SYNOD, &Deployment::of(&["tiny-08b", "tiny-router"]).alias("jev-latest"));
    let reply = server.ask(fixtures::with_model(GOOD, "vela-900b"));
    assert_eq!(reply.status, 404, "{}", reply.text());
    let message = reply.json()["error"]["message"].as_str().expect("an error has a message").to_owned();
    for name in ["tiny-08b", "tiny-router", "jev-latest"] {
        assert!(message.contains(name), "{name} is not in: {message}");
    }
}

#[test]
fn health_tells_life_and_readiness() {
    let server = Server::start(SYNOD, &Deployment::of(&["tiny-08b"]));
    for route in ["/health/live", "/health/ready"] {
        let reply = server.client().get(route);
        assert_eq!(reply.status, 200, "{route}: {}", reply.text());
        assert!(reply.json().is_object(), "{route}");
    }
}

#[test]
fn request_ids_are_echoed_if_valid_and_made_otherwise() {
    let server = Server::start(SYNOD, &Deployment::of(&["tiny-08b"]).server("default_model = \"tiny-08b\""));
    let id_of = |sent: Option<&str>, body: &str| {
        let mut headers = vec![("content-type", "application/json")];
        headers.extend(sent.map(|id| ("x-typesafe-request-id", id)));
        let reply = server.client().request("POST", "/v1/systemone", &headers, body.as_bytes().to_vec());
        reply.header("x-typesafe-request-id").expect("every reply has an id").to_owned()
    };
    let valid = "0198f1f0-5b7c-7000-8000-0123456789ab";
    assert_eq!(id_of(Some(valid), GOOD), valid);
    assert_eq!(id_of(Some(valid), "not json"), valid, "a refusal echoes the id as well");
    let made = [
        id_of(None, GOOD),
        id_of(None, GOOD),
        id_of(Some("no id: \u{e9}\u{e8}"), GOOD),
        id_of(Some(&"x".repeat(5000)), GOOD),
    ];
    assert_eq!(HashSet::from(made.clone()).len(), made.len(), "{made:?}");
    assert!(made.iter().all(|id| id.len() >= 26 && id.len() <= 64 && id.is_ascii()), "{made:?}");
}

#[test]
fn server_timing_has_every_phase_in_milliseconds() {
    let server = Server::start(SYNOD, &Deployment::of(&["tiny-08b"]).server("default_model = \"tiny-08b\""));
    let reply = server.ask(GOOD);
    let timing = reply.header("server-timing").expect("an answer has its timing");
    let phases: Vec<(&str, f64)> = timing
        .split(',')
        .map(|phase| {
            let (name, duration) = phase.trim().split_once(";dur=").unwrap_or_else(|| panic!("{phase} in {timing}"));
            (name, duration.parse().unwrap_or_else(|error| panic!("{error}: {phase} in {timing}")))
        })
        .collect();
    assert_eq!(
        phases.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
        ["parse", "render", "queue", "forward", "finish", "total"]
    );
    let (total, parts) = phases.split_last().expect("there are six");
    assert!(parts.iter().all(|(_, ms)| *ms >= 0.0), "{timing}");
    // Each figure is rounded by itself.
    assert!(parts.iter().map(|(_, ms)| ms).sum::<f64>() <= total.1 + 0.1, "{timing}");
    assert!(parts[3].1 > 0.0, "the forward takes time: {timing}");
}

/// Every line is a comment, or a name with optional labels and a number.
fn is_metric_line(line: &str) -> bool {
    let Some((series, value)) = line.rsplit_once(' ') else { return line.is_empty() };
    let name = series.split('{').next().unwrap_or_default();
    let named = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':');
    line.starts_with('#') || (named && (!series.contains('{') || series.ends_with('}')) && value.parse::<f64>().is_ok())
}

#[test]
fn metrics_are_prometheus_text_and_count_what_was_done() {
    let server = Server::start(SYNOD, &Deployment::of(&["tiny-08b"]).server("default_model = \"tiny-08b\""));
    for _ in 0..3 {
        assert_eq!(server.ask(GOOD).status, 200);
    }
    assert_eq!(server.ask("not json").status, 400);
    assert_eq!(server.client().post("/v1/decisions", GOOD).status, 200);
    let reply = server.client().get("/metrics");
    assert_eq!(reply.status, 200);
    assert!(reply.header("content-type").is_some_and(|kind| kind.starts_with("text/plain")), "{:?}", reply.headers);
    let odd: Vec<&str> = reply.text().lines().filter(|line| !is_metric_line(line)).collect();
    assert!(odd.is_empty(), "not Prometheus text: {odd:?}");
    for name in [
        "synod_requests_total",
        "synod_request_seconds_bucket",
        "synod_phase_seconds_bucket",
        "synod_outcomes_total",
        "synod_questions_total",
        "synod_tokens_total",
        "synod_batch_tokens",
        "synod_batch_requests",
        "synod_queue_tokens",
        "synod_queue_requests",
        "synod_inflight",
        "synod_executor_state",
        "synod_build_info",
        "process_resident_memory_bytes",
    ] {
        assert!(reply.text().lines().any(|line| line.starts_with(name)), "no {name}");
    }
    assert_eq!(metric(server.client(), r#"synod_outcomes_total{outcome="answered"}"#), Some(4.0));
    assert_eq!(metric(server.client(), r#"synod_outcomes_total{outcome="rejected"}"#), Some(1.0));
}

#[test]
fn keys_open_the_routes_and_the_models_that_they_are_for() {
    let deployment = Deployment::of(&["tiny-08b", "tiny-router"])
        .server("default_model = \"tiny-08b\"")
        .key("all", "open sesame", &[])
        .key("one", "only one", &["tiny-router"]);
    let server = Server::start(SYNOD, &deployment);
    let client = server.client();
    let router = fixtures::with_model(GOOD, "tiny-router");
    for (reply, status, code) in [
        (client.post("/v1/systemone", GOOD), 401, Some("missing_key")),
        (client.post("/v1/decisions", GOOD), 401, Some("missing_key")),
        (client.get("/v1/models"), 401, Some("missing_key")),
        (client.post_as("wrong", "/v1/systemone", GOOD), 401, Some("unknown_key")),
        (client.post_as("only one", "/v1/systemone", GOOD), 403, Some("model_not_allowed")),
        (client.post_as("only one", "/v1/systemone", router), 200, None),
        (client.post_as("open sesame", "/v1/systemone", GOOD), 200, None),
        (client.get("/health/live"), 200, None),
        (client.get("/metrics"), 200, None),
    ] {
        assert_eq!(reply.status, status, "{}", reply.text());
        if let Some(code) = code {
            assert_eq!(reply.error_code().as_deref(), Some(code));
        }
    }
    for secret in ["open sesame", "only one", "wrong"] {
        assert!(!server.output().contains(secret), "a key is in the log:\n{}", server.output());
    }
}

/// The marker stands in every place where a client's text can: each may be quoted to that client, and nowhere else.
#[test]
fn nothing_of_a_request_is_in_the_log_or_in_the_metrics() {
    let marker = "Xylophone4417";
    let deployment = Deployment::of(&["tiny-08b", "tiny-router"]).server("default_model = \"tiny-08b\"").key(
        "someone",
        "Glockenspiel88",
        &[],
    );
    let server = Launch::of(SYNOD).environment("RUST_LOG", "info,synod=trace,actix=debug").start(&deployment);
    let mut bodies = vec![format!(r#"{{"state":"{marker}""#), marker.to_owned(), format!(r#"{{"{marker}":1}}"#)];
    let questions = [
        json!({"type": "noul", "instructions": marker}),
        json!({"type": "choice", "instructions": marker, "criteria": {marker: marker, "other": null}}),
        json!({"type": "set", "instructions": marker, "criteria": {marker: marker, "other": marker}}),
        json!({"type": "score", "instructions": marker, "criteria": [marker, "other"]}),
        json!({"type": "span", "instructions": marker, "criteria": {marker: marker}, "over": marker}),
        json!({"type": marker}),
        json!({"type": "noul", "instructions": "?", marker: marker}),
        json!({"type": "span", "instructions": "?", "criteria": {marker: null}, "over": format!("{marker}2")}),
        json!(marker),
    ];
    let states =
        [json!(marker), json!({marker: marker}), json!([{"role": marker, "content": marker}]), json!({"a": 1})];
    for (question, state) in questions.iter().flat_map(|question| states.iter().map(move |state| (question, state))) {
        bodies.push(json!({"state": state, "questions": {marker: question}}).to_string());
        bodies.push(json!({"states": {marker: {"state": state, "questions": {marker: question}}}}).to_string());
    }
    bodies.push(json!({"model": marker, "state": "x", "questions": {"q": questions[0]}}).to_string());
    bodies.push(json!({"state": "x", "questions": {"q": questions[0]}, "options": {marker: marker}}).to_string());
    let mut answered = 0;
    for body in &bodies {
        for route in ["/v1/systemone", "/v1/decisions"] {
            answered += usize::from(server.client().post_as("Glockenspiel88", route, body.as_str()).status == 200);
        }
        // A key that is none, a path and an encoding.
        assert_eq!(server.client().post_as(marker, "/v1/systemone", body.as_str()).status, 401);
    }
    server.client().get(&format!("/{marker}?{marker}={marker}"));
    server.client().request("POST", "/v1/systemone", &[("content-encoding", marker), (marker, marker)], Vec::new());
    assert!(answered > 20, "the marker was in {answered} requests that were answered");
    let (metrics, log) = (server.client().get("/metrics"), server.output());
    assert!(log.lines().filter(|line| line.contains("answered")).count() > bodies.len(), "the log was looked at");
    for secret in [marker, "Glockenspiel88"] {
        assert!(!metrics.text().contains(secret));
        let lines: Vec<&str> = log.lines().filter(|line| line.contains(secret)).collect();
        assert!(lines.is_empty(), "{lines:?}");
    }
}

#[test]
fn a_full_queue_is_an_answer() {
    let deployment = Deployment::of(&["tiny-08b"]).tables("[queue]\nmax_requests = 1");
    let server = Server::start(SYNOD, &deployment);
    let clients = 12;
    let start = Barrier::new(clients);
    let replies: Vec<Reply> = thread::scope(|scope| {
        let ask = |_| {
            scope.spawn(|| {
                let client = Client::new(server.client().address());
                start.wait();
                client.post("/v1/systemone", slow_request("tiny-08b"))
            })
        };
        let threads: Vec<_> = (0..clients).map(ask).collect();
        threads.into_iter().map(|thread| thread.join().expect("a client gets a reply")).collect()
    });
    let (answered, refused): (Vec<&Reply>, Vec<&Reply>) = replies.iter().partition(|reply| reply.status == 200);
    assert!(!answered.is_empty() && !refused.is_empty(), "{} answered, {} refused", answered.len(), refused.len());
    for reply in refused {
        assert_eq!((reply.status, reply.error_code().as_deref()), (429, Some("queue_requests")), "{}", reply.text());
        let header = |name| reply.header(name).and_then(|value| value.parse::<u64>().ok());
        assert!(header("retry-after").is_some() && header("retry-after-ms").is_some(), "{:?}", reply.headers);
    }
    assert!(answered.windows(2).all(|pair| pair[0].body == pair[1].body), "the same request, two answers");
}

#[test]
fn a_client_that_goes_away_is_counted_and_the_next_one_is_served() {
    let server = Server::start(SYNOD, &Deployment::of(&["tiny-08b"]));
    for _ in 0..4 {
        let mut connection = server.client().connect();
        let request = raw_post("/v1/systemone", slow_request("tiny-08b").as_bytes());
        connection.write_all(&request).expect("the server reads");
        drop(connection);
    }
    // Half a body, then nothing.
    let mut connection = server.client().connect();
    connection.write_all(&raw_post("/v1/systemone", GOOD.as_bytes())[..120]).expect("the server reads");
    drop(connection);
    assert_eq!(server.ask(fixtures::with_model(GOOD, "tiny-08b")).status, 200);
    // Every request that arrived whole has one outcome, sooner or later, whichever it is.
    let outcomes = || {
        let count = |outcome| metric(server.client(), &format!("synod_outcomes_total{{outcome=\"{outcome}\"}}"));
        ["answered", "cancelled", "rejected", "failed"].map(|outcome| count(outcome).unwrap_or(0.0))
    };
    let settled = eventually(|| outcomes().iter().sum::<f64>() >= 5.0);
    let [answered, cancelled, _, failed] = outcomes();
    assert!(
        settled && cancelled >= 1.0 && failed == 0.0,
        "answered {answered}, cancelled {cancelled}, failed {failed}"
    );
}

#[test]
fn a_deadline_that_has_passed_is_504_and_an_ample_one_is_not_noticed() {
    let server = Server::start(SYNOD, &Deployment::of(&["tiny-08b"]));
    let with_deadline =
        |ms: u64| slow_request("tiny-08b").replacen('{', &format!("{{\"options\":{{\"deadline_ms\":{ms}}},"), 1);
    let late = server.ask(with_deadline(1));
    assert_eq!((late.status, late.error_code().as_deref()), (504, Some("deadline")), "{}", late.text());
    assert_eq!(server.ask(with_deadline(250_000)).body, server.ask(slow_request("tiny-08b")).body);
}

/// One byte of a weight file is another one: the member never serves, the others do, and everybody is told why.
#[test]
fn a_member_whose_weights_were_altered_never_serves_and_the_others_do() {
    let folder = tempfile::tempdir().expect("there is a place for temporary files");
    for entry in fs::read_dir(fixtures::path("members/tiny-router")).expect("the fixture is there") {
        let entry = entry.expect("the fixture is readable");
        fs::copy(entry.path(), folder.path().join(entry.file_name())).expect("a temporary folder is writable");
    }
    let shard = folder.path().join("model-00002-of-00002.safetensors");
    let mut bytes = fs::read(&shard).expect("the member has two shards");
    *bytes.last_mut().expect("it is not empty") ^= 1;
    fs::write(&shard, bytes).expect("a temporary folder is writable");
    let deployment = Deployment::of(&["tiny-08b"]).member("altered", folder.path()).member_line("required = false");
    let server = Server::start(SYNOD, &deployment);
    assert_eq!(server.ask(fixtures::with_model(GOOD, "tiny-08b")).status, 200);
    let replica = || {
        let ready = server.client().get("/health/ready").json();
        let members = ready["members"].as_array().expect("every member is there").clone();
        members.iter().find(|member| member["name"] == "altered").expect("it is one of them")["replicas"][0].clone()
    };
    let failed = eventually(|| replica()["state"] == "failed");
    let reason = replica()["reason"].as_str().unwrap_or_default().to_owned();
    assert!(failed && reason.contains("model-00002-of-00002.safetensors"), "{}", replica());
    let reply = server.ask(fixtures::with_model(GOOD, "altered"));
    assert_eq!((reply.status, reply.error_code().as_deref()), (503, Some("not_ready")), "{}", reply.text());
    assert!(reply.header("retry-after").is_some(), "{:?}", reply.headers);
    let models = server.client().get("/v1/models").json();
    let altered = models["models"].as_array().expect("a list").iter().find(|model| model["name"] == "altered").cloned();
    assert_eq!(altered.expect("it is listed")["ready"], false);
}

#[test]
fn sigterm_drains_and_ends_the_process_well() {
    let mut server = Server::start(SYNOD, &Deployment::of(&["tiny-08b"]));
    let client = server.client().clone();
    let reply = thread::scope(|scope| {
        let asking = scope.spawn(|| client.post("/v1/systemone", slow_request("tiny-08b")));
        // The request has arrived when it is in flight; only then does the process have something to drain.
        let arrived = eventually(|| {
            metric(server.client(), "synod_inflight").is_some_and(|count| count >= 1.0) || asking.is_finished()
        });
        assert!(arrived, "the request never arrived");
        server.terminate();
        asking.join().expect("the request is answered")
    });
    assert_eq!(reply.status, 200, "{}", reply.text());
    let status = server.wait();
    assert!(status.success(), "{status}\n{}", server.output());
}

#[test]
fn the_demo_serves_at_once_and_says_that_its_weights_are_random() {
    let server = Server::start_with(SYNOD, &["serve", "--demo", "--bind", "127.0.0.1:0"]);
    let output = server.output();
    let address = server.client().address().to_string();
    for wanted in ["random", &address, "curl ", "POST /v1/systemone", "POST /v1/decisions", "/v1/models"] {
        assert!(output.contains(wanted), "{wanted} is not in:\n{output}");
    }
    // No model is named: a demonstration has a default.
    let reply = server.ask(GOOD);
    assert_eq!(reply.status, 200, "{}", reply.text());
    let noul = reply.json()["answers"]["q"]["noul"].as_f64().expect("a noul is a number");
    assert!((0.0..=1.0).contains(&noul));
    let names: Vec<Value> = server.client().get("/v1/models").json()["models"].as_array().expect("a list").clone();
    assert!(names.iter().any(|model| model["name"] == "jev-latest"), "an unconfigured client of the SDK asks for it");
}

/// The whole way: a new key, its rate in a file, a refusal that says when to come again, and an answer by then.
#[test]
fn a_new_key_is_held_to_its_rate() {
    let folder = tempfile::tempdir().expect("there is a place for temporary files");
    let made = run(SYNOD, &["key", "new", "--name", "limited"], folder.path(), "");
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let (key, table) = made.stdout.split_once("\n\n").expect("the key, an empty line, its table");
    assert!(!table.contains(key) && !made.stderr.contains(key), "{}{}", made.stdout, made.stderr);
    let deployment = Deployment::of(&["tiny-08b"])
        .server("default_model = \"tiny-08b\"")
        .tables(&format!("{table}rate = 1.0\n"))
        .key("other", "another", &[]);
    let server = Server::start(SYNOD, &deployment);
    let client = server.client();
    assert_eq!(client.post_as(key, "/v1/systemone", GOOD).status, 200);
    let replies: Vec<Reply> = (0..100).map(|_| client.post_as(key, "/v1/systemone", GOOD)).collect();
    let refused = replies.iter().rfind(|reply| reply.status != 200).expect("a hundred requests take under 99 s");
    assert_eq!((refused.status, refused.error_code().as_deref()), (429, Some("key_rate")), "{}", refused.text());
    let wait = refused.header("retry-after-ms").and_then(|wait| wait.parse().ok()).expect("a number");
    assert!(wait <= 1000, "{wait} ms at one request per second");
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(client.post_as("another", "/v1/systemone", GOOD).status, 200);
    thread::sleep(Duration::from_millis(wait));
    assert_eq!(client.post_as(key, "/v1/systemone", GOOD).status, 200, "whoever waits as told is served");
    let rejected = replies.iter().filter(|reply| reply.status == 429).count() as f64;
    assert_eq!(metric(client, r#"synod_rejected_total{reason="key_rate"}"#), Some(rejected));
    for text in [server.output(), client.get("/metrics").text().to_owned()] {
        assert!(!text.contains(key) && !text.contains(&fixtures::sha256(key.as_bytes())), "a key is told:\n{text}");
    }
    assert!(server.output().contains("limited"), "the log names the key:\n{}", server.output());
}

/// Sixteen clients of one key keep the device busy; the one of another waits for few of them.
#[test]
fn a_modest_key_waits_less_than_a_greedy_one() {
    let deployment = Deployment::of(&["tiny-08b"])
        .tables("[queue]\nbatch_tokens = 1024")
        .key("greedy", "greedy", &[])
        .key("modest", "modest", &[]);
    let server = Server::start(SYNOD, &deployment);
    let ask = |key: &str, number: usize| {
        let state = format!("{number} ships of the harbour office of Rotterdam. ").repeat(40);
        let body = json!({"model": "tiny-08b", "state": state, "questions": {"q": {"type": "noul", "instructions": "Is it?"}}}).to_string();
        let started = Instant::now();
        let reply = Client::new(server.client().address()).post_as(key, "/v1/systemone", body);
        assert_eq!(reply.status, 200, "{}", reply.text());
        started.elapsed()
    };
    let (is_over, number) = (AtomicBool::new(false), AtomicUsize::new(0));
    let next = || number.fetch_add(1, Ordering::Relaxed);
    let (greedy, modest) = thread::scope(|scope| {
        let client = || {
            let times = std::iter::repeat_with(|| ask("greedy", next()));
            times.take_while(|_| !is_over.load(Ordering::Relaxed)).collect::<Vec<Duration>>()
        };
        let clients: Vec<_> = (0..16).map(|_| scope.spawn(client)).collect();
        assert!(eventually(|| number.load(Ordering::Relaxed) >= 32), "nothing is answered");
        let modest: Vec<Duration> = (0..15).map(|_| ask("modest", next())).collect();
        is_over.store(true, Ordering::Relaxed);
        let greedy = clients.into_iter().flat_map(|client| client.join().expect("a client gets its replies"));
        (greedy.collect::<Vec<_>>(), modest)
    });
    let median = |mut times: Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2]
    };
    let (greedy, modest) = (median(greedy), median(modest));
    println!("greedy {greedy:?}, modest {modest:?}");
    assert!(modest * 2 < greedy, "greedy waits {greedy:?}, modest {modest:?}");
}
