//! The fields outside the questions, and the questions as a whole.

use serde_json::{Value, json};

use crate::{Expected, NOUL, Row, entry, with_questions, with_state};

pub(crate) fn rows() -> Vec<Row> {
    [body(), states(), question_maps(), options()].into_iter().flatten().collect()
}

fn bad(rule: &str, body: impl Into<Vec<u8>>, loc: Value, kind: &str) -> Row {
    Row::new(rule, body, Expected::Entries(vec![entry(loc, kind, "")]))
}

/// A good body with this member in front (JSON text).
fn with(member: &str) -> String {
    with_state("\"late\"").replacen('{', &format!("{{{member},"), 1)
}

fn body() -> Vec<Row> {
    let both = vec![entry(json!(["state"]), "missing", ""), entry(json!(["questions"]), "missing", "")];
    let states = [vec![entry(json!(["states"]), "extra_forbidden", "")], both.clone()].concat();
    vec![
        bad("an array for a body", "[]", json!([]), "dict_type"),
        bad("a string for a body", "\"late\"", json!([]), "dict_type"),
        bad("null for a body", "null", json!([]), "dict_type"),
        Row::new("an empty object", "{}", Expected::Entries(both)),
        bad("no state", format!(r#"{{"questions":{{"q":{NOUL}}}}}"#), json!(["state"]), "missing"),
        bad("no questions", r#"{"state":"late"}"#, json!(["questions"]), "missing"),
        Row::new("several states", r#"{"states":{"a":{}}}"#, Expected::Entries(states)),
        Row::new(
            "an unknown field beside an invalid question",
            with_questions(r#"{"q":{}}"#).replacen('{', r#"{"stream":true,"#, 1),
            Expected::Entries(vec![
                entry(json!(["stream"]), "extra_forbidden", ""),
                entry(json!(["questions", "q", "type"]), "missing", ""),
            ]),
        ),
        bad("an unknown field", with(r#""stream":true"#), json!(["stream"]), "extra_forbidden"),
        bad(
            "a model that is a number",
            with_state("\"late\"").replace("\"tiny-08b\"", "3"),
            json!(["model"]),
            "string_type",
        ),
    ]
}

fn states() -> Vec<Row> {
    let bad = |rule: &str, state: &str, kind, msg| {
        Row::new(rule, with_state(state), Expected::Entries(vec![entry(json!(["state"]), kind, msg)]))
    };
    let kinds = "the state must be a string, an object or an array";
    vec![
        bad("a null state", "null", "type", kinds),
        bad("a number for a state", "17", "type", kinds),
        bad("a boolean for a state", "true", "type", kinds),
        bad("an empty state", r#""""#, "blank", "the state is blank"),
        bad("a state of Python's white space", r#"" \u001c\u3000\n""#, "blank", "the state is blank"),
        bad("a state object without keys", "{}", "empty_object", "the state object has no keys"),
        bad("a state object without keys, in a string", r#"" {} ""#, "empty_object", "the state object has no keys"),
        bad("a blank part", r#"{"answer":"a","document":" "}"#, "blank_part", "the context part is blank"),
        Row::new("an empty array for a state", with_state("[]"), Expected::Accepted),
    ]
}

fn question_maps() -> Vec<Row> {
    let questions = json!(["questions"]);
    let id = |length: usize| "i".repeat(length);
    let named = |id: &str| with_questions(&format!("{{\"{id}\":{NOUL}}}"));
    let many: Vec<String> = (0..257).map(|i| format!("\"{i}\":{NOUL}")).collect();
    vec![
        bad("null for questions", with_questions("null"), questions.clone(), "dict_type"),
        bad("an array for questions", with_questions(&format!("[{NOUL}]")), questions.clone(), "dict_type"),
        bad("no question", with_questions("{}"), questions.clone(), "too_short"),
        bad("257 questions", with_questions(&format!("{{{}}}", many.join(","))), questions, "too_long"),
        bad("a question id of 257 characters", named(&id(257)), json!(["questions", id(257)]), "too_long"),
        Row::new("a question id of 256 characters", named(&id(256)), Expected::Accepted),
    ]
}

fn options() -> Vec<Row> {
    let deadline = || json!(["options", "deadline_ms"]);
    vec![
        bad("options that are no object", with(r#""options":[]"#), json!(["options"]), "dict_type"),
        bad("an unknown option", with(r#""options":{"seed":1}"#), json!(["options", "seed"]), "extra_forbidden"),
        bad("a deadline that is no number", with(r#""options":{"deadline_ms":"soon"}"#), deadline(), "float_type"),
        bad("a deadline of nothing", with(r#""options":{"deadline_ms":0}"#), deadline(), "range"),
        bad("a deadline in the past", with(r#""options":{"deadline_ms":-1}"#), deadline(), "range"),
        bad("a deadline that is a boolean", with(r#""options":{"deadline_ms":true}"#), deadline(), "float_type"),
    ]
}
