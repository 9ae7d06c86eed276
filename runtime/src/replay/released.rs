//! What the released members answer to the specification's request (vela.md, section 10): built in, so that whoever
//! serves one of them checks it without a recording.

use serde_json::{Map, Value};
use synod_config::Gates;

use super::compare::{CaseReport, Unanswerable, compare_answers, lay_out};
use super::difference::{Difference, Distances};
use crate::family::vela::Vela;
use crate::family::vela::finish::Unanswered;
use crate::family::{Logits, Plan};
use crate::wire::request::Strictness;
use crate::wire::response::write_decision;

const REQUEST: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/golden-request.json"));
const ANSWERS: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/golden-answers.json"));

/// The published answers of one member. There are no logits among them.
pub(super) struct Released {
    /// `{"answers": …}`; what is not published of an answer is not there.
    published: Value,
}

/// Its request, laid out.
pub(super) struct Asked {
    pub(super) plan: Plan,
    pending: Unanswered,
}

impl Released {
    /// Its name among cases: no file's, as it has a slash.
    pub(super) const NAME: &'static str = "released/golden";

    /// Those of the member that calls itself `model_name`, if it is a released one.
    pub(super) fn find(model_name: &str) -> Option<Self> {
        let published: Value = serde_json::from_str(ANSWERS).expect("the published answers are JSON");
        Some(Self::of(published.get(model_name)?.get("answers")?))
    }

    fn of(answers: &Value) -> Self {
        Self { published: serde_json::json!({ "answers": answers }) }
    }

    /// Lays the request out. Each question by itself, as some of what is published is written then only.
    ///
    /// # Errors
    /// A member that does not take the request.
    pub(super) fn ask(vela: &Vela) -> Result<Asked, Difference> {
        let laid = lay_out(vela, REQUEST, Strictness::PerQuestion).map_err(|refused| refused.difference("answers"))?;
        let (plan, pending) = vela.plan(laid);
        Ok(Asked { plan, pending })
    }

    /// Holds the answers that `logits` give to the published ones.
    pub(super) fn judge(&self, asked: &Asked, logits: &[Vec<Logits>], gates: Gates) -> CaseReport {
        let mut report = CaseReport { case: Self::NAME.to_owned(), plan: true, ..CaseReport::default() };
        match self.compare(asked, logits, gates.answer) {
            Ok(distances) => report.own = Some(report.largest(distances)),
            Err(difference) => report.fail(difference),
        }
        report
    }

    fn compare(&self, asked: &Asked, logits: &[Vec<Logits>], gate: f64) -> Result<Distances, Difference> {
        let at = "own_response";
        let decision = asked.pending.decide(logits).map_err(|refusal| Unanswerable::from(refusal).difference(at))?;
        let found: Value = serde_json::from_str(&write_decision("", &decision)).expect("responses are JSON");
        compare_answers(at, &self.published, &published_of(&self.published, found).to_string(), gate)
    }
}

/// What of `found` is published, in that order.
fn published_of(published: &Value, mut found: Value) -> Value {
    let (Value::Object(published), Value::Object(found)) = (published, &mut found) else { return found };
    let keys = published.iter();
    let kept = keys.filter_map(|(key, value)| Some((key.clone(), published_of(value, found.remove(key)?))));
    Value::Object(kept.collect::<Map<_, _>>())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;
    use synod_config::Profile;

    use super::*;
    use crate::member::{Anchor, Digest, MemberFiles, Trust};
    use crate::replay::Case;
    use crate::wire::request::Limits;

    const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures");

    /// A member that is not released, and what the oracle recorded for the same request to it.
    fn recorded() -> (Vela, Case) {
        let package = Path::new(FIXTURES).join("members/tiny-08b");
        let manifest = std::fs::read(package.join("MODEL_MANIFEST.json")).unwrap();
        let package = MemberFiles::open(&package, Trust::Anchored(Anchor(Digest::of(&manifest)))).unwrap();
        let vela = Vela::of_package(&package, false, Limits::default()).unwrap();
        (vela, Case::read(&Path::new(FIXTURES).join("vela/tiny-08b/golden.json")).unwrap())
    }

    fn judge(answers: &Value, gates: Gates) -> CaseReport {
        let (vela, case) = recorded();
        let asked = Released::ask(&vela).unwrap();
        assert_eq!(&asked.plan, case.plan().unwrap(), "it is the same request");
        Released::of(answers).judge(&asked, case.logits().unwrap(), gates)
    }

    #[test]
    fn every_released_member_has_its_answers() {
        for name in ["vllm-sr/Vela-2.0-0.8B", "vllm-sr/Vela-2.0-4B", "vllm-sr/Vela-2.0-9B"] {
            let answers = Released::find(name).unwrap().published["answers"].take();
            assert_eq!(answers.as_object().unwrap().len(), 7, "{name}");
        }
        assert!(Released::find("fixtures/tiny-08b").is_none());
    }

    /// What is not published is not compared; all that is must be there and as close as the gate says.
    #[test]
    fn what_is_published_is_compared() {
        let recorded: Value =
            serde_json::from_slice(&std::fs::read(Path::new(FIXTURES).join("vela/tiny-08b/golden.json")).unwrap())
                .unwrap();
        let mut answers = recorded["response"]["answers"].clone();
        answers.as_object_mut().unwrap().retain(|id, _| id != "halu");
        let fp32 = Profile::Fp32.gates();
        let report = judge(&answers, fp32);
        assert!(report.difference.is_none() && report.own.unwrap() < 1.5e-6 && report.logits.is_none(), "{report:?}");

        let mut off = answers.clone();
        let noul = off["jailbreak"]["noul"].as_f64().unwrap() + 1e-3;
        off["jailbreak"]["noul"] = json!(noul);
        let report = judge(&off, fp32);
        let difference = report.difference.unwrap().to_string();
        assert!(difference.starts_with("own_response.answers.jailbreak.noul: expected "), "{difference}");
        assert!((1e-4..2e-3).contains(&report.own.unwrap()));
        assert!(judge(&off, Profile::Bf16.gates()).is_ok());

        let mut missing = answers.clone();
        missing["jailbreak"]["nouls"] = json!(0.5);
        assert_eq!(
            judge(&missing, fp32).difference.unwrap().to_string(),
            r#"own_response.answers.jailbreak: expected key "nouls", found no further key"#
        );

        // A score is the sum of what is compared anyway, and spreads an error further than any of it.
        let mut score = answers;
        score["urgency"]["score"] = json!(score["urgency"]["score"].as_f64().unwrap() + 0.5);
        assert!(!judge(&score, fp32).is_ok());
        assert!(judge(&score, Profile::Bf16.gates()).is_ok());
    }
}
