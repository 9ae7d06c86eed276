//! What a member does, held to a case.

use actix_web::ResponseError as _;
use serde_json::Value;
use synod_config::Gates;
use synod_kernels::Device;

use super::calls::Call;
use super::case::{Answered, Case, Outcome};
use super::difference::{Difference, Distances, check_equal, compare_json};
use super::record::{PartRecord, QuestionRecord, TreeRecord};
use crate::admission::Refused;
use crate::family::vela::finish::Unanswered;
use crate::family::vela::state::Role;
use crate::family::vela::{Laid, Vela};
use crate::family::{Logits, Tree};
use crate::http::Problem;
use crate::model::{Forward, HeadInputs, Model, ModelError};
use crate::wire::json;
use crate::wire::request::{Limits, Request, Strictness};
use crate::wire::response::write_decision;

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

    fn fail(&mut self, difference: Difference) {
        self.difference.get_or_insert(difference);
    }

    /// The largest of some distances; remembers the first one beyond its gate.
    fn largest(&mut self, distances: Distances) -> f64 {
        if let Some(difference) = distances.beyond {
            self.fail(difference);
        }
        distances.largest
    }
}

impl Case {
    /// Replays the case through a member: the token plan, the logits of `forward`, and the response, from the
    /// recorded logits and from those. `model_name` is what the member's package calls itself. `gates` are those of
    /// the member's profile, or tighter; their scale is that of FP32.
    ///
    /// Head inputs are for [`Case::compare_heads`].
    pub fn compare(&self, model_name: &str, vela: &Vela, forward: &mut dyn Forward, gates: Gates) -> CaseReport {
        let mut report = CaseReport { case: self.name.clone(), ..CaseReport::default() };
        let compared = self.check_member(model_name).and_then(|()| match &self.outcome {
            Outcome::Refused { status, body } => self.check_refusal(vela, *status, body).map(|()| {
                report.refused = Some(*status);
            }),
            Outcome::Answered(answered) => self.compare_answered(answered, vela, forward, gates, &mut report),
        });
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

    /// The request as a server reads it and a member lays it out.
    fn lay_out(&self, vela: &Vela) -> Result<Laid, Refused> {
        let lay_out = |request: &Request| vela.lay_out(&request.state, &request.questions, Strictness::AllOrNothing);
        let body = json::parse(self.request_text.as_bytes())?;
        let request = Request::read(body, &Limits::default())
            .map_err(|problem| Refused::Invalid(problem.into_details(|request| lay_out(request).err())))?;
        Ok(lay_out(&request)?)
    }

    fn check_refusal(&self, vela: &Vela, status: u16, body: &Value) -> Result<(), Difference> {
        self.check_parts(vela)?;
        let Err(refused) = self.lay_out(vela) else {
            return Err(Difference::new("error", format!("a refusal with status {status}"), "an answer"));
        };
        let problem = Problem::from(refused);
        let found = problem.status_code().as_u16();
        if found != status {
            return Err(Difference::new("error.status", status, format!("{found}: {}", problem.body())));
        }
        equal_json("error", body, &problem.body())
    }

    /// Every part of the state, if parts were recorded: text, fields, token ids and words.
    fn check_parts(&self, vela: &Vela) -> Result<(), Difference> {
        let Some(recorded) = &self.parts else { return Ok(()) };
        let request = json::parse(self.request_text.as_bytes());
        let state = request.as_ref().ok().and_then(|request| request.as_object()?.get("state"));
        let state = state.ok_or_else(|| Difference::new("parts", "none of a request without a state", "some"))?;
        let parts = vela.read_parts(state).map_err(|refusal| refused("parts", refusal.into()))?;
        let found: Vec<PartRecord> = parts.iter().map(|(part, tokens)| PartRecord::of(part, tokens)).collect();
        check_equal("parts", recorded, &found)
    }

    fn compare_answered(
        &self,
        answered: &Answered,
        vela: &Vela,
        forward: &mut dyn Forward,
        gates: Gates,
        report: &mut CaseReport,
    ) -> Result<(), Difference> {
        self.check_parts(vela)?;
        let laid = self.lay_out(vela).map_err(|problem| refused("response", problem))?;
        answered.check_laid(&laid)?;
        let (plan, pending) = vela.plan(laid);
        if plan != answered.plan {
            return Err(Difference::new("trees", "the recorded blocks to be what is read", "others"));
        }
        report.plan = true;
        let response = |at: &str, logits: &[Vec<Logits>], gate| {
            answered.compare_response(at, &self.member, &pending, logits, gate)
        };
        report.recorded =
            Some(report.largest(response("response", &answered.logits, gates.answer.min(RECORDED_GATE))?));

        let trees: Vec<&Tree> = plan.trees.iter().collect();
        let logits = forward.forward(&trees, &|| true).map_err(|error| failed("logits", &error))?;
        report.logits = Some(report.largest(answered.compare_logits(&logits, gates.logit)?));
        if answered.margin.is_none_or(|margin| margin >= DECIDED_MARGIN) {
            report.own = Some(report.largest(response("own_response", &logits, gates.answer)?));
        }
        Ok(())
    }
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

    /// The distances of the response that `logits` give from the recorded one.
    fn compare_response(
        &self,
        at: &str,
        model_name: &str,
        pending: &Unanswered,
        logits: &[Vec<Logits>],
        gate: f64,
    ) -> Result<Distances, Difference> {
        let decision = pending.decide(logits).map_err(|refusal| refused(at, refusal.into()))?;
        compare_text(at, &self.response, &write_decision(model_name, &decision), gate)
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

/// The difference of a request that was refused and should not have been.
fn refused(at: &str, refused: Refused) -> Difference {
    let problem = Problem::from(refused);
    Difference::new(at, "an answer", format!("a refusal with status {}: {}", problem.status_code(), problem.body()))
}

/// Compares a recorded value with JSON text.
fn compare_text(at: &str, recorded: &Value, found: &str, gate: f64) -> Result<Distances, Difference> {
    let found: Value = serde_json::from_str(found).map_err(|error| Difference::new(at, "JSON", error))?;
    compare_json(at, recorded, &found, gate)
}

/// As [`compare_text`], floats included.
fn equal_json(at: &str, recorded: &Value, found: &str) -> Result<(), Difference> {
    compare_text(at, recorded, found, 0.0)?.beyond.map_or(Ok(()), Err)
}
