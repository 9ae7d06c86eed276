//! JSON text as Python's `json.dumps` writes it (vela.md §3, §9): canonical for states, in given order for answers.
//!
//! Numbers have Python's forms, non-ASCII stays as it is, there are no spaces. A value that was read has a bounded
//! depth and finite floats, so writing neither fails nor recurses far.

use std::fmt::Write;

use super::json::{Object, Value};

/// A float as Python's `repr`: the shortest digits that read back to it, with an exponent below `1e-4` and from
/// `1e16` on.
pub fn python_float(x: f64) -> String {
    let mut out = String::new();
    write_float(&mut out, x);
    out
}

/// `json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))`: keys by code point.
pub fn canonical(value: &Value) -> String {
    let mut out = String::new();
    write_value(&mut out, value, KeyOrder::Sorted);
    out
}

/// `json.dumps(value, ensure_ascii=False, separators=(",", ":"))`: keys in the order that they have.
pub fn compact(value: &Value) -> String {
    let mut out = String::new();
    write_value(&mut out, value, KeyOrder::Kept);
    out
}

/// How an object's members are ordered in the text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyOrder {
    Sorted,
    Kept,
}

pub(super) fn write_value(out: &mut String, value: &Value, order: KeyOrder) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Int(digits) => out.push_str(digits),
        Value::Float(x) => write_float(out, *x),
        Value::Text(text) => write_text(out, text),
        Value::Array(items) => write_array(out, items, |out, item| write_value(out, item, order)),
        Value::Object(object) => write_members(out, object, order),
    }
}

fn write_members(out: &mut String, object: &Object, order: KeyOrder) {
    let mut members: Vec<_> = object.iter().collect();
    if order == KeyOrder::Sorted {
        // UTF-8 bytes sort as code points do; keys are unique.
        members.sort_unstable_by_key(|(key, _)| *key);
    }
    write_object(out, members, |out, value| write_value(out, value, order));
}

/// `[…]` with each item as `write` writes it.
pub(super) fn write_array<T>(
    out: &mut String,
    items: impl IntoIterator<Item = T>,
    mut write: impl FnMut(&mut String, T),
) {
    out.push('[');
    for (i, item) in items.into_iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        write(out, item);
    }
    out.push(']');
}

/// `{…}` with each member's value as `write` writes it.
pub(super) fn write_object<K: AsRef<str>, T>(
    out: &mut String,
    members: impl IntoIterator<Item = (K, T)>,
    mut write: impl FnMut(&mut String, T),
) {
    out.push('{');
    for (i, (key, value)) in members.into_iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        write_text(out, key.as_ref());
        out.push(':');
        write(out, value);
    }
    out.push('}');
}

/// A string with the escapes that Python's encoder uses, and no others: U+007F and U+2028 stay as they are.
pub(super) fn write_text(out: &mut String, text: &str) {
    out.push('"');
    let mut plain_from = 0;
    for (at, byte) in text.bytes().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.push_str(&text[plain_from..at]);
        plain_from = at + 1;
        match byte {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            0x08 => out.push_str("\\b"),
            0x0c => out.push_str("\\f"),
            _ => write!(out, "\\u{byte:04x}").expect("writing to a string cannot fail"),
        }
    }
    out.push_str(&text[plain_from..]);
    out.push('"');
}

/// See [`python_float`]. JSON has no name for what is not finite: answers are checked before they come here, and
/// what Python would print stands here for the sake of a whole function.
pub(super) fn write_float(out: &mut String, x: f64) {
    if !x.is_finite() {
        out.push_str(if x.is_nan() {
            "nan"
        } else if x > 0.0 {
            "inf"
        } else {
            "-inf"
        });
        return;
    }
    let scientific = shortest_digits(x);
    let (mantissa, exponent) = scientific.split_once('e').expect("the exponent form of a finite float has an e");
    let exponent: i32 = exponent.parse().expect("the exponent of a float is a small integer");
    if (-4..16).contains(&exponent) {
        write_fixed(out, mantissa, exponent);
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        let size = exponent.unsigned_abs();
        write!(out, "{mantissa}e{sign}{size:02}").expect("writing to a string cannot fail");
    }
}

/// The shortest digits that read back to `x`, as `-1.25e-7`.
///
/// Where two such texts are equally near (floats widened from float32 often lie exactly between), Rust's `{:e}` takes
/// the upper one and Python the even one; Rust's rounding to a given number of digits takes the even one, too.
fn shortest_digits(x: f64) -> String {
    let shortest = format!("{x:e}");
    let mantissa = shortest.split('e').next().unwrap_or_default();
    let digits = mantissa.bytes().filter(u8::is_ascii_digit).count();
    let nearest = format!("{x:.*e}", digits - 1);
    // Next to a power of two the even one may read back to a neighbour.
    if nearest.parse() == Ok(x) { nearest } else { shortest }
}

/// `mantissa · 10^exponent` without an exponent, with at least one digit on both sides of the point.
fn write_fixed(out: &mut String, mantissa: &str, exponent: i32) {
    let (sign, mantissa) = mantissa.strip_prefix('-').map_or(("", mantissa), |rest| ("-", rest));
    out.push_str(sign);
    let digits: String = mantissa.chars().filter(|&c| c != '.').collect();
    if exponent < 0 {
        out.push_str("0.");
        out.extend(std::iter::repeat_n('0', exponent.unsigned_abs() as usize - 1));
        out.push_str(&digits);
        return;
    }
    let whole = exponent as usize + 1;
    if digits.len() > whole {
        out.push_str(&digits[..whole]);
        out.push('.');
        out.push_str(&digits[whole..]);
    } else {
        out.push_str(&digits);
        out.extend(std::iter::repeat_n('0', whole - digits.len()));
        out.push_str(".0");
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::wire::json;

    /// Printed by Python 3.11: `repr(x)`.
    #[allow(clippy::excessive_precision)] // the ties are written in full
    const REPR: &[(f64, &str)] = &[
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (-1.5, "-1.5"),
        (0.1, "0.1"),
        (0.001, "0.001"),
        (0.0001, "0.0001"),
        (0.00012, "0.00012"),
        (0.000_099, "9.9e-05"),
        (1e-5, "1e-05"),
        (1e-7, "1e-07"),
        (1.25e-10, "1.25e-10"),
        (123.456, "123.456"),
        (100_000.0, "100000.0"),
        (1e15, "1000000000000000.0"),
        (9_007_199_254_740_993.0, "9007199254740992.0"),
        (9_999_999_999_999_998.0, "9999999999999998.0"),
        (1e16, "1e+16"),
        (12_345_678_901_234_567_890.0, "1.2345678901234567e+19"),
        (1e20, "1e+20"),
        (1e22, "1e+22"),
        (1e23, "1e+23"),
        (1e100, "1e+100"),
        (5e-324, "5e-324"),
        (2.225_073_858_507_201_4e-308, "2.2250738585072014e-308"),
        (f64::MAX, "1.7976931348623157e+308"),
        (0.1 + 0.2, "0.30000000000000004"),
        (1.0 / 3.0, "0.3333333333333333"),
        (0.445_694_421_301_065_35, "0.44569442130106535"),
        (0.324_050_277_471_542_36, "0.32405027747154236"),
        // Exactly between two shortest texts: the even one.
        (0.585_487_365_722_656_25, "0.5854873657226562"),
        (1_409_615.821_777_343_75, "1409615.8217773438"),
        (-192.414_459_228_515_625, "-192.41445922851562"),
        (2.980_232_238_769_531_25e-8, "2.9802322387695312e-08"),
    ];

    #[test]
    fn floats_look_as_in_python() {
        for &(x, expected) in REPR {
            assert_eq!(python_float(x), expected);
        }
    }

    /// Catches digits that are lost, and an exponent form on the wrong side of its limits.
    #[test]
    fn floats_read_back_and_have_the_right_form() {
        let seed = crate::testing::seed();
        let mut rng = StdRng::seed_from_u64(seed);
        for _ in 0..5_000 {
            let x = match rng.random_range(0..3) {
                0 => f64::from_bits(rng.random()),
                1 => f64::from(f32::from_bits(rng.random())),
                _ => rng.random_range(-1.0..1.0) * 10f64.powi(rng.random_range(-8..20)),
            };
            if !x.is_finite() {
                continue;
            }
            let text = python_float(x);
            assert_eq!(text.parse::<f64>().unwrap().to_bits(), x.to_bits(), "{text}");
            assert_eq!(json::parse_text(&text), Ok(Value::Float(x)), "{text}");
            let exponent = x != 0.0 && !(1e-4..1e16).contains(&x.abs());
            assert_eq!(text.contains('e'), exponent, "{text}");
            assert!(exponent || text.contains('.'), "{text}");
            let digits = text.split('e').next().unwrap().chars().filter(char::is_ascii_digit).count();
            assert!(digits <= if exponent { 17 } else { 22 }, "{text}");
        }
    }

    #[test]
    fn texts_have_python_escapes() {
        let mut out = String::new();
        write_text(&mut out, "\0\u{1f}\u{8}\u{c}\n\r\t\"\\/\u{7f}\u{2028}é𝄞");
        assert_eq!(out, "\"\\u0000\\u001f\\b\\f\\n\\r\\t\\\"\\\\/\u{7f}\u{2028}é𝄞\"");
    }

    #[test]
    fn canonical_sorts_keys_by_code_point_at_every_level() {
        // U+FF5E comes before U+1F600 by code point and after it by UTF-16 unit.
        let text = r#"{"b": [{"y": 1, "x": -0}], "😀": 2, "～": 1E5, "a": null, "B": true, "": "é"}"#;
        let value = json::parse_text(text).unwrap();
        assert_eq!(canonical(&value), r#"{"":"é","B":true,"a":null,"b":[{"x":0,"y":1}],"～":100000.0,"😀":2}"#);
        assert_eq!(compact(&value), r#"{"b":[{"y":1,"x":0}],"😀":2,"～":100000.0,"a":null,"B":true,"":"é"}"#);
    }
}
