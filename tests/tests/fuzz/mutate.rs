//! Changes of a text that know what JSON and TOML are made of.

use std::ops::Range;

use rand::Rng as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;

/// What may stand where a value stood: numbers at the ends of their ranges, other types, texts that lead astray.
const VALUES: [&str; 34] = [
    "0",
    "-1",
    "-0",
    "1",
    "255",
    "2147483648",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999999999999999",
    "0.5",
    "1e308",
    "1e309",
    "-1e400",
    "1e-400",
    "null",
    "true",
    "nan",
    "{}",
    "[]",
    "[[]]",
    "[0]",
    "\"\"",
    "\"..\"",
    "\"../outside\"",
    "\"/etc/passwd\"",
    "\"a\\\\b\"",
    "\"\\u0000\\u001b[2J\\n\"",
    "\"\\ud800\"",
    "\"\u{202e}\u{85}\"",
    "\"F64\"",
];

/// Makes one change; `other` is a text to take pieces from.
pub(crate) fn mutate(text: &mut Vec<u8>, other: &[u8], random: &mut StdRng) {
    match random.random_range(0..12) {
        0 => flip(text, random),
        1 => insert(text, random),
        2 => drop(text.drain(piece(text, random))),
        3 => {
            let copied = text[piece(text, random)].to_vec();
            splice(text, copied, random);
        }
        4 => {
            let copied = other[piece(other, random)].to_vec();
            splice(text, copied, random);
        }
        5..=7 => replace_token(text, random),
        8 => swap_tokens(text, random),
        9 => drop_token(text, random),
        10 => repeat_tokens(text, random),
        _ => nest(text, random),
    }
}

fn flip(text: &mut [u8], random: &mut StdRng) {
    if !text.is_empty() {
        let at = random.random_range(0..text.len());
        text[at] ^= 1 << random.random_range(0..8);
    }
}

fn insert(text: &mut Vec<u8>, random: &mut StdRng) {
    let at = random.random_range(0..=text.len());
    let bytes = [b'"', b'\\', b'{', b'}', b'[', b']', b',', b':', b'=', b'\n', 0, 0xff, 0xc3, b'0', b'-', b'#'];
    text.insert(at, *bytes.choose(random).expect("a list of bytes"));
}

/// A part of `text`, often a short one.
fn piece(text: &[u8], random: &mut StdRng) -> Range<usize> {
    let start = random.random_range(0..=text.len());
    let longest = if random.random_bool(0.7) { 32 } else { text.len() };
    start..(start + random.random_range(0..=longest)).min(text.len())
}

fn splice(text: &mut Vec<u8>, copied: Vec<u8>, random: &mut StdRng) {
    let at = random.random_range(0..=text.len());
    text.splice(at..at, copied);
}

/// Where the strings, words and numbers, and signs of a text stand.
fn tokens(text: &[u8]) -> Vec<Range<usize>> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        let start = at;
        at += 1;
        if byte == b'"' {
            while let Some(&byte) = text.get(at) {
                at += if byte == b'\\' { 2 } else { 1 };
                if byte == b'"' {
                    break;
                }
            }
            at = at.min(text.len());
        } else if is_word(byte) {
            while text.get(at).copied().is_some_and(is_word) {
                at += 1;
            }
        } else if byte.is_ascii_whitespace() {
            continue;
        }
        tokens.push(start..at);
    }
    tokens
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_.+-".contains(&byte)
}

fn token(text: &[u8], random: &mut StdRng) -> Option<Range<usize>> {
    tokens(text).choose(random).cloned()
}

fn replace_token(text: &mut Vec<u8>, random: &mut StdRng) {
    let values: Vec<_> =
        tokens(text).into_iter().filter(|range| text[range.start] == b'"' || is_word(text[range.start])).collect();
    let Some(range) = values.choose(random).cloned() else { return };
    let value = if random.random_bool(0.05) {
        format!("\"{}\"", "x".repeat(random.random_range(1000..100_000)))
    } else {
        (*VALUES.choose(random).expect("a list of values")).to_owned()
    };
    text.splice(range, value.into_bytes());
}

fn swap_tokens(text: &mut Vec<u8>, random: &mut StdRng) {
    let (Some(one), Some(two)) = (token(text, random), token(text, random)) else { return };
    let (first, second) = if one.start <= two.start { (one, two) } else { (two, one) };
    if first.end <= second.start {
        let (front, back) = (text[first.clone()].to_vec(), text[second.clone()].to_vec());
        text.splice(second, front);
        text.splice(first, back);
    }
}

fn drop_token(text: &mut Vec<u8>, random: &mut StdRng) {
    if let Some(range) = token(text, random) {
        text.drain(range);
    }
}

/// Says some tokens again, with a comma: an entry twice, most often.
fn repeat_tokens(text: &mut Vec<u8>, random: &mut StdRng) {
    let tokens = tokens(text);
    if tokens.is_empty() {
        return;
    }
    let first = random.random_range(0..tokens.len());
    let last = (first + random.random_range(0..12)).min(tokens.len() - 1);
    let mut copied = text[tokens[first].start..tokens[last].end].to_vec();
    copied.push(b',');
    text.splice(tokens[first].start..tokens[first].start, copied);
}

/// Puts a value into many lists or objects.
fn nest(text: &mut Vec<u8>, random: &mut StdRng) {
    let Some(range) = token(text, random) else { return };
    let depth = *[2, 64, 127, 128, 200, 10_000].choose(random).expect("a list of depths");
    let (open, close) =
        *[("[", "]"), ("{\"a\":", "}"), ("[", ""), ("{a=", "}")].choose(random).expect("a list of signs");
    let inner = String::from_utf8_lossy(&text[range.clone()]).into_owned();
    let nested = format!("{}{inner}{}", open.repeat(depth), close.repeat(depth));
    text.splice(range, nested.into_bytes());
}
