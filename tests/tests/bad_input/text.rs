//! Bodies that are not JSON as the specification means it (400), and odd ones that are.

use serde_json::Value;

use crate::{Expected, NOUL, Row, nested, with_questions, with_state};

pub(crate) fn rows() -> Vec<Row> {
    [documents(), numbers(), strings(), depth(), accepted()].into_iter().flatten().collect()
}

fn bad(rule: &str, body: impl Into<Vec<u8>>) -> Row {
    Row::new(rule, body, Expected::Error(400, "invalid_json"))
}

/// A body whose state, JSON text, spoils it.
fn bad_state(rule: &str, state: &str) -> Row {
    bad(rule, with_state(state))
}

fn documents() -> Vec<Row> {
    let good = with_state("\"late\"");
    vec![
        bad("no body", ""),
        bad("white space only", " \n\t"),
        bad("not JSON", "hello"),
        bad("truncated in an object", &good[..good.len() - 2]),
        bad("truncated in a string", &good[..good.find("ate").expect("the state is late")]),
        bad("trailing text", format!("{good}x")),
        bad("two documents", good.repeat(2)),
        bad("byte order mark", format!("\u{feff}{good}")),
        bad("UTF-16", good.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>()),
        bad_state("single quotes", "'late'"),
        bad_state("a trailing comma", "[1,]"),
        bad_state("a comment", "[1/* one */]"),
        bad_state("a key without quotes", "{a:1}"),
        bad_state("a missing colon", r#"{"a" 1}"#),
        bad_state("Python's None", "None"),
    ]
}

fn numbers() -> Vec<Row> {
    vec![
        bad_state("NaN", "[NaN]"),
        bad_state("Infinity", "[Infinity]"),
        bad_state("-Infinity", "[-Infinity]"),
        bad_state("a number beyond float64", "[1e999]"),
        bad_state("a negative number beyond float64", "[-1.5e400]"),
        bad_state("an integer of 4,301 digits", &format!("[{}]", "7".repeat(4301))),
        bad_state("a leading zero", "[01]"),
        bad_state("a leading plus", "[+1]"),
        bad_state("a number without integer part", "[.5]"),
        bad_state("a number without fraction digits", "[1.]"),
        bad_state("a hexadecimal number", "[0x10]"),
    ]
}

fn strings() -> Vec<Row> {
    let bytes = |text: &[u8]| [b"{\"state\":\"", text, b"\",\"questions\":{}}"].concat();
    vec![
        bad("not UTF-8", bytes(&[0xff, 0xfe])),
        bad("an overlong UTF-8 sequence", bytes(&[0xc0, 0x80])),
        bad("a surrogate in UTF-8", bytes(&[0xed, 0xa0, 0x80])),
        bad("a truncated UTF-8 sequence", bytes(&[0xe2, 0x82])),
        bad_state("a lone high surrogate escape", r#""\ud800""#),
        bad_state("a lone low surrogate escape", r#""a\udc00b""#),
        bad_state("surrogates in the wrong order", r#""\udc00\ud800""#),
        bad("a lone surrogate in a key", with_questions(&format!(r#"{{"\ud83d":{NOUL}}}"#))),
        bad_state("an unknown escape", r#""\x41""#),
        bad_state("a short unicode escape", r#""\u12""#),
        bad_state("a raw control character in a string", "\"a\u{1}b\""),
        bad_state("a raw line break in a string", "\"a\nb\""),
    ]
}

fn depth() -> Vec<Row> {
    vec![
        // The body and its state are two of the levels.
        bad_state("depth 129", &nested(128)),
        bad_state("depth 10,000", &nested(10_000)),
        bad("depth 10,000, never closed", "[".repeat(10_000)),
        bad("depth 10,000 of objects", format!("{}1{}", r#"{"a":"#.repeat(10_000), "}".repeat(10_000))),
    ]
}

/// What looks wrong and is not. A string state that is not JSON by these rules is plain text.
fn accepted() -> Vec<Row> {
    let row = |rule: &str, body: String| Row::new(rule, body, Expected::Accepted);
    let text_state = |rule: &str, text: String| row(rule, with_state(&Value::from(text).to_string()));
    vec![
        row("duplicate keys: the last wins", with_state("\"late\"").replacen('{', r#"{"state":17,"model":3,"#, 1)),
        row("an integer of 4,300 digits", with_state(&format!("[{}]", "7".repeat(4300)))),
        row("depth 128", with_state(&nested(127))),
        row("an escaped surrogate pair", with_state(r#""\ud83d\ude00""#)),
        row("white space around the body", format!(" \r\n\t{}\n", with_state("\"late\""))),
        text_state("a string state with deep JSON is text", format!("{{\"a\":{}}}", nested(200))),
        text_state("a string state with 4,301 digits is text", format!("{{\"a\":{}}}", "7".repeat(4301))),
        text_state("a string state with a lone surrogate escape is text", r#"{"a":"\ud800"}"#.to_owned()),
        text_state("a string state with NaN is text", r#"{"a":NaN}"#.to_owned()),
    ]
}
