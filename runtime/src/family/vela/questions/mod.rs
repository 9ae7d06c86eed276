//! Questions, presets, `over`, and which span head reads a question (spec: vela.md §4, §8).
//!
//! Every question is read by itself, so that one route can refuse a request for a single problem and the other can
//! answer the rest. A question has at most one [`Problem`], the first in the order of system-one.md; codes, places and
//! messages are the reference's. `fields` reads single fields, `over` finds parts, `route` chooses the head.

mod fields;
mod over;
mod route;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

use self::fields::given;
use self::over::Parts;
use super::calibration::{Calibration, Schema};
use super::state::{Field, Role, State};
use crate::family::SpanHead;
use crate::wire::json::{Object, Value};
use crate::wire::request::Limits;
use crate::wire::response::Loc;

const NO: &str = "No. The statement or question is not satisfied.";
const YES: &str = "Yes. The statement or question is satisfied.";

/// What a question asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Choice,
    Noul,
    Score,
    Set,
    Span,
}

impl Kind {
    /// Its `type` on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Choice => "choice",
            Kind::Noul => "noul",
            Kind::Score => "score",
            Kind::Set => "set",
            Kind::Span => "span",
        }
    }

    /// The type that the model sees, which also selects the temperature: a noul is a choice of two.
    pub fn engine(self) -> &'static str {
        if self == Kind::Noul { Kind::Choice.name() } else { self.name() }
    }

    fn from_name(name: &str) -> Option<Kind> {
        [Kind::Choice, Kind::Noul, Kind::Score, Kind::Set, Kind::Span].into_iter().find(|kind| kind.name() == name)
    }

    /// What may stand in place of `criteria`.
    fn alternative(self) -> &'static str {
        match self {
            Kind::Choice | Kind::Noul => "choices",
            Kind::Score => "levels",
            Kind::Set | Kind::Span => "labels",
        }
    }

    fn allows(self, field: &str) -> bool {
        match field {
            "type" | "instructions" | "over" | "criteria" | "preset" => true,
            "threshold" => matches!(self, Kind::Set | Kind::Span),
            "head" => self == Kind::Span,
            _ => field == self.alternative(),
        }
    }
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

/// Why a question is refused.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// The place inside the question; empty for the question itself.
    pub loc: Vec<Loc>,
    /// A stable code of the table in system-one.md.
    pub code: &'static str,
    pub msg: String,
}

impl Problem {
    fn new(code: &'static str, msg: impl Into<String>) -> Self {
        Problem { loc: Vec::new(), code, msg: msg.into() }
    }

    /// The same problem, seen from the object that holds `key`.
    fn at(mut self, key: &str) -> Self {
        self.loc.insert(0, Loc::Key(key.to_owned()));
        self
    }

    /// The same problem, seen from the array that holds it.
    fn at_index(mut self, index: usize) -> Self {
        self.loc.insert(0, Loc::Index(index));
        self
    }
}

/// Reads every question of a request, each with its own outcome, in order.
///
/// `has_broad` says whether the member has a broad span head.
pub fn read_questions(
    questions: &[(String, Value)],
    state: &State,
    calibration: &Calibration,
    has_broad: bool,
    limits: &Limits,
) -> Vec<Result<Question, Problem>> {
    let ids = questions.iter().map(|(id, _)| id.as_str()).collect();
    let reader = Reader { ids, parts: Parts::of(state), calibration, has_broad, limits };
    questions.iter().map(|(id, body)| reader.read(id, body)).collect()
}

/// What all questions of a request are read against.
struct Reader<'a> {
    ids: HashSet<&'a str>,
    parts: Parts<'a>,
    calibration: &'a Calibration,
    has_broad: bool,
    limits: &'a Limits,
}

impl Reader<'_> {
    fn read(&self, id: &str, body: &Value) -> Result<Question, Problem> {
        let max_chars = self.limits.max_question_id_chars;
        if id.chars().nth(max_chars).is_some() {
            return Err(Problem::new("too_long", format!("takes at most {max_chars} characters")));
        }
        let Value::Object(body) = body else { return Err(Problem::new("dict_type", "must be an object")) };
        match given(body, "preset") {
            Some(preset) => self.preset(id, preset, body),
            None => self.plain(id, body),
        }
    }

    fn plain(&self, id: &str, body: &Object) -> Result<Question, Problem> {
        let kind = kind_of(body).map_err(|problem| problem.at("type"))?;
        if let Some(unknown) = body.keys().find(|field| !kind.allows(field)) {
            return Err(Problem::new("extra_forbidden", "unknown field").at(unknown));
        }
        let text = fields::instructions(body)?;
        let Limits { max_options, max_score_levels, .. } = *self.limits;
        let (options, legend) = match kind {
            Kind::Choice => (fields::named(body, kind.alternative(), 2..=max_options)?, Vec::new()),
            Kind::Noul => (noul_options(body, max_options)?, Vec::new()),
            Kind::Score => {
                let levels = fields::levels(body, max_score_levels)?;
                (levels.iter().map(|level| (level.clone(), String::new())).collect(), levels)
            }
            Kind::Set | Kind::Span => (fields::named(body, kind.alternative(), 1..=max_options)?, Vec::new()),
        };
        let threshold = fields::threshold(body)?;
        let own_head = fields::head(body, self.has_broad)?;
        let (roles, over_field) = self.parts.over(body, kind)?;
        let names = if matches!(kind, Kind::Set | Kind::Span) { names_of(&options) } else { Vec::new() };
        let question = Question {
            id: id.to_owned(),
            kind,
            text,
            options,
            roles,
            key: id.to_owned(),
            abstain: matches!(kind, Kind::Choice | Kind::Noul),
            legend,
            names,
            over_field,
            threshold,
            head: SpanHead::Router,
        };
        self.check_label_answers(&question)?;
        Ok(self.routed(question, own_head))
    }

    fn preset(&self, id: &str, preset: &Value, body: &Object) -> Result<Question, Problem> {
        let (name, kind, schema) = self.schema(preset).map_err(|problem| problem.at("preset"))?;
        if let Some(foreign) = body.keys().find(|field| !matches!(*field, "preset" | "type" | "over" | "threshold")) {
            let msg = "a preset carries only preset, type, over and threshold";
            return Err(Problem::new("extra_forbidden", msg).at(foreign));
        }
        if given(body, "type").is_some_and(|found| found.as_str() != Some(kind.name())) {
            let msg = format!("the preset {name} is a {} question", kind.name());
            return Err(Problem::new("literal_error", msg).at("type"));
        }
        let schema = schema
            .ok_or_else(|| Problem::new("unsupported", format!("this member has no {name} schema")).at("preset"))?;
        let (roles, over_field) = self.parts.over(body, kind)?;
        let threshold = fields::threshold(body)?;
        let is_span = kind == Kind::Span;
        let question = Question {
            id: id.to_owned(),
            kind,
            text: schema.text.clone(),
            options: schema.options.clone(),
            roles,
            key: name.to_owned(),
            abstain: false,
            legend: if is_span { Vec::new() } else { schema.options.iter().map(|(_, text)| text.clone()).collect() },
            names: if is_span { names_of(&schema.options) } else { Vec::new() },
            over_field,
            // A score has no threshold: what `relevance` carries is checked and ignored.
            threshold: threshold.filter(|_| is_span),
            head: SpanHead::Router,
        };
        Ok(self.routed(question, None))
    }

    /// A preset's name, kind, and schema, if this member has it.
    fn schema(&self, preset: &Value) -> Result<(&'static str, Kind, Option<&Schema>), Problem> {
        match preset.as_str() {
            Some("pii") => Ok(("pii", Kind::Span, self.calibration.pii_schema.as_ref())),
            Some("halu") => Ok(("halu", Kind::Span, self.calibration.halu_schema.as_ref())),
            Some("relevance") => Ok(("relevance", Kind::Score, self.calibration.relevance_schema.as_ref())),
            _ => Err(Problem::new("literal_error", "must be pii, halu or relevance")),
        }
    }

    /// A set answers under `<id>.<label>`, which no question of the request may be called, valid or not.
    fn check_label_answers(&self, question: &Question) -> Result<(), Problem> {
        if question.kind != Kind::Set {
            return Ok(());
        }
        let answers = question.names.iter().map(|name| format!("{}.{name}", question.id));
        match answers.into_iter().find(|answer| self.ids.contains(answer.as_str())) {
            Some(taken) => Err(Problem::new("name_taken", format!("{taken} is already a question")).at("criteria")),
            None => Ok(()),
        }
    }

    /// The question with its span head, where there is a choice of heads.
    fn routed(&self, mut question: Question, own_head: Option<SpanHead>) -> Question {
        if question.kind == Kind::Span && self.has_broad {
            route::route(&mut question, own_head, self.calibration);
        }
        question
    }
}

fn kind_of(body: &Object) -> Result<Kind, Problem> {
    let kind = given(body, "type").ok_or_else(|| Problem::new("missing", "is required"))?;
    kind.as_str()
        .and_then(Kind::from_name)
        .ok_or_else(|| Problem::new("literal_error", "must be choice, noul, score, set or span"))
}

/// The kind that a question names, or that its preset has, whatever else may be wrong with it.
pub fn kind(question: &Value) -> Option<Kind> {
    let body = question.as_object()?;
    match given(body, "preset").map(Value::as_str) {
        None => kind_of(body).ok(),
        Some(Some("pii" | "halu")) => Some(Kind::Span),
        Some(Some("relevance")) => Some(Kind::Score),
        Some(_) => None,
    }
}

/// `no` and `yes` with the descriptions of `false` and `true`, where there are any.
fn noul_options(body: &Object, max_options: usize) -> Result<Vec<(String, String)>, Problem> {
    let (mut no, mut yes) = (String::new(), String::new());
    if let Some((field, value)) = fields::criteria_or(body, Kind::Noul.alternative())? {
        for (name, description) in fields::named_in(field, value, 0..=max_options)? {
            match name.as_str() {
                "false" => no = description,
                "true" => yes = description,
                _ => {
                    let problem = Problem::new("extra_forbidden", "only false and true are known here");
                    return Err(problem.at(&name).at(field));
                }
            }
        }
    }
    let or = |text: String, default: &str| if text.is_empty() { default.to_owned() } else { text };
    Ok(vec![("no".to_owned(), or(no, NO)), ("yes".to_owned(), or(yes, YES))])
}

fn names_of(options: &[(String, String)]) -> Vec<String> {
    options.iter().map(|(name, _)| name.clone()).collect()
}
