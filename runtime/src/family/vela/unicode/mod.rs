//! Character classes as Python 3.11 means them (Unicode 14.0.0), whatever Unicode this binary's Rust knows.
//!
//! The reference cuts text with Python's `re` and `str`, and a word more or less is another answer. Small classes are
//! written out; large ones are generated into `tables` by `recipe/reading/unicode.py`. All of them are compared with
//! Python's over every code point.

mod tables;

use std::fmt::Write;

/// `\w` of Python's `re`: `str.isalnum` or `_`. A combining mark is none.
pub fn is_word(c: char) -> bool {
    if c.is_ascii() { c.is_ascii_alphanumeric() || c == '_' } else { contains(tables::WORD, c) }
}

/// `\s` of Python's `re`, and what `str.strip` removes: Unicode's `White_Space` and U+001C–U+001F.
#[rustfmt::skip] // Ranges read better in rows.
pub fn is_space(c: char) -> bool {
    matches!(c, '\t'..='\r' | '\u{1c}'..=' ' | '\u{85}' | '\u{a0}' | '\u{1680}' | '\u{2000}'..='\u{200a}' | '\u{2028}'
        | '\u{2029}' | '\u{202f}' | '\u{205f}' | '\u{3000}')
}

/// `str.strip`.
pub fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// Whether nothing is left of a text after [`strip`].
pub fn is_blank(text: &str) -> bool {
    text.chars().all(is_space)
}

/// The CJK class of vela.md §5. It begins at U+8C48 where one would expect U+F900, on purpose: Hangul syllables and
/// the private use area are in it.
#[rustfmt::skip] // Ranges read better in rows.
pub fn is_cjk(c: char) -> bool {
    matches!(c, '\u{2e80}'..='\u{31ff}' | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{faff}' | '\u{fe30}'..='\u{fe4f}'
        | '\u{ff00}'..='\u{ffef}')
}

/// [`is_cjk`] under `re.IGNORECASE`: also letters whose other case lies in the class, some of the IPA's and
/// Cherokee's.
#[rustfmt::skip] // Ranges read better in rows.
pub fn is_cjk_ignoring_case(c: char) -> bool {
    is_cjk(c)
        || matches!(c, '\u{25c}' | '\u{261}' | '\u{265}' | '\u{266}' | '\u{26a}' | '\u{26c}' | '\u{282}' | '\u{287}'
            | '\u{29d}' | '\u{29e}' | '\u{13a0}'..='\u{13ef}' | '\u{1c88}' | '\u{1d79}' | '\u{1d8e}')
}

/// `[a-z]` under `re.IGNORECASE`: ASCII letters, İ, ı, ſ and the Kelvin sign.
pub fn is_latin_letter_ignoring_case(c: char) -> bool {
    c.is_ascii_alphabetic() || matches!(c, '\u{130}' | '\u{131}' | '\u{17f}' | '\u{212a}')
}

/// Python's `repr` of a string: in single quotes, or in double ones around a single quote where no double one is.
pub fn repr(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::with_capacity(text.len() + 2);
    out.push(quote);
    for c in text.chars() {
        push_repr(&mut out, c, quote);
    }
    out.push(quote);
    out
}

fn push_repr(out: &mut String, c: char, quote: char) {
    match c {
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        _ if c == quote => out.extend(['\\', c]),
        _ if is_printable(c) => out.push(c),
        _ => {
            let code = c as u32;
            match code {
                0..=0xff => write!(out, "\\x{code:02x}"),
                0x100..=0xffff => write!(out, "\\u{code:04x}"),
                _ => write!(out, "\\U{code:08x}"),
            }
            .expect("a String takes everything");
        }
    }
}

/// `str.isprintable`.
fn is_printable(c: char) -> bool {
    !contains(tables::NOT_PRINTABLE, c)
}

/// Whether a character lies in one of the inclusive, ascending ranges.
fn contains(ranges: &[(char, char)], c: char) -> bool {
    let after = ranges.partition_point(|&(first, _)| first <= c);
    after > 0 && c <= ranges[after - 1].1
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    /// A single character in the wrong class moves words, and with them answers, in some language nobody here reads.
    #[test]
    fn classes_equal_those_of_python_over_every_code_point() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/unicode.json");
        let recorded: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let classes = [
            ("word", is_word as fn(char) -> bool),
            ("space", is_space),
            ("printable", is_printable),
            ("cjk", is_cjk),
            ("cjk_ignoring_case", is_cjk_ignoring_case),
            ("latin_letter_ignoring_case", is_latin_letter_ignoring_case),
        ];
        for (name, member) in classes {
            let all: String = ('\0'..=char::MAX).filter(|&c| member(c)).collect();
            assert_eq!(all.chars().count() as u64, recorded[name]["count"], "{name}");
            assert_eq!(hex::encode(Sha256::digest(&all)), recorded[name]["sha256"], "{name}");
        }
    }

    #[test]
    fn combining_marks_are_no_word_characters() {
        for c in ['a', 'é', '_', '٣', '½', 'ª', 'ก', '漢', '𝟘'] {
            assert!(is_word(c), "{c:?}");
        }
        for c in ['\u{301}', '\u{93f}', '\u{e34}', '-', '’', '🙂', '\u{200d}'] {
            assert!(!is_word(c), "{c:?}");
        }
    }

    #[test]
    fn strip_removes_what_python_calls_space() {
        assert_eq!(strip("\u{1c}\u{3000} a b\u{1f}\u{85}\n"), "a b");
        assert_eq!(strip("\u{200b}a\u{feff}"), "\u{200b}a\u{feff}");
        assert!(is_blank("\t\u{2028}") && is_blank("") && !is_blank("\u{200b}"));
    }

    /// Each pair as Python 3.11 prints it.
    #[test]
    fn repr_is_that_of_python() {
        let check = |text: &str, expected: &str| assert_eq!(repr(text), expected);
        check("answer", "'answer'");
        check("it's", r#""it's""#);
        check(r#"it's "so""#, r#"'it\'s "so"'"#);
        check("a\\b\n\r\t", r"'a\\b\n\r\t'");
        check("\u{0}\u{7f}\u{85}\u{a0}\u{ad}", r"'\x00\x7f\x85\xa0\xad'");
        check("é漢🙂", "'é漢🙂'");
        check("\u{378}\u{200b}\u{3000}\u{e000}\u{e0001}", r"'\u0378\u200b\u3000\ue000\U000e0001'");
    }
}
