use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::*;

const DIGEST: &str = "00000000000000000000000000000000000000000000000000000000000000aB";

/// Every key of the design, in its order; lines are counted from the `[server]`, which is line 1.
const FULL: &str = r#"[server]
bind = "0.0.0.0:8100"
admin = "127.0.0.1:8101"
workers = 4
default_model = "jev-latest"
drain_s = 5
request_timeout_ms = 9_000
max_body_mib = 2
max_json_depth = 64
max_questions = 10
max_states = 7
max_question_id_chars = 20
max_options = 12
max_score_levels = 5

[[key]]
sha256 = "00000000000000000000000000000000000000000000000000000000000000aB"
name = "router"
models = ["vela-4b", "jev-latest"]
weight = 4
rate = 2.5

[[key]]
sha256 = "00000000000000000000000000000000000000000000000000000000000000ac"
name = "batch"

[queue]
max_requests = 16
max_tokens = 100_000
batch_tokens = 0x1000
batch_window_us = 50

[[member]]
name = "vela-4b"
path = "bundle"
anchor = "sha256:00000000000000000000000000000000000000000000000000000000000000aB"
profile = "bf16"
devices = ["cuda:0", "cuda:1"]
required = false
aliases = ["jev-latest"]
prefix_cache_mib = 1
gates = { logit = 0.3, answer = 0.05 }
replay = "/cases"
drift_every_s = 60
on_drift = "report"
noul_calibration = true
description = "four"
release_date = "2026-10-01"

[[member]]
name = "vela-0.8b"
path = "/models/vela-0.8b"
devices = ["cpu:0-3"]
"#;

/// The least that is a deployment.
const LEAST: &str = "[[member]]\nname = \"m\"\npath = \"m\"\ndevices = [\"cpu:*\"]\n";

fn read(text: &str) -> Result<(Deployment, Vec<Finding>), ConfigError> {
    Deployment::from_toml_with(text, Path::new("etc/synod.toml"), |_| true)
}

fn good(text: &str) -> Deployment {
    let (deployment, warnings) = read(text).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(warnings, []);
    deployment
}

fn refused(text: &str, expected: &[&str]) {
    let error = read(text).expect_err("the text breaks a rule").to_string();
    let expected: Vec<_> = expected.iter().map(|line| format!("etc/synod.toml:{line}")).collect();
    assert_eq!(error.lines().collect::<Vec<_>>(), expected);
}

/// Breaks one rule of [`FULL`] by replacing one piece of it.
fn broken(piece: &str, replacement: &str, expected: &[&str]) {
    assert_eq!(FULL.matches(piece).count(), 1, "{piece} must stand in the file once");
    refused(&FULL.replace(piece, replacement), expected);
}

#[test]
fn every_key_is_read() {
    let deployment = good(FULL);
    let mut digest = [0; 32];
    digest[31] = 0xab;
    let mut second = digest;
    second[31] = 0xac;
    assert_eq!(
        deployment.server,
        Server {
            bind: "0.0.0.0:8100".parse().unwrap(),
            admin: Some("127.0.0.1:8101".parse().unwrap()),
            workers: Some(4.try_into().unwrap()),
            open: false,
            default_model: Some("vela-4b".into()),
            drain: Duration::from_secs(5),
            request_timeout: Duration::from_secs(9),
            limits: Limits {
                max_body_bytes: 2 << 20,
                max_json_depth: 64,
                max_questions: 10,
                max_states: 7,
                max_question_id_chars: 20,
                max_options: 12,
                max_score_levels: 5,
            },
        }
    );
    let both = vec!["vela-4b".into(), "vela-0.8b".into()];
    assert_eq!(
        deployment.keys,
        [
            Key { sha256: digest, name: "router".into(), models: vec!["vela-4b".into()], weight: 4, rate: Some(2.5) },
            Key { sha256: second, name: "batch".into(), models: both, weight: 1, rate: None },
        ]
    );
    assert_eq!(
        deployment.queue,
        Queue { max_requests: 16, max_tokens: 100_000, batch_tokens: 4096, batch_window: Duration::from_micros(50) }
    );
    assert_eq!(
        deployment.members[0],
        Member {
            name: "vela-4b".into(),
            path: PathBuf::from("etc/bundle"),
            anchor: Some(Anchor(digest)),
            profile: Profile::Bf16,
            placements: vec![Placement::Cuda(Card::Ordinal(0)), Placement::Cuda(Card::Ordinal(1))],
            required: false,
            aliases: vec!["jev-latest".into()],
            prefix_cache_bytes: 1 << 20,
            gates: Gates { logit: 0.3, answer: 0.05 },
            replay: Some(PathBuf::from("/cases")),
            drift_every: Duration::from_mins(1),
            on_drift: OnDrift::Report,
            noul_calibration: true,
            description: Some("four".into()),
            release_date: Some("2026-10-01".into()),
        }
    );
    assert_eq!(deployment.member("jev-latest").unwrap().name, "vela-4b");
    assert_eq!(deployment.member("vela-0.8b").unwrap().name, "vela-0.8b");
    assert_eq!(deployment.member("vela"), None);
}

#[test]
fn what_is_left_out_has_the_defaults_of_the_design() {
    let deployment = good(LEAST);
    assert_eq!(deployment.server.bind, "127.0.0.1:8100".parse().unwrap());
    assert_eq!((deployment.server.admin, deployment.server.workers, deployment.server.open), (None, None, false));
    assert_eq!(deployment.server.default_model, None);
    assert_eq!(deployment.server.drain, Duration::from_secs(30));
    let Limits {
        max_body_bytes,
        max_json_depth,
        max_questions,
        max_states,
        max_question_id_chars,
        max_options,
        max_score_levels,
    } = deployment.server.limits;
    assert_eq!((max_body_bytes, max_json_depth, max_questions, max_states), (8_388_608, 128, 256, 64));
    assert_eq!((max_question_id_chars, max_options, max_score_levels), (256, 255, 10));
    let Queue { max_requests, max_tokens, batch_tokens, batch_window } = deployment.queue;
    assert_eq!((max_requests, max_tokens, batch_tokens, batch_window), (1024, 2_000_000, 24_576, Duration::ZERO));
    assert_eq!(deployment.keys, []);
    let member = &deployment.members[0];
    assert_eq!((member.profile, member.anchor, member.required), (Profile::Fp32, None, true));
    assert_eq!(member.gates, Gates { logit: 1e-4, answer: 2e-5 });
    assert_eq!((member.drift_every, member.on_drift), (Duration::from_mins(5), OnDrift::Quarantine));
    assert!(member.aliases.is_empty() && member.replay.is_none() && !member.noul_calibration);
}

#[test]
fn wider_gates_are_brought_back_with_a_warning() {
    let text = FULL.replace("gates = { logit = 0.3, answer = 0.05 }", "gates = { logit = 1, answer = 0.05 }");
    let (deployment, warnings) = read(&text).unwrap();
    assert_eq!(deployment.members[0].gates, Gates { logit: 0.35, answer: 0.05 });
    let warnings: Vec<_> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        ["etc/synod.toml:42: member.gates.logit: 1 is wider than 0.35, the gate of bf16; \
          0.35 is used; gates can only be made tighter"]
    );
}

#[test]
fn a_text_that_is_no_toml_is_refused_at_its_line() {
    refused(
        "[server]\nbind = \n",
        &["2: syntax: string values must be quoted, expected literal string; correct the TOML at this line"],
    );
    refused("[server]\n\n[server]\n", &["3: syntax: duplicate key; correct the TOML at this line"]);
}

#[test]
fn unknown_keys_are_refused_in_every_table() {
    refused(&format!("{LEAST}[extra]\n"), &["5: extra: unknown key; known here: server, key, queue, member"]);
    broken(
        "workers =",
        "worker =",
        &["4: server.worker: unknown key; known here: bind, admin, workers, open, default_model, drain_s, \
         request_timeout_ms, max_body_mib, max_json_depth, max_questions, max_states, max_question_id_chars, max_options, max_score_levels"],
    );
    broken("rate =", "rates =", &["21: key.rates: unknown key; known here: name, sha256, models, weight, rate"]);
    broken(
        "batch_window_us =",
        "window =",
        &["31: queue.window: unknown key; known here: max_requests, max_tokens, batch_tokens, batch_window_us"],
    );
    broken(
        "replay =",
        "cases =",
        &["43: member.cases: unknown key; known here: name, path, devices, aliases, profile, anchor, required, \
         prefix_cache_mib, gates, replay, drift_every_s, on_drift, noul_calibration, description, release_date"],
    );
    broken("logit =", "logits =", &["42: member.gates.logits: unknown key; known here: logit, answer"]);
}

/// A piece of [`FULL`], what stands in its place, the place, `EXPECTED, found FOUND`, and the example of the advice.
const WRONG_KINDS: &[[&str; 5]] = &[
    [
        "bind = \"0.0.0.0:8100\"",
        "bind = \"localhost\"",
        "2: server.bind",
        "an IP address with a port, found \"localhost\"",
        "\"127.0.0.1:8100\"",
    ],
    [
        "bind = \"0.0.0.0:8100\"",
        "bind = 8100",
        "2: server.bind",
        "an IP address with a port, found 8100",
        "\"127.0.0.1:8100\"",
    ],
    [
        "admin = \"127.0.0.1:8101\"",
        "admin = \"\"",
        "3: server.admin",
        "an IP address with a port, found \"\"",
        "\"127.0.0.1:8100\"",
    ],
    ["workers = 4", "workers = 0", "4: server.workers", "a whole number from 1 to 1024, found 0", "4"],
    ["workers = 4", "open = \"yes\"", "4: server.open", "true or false, found \"yes\"", "true"],
    ["drain_s = 5", "drain_s = -1", "6: server.drain_s", "a whole number of seconds up to 1000000000, found -1", "30"],
    [
        "= 9_000",
        "= 0",
        "7: server.request_timeout_ms",
        "a whole number of milliseconds from 1 to 1000000000, found 0",
        "120_000",
    ],
    [
        "max_body_mib = 2",
        "max_body_mib = 1.5",
        "8: server.max_body_mib",
        "a whole number of MiB from 1 to 1024, found 1.5",
        "8",
    ],
    [
        "max_json_depth = 64",
        "max_json_depth = 129",
        "9: server.max_json_depth",
        "a whole number from 1 to 128, found 129",
        "128",
    ],
    [
        "max_questions = 10",
        "max_questions = true",
        "10: server.max_questions",
        "a whole number from 1 to 65536, found true",
        "256",
    ],
    [
        "max_question_id_chars = 20",
        "max_question_id_chars = 1025",
        "12: server.max_question_id_chars",
        "a whole number from 1 to 1024, found 1025",
        "256",
    ],
    [
        "max_options = 12",
        "max_options = 256",
        "13: server.max_options",
        "a whole number from 2 to 255, found 256",
        "255",
    ],
    [
        "max_score_levels = 5",
        "max_score_levels = 1",
        "14: server.max_score_levels",
        "a whole number from 2 to 10, found 1",
        "10",
    ],
    ["weight = 4", "weight = 0", "20: key.weight", "a whole number from 1 to 1000000, found 0", "4"],
    ["rate = 2.5", "rate = 0", "21: key.rate", "a number of requests per second above 0, found 0", "200"],
    ["rate = 2.5", "rate = inf", "21: key.rate", "a number of requests per second above 0, found inf", "200"],
    [
        "max_requests = 16",
        "max_requests = []",
        "28: queue.max_requests",
        "a whole number from 1 to 1000000000, found a list",
        "1024",
    ],
    [
        "batch_window_us = 50",
        "batch_window_us = 9e9",
        "31: queue.batch_window_us",
        "a whole number of microseconds up to 1000000000, found 9e9",
        "0",
    ],
    [
        "profile = \"bf16\"",
        "profile = \"fp16\"",
        "37: member.profile",
        "\"fp32\" or \"bf16\", found \"fp16\"",
        "\"fp32\"",
    ],
    [
        "[\"cuda:0\", \"cuda:1\"]",
        "[\"cuda:0\",\n \"gpu:1\"]",
        "39: member.devices",
        "a device such as \"cpu:0\", \"cpu:0-7\", \"cpu:*\", \"cuda:0\", \"cuda:GPU-<uuid>\" or \"cuda:*\", found \"gpu:1\"",
        "[\"cpu:*\"]",
    ],
    ["[\"cuda:0\", \"cuda:1\"]", "\"cuda:0\"", "38: member.devices", "a list, found \"cuda:0\"", "[\"cpu:*\"]"],
    [
        "prefix_cache_mib = 1",
        "prefix_cache_mib = \"1\"",
        "41: member.prefix_cache_mib",
        "a whole number of MiB up to 1048576, found \"1\"",
        "2048",
    ],
    ["answer = 0.05", "answer = 0.0", "42: member.gates.answer", "a number above 0, found 0.0", "0.05"],
    [
        "{ logit = 0.3, answer = 0.05 }",
        "0.3",
        "42: member.gates",
        "a table, found 0.3",
        "{ logit = 0.3, answer = 0.05 }",
    ],
    [
        "drift_every_s = 60",
        "drift_every_s = 0",
        "44: member.drift_every_s",
        "a whole number of seconds from 1 to 1000000000, found 0",
        "300",
    ],
    [
        "on_drift = \"report\"",
        "on_drift = \"stop\"",
        "45: member.on_drift",
        "\"quarantine\" or \"report\", found \"stop\"",
        "\"quarantine\"",
    ],
    [
        "description = \"four\"",
        "description = \"a\\nb\"",
        "47: member.description",
        "a text, found \"a\\nb\"",
        "\"Answers about support tickets\"",
    ],
    [
        "\"2026-10-01\"",
        "\"2026-02-30\"",
        "48: member.release_date",
        "a date as YYYY-MM-DD in quotes, found \"2026-02-30\"",
        "\"2026-10-01\"",
    ],
    [
        "\"2026-10-01\"",
        "2026-10-01",
        "48: member.release_date",
        "a date as YYYY-MM-DD in quotes, found a date or time",
        "\"2026-10-01\"",
    ],
    ["name = \"vela-0.8b\"", "name = \" \"", "51: member.name", "a name, found \" \"", "\"vela-4b\""],
];

#[test]
fn values_of_another_kind_are_refused() {
    for [piece, replacement, place, problem, example] in WRONG_KINDS {
        let key = place.rsplit('.').next().unwrap();
        broken(piece, replacement, &[&format!("{place}: expected {problem}; write for instance {key} = {example}")]);
    }
    let server = format!("server = 1\n{LEAST}");
    refused(&server, &["1: server: expected a table, found 1; write [server] above its keys"]);
    let advice = "write [[member]] above each one's keys";
    refused("[member]\n", &[&format!("1: member: expected [[member]] tables, found a table; {advice}")]);
}

#[test]
fn what_is_required_is_asked_for() {
    refused("", &["1: member: expected at least one; add a [[member]] with name, path and devices"]);
    refused(
        "[server]\n\n[[member]]\n",
        &[
            "3: member.name: expected a name, found nothing; write for instance name = \"vela-4b\"",
            "3: member.path: expected a path, found nothing; write for instance path = \"/models/vela-4b\"",
            "3: member.devices: expected at least one device, found none; write for instance devices = [\"cpu:*\"]",
        ],
    );
    broken(
        "devices = [\"cpu:0-3\"]",
        "devices = []",
        &["53: member.devices: expected at least one device, found none; write for instance devices = [\"cpu:*\"]"],
    );
    refused(
        &format!("{LEAST}[[key]]\n"),
        &[
            "5: key.name: expected a name, found nothing; write for instance name = \"router\"",
            "5: key.sha256: expected 64 hex digits, found nothing; write the digest, as in: printf %s \"$KEY\" | sha256sum",
        ],
    );
}

/// A key written where its digest belongs must not be repeated in a message.
#[test]
fn digests_are_checked_and_never_shown() {
    let advice = "write the digest, as in: printf %s \"$KEY\" | sha256sum";
    let digest = format!("sha256 = \"{DIGEST}\"");
    broken(
        &digest,
        "sha256 = \"my-secret\"",
        &[&format!("17: key.sha256: expected 64 hex digits, found 9 characters; {advice}")],
    );
    broken(
        &digest,
        &digest.replace("aB", "ag"),
        &[&format!("17: key.sha256: expected 64 hex digits, found 64 characters; {advice}")],
    );
    broken(&digest, "sha256 = 5", &[&format!("17: key.sha256: expected 64 hex digits, found no text; {advice}")]);
    let anchor = "member.anchor: expected sha256: and 64 hex digits";
    let advice = "write for instance anchor = \"sha256:…\", as synod verify prints it";
    let given = format!("anchor = \"sha256:{DIGEST}\"");
    broken(&given, &given.replace("sha256:", ""), &[&format!("36: {anchor}, found \"{DIGEST}\"; {advice}")]);
    broken(
        &given,
        &given.replace("aB", "a"),
        &[&format!("36: {anchor}, found \"sha256:{}\"; {advice}", &DIGEST[..63])],
    );
}

#[test]
fn names_and_aliases_are_unique() {
    let own = "give every member names of its own";
    broken(
        "name = \"vela-0.8b\"",
        "name = \"vela-4b\"",
        &[&format!("51: member.name: \"vela-4b\" is already a name or alias at line 34; {own}")],
    );
    broken(
        "name = \"vela-0.8b\"",
        "name = \"jev-latest\"",
        &[&format!("51: member.name: \"jev-latest\" is already a name or alias at line 40; {own}")],
    );
    broken(
        "aliases = [\"jev-latest\"]",
        "aliases = [\"jev-latest\", \"jev-latest\"]",
        &[&format!("40: member.aliases: \"jev-latest\" is already a name or alias at line 40; {own}")],
    );
    broken(
        "aliases = [\"jev-latest\"]",
        "aliases = [\"jev-latest\", \"vela-4b\"]",
        &[&format!("40: member.aliases: \"vela-4b\" is already a name or alias at line 34; {own}")],
    );
    broken(
        "name = \"batch\"",
        "name = \"router\"",
        &["25: key.name: \"router\" is already a key's name at line 18; give every key a name of its own"],
    );
    // Hex digits in either case are the same key.
    broken("0000ac\"", "0000Ab\"", &["24: key.sha256: the same key as at line 17; list every key once"]);
}

#[test]
fn models_are_served_ones() {
    let known = "write one of: vela-4b, vela-0.8b";
    broken(
        "default_model = \"jev-latest\"",
        "default_model = \"jev\"",
        &[&format!("5: server.default_model: no member has the name or alias \"jev\"; {known}")],
    );
    broken(
        "models = [\"vela-4b\", \"jev-latest\"]",
        "models = [\"vela-4b\",\n\"vela\"]",
        &[&format!("20: key.models: no member has the name or alias \"vela\"; {known}")],
    );
    broken(
        "models = [\"vela-4b\", \"jev-latest\"]",
        "models = []",
        &["19: key.models: a key that may ask no model; name one, or leave models out to allow all"],
    );
}

#[test]
fn a_member_uses_a_device_once() {
    let own = "give every executor of a member a device of its own";
    broken(
        "\"cpu:0-3\"",
        "\"cpu:0\", \"cpu:*\"",
        &[&format!("53: member.devices: cpu:* overlaps cpu:0 at line 53; {own}")],
    );
    for (first, second) in [("cuda:0", "cuda:0"), ("cuda:0", "cuda:*"), ("cpu:0-3", "cpu:3-4")] {
        broken(
            "\"cuda:0\", \"cuda:1\"",
            &format!("\"{first}\", \"{second}\""),
            &[&format!("38: member.devices: {second} overlaps {first} at line 38; {own}")],
        );
    }
}

#[test]
fn members_may_share_devices_but_hear_of_shared_cores() {
    good(&FULL.replace("\"cpu:0-3\"", "\"cuda:0\""));
    let (_, warnings) = read(&FULL.replace("[\"cuda:0\", \"cuda:1\"]", "[\"cpu:3\"]")).unwrap();
    let warnings: Vec<_> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        ["etc/synod.toml:53: member.devices: cpu:0-3 overlaps cpu:3 at line 38; \
          both members run, each slower while the other is busy"]
    );
}

#[test]
fn an_open_server_is_asked_for() {
    let text = |server: &str| format!("[server]\n{server}\n{LEAST}");
    let advice = "add a key, bind to 127.0.0.1, or set server.open = true";
    for bind in ["0.0.0.0:1", "[::]:1", "192.168.0.1:1"] {
        refused(
            &text(&format!("bind = \"{bind}\"")),
            &[&format!("2: server.bind: {bind} is open to other machines and there is no [[key]]; {advice}")],
        );
        assert!(good(&text(&format!("bind = \"{bind}\"\nopen = true"))).server.open);
    }
    for bind in ["127.0.0.2:1", "[::1]:1"] {
        good(&text(&format!("bind = \"{bind}\"")));
    }
}

#[test]
fn an_admin_address_that_others_reach_is_warned_of() {
    let warnings = |admin: &str| {
        let (_, warnings) = read(&format!("[server]\nadmin = \"{admin}\"\n{LEAST}")).unwrap();
        warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(warnings("127.0.0.1:9"), [""; 0]);
    assert_eq!(
        warnings("0.0.0.0:9"),
        ["etc/synod.toml:2: server.admin: 0.0.0.0:9 asks for no key: who reaches it may load the deployment again; \
          let only the machines of your operators reach it"]
    );
}

#[test]
fn addresses_and_queues_must_agree_with_themselves() {
    broken(
        "admin = \"127.0.0.1:8101\"",
        "admin = \"0.0.0.0:8100\"",
        &["3: server.admin: the same address as server.bind; give another port, or leave it out"],
    );
    broken(
        "batch_tokens = 0x1000",
        "batch_tokens = 100_001",
        &[
            "30: queue.batch_tokens: 100001 is above max_tokens, 100000; a batch holds no more than the queue: lower it or raise max_tokens",
        ],
    );
}

#[test]
fn paths_start_at_the_file_and_must_exist() {
    let exists = |path: &Path| path != Path::new("etc/bundle") && path != Path::new("/cases");
    let error = Deployment::from_toml_with(FULL, Path::new("etc/synod.toml"), exists).unwrap_err().to_string();
    let advice = "correct the path; a relative one starts at this file's folder";
    assert_eq!(
        error,
        format!(
            "etc/synod.toml:35: member.path: nothing is at etc/bundle; {advice}\n\
             etc/synod.toml:43: member.replay: nothing is at /cases; {advice}"
        )
    );
    // The file system itself is asked unless a caller brings an answer.
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("x.toml");
    assert!(Deployment::from_toml(&LEAST.replace("\"m\"", "\"src\""), &file).is_ok());
    assert!(Deployment::from_toml(LEAST, &file).is_err());
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let error = Deployment::load(Path::new("no/such.toml")).unwrap_err().to_string();
    assert_eq!(
        error,
        "no/such.toml: cannot be read: No such file or directory (os error 2); give the path of a deployment file"
    );
}

#[test]
fn every_problem_is_reported_at_once_in_order() {
    let text = FULL.replace("workers = 4", "workers = 0").replace("\"report\"", "7").replace("cpu:0-3", "tpu");
    let error = read(&text).unwrap_err().to_string();
    let lines: Vec<_> = error.lines().map(|line| line.split(": ").take(2).collect::<Vec<_>>().join(": ")).collect();
    assert_eq!(
        lines,
        ["etc/synod.toml:4: server.workers", "etc/synod.toml:45: member.on_drift", "etc/synod.toml:53: member.devices"]
    );
}

#[test]
fn ready_deployments_are_valid() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/deployments"));
    let mut read = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        let text = std::fs::read_to_string(&file).unwrap();
        let (_, warnings) =
            Deployment::from_toml_with(&text, &file, |_| true).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(warnings, []);
        read += 1;
    }
    assert!(read >= 2);
}
