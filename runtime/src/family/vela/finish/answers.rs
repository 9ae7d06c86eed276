//! The figures of a choice and a score (spec: vela.md §9).

use crate::family::vela::questions::Question;
use crate::wire::response::Answer;

/// The first of the largest logits is chosen; the margin between the two largest probabilities is the confidence.
pub(super) fn choice(
    question: &Question,
    logits: &[f32],
    probabilities: &[f64],
    abstain_probability: Option<f64>,
) -> Answer {
    let best = (1..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best });
    let named = question.options.iter().zip(probabilities).map(|((name, _), &p)| (name.clone(), p));
    Answer::Choice {
        choice: question.options[best].0.clone(),
        confidence: margin(probabilities),
        probabilities: named.collect(),
        abstain_probability,
    }
}

/// The expected level, and how little the levels spread around it.
pub(super) fn score(legend: &[String], probabilities: Vec<f64>) -> Answer {
    let levels = || probabilities.iter().enumerate().map(|(level, &p)| (level as f64, p));
    let score = levels().fold(0.0, |sum, (level, p)| sum + level * p);
    let spread = levels().fold(0.0, |sum, (level, p)| sum + p * ((level - score) * (level - score)));
    let n = probabilities.len() as f64;
    let confidence = (1.0 - spread / ((n * n - 1.0) / 12.0)).clamp(0.0, 1.0);
    Answer::Score { score, confidence, legend: legend.to_vec(), probabilities }
}

fn margin(probabilities: &[f64]) -> f64 {
    let (mut first, mut second) = (f64::NEG_INFINITY, f64::NEG_INFINITY);
    for &p in probabilities {
        if p > first {
            (first, second) = (p, first);
        } else if p > second {
            second = p;
        }
    }
    (first - second).clamp(0.0, 1.0)
}
