//! JSON compared as text: key order, escapes, spacing and number forms all count.
//!
//! A response must equal the recorded one in every token; only the value of a float may differ, by a stated tolerance,
//! and then it must still be written as Python's `repr` writes it. Nothing is parsed into a map, so that a missing, an
//! extra, a repeated and a reordered key are all just a token that differs.

use std::fmt;

/// A piece of JSON text: a punctuation mark, a whole string, number or word, or a run of white space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    /// As it stands there.
    pub text: &'a str,
    /// Byte offset in the text that was cut.
    pub start: usize,
}

impl Token<'_> {
    fn is_number(self) -> bool {
        self.text.starts_with(|first: char| first == '-' || first.is_ascii_digit())
    }

    fn is_integer(self) -> bool {
        self.is_number() && !self.text.contains(['.', 'e', 'E'])
    }
}

/// Cuts JSON text into tokens that join to the same text again. What is not JSON becomes tokens that equal nothing valid.
pub fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let mut start = 0;
    while start < text.len() {
        let length = token_length(&text[start..]);
        found.push(Token { text: &text[start..start + length], start });
        start += length;
    }
    found
}

fn token_length(rest: &str) -> usize {
    let first = rest.chars().next().map_or(0, char::len_utf8);
    let run = |belongs: fn(char) -> bool| rest.find(|c| !belongs(c)).unwrap_or(rest.len());
    match rest.as_bytes()[0] {
        b'"' => string_length(rest),
        b' ' | b'\t' | b'\r' | b'\n' => run(|c| matches!(c, ' ' | '\t' | '\r' | '\n')),
        b'-' | b'0'..=b'9' => run(|c| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E')),
        byte if byte.is_ascii_alphabetic() => run(|c| c.is_ascii_alphanumeric()),
        _ => first,
    }
}

/// The length of the string that `rest` starts with, quotes included; all of `rest` if it does not end.
fn string_length(rest: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in rest.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// Where two texts part.
#[derive(Debug)]
pub struct Difference {
    reason: String,
    expected: String,
    found: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  expected …{}\n  found    …{}", self.reason, self.expected, self.found)
    }
}

/// The largest difference of a float to its recorded value, and where it stands in the recorded text.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Observed {
    /// Zero if every float is the recorded one.
    pub largest: f64,
    /// Byte offset.
    pub start: usize,
}

/// Compares a response's text with the recorded text.
///
/// # Errors
/// The first token that is missing, extra or different; a float further than `tolerance` from the recorded one, not
/// finite, or not written as Python's `repr` writes it.
pub fn compare(expected_text: &str, found_text: &str, tolerance: f64) -> Result<Observed, Difference> {
    let (expected, found) = (tokens(expected_text), tokens(found_text));
    let differ = |reason: String, at: usize| {
        let around =
            |text: &str, tokens: &[Token<'_>]| excerpt(text, tokens.get(at).map_or(text.len(), |token| token.start));
        Difference { reason, expected: around(expected_text, &expected), found: around(found_text, &found) }
    };
    let mut observed = Observed::default();
    for (at, (wanted, given)) in expected.iter().zip(&found).enumerate() {
        let difference = token_difference(*wanted, *given).map_err(|reason| differ(reason, at))?;
        // Written so that a difference that is no number fails as well.
        if !difference.le(&tolerance) {
            return Err(differ(format!("{} differs from {} by {difference:e}", given.text, wanted.text), at));
        }
        if difference > observed.largest {
            observed = Observed { largest: difference, start: wanted.start };
        }
    }
    if expected.len() == found.len() {
        Ok(observed)
    } else {
        let shared = expected.len().min(found.len());
        Err(differ(format!("expected {} tokens, found {}", expected.len(), found.len()), shared))
    }
}

/// How far apart two tokens are: zero for equal text, the distance of two floats, an error for everything else.
fn token_difference(expected: Token<'_>, found: Token<'_>) -> Result<f64, String> {
    if expected.text == found.text {
        return Ok(0.0);
    }
    let is_float = |token: Token<'_>| token.is_number() && !token.is_integer();
    if !is_float(expected) || !is_float(found) {
        return Err(format!("expected {}, found {}", expected.text, found.text));
    }
    let value = |token: Token<'_>| token.text.parse::<f64>().map_err(|error| format!("{}: {error}", token.text));
    let number = value(found)?;
    if !number.is_finite() {
        return Err(format!("{} is beyond every float", found.text));
    }
    if python_repr(number) != found.text {
        return Err(format!("{} is written {} by Python", found.text, python_repr(number)));
    }
    Ok((value(expected)? - number).abs())
}

/// A float as Python's `repr` writes it: the fewest digits that read back to it, the nearest of these, the even one of two
/// that are equally near (where Rust's shortest form takes the larger). `number` is finite.
fn python_repr(number: f64) -> String {
    let rounded = |decimals: usize| format!("{number:.decimals$e}");
    let shortest = (0..17).map(rounded).find(|text| text.parse() == Ok(number)).unwrap_or_else(|| rounded(16));
    let (digits, exponent) = shortest.split_once('e').expect("the exponent form has one");
    let exponent: i32 = exponent.parse().expect("an exponent is a number");
    if (-4..16).contains(&exponent) {
        let decimals = digits.chars().filter(char::is_ascii_digit).count() as i32 - 1 - exponent;
        return format!("{number:.*}", decimals.max(1) as usize);
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// Some text on both sides of a byte offset.
fn excerpt(text: &str, around: usize) -> String {
    let before: String = text[..around].chars().rev().take(60).collect::<Vec<_>>().into_iter().rev().collect();
    before + &text[around..].chars().take(60).collect::<String>()
}

/// The exact text of the value at a path of object keys, if it is there.
pub fn value_at<'a>(text: &'a str, path: &[&str]) -> Option<&'a str> {
    let Some((key, rest)) = path.split_first() else { return Some(text) };
    members(text).into_iter().find(|(name, _)| name == key).and_then(|(_, value)| value_at(value, rest))
}

/// Keys (as written, without quotes) and values (exact text) of an object's text; none for another value.
pub fn members(text: &str) -> Vec<(&str, &str)> {
    let tokens = tokens(text);
    let mut found = Vec::new();
    let (mut depth, mut key, mut value_start) = (0_usize, None, None);
    for (at, token) in tokens.iter().enumerate() {
        match token.text {
            "}" | "]" | "," if depth == 1 => {
                if let (Some(key), Some(start)) = (key.take(), value_start.take()) {
                    found.push((key, text[start..token.start].trim()));
                }
            }
            ":" if depth == 1 && value_start.is_none() => {
                key = at.checked_sub(1).map(|before| tokens[before].text.trim_matches('"'));
                value_start = Some(token.start + 1);
            }
            _ => {}
        }
        match token.text {
            "{" | "[" => depth += 1,
            "}" | "]" => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORDED: &str = r#"{"model":"m","answers":{"a":{"type":"noul","noul":0.25},"b":{"type":"noul","noul":7.5e-05}},"usage":{"input_tokens":12,"output_tokens":0},"spans":{"s":[{"label":"x","start":4,"end":5,"text":"é\"","probability":0.5}]}}"#;

    /// The comparison with `from` replaced by `to` in what was found.
    fn spoiled(from: &str, to: &str) -> Result<Observed, Difference> {
        assert!(RECORDED.contains(from), "{from} is not in the recorded text");
        compare(RECORDED, &RECORDED.replacen(from, to, 1), 2e-5)
    }

    #[test]
    fn equal_texts_and_close_floats_pass_and_the_largest_difference_is_told() {
        assert_eq!(compare(RECORDED, RECORDED, 0.0).expect("equal"), Observed::default());
        let observed = spoiled("0.25", "0.25001").expect("within the tolerance");
        assert!((observed.largest - 1e-5).abs() < 1e-12, "{observed:?}");
        assert!(RECORDED[observed.start..].starts_with("0.25"));
    }

    /// A comparison that passed on one of these would let a wrong response through.
    #[test]
    fn every_spoiled_response_fails() {
        for (what, from, to) in [
            ("a float too far", "0.25", "0.25003"),
            ("a float that is none", "0.25", "NaN"),
            ("an infinite float", "0.25", "1e999"),
            ("an integer for a float", "0.25", "0"),
            ("a float for an integer", "12", "12.0"),
            ("another count", "12", "13"),
            ("another offset", r#""start":4"#, r#""start":3"#),
            ("another label", r#""label":"x""#, r#""label":"y""#),
            ("another text", "é", "e"),
            ("an escape for a character", "é", r"\u00e9"),
            ("a missing answer", r#""a":{"type":"noul","noul":0.25},"#, ""),
            ("an extra key", r#""noul":0.25"#, r#""noul":0.25,"confidence":0.5"#),
            ("a reordered answer", r#""type":"noul","noul":0.25"#, r#""noul":0.25,"type":"noul""#),
            ("a repeated key", r#""usage""#, r#""answers":{},"usage""#),
            ("white space", r#","usage""#, r#", "usage""#),
            ("a null", "0.25", "null"),
            ("an exponent that Python writes otherwise", "7.5e-05", "7.5e-5"),
            ("digits that do not belong", "0.25", "0.250"),
        ] {
            assert!(spoiled(from, to).is_err(), "{what} passed");
        }
        assert!(compare(RECORDED, &RECORDED[..RECORDED.len() - 1], 2e-5).is_err(), "a truncated response passed");
        assert!(compare(RECORDED, &format!("{RECORDED}\n"), 2e-5).is_err(), "trailing text passed");
        assert!(compare(RECORDED, "", 2e-5).is_err(), "an empty response passed");
    }

    #[test]
    fn floats_are_written_as_python_writes_them() {
        for (number, text) in [
            (0.0, "0.0"),
            (1.0, "1.0"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1e16, "1e+16"),
            (123_456_789.0, "123456789.0"),
            (7.507_960_362_633_285e-5, "7.507960362633285e-05"),
            (1e-100, "1e-100"),
            (-2.5e-7, "-2.5e-07"),
            // Half-way between two shortest forms: the even digit.
            (97_201.0 / 131_072.0, "0.7415847778320312"),
        ] {
            assert_eq!(python_repr(number), text);
        }
    }

    #[test]
    fn a_value_is_found_by_its_path_with_its_exact_text() {
        assert_eq!(value_at(RECORDED, &["answers", "b", "noul"]), Some("7.5e-05"));
        assert_eq!(value_at(RECORDED, &["answers", "a"]), Some(r#"{"type":"noul","noul":0.25}"#));
        assert_eq!(value_at(RECORDED, &["answers", "c"]), None);
        assert_eq!(value_at("[1]", &["a"]), None);
        let keys: Vec<&str> = members(RECORDED).into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["model", "answers", "usage", "spans"]);
    }
}
