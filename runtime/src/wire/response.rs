//! Answers and refusals, and their exact text (vela.md §9, system-one.md).

use super::json::Value;

/// One state's part of a response: everything but `model`.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// In question order; a Set's label answers stand in its place as `<id>.<label>`.
    pub answers: Vec<(String, Answer)>,
    pub input_tokens: usize,
    pub spans: Vec<(String, Vec<Span>)>,
    /// Empty for a member without a broad head.
    pub span_heads: Vec<(String, &'static str)>,
    pub sets: Vec<(String, SetAnswer)>,
    pub thresholds: Vec<(String, f64)>,
}

/// An answer to one question, or to one label of a Set.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Choice { choice: String, confidence: f64, probabilities: Vec<(String, f64)>, abstain_probability: Option<f64> },
    Noul { noul: f64, abstain_probability: Option<f64> },
    Score { score: f64, confidence: f64, legend: Vec<String>, probabilities: Vec<f64> },
    /// `/v1/decisions` only. `kind` is the question's `type` as sent, null if unreadable.
    Failed { kind: Value, error: String, message: String },
}

/// A decoded span; offsets are code points of the field or part that the question reads.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    pub label: String,
    pub start: usize,
    pub end: usize,
    pub text: String,
    /// The float32 mean, widened.
    pub probability: f64,
}

/// The `sets` entry of a Set question.
#[derive(Clone, Debug, PartialEq)]
pub struct SetAnswer {
    pub selected: Vec<String>,
    pub probabilities: Vec<(String, f64)>,
}

/// Why a request has no answer. A class, never a status: `http` holds that table.
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    /// One entry per invalid question or field.
    Invalid(Vec<Detail>),
    /// The questions alone do not fit the member's input.
    TooLong { message: String },
    /// A logit is not finite.
    InvalidModelOutput { question: String },
}

/// One entry of a 422's `detail`.
#[derive(Clone, Debug, PartialEq)]
pub struct Detail {
    pub loc: Vec<Loc>,
    pub msg: String,
    /// A stable code of the table in system-one.md.
    pub code: &'static str,
}

/// A step of a `loc`.
#[derive(Clone, Debug, PartialEq)]
pub enum Loc {
    Key(String),
    Index(usize),
}
