//! Probabilities from logits, and the threshold that decides (spec: vela.md §9).
//!
//! Everything is float64 in the reference's order of operations, with libm's `exp` and `log`, so that recorded logits
//! give the recorded answers to the last digit. Nothing here knows texts or spans: the sparse gate asks its caller.

use super::calibration::{BroadHead, Calibration, LengthRule, NoulCalibration};
use super::questions::{Kind, Question};
use crate::family::SpanHead;

/// A span question's threshold, and the name of the rule that chose it.
#[derive(Clone, Debug, PartialEq)]
pub struct SpanThreshold {
    pub value: f64,
    pub rule: String,
    /// Whether one of the PII rules chose it, which the sparse gate may follow.
    pii: bool,
}

/// What a question's logits are divided by.
pub fn temperature(calibration: &Calibration, question: &Question) -> f64 {
    let fitted = &calibration.temperature;
    match (question.kind, question.head) {
        (Kind::Choice | Kind::Noul, _) => fitted.choice,
        (Kind::Score, _) => fitted.score,
        (Kind::Set, _) => fitted.set,
        (Kind::Span, SpanHead::Router) => fitted.span,
        (Kind::Span, SpanHead::Broad) => broad_head(calibration).temperature,
    }
}

/// Softmax of logits divided by a temperature; sums run left to right. Empty for no logits.
pub fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
    let scaled: Vec<f64> = logits.iter().map(|&logit| f64::from(logit) / temperature).collect();
    let top = scaled.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scaled.iter().map(|x| (x - top).exp()).collect();
    let total: f64 = weights.iter().fold(0.0, |sum, weight| sum + weight);
    weights.iter().map(|weight| weight / total).collect()
}

/// `1 / (1 + exp(-x))`.
pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// A noul's probability after its calibration, where the file or the deployment enables it.
pub fn noul_probability(p: f64, fit: Option<&NoulCalibration>, enabled_by_deployment: bool) -> f64 {
    let Some(fit) = fit.filter(|fit| fit.default || enabled_by_deployment) else { return p };
    let p = p.clamp(1e-12, 1.0 - 1e-12);
    sigmoid((p.ln() - (-p).ln_1p()) / fit.t + fit.b)
}

/// The threshold of a Set.
pub fn set_threshold(calibration: &Calibration, question: &Question) -> f64 {
    let fitted = |name: &str| calibration.thresholds.get(name).copied();
    let by_key = || fitted(&format!("set:{}", question.key));
    question.threshold.or_else(by_key).or_else(|| fitted("set:*")).unwrap_or(0.5)
}

/// The threshold of a span before the sparse gate; `target_tokens` is the length of the whole target part.
pub fn span_threshold(calibration: &Calibration, question: &Question, target_tokens: usize) -> SpanThreshold {
    let chosen = |value: f64, rule: &str| SpanThreshold { value, rule: rule.to_owned(), pii: false };
    if let Some(given) = question.threshold {
        return chosen(given, "given");
    }
    if question.head == SpanHead::Broad {
        return chosen(broad_head(calibration).threshold, "broad");
    }
    let is_pii = question.key == "pii" || question.names.iter().all(|name| calibration.pii_types.contains(name));
    if is_pii && let Some(threshold) = pii_threshold(calibration, target_tokens) {
        return threshold;
    }
    let name = format!("span:{}", question.key);
    let shown = if matches!(question.key.as_str(), "halu" | "toxic") { &question.key } else { &name };
    if let Some(&fitted) = calibration.thresholds.get(&name) {
        return chosen(fitted, shown);
    }
    chosen(calibration.thresholds.get("span:*").copied().unwrap_or(0.5), "span:*")
}

/// The sparse gate, which raises a threshold of the PII rules where few spans are found at the probe threshold;
/// `count_at(t)` is the number of spans decoded at `t` among the `words` that were read.
pub fn sparse_gate(
    calibration: &Calibration,
    threshold: SpanThreshold,
    words: usize,
    count_at: impl FnOnce(f64) -> usize,
) -> SpanThreshold {
    let Some(gate) = &calibration.pii_sparse_gate else { return threshold };
    if !threshold.pii || threshold.value >= gate.t_sparse || words == 0 {
        return threshold;
    }
    if count_at(gate.probe_threshold) as f64 > gate.k {
        return threshold;
    }
    SpanThreshold { value: gate.t_sparse, rule: threshold.rule + "+sparse", pii: true }
}

/// The length rule, or without one the first bucket that is large enough; `None` beyond the last bucket.
fn pii_threshold(calibration: &Calibration, target_tokens: usize) -> Option<SpanThreshold> {
    let tokens = target_tokens as f64;
    if let Some(rule) = &calibration.pii_length_rule {
        return Some(SpanThreshold { value: length_threshold(rule, tokens), rule: "pii:length".to_owned(), pii: true });
    }
    let bucket = calibration.pii_buckets.iter().find(|bucket| tokens <= bucket.max_tokens)?;
    Some(SpanThreshold { value: bucket.threshold, rule: format!("pii:{}", bucket.name), pii: true })
}

/// Log threshold, linear in log token count between the anchors, flat outside; an anchor's own threshold at it.
#[allow(clippy::float_cmp, reason = "both are whole token counts")]
fn length_threshold(rule: &LengthRule, tokens: f64) -> f64 {
    const ANCHORED: &str = "a length rule has at least one anchor";
    let (first, last) = (rule.anchors.first().expect(ANCHORED), rule.anchors.last().expect(ANCHORED));
    if tokens <= first.n_tokens {
        return first.threshold;
    }
    for pair in rule.anchors.windows(2) {
        let (low, high) = (&pair[0], &pair[1]);
        if tokens == high.n_tokens {
            return high.threshold;
        }
        if tokens < high.n_tokens {
            let part = (tokens.ln() - low.n_tokens.ln()) / (high.n_tokens.ln() - low.n_tokens.ln());
            return (low.threshold.ln() + part * (high.threshold.ln() - low.threshold.ln())).exp();
        }
    }
    last.threshold
}

fn broad_head(calibration: &Calibration) -> &BroadHead {
    calibration.broad_head.as_ref().expect("no question reads a broad head that has no calibration")
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exact values are meant")]
mod tests {
    use super::*;
    use crate::family::vela::calibration::Anchor;

    #[test]
    fn sigmoid_keeps_its_ends() {
        assert_eq!(sigmoid(0.0), 0.5);
        assert_eq!(sigmoid(-1e4), 0.0);
        assert_eq!(sigmoid(1e4), 1.0);
    }

    #[test]
    fn noul_calibration_acts_where_the_file_or_the_deployment_says_so() {
        let mut fit = NoulCalibration { t: 1.4, b: -0.2, default: false };
        assert_eq!(noul_probability(0.3, Some(&fit), false), 0.3);
        assert_eq!(noul_probability(0.3, None, true), 0.3);
        // 1 / (1 + exp(-((log(0.3) - log1p(-0.3)) / 1.4 - 0.2))) in Python.
        let expected = 0.308_911_565_175_396;
        assert!((noul_probability(0.3, Some(&fit), true) - expected).abs() < 1e-12);
        fit.default = true;
        assert!((noul_probability(0.3, Some(&fit), false) - expected).abs() < 1e-12);
        assert!(noul_probability(0.0, Some(&fit), false) > 0.0 && noul_probability(1.0, Some(&fit), false) < 1.0);
    }

    #[test]
    fn the_length_rule_is_log_linear_between_anchors_and_flat_outside() {
        let rule = LengthRule {
            anchors: vec![
                Anchor { n_tokens: 20.0, threshold: 0.8 },
                Anchor { n_tokens: 80.0, threshold: 0.2 },
                Anchor { n_tokens: 320.0, threshold: 0.05 },
            ],
        };
        let check = |tokens: f64, expected: f64| {
            let found = length_threshold(&rule, tokens);
            assert!((found - expected).abs() < 1e-15, "{tokens}: {found} instead of {expected}");
        };
        check(0.0, 0.8);
        check(20.0, 0.8);
        check(40.0, 0.4);
        check(80.0, 0.2);
        check(160.0, 0.1);
        check(320.0, 0.05);
        check(5000.0, 0.05);
        let single = LengthRule { anchors: vec![Anchor { n_tokens: 20.0, threshold: 0.8 }] };
        assert_eq!(length_threshold(&single, 1000.0), 0.8);
    }
}
