use serde_json::Value;

use super::*;
use crate::family::vela::tests::assert_linear;
use crate::family::vela::unicode::{
    is_cjk, is_cjk_ignoring_case, is_latin_letter_ignoring_case as is_letter, is_space, is_word,
};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures");

fn read(path: &str) -> Value {
    serde_json::from_slice(&std::fs::read(format!("{FIXTURES}/{path}")).unwrap()).unwrap()
}

fn numbers(list: &Value) -> Vec<usize> {
    list.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect()
}

fn pairs(ranges: &[CharRange]) -> Vec<(usize, usize)> {
    ranges.iter().map(|range| (range.start, range.end)).collect()
}

fn recorded_pairs(list: &Value) -> Vec<(usize, usize)> {
    list.as_array().unwrap().iter().map(numbers).map(|pair| (pair[0], pair[1])).collect()
}

/// Texts that mix what the patterns single out, cut by the reference's regular expressions.
#[test]
fn words_and_units_equal_the_recorded_ones() {
    let cases = read("words.json")["cases"].as_array().unwrap().clone();
    assert!(cases.len() >= 400);
    for case in &cases {
        let text = case[0].as_str().unwrap();
        assert_eq!(pairs(&split_words(text)), recorded_pairs(&case[1]), "words of {text:?}");
        assert_eq!(pairs(&split_units(text)), recorded_pairs(&case[2]), "units of {text:?}");
    }
}

#[test]
fn words_of_one_form_each() {
    let check = |text: &str, expected: &[&str]| {
        let chars: Vec<char> = text.chars().collect();
        let words: Vec<String> = split_words(text).iter().map(|w| chars[w.start..w.end].iter().collect()).collect();
        assert_eq!(words, expected, "{text:?}");
    };
    check("see https://a.b/c?d). Or", &["see", "https://a.b/c?d", ")", ".", "Or"]);
    check("http://((((", &["http://(((("]);
    check("http://))))", &["http://)", ")", ")", ")"]);
    check("http:// x", &["http", ":", "/", "/", "x"]);
    check("httpſ://x", &["httpſ://x"]);
    check("www.例.com", &["www", ".", "例", ".", "com"]);
    check("tom@example.com.", &["tom@example.com", "."]);
    check("a@b.cd.e", &["a@b.cd", ".", "e"]);
    check("a@.bc", &["a", "@", ".", "bc"]);
    check("a@b.c", &["a", "@b", ".", "c"]);
    check("@tom_1 @é", &["@tom_1", "@", "é"]);
    check("well-known--so snake_case- -x", &["well-known", "-", "-", "so", "snake_case", "-", "-", "x"]);
    check("cafe\u{301}s", &["cafe", "\u{301}", "s"]);
    check("漢\u{3000}ɜx", &["漢", "\u{3000}", "ɜ", "x"]);
}

/// Every window and every word of every recorded case.
#[test]
fn words_and_windows_of_the_recorded_cases() {
    let (mut words_seen, mut windows_seen) = (0, 0);
    for member in ["tiny-08b", "tiny-4b", "tiny-router", "tiny-short"] {
        let layout = read(&format!("members/{member}/config.json"))["span_layout"].clone();
        let size = |name: &str| layout[name].as_u64().unwrap() as usize;
        for entry in std::fs::read_dir(format!("{FIXTURES}/vela/{member}")).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let case = read(&format!("vela/{member}/{name}"));
            for part in case["parts"].as_array().into_iter().flatten() {
                let found = pairs(&split_words(part["text"].as_str().unwrap()));
                for word in part["words"].as_array().unwrap().iter().map(numbers) {
                    assert!(found.binary_search(&(word[0], word[1])).is_ok(), "{member}/{name}: {word:?}");
                    words_seen += 1;
                }
            }
            for (question, recorded) in recorded_windows(&case) {
                let (starts, length) = target(&case, &question);
                let found = windows(&starts, length, size("window"), size("stride"));
                let found: Vec<_> = found.iter().map(|window| (window.start, window.end)).collect();
                assert_eq!(found, recorded, "{member}/{name}: {question}");
                windows_seen += recorded.len();
            }
        }
    }
    assert!(words_seen > 6_000 && windows_seen > 20, "{words_seen} words, {windows_seen} windows");
}

/// The windows of each question that has some, in order.
fn recorded_windows(case: &Value) -> Vec<(String, Vec<(usize, usize)>)> {
    let mut found: Vec<(String, Vec<(usize, usize)>)> = Vec::new();
    for tree in case["trees"].as_array().into_iter().flatten().filter(|tree| !tree["window"].is_null()) {
        let question = tree["blocks"][0]["question"].as_str().unwrap().to_owned();
        let window = numbers(&tree["window"]);
        if found.last().is_none_or(|(last, _)| *last != question) {
            found.push((question, Vec::new()));
        }
        found.last_mut().unwrap().1.push((window[0], window[1]));
    }
    found
}

/// First tokens of the words of a span's target, and its length.
fn target(case: &Value, question: &str) -> (Vec<usize>, usize) {
    let question = case["questions"].as_array().unwrap().iter().find(|q| q["id"] == question).unwrap();
    let part = case["parts"].as_array().unwrap().iter().find(|part| part["role"] == question["roles"][0]).unwrap();
    let starts = part["words"].as_array().unwrap().iter().map(|word| numbers(word)[2]).collect();
    (starts, part["ids"].as_array().unwrap().len())
}

#[test]
fn windows_without_a_word_inside() {
    let check = |starts: &[usize], length, expected: &[(usize, usize)]| {
        let found: Vec<_> = windows(starts, length, 10, 8).iter().map(|window| (window.start, window.end)).collect();
        assert_eq!(found, expected, "{starts:?}");
    };
    check(&[], 35, &[(0, 35)]);
    check(&[0, 4], 10, &[(0, 10)]);
    // A word longer than a window: the next one starts at the limit, inside the word.
    check(&[2], 35, &[(2, 12), (12, 22), (22, 32), (32, 35)]);
    // The next word start from the stride on, or where this window ends.
    check(&[0, 7, 9, 12], 19, &[(0, 9), (9, 19)]);
    check(&[0, 8, 9, 12], 18, &[(0, 9), (8, 18)]);
}

/// The reference's definition, step by step, on random offsets with empty and overlapping tokens.
#[test]
fn first_tokens_equal_the_definition() {
    let mut random = Random::new(11);
    for _ in 0..5_000 {
        let words: Vec<CharRange> =
            ascending(&mut random, 1).iter().map(|pair| CharRange { start: pair[0], end: pair[1] }).collect();
        let mut offsets: Vec<CharRange> =
            ascending(&mut random, 0).iter().map(|pair| CharRange { start: pair[0], end: pair[1] }).collect();
        for offset in &mut offsets {
            if random.below(4) == 0 {
                offset.end += random.below(6);
            }
        }
        let mut expected = Vec::new();
        for &range in &words {
            let reach = |token: usize| {
                offsets[..=token].iter().filter(|o| o.end > o.start).map(|o| o.end as isize).max().unwrap_or(-1)
            };
            let first = (0..offsets.len()).find(|&token| reach(token) > range.start as isize);
            let chosen = first.and_then(|first| (first..offsets.len()).find(|&t| offsets[t].end > offsets[t].start));
            if let Some(token) = chosen.filter(|&token| offsets[token].start < range.end) {
                expected.push(Word { range, token });
            }
        }
        assert_eq!(first_tokens(&words, &offsets), expected, "seed 11: {words:?} {offsets:?}");
    }
}

/// Ranges one after another, at least `least` long, with gaps.
fn ascending(random: &mut Random, least: usize) -> Vec<[usize; 2]> {
    let mut at = 0;
    (0..random.below(12))
        .map(|_| {
            let start = at + random.below(3);
            at = start + least + random.below(4);
            [start, at]
        })
        .collect()
}

/// Texts for which a backtracking matcher takes quadratic time or worse.
#[test]
fn unkind_texts_take_linear_time() {
    let texts = |len: usize| {
        let filled = |piece: &str| piece.repeat(len / piece.len());
        [
            format!("http://{}", filled("(")),
            format!("http://{}", filled(")")),
            filled("http://"),
            filled("www."),
            filled("."),
            filled("-"),
            filled("@"),
            filled("a.a.a.a@"),
            filled("a-"),
            format!("{}@{}", filled("a."), filled("a.")),
            format!("{}@{}é", filled("a."), filled(".b")),
        ]
    };
    let (small, large) = (texts(1 << 14), texts(8 << 14));
    for (small, large) in small.iter().zip(&large) {
        assert_linear(&small[..20], |scale| {
            let text = if scale == 1 { small } else { large };
            assert!(!split_words(text).is_empty() && !split_units(text).is_empty());
        });
    }
    let words: Vec<CharRange> = (0..100_000).map(|start| CharRange { start, end: start + 1 }).collect();
    assert!(first_tokens(&words, &vec![CharRange { start: 0, end: 0 }; 100_000]).is_empty());
    assert_eq!(windows(&(0..100_000).collect::<Vec<_>>(), 100_000, 3, 1).len(), 99_998);
}

/// The scanners against a matcher that backtracks through the patterns as they are written.
#[test]
fn scanners_equal_a_backtracking_matcher() {
    let (words, units) = (word_pattern(), unit_pattern());
    let seed = crate::testing::seed();
    let mut random = Random::new(seed);
    for round in 0..8_000 {
        let text = random.text();
        let chars: Vec<char> = text.chars().collect();
        assert_eq!(pairs(&split_words(&text)), find_all(&words, &chars), "seed {seed}, round {round}: {text:?}");
        assert_eq!(pairs(&split_units(&text)), find_all(&units, &chars), "seed {seed}, round {round}: {text:?}");
    }
}

/// A regular expression, matched by trying everything in the order in which Python's `re` does.
enum Pattern {
    One(Box<dyn Fn(char) -> bool>),
    All(Vec<Pattern>),
    Any(Vec<Pattern>),
    Repeat { inner: Box<Pattern>, least: usize, lazy: bool },
    Ahead(Box<Pattern>),
    End,
}

use Pattern::{Ahead, All, Any, End, One, Repeat};

impl Pattern {
    /// Whether it matches at `at` so that `rest` accepts where it ends.
    fn matches(&self, text: &[char], at: usize, rest: &mut dyn FnMut(usize) -> bool) -> bool {
        match self {
            One(member) => text.get(at).is_some_and(|&c| member(c)) && rest(at + 1),
            All(patterns) => all(patterns, text, at, rest),
            Any(patterns) => patterns.iter().any(|pattern| pattern.matches(text, at, rest)),
            Repeat { inner, least, lazy } => repeat(inner, *least, *lazy, text, at, rest),
            Ahead(inner) => inner.matches(text, at, &mut |_| true) && rest(at),
            End => at == text.len() && rest(at),
        }
    }
}

fn all(patterns: &[Pattern], text: &[char], at: usize, rest: &mut dyn FnMut(usize) -> bool) -> bool {
    match patterns.split_first() {
        None => rest(at),
        Some((first, others)) => first.matches(text, at, &mut |end| all(others, text, end, rest)),
    }
}

fn repeat(
    inner: &Pattern,
    least: usize,
    lazy: bool,
    text: &[char],
    at: usize,
    rest: &mut dyn FnMut(usize) -> bool,
) -> bool {
    if least == 0 && lazy && rest(at) {
        return true;
    }
    let more =
        inner.matches(text, at, &mut |end| end > at && repeat(inner, least.saturating_sub(1), lazy, text, end, rest));
    more || least == 0 && !lazy && rest(at)
}

fn find_all(pattern: &Pattern, text: &[char]) -> Vec<(usize, usize)> {
    let (mut found, mut start) = (Vec::new(), 0);
    while start < text.len() {
        let mut end = start;
        pattern.matches(text, start, &mut |at| {
            end = at;
            true
        });
        if end > start {
            found.push((start, end));
        }
        start = end.max(start + 1);
    }
    found
}

fn one(member: impl Fn(char) -> bool + 'static) -> Pattern {
    One(Box::new(member))
}

fn one_of(chars: &'static str) -> Pattern {
    one(move |c| chars.contains(c))
}

fn some(inner: Pattern) -> Pattern {
    Repeat { inner: Box::new(inner), least: 1, lazy: false }
}

fn any_number(inner: Pattern) -> Pattern {
    Repeat { inner: Box::new(inner), least: 0, lazy: false }
}

/// `(?:https?://|www\.)`
fn url_head(folding: bool) -> Pattern {
    let letter = move |wanted: char| {
        one(move |c| c == wanted || folding && (c.to_ascii_lowercase() == wanted || wanted == 's' && c == '\u{17f}'))
    };
    let word = move |word: &str| All(word.chars().map(letter).collect());
    let long = All(vec![word("http"), Any(vec![word("s"), All(vec![])]), word("://")]);
    Any(vec![long, word("www.")])
}

/// `HEAD[^STOP]+?(?=[AFTER]*(?:[STOP]|\Z))`
fn url(folding: bool, stops: fn(char) -> bool, after: &'static str) -> Pattern {
    let body = Repeat { inner: Box::new(one(move |c| !stops(c))), least: 1, lazy: true };
    let ahead = All(vec![any_number(one_of(after)), Any(vec![one(stops), End])]);
    All(vec![url_head(folding), body, Ahead(Box::new(ahead))])
}

fn word_pattern() -> Pattern {
    let lower = |more: &'static str| one(move |c| is_letter(c) || c.is_ascii_digit() || more.contains(c));
    let word_char = || one(|c| is_word(c) && !is_cjk_ignoring_case(c));
    let top_level = All(vec![one(is_letter), some(one(is_letter))]);
    Any(vec![
        url(true, |c| is_space(c) || is_cjk_ignoring_case(c), ".,;:!?)]}>\"'”’»"),
        All(vec![some(lower("._%+-")), one_of("@"), some(lower(".-")), one_of("."), top_level]),
        All(vec![one_of("@"), some(lower("_"))]),
        one(is_cjk_ignoring_case),
        All(vec![some(word_char()), any_number(All(vec![one_of("-_"), some(word_char())]))]),
        one(|c| !is_space(c)),
    ])
}

fn unit_pattern() -> Pattern {
    let run = Any(vec![one(|c| !is_cjk(c) && is_word(c) && c != '_'), one_of("@._+-")]);
    let stops = |c: char| is_space(c) || is_cjk(c) || "])}>「」『』\"'“”".contains(c);
    Any(vec![url(false, stops, ".,;:!?"), some(run), one(|c| !is_space(c))])
}

/// `SplitMix64`: a seed gives the same texts everywhere.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Random(seed)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }

    /// A short text of pieces that the patterns single out, and of characters from anywhere.
    fn text(&mut self) -> String {
        const PIECES: &str = "\
             http:// https:// HTTPS:// httpſ:// www. WWW. http:/ a.b/c?d tom@example.com a@b.c a@b.cd.e .@. \
             a.a.a @x_9 @ .. - -- _ __ -_ a-b_c K \u{212a} ſİı é e\u{301} मिल ที่ العر 漢字 あ 한 \u{3000} 。 Ａ 豈 \
             \u{a4cf} \u{a4d0} ɜ ʂ Ꭰ ꭰ \u{1c88} 🙂 👨\u{200d}👩 𠀀 ½ ٣ \u{200b} . , ; : ! ? ) ] } > ( \" ' “ ” ’ » \
             「 』 / % + 1";
        let pieces: Vec<&str> = PIECES.split(' ').collect();
        let mut text = String::new();
        for _ in 0..=self.below(16) {
            match self.below(12) {
                0 => text.push([' ', '\n', '\u{1c}', '\u{85}', '\u{a0}', '\u{2003}'][self.below(6)]),
                1 => {
                    let planes = 0x3000 << self.below(5);
                    text.extend(char::from_u32(self.below(planes) as u32));
                }
                _ => text.push_str(pieces[self.below(pieces.len())]),
            }
        }
        text
    }
}
