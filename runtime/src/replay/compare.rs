//! What a member does, held to a case.

use serde_json::Value;
use synod_config::{Gates, Profile};
use synod_kernels::Device;

use super::calls::Call;
use super::case::{Answered, Case, Outcome};
use super::difference::{Difference, Distances, check_equal, compare_json};
use super::record::{PartRecord, QuestionRecord, TreeRecord};
use crate::family::vela::finish::Unanswered;
use crate::family::vela::state::Role;
use crate::family::vela::{Laid, Vela};
use crate::family::{Logits, Plan, Tree};
use crate::model::{Forward, HeadInputs, Model, ModelError};
use crate::wire::json::{self, JsonError};
use crate::wire::request::{Limits, Request, Strictness};
use crate::wire::response::{Refusal, write_decision, write_details};

/// Logits of heads on recorded inputs: F32 in every profile (bundle.md, "Numeric gates").
pub const HEAD_GATE: f64 = 1e-4;
/// Numbers of a response that was finished from recorded logits: no device has a part in it.
pub const RECORDED_GATE: f64 = 1.5e-6;
/// Below this margin rounding alone may flip a decision, and a response is not compared (synth.md, "Recorded").
pub const DECIDED_MARGIN: f64 = 1e-3;

/// How far a member is from a case. A distance is there once its comparison was made, within the gate or not.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CaseReport {
    /// [`Case::name`].
    pub case: String,
    /// Whether parts, questions and trees are the recorded ones, token by token.
    pub plan: bool,
    /// The status, if the request was refused as recorded.
    pub refused: Option<u16>,
    /// Of logits: our heads on the recorded head inputs.
    pub heads: Option<f64>,
    /// Of hidden states: our own forward's head inputs. Told, not gated.
    pub states: Option<f64>,
    /// Of logits: our own forward, relative to `max(1, |recorded|)`.
    pub logits: Option<f64>,
    /// Of the response's numbers: finished from the recorded logits.
    pub recorded: Option<f64>,
    /// Of the response's numbers: finished from our own logits. None if the case's margin is too small.
    pub own: Option<f64>,
    /// The first thing that is not as recorded, or beyond its gate.
    pub difference: Option<Difference>,
}

impl CaseReport {
    /// Whether everything that was compared is as recorded.
    pub fn is_ok(&self) -> bool {
        self.difference.is_none()
    }

    /// A case that could not even be compared.
    pub fn failed(case: &str, difference: Difference) -> Self {
        Self { case: case.to_owned(), difference: Some(difference), ..Self::default() }
    }

    pub(super) fn fail(&mut self, difference: Difference) {
        self.difference.get_or_insert(difference);
    }

    /// The largest of some distances; remembers the first one beyond its gate.
    pub(super) fn largest(&mut self, distances: Distances) -> f64 {
        if let Some(difference) = distances.beyond {
            self.fail(difference);
        }
        distances.largest
    }
}

/// A request of a case that is not answered. How a server would put that is for whoever has its table.
#[derive(Clone, Debug, PartialEq)]
pub enum Unanswerable {
    Json(JsonError),
    Refused(Refusal),
}

impl From<JsonError> for Unanswerable {
    fn from(error: JsonError) -> Self {
        Unanswerable::Json(error)
    }
}

impl From<Refusal> for Unanswerable {
    fn from(refusal: Refusal) -> Self {
        Unanswerable::Refused(refusal)
    }
}

impl Unanswerable {
    /// The difference of a request that should have been answered.
    pub(super) fn difference(&self, at: &str) -> Difference {
        let reason = match self {
            Unanswerable::Json(error) => error.to_string(),
            Unanswerable::Refused(Refusal::Invalid(details)) => write_details(details),
            Unanswerable::Refused(Refusal::TooLong { message }) => message.clone(),
            Unanswerable::Refused(Refusal::InvalidModelOutput { question }) => {
                format!("a logit of {question} is not finite")
            }
        };
        Difference::new(at, "an answer", format!("a refusal: {reason}"))
    }
}

/// A status, and the JSON of a body.
pub type Written = (u16, String);

/// The request of an answered case, laid out as recorded: what is left is to compute the plan, and to
/// [`judge`](Case::judge) the logits.
pub struct Prepared {
    pub plan: Plan,
    pending: Unanswered,
}

impl Case {
    /// Replays the case through a member: the token plan, the logits of `forward`, and the response, from the
    /// recorded logits and from those. `model_name` is what the member's package calls itself. `gates` are those of
    /// the member's profile, or tighter. `write` is how the server writes a refusal.
    ///
    /// Head inputs are for [`Case::compare_heads`].
    pub fn compare(
        &self,
        model_name: &str,
        vela: &Vela,
        forward: &mut dyn Forward,
        gates: Gates,
        write: impl Fn(Unanswerable) -> Written,
    ) -> CaseReport {
        let mut report = CaseReport { case: self.name.clone(), ..CaseReport::default() };
        let compared = match &self.outcome {
            Outcome::Refused { status, body } => {
                self.check_refusal(model_name, vela, *status, body, write).map(|()| report.refused = Some(*status))
            }
            Outcome::Answered(answered) => self.prepare_answered(answered, model_name, vela).and_then(|prepared| {
                report.plan = true;
                self.compare_recorded(answered, &prepared, gates, &mut report)?;
                let trees: Vec<&Tree> = prepared.plan.trees.iter().collect();
                let logits = forward.forward(&trees, &|| true).map_err(|error| failed("logits", &error))?;
                self.compare_own(answered, &prepared, &logits, gates, &mut report)
            }),
        };
        if let Err(difference) = compared {
            report.fail(difference);
        }
        report
    }

    /// Lays the request out, and holds every token of that to the recording. None if it was refused: there is nothing
    /// to compute.
    ///
    /// # Errors
    /// The first difference.
    pub fn prepare(&self, model_name: &str, vela: &Vela) -> Result<Option<Prepared>, Difference> {
        self.answered().map(|answered| self.prepare_answered(answered, model_name, vela)).transpose()
    }

    /// The response finished from the recorded logits, then the logits `[tree][block]` of one's own and the response
    /// from those, held to the recording. `prepared` is this case's.
    pub fn judge(&self, prepared: &Prepared, logits: &[Vec<Logits>], gates: Gates) -> CaseReport {
        let mut report = CaseReport { case: self.name.clone(), plan: true, ..CaseReport::default() };
        let Some(answered) = self.answered() else { return report };
        let compared = self
            .compare_recorded(answered, prepared, gates, &mut report)
            .and_then(|()| self.compare_own(answered, prepared, logits, gates, &mut report));
        if let Err(difference) = compared {
            report.fail(difference);
        }
        report
    }

    /// Adds to `report` how far a member's heads are from the recorded logits on the recorded head inputs, and how far
    /// its own states are from these inputs; nothing if the case has none.
    pub fn compare_heads<D: Device>(&self, model: &mut Model<D>, gates: Gates, report: &mut CaseReport) {
        let Some(answered) = self.answered() else { return };
        let Some(inputs) = &answered.head_inputs else { return };
        if let Err(difference) = compare_heads(answered, inputs, model, gates, report) {
            report.fail(difference);
        }
    }

    fn check_member(&self, model_name: &str) -> Result<(), Difference> {
        if self.member == model_name {
            return Ok(());
        }
        Err(Difference::new("member", format!("a case of {model_name}"), format!("one of {}", self.member)))
    }

    fn check_refusal(
        &self,
        model_name: &str,
        vela: &Vela,
        status: u16,
        body: &Value,
        write: impl Fn(Unanswerable) -> Written,
    ) -> Result<(), Difference> {
        self.check_member(model_name)?;
        self.check_parts(vela)?;
        let Err(refused) = lay_out(vela, &self.request_text, Strictness::AllOrNothing) else {
            return Err(Difference::new("error", format!("a refusal with status {status}"), "an answer"));
        };
        let (found, text) = write(refused);
        if found != status {
            return Err(Difference::new("error.status", status, format!("{found}: {text}")));
        }
        equal_json("error", body, &text)
    }

    /// Every part of the state, if parts were recorded: text, fields, token ids and words.
    fn check_parts(&self, vela: &Vela) -> Result<(), Difference> {
        let Some(recorded) = &self.parts else { return Ok(()) };
        let request = json::parse(self.request_text.as_bytes());
        let state = request.as_ref().ok().and_then(|request| request.as_object()?.get("state"));
        let state = state.ok_or_else(|| Difference::new("parts", "none of a request without a state", "some"))?;
        let parts = vela.read_parts(state).map_err(|refusal| Unanswerable::from(refusal).difference("parts"))?;
        let found: Vec<PartRecord> = parts.iter().map(|(part, tokens)| PartRecord::of(part, tokens)).collect();
        check_equal("parts", recorded, &found)
    }

    fn prepare_answered(&self, answered: &Answered, model_name: &str, vela: &Vela) -> Result<Prepared, Difference> {
        self.check_member(model_name)?;
        self.check_parts(vela)?;
        let laid = lay_out(vela, &self.request_text, Strictness::AllOrNothing)
            .map_err(|refused| refused.difference("response"))?;
        answered.check_laid(&laid)?;
        let (plan, pending) = vela.plan(laid);
        if plan != answered.plan {
            return Err(Difference::new("trees", "the recorded blocks to be what is read", "others"));
        }
        Ok(Prepared { plan, pending })
    }

    fn compare_recorded(
        &self,
        answered: &Answered,
        prepared: &Prepared,
        gates: Gates,
        report: &mut CaseReport,
    ) -> Result<(), Difference> {
        let gate = gates.answer.min(RECORDED_GATE);
        let recorded = self.compare_response("response", answered, prepared, &answered.logits, gate)?;
        report.recorded = Some(report.largest(recorded));
        Ok(())
    }

    fn compare_own(
        &self,
        answered: &Answered,
        prepared: &Prepared,
        logits: &[Vec<Logits>],
        gates: Gates,
        report: &mut CaseReport,
    ) -> Result<(), Difference> {
        report.logits = Some(report.largest(answered.compare_logits(logits, gates.logit)?));
        if answered.margin.is_none_or(|margin| margin >= decided_margin(gates)) {
            let own = self.compare_response("own_response", answered, prepared, logits, gates.answer)?;
            report.own = Some(report.largest(own));
        }
        Ok(())
    }

    /// The distances of the response that `logits` give from the recorded one.
    fn compare_response(
        &self,
        at: &str,
        answered: &Answered,
        prepared: &Prepared,
        logits: &[Vec<Logits>],
        gate: f64,
    ) -> Result<Distances, Difference> {
        let decision = prepared.pending.decide(logits).map_err(|refusal| Unanswerable::from(refusal).difference(at))?;
        compare_answers(at, &answered.response, &write_decision(&self.member, &decision), gate)
    }
}

/// A request as a server reads it and a member lays it out.
pub(super) fn lay_out(vela: &Vela, request_text: &str, strictness: Strictness) -> Result<Laid, Unanswerable> {
    let lay_out = |request: &Request| vela.lay_out(&request.state, &request.questions, strictness);
    let body = json::parse(request_text.as_bytes())?;
    let request = Request::read(body, &Limits::default())
        .map_err(|problem| Refusal::Invalid(problem.into_details(|request| lay_out(request).err())))?;
    Ok(lay_out(&request)?)
}

/// The margin above which no decision may differ: within the gate for answers, rounding may flip those below.
pub fn decided_margin(gates: Gates) -> f64 {
    gates.answer.max(DECIDED_MARGIN)
}

impl Answered {
    /// Questions, if they were recorded, and trees: token ids, positions and, if they were recorded, the figures of
    /// the truncation.
    fn check_laid(&self, laid: &Laid) -> Result<(), Difference> {
        if let Some(recorded) = &self.questions {
            check_equal("questions", recorded, &laid.questions.iter().map(QuestionRecord::of).collect())?;
        }
        let roles: Vec<Role> = laid.roles().collect();
        let mut found: Vec<TreeRecord> =
            laid.layout.trees.iter().map(|tree| TreeRecord::of(tree, &roles, &laid.questions)).collect();
        for (found, recorded) in found.iter_mut().zip(&self.trees) {
            found.kept.take_if(|_| recorded.kept.is_none());
            found.truncation.take_if(|_| recorded.truncation.is_none());
        }
        check_equal("trees", &self.trees, &found)
    }

    /// The distances of a plan's logits from the recorded ones, relative to `max(1, |recorded|)`.
    pub(crate) fn compare_logits(&self, logits: &[Vec<Logits>], gate: f64) -> Result<Distances, Difference> {
        let mut distances = Distances::default();
        let blocks = |logits: &[Vec<Logits>]| logits.iter().map(Vec::len).collect::<Vec<_>>();
        if blocks(logits) != blocks(&self.logits) {
            return Err(Difference::new("logits", "one set for each block that is read", "others"));
        }
        let calls = self.calls.iter().flatten().zip(self.logits.iter().flatten());
        for ((call, recorded), found) in calls.zip(logits.iter().flatten()) {
            compare_call("logits", call, recorded, found, Scale::Relative, gate, &mut distances)?;
        }
        Ok(distances)
    }
}

/// What the distance of a logit is measured by.
#[derive(Clone, Copy)]
enum Scale {
    Absolute,
    /// `max(1, |recorded|)`.
    Relative,
}

fn compare_call(
    key: &str,
    call: &Call,
    recorded: &Logits,
    found: &Logits,
    scale: Scale,
    gate: f64,
    distances: &mut Distances,
) -> Result<(), Difference> {
    call.check(key, found)?;
    for (place, (&recorded, &found)) in recorded.values.iter().zip(&found.values).enumerate() {
        let (a, b) = (f64::from(recorded), f64::from(found));
        let unit = match scale {
            Scale::Absolute => 1.0,
            Scale::Relative => a.abs().max(1.0),
        };
        distances.add((a - b).abs() / unit, gate, || {
            Difference::new(call.value_at(key, place), format!("{recorded} within {:e}", gate * unit), found)
        });
    }
    Ok(())
}

fn compare_heads<D: Device>(
    answered: &Answered,
    inputs: &[Vec<HeadInputs>],
    model: &mut Model<D>,
    gates: Gates,
    report: &mut CaseReport,
) -> Result<(), Difference> {
    let (mut heads, gate) = (Distances::default(), gates.logit.min(HEAD_GATE));
    let blocks = answered.plan.trees.iter().flat_map(|tree| &tree.blocks);
    let calls = answered.calls.iter().flatten().zip(answered.logits.iter().flatten());
    let recorded = blocks.zip(inputs.iter().flatten()).zip(calls);
    for ((block, inputs), (call, recorded)) in recorded.filter(|(_, (call, _))| call.is_read()) {
        let at = call.at("head_inputs");
        let found = model.head_logits(&block.readout, inputs).map_err(|error| failed(&at, &error))?;
        compare_call("head_inputs", call, recorded, &found, Scale::Absolute, gate, &mut heads)?;
    }
    report.heads = Some(report.largest(heads));

    let trees: Vec<&Tree> = answered.plan.trees.iter().collect();
    let own = model.head_inputs(&trees).map_err(|error| failed("head_inputs", &error))?;
    let mut states = Distances::default();
    for (recorded, own) in inputs.iter().flatten().zip(own.iter().flatten()) {
        for (recorded, own) in [(&recorded.left, &own.left), (&recorded.right, &own.right)] {
            // A block that reads nothing has no states of our own.
            if !own.is_empty() && own.len() != recorded.len() {
                return Err(Difference::new("head_inputs", format!("{} values", recorded.len()), own.len()));
            }
            for (recorded, own) in recorded.iter().zip(own) {
                let distance = if own.is_finite() { f64::from((recorded - own).abs()) } else { f64::NAN };
                states.add(distance, f64::INFINITY, || Difference::new("head_inputs", "finite states", own));
            }
        }
    }
    report.states = Some(report.largest(states));
    Ok(())
}

/// The difference where a model computes nothing.
fn failed(at: &str, error: &ModelError) -> Difference {
    Difference::new(at, "logits", format!("an error: {error}"))
}

/// Compares a recorded value with JSON text.
fn compare_text(at: &str, recorded: &Value, found: &str, gate: f64) -> Result<Distances, Difference> {
    let found: Value = serde_json::from_str(found).map_err(|error| Difference::new(at, "JSON", error))?;
    compare_json(at, recorded, &found, gate)
}

/// As [`compare_text`], of responses. Where the gate is BF16's, `score` and `confidence` of an answer are not compared:
/// they add up and cancel what the probabilities show (vela.md, section 10).
pub(super) fn compare_answers(at: &str, recorded: &Value, found: &str, gate: f64) -> Result<Distances, Difference> {
    if gate <= Profile::Fp32.gates().answer {
        return compare_text(at, recorded, found, gate);
    }
    let mut found: Value = serde_json::from_str(found).map_err(|error| Difference::new(at, "JSON", error))?;
    let mut recorded = recorded.clone();
    [&mut recorded, &mut found].into_iter().for_each(remove_sums);
    compare_json(at, &recorded, &found, gate)
}

fn remove_sums(response: &mut Value) {
    let answers = response.get_mut("answers").and_then(Value::as_object_mut);
    for answer in answers.into_iter().flat_map(|answers| answers.values_mut()).filter_map(Value::as_object_mut) {
        answer.retain(|key, _| key != "score" && key != "confidence");
    }
}

/// As [`compare_text`], floats included.
fn equal_json(at: &str, recorded: &Value, found: &str) -> Result<(), Difference> {
    compare_text(at, recorded, found, 0.0)?.beyond.map_or(Ok(()), Err)
}
