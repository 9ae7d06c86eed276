//! A recorded case, read from its file and consistent in itself.
//!
//! Invariant of a [`Case`]: every block that its trees read has exactly one record of logits (and, where head inputs
//! were recorded, one of these), in its own place, of exactly its dimensions, and every number of them is finite; the
//! texts are those of the values beside them. So whoever compares with a case only has to look at what was computed.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_json::Value;

use super::calls::{Call, for_each_call, plan, take_each};
use super::difference::{Difference, compare_json};
use super::record::{
    CaseFile, Entries, ErrorRecord, HeadInputsRecord, LogitsRecord, PartRecord, QuestionRecord, TreeRecord,
};
use crate::family::{Logits, Plan};
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
            ("trees", recorded.trees.is_some()),
            ("margin", recorded.margin.is_some()),
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
