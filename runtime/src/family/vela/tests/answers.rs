//! Recorded logits to what the recording says beside its response, and logits that are no answer.

use super::*;
use crate::family::CharRange;
use crate::family::vela::decode::Decoded;
use crate::family::vela::finish::spans::Target;
use crate::family::vela::thresholds::{span_threshold, temperature};
use crate::replay::{RECORDED_GATE, compare_json};
use crate::wire::response::{Answer, write_decision};

/// One way to return bad logits.
type Spoil = fn(&mut Vec<Vec<Logits>>);

#[test]
fn abstain_probabilities_equal_the_recorded_ones() {
    let mut compared = 0;
    for case in cases() {
        let Some(recorded) = case.recorded("answering") else { continue };
        let (_, pending) = case.planned(Strictness::PerQuestion);
        let logits = case.logits();
        let decision = Box::new(pending).finish(&logits).unwrap();
        for (id, answer) in &decision.answers {
            let (Answer::Choice { abstain_probability: found, .. } | Answer::Noul { abstain_probability: found, .. }) =
                answer
            else {
                continue;
            };
            let expected = recorded.get(id).and_then(|info| info["abstain_probability"].as_f64());
            assert_eq!(found.is_some(), expected.is_some(), "{}: {id}", case.name);
            if let (Some(found), Some(expected)) = (found, expected) {
                assert!((found - expected).abs() <= 1e-12, "{}: {id}: {found} instead of {expected}", case.name);
                compared += 1;
            }
        }
    }
    assert!(compared > 40, "{compared}");
}

/// Temperature, rule and threshold before the gate, the rule after it, and the decoded spans of the whole part with their
/// words.
#[test]
fn spans_are_decoded_as_recorded() {
    let mut compared = 0;
    for case in cases() {
        let Some(recorded) = case.recorded("answering") else { continue };
        let (_, pending) = case.planned(Strictness::AllOrNothing);
        let logits = case.logits();
        for (index, question) in pending.questions.iter().enumerate() {
            let info = &recorded[&question.id];
            let name = format!("{}: {}", case.name, question.id);
            assert_eq!(Some(temperature(&pending.calibration, question)), info["temperature"].as_f64(), "{name}");
            if question.kind != Kind::Span {
                continue;
            }
            let readings = pending.readings(index, &logits).unwrap();
            let part = &pending.parts[pending.part_of(question)];
            let target = Target::new(part);
            let before = span_threshold(&pending.calibration, question, part.tokens);
            let expected = info["rule_threshold"].as_f64().unwrap();
            assert!((before.value - expected).abs() < 1e-15, "{name}: {} instead of {expected}", before.value);
            let decoding = target.decode(&pending.calibration, question, &readings);
            assert_eq!(decoding.threshold.rule, info["rule"], "{name}");
            let recorded: Vec<Decoded> = info["decoded"].as_array().unwrap().iter().map(decoded).collect();
            assert_eq!(decoding.spans, recorded, "{name}");
            compared += 1;
        }
    }
    assert!(compared > 100, "{compared}");
}

/// Requests wait in great numbers, each with what is pending of it: a long state that no span reads is not kept.
#[test]
fn only_the_parts_that_spans_read_are_kept() {
    let vela = vela("vela", "tiny-08b");
    let request = r#"{"state": {"request": "Hello Tom.", "source": "Tom lives in Rome."}, "questions": {
        "n": {"type": "noul", "instructions": "?"},
        "s": {"type": "span", "instructions": "?", "over": "source", "criteria": {"a": null}}}}"#;
    let request = parse(request.as_bytes()).unwrap();
    let (state, questions) = (request_state(&request), request_questions(&request));
    let kept = |questions: &[(String, Value)]| -> Vec<String> {
        let (_, pending) = planned(&vela, &state, questions, Strictness::AllOrNothing);
        pending.parts.into_iter().map(|part| part.text).collect()
    };
    assert_eq!(kept(&questions), ["Tom lives in Rome."]);
    assert!(kept(&questions[..1]).is_empty());
}

/// The switch of the deployment reaches the answer, and nothing but nouls.
#[test]
fn the_deployment_can_enable_the_noul_calibration() {
    let mut case = named_case("vela/tiny-08b/golden.json");
    Arc::get_mut(&mut case.vela).unwrap().noul_calibration = true;
    let (_, pending) = case.planned(Strictness::AllOrNothing);
    let logits = case.logits();
    let decision = Box::new(pending).finish(&logits).unwrap();
    let found: Json = serde_json::from_str(&write_decision("fixtures/tiny-08b", &decision)).unwrap();
    let mut expected = case.recorded["response"].clone();
    // In Python, with T = 1.4 and b = -0.2: 1 / (1 + exp(-((log(p) - log1p(-p)) / T + b))).
    expected["answers"]["jailbreak"]["noul"] = 0.208_686_543_244_255_73.into();
    let distances = compare_json("response", &expected, &found, RECORDED_GATE).unwrap();
    assert_eq!(distances.beyond, None);
}

#[test]
fn logits_that_are_not_numbers_or_not_as_planned_fail() {
    let case = named_case("vela/tiny-08b/golden.json");
    let spoil: [(&str, Spoil); 6] = [
        ("urgency", |logits| logits[0][2].values[1] = f32::NAN),
        ("pii", |logits| logits[0][4].values[7] = f32::INFINITY),
        ("halu", |logits| logits[1][0].values.truncate(3)),
        ("halu", |logits| logits.truncate(1)),
        ("domain", |logits| logits[0][0].values.clear()),
        ("pii", |logits| logits[0][4].columns = 1),
    ];
    for (question, spoil) in spoil {
        let (_, pending) = case.planned(Strictness::AllOrNothing);
        let mut logits = case.logits();
        spoil(&mut logits);
        let expected = Refusal::InvalidModelOutput { question: question.to_owned() };
        assert_eq!(Box::new(pending).finish(&logits), Err(expected));
    }
}

/// The first in the order of the plan, as the reference meets it, not in the order of the questions.
#[test]
fn of_several_bad_outputs_the_first_read_is_named() {
    let case = named_case("vela/tiny-08b/golden.json");
    let (plan, pending) = case.planned(Strictness::AllOrNothing);
    let logits = logits_of(&plan, |_, _, _| f32::NAN);
    assert_eq!(Box::new(pending).finish(&logits), Err(Refusal::InvalidModelOutput { question: "domain".to_owned() }));
}

fn decoded(span: &Json) -> Decoded {
    let of = |value: &Json| value.as_u64().unwrap() as usize;
    Decoded {
        label: of(&span["label"]),
        range: CharRange { start: of(&span["start"]), end: of(&span["end"]) },
        words: of(&span["words"][0])..of(&span["words"][1]),
        probability: span["probability"].as_f64().unwrap() as f32,
    }
}
