//! Every recorded case, but for the model: parts, questions, trees, windows and truncation, refusals, and the responses
//! that recorded logits give. The comparison is the one of `synod replay`; that it fails where it should is shown there.

use synod_config::Profile;

use super::*;
use crate::family::Tree;
use crate::model::{Forward, ModelError};
use crate::replay::RECORDED_GATE;

/// A model that gives the logits that were recorded, whatever it is asked.
struct Recording(Vec<Vec<Logits>>);

impl Forward for Recording {
    fn forward(&mut self, _: &[&Tree], _: &dyn Fn() -> bool) -> Result<Vec<Vec<Logits>>, ModelError> {
        Ok(self.0.clone())
    }

    fn tokens_computed(&self) -> u64 {
        0
    }
}

#[test]
fn every_case_is_read_planned_and_answered_as_recorded() {
    let (mut answered, mut refused, mut trees) = (0, 0, 0);
    for case in cases() {
        let model_name = case.recorded["member"].as_str().unwrap();
        let mut recording = Recording(case.replay.logits().unwrap_or_default().to_vec());
        let report = case.replay.compare(model_name, &case.vela, &mut recording, Profile::Fp32.gates());
        assert_eq!(report.difference, None, "{}", case.name);
        if report.refused.is_some() {
            refused += 1;
            continue;
        }
        answered += 1;
        trees += case.replay.plan().unwrap().trees.len();
        assert!(report.plan && report.recorded.unwrap() <= RECORDED_GATE, "{}: {report:?}", case.name);
    }
    assert_eq!((answered, refused), (76, 9));
    assert!(trees > 150, "{trees}");
}
