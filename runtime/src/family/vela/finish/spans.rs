//! A span question's answer: words, logits of one block or of many windows, threshold, spans (spec: vela.md §9).

use super::{Reading, SpanPart};
use crate::family::CharRange;
use crate::family::vela::calibration::Calibration;
use crate::family::vela::decode::{Decoded, Probabilities, WordText, clip, decode};
use crate::family::vela::questions::Question;
use crate::family::vela::thresholds::{SpanThreshold, sigmoid, span_threshold, sparse_gate, temperature};
use crate::wire::response::Span;

/// The logit, for every label, of a word that no window covers.
const NO_WINDOW: f64 = -30.0;

/// A part that spans read.
pub(in crate::family::vela) struct Target {
    text: WordText,
    /// Of the whole part: what the length rules go by.
    tokens: usize,
}

/// The spans of a whole part, and how they came about.
pub(in crate::family::vela) struct Decoding {
    pub(in crate::family::vela) threshold: SpanThreshold,
    pub(in crate::family::vela) spans: Vec<Decoded>,
    probabilities: Probabilities,
}

/// What a span question is answered with.
pub(super) struct Answered {
    /// The largest word probability.
    pub(super) noul: f64,
    /// Clipped to the field, in its offsets.
    pub(super) spans: Vec<Span>,
    pub(super) threshold: f64,
}

impl Target {
    pub(in crate::family::vela) fn new(part: &SpanPart) -> Self {
        Target { text: WordText::new(&part.text, &part.words), tokens: part.tokens }
    }

    /// The answer from `readings`: those of the question's own block, or of all its windows.
    pub(super) fn answer(&self, calibration: &Calibration, question: &Question, readings: &[Reading<'_>]) -> Answered {
        let Decoding { threshold, mut spans, probabilities } = self.decode(calibration, question, readings);
        let mut field = CharRange { start: 0, end: self.text.len_chars() };
        if let Some(over) = &question.over_field {
            field = over.range;
            spans = clip(&self.text, spans, field);
        }
        let in_field = |span: Decoded| Span {
            label: question.names[span.label].clone(),
            start: span.range.start - field.start,
            end: span.range.end - field.start,
            text: self.text.slice(span.range),
            probability: f64::from(span.probability),
        };
        Answered {
            noul: self.largest_inside(field, &probabilities),
            spans: spans.into_iter().map(in_field).collect(),
            threshold: threshold.value,
        }
    }

    /// Decodes the whole part; the sparse gate sees it before any clipping.
    pub(in crate::family::vela) fn decode(
        &self,
        calibration: &Calibration,
        question: &Question,
        readings: &[Reading<'_>],
    ) -> Decoding {
        let probabilities = self.probabilities(question.options.len(), temperature(calibration, question), readings);
        let count_at = |probe| decode(&self.text, &probabilities, probe).len();
        let threshold = span_threshold(calibration, question, self.tokens);
        let threshold = sparse_gate(calibration, threshold, probabilities.words(), count_at);
        let spans = decode(&self.text, &probabilities, threshold.value);
        Decoding { threshold, spans, probabilities }
    }

    fn probabilities(&self, labels: usize, temperature: f64, readings: &[Reading<'_>]) -> Probabilities {
        let probability = |logit: f64| sigmoid(logit / temperature);
        match readings {
            [Reading { read, logits }] if !read.is_window => {
                let mut probabilities = Probabilities::with_capacity(logits.rows(), labels);
                for row in 0..read.rows.len() {
                    probabilities.push(logits.row(row).iter().map(|&logit| probability(f64::from(logit))));
                }
                probabilities
            }
            windows => {
                let logits = window_means(self.text.words().len(), labels, windows);
                let mut probabilities = Probabilities::with_capacity(self.text.words().len(), labels);
                for row in logits.chunks_exact(labels) {
                    probabilities.push(row.iter().map(|&logit| probability(logit)));
                }
                probabilities
            }
        }
    }

    /// The largest probability of the words that lie in the field entirely; 0 without any.
    fn largest_inside(&self, field: CharRange, probabilities: &Probabilities) -> f64 {
        let inside = |(word, _): &(&CharRange, &f64)| word.start >= field.start && word.end <= field.end;
        let words = self.text.words().iter().zip(probabilities.largest()).filter(inside);
        words.map(|(_, &largest)| largest).reduce(f64::max).unwrap_or(0.0)
    }
}

/// `[words, labels]`: the mean logits over the windows that cover each word.
fn window_means(words: usize, labels: usize, windows: &[Reading<'_>]) -> Vec<f64> {
    let mut sums = vec![0.0; words * labels];
    let mut counts = vec![0_u32; words];
    for Reading { read, logits } in windows {
        for (row, word) in read.rows.clone().enumerate() {
            counts[word] += 1;
            for (sum, &logit) in sums[word * labels..].iter_mut().zip(logits.row(row)) {
                *sum += f64::from(logit);
            }
        }
    }
    for (sums, &count) in sums.chunks_exact_mut(labels).zip(&counts) {
        if count == 0 {
            sums.fill(NO_WINDOW);
        } else {
            for sum in sums {
                *sum /= f64::from(count);
            }
        }
    }
    sums
}
