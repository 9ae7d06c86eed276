//! What a member's `calibration.json` fits to its logits: temperatures, thresholds, and the presets' schemas (spec:
//! vela.md §9).
//!
//! A [`Calibration`] leaves nothing to check again: its temperatures are positive, its thresholds lie in [0, 1], an
//! absent block is `None` or empty, and a rule that can never act is absent. Applying it is not done here.

use std::collections::{BTreeMap, BTreeSet};

/// A member's calibration, read and checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    pub temperature: Temperatures,
    /// By `set:<key>`, `set:*`, `span:<key>` and `span:*`.
    pub thresholds: BTreeMap<String, f64>,
    /// The labels that count as personal data.
    pub pii_types: BTreeSet<String>,
    pub pii_length_rule: Option<LengthRule>,
    /// In file order, which is the order they are tried in.
    pub pii_buckets: Vec<Bucket>,
    pub pii_sparse_gate: Option<SparseGate>,
    /// The labels of the preset `pii`.
    pub pii_schema: Option<Schema>,
    /// The labels of the preset `halu`.
    pub halu_schema: Option<Schema>,
    /// The levels of the preset `relevance`.
    pub relevance_schema: Option<Schema>,
    pub broad_head: Option<BroadHead>,
    pub noul_calibration: Option<NoulCalibration>,
}

/// What logits are divided by, per engine type; 1 where the file is silent. A broad head has its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperatures {
    /// Of choice and noul.
    pub choice: f64,
    pub score: f64,
    pub set: f64,
    pub span: f64,
}

/// The PII threshold by the token count of the whole target part: log-linear between anchors, flat outside.
#[derive(Clone, Debug, PartialEq)]
pub struct LengthRule {
    /// At least one, `n_tokens` strictly ascending.
    pub anchors: Vec<Anchor>,
}

/// A point of the [`LengthRule`]; both values are positive, so that their logarithms exist.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Anchor {
    pub n_tokens: f64,
    pub threshold: f64,
}

/// The PII threshold of target parts of at most `max_tokens`, where there is no length rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Bucket {
    pub name: String,
    pub max_tokens: f64,
    pub threshold: f64,
}

/// Raises a PII threshold to `t_sparse` where decoding at the probe threshold finds at most `k` spans. A block whose
/// `K` is negative or whose `t_sparse` is absent never acts, and is no gate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SparseGate {
    pub k: f64,
    pub t_sparse: f64,
    pub probe_threshold: f64,
}

/// A preset's question: its text, and names with descriptions in file order.
#[derive(Clone, Debug, PartialEq)]
pub struct Schema {
    pub text: String,
    /// Labels of a span, levels of a score: name and description, which is empty where the file has null.
    pub options: Vec<(String, String)>,
}

/// Calibration of the second span head and the label sets that the first one keeps.
#[derive(Clone, Debug, PartialEq)]
pub struct BroadHead {
    pub temperature: f64,
    pub threshold: f64,
    /// The PII types and the halu labels where the file names none.
    pub router_label_sets: Vec<BTreeSet<String>>,
}

/// `sigmoid(logit(p) / T + b)` on a noul's probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NoulCalibration {
    pub t: f64,
    pub b: f64,
    /// Whether it applies where the deployment says nothing.
    pub default: bool,
}
