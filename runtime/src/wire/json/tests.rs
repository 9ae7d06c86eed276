use std::fs;
use std::path::{Path, PathBuf};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::wire::canonical::{canonical, compact};

fn read(text: &str) -> Value {
    parse_text(text).unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

#[test]
fn scalars() {
    let cases = [
        ("null", Value::Null),
        (" \t\n\rtrue \t\n\r", Value::Bool(true)),
        ("false", Value::Bool(false)),
        ("0", Value::Int("0".into())),
        ("-0", Value::Int("0".into())),
        ("-12", Value::Int("-12".into())),
        ("123456789012345678901234567890", Value::Int("123456789012345678901234567890".into())),
        ("1E5", Value::Float(1e5)),
        ("1e+2", Value::Float(100.0)),
        ("0e999999999999", Value::Float(0.0)),
        ("1e-999999999999", Value::Float(0.0)),
        ("2.5", Value::Float(2.5)),
        ("9007199254740993.0", Value::Float(9_007_199_254_740_992.0)),
        ("1.7976931348623157e308", Value::Float(f64::MAX)),
        (r#""""#, Value::Text(String::new())),
        (r#""a\"\\\/\b\f\n\r\t\u0041\u00e9\uD834\udd1e\u0000""#, Value::Text("a\"\\/\u{8}\u{c}\n\r\tAé𝄞\0".into())),
        ("\"\u{7f}\u{2028}é\"", Value::Text("\u{7f}\u{2028}é".into())),
    ];
    for (text, expected) in cases {
        assert_eq!(read(text), expected, "{text}");
    }
    let Value::Float(zero) = read("-0.0") else { panic!("-0.0 is a float") };
    assert!(zero == 0.0 && zero.is_sign_negative());
}

#[test]
fn integers_have_at_most_4300_digits() {
    let digits = "9".repeat(MAX_INT_DIGITS);
    assert_eq!(read(&digits), Value::Int(digits.clone()));
    assert_eq!(read(&format!("-{digits}")), Value::Int(format!("-{digits}")));
    let error = parse_text(&format!("[-{digits}9]")).unwrap_err();
    assert_eq!(error, JsonError { problem: Problem::IntegerDigits, offset: 1 });
    // Digits of a float are not counted.
    assert_eq!(read(&format!("0.{digits}9")), Value::Float(1.0));
}

#[test]
fn malformed_texts_are_refused_where_they_break() {
    use Problem::*;
    let cases = [
        ("", UnexpectedEnd, 0),
        ("  ", UnexpectedEnd, 2),
        ("\u{feff}1", ByteOrderMark, 0),
        ("\u{a0}1", ExpectedValue, 0),
        ("1 2", TrailingText, 2),
        ("01", TrailingText, 1),
        ("1.", UnexpectedEnd, 2),
        ("1.e5", ExpectedValue, 2),
        (".5", ExpectedValue, 0),
        ("+1", ExpectedValue, 0),
        ("-", UnexpectedEnd, 1),
        ("-a", ExpectedValue, 1),
        ("1e", UnexpectedEnd, 2),
        ("1e+", UnexpectedEnd, 3),
        ("0x10", TrailingText, 1),
        ("1_000", TrailingText, 1),
        ("nul", ExpectedValue, 0),
        ("True", ExpectedValue, 0),
        ("nullx", TrailingText, 4),
        ("[NaN]", NotANumber, 1),
        ("[Infinity]", NotANumber, 1),
        ("[-Infinity]", NotANumber, 1),
        ("[1e309]", FloatRange, 1),
        ("[-1e309]", FloatRange, 1),
        ("[1,]", ExpectedValue, 3),
        ("[1 2]", ExpectedCommaOrBracket, 3),
        ("[1", UnexpectedEnd, 2),
        ("[", UnexpectedEnd, 1),
        ("]", ExpectedValue, 0),
        ("{", UnexpectedEnd, 1),
        ("{a:1}", ExpectedKey, 1),
        ("{'a':1}", ExpectedKey, 1),
        ("{\"a\" 1}", ExpectedColon, 5),
        ("{\"a\":}", ExpectedValue, 5),
        ("{\"a\":1,}", ExpectedKey, 7),
        ("{\"a\":1 \"b\":2}", ExpectedCommaOrBrace, 7),
        ("{\"a\"", UnexpectedEnd, 4),
        ("\"abc", UnexpectedEnd, 4),
        ("\"a\\", UnexpectedEnd, 3),
        ("\"a\nb\"", ControlCharacter, 2),
        ("\"a\u{0}b\"", ControlCharacter, 2),
        ("\"\\x41\"", UnknownEscape, 1),
        ("\"\\u12\"", UnknownEscape, 1),
        ("\"\\u12g4\"", UnknownEscape, 1),
        ("\"\\u+123\"", UnknownEscape, 1),
        ("\"\\u12é\"", UnknownEscape, 1),
        ("\"\\ud800\"", LoneSurrogate, 1),
        ("\"\\udc00\"", LoneSurrogate, 1),
        ("\"\\ud800\\ud800\"", LoneSurrogate, 1),
        ("\"\\ud800\\n\"", LoneSurrogate, 1),
        ("{\"\\udfff\":1}", LoneSurrogate, 2),
        ("// x\n1", ExpectedValue, 0),
    ];
    for (text, problem, offset) in cases {
        assert_eq!(parse_text(text), Err(JsonError { problem, offset }), "{text:?}");
        assert_eq!(parse(text.as_bytes()), Err(JsonError { problem, offset }), "{text:?}");
    }
    for (bytes, offset) in [(&b"\"a\xff\""[..], 2), (b"\xed\xa0\x80", 0), (b"[1]\xc3", 3), (b"\xff\xfe1\0", 0)] {
        assert_eq!(parse(bytes), Err(JsonError { problem: Problem::Utf8, offset }));
    }
}

#[test]
fn errors_are_one_line_and_never_repeat_the_text() {
    let error = parse_text("[\"secret\", secret]").unwrap_err();
    assert_eq!(error.to_string(), "not JSON at byte 11: expected a value");
    let error = parse_with_depth(b"[[[]]]", 2).unwrap_err();
    assert_eq!(error.to_string(), "not JSON at byte 2: nested deeper than 2");
}

#[test]
fn nesting_is_bounded() {
    let nested = |open: &str, close: &str, depth| format!("{}1{}", open.repeat(depth), close.repeat(depth));
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        assert!(parse_text(&nested(open, close, MAX_DEPTH)).is_ok());
        let error = parse_text(&nested(open, close, MAX_DEPTH + 1)).unwrap_err();
        let offset = open.len() * MAX_DEPTH;
        assert_eq!(error, JsonError { problem: Problem::Depth { limit: MAX_DEPTH }, offset });
        for depth in [10_000, 1_000_000] {
            assert_eq!(parse_text(&nested(open, close, depth)).unwrap_err().offset, offset);
            assert_eq!(parse_text(&open.repeat(depth)).unwrap_err().offset, offset);
        }
    }
    // The empty container counts like any other, and siblings do not add up.
    assert!(parse_text(&format!("{}{}", "[".repeat(129), "]".repeat(129))).is_err());
    assert!(parse_text(&format!("[{}]", vec!["[[]]"; 1_000].join(","))).is_ok());
    assert!(parse_with_depth(b"[[]]", 1_000_000).is_ok());
    assert!(parse_with_depth(nested("[", "]", MAX_DEPTH + 1).as_bytes(), 1_000_000).is_err());
}

#[test]
fn duplicate_keys_keep_the_first_place_and_the_last_value() {
    // Both below and above the size from which keys are indexed.
    for extra in [0, 14, 15, 16, 17, 100] {
        let filler = (0..extra).map(|i| format!("\"k{i}\":{i},")).collect::<Vec<_>>().concat();
        let object = read(&format!("{{\"a\":1,\"b\":2,{filler}\"a\":3,\"c\":4,\"b\":5,\"c\":6}}"));
        let object = object.as_object().unwrap();
        assert_eq!(object.len(), extra + 3);
        let keys: Vec<_> = object.keys().collect();
        assert_eq!((keys[0], keys[1], keys[keys.len() - 1]), ("a", "b", "c"));
        let int = |key| object.get(key).cloned();
        assert_eq!(int("a"), Some(Value::Int("3".into())));
        assert_eq!(int("b"), Some(Value::Int("5".into())));
        assert_eq!(int("c"), Some(Value::Int("6".into())));
    }
}

#[test]
fn insert_behaves_as_reading_does() {
    let mut object = Object::new();
    assert!(object.is_empty());
    assert_eq!(object.insert("a".into(), Value::Null), None);
    assert_eq!(object.insert("b".into(), Value::Bool(true)), None);
    assert_eq!(object.insert("a".into(), Value::Bool(false)), Some(Value::Null));
    assert_eq!(compact(&Value::Object(object)), r#"{"a":false,"b":true}"#);
}

/// Would take hours if each key looked at all before it.
#[test]
fn a_million_keys_are_read_once() {
    let text = (0..1_000_000).map(|i| format!("\"{i}\":0,")).collect::<Vec<_>>().concat();
    let object = read(&format!("{{{text}\"0\":1}}"));
    let object = object.as_object().unwrap();
    assert_eq!(object.len(), 1_000_000);
    assert_eq!(object.iter().next(), Some(("0", &Value::Int("1".into()))));
}

#[test]
fn long_strings_are_read() {
    let plain = "x".repeat(10 << 20);
    assert_eq!(read(&format!("\"{plain}\"")), Value::Text(plain));
    let escapes = "\\n".repeat(5 << 20);
    assert_eq!(read(&format!("\"{escapes}\"")), Value::Text("\n".repeat(5 << 20)));
    assert_eq!(parse_text(&format!("\"{escapes}")).unwrap_err().problem, Problem::UnexpectedEnd);
}

/// Every recorded case's file, and some that hold arrays of cases.
fn fixtures() -> Vec<PathBuf> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/vela"));
    let folders = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        folders.flat_map(|folder| fs::read_dir(folder).unwrap()).map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 70, "found {} fixtures", files.len());
    files
}

/// The recorded texts were written by Python: reading and writing them again must give every byte back.
#[test]
fn recorded_texts_survive_reading_and_writing() {
    let (mut requests, mut responses) = (0, 0);
    for path in fixtures() {
        let fixture = parse(&fs::read(&path).unwrap()).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let Some(fixture) = fixture.as_object() else { continue };
        let text = |key| fixture.get(key).and_then(Value::as_str);
        if let Some(text) = text("request_text") {
            assert_eq!(Some(&read(text)), fixture.get("request"), "{}", path.display());
            requests += 1;
        }
        if let Some(text) = text("response_text") {
            let response = read(text);
            assert_eq!(compact(&response), text, "{}", path.display());
            assert_eq!(Some(&response), fixture.get("response"), "{}", path.display());
            responses += 1;
        }
    }
    assert!(requests > 60 && responses > 55, "{requests} requests, {responses} responses");
}

/// Damaged requests are refused or read, never a panic; and what is read is stable under writing.
#[test]
fn damaged_texts_never_panic() {
    let seed = crate::testing::seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let text = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/golden-request.json"));
    let numbers = br#"{"a": [-0, 1.5e-7, 12345678901234567890, "\ud834\udd1e\u00e9\n", {"": null}], "a": true}"#;
    let mut accepted = 0;
    for round in 0..20_000 {
        let mut bytes = if round % 8 == 0 { text.to_vec() } else { numbers.to_vec() };
        for _ in 0..rng.random_range(1..4) {
            damage(&mut bytes, &mut rng);
        }
        if let Ok(value) = parse(&bytes) {
            accepted += 1;
            for written in [canonical(&value), compact(&value)] {
                let again = parse_text(&written).unwrap_or_else(|error| panic!("{written}: {error}"));
                assert_eq!(canonical(&again), canonical(&value));
            }
        }
    }
    assert!(accepted > 100, "only {accepted} damaged texts could be read: the test lost its point");
}

fn damage(bytes: &mut Vec<u8>, rng: &mut StdRng) {
    const JSON_BYTES: &[u8] = br#"{}[]",:\ud80eE+-.019ntf "#;
    if bytes.is_empty() {
        return;
    }
    let at = rng.random_range(0..bytes.len());
    match rng.random_range(0..5) {
        0 => bytes[at] = rng.random(),
        1 => bytes[at] = JSON_BYTES[rng.random_range(0..JSON_BYTES.len())],
        2 => bytes.insert(at, JSON_BYTES[rng.random_range(0..JSON_BYTES.len())]),
        3 => {
            bytes.remove(at);
        }
        _ => bytes.truncate(at),
    }
}
