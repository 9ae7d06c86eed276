//! The Vela 2.0 decoder members (spec: vela.md §3–§6, §8 dispatch, §9).
//!
//! In the order data passes: `state` and `questions` read what the caller sent, `tokens` and `words` cut text,
//! `layout` makes rows, trees and windows, and, once logits are back, `thresholds`, `decode` and `finish` make answers.

pub mod calibration;
pub mod decode;
pub mod finish;
pub mod layout;
pub mod questions;
pub mod state;
pub mod thresholds;
pub mod tokens;
pub mod unicode;
pub mod words;

use std::sync::Arc;

use self::calibration::{Calibration, CalibrationError};
use self::finish::{Asked, Failure, SpanPart, Unanswered};
use self::layout::{Layout, LayoutError, LayoutParameters, Layouter, TokenPart};
use self::questions::{Kind, Problem, Question, read_questions};
use self::state::{Part, Role, State, StateProblem, read_state};
use self::tokens::{Tokenizer, TokenizerError};
use super::{Family, Plan, Rendered, SpanHead};
use crate::member::MemberFiles;
use crate::wire::canonical::compact;
use crate::wire::json::{Value, parse_text};
use crate::wire::request::{self, Limits, Strictness};
use crate::wire::response::{Detail, Loc, MAX_ECHO_CHARS, Refusal};

/// A Vela member's reading and answering: its tokenizer, calibration and limits.
pub struct Vela {
    tokenizer: Arc<Tokenizer>,
    layouter: Arc<Layouter>,
    calibration: Arc<Calibration>,
    has_broad: bool,
    noul_calibration: bool,
    limits: Limits,
}

/// What a [`Vela`] is made of.
#[derive(Clone, Copy, Debug)]
pub struct VelaFiles<'a> {
    /// The bytes of `tokenizer.json` and `calibration.json`.
    pub tokenizer: &'a [u8],
    pub calibration: &'a [u8],
    pub layout: LayoutParameters,
    /// Rows of the model's embedding table.
    pub vocab_size: usize,
    /// Whether the package has a broad span head.
    pub has_broad: bool,
    /// Whether the deployment enables the noul calibration; the file can do so too.
    pub noul_calibration: bool,
    /// What the deployment allows of a question.
    pub limits: Limits,
}

/// Why a member's files do not make a [`Vela`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum VelaError {
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    Calibration(#[from] CalibrationError),
    #[error(
        "calibration.json: broad_head.threshold: expected a number beside broad_head.safetensors, found none; export again"
    )]
    NoBroadCalibration,
    #[error("config.json: span_layout.{key}: expected at least 1, found 0; export again")]
    ZeroLayout { key: &'static str },
    #[error(
        "config.json: span_layout.window: expected at most hybrid_rmax, {hybrid_rmax}, found {window}; export again"
    )]
    WindowLayout { window: usize, hybrid_rmax: usize },
}

/// A request laid out, with everything that led to it: what becomes a plan, and what a replay compares.
pub(crate) struct Laid {
    state: State,
    parts: Vec<TokenPart>,
    asked: Vec<Asked>,
    /// The questions that were understood.
    pub(crate) questions: Vec<Question>,
    pub(crate) layout: Layout,
    strictness: Strictness,
}

impl Laid {
    /// The parts of the state.
    pub(crate) fn roles(&self) -> impl Iterator<Item = Role> {
        self.state.parts.iter().map(|part| part.role)
    }
}

/// A request whose questions have been read: what [`Asked`] needs of each, and those that are valid.
struct Understood {
    asked: Vec<Asked>,
    questions: Vec<Question>,
}

impl Vela {
    /// Reads a member's files.
    ///
    /// # Errors
    /// [`VelaError`], for a file that is not what it should be or files that do not go together.
    pub fn new(files: VelaFiles<'_>) -> Result<Self, VelaError> {
        let VelaFiles { layout, has_broad, noul_calibration, limits, .. } = files;
        for (key, tokens) in [("window", layout.window), ("stride", layout.stride)] {
            if tokens == 0 {
                return Err(VelaError::ZeroLayout { key });
            }
        }
        if layout.window > layout.hybrid_rmax {
            return Err(VelaError::WindowLayout { window: layout.window, hybrid_rmax: layout.hybrid_rmax });
        }
        let calibration = Calibration::parse(files.calibration)?;
        if has_broad && calibration.broad_head.is_none() {
            return Err(VelaError::NoBroadCalibration);
        }
        let tokenizer = Tokenizer::from_bytes(files.tokenizer)?;
        tokenizer.check_vocabulary(files.vocab_size)?;
        let layouter = Layouter::new(&tokenizer, layout)?;
        let (tokenizer, layouter) = (Arc::new(tokenizer), Arc::new(layouter));
        Ok(Vela { tokenizer, layouter, calibration: Arc::new(calibration), has_broad, noul_calibration, limits })
    }

    /// The member as released: without what a deployment changes of its answers or allows of a question. Recorded
    /// cases are of it. The tokenizer is shared.
    #[must_use]
    pub fn as_released(&self) -> Vela {
        Vela {
            tokenizer: Arc::clone(&self.tokenizer),
            layouter: Arc::clone(&self.layouter),
            calibration: Arc::clone(&self.calibration),
            has_broad: self.has_broad,
            noul_calibration: false,
            limits: Limits::default(),
        }
    }

    /// Reads a package's files. `noul_calibration` enables that calibration, which the package can do, too.
    ///
    /// # Errors
    /// As [`Vela::new`].
    pub fn of_package(package: &MemberFiles, noul_calibration: bool, limits: Limits) -> Result<Self, VelaError> {
        let config = package.config();
        Vela::new(VelaFiles {
            tokenizer: package.tokenizer(),
            calibration: package.calibration(),
            layout: LayoutParameters::of_config(config),
            vocab_size: config.backbone_config.vocab_size,
            has_broad: package.has_broad_head(),
            noul_calibration,
            limits,
        })
    }

    /// The parts of a state in tokens, all of them with their words, whatever asks of them.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] for a state that is invalid or has no tokens.
    pub(crate) fn read_parts(&self, state: &Value) -> Result<Vec<(Part, TokenPart)>, Refusal> {
        let parts = read_state(state).map_err(|problem| Refusal::Invalid(vec![state_detail(problem)]))?.parts;
        let read = |part: Part| TokenPart::read(&self.tokenizer, &part, true).map(|tokens| (part, tokens));
        parts.into_iter().map(read).collect::<Result<_, _>>().map_err(|error| unreadable_state(&error))
    }

    /// [`Family::render`] up to the layout.
    ///
    /// # Errors
    /// As [`Family::render`].
    pub(crate) fn lay_out(
        &self,
        state: &Value,
        questions: &[(String, request::Question)],
        strictness: Strictness,
    ) -> Result<Laid, Refusal> {
        let state = read_state(state).map_err(|problem| Refusal::Invalid(vec![state_detail(problem)]))?;
        let Understood { mut asked, questions } = self.understand(&state, questions, strictness)?;
        let parts = self.token_parts(&state, &questions).map_err(|error| unreadable_state(&error))?;
        let layout = self
            .layouter
            .lay_out(&self.tokenizer, &parts, &questions, strictness)
            .map_err(|error| refusal(error, &questions))?;
        mark_refused(&mut asked, &questions, &layout.refused);
        Ok(Laid { state, parts, asked, questions, layout, strictness })
    }

    /// What an executor computes of a laid out request, and what is pending of it.
    pub(crate) fn plan(&self, laid: Laid) -> (Plan, Unanswered) {
        let Laid { state, parts, asked, questions, layout, strictness } = laid;
        let input_tokens = layout.tokens();
        let (plan, reads) = layout.into_plan(&questions);
        let span_parts = span_parts(state, parts, &questions);
        let pending = Unanswered {
            calibration: Arc::clone(&self.calibration),
            has_broad: self.has_broad,
            noul_calibration: self.noul_calibration,
            strictness,
            asked,
            questions,
            reads,
            parts: span_parts,
            input_tokens,
        };
        (plan, pending)
    }

    fn understand(
        &self,
        state: &State,
        asked: &[(String, request::Question)],
        strictness: Strictness,
    ) -> Result<Understood, Refusal> {
        let read = read_questions(asked, state, &self.calibration, self.has_broad, &self.limits);
        let mut details = Vec::new();
        let mut understood = Understood { asked: Vec::with_capacity(asked.len()), questions: Vec::new() };
        for ((id, body), question) in asked.iter().zip(read) {
            match question {
                Ok(question) => {
                    let index = understood.questions.len();
                    understood.asked.push(Asked::Question { index, kind: kind_as_sent(body) });
                    understood.questions.push(question);
                }
                // Its key is the id as sent, however long: the client looks for its answer there, and it is no longer
                // than the body that brought it.
                Err(problem) if strictness == Strictness::PerQuestion => {
                    let failure = Failure { kind: kind_as_sent(body), code: problem.code, message: problem.msg };
                    understood.asked.push(Asked::Failed { id: id.clone(), failure });
                }
                Err(problem) => details.push(question_detail(id, problem)),
            }
        }
        if details.is_empty() { Ok(understood) } else { Err(Refusal::Invalid(details)) }
    }

    /// The parts in tokens, with words where a span reads them; none if nothing is asked of them.
    fn token_parts(&self, state: &State, questions: &[Question]) -> Result<Vec<TokenPart>, TokenizerError> {
        if questions.is_empty() {
            return Ok(Vec::new());
        }
        let with_words = |part: &Part| is_read_by_span(part.role, questions);
        state.parts.iter().map(|part| TokenPart::read(&self.tokenizer, part, with_words(part))).collect()
    }
}

impl Family for Vela {
    fn render(
        &self,
        state: &Value,
        questions: &[(String, request::Question)],
        strictness: Strictness,
    ) -> Result<Rendered, Refusal> {
        let (plan, pending) = self.plan(self.lay_out(state, questions, strictness)?);
        Ok(Rendered { plan, pending: Box::new(pending) })
    }

    /// A set, which is read by the candidate head and its bias, and a span for each span head.
    fn warm_up(&self) -> Result<Plan, Refusal> {
        let heads = [Some(SpanHead::Router), self.has_broad.then_some(SpanHead::Broad)];
        let spans = heads.into_iter().flatten().map(|head| {
            let head = head.name();
            let question =
                format!(r#"{{"type":"span","instructions":"Mark.","criteria":{{"a":null}},"head":"{head}"}}"#);
            (head.to_owned(), question)
        });
        let set = r#"{"type":"set","instructions":"Which?","criteria":{"a":null,"b":null}}"#.to_owned();
        let questions = [("set".to_owned(), set)].into_iter().chain(spans);
        let read = |text: &str| parse_text(text).expect("what is written here is JSON");
        let questions: Vec<_> = questions.map(|(id, text)| (id, read(&text))).collect();
        // A deployment may allow less than these ask.
        Ok(self.as_released().render(&read("\"Hi\""), &questions, Strictness::AllOrNothing)?.plan)
    }

    fn question_kind(&self, question: &request::Question) -> Option<&'static str> {
        questions::kind(question).map(Kind::name)
    }

    fn question_types(&self) -> &'static [&'static str] {
        &["choice", "noul", "score", "set", "span"]
    }

    fn max_length_tokens(&self) -> usize {
        self.layouter.parameters().max_length
    }
}

/// A request that cannot be laid out. Whoever sent a text that the tokenizer gives up on can send another: the fault is
/// not the server's.
fn refusal(error: LayoutError, questions: &[Question]) -> Refusal {
    match error {
        LayoutError::TooLong(problem) => Refusal::TooLong { message: problem.to_string() },
        LayoutError::Tokenizer { question, error } => {
            let problem = Problem { loc: Vec::new(), code: "unsupported", msg: error.to_string() };
            Refusal::Invalid(vec![question_detail(&questions[question].id, problem)])
        }
    }
}

fn unreadable_state(error: &TokenizerError) -> Refusal {
    Refusal::Invalid(vec![Detail { loc: keys(["body", "state"]), msg: error.to_string(), code: "type" }])
}

fn is_read_by_span(role: Role, questions: &[Question]) -> bool {
    questions.iter().any(|question| question.kind == Kind::Span && question.roles.contains(&role))
}

/// What answers need of the state once it is laid out.
fn span_parts(state: State, parts: Vec<TokenPart>, questions: &[Question]) -> Vec<SpanPart> {
    let with_tokens = state.parts.into_iter().zip(parts);
    with_tokens
        .filter(|(part, _)| is_read_by_span(part.role, questions))
        .map(|(part, tokens)| SpanPart {
            role: part.role,
            text: part.text,
            words: tokens.words,
            tokens: tokens.ids.len(),
        })
        .collect()
}

/// Puts the failures of the layout in the places of their questions; `refused` ascends.
fn mark_refused(asked: &mut [Asked], questions: &[Question], refused: &[(usize, LayoutError)]) {
    for entry in asked {
        if let Asked::Question { index, kind } = entry
            && let Ok(place) = refused.binary_search_by_key(index, |(question, _)| *question)
        {
            let error = &refused[place].1;
            let code = match error {
                LayoutError::TooLong(_) => "too_long",
                LayoutError::Tokenizer { .. } => "unsupported",
            };
            let failure = Failure { kind: kind.clone(), code, message: error.to_string() };
            *entry = Asked::Failed { id: questions[*index].id.clone(), failure };
        }
    }
}

/// A question's `type` as sent, whatever JSON it is; null if there is none, or if its text is longer than what a refusal
/// repeats.
fn kind_as_sent(body: &request::Question) -> Value {
    let kind = body.as_object().and_then(|body| body.get("type"));
    let is_short = |kind: &&Value| compact(kind).chars().nth(MAX_ECHO_CHARS).is_none();
    kind.filter(is_short).cloned().unwrap_or(Value::Null)
}

fn state_detail(problem: StateProblem) -> Detail {
    Detail { loc: keys(["body", "state"]), msg: problem.to_string(), code: problem.code() }
}

fn question_detail(id: &str, problem: Problem) -> Detail {
    let mut loc = keys(["body", "questions", id]);
    loc.extend(problem.loc);
    Detail { loc, msg: problem.msg, code: problem.code }
}

fn keys<const N: usize>(steps: [&str; N]) -> Vec<Loc> {
    steps.map(|step| Loc::Key(step.to_owned())).to_vec()
}

#[cfg(test)]
mod tests;
