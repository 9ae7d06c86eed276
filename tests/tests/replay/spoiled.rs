//! The ways to spoil a recording, and how each is told.

use serde_json::{Value, json};

/// One way.
pub(crate) struct Spoiled {
    /// Of its file.
    pub(crate) name: &'static str,
    /// The case below `tests/fixtures`.
    pub(crate) base: &'static str,
    pub(crate) spoil: Spoil,
    /// How the result begins.
    pub(crate) expected: &'static str,
}

/// What is done to the file.
pub(crate) enum Spoil {
    Json(fn(&mut Value)),
    Text(fn(&str) -> String),
}

impl Spoil {
    pub(crate) fn apply(&self, original: &str) -> String {
        match self {
            Spoil::Text(spoil) => spoil(original),
            Spoil::Json(spoil) => {
                let mut case: Value = serde_json::from_str(original).expect("a fixture is JSON");
                spoil(&mut case);
                case.to_string()
            }
        }
    }
}

const GOLDEN: &str = "vela/tiny-08b/golden";
const WINDOWS: &str = "vela/tiny-08b/windows-gate";
const REFUSED: &str = "vela/tiny-08b/bad-questions";
const HEADS: &str = "heads/tiny-08b/golden";
const EMPTY_WINDOW: &str = "heads/tiny-08b/windows-long-word";

const fn json(name: &'static str, base: &'static str, spoil: fn(&mut Value), expected: &'static str) -> Spoiled {
    Spoiled { name, base, spoil: Spoil::Json(spoil), expected }
}

const fn text(name: &'static str, spoil: fn(&str) -> String, expected: &'static str) -> Spoiled {
    Spoiled { name, base: GOLDEN, spoil: Spoil::Text(spoil), expected }
}

fn at<'a>(case: &'a mut Value, pointer: &str) -> &'a mut Value {
    case.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer} is not in the case"))
}

fn list<'a>(case: &'a mut Value, pointer: &str) -> &'a mut Vec<Value> {
    at(case, pointer).as_array_mut().unwrap_or_else(|| panic!("{pointer} is no list"))
}

fn remove(case: &mut Value, pointer: &str, key: &str) {
    let removed = at(case, pointer).as_object_mut().and_then(|object| object.shift_remove(key));
    removed.unwrap_or_else(|| panic!("{key} is not in {pointer}"));
}

fn insert(case: &mut Value, pointer: &str, key: &str, value: Value) {
    at(case, pointer).as_object_mut().expect("an object").insert(key.to_owned(), value);
}

fn add(case: &mut Value, pointer: &str, more: f64) {
    let value = at(case, pointer);
    *value = json!(value.as_f64().expect("a number") + more);
}

fn increment(case: &mut Value, pointer: &str) {
    let value = at(case, pointer);
    *value = json!(value.as_u64().expect("a count") + 1);
}

/// Changes the response and the text beside it alike.
fn respond(case: &mut Value, spoil: fn(&mut Value)) {
    spoil(at(case, "/response"));
    case["response_text"] = json!(case["response"].to_string());
}

/// The last member of an object put first.
fn rotate(object: &mut Value) {
    let object = object.as_object_mut().expect("an object");
    let first = object.keys().next().expect("a member").clone();
    let value = object.shift_remove(&first).expect("it is there");
    object.insert(first, value);
}

pub(crate) const SPOILED: &[Spoiled] = &[
    // What is no case at all.
    text("cut-off", |text| text[..text.len() / 2].to_owned(), "expected a recorded case, found other content: EOF"),
    text("nothing", |_| String::new(), "expected a recorded case, found other content: EOF"),
    text("nan-token", |text| text.replacen("-2.1140184", "NaN", 1), "expected a recorded case, found other content"),
    json(
        "key-misspelt",
        HEADS,
        |case| {
            let inputs = case["head_inputs"].take();
            remove(case, "", "head_inputs");
            insert(case, "", "head_input", inputs);
        },
        "expected a recorded case, found other content: unknown field `head_input`",
    ),
    json("margin-null", GOLDEN, |case| *at(case, "/margin/value") = Value::Null, "expected a recorded case"),
    json("margin-below-nothing", GOLDEN, |case| *at(case, "/margin/value") = json!(-0.1), "margin.value: expected a"),
    json(
        "no-trees",
        GOLDEN,
        |case| remove(case, "", "trees"),
        "trees: expected one of an answered request, found none",
    ),
    json("no-response", GOLDEN, |case| remove(case, "", "response"), "response: expected one"),
    // Arrays of logits.
    json(
        "nan-as-null",
        GOLDEN,
        |case| *at(case, "/logits/domain/0/values/2") = Value::Null,
        "logits.domain, row 0: option 2: expected a finite number, found NaN",
    ),
    json(
        "nan-as-text",
        GOLDEN,
        |case| *at(case, "/logits/pii/0/values/3/2") = json!("NaN"),
        "logits.pii, row 0: word 3, label 2: expected a finite number, found NaN",
    ),
    json(
        "all-nan",
        GOLDEN,
        |case| list(case, "/logits/domain/0/values").fill(Value::Null),
        "logits.domain, row 0: option 0: expected a finite number, found NaN",
    ),
    json(
        "infinite",
        GOLDEN,
        |case| *at(case, "/logits/urgency/0/values/1") = json!(-1e39),
        "logits.urgency, row 0: option 1: expected a finite number, found -inf",
    ),
    json(
        "truncated",
        GOLDEN,
        |case| {
            list(case, "/logits/domain/0/values").pop();
        },
        "logits.domain, row 0: expected 4 values, found 3",
    ),
    json(
        "empty",
        GOLDEN,
        |case| list(case, "/logits/domain/0/values").clear(),
        "logits.domain, row 0: expected 4 values, found 0",
    ),
    json(
        "word-truncated",
        GOLDEN,
        |case| {
            list(case, "/logits/pii/0/values/5").pop();
        },
        "logits.pii, row 0: word 5: expected 17 values, found 16",
    ),
    json(
        "word-missing",
        GOLDEN,
        |case| {
            list(case, "/logits/pii/0/values").pop();
        },
        "logits.pii, row 0: expected 23 words, found 22",
    ),
    json(
        "flat",
        GOLDEN,
        |case| *at(case, "/logits/halu/0/values") = json!(vec![0.5; 13]),
        "logits.halu, row 1: expected a list per word",
    ),
    json(
        "nested",
        GOLDEN,
        |case| *at(case, "/logits/domain/0/values") = json!([[0.5], [0.5], [0.5], [0.5]]),
        "logits.domain, row 0: expected a number per option",
    ),
    json(
        "extra-value",
        GOLDEN,
        |case| list(case, "/logits/domain/0/values").push(json!(0.5)),
        "logits.domain, row 0: expected 4 values, found 5",
    ),
    json(
        "options-reordered",
        GOLDEN,
        |case| list(case, "/logits/domain/0/values").swap(0, 2),
        "response.answers.domain.choice: expected \"health\", found \"other\"",
    ),
    json(
        "logit-beyond-the-gate",
        GOLDEN,
        |case| add(case, "/logits/jailbreak/0/values/2", 1e-3),
        "logits.jailbreak, row 0: option 2: expected ",
    ),
    // Calls: each consumed exactly once.
    json(
        "question-extra",
        GOLDEN,
        |case| {
            let more = case["logits"]["domain"].clone();
            insert(case, "/logits", "ghost", more);
        },
        "logits: expected only questions that the trees read, found question ghost",
    ),
    json(
        "question-missing",
        GOLDEN,
        |case| remove(case, "/logits", "halu"),
        "logits: expected question halu, found none",
    ),
    json(
        "question-missing-everywhere",
        GOLDEN,
        |case| {
            remove(case, "/logits", "halu");
            list(case, "/trees").pop();
        },
        "trees: expected 1 items, found 2 items",
    ),
    json(
        "call-duplicated",
        GOLDEN,
        |case| {
            let call = case["logits"]["halu"][0].clone();
            list(case, "/logits/halu").push(call);
        },
        "logits.halu: expected 1 calls, found 2",
    ),
    text(
        "question-duplicated",
        |text| {
            text.replacen(
                "\"logits\": {",
                "\"logits\": {\"urgency\": [{\"row\": 0, \"window\": null, \"values\": [1, 2, 3]}],",
                1,
            )
        },
        "logits.urgency: expected the question once, found it twice",
    ),
    json(
        "call-of-another-row",
        GOLDEN,
        |case| increment(case, "/logits/domain/0/row"),
        "logits.domain: expected row 0, found row 1",
    ),
    json(
        "windows-swapped",
        WINDOWS,
        |case| {
            let question = case["logits"].as_object().expect("an object").keys().next().expect("a question").clone();
            list(case, &format!("/logits/{question}")).swap(0, 1);
        },
        "logits.pii: expected row 0, window [",
    ),
    json(
        "replaced-without-windows",
        GOLDEN,
        |case| {
            *at(case, "/trees/0/blocks/0/replaced_by_windows") = json!(true);
        },
        "logits: expected only questions that the trees read, found question domain",
    ),
    // The token plan.
    json("trees-swapped", GOLDEN, |case| list(case, "/trees").swap(0, 1), "trees[0].row: expected 1, found 0"),
    json("prefix-id", GOLDEN, |case| increment(case, "/trees/0/prefix/7"), "trees[0].prefix[7]: expected "),
    json("block-id", GOLDEN, |case| increment(case, "/trees/0/blocks/1/ids/3"), "trees[0].blocks[1].ids[3]: expected "),
    json(
        "readout",
        GOLDEN,
        |case| increment(case, "/trees/0/blocks/0/ends/1"),
        "trees[0].blocks[0].ends[1]: expected ",
    ),
    json(
        "readout-outside",
        GOLDEN,
        |case| *at(case, "/trees/0/blocks/0/ends/1") = json!(9000),
        "trees[0], question domain: expected a piece in a block of 164 tokens",
    ),
    json(
        "word-read-elsewhere",
        GOLDEN,
        |case| increment(case, "/trees/1/blocks/0/words/0/1"),
        "trees[1].blocks[0].words[0][1]: expected ",
    ),
    json(
        "window-moved",
        WINDOWS,
        |case| {
            let window = case["trees"].as_array().expect("a list").iter().position(|tree| !tree["window"].is_null());
            let last = format!("/trees/{}/kept/user", window.expect("a window"));
            increment(case, &last);
        },
        "trees[",
    ),
    json("truncation", GOLDEN, |case| increment(case, "/trees/0/truncation/budget"), "trees[0].truncation.budget"),
    json("part-id", GOLDEN, |case| increment(case, "/parts/0/ids/3"), "parts[0].ids[3]: expected "),
    json("part-word", GOLDEN, |case| increment(case, "/parts/1/words/2/1"), "parts[1].words[2][1]: expected "),
    json(
        "labels-reordered",
        GOLDEN,
        |case| list(case, "/questions/0/shown").swap(0, 1),
        "questions[0].shown[0][0]: expected \"math\", found \"health\"",
    ),
    json(
        "other-head",
        GOLDEN,
        |case| {
            *at(case, "/trees/1/blocks/0/head") = json!("broad");
            *at(case, "/questions/5/head") = json!("broad");
        },
        "questions[5].head: expected \"broad\", found \"router\"",
    ),
    json(
        "request-changed",
        GOLDEN,
        |case| insert(case, "/request/questions/domain", "over", json!("answer")),
        "request_text.questions.domain.over: expected \"answer\", found \"request\"",
    ),
    json(
        "another-request",
        GOLDEN,
        |case| {
            insert(case, "/request/questions/domain", "over", json!("answer"));
            case["request_text"] = json!(case["request"].to_string());
        },
        "questions[0].roles[0]: expected \"user\", found \"answer\"",
    ),
    json(
        "another-member",
        GOLDEN,
        |case| case["member"] = json!("vllm-sr/Vela-2.0-4B"),
        "member: expected a case of fixtures/tiny-08b, found one of vllm-sr/Vela-2.0-4B",
    ),
    // The response.
    json(
        "decision",
        GOLDEN,
        |case| respond(case, |response| response["answers"]["domain"]["choice"] = json!("math")),
        "response.answers.domain.choice: expected \"math\", found \"health\"",
    ),
    json(
        "response-labels-reordered",
        GOLDEN,
        |case| {
            respond(case, |response| rotate(&mut response["answers"]["domain"]["probabilities"]));
        },
        "response.answers.domain.probabilities: expected key \"math\", found key \"health\"",
    ),
    json(
        "answers-reordered",
        GOLDEN,
        |case| respond(case, |response| rotate(&mut response["answers"])),
        "response.answers: expected key \"jailbreak\", found key \"domain\"",
    ),
    json(
        "number",
        GOLDEN,
        |case| respond(case, |response| add(response, "/answers/jailbreak/noul", 1e-5)),
        "response.answers.jailbreak.noul: expected ",
    ),
    json(
        "set",
        GOLDEN,
        |case| respond(case, |response| list(response, "/sets/topics/selected").push(json!("billing"))),
        "response.sets.topics.selected: expected 1 items, found 0 items",
    ),
    json(
        "span-missing",
        GOLDEN,
        |case| {
            respond(case, |response| {
                list(response, "/spans/pii").pop();
            });
        },
        "response.spans.pii: expected 4 items, found 5 items",
    ),
    json(
        "span-label",
        GOLDEN,
        |case| respond(case, |response| response["spans"]["pii"][1]["label"] = json!("url-")),
        "response.spans.pii[1].label: expected \"url-\", found ",
    ),
    json(
        "span-end",
        GOLDEN,
        |case| respond(case, |response| increment(response, "/spans/pii/0/end")),
        "response.spans.pii[0].end: expected 6, found 5",
    ),
    json(
        "spans-reordered",
        GOLDEN,
        |case| respond(case, |response| list(response, "/spans/pii").swap(0, 1)),
        "response.spans.pii[0].",
    ),
    json(
        "tokens",
        GOLDEN,
        |case| respond(case, |response| increment(response, "/usage/input_tokens")),
        "response.usage.input_tokens: expected 1239, found 1238",
    ),
    json(
        "response-and-text",
        GOLDEN,
        |case| *at(case, "/response/usage/input_tokens") = json!(1239),
        "response_text.usage.input_tokens: expected 1239, found 1238",
    ),
    text(
        "response-key-twice",
        |text| text.replacen("{\\\"model\\\":", "{\\\"model\\\":\\\"x\\\",\\\"model\\\":", 1),
        "response_text: expected JSON as Python writes it",
    ),
    // Refusals.
    json(
        "refused-status",
        REFUSED,
        |case| *at(case, "/error/status") = json!(413),
        "error.status: expected 413, found 422",
    ),
    json(
        "refused-detail",
        REFUSED,
        |case| *at(case, "/error/detail/0/msg") = json!("is wrong"),
        "error.detail[0].msg: expected \"is wrong\"",
    ),
    json(
        "refused-detail-missing",
        REFUSED,
        |case| {
            list(case, "/error/detail").pop();
        },
        "error.detail: expected ",
    ),
    json(
        "refused-and-answered",
        REFUSED,
        |case| insert(case, "", "response", json!({})),
        "response: expected none beside an error, found one",
    ),
    json(
        "not-refused",
        GOLDEN,
        |case| {
            for key in ["trees", "margin", "logits", "response", "response_text"] {
                remove(case, "", key);
            }
            insert(case, "", "error", json!({"status": 422, "detail": []}));
        },
        "error: expected a refusal with status 422, found an answer",
    ),
    json(
        "trees-of-a-refusal",
        REFUSED,
        |case| insert(case, "", "trees", json!([])),
        "trees: expected none beside an error, found one",
    ),
    json(
        "margin-of-a-refusal",
        REFUSED,
        |case| insert(case, "", "margin", json!({"value": 1.0, "question": "q"})),
        "margin: expected none beside an error, found one",
    ),
    json(
        "wrongly-answered",
        REFUSED,
        |case| {
            let golden: Value =
                serde_json::from_str(&synod_tests::fixtures::text(&format!("{GOLDEN}.json"))).expect("JSON");
            remove(case, "", "error");
            for key in ["questions", "trees", "logits", "response", "response_text"] {
                insert(case, "", key, golden[key].clone());
            }
        },
        "response: expected an answer, found a refusal: {",
    ),
    // Head inputs.
    json(
        "head-input-nan",
        HEADS,
        |case| *at(case, "/head_inputs/domain/0/query/5") = Value::Null,
        "head_inputs.domain, row 0: query 0: expected finite numbers, found NaN",
    ),
    json(
        "head-input-truncated",
        HEADS,
        |case| {
            list(case, "/head_inputs/pii/0/words/3").pop();
        },
        "head_inputs.pii, row 0: word 3: expected 128 values, found 127",
    ),
    json(
        "head-input-missing",
        HEADS,
        |case| {
            list(case, "/head_inputs/pii/0/labels").pop();
        },
        "head_inputs.pii, row 0: expected 17 states, one per label, found 16",
    ),
    json(
        "head-input-extra",
        HEADS,
        |case| {
            let state = case["head_inputs"]["domain"][0]["options"][0].clone();
            list(case, "/head_inputs/domain/0/options").push(state);
        },
        "head_inputs.domain, row 0: expected 4 states, one per option, found 5",
    ),
    json(
        "head-inputs-swapped",
        HEADS,
        |case| list(case, "/head_inputs/domain/0/options").swap(0, 1),
        "head_inputs.domain, row 0: option 0: expected ",
    ),
    json(
        "head-inputs-of-words",
        HEADS,
        |case| {
            let words = case["head_inputs"]["domain"][0]["options"].take();
            remove(case, "/head_inputs/domain/0", "options");
            insert(case, "/head_inputs/domain/0", "words", words);
        },
        "head_inputs.domain, row 0: expected options and query, found other keys",
    ),
    json(
        "head-input-question",
        HEADS,
        |case| remove(case, "/head_inputs", "topics"),
        "head_inputs: expected question topics, found none",
    ),
    json(
        "head-input-duplicated",
        HEADS,
        |case| {
            let call = case["head_inputs"]["pii"][0].clone();
            list(case, "/head_inputs/pii").push(call);
        },
        "head_inputs.pii: expected 1 calls, found 2",
    ),
    json(
        "head-input-narrow",
        HEADS,
        |case| {
            for state in list(case, "/head_inputs/urgency/0/options") {
                state.as_array_mut().expect("a state").pop();
            }
            list(case, "/head_inputs/urgency/0/query").pop();
        },
        "head_inputs.urgency, row 0: expected logits, found an error: head inputs: expected [3, 128] values, found 381",
    ),
    json(
        "head-input-unread",
        EMPTY_WINDOW,
        |case| {
            let calls = list(case, "/head_inputs/who");
            let unread = calls.iter_mut().find(|call| call["words"] == json!([])).expect("a window without words");
            unread["words"] = json!([[0.5]]);
        },
        "head_inputs.who, row 0, window [",
    ),
];
