//! A recorded case, read from its file and consistent in itself.
//!
//! Invariant of a [`Case`]: every block that its trees read has exactly one record of logits (and, where head inputs
//! were recorded, one of these), in its own place, of exactly its dimensions, and every number of them is finite; the
//! texts are those of the values beside them. So whoever compares with a case only has to look at what was computed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_json::Value;

use super::difference::{Difference, compare_json};
use super::record::{
    BlockRecord, CaseFile, Entries, ErrorRecord, HeadInputsRecord, LogitsRecord, PartRecord, QuestionRecord, Real,
    TreeRecord, Values,
};
use crate::family::{Block, Logits, Plan, Readout, SpanHead, Tree};
use crate::member::Excerpt;
use crate::model::HeadInputs;
use crate::wire::canonical::compact;
use crate::wire::json;

/// A file that is larger is no case: the head inputs of the longest request at the largest width take less.
const MAX_FILE_BYTES: u64 = 4 << 30;

/// What was recorded for one request to one member.
pub struct Case {
    /// The file's name without `.json`.
    pub name: String,
    /// `model_name` of the member's package.
    pub(super) member: String,
    pub(super) request_text: String,
    pub(super) parts: Option<Vec<PartRecord>>,
    pub(super) outcome: Outcome,
}

pub(super) enum Outcome {
    Answered(Box<Answered>),
    Refused {
        status: u16,
        /// `{"detail": …}` or `{"error": …}`.
        body: Value,
    },
}

/// A request that was answered.
pub(crate) struct Answered {
    pub(super) questions: Option<Vec<QuestionRecord>>,
    pub(super) trees: Vec<TreeRecord>,
    /// What the trees read, as an executor gets it.
    pub(super) plan: Plan,
    /// `[tree][block]` of the plan.
    pub(super) calls: Vec<Vec<Call>>,
    /// `[tree][block]` of the plan.
    pub(super) logits: Vec<Vec<Logits>>,
    /// `[tree][block]` of the plan.
    pub(super) head_inputs: Option<Vec<Vec<HeadInputs>>>,
    /// The smallest distance of a decision to another one; none where nothing was said of it.
    pub(super) margin: Option<f64>,
    pub(super) response: Value,
}

/// One reading of one question: in a row, or in one window of it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Call {
    question: String,
    row: usize,
    window: Option<(usize, usize)>,
    /// Whether its rows are words.
    is_span: bool,
    /// Of its logits.
    rows: usize,
    columns: usize,
}

/// Why a file is no case: one line.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", Excerpt(.file))]
pub struct ReadError {
    /// The path as it was given.
    pub file: String,
    pub problem: ReadProblem,
}

/// See [`ReadError`].
#[derive(Debug, thiserror::Error)]
pub enum ReadProblem {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("expected at most {MAX_FILE_BYTES} bytes, found more")]
    TooLarge,
    /// Not JSON, or of another form.
    #[error("expected a recorded case, found other content: {}", Excerpt(.0))]
    Content(String),
    /// It contradicts itself.
    #[error("{0}")]
    Inconsistent(#[from] Difference),
}

impl Case {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// [`ReadError`] for whatever makes it no case that others could be compared with.
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let bytes = read_bounded(path);
        bytes
            .and_then(|bytes| Self::parse(name, &bytes))
            .map_err(|problem| ReadError { file: path.display().to_string(), problem })
    }

    fn parse(name: String, bytes: &[u8]) -> Result<Self, ReadProblem> {
        let file: CaseFile = serde_json::from_slice(bytes).map_err(|error| ReadProblem::Content(error.to_string()))?;
        check_text("request", &file.request, &file.request_text, Form::Any)?;
        Ok(Self {
            name,
            outcome: Outcome::read(
                file.error,
                Recorded {
                    questions: file.questions,
                    trees: file.trees,
                    logits: file.logits,
                    head_inputs: file.head_inputs,
                    margin: file.margin.map(|margin| margin.value),
                    response: file.response,
                    response_text: file.response_text,
                },
            )?,
            member: file.member,
            request_text: file.request_text,
            parts: file.parts,
        })
    }

    /// The trees that were read, if the request was answered.
    pub fn plan(&self) -> Option<&Plan> {
        self.answered().map(|answered| &answered.plan)
    }

    /// The recorded logits, `[tree][block]` of the plan, if the request was answered.
    pub fn logits(&self) -> Option<&[Vec<Logits>]> {
        self.answered().map(|answered| answered.logits.as_slice())
    }

    /// The smallest distance of a decision to another one, if it was recorded.
    pub fn margin(&self) -> Option<f64> {
        self.answered().and_then(|answered| answered.margin)
    }

    pub(crate) fn answered(&self) -> Option<&Answered> {
        match &self.outcome {
            Outcome::Answered(answered) => Some(answered),
            Outcome::Refused { .. } => None,
        }
    }
}

/// What a file holds of an answered request.
struct Recorded {
    questions: Option<Vec<QuestionRecord>>,
    trees: Option<Vec<TreeRecord>>,
    logits: Option<Entries<Vec<LogitsRecord>>>,
    head_inputs: Option<Entries<Vec<HeadInputsRecord>>>,
    margin: Option<f64>,
    response: Option<Value>,
    response_text: Option<String>,
}

impl Outcome {
    fn read(error: Option<ErrorRecord>, recorded: Recorded) -> Result<Self, Difference> {
        let Some(error) = error else { return Ok(Outcome::Answered(Box::new(Answered::read(recorded)?))) };
        let answered = [
            ("logits", recorded.logits.is_some()),
            ("head_inputs", recorded.head_inputs.is_some()),
            ("response", recorded.response.is_some()),
            ("response_text", recorded.response_text.is_some()),
        ];
        if let Some((key, _)) = answered.into_iter().find(|(_, is_there)| *is_there) {
            return Err(Difference::new(key, "none beside an error", "one"));
        }
        let body = match (error.detail, error.error) {
            (Some(detail), None) => serde_json::json!({ "detail": detail }),
            (None, Some(error)) => serde_json::json!({ "error": error }),
            _ => return Err(Difference::new("error", "a detail or an error", "none or both")),
        };
        Ok(Outcome::Refused { status: error.status, body })
    }
}

impl Answered {
    fn read(recorded: Recorded) -> Result<Self, Difference> {
        let trees = required("trees", recorded.trees)?;
        let (plan, calls) = plan(&trees)?;
        let logits = take_each("logits", &calls, required("logits", recorded.logits)?)?;
        let logits = for_each_call(logits, &calls, |record, call| call.logits(record.values))?;
        let head_inputs = recorded
            .head_inputs
            .map(|records| {
                let records = take_each("head_inputs", &calls, records)?;
                for_each_call(records, &calls, |record, call| call.head_inputs(record))
            })
            .transpose()?;
        if let Some(margin) = recorded.margin.filter(|margin| !(margin.is_finite() && *margin >= 0.0)) {
            return Err(Difference::new("margin.value", "a number from 0 on", margin));
        }
        let response = required("response", recorded.response)?;
        check_text("response", &response, &required("response_text", recorded.response_text)?, Form::Compact)?;
        let questions = recorded.questions;
        Ok(Self { questions, trees, plan, calls, logits, head_inputs, margin: recorded.margin, response })
    }
}

fn required<T>(key: &str, value: Option<T>) -> Result<T, Difference> {
    value.ok_or_else(|| Difference::new(key, "one of an answered request", "none"))
}

fn read_bounded(path: &Path) -> Result<Vec<u8>, ReadProblem> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES { Err(ReadProblem::TooLarge) } else { Ok(bytes) }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// As a client may write it.
    Any,
    /// As Python's `json.dumps` writes it without spaces, which a key that stands twice would not be.
    Compact,
}

/// Checks that the text beside a value is that value's.
fn check_text(key: &str, value: &Value, text: &str, form: Form) -> Result<(), Difference> {
    let at = format!("{key}_text");
    let parsed: Value = serde_json::from_str(text).map_err(|error| Difference::new(&at, "JSON", error))?;
    let distances = compare_json(&at, value, &parsed, 0.0)?;
    if let Some(difference) = distances.beyond {
        return Err(difference);
    }
    let is_compact = || json::parse(text.as_bytes()).is_ok_and(|value| compact(&value) == text);
    if form == Form::Compact && !is_compact() {
        return Err(Difference::new(at, "JSON as Python writes it without spaces, no key twice", "another form"));
    }
    Ok(())
}

/// The trees that read anything, and what each block's call is.
fn plan(trees: &[TreeRecord]) -> Result<(Plan, Vec<Vec<Call>>), Difference> {
    let (mut plan, mut calls) = (Plan::default(), Vec::new());
    for (index, record) in trees.iter().enumerate() {
        let mut tree = Tree { prefix: record.prefix.as_slice().into(), blocks: Vec::new() };
        let mut of_tree = Vec::new();
        for block in record.read() {
            let at = format!("trees[{index}], question {}", block.question);
            tree.blocks.push(Block { ids: block.ids.clone(), readout: readout(block, &at)? });
            let is_span = block.kind == "span";
            let (rows, columns) = if is_span { (block.words.len(), block.ends.len()) } else { (block.ends.len(), 1) };
            let (question, row, window) = (block.question.clone(), record.row, record.window);
            of_tree.push(Call { question, row, window, is_span, rows, columns });
        }
        if !tree.blocks.is_empty() {
            plan.trees.push(tree);
            calls.push(of_tree);
        }
    }
    Ok((plan, calls))
}

/// Where a recorded block is read. Positions are checked to be inside the block, and pieces to have tokens.
fn readout(block: &BlockRecord, at: &str) -> Result<Readout, Difference> {
    if block.starts.len() != block.ends.len() {
        return Err(Difference::new(at, format!("{} ends", block.starts.len()), block.ends.len()));
    }
    let len = block.ids.len();
    let pieces = block.starts.iter().zip(&block.ends);
    if let Some((start, end)) = pieces.clone().find(|(start, end)| start >= end || **end as usize > len) {
        return Err(Difference::new(at, format!("a piece in a block of {len} tokens"), format!("[{start}, {end})")));
    }
    if let Some((_, word)) = block.words.iter().find(|(_, word)| *word as usize >= len) {
        return Err(Difference::new(at, format!("a word in a block of {len} tokens"), word));
    }
    let head = match block.head.as_deref() {
        Some("router") => Some(SpanHead::Router),
        Some("broad") => Some(SpanHead::Broad),
        None => None,
        Some(other) => return Err(Difference::new(at, "the head router or broad", other)),
    };
    match (block.kind.as_str(), head) {
        ("span", Some(head)) => {
            let labels = pieces.map(|(&start, &end)| start..end).collect();
            Ok(Readout::Spans { head, words: block.words.iter().map(|word| word.1).collect(), labels })
        }
        ("choice" | "score" | "set", None) if len > 0 => {
            let options = block.ends.iter().map(|end| end - 1).collect();
            Ok(Readout::Candidates { options, query: len as u32 - 1, set_bias: block.kind == "set" })
        }
        (kind, _) => Err(Difference::new(at, "choice, score or set, or a span with its head", kind)),
    }
}

/// A record of one call.
trait CallRecord {
    fn place(&self) -> (usize, Option<(usize, usize)>);
}

impl CallRecord for LogitsRecord {
    fn place(&self) -> (usize, Option<(usize, usize)>) {
        (self.row, self.window)
    }
}

impl CallRecord for HeadInputsRecord {
    fn place(&self) -> (usize, Option<(usize, usize)>) {
        (self.row, self.window)
    }
}

/// The record of every call, `[tree][block]`: each call has one and each record is of one.
fn take_each<R: CallRecord>(
    key: &str,
    calls: &[Vec<Call>],
    records: Entries<Vec<R>>,
) -> Result<Vec<Vec<R>>, Difference> {
    let mut of_question: BTreeMap<String, std::vec::IntoIter<R>> = BTreeMap::new();
    for (question, records) in records.0 {
        let at = format!("{key}.{question}");
        let expected = calls.iter().flatten().filter(|call| call.question == question).count();
        if expected == 0 {
            return Err(Difference::new(key, "only questions that the trees read", format!("question {question}")));
        }
        if expected != records.len() {
            return Err(Difference::new(at, format!("{expected} calls"), records.len()));
        }
        if of_question.insert(question, records.into_iter()).is_some() {
            return Err(Difference::new(at, "the question once", "it twice"));
        }
    }
    let mut take = |call: &Call| {
        let missing = || Difference::new(key, format!("question {}", call.question), "none");
        let record = of_question.get_mut(&call.question).and_then(Iterator::next).ok_or_else(missing)?;
        let place = |(row, window): (usize, Option<(usize, usize)>)| match window {
            Some((start, end)) => format!("row {row}, window [{start}, {end})"),
            None => format!("row {row}"),
        };
        if record.place() != (call.row, call.window) {
            let at = format!("{key}.{}", call.question);
            return Err(Difference::new(at, place((call.row, call.window)), place(record.place())));
        }
        Ok(record)
    };
    calls.iter().map(|tree| tree.iter().map(&mut take).collect()).collect()
}

fn for_each_call<R, T>(
    records: Vec<Vec<R>>,
    calls: &[Vec<Call>],
    read: impl Fn(R, &Call) -> Result<T, Difference>,
) -> Result<Vec<Vec<T>>, Difference> {
    let of_tree =
        |(records, calls): (Vec<R>, &Vec<Call>)| records.into_iter().zip(calls).map(|(r, c)| read(r, c)).collect();
    records.into_iter().zip(calls).map(of_tree).collect()
}

impl Call {
    /// Its place under `key`, as `logits.domain, row 0`.
    pub(super) fn at(&self, key: &str) -> String {
        let window = self.window.map_or_else(String::new, |(start, end)| format!(", window [{start}, {end})"));
        format!("{key}.{}, row {}{window}", self.question, self.row)
    }

    /// Checks dimensions and finiteness of logits, wherever they come from.
    pub(super) fn check(&self, key: &str, logits: &Logits) -> Result<(), Difference> {
        let at = self.at(key);
        let expected = self.rows * self.columns;
        if logits.values.len() != expected {
            return Err(Difference::new(at, format!("{expected} values"), logits.values.len()));
        }
        if expected > 0 && logits.columns != self.columns {
            return Err(Difference::new(at, format!("{} columns", self.columns), logits.columns));
        }
        match logits.values.iter().position(|value| !value.is_finite()) {
            None => Ok(()),
            Some(place) => Err(Difference::new(self.value_at(key, place), "a finite number", logits.values[place])),
        }
    }

    /// The place of one of its logits.
    pub(super) fn value_at(&self, key: &str, place: usize) -> String {
        let at = self.at(key);
        if self.is_span {
            format!("{at}: word {}, label {}", place / self.columns, place % self.columns)
        } else {
            format!("{at}: option {place}")
        }
    }

    fn logits(&self, values: Values) -> Result<Logits, Difference> {
        let at = self.at("logits");
        let values: Vec<f32> = match (values, self.is_span) {
            (Values::Options(values), _) if self.rows == 0 || !self.is_span => reals(&values).collect(),
            (Values::Words(words), true) => {
                if let Some(row) = words.iter().position(|row| row.len() != self.columns) {
                    let expected = format!("{} values", self.columns);
                    return Err(Difference::new(format!("{at}: word {row}"), expected, words[row].len()));
                }
                if words.len() != self.rows {
                    return Err(Difference::new(at, format!("{} words", self.rows), words.len()));
                }
                words.iter().flat_map(|row| reals(row)).collect()
            }
            (Values::Options(_), _) => return Err(Difference::new(at, "a list per word", "a list of numbers")),
            (Values::Words(_), false) => return Err(Difference::new(at, "a number per option", "lists")),
        };
        let logits = Logits { values, columns: self.columns };
        self.check("logits", &logits)?;
        Ok(logits)
    }

    fn head_inputs(&self, record: HeadInputsRecord) -> Result<HeadInputs, Difference> {
        let at = self.at("head_inputs");
        let sides = match (self.is_span, record) {
            (false, HeadInputsRecord { options: Some(options), query: Some(query), words: None, labels: None, .. }) => {
                [("option", self.rows, options), ("query", 1, vec![query])]
            }
            (true, HeadInputsRecord { words: Some(words), labels: Some(labels), options: None, query: None, .. }) => {
                [("word", self.rows, words), ("label", self.columns, labels)]
            }
            (is_span, _) => {
                let expected = if is_span { "words and labels" } else { "options and query" };
                return Err(Difference::new(at, expected, "other keys"));
            }
        };
        let width = sides[1].2.first().map_or(0, Vec::len);
        let mut inputs = HeadInputs::default();
        for ((name, rows, states), side) in sides.into_iter().zip([&mut inputs.left, &mut inputs.right]) {
            if states.len() != rows {
                return Err(Difference::new(at, format!("{rows} states, one per {name}"), states.len()));
            }
            for (row, state) in states.iter().enumerate() {
                let at = format!("{at}: {name} {row}");
                if state.len() != width {
                    return Err(Difference::new(at, format!("{width} values"), state.len()));
                }
                if let Some(Real(value)) = state.iter().find(|Real(value)| !value.is_finite()) {
                    return Err(Difference::new(at, "finite numbers", value));
                }
                side.extend(reals(state));
            }
        }
        Ok(inputs)
    }
}

fn reals(values: &[Real]) -> impl Iterator<Item = f32> {
    values.iter().map(|&Real(value)| value)
}
