//! From logits to answers (spec: vela.md §9; per question: system-one.md).
//!
//! Invariant: what is not a number, or not of the shape that was planned, never becomes an answer; and a question that
//! fails leaves no trace but its own entry in `answers`. All sums are float64 in the reference's order.

mod answers;
pub(super) mod spans;

use std::collections::HashMap;
use std::sync::Arc;

use self::spans::Target;
use super::calibration::Calibration;
use super::layout::Read;
use super::questions::{Kind, Question};
use super::state::Role;
use super::thresholds::{noul_probability, set_threshold, sigmoid, softmax, temperature};
use super::words::Word;
use crate::family::{Logits, Pending};
use crate::wire::json::Value;
use crate::wire::request::Strictness;
use crate::wire::response::{Answer, Decision, Refusal, SetAnswer};

/// What a request leaves behind while its logits are computed.
pub struct Unanswered {
    pub calibration: Arc<Calibration>,
    pub has_broad: bool,
    /// Whether the deployment enables the noul calibration.
    pub noul_calibration: bool,
    pub strictness: Strictness,
    /// What was asked, in order.
    pub asked: Vec<Asked>,
    /// The questions that were understood.
    pub questions: Vec<Question>,
    /// By question: where its logits come back.
    pub reads: Vec<Vec<Read>>,
    /// The parts that spans read; of the others nothing is needed.
    pub parts: Vec<SpanPart>,
    pub input_tokens: usize,
}

/// A part that spans read, without its token ids: many requests wait at once, and their states may be long.
pub struct SpanPart {
    pub role: Role,
    pub text: String,
    /// The words that have a first token, ascending.
    pub words: Vec<Word>,
    /// Of the whole part: what the length rules go by.
    pub tokens: usize,
}

/// One entry of a request's `questions`.
pub enum Asked {
    /// An index among the questions that were understood; `kind` is its `type` as sent, in case it fails.
    Question { index: usize, kind: Value },
    /// It failed before it was read.
    Failed { id: String, failure: Failure },
}

/// Why one question has no answer.
pub struct Failure {
    pub kind: Value,
    pub code: &'static str,
    pub message: String,
}

/// The logits of one question with where each row belongs.
pub(super) struct Reading<'a> {
    read: &'a Read,
    logits: &'a Logits,
}

/// A decision that is being written, question by question.
struct Finish<'a> {
    request: &'a Unanswered,
    decision: Decision,
    /// By index of a part: its text, cut for decoding once, however many spans read it.
    targets: HashMap<usize, Target>,
    /// Where the answer of a Set's label stands: two Sets may name one answer, and the later has it, in the place of
    /// the earlier.
    label_answers: HashMap<String, usize>,
}

impl Pending for Unanswered {
    fn finish(self: Box<Self>, logits: &[Vec<Logits>]) -> Result<Decision, Refusal> {
        self.decide(logits)
    }
}

impl Failure {
    fn invalid_model_output(kind: Value) -> Self {
        let message = "the model's output for this question is not a number".to_owned();
        Failure { kind, code: "invalid_model_output", message }
    }
}

impl Unanswered {
    /// [`Pending::finish`], for whoever finishes a request with more than one set of logits.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn decide(&self, logits: &[Vec<Logits>]) -> Result<Decision, Refusal> {
        if self.strictness == Strictness::AllOrNothing
            && let Some(question) = self.first_without_answer(logits)
        {
            return Err(Refusal::InvalidModelOutput { question: question.id.clone() });
        }
        let mut finish = Finish::new(self);
        for asked in &self.asked {
            match asked {
                Asked::Failed { id, failure } => finish.fail(id, failure),
                Asked::Question { index, kind } => match self.readings(*index, logits) {
                    Some(readings) => finish.answer(*index, &readings),
                    None => finish.fail(&self.questions[*index].id, &Failure::invalid_model_output(kind.clone())),
                },
            }
        }
        Ok(finish.decision)
    }

    /// Index of the part that a span reads.
    pub(super) fn part_of(&self, question: &Question) -> usize {
        let role = question.roles[0];
        self.parts.iter().position(|part| part.role == role).expect("the parts of spans are kept")
    }

    /// A question's logits, if all of them are finite and as many as were planned.
    pub(super) fn readings<'a>(&'a self, question: usize, logits: &'a [Vec<Logits>]) -> Option<Vec<Reading<'a>>> {
        let asked = &self.questions[question];
        let columns = if asked.kind == Kind::Span { asked.options.len() } else { 1 };
        let reading = |read: &'a Read| {
            let logits = logits.get(read.tree)?.get(read.block)?;
            let planned = read.rows.len() * columns;
            let is_planned = logits.values.len() == planned && (planned == 0 || logits.columns == columns);
            (is_planned && logits.is_finite()).then_some(Reading { read, logits })
        };
        self.reads[question].iter().map(reading).collect()
    }

    /// The first question, in the order of the plan, whose logits cannot be used.
    fn first_without_answer(&self, logits: &[Vec<Logits>]) -> Option<&Question> {
        let first_read = |&question: &usize| self.reads[question].first().map(|read| (read.tree, read.block));
        let failed = (0..self.questions.len()).filter(|&question| self.readings(question, logits).is_none());
        failed.min_by_key(first_read).map(|question| &self.questions[question])
    }
}

impl<'a> Finish<'a> {
    fn new(request: &'a Unanswered) -> Self {
        let decision = Decision {
            answers: Vec::with_capacity(request.asked.len()),
            input_tokens: request.input_tokens,
            spans: Vec::new(),
            span_heads: Vec::new(),
            sets: Vec::new(),
            thresholds: Vec::new(),
        };
        Finish { request, decision, targets: HashMap::new(), label_answers: HashMap::new() }
    }

    fn fail(&mut self, id: &str, failure: &Failure) {
        let Failure { kind, code, message } = failure;
        let answer = Answer::Failed { kind: kind.clone(), error: (*code).to_owned(), message: message.clone() };
        self.decision.answers.push((id.to_owned(), answer));
    }

    /// Answers a question from its readings: one for a candidate, one per tree for a span.
    fn answer(&mut self, index: usize, readings: &[Reading<'_>]) {
        let question = &self.request.questions[index];
        match question.kind {
            Kind::Span => self.span(question, readings),
            Kind::Set => self.set(question, &readings[0].logits.values),
            Kind::Choice | Kind::Noul | Kind::Score => self.options(question, &readings[0].logits.values),
        }
    }

    /// A choice, noul or score: the abstain option's logit, where there is one, comes last.
    fn options(&mut self, question: &Question, logits: &[f32]) {
        let calibration = &*self.request.calibration;
        let temperature = temperature(calibration, question);
        let shown = &logits[..question.options.len()];
        let probabilities = softmax(shown, temperature);
        let tells_abstention = question.abstain && self.request.strictness == Strictness::PerQuestion;
        let abstain_probability = tells_abstention.then(|| softmax(logits, temperature)[question.options.len()]);
        let answer = match question.kind {
            Kind::Score => answers::score(&question.legend, probabilities),
            Kind::Noul => {
                let fit = calibration.noul_calibration.as_ref();
                let noul = noul_probability(probabilities[1], fit, self.request.noul_calibration);
                Answer::Noul { noul, abstain_probability }
            }
            _ => answers::choice(question, shown, &probabilities, abstain_probability),
        };
        self.decision.answers.push((question.id.clone(), answer));
    }

    fn set(&mut self, question: &Question, logits: &[f32]) {
        let temperature = temperature(&self.request.calibration, question);
        let threshold = set_threshold(&self.request.calibration, question);
        let mut set = SetAnswer { selected: Vec::new(), probabilities: Vec::with_capacity(logits.len()) };
        for (name, &logit) in question.names.iter().zip(logits) {
            let probability = sigmoid(f64::from(logit) / temperature);
            if probability > threshold {
                set.selected.push(name.clone());
            }
            set.probabilities.push((name.clone(), probability));
            self.label_answer(format!("{}.{name}", question.id), probability);
        }
        self.decision.sets.push((question.id.clone(), set));
        self.decision.thresholds.push((question.id.clone(), threshold));
    }

    fn label_answer(&mut self, name: String, noul: f64) {
        let answers = &mut self.decision.answers;
        let answer = Answer::Noul { noul, abstain_probability: None };
        if let Some(&place) = self.label_answers.get(&name) {
            answers[place].1 = answer;
        } else {
            self.label_answers.insert(name.clone(), answers.len());
            answers.push((name, answer));
        }
    }

    fn span(&mut self, question: &Question, readings: &[Reading<'_>]) {
        let part = self.request.part_of(question);
        let target = self.targets.entry(part).or_insert_with(|| Target::new(&self.request.parts[part]));
        let answered = target.answer(&self.request.calibration, question, readings);
        let id = || question.id.clone();
        self.decision.answers.push((id(), Answer::Noul { noul: answered.noul, abstain_probability: None }));
        self.decision.spans.push((id(), answered.spans));
        if self.request.has_broad {
            self.decision.span_heads.push((id(), question.head.name()));
        }
        self.decision.thresholds.push((id(), answered.threshold));
    }
}
