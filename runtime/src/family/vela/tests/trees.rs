//! What is too long, and what trees share; that they are the recorded ones is shown in `recorded`.

use serde_json::json;

use super::*;
use crate::family::vela::layout::{Layout, TooLongReason};
use crate::family::vela::state::Role;
use crate::replay::TruncationRecord;

#[test]
fn what_is_too_long_is_refused_with_the_recorded_numbers() {
    let mut compared = 0;
    for case in cases() {
        let Some(error) = case.recorded("error").filter(|error| error["kind"] == "too_long") else { continue };
        let (parts, _, layout) = laid_out(&case);
        let roles: Vec<Role> = parts.iter().map(|part| part.role).collect();
        let LayoutError::TooLong(problem) = layout.unwrap_err() else { panic!("{}", case.name) };
        let TooLongReason::Questions(numbers) = &problem.reason else { panic!("{}", case.name) };
        let mut found = json!(TruncationRecord::of(numbers, &roles));
        found["row"] = json!(problem.row);
        found["window"] = json!(problem.window.map(|window| [window.start, window.end]));
        assert_eq!(found, error["numbers"], "{}", case.name);
        assert_eq!(problem.to_string(), error["error"]["message"], "{}", case.name);
        compared += 1;
    }
    assert_eq!(compared, 3);
}

/// One copy of what rows and windows share: a long state with many spans must not be held once per span.
#[test]
fn equal_prefixes_are_one_copy() {
    let case = named_case("vela/tiny-08b/many-rows.json");
    let (plan, _) = case.planned(Strictness::AllOrNothing);
    assert!(plan.trees.len() > 2);
    for tree in &plan.trees[1..] {
        assert!(Arc::ptr_eq(&tree.prefix, &plan.trees[0].prefix));
    }
}

fn laid_out(case: &Case) -> (Vec<TokenPart>, Vec<Question>, Result<Layout, LayoutError>) {
    let vela = &case.vela;
    let state = read_state(&case.state).unwrap();
    let questions: Vec<Question> =
        read_questions(&case.questions, &state, &vela.calibration, vela.has_broad, &vela.limits)
            .into_iter()
            .map(Result::unwrap)
            .collect();
    let parts = vela.token_parts(&state, &questions).unwrap();
    let strictness = Strictness::AllOrNothing;
    let layout = vela.layouter.lay_out(&vela.tokenizer, &parts, &questions, strictness);
    (parts, questions, layout)
}

/// Every head that a member has, and few tokens: it is computed at every load, on the slowest device, too.
#[test]
fn a_warm_up_has_every_readout_of_its_member() {
    for member in ["tiny-08b", "tiny-router", "tiny-short"] {
        let vela = vela("vela", member);
        let plan = vela.warm_up().unwrap();
        let mut kinds = Vec::new();
        for block in plan.trees.iter().flat_map(|tree| &tree.blocks) {
            kinds.push(match &block.readout {
                Readout::Candidates { set_bias, .. } => {
                    if *set_bias {
                        "set"
                    } else {
                        "candidates"
                    }
                }
                Readout::Spans { head, words, .. } => {
                    assert_eq!(words.len(), 1, "{member}: a span without words computes nothing");
                    head.name()
                }
            });
        }
        let expected: &[&str] = if vela.has_broad { &["set", "router", "broad"] } else { &["set", "router"] };
        assert_eq!(kinds, expected, "{member}");
        assert!(plan.tokens() < 300, "{member}: found {} tokens", plan.tokens());
    }
}
