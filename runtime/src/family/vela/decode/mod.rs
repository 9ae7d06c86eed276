//! From word probabilities to spans of text (spec: vela.md §9, "Decoding").
//!
//! Invariant: a span never contains a word that was rejected, and no span is empty. Decisions are taken in float32, as
//! the reference takes them; offsets are code points of the whole part. Thresholds are chosen elsewhere, logits are not
//! known here.

mod mean;
mod trim;

use std::ops::Range;

use self::mean::mean_f32;
use self::trim::trim;
use super::unicode::is_space;
use super::words::{Word, split_units};
use crate::family::CharRange;

/// A part's text with its words, and the unit that each of them lies in.
pub struct WordText {
    chars: Vec<char>,
    words: Vec<CharRange>,
    /// By word: an index of its unit, or none.
    units: Vec<Option<usize>>,
}

/// The probabilities of one span question: of every word that was read, for every label.
pub struct Probabilities {
    labels: usize,
    /// `[words, labels]`, rounded to float32.
    values: Vec<f32>,
    /// By word: the most probable label in float32, the first of equals.
    best: Vec<usize>,
    /// By word: the largest probability, in float64.
    largest: Vec<f64>,
}

/// A span of a part.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// Index of its label.
    pub label: usize,
    pub range: CharRange,
    /// The words that it was made of; trimming may have left some of them outside its range.
    pub words: Range<usize>,
    /// The mean over its words of their probabilities for its label.
    pub probability: f32,
}

impl WordText {
    /// `words` are the words of `text` that have tokens, ascending.
    pub fn new(text: &str, words: &[Word]) -> Self {
        let chars: Vec<char> = text.chars().collect();
        let words: Vec<CharRange> = words.iter().map(|word| word.range).collect();
        let units = units_of_words(&chars, &words, &split_units(text));
        WordText { chars, words, units }
    }

    /// Length of the text in code points.
    pub fn len_chars(&self) -> usize {
        self.chars.len()
    }

    /// The ranges of its words.
    pub fn words(&self) -> &[CharRange] {
        &self.words
    }

    /// The text of a range.
    pub fn slice(&self, range: CharRange) -> String {
        self.chars[range.start..range.end].iter().collect()
    }
}

impl Probabilities {
    /// Room for `words` rows of `labels` values, at least one label.
    pub fn with_capacity(words: usize, labels: usize) -> Self {
        Probabilities {
            labels,
            values: Vec::with_capacity(words * labels),
            best: Vec::with_capacity(words),
            largest: Vec::with_capacity(words),
        }
    }

    /// Adds the next word's probabilities, one per label, none of them NaN.
    ///
    /// # Panics
    /// If they are not as many as the labels.
    pub fn push(&mut self, row: impl IntoIterator<Item = f64>) {
        let from = self.values.len();
        let mut largest = f64::NEG_INFINITY;
        for probability in row {
            largest = largest.max(probability);
            self.values.push(probability as f32);
        }
        let row = &self.values[from..];
        assert_eq!(row.len(), self.labels, "a word has one probability per label");
        self.best.push((1..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best }));
        self.largest.push(largest);
    }

    /// How many words were read.
    pub fn words(&self) -> usize {
        self.best.len()
    }

    /// By word: its largest probability.
    pub fn largest(&self) -> &[f64] {
        &self.largest
    }

    fn of(&self, word: usize, label: usize) -> f32 {
        self.values[word * self.labels + label]
    }

    /// The word's most probable label if its probability is above the threshold.
    fn pick(&self, word: usize, threshold: f32) -> Option<usize> {
        let best = self.best[word];
        (self.of(word, best) > threshold).then_some(best)
    }
}

/// The spans of the first `probabilities.words()` words of a text, in text order.
pub fn decode(text: &WordText, probabilities: &Probabilities, threshold: f64) -> Vec<Decoded> {
    let labels = label_words(text, probabilities, threshold as f32);
    let mut spans = Vec::new();
    let mut from = 0;
    for run in labels.chunk_by(|left, right| left == right) {
        let words = from..from + run.len();
        from = words.end;
        let Some(label) = run[0] else { continue };
        let range = CharRange { start: text.words[words.start].start, end: text.words[words.end - 1].end };
        let range = trim(&text.chars, range);
        if range.start < range.end {
            let probability = mean_f32(words.len(), |i| probabilities.of(words.start + i, label));
            spans.push(Decoded { label, range, words, probability });
        }
    }
    spans
}

/// The spans inside a field, trimmed again; those of which nothing is left are dropped.
pub fn clip(text: &WordText, spans: Vec<Decoded>, field: CharRange) -> Vec<Decoded> {
    let inside = |mut span: Decoded| {
        let range = CharRange { start: span.range.start.max(field.start), end: span.range.end.min(field.end) };
        span.range = trim(&text.chars, range);
        (span.range.start < span.range.end).then_some(span)
    };
    spans.into_iter().filter_map(inside).collect()
}

/// Each word's label, after the votes inside units.
fn label_words(text: &WordText, probabilities: &Probabilities, threshold: f32) -> Vec<Option<usize>> {
    let mut labels: Vec<_> = (0..probabilities.words()).map(|word| probabilities.pick(word, threshold)).collect();
    let mut from = 0;
    for run in text.units[..labels.len()].chunk_by(|left, right| left == right) {
        if run[0].is_some() {
            vote(&mut labels[from..from + run.len()], |word, label| probabilities.of(from + word, label));
        }
        from += run.len();
    }
    labels
}

/// Gives the words of one unit, from the first labelled one to the last, the label with the largest summed
/// probability; the first seen of equals wins.
fn vote(labels: &mut [Option<usize>], probability: impl Fn(usize, usize) -> f32) {
    let mut sums: Vec<(usize, f64)> = Vec::new();
    for (word, label) in labels.iter().enumerate() {
        let Some(label) = *label else { continue };
        let vote = f64::from(probability(word, label));
        match sums.iter_mut().find(|(seen, _)| *seen == label) {
            Some((_, sum)) => *sum += vote,
            None => sums.push((label, vote)),
        }
    }
    let winner = sums.into_iter().reduce(|best, next| if next.1 > best.1 { next } else { best });
    let first = labels.iter().position(Option::is_some);
    let last = labels.iter().rposition(Option::is_some);
    if let (Some((winner, _)), Some(first), Some(last)) = (winner, first, last) {
        labels[first..=last].fill(Some(winner));
    }
}

/// By word: the unit that holds its first character that is not a space. Both lists ascend.
fn units_of_words(chars: &[char], words: &[CharRange], units: &[CharRange]) -> Vec<Option<usize>> {
    let mut at = 0;
    let unit_of = |word: &CharRange| {
        let start = (word.start..word.end).find(|&i| !is_space(chars[i]))?;
        while units.get(at).is_some_and(|unit| unit.end <= start) {
            at += 1;
        }
        units.get(at).is_some_and(|unit| unit.start <= start).then_some(at)
    };
    words.iter().map(unit_of).collect()
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "maxima and votes are compared with the values they were taken from")]
mod tests;
