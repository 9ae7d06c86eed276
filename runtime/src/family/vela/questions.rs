//! Questions, presets, `over`, and which span head reads a question (spec: vela.md §4, §8).

use super::state::{Field, Role};
use crate::family::SpanHead;

/// What a question asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Choice,
    Noul,
    Score,
    Set,
    Span,
}

/// A question as it was understood.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    pub id: String,
    pub kind: Kind,
    /// The instructions as text.
    pub text: String,
    /// Name and description of each option; a span's labels as they are rendered (after renaming to `unsupported`).
    pub options: Vec<(String, String)>,
    /// The parts it reads, in part order; a span has exactly one.
    pub roles: Vec<Role>,
    /// The calibration key: the preset's name, else the id.
    pub key: String,
    /// Whether the block shows the abstain option (choice and noul).
    pub abstain: bool,
    /// A score's legend.
    pub legend: Vec<String>,
    /// A set's or span's labels as the caller wrote them.
    pub names: Vec<String>,
    /// The state key that a span is clipped to.
    pub over_field: Option<Field>,
    pub threshold: Option<f64>,
    /// A span's head; [`SpanHead::Router`] for every other kind, which does not use it.
    pub head: SpanHead,
}
