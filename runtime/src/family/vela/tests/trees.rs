//! Parts, rows, trees, windows and truncation: every token id and every number, equal.

use serde_json::json;

use super::*;
use crate::family::vela::layout::{LaidBlock, LaidTree, Layout, Numbers, TooLongReason};
use crate::family::vela::state::Role;

#[test]
fn parts_have_the_recorded_ids_and_words() {
    let mut compared = 0;
    for case in cases() {
        let Some(recorded) = case.recorded("parts") else { continue };
        let state = read_state(&case.state).unwrap();
        let parts: Vec<Json> = state
            .parts
            .iter()
            .map(|part| {
                let tokens = TokenPart::read(&case.vela.tokenizer, part, true).unwrap();
                let words = tokens.words.iter().map(|word| json!([word.range.start, word.range.end, word.token]));
                let fields = part.fields.iter().map(|f| json!([f.name, f.range.start, f.range.end]));
                json!({"role": part.role.name(), "text": part.text, "fields": fields.collect::<Vec<_>>(),
                    "ids": tokens.ids, "words": words.collect::<Vec<_>>()})
            })
            .collect();
        assert_eq!(&json!(parts), recorded, "{}", case.name);
        compared += parts.len();
    }
    assert!(compared > 100, "{compared}");
}

#[test]
fn trees_have_the_recorded_ids_positions_and_numbers() {
    let mut compared = 0;
    for case in cases() {
        let Some(recorded) = case.recorded("trees") else { continue };
        let (_, questions, layout) = laid_out(&case);
        let roles: Vec<Role> = read_state(&case.state).unwrap().parts.iter().map(|part| part.role).collect();
        let layout = layout.unwrap();
        let trees: Vec<Json> = layout.trees.iter().map(|tree| tree_json(tree, &roles, &questions)).collect();
        assert_eq!(trees.len(), recorded.as_array().unwrap().len(), "{}", case.name);
        for (i, (tree, recorded)) in trees.iter().zip(recorded.as_array().unwrap()).enumerate() {
            assert_eq!(tree, recorded, "{} tree {i}", case.name);
        }
        compared += trees.len();
    }
    assert!(compared > 150, "{compared}");
}

#[test]
fn what_is_too_long_is_refused_with_the_recorded_numbers() {
    let mut compared = 0;
    for case in cases() {
        let Some(error) = case.recorded("error").filter(|error| error["kind"] == "too_long") else { continue };
        let (parts, _, layout) = laid_out(&case);
        let roles: Vec<Role> = parts.iter().map(|part| part.role).collect();
        let LayoutError::TooLong(problem) = layout.unwrap_err() else { panic!("{}", case.name) };
        let TooLongReason::Questions(numbers) = &problem.reason else { panic!("{}", case.name) };
        let mut found = numbers_json(numbers, &roles);
        found["row"] = json!(problem.row);
        found["window"] = json!(problem.window.map(|window| [window.start, window.end]));
        assert_eq!(found, error["numbers"], "{}", case.name);
        assert_eq!(problem.to_string(), error["error"]["message"], "{}", case.name);
        compared += 1;
    }
    assert_eq!(compared, 3);
}

/// bundle.md, defect 2: the plan must hold each window's own block and no block that windows replace.
#[test]
fn the_plan_holds_every_block_that_is_read_and_no_other() {
    for case in cases() {
        let Some(recorded) = case.recorded("trees") else { continue };
        let (plan, pending) = case.vela.lay_out(&case.state, &case.questions, Strictness::AllOrNothing).unwrap();
        let is_read = |block: &&Json| block["replaced_by_windows"] == false;
        let mut planned = plan.trees.iter();
        for tree in recorded.as_array().unwrap() {
            let blocks: Vec<&Json> = tree["blocks"].as_array().unwrap().iter().filter(is_read).collect();
            if blocks.is_empty() {
                continue;
            }
            let found = planned.next().unwrap();
            assert_eq!(json!(found.prefix[..]), tree["prefix"], "{}", case.name);
            assert_eq!(found.blocks.len(), blocks.len(), "{}", case.name);
            for (found, block) in found.blocks.iter().zip(blocks) {
                assert_eq!(json!(found.ids), block["ids"], "{}", case.name);
                check_readout(&found.readout, block, &case.name);
            }
        }
        assert!(planned.next().is_none(), "{}: more trees than recorded", case.name);
        for (question, reads) in pending.questions.iter().zip(&pending.reads) {
            let recorded = case.recorded["logits"][&question.id].as_array().unwrap();
            let windows: Vec<bool> = recorded.iter().map(|read| !read["window"].is_null()).collect();
            assert_eq!(reads.iter().map(|read| read.is_window).collect::<Vec<_>>(), windows, "{}", case.name);
        }
    }
}

/// One copy of what rows and windows share: a long state with many spans must not be held once per span.
#[test]
fn equal_prefixes_are_one_copy() {
    let case = named_case("vela/tiny-08b/many-rows.json");
    let (plan, _) = case.vela.lay_out(&case.state, &case.questions, Strictness::AllOrNothing).unwrap();
    assert!(plan.trees.len() > 2);
    for tree in &plan.trees[1..] {
        assert!(Arc::ptr_eq(&tree.prefix, &plan.trees[0].prefix));
    }
}

fn check_readout(readout: &Readout, block: &Json, name: &str) {
    let column = |pairs: &Json, i: usize| -> Vec<Json> {
        pairs.as_array().unwrap().iter().map(|pair| pair[i].clone()).collect()
    };
    match readout {
        Readout::Candidates { options, query, set_bias } => {
            assert_eq!(json!(options.iter().map(|end| end + 1).collect::<Vec<_>>()), block["ends"], "{name}");
            assert_eq!(*query as usize, block["ids"].as_array().unwrap().len() - 1, "{name}");
            assert_eq!(*set_bias, block["kind"] == "set", "{name}");
        }
        Readout::Spans { head, words, labels } => {
            assert_eq!(block["head"], head.name(), "{name}");
            assert_eq!(json!(words), json!(column(&block["words"], 1)), "{name}");
            assert_eq!(json!(labels.iter().map(|l| l.start).collect::<Vec<_>>()), block["starts"], "{name}");
            assert_eq!(json!(labels.iter().map(|l| l.end).collect::<Vec<_>>()), block["ends"], "{name}");
        }
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

fn tree_json(tree: &LaidTree, roles: &[Role], questions: &[Question]) -> Json {
    let blocks: Vec<Json> = tree.blocks.iter().map(|block| block_json(block, questions)).collect();
    json!({"row": tree.row, "window": tree.window.map(|window| [window.start, window.end]),
        "kept": by_role(roles, &tree.kept), "truncation": numbers_json(&tree.numbers, roles),
        "prefix": tree.prefix[..], "blocks": blocks})
}

fn block_json(block: &LaidBlock, questions: &[Question]) -> Json {
    let question = &questions[block.question];
    let words: Vec<_> = block.words.iter().enumerate().map(|(i, at)| json!([block.first_word + i, at])).collect();
    json!({"question": question.id, "kind": question.kind.engine(),
        "head": (question.kind == Kind::Span).then(|| question.head.name()),
        "replaced_by_windows": block.replaced, "ids": block.ids,
        "starts": block.pieces.iter().map(|piece| piece.start).collect::<Vec<_>>(),
        "ends": block.pieces.iter().map(|piece| piece.end).collect::<Vec<_>>(), "words": words})
}

fn numbers_json(numbers: &Numbers, roles: &[Role]) -> Json {
    json!({"fixed": numbers.fixed, "schema": numbers.schema, "overhead": numbers.overhead, "budget": numbers.budget,
        "over": numbers.over, "lengths": by_role(roles, &numbers.lengths)})
}

fn by_role(roles: &[Role], values: &[usize]) -> Json {
    roles
        .iter()
        .zip(values)
        .map(|(role, &value)| (role.name().to_owned(), json!(value)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}
