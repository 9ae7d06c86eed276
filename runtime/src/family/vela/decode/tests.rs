use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::*;
use crate::family::vela::words::split_words;

/// Words of a text, all of them with a token.
fn words_of(text: &str) -> Vec<Word> {
    split_words(text).into_iter().enumerate().map(|(token, range)| Word { range, token }).collect()
}

fn probabilities(rows: &[&[f64]]) -> Probabilities {
    let mut probabilities = Probabilities::with_capacity(rows.len(), rows[0].len());
    for row in rows {
        probabilities.push(row.iter().copied());
    }
    probabilities
}

/// Decodes a text whose words have these probabilities: label, text and probability of each span.
fn check(text: &str, rows: &[&[f64]], threshold: f64, expected: &[(usize, &str, f32)]) {
    let words = words_of(text);
    assert_eq!(words.len(), rows.len(), "words of {text:?}");
    let word_text = WordText::new(text, &words);
    let spans = decode(&word_text, &probabilities(rows), threshold);
    let found: Vec<_> = spans.iter().map(|span| (span.label, word_text.slice(span.range), span.probability)).collect();
    let expected: Vec<_> = expected.iter().map(|&(label, text, p)| (label, text.to_owned(), p)).collect();
    assert_eq!(found, expected, "{text:?}");
}

/// bundle.md, defect 1.
#[test]
fn a_rejected_word_ends_the_current_span() {
    check("Alice met Bob", &[&[0.9], &[0.1], &[0.9]], 0.5, &[(0, "Alice", 0.9), (0, "Bob", 0.9)]);
    check("Alice met Bob", &[&[0.75], &[0.75], &[0.75]], 0.5, &[(0, "Alice met Bob", 0.75)]);
}

#[test]
fn labels_part_neighbours() {
    check("Ann Bob", &[&[0.9, 0.1], &[0.2, 0.8]], 0.5, &[(0, "Ann", 0.9), (1, "Bob", 0.8)]);
}

/// The threshold is compared as a float32: a probability that is above it only in float64 is not above it.
#[test]
fn comparisons_are_those_of_float32() {
    check("Ann", &[&[0.3]], 0.3, &[]);
    check("Ann", &[&[0.3 + 1e-10]], 0.3, &[]);
    check("Ann", &[&[0.3 + 1e-7]], 0.3, &[(0, "Ann", (0.3_f64 + 1e-7) as f32)]);
    // Equal in float32: the first label has it.
    check("Ann", &[&[0.6, 0.6 + 1e-12]], 0.5, &[(0, "Ann", 0.6)]);
}

#[test]
fn inside_a_unit_votes_are_taken_and_gaps_filled() {
    // `tom`, `.` and `baker` are three words of one unit.
    let mean = |values: &[f32]| values.iter().sum::<f32>() / values.len() as f32;
    check("tom.baker", &[&[0.9], &[0.1], &[0.9]], 0.5, &[(0, "tom.baker", mean(&[0.9, 0.1, 0.9]))]);
    check("tom.baker", &[&[0.6, 0.1], &[0.1, 0.9], &[0.7, 0.1]], 0.5, &[(0, "tom.baker", mean(&[0.6, 0.1, 0.7]))]);
    // Equal sums: the first seen wins. Words beyond the labelled ones are not filled.
    check("x.y.z", &[&[0.1, 0.1], &[0.1, 0.75], &[0.75, 0.1], &[0.1, 0.1], &[0.1, 0.1]], 0.5, &[(1, ".y", 0.425)]);
}

/// An ideographic space is a word of no unit: what surrounds it neither votes with it nor fills it.
#[test]
fn words_without_a_unit_neither_vote_nor_fill() {
    check("漢\u{3000}字", &[&[0.9], &[0.1], &[0.9]], 0.5, &[(0, "漢", 0.9), (0, "字", 0.9)]);
    check("\u{3000}", &[&[0.9]], 0.5, &[]);
}

#[test]
fn spans_are_trimmed_and_urls_cut() {
    check("(Tom)", &[&[0.75], &[0.75], &[0.75]], 0.5, &[(0, "Tom", 0.75)]);
    check("“ ”", &[&[0.75], &[0.75]], 0.5, &[]);
    let chars: Vec<char> = "WWW.a.de/漢), x".chars().collect();
    assert_eq!(trim::trim(&chars, CharRange { start: 0, end: 12 }), CharRange { start: 0, end: 9 });
    let chars: Vec<char> = "http://a.de).".chars().collect();
    assert_eq!(trim::trim(&chars, CharRange { start: 0, end: 13 }), CharRange { start: 0, end: 11 });
}

#[test]
fn clipping_trims_again_and_drops_what_is_left_empty() {
    let text = "Ann (Bob) Cid";
    let words = WordText::new(text, &words_of(text));
    let span = |start, end| Decoded { label: 0, range: CharRange { start, end }, words: 0..1, probability: 0.5 };
    let clipped = clip(&words, vec![span(0, 8), span(4, 5), span(9, 13)], CharRange { start: 4, end: 9 });
    assert_eq!(clipped, [span(5, 8)]);
}

/// Pieces that make every rule meet every other one.
const FRAGMENTS: [&str; 46] = [
    "http://",
    "https://",
    "HTTPS://",
    "httpſ://",
    "www.",
    "Www.",
    "a",
    "Bob",
    "é",
    "x.y",
    "-",
    "_",
    "@",
    ".",
    ",",
    "!",
    ";",
    ":",
    "?",
    "+",
    "/",
    "\\",
    "(",
    ")",
    "[",
    "]",
    "{",
    "<",
    ">",
    "「",
    "」",
    "『",
    "漢",
    "字",
    "가",
    "\u{e000}",
    "\u{3000}",
    " ",
    "\n",
    "\u{301}",
    "🙂",
    "\"",
    "'",
    "’",
    "»",
    "\u{1c}",
];

#[test]
fn decoding_equals_a_naive_implementation_on_generated_texts() {
    let seed = crate::testing::seed();
    let mut random = StdRng::seed_from_u64(seed);
    let mut spans_seen = 0;
    for _ in 0..4_000 {
        let text = random_text(&mut random);
        let mut words = words_of(&text);
        words.retain(|_| random.random_bool(0.95));
        let labels = random.random_range(1..4);
        let rows: Vec<Vec<f64>> =
            words.iter().map(|_| (0..labels).map(|_| random_probability(&mut random)).collect()).collect();
        let mut table = Probabilities::with_capacity(rows.len(), labels);
        for row in &rows {
            table.push(row.iter().copied());
        }
        let threshold = *[0.0, 0.25, 0.5, 0.7, 1.0].choose(&mut random).unwrap();
        let word_text = WordText::new(&text, &words);

        let found = decode(&word_text, &table, threshold);
        let expected = naive::decode(&text, &words, &rows, threshold);
        check_same(&found, &expected, &text);
        spans_seen += found.len();

        let length = text.chars().count();
        let start = random.random_range(0..=length);
        let field = CharRange { start, end: random.random_range(start..=length) };
        check_same(&clip(&word_text, found, field), &naive::clip(&text, expected, field), &text);
    }
    assert!(spans_seen > 4_000, "{spans_seen}");
}

fn random_text(random: &mut StdRng) -> String {
    let length = random.random_range(0..24);
    (0..length).map(|_| *FRAGMENTS.choose(random).unwrap()).collect()
}

/// Half of them from a few values, so that votes and maxima tie.
fn random_probability(random: &mut StdRng) -> f64 {
    if random.random_bool(0.5) { f64::from(random.random_range(0..=8)) / 8.0 } else { random.random() }
}

/// Equal but for the last bits of the mean, which has a test of its own.
fn check_same(found: &[Decoded], expected: &[Decoded], text: &str) {
    assert_eq!(found.len(), expected.len(), "{text:?}: {found:?} instead of {expected:?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!((found.probability - expected.probability).abs() < 1e-6, "{text:?}: {found:?}, {expected:?}");
        let same = Decoded { probability: expected.probability, ..found.clone() };
        assert_eq!(&same, expected, "{text:?}");
    }
}

/// The rules of vela.md §9 once more, in the plainest way: strings, patterns tried character by character, quadratic.
mod naive {
    use std::collections::BTreeMap;

    use super::super::{CharRange, Decoded, Word};
    use crate::family::vela::unicode::{is_cjk, is_space, is_word};

    pub(super) fn decode(text: &str, words: &[Word], rows: &[Vec<f64>], threshold: f64) -> Vec<Decoded> {
        let chars: Vec<char> = text.chars().collect();
        let unit_of: Vec<Option<usize>> = words.iter().map(|word| unit_of(&chars, word.range)).collect();
        let mut labels: Vec<Option<usize>> = rows
            .iter()
            .map(|row| {
                let row: Vec<f32> = row.iter().map(|&p| p as f32).collect();
                let top = row.iter().copied().fold(0.0, f32::max);
                let best = row.iter().position(|&p| p == top).unwrap();
                if top > threshold as f32 { Some(best) } else { None }
            })
            .collect();
        let before = labels.clone();
        for (i, label) in labels.iter_mut().enumerate() {
            if unit_of[i].is_some() {
                let run = run_around(&unit_of, i);
                *label = elected(&before, rows, &run, i);
            }
        }
        let mut spans: Vec<Decoded> = Vec::new();
        for i in 0..words.len() {
            let Some(label) = labels[i] else { continue };
            if i > 0 && labels[i - 1] == Some(label) {
                continue;
            }
            let end = (i..words.len()).find(|&j| labels[j] != Some(label)).unwrap_or(words.len());
            let range = trim(text, CharRange { start: words[i].range.start, end: words[end - 1].range.end });
            if range.start < range.end {
                let sum: f64 = (i..end).map(|word| rows[word][label]).sum();
                let probability = (sum / (end - i) as f64) as f32;
                spans.push(Decoded { label, range, words: i..end, probability });
            }
        }
        spans
    }

    pub(super) fn clip(text: &str, spans: Vec<Decoded>, field: CharRange) -> Vec<Decoded> {
        let mut clipped = Vec::new();
        for span in spans {
            let start = usize::max(span.range.start, field.start);
            let end = usize::min(span.range.end, field.end);
            if start < end {
                let range = trim(text, CharRange { start, end });
                if range.start < range.end {
                    clipped.push(Decoded { range, ..span });
                }
            }
        }
        clipped
    }

    /// The neighbours of a word, itself included, that lie in its unit without a break.
    fn run_around(unit_of: &[Option<usize>], word: usize) -> std::ops::Range<usize> {
        let same = |&i: &usize| unit_of[i] == unit_of[word];
        let start = (0..=word).rev().take_while(same).last().unwrap();
        let end = (word..unit_of.len()).take_while(same).last().unwrap() + 1;
        start..end
    }

    /// What a word is labelled after its run has voted.
    fn elected(
        labels: &[Option<usize>],
        rows: &[Vec<f64>],
        run: &std::ops::Range<usize>,
        word: usize,
    ) -> Option<usize> {
        let labelled: Vec<usize> = run.clone().filter(|&i| labels[i].is_some()).collect();
        let (first, last) = (*labelled.first()?, *labelled.last()?);
        if word < first || word > last {
            return None;
        }
        let mut sums: BTreeMap<usize, f64> = BTreeMap::new();
        for &i in &labelled {
            let label = labels[i].unwrap();
            *sums.entry(label).or_default() += f64::from(rows[i][label] as f32);
        }
        let most = sums.values().copied().fold(0.0, f64::max);
        labelled.iter().map(|&i| labels[i].unwrap()).find(|label| sums[label] == most)
    }

    /// The start of the unit that holds a word's first character that is not a space.
    fn unit_of(chars: &[char], word: CharRange) -> Option<usize> {
        let at = (word.start..word.end).find(|&i| !is_space(chars[i]))?;
        let mut start = 0;
        while start < chars.len() {
            let end = unit_end(chars, start);
            if start <= at && at < end {
                return Some(start);
            }
            start = usize::max(end, start + 1);
        }
        None
    }

    fn unit_end(chars: &[char], start: usize) -> usize {
        let rest: String = chars[start..].iter().collect();
        for head in ["http://", "https://", "www."] {
            if rest.starts_with(head)
                && let Some(end) = url_end(chars, start + head.len())
            {
                return end;
            }
        }
        let mut end = start;
        while end < chars.len() && ("@._-+".contains(chars[end]) || (is_word(chars[end]) && !is_cjk(chars[end]))) {
            end += 1;
        }
        if end > start { end } else { start + usize::from(!is_space(chars[start])) }
    }

    /// Lazily one character more, until only `.,;:!?` stand before the end or a character that ends a URL.
    fn url_end(chars: &[char], body: usize) -> Option<usize> {
        let stops = |c: char| is_space(c) || is_cjk(c) || "])}>「」『』\"'“”".contains(c);
        for end in body + 1..=chars.len() {
            if stops(chars[end - 1]) {
                return None;
            }
            for ahead in end..=chars.len() {
                if ahead == chars.len() || stops(chars[ahead]) {
                    return Some(end);
                }
                if !".,;:!?".contains(chars[ahead]) {
                    break;
                }
            }
        }
        None
    }

    fn trim(text: &str, range: CharRange) -> CharRange {
        let edge = |c: char| is_space(c) || "[](){}<>「」『』【】《》〈〉\"'“”‘’«»‹›".contains(c);
        let all: String = text.chars().skip(range.start).collect();
        let inside: String = all.chars().take(range.end - range.start).collect();
        let left = inside.trim_start_matches(edge);
        let start = range.end - left.chars().count();
        let mut kept = left.trim_end_matches(edge);
        let ahead: String = text.chars().skip(start).collect::<String>().to_lowercase().replace('ſ', "s");
        if ["http://", "https://", "www."].iter().any(|head| ahead.starts_with(head)) {
            kept = kept.split(is_cjk).next().unwrap();
            kept = kept.trim_end_matches(|c| edge(c) || ".,;:!?)".contains(c));
        }
        CharRange { start, end: start + kept.chars().count() }
    }
}
