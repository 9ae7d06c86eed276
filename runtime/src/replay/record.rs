//! The format of a recorded case, as it stands in its file (recipe/vela: "The format of a case").
//!
//! What the runtime works out for itself has a constructor from its own types, so that both sides are compared in one
//! form. Keys that are not known are refused: a misspelt one would be a comparison that is never made.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::family::vela::layout::{LaidBlock, LaidTree, Numbers, TokenPart};
use crate::family::vela::questions::{Kind, Question};
use crate::family::vela::state::{Field, Part, Role};

/// A file. What is [`IgnoredAny`] is an account for people.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CaseFile {
    #[serde(rename = "case")]
    _case: String,
    pub(super) member: String,
    #[serde(rename = "about")]
    _about: Option<IgnoredAny>,
    #[serde(rename = "relies_on")]
    _relies_on: Option<IgnoredAny>,
    #[serde(rename = "recorded_with")]
    _recorded_with: Option<IgnoredAny>,
    pub(super) request: Value,
    pub(super) request_text: String,
    pub(super) parts: Option<Vec<PartRecord>>,
    pub(super) questions: Option<Vec<QuestionRecord>>,
    pub(super) trees: Option<Vec<TreeRecord>>,
    pub(super) logits: Option<Entries<Vec<LogitsRecord>>>,
    pub(super) head_inputs: Option<Entries<Vec<HeadInputsRecord>>>,
    #[serde(rename = "answering")]
    _answering: Option<IgnoredAny>,
    pub(super) margin: Option<MarginRecord>,
    pub(super) response: Option<Value>,
    pub(super) response_text: Option<String>,
    pub(super) error: Option<ErrorRecord>,
}

/// A part of the state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PartRecord {
    role: String,
    text: String,
    fields: Vec<(String, usize, usize)>,
    ids: Vec<u32>,
    /// Start and end in code points, first token.
    words: Vec<(usize, usize, usize)>,
}

/// A question as it was understood.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct QuestionRecord {
    id: String,
    kind: String,
    engine: String,
    key: String,
    roles: Vec<String>,
    field: Option<(String, usize, usize)>,
    shown: Vec<(String, String)>,
    abstain: bool,
    head: Option<String>,
    /// An account for people: the runtime keeps no name for the rule.
    #[serde(rename = "head_rule", default, skip_serializing)]
    _head_rule: IgnoredAny,
}

/// A tree, with blocks that windows replace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TreeRecord {
    pub(super) row: usize,
    pub(super) window: Option<(usize, usize)>,
    /// Kept tokens by part.
    pub(super) kept: Option<Entries<usize>>,
    pub(super) truncation: Option<TruncationRecord>,
    pub(super) prefix: Vec<u32>,
    pub(super) blocks: Vec<BlockRecord>,
}

/// The figures of a tree's truncation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TruncationRecord {
    fixed: usize,
    schema: usize,
    overhead: usize,
    budget: usize,
    over: i64,
    lengths: Entries<usize>,
}

/// A question's block.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BlockRecord {
    pub(super) question: String,
    /// The engine type: choice, score, set or span.
    pub(super) kind: String,
    pub(super) head: Option<String>,
    pub(super) replaced_by_windows: bool,
    pub(super) ids: Vec<u32>,
    /// First token of every option or label.
    pub(super) starts: Vec<u32>,
    /// The token after the last one of every option or label.
    pub(super) ends: Vec<u32>,
    /// Index of a word in its part, and its position in the block.
    pub(super) words: Vec<(usize, u32)>,
}

/// The logits of one question in one tree.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LogitsRecord {
    pub(super) row: usize,
    pub(super) window: Option<(usize, usize)>,
    pub(super) values: Values,
}

/// One value per option, or one row per word.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a list of numbers, or a list of lists of numbers")]
pub(super) enum Values {
    Options(Vec<Real>),
    Words(Vec<Vec<Real>>),
}

/// What the head of one question took in one tree: options and query, or words and labels.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HeadInputsRecord {
    pub(super) row: usize,
    pub(super) window: Option<(usize, usize)>,
    pub(super) options: Option<Vec<Vec<Real>>>,
    pub(super) query: Option<Vec<Real>>,
    pub(super) words: Option<Vec<Vec<Real>>>,
    pub(super) labels: Option<Vec<Vec<Real>>>,
}

/// The smallest distance of a decision to another one.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MarginRecord {
    pub(super) value: f64,
    #[serde(rename = "question")]
    _question: Option<IgnoredAny>,
}

/// A refusal: its status and its body's one key. Everything else is the recorder's account of it.
#[derive(Deserialize)]
pub(super) struct ErrorRecord {
    pub(super) status: u16,
    pub(super) detail: Option<Value>,
    pub(super) error: Option<Value>,
}

impl PartRecord {
    pub(super) fn of(part: &Part, tokens: &TokenPart) -> Self {
        Self {
            role: part.role.name().to_owned(),
            text: part.text.clone(),
            fields: part.fields.iter().map(field).collect(),
            ids: tokens.ids.clone(),
            words: tokens.words.iter().map(|word| (word.range.start, word.range.end, word.token)).collect(),
        }
    }
}

impl QuestionRecord {
    pub(super) fn of(question: &Question) -> Self {
        Self {
            id: question.id.clone(),
            kind: question.kind.name().to_owned(),
            engine: question.kind.engine().to_owned(),
            key: question.key.clone(),
            roles: question.roles.iter().map(|role| role.name().to_owned()).collect(),
            field: question.over_field.as_ref().map(field),
            shown: question.options.clone(),
            abstain: question.abstain,
            head: (question.kind == Kind::Span).then(|| question.head.name().to_owned()),
            _head_rule: IgnoredAny,
        }
    }
}

impl TreeRecord {
    /// `roles` are those of the state's parts.
    pub(super) fn of(tree: &LaidTree, roles: &[Role], questions: &[Question]) -> Self {
        Self {
            row: tree.row,
            window: tree.window.map(|window| (window.start, window.end)),
            kept: Some(by_role(roles, &tree.kept)),
            truncation: Some(TruncationRecord::of(&tree.numbers, roles)),
            prefix: tree.prefix.to_vec(),
            blocks: tree.blocks.iter().map(|block| BlockRecord::of(block, questions)).collect(),
        }
    }

    /// The blocks that are read, in order.
    pub(super) fn read(&self) -> impl Iterator<Item = &BlockRecord> {
        self.blocks.iter().filter(|block| !block.replaced_by_windows)
    }
}

impl BlockRecord {
    fn of(block: &LaidBlock, questions: &[Question]) -> Self {
        let question = &questions[block.question];
        Self {
            question: question.id.clone(),
            kind: question.kind.engine().to_owned(),
            head: (question.kind == Kind::Span).then(|| question.head.name().to_owned()),
            replaced_by_windows: block.replaced,
            ids: block.ids.clone(),
            starts: block.pieces.iter().map(|piece| piece.start as u32).collect(),
            ends: block.pieces.iter().map(|piece| piece.end as u32).collect(),
            words: block.words.iter().enumerate().map(|(i, &at)| (block.first_word + i, at)).collect(),
        }
    }
}

impl TruncationRecord {
    pub(crate) fn of(numbers: &Numbers, roles: &[Role]) -> Self {
        let Numbers { fixed, schema, overhead, budget, over, ref lengths } = *numbers;
        Self { fixed, schema, overhead, budget, over, lengths: by_role(roles, lengths) }
    }
}

fn field(field: &Field) -> (String, usize, usize) {
    (field.name.clone(), field.range.start, field.range.end)
}

fn by_role(roles: &[Role], values: &[usize]) -> Entries<usize> {
    Entries(roles.iter().zip(values).map(|(role, &value)| (role.name().to_owned(), value)).collect())
}

/// The members of a JSON object in their order. One that stands twice is here twice: it is counted, not overwritten.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entries<V>(pub(super) Vec<(String, V)>);

impl<V: Serialize> Serialize for Entries<V> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Entries<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor(PhantomData))
    }
}

struct EntriesVisitor<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for EntriesVisitor<V> {
    type Value = Entries<V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Entries(entries))
    }
}

/// A recorded float32. What JSON cannot write as a number (a `null`, a text such as `NaN`) is read as not a number, so
/// that its place can be told; nobody computes with it before that was checked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Real(pub(super) f32);

impl<'de> Deserialize<'de> for Real {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RealVisitor)
    }
}

struct RealVisitor;

impl Visitor<'_> for RealVisitor {
    type Value = Real;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number")
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Real, E> {
        Ok(Real(value as f32))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Real, E> {
        Ok(Real(value as f32))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Real, E> {
        Ok(Real(value as f32))
    }

    fn visit_unit<E: Error>(self) -> Result<Real, E> {
        Ok(Real(f32::NAN))
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Real, E> {
        Ok(Real(f32::NAN))
    }
}
