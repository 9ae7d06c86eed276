//! The rules of `/v1/decisions`: a question that fails leaves the others as if it had not been asked.
//!
//! Logits come from a stand-in for a model: each value depends on its prefix, its block and its place, so that a token
//! more or less shows in the answers.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::json;

use super::*;
use crate::wire::response::{Answer, Decision, write_details};

pub(super) type Asking = Vec<(String, Value)>;

#[test]
fn what_is_valid_and_fits_is_answered_alike_in_both_modes() {
    let mut compared = 0;
    for case in cases().iter().filter(|case| case.recorded("response").is_some()) {
        let strict = decide(&case.vela, &case.state, &case.questions, Strictness::AllOrNothing);
        let mut lenient = decide(&case.vela, &case.state, &case.questions, Strictness::PerQuestion);
        for (_, answer) in &mut lenient.answers {
            forget_abstention(answer);
        }
        assert_eq!(lenient, strict, "{}", case.name);
        compared += 1;
    }
    assert_eq!(compared, 76);
}

#[test]
fn invalid_questions_stand_in_their_place_and_change_nothing_else() {
    let case = named_case("vela/tiny-08b/golden.json");
    let invalid = asking(&json!({
        "first span": {"type": "span", "instructions": "?", "criteria": {"a": null}, "threshold": 2},
        "choice": {"type": "choice", "instructions": "?", "criteria": {"a": null}},
        "odd type": {"type": ["span"], "instructions": "?"},
        "not an object": 5,
        "preset": {"preset": "pii", "head": "router"},
        "set": {"type": "set", "instructions": " ", "criteria": {"a": null}}
    }));
    let mut mixed: Asking = Vec::new();
    for (valid, invalid) in case.questions.iter().zip(&invalid) {
        mixed.extend([invalid.clone(), valid.clone()]);
    }
    let decision = decide(&case.vela, &case.state, &mixed, Strictness::PerQuestion);
    let alone = decide(&case.vela, &case.state, &case.questions, Strictness::PerQuestion);
    assert_eq!(without_failures(&decision), alone);

    let kinds = [json!("span"), json!("choice"), json!(["span"]), Json::Null, Json::Null, json!("set")];
    let codes = ["range", "too_short", "literal_error", "dict_type", "extra_forbidden", "blank"];
    let failed = failures(&decision);
    assert_eq!(failed.len(), invalid.len());
    for (i, (id, kind, code)) in failed.into_iter().enumerate() {
        assert_eq!((id, code), (invalid[i].0.as_str(), codes[i]));
        assert_eq!(kind, &parse(kinds[i].to_string().as_bytes()).unwrap(), "{id}");
    }
    let ids: Vec<&str> = decision.answers.iter().map(|(id, _)| id.as_str()).filter(|id| !id.contains('.')).collect();
    let asked: Vec<&str> = mixed.iter().map(|(id, _)| id.as_str()).filter(|id| *id != "topics").collect();
    assert_eq!(ids, asked);
}

#[test]
fn a_type_comes_back_as_sent_unless_it_is_long() {
    let case = named_case("vela/tiny-08b/golden.json");
    let as_sent = |kind: Json| {
        let asked = asking(&json!({"q": {"type": kind, "instructions": "?"}}));
        let decision = decide(&case.vela, &case.state, &asked, Strictness::PerQuestion);
        failures(&decision)[0].1.clone()
    };
    for kind in [json!("rank"), json!(5), json!({"a": [null, 0.5]}), json!("é".repeat(1022))] {
        assert_eq!(as_sent(kind.clone()), value(&kind));
    }
    assert_eq!(as_sent(json!("x".repeat(1023))), Value::Null);
    assert_eq!(as_sent(json!(["x".repeat(100_000)])), Value::Null);
}

/// Under its own id, so that the client finds it; nowhere else is so long an id repeated whole.
#[test]
fn an_id_that_is_too_long_spoils_no_other_question() {
    let case = named_case("vela/tiny-08b/golden.json");
    let id = "é".repeat(2_000);
    let mut mixed = case.questions.clone();
    mixed.insert(1, (id.clone(), mixed[0].1.clone()));
    let decision = decide(&case.vela, &case.state, &mixed, Strictness::PerQuestion);
    let kind = value(&json!("choice"));
    assert_eq!(failures(&decision), [(id.as_str(), &kind, "too_long")]);
    assert_eq!(decision.answers[1].0, id);
    let alone = decide(&case.vela, &case.state, &case.questions, Strictness::PerQuestion);
    assert_eq!(without_failures(&decision), alone);

    let Err(Refusal::Invalid(details)) = case.vela.render(&case.state, &mixed, Strictness::AllOrNothing) else {
        panic!("answered")
    };
    let body: Json = serde_json::from_str(&write_details(&details)).unwrap();
    let loc = json!(["body", "questions", format!("{}…", "é".repeat(1024))]);
    let msg = "takes at most 256 characters";
    assert_eq!(body, json!({"detail": [{"loc": loc, "msg": msg, "type": "too_long"}]}));
}

#[test]
fn every_recorded_invalid_question_fails_by_itself() {
    let case = named_case("vela/tiny-08b/bad-questions.json");
    let decision = decide(&case.vela, &case.state, &case.questions, Strictness::PerQuestion);
    let recorded = case.recorded["error"]["questions"].as_array().unwrap();
    let found: Vec<Json> = failures(&decision).into_iter().map(|(id, _, code)| json!([id, code])).collect();
    assert_eq!(&found, recorded);
    let is_invalid = |id: &str| recorded.iter().any(|question| question[0] == id);
    let valid: Asking = case.questions.iter().filter(|(id, _)| !is_invalid(id)).cloned().collect();
    assert_eq!(without_failures(&decision), decide(&case.vela, &case.state, &valid, Strictness::PerQuestion));
}

#[test]
fn a_request_of_failures_only_takes_no_tokens() {
    let case = named_case("vela/tiny-08b/golden.json");
    let questions = asking(&json!({"a": null, "b": {"type": "span"}}));
    let rendered = case.vela.render(&case.state, &questions, Strictness::PerQuestion).unwrap();
    assert!(rendered.plan.trees.is_empty());
    let decision = rendered.pending.finish(&[]).unwrap();
    assert_eq!((decision.input_tokens, failed_ids(&decision)), (0, vec!["a", "b"]));
}

#[test]
fn an_invalid_state_refuses_both_modes() {
    let case = named_case("vela/tiny-08b/blank-state.json");
    for strictness in [Strictness::AllOrNothing, Strictness::PerQuestion] {
        let Err(refusal) = case.vela.render(&case.state, &case.questions, strictness) else { panic!("answered") };
        assert!(matches!(refusal, Refusal::Invalid(details) if details[0].code == "blank"));
    }
}

/// Each row by itself: who would not fit alone is to blame, and goes.
#[test]
fn a_question_that_does_not_fit_alone_leaves_the_others_of_its_row() {
    let vela = vela("vela", "tiny-short");
    let mut questions = asking(&json!({
        "small": {"type": "noul", "instructions": "Small?"},
        "big": choice_of(40),
        "pii": {"preset": "pii", "over": "context"},
        "second": {"type": "span", "instructions": "Mark.", "criteria": {"a": null}}
    }));
    let state = value(&json!({"request": "Hello Tom, how are you?", "source": "Tom lives in Rome."}));
    let decision = decide(&vela, &state, &questions, Strictness::PerQuestion);
    // The preset's seventeen labels are too many for this member as well.
    assert_eq!(failed_ids(&decision), ["big", "pii"]);
    assert!(failures(&decision).iter().all(|(_, _, code)| *code == "too_long"));
    questions.retain(|(id, _)| id != "big" && id != "pii");
    // The second span keeps its row: only the first is laid out again.
    let mut expected = decide(&vela, &state, &questions[..1], Strictness::PerQuestion);
    let second = decide(&vela, &state, &questions[1..], Strictness::PerQuestion);
    expected.input_tokens += second.input_tokens;
    expected.answers.extend(second.answers);
    expected.spans.extend(second.spans);
    expected.span_heads.extend(second.span_heads);
    expected.thresholds.extend(second.thresholds);
    assert_eq!(without_failures(&decision), expected);
}

#[test]
fn where_no_single_question_is_to_blame_all_of_the_row_go() {
    let vela = vela("vela", "tiny-short");
    let state = value(&json!("Hello Tom."));
    let options = most_options(&vela, &state);
    let mut questions = asking(&json!({"a": choice_of(options), "b": choice_of(options),
        "mark": {"type": "span", "instructions": "Mark.", "criteria": {"a": null}},
        "again": {"type": "span", "instructions": "Mark.", "criteria": {"b": null}}}));
    for (id, _) in &questions {
        let one: Asking = questions.iter().filter(|(other, _)| other == id).cloned().collect();
        assert!(
            failed_ids(&decide(&vela, &state, &one, Strictness::PerQuestion)).is_empty(),
            "{id} does not fit alone"
        );
    }
    let decision = decide(&vela, &state, &questions, Strictness::PerQuestion);
    assert_eq!(failed_ids(&decision), ["a", "b", "mark"]);
    let last = questions.split_off(3);
    assert_eq!(without_failures(&decision), decide(&vela, &state, &last, Strictness::PerQuestion));
}

#[test]
fn after_one_is_blamed_the_rest_may_still_be_too_long() {
    let vela = vela("vela", "tiny-short");
    let state = value(&json!("Hello Tom."));
    let options = most_options(&vela, &state);
    let questions = asking(&json!({"a": choice_of(options), "huge": choice_of(options + 1), "b": choice_of(options)}));
    let decision = decide(&vela, &state, &questions, Strictness::PerQuestion);
    assert_eq!(failed_ids(&decision), ["a", "huge", "b"]);
    assert_eq!(decision.input_tokens, 0);
}

#[test]
fn a_span_whose_window_does_not_fit_goes_alone() {
    let vela = vela("vela", "tiny-short");
    let state = value(&json!({"request": "word ".repeat(200), "source": "Something else."}));
    let small = ("small".to_owned(), value(&json!({"type": "score", "instructions": "?", "criteria": ["a", "b"]})));
    let with_labels = |labels: usize| {
        let criteria: serde_json::Map<_, _> = (0..labels).map(|i| (format!("l{i}"), Json::Null)).collect();
        let span = json!({"type": "span", "instructions": "Mark.", "criteria": criteria});
        [("span".to_owned(), value(&span)), small.clone()]
    };
    // With more and more labels, the windows, which repeat their target, are the first that do not fit.
    let window_fails = |labels: &usize| {
        let state = read_state(&state).unwrap();
        let read = read_questions(&with_labels(*labels), &state, &vela.calibration, true, &vela.limits);
        let questions: Vec<Question> = read.into_iter().map(Result::unwrap).collect();
        let parts = vela.token_parts(&state, &questions).unwrap();
        let strict = Strictness::AllOrNothing;
        let layout = vela.layouter.lay_out(&vela.tokenizer, &parts, &questions, strict);
        matches!(layout, Err(LayoutError::TooLong(problem)) if problem.window.is_some())
    };
    let labels = (1..60).find(window_fails).unwrap();
    let decision = decide(&vela, &state, &with_labels(labels), Strictness::PerQuestion);
    assert_eq!(failed_ids(&decision), ["span"]);
    assert_eq!(without_failures(&decision), decide(&vela, &state, &[small], Strictness::PerQuestion));
}

#[test]
fn a_request_beyond_all_bounds_is_too_long_before_it_fills_the_memory() {
    let vela = vela("vela", "tiny-08b");
    let state = value(&json!({"request": "word ".repeat(90_000), "source": "other ".repeat(5_000)}));
    let span =
        |i: usize| (format!("s{i}"), value(&json!({"type": "span", "instructions": "?", "criteria": {"a": null}})));
    let questions: Asking = (0..6).map(span).collect();
    let Err(refusal) = vela.render(&state, &questions, Strictness::AllOrNothing) else { panic!("laid out") };
    assert!(matches!(&refusal, Refusal::TooLong { message } if message.contains("16777216")), "{refusal:?}");
    let (plan, pending) = planned(&vela, &state, &questions, Strictness::PerQuestion);
    assert!(pending.input_tokens > 1 << 22 && pending.input_tokens <= 1 << 24, "{}", pending.input_tokens);
    assert!(plan.tokens() < pending.input_tokens, "what windows share is held once: {}", plan.tokens());
}

#[test]
fn output_that_is_no_number_fails_its_own_question() {
    let case = named_case("vela/tiny-08b/golden.json");
    let rendered = case.vela.render(&case.state, &case.questions, Strictness::PerQuestion).unwrap();
    let mut logits = model(&rendered.plan);
    logits[0][3].values[0] = f32::NAN;
    logits[1].clear();
    let decision = rendered.pending.finish(&logits).unwrap();
    assert_eq!(failed_ids(&decision), ["topics", "halu"]);
    assert!(failures(&decision).iter().all(|(_, _, code)| *code == "invalid_model_output"));
    assert!(decision.sets.is_empty());
    let all = decide(&case.vela, &case.state, &case.questions, Strictness::PerQuestion);
    assert_eq!(decision.spans, all.spans[..1]);
    assert_eq!(decision.thresholds.len(), 1);
    assert_eq!(decision.answers[..3], all.answers[..3]);
}

/// As in a Python dict: the later value, in the earlier place.
#[test]
fn two_sets_that_name_one_answer_share_it() {
    let vela = vela("vela", "tiny-08b");
    let questions = asking(&json!({
        "a": {"type": "set", "instructions": "?", "criteria": {"b.c": null, "x": null}},
        "a.b": {"type": "set", "instructions": "?", "criteria": {"c": null}}
    }));
    let decision = decide(&vela, &value(&json!("Hello Tom.")), &questions, Strictness::AllOrNothing);
    let ids: Vec<&str> = decision.answers.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(ids, ["a.b.c", "a.x"]);
    let noul = decision.sets[1].1.probabilities[0].1;
    assert_eq!(decision.answers[0].1, Answer::Noul { noul, abstain_probability: None });
}

pub(super) fn decide(vela: &Vela, state: &Value, questions: &[(String, Value)], strictness: Strictness) -> Decision {
    let rendered = vela.render(state, questions, strictness).unwrap();
    let logits = model(&rendered.plan);
    rendered.pending.finish(&logits).unwrap()
}

/// The stand-in: values in [-8, 8).
fn model(plan: &Plan) -> Vec<Vec<Logits>> {
    logits_of(plan, |tree, block, place| {
        let mut hasher = DefaultHasher::new();
        (&plan.trees[tree].prefix, &plan.trees[tree].blocks[block].ids, place).hash(&mut hasher);
        (hasher.finish() % 4_096) as f32 / 256.0 - 8.0
    })
}

pub(super) fn asking(questions: &Json) -> Asking {
    request_questions(&value(&json!({"questions": questions})))
}

pub(super) fn value(json: &Json) -> Value {
    parse(json.to_string().as_bytes()).unwrap()
}

fn choice_of(options: usize) -> Json {
    let criteria: serde_json::Map<_, _> = (0..options).map(|i| (format!("option {i}"), Json::Null)).collect();
    json!({"type": "choice", "instructions": "Which?", "criteria": criteria})
}

/// How many options a choice may have and still fit.
fn most_options(vela: &Vela, state: &Value) -> usize {
    let fits = |&options: &usize| {
        let question = asking(&json!({"a": choice_of(options)}));
        vela.render(state, &question, Strictness::AllOrNothing).is_ok()
    };
    (2..256).take_while(fits).last().unwrap()
}

pub(super) fn failures(decision: &Decision) -> Vec<(&str, &Value, &str)> {
    decision
        .answers
        .iter()
        .filter_map(|(id, answer)| match answer {
            Answer::Failed { kind, error, .. } => Some((id.as_str(), kind, error.as_str())),
            _ => None,
        })
        .collect()
}

pub(super) fn failed_ids(decision: &Decision) -> Vec<&str> {
    failures(decision).into_iter().map(|(id, _, _)| id).collect()
}

fn without_failures(decision: &Decision) -> Decision {
    let mut rest = decision.clone();
    rest.answers.retain(|(_, answer)| !matches!(answer, Answer::Failed { .. }));
    rest
}

fn forget_abstention(answer: &mut Answer) {
    if let Answer::Choice { abstain_probability, .. } | Answer::Noul { abstain_probability, .. } = answer {
        *abstain_probability = None;
    }
}
