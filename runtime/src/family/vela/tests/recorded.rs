//! Every recorded case, but for the model: parts, questions, trees, windows and truncation, refusals, and the responses
//! that recorded logits give. The comparison is the one of `synod replay`; that it fails where it should is shown there.

use synod_config::Profile;

use super::*;
use crate::family::Tree;
use crate::http::written;
use crate::model::{Forward, ModelError, Tally};
use crate::replay::RECORDED_GATE;

/// A model that gives the logits that were recorded, whatever it is asked.
struct Recording(Vec<Vec<Logits>>);

impl Forward for Recording {
    fn forward(&mut self, _: &[&Tree], _: &dyn Fn() -> bool) -> Result<Vec<Vec<Logits>>, ModelError> {
        Ok(self.0.clone())
    }

    fn tally(&self) -> Tally {
        Tally::default()
    }
}

#[test]
fn every_case_is_read_planned_and_answered_as_recorded() {
    let (mut answered, mut refused, mut trees) = (0, 0, 0);
    for case in cases() {
        let model_name = case.recorded["member"].as_str().unwrap();
        let mut recording = Recording(case.replay.logits().unwrap_or_default().to_vec());
        let report = case.replay.compare(model_name, &case.vela, &mut recording, Profile::Fp32.gates(), written);
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

/// One way in which a model is wrong.
type Spoil = fn(&mut Vec<Vec<Logits>>);

/// bundle.md, defect 3, on the side of what is computed: neither NaN nor a missing value comes near a recording. And a
/// logit within its gate may still flip a response.
#[test]
fn what_a_model_computes_wrongly_is_told_by_its_place() {
    let case = named_case("vela/tiny-08b/golden.json");
    let difference = |spoil: Spoil| {
        let mut logits = case.logits();
        spoil(&mut logits);
        let gates = Profile::Fp32.gates();
        let report = case.replay.compare("fixtures/tiny-08b", &case.vela, &mut Recording(logits), gates, written);
        report.difference.map_or_else(String::new, |difference| difference.to_string())
    };
    let spoiled: [(Spoil, &str); 9] = [
        (|_| (), ""),
        (|logits| logits[0][0].values.fill(f32::NAN), "logits.domain, row 0: option 0: expected a finite number"),
        (
            |logits| logits[0][4].values[18] = f32::INFINITY,
            "logits.pii, row 0: word 1, label 1: expected a finite number",
        ),
        (|logits| logits[1][0].values.truncate(12), "logits.halu, row 1: expected 13 values, found 12"),
        (|logits| logits[0][0].values.push(0.0), "logits.domain, row 0: expected 4 values, found 5"),
        (|logits| logits[0][4].columns = 23, "logits.pii, row 0: expected 17 columns, found 23"),
        (|logits| logits.truncate(1), "logits: expected one set for each block that is read"),
        (|logits| logits[0][2].values[0] += 5e-3, "logits.urgency, row 0: option 0: expected "),
        (|logits| logits[0][2].values[0] += 3e-4, "own_response.answers.urgency."),
    ];
    for (spoil, expected) in spoiled {
        let found = difference(spoil);
        assert!(found.starts_with(expected) && found.is_empty() == expected.is_empty(), "{expected}: {found}");
    }
}
