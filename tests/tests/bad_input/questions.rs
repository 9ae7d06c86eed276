//! Bad questions: the rows of `questions.txt`, and those that are too large to write down.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::{Expected, NOUL, Row, entry, with_question, with_questions};

pub(crate) fn rows() -> Vec<Row> {
    written().chain(counted()).chain(several()).chain(accepted()).collect()
}

/// One row per line of the table.
fn written() -> impl Iterator<Item = Row> {
    include_str!("questions.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(|line| {
        let columns: Vec<&str> = line.split(" | ").collect();
        let [rule, question, loc, kind, msg] = columns[..] else { panic!("not five columns: {line}") };
        let loc = serde_json::from_str(loc).unwrap_or_else(|error| panic!("{rule}: {error}"));
        in_question(rule, &with_question(question), &loc, kind, msg)
    })
}

/// A row that is refused with one entry below the question `q`.
fn in_question(rule: &str, body: &str, loc: &Value, kind: &str, msg: &str) -> Row {
    let steps = loc.as_array().expect("a loc is an array").iter().cloned();
    let loc = [json!("questions"), json!("q")].into_iter().chain(steps).collect();
    Row::new(rule, body, Expected::Entries(vec![entry(loc, kind, msg)]))
}

/// A question of `kind` with as many options or labels.
fn with_options(kind: &str, count: usize) -> String {
    let options: Vec<String> = (0..count).map(|i| format!("\"{i}\":null")).collect();
    with_question(&format!(r#"{{"type":"{kind}","instructions":"Which?","criteria":{{{}}}}}"#, options.join(",")))
}

fn counted() -> Vec<Row> {
    let criteria = json!(["criteria"]);
    let digits =
        format!(r#"{{"type":"set","instructions":"Which?","labels":[{{"key":"a"}}],"threshold":{}}}"#, "9".repeat(400));
    vec![
        in_question("256 options", &with_options("choice", 256), &criteria, "too_long", "takes at most 255"),
        in_question("256 labels of a set", &with_options("set", 256), &criteria, "too_long", "takes at most 255"),
        in_question("256 labels of a span", &with_options("span", 256), &criteria, "too_long", "takes at most 255"),
        in_question(
            "a threshold of 400 digits",
            &with_question(&digits),
            &json!(["threshold"]),
            "range",
            "must lie in [0, 1]",
        ),
        Row::new("questions that alone do not fit", too_long(), Expected::Error(413, "too_long")),
    ]
}

/// A choice whose options alone take more than the 4,096 tokens of the member.
fn too_long() -> String {
    let mut options = String::new();
    for i in 0..200 {
        let comma = if i == 0 { "" } else { "," };
        let _ = write!(options, "{comma}\"option {i}\":\"{}\"", "a long description ".repeat(8));
    }
    with_question(&format!(r#"{{"type":"choice","instructions":"Which?","criteria":{{{options}}}}}"#))
}

fn several() -> Vec<Row> {
    let set = r#"{"type":"set","instructions":"Which?","criteria":{"a":null}}"#;
    let taken = with_questions(&format!(r#"{{"q":{set},"q.a":{NOUL}}}"#));
    let two = with_questions(&format!(r#"{{"z":1,"good":{NOUL},"a":{{}}}}"#));
    let two_entries = vec![
        entry(json!(["questions", "z"]), "dict_type", "must be an object"),
        entry(json!(["questions", "a", "type"]), "missing", "is required"),
    ];
    let broad = with_question(r#"{"type":"span","instructions":"Mark.","criteria":{"a":null},"head":"broad"}"#);
    vec![
        in_question(
            "a label whose answer is a question",
            &taken,
            &json!(["criteria"]),
            "name_taken",
            "q.a is already a question",
        ),
        in_question(
            "a broad head on a member without one",
            &broad.replace("tiny-08b", "tiny-router"),
            &json!(["head"]),
            "unsupported",
            "this member has no broad head",
        ),
        Row::new("one entry per invalid question, in order", two, Expected::Entries(two_entries)),
    ]
}

fn accepted() -> Vec<Row> {
    let nulls = r#"{"type":"noul","instructions":"Is it?","criteria":null,"choices":null,"over":null,"preset":null}"#;
    let set = |threshold| {
        format!(r#"{{"type":"set","instructions":"Which?","criteria":{{"x":null}},"threshold":{threshold}}}"#)
    };
    let ends = with_questions(&format!(r#"{{"a":{},"b":{}}}"#, set("0"), set("1")));
    vec![
        Row::new("null optional fields", with_question(nulls), Expected::Accepted),
        Row::new("255 options", with_options("choice", 255), Expected::Accepted),
        Row::new("thresholds at the ends", ends, Expected::Accepted),
    ]
}
