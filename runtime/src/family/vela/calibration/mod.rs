//! What a member's `calibration.json` fits to its logits: temperatures, thresholds, and the presets' schemas (spec:
//! vela.md §9).
//!
//! A [`Calibration`] leaves nothing to check again: its temperatures lie where no logit becomes infinite, its
//! thresholds in [0, 1], an absent block is `None` or empty, and a rule that can never act is absent. Keys that §9 does
//! not know are left alone. Applying it is not done here, nor comparing it with the weights, which is the member's.

mod node;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use self::node::Node;
use crate::wire::json::{JsonError, parse};

/// Why a `calibration.json` cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CalibrationError {
    #[error("calibration.json: {0}; fetch the file again")]
    Json(#[from] JsonError),
    /// `key` is the path of the value, such as `pii_buckets[1].threshold`.
    #[error("calibration.json: {key}: expected {expected}, found {found}; fetch the file again")]
    Value { key: String, expected: &'static str, found: String },
}

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

/// Calibration of the second span head and the label sets that the first one keeps. A block without a threshold
/// decides nothing, and is none.
#[derive(Clone, Debug, PartialEq)]
pub struct BroadHead {
    pub temperature: f64,
    pub threshold: f64,
    /// The PII types and the halu labels where the file names none.
    pub router_label_sets: Vec<BTreeSet<String>>,
}

/// `sigmoid(logit(p) / T + b)` on a noul's probability. A block that has not both and that the file does not enable is
/// none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NoulCalibration {
    pub t: f64,
    pub b: f64,
    /// Whether it applies where the deployment says nothing.
    pub default: bool,
}

impl Calibration {
    /// Reads the bytes of a `calibration.json`.
    ///
    /// # Errors
    /// [`CalibrationError`], which names the first key that is wrong.
    pub fn parse(bytes: &[u8]) -> Result<Calibration, CalibrationError> {
        let file = parse(bytes)?;
        let root = Node::root(&file);
        root.members("an object")?;
        let pii_types = label_set(&root.child("pii_types"))?;
        let halu_schema = schema(&root.child("halu_schema"), "labels")?;
        let halu_labels = halu_schema.iter().flat_map(|schema| &schema.options).map(|(name, _)| name.clone()).collect();
        Ok(Calibration {
            temperature: temperatures(&root.child("temperature"))?,
            thresholds: thresholds(&root.child("thresholds"))?,
            pii_length_rule: root.child("pii_length_rule").given().map(length_rule).transpose()?,
            pii_buckets: root.child("pii_buckets").items()?.iter().map(bucket).collect::<Result<_, _>>()?,
            pii_sparse_gate: sparse_gate(&root.child("pii_sparse_gate"))?,
            pii_schema: schema(&root.child("pii_schema"), "labels")?,
            // A score of one level has no spread: nothing can be asked of it.
            relevance_schema: schema(&root.child("relevance_schema"), "levels")?
                .filter(|schema| schema.options.len() > 1),
            broad_head: broad_head(&root.child("broad_head"), [&pii_types, &halu_labels])?,
            noul_calibration: noul_calibration(&root.child("noul_calibration"))?,
            pii_types,
            halu_schema,
        })
    }
}

fn temperatures(block: &Node<'_>) -> Result<Temperatures, CalibrationError> {
    block.members("an object of temperatures")?;
    let of = |engine| block.child(engine).given().map_or(Ok(1.0), Node::temperature);
    Ok(Temperatures { choice: of("choice")?, score: of("score")?, set: of("set")?, span: of("span")? })
}

fn thresholds(block: &Node<'_>) -> Result<BTreeMap<String, f64>, CalibrationError> {
    let members = block.members("an object of thresholds")?.into_iter();
    members
        .filter(|(name, _)| name.starts_with("set:") || name.starts_with("span:"))
        .map(|(name, value)| Ok((name.to_owned(), value.threshold()?)))
        .collect()
}

fn label_set(list: &Node<'_>) -> Result<BTreeSet<String>, CalibrationError> {
    list.items()?.iter().map(|label| Ok(label.text()?.to_owned())).collect()
}

fn length_rule(block: &Node<'_>) -> Result<LengthRule, CalibrationError> {
    let mut anchors: Vec<Anchor> = Vec::new();
    let list = block.child("anchors");
    for item in list.items()? {
        let n_tokens = item.child("n_tokens");
        let anchor = Anchor { n_tokens: n_tokens.positive()?, threshold: item.child("threshold").threshold()? };
        if anchors.last().is_some_and(|last| last.n_tokens >= anchor.n_tokens) {
            return Err(n_tokens.unlike("more tokens than at the anchor before"));
        }
        if anchor.threshold == 0.0 {
            return Err(item.child("threshold").unlike("a threshold with a logarithm"));
        }
        anchors.push(anchor);
    }
    if anchors.is_empty() {
        return Err(list.unlike("at least one anchor"));
    }
    Ok(LengthRule { anchors })
}

fn bucket(item: &Node<'_>) -> Result<Bucket, CalibrationError> {
    Ok(Bucket {
        name: item.child("name").text()?.to_owned(),
        max_tokens: item.child("max_tokens").positive()?,
        threshold: item.child("threshold").threshold()?,
    })
}

fn sparse_gate(block: &Node<'_>) -> Result<Option<SparseGate>, CalibrationError> {
    let (k, t_sparse) = (block.child("K"), block.child("t_sparse"));
    let (Some(k), Some(t_sparse)) = (k.given(), t_sparse.given()) else { return Ok(None) };
    let gate = SparseGate {
        k: k.number("a number of spans")?,
        t_sparse: t_sparse.threshold()?,
        probe_threshold: block.child("probe_threshold").given().map_or(Ok(0.5), Node::threshold)?,
    };
    Ok(Some(gate).filter(|gate| gate.k >= 0.0))
}

/// A schema; an empty block is none.
fn schema(block: &Node<'_>, list: &str) -> Result<Option<Schema>, CalibrationError> {
    if block.members("an object with text")?.is_empty() {
        return Ok(None);
    }
    let names = block.child(list);
    let options: Vec<_> = names
        .members("an object of names and descriptions")?
        .into_iter()
        .map(|(name, description)| Ok((name.to_owned(), description.description()?)))
        .collect::<Result<_, CalibrationError>>()?;
    if options.is_empty() {
        return Err(names.unlike("at least one name"));
    }
    Ok(Some(Schema { text: block.child("text").text()?.to_owned(), options }))
}

fn broad_head(
    block: &Node<'_>,
    default_label_sets: [&BTreeSet<String>; 2],
) -> Result<Option<BroadHead>, CalibrationError> {
    block.members("an object with a threshold")?;
    let threshold = block.child("threshold");
    if threshold.given().is_none() {
        return Ok(None);
    }
    let list = block.child("router_label_sets");
    let mut router_label_sets: Vec<_> = list.items()?.iter().map(label_set).collect::<Result<_, _>>()?;
    if router_label_sets.is_empty() {
        router_label_sets = default_label_sets.map(BTreeSet::clone).into();
    }
    Ok(Some(BroadHead {
        temperature: block.child("temperature").given().map_or(Ok(1.0), Node::temperature)?,
        threshold: threshold.threshold()?,
        router_label_sets,
    }))
}

fn noul_calibration(block: &Node<'_>) -> Result<Option<NoulCalibration>, CalibrationError> {
    block.members("an object with T and b")?;
    let (t, b) = (block.child("T"), block.child("b"));
    let default = block.child("default").given().map_or(Ok(false), Node::boolean)?;
    if !default && (t.given().is_none() || b.given().is_none()) {
        return Ok(None);
    }
    Ok(Some(NoulCalibration { t: t.temperature()?, b: b.number("a number")?, default }))
}
