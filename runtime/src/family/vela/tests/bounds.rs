//! What one request may ask at most: it is refused by count, before anything of that size exists.

use std::ops::Range;

use serde_json::json;

use super::decisions::{Asking, asking, decide, failed_ids, value};
use super::*;
use crate::wire::response::{Answer, Decision, write_details};

/// A released vocabulary has tokens of 64 `#`, each of which is a word; here a token of the fixtures stands for one.
const HASHES: usize = 64;

/// `tiny-08b` with the limits of a released member and another tokenizer.
fn vela_with(change: impl FnOnce(&mut Json)) -> Vela {
    let read = |name: &str| fs::read(Path::new(FIXTURES).join("members/tiny-08b").join(name)).unwrap();
    let mut tokenizer: Json = serde_json::from_slice(&read("tokenizer.json")).unwrap();
    change(&mut tokenizer);
    let tokenizer = tokenizer.to_string();
    let vela = Vela::new(VelaFiles {
        tokenizer: tokenizer.as_bytes(),
        calibration: &read("calibration.json"),
        layout: LayoutParameters { max_length: 16_384, hybrid_rmax: 2_048, window: 1_800, stride: 1_536 },
        vocab_size: 2_000,
        has_broad: true,
        noul_calibration: false,
        limits: Limits::default(),
    });
    vela.unwrap()
}

fn vela_with_hashes() -> Vela {
    vela_with(|tokenizer| {
        let token = tokenizer["added_tokens"].as_array_mut().unwrap().last_mut().unwrap();
        token["content"] = "#".repeat(HASHES).into();
    })
}

/// Its pattern makes the crate give up on [`HOSTILE`], as it does on some very long texts.
fn vela_that_gives_up() -> Vela {
    vela_with(|tokenizer| {
        tokenizer["pre_tokenizer"] = json!({"type": "Split", "pattern": {"Regex": "(a|b)(?:a|b|ab)*\\1\\1"},
            "behavior": "Isolated", "invert": false});
    })
}

const HOSTILE: &str = "abababababababababababababababababababababababababababababababababababababababab";

fn span_of(labels: usize, instructions: &str) -> Json {
    let criteria: serde_json::Map<_, _> = (0..labels).map(|i| (format!("l{i}"), Json::Null)).collect();
    json!({"type": "span", "instructions": instructions, "criteria": criteria})
}

fn failure_messages(decision: &Decision) -> Vec<&str> {
    let mut messages = Vec::new();
    for (_, answer) in &decision.answers {
        if let Answer::Failed { message, .. } = answer {
            messages.push(message.as_str());
        }
    }
    messages
}

fn refusal(vela: &Vela, state: &Value, questions: &[(String, Value)]) -> String {
    match vela.render(state, questions, Strictness::AllOrNothing) {
        Err(Refusal::TooLong { message }) => message,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("laid out"),
    }
}

/// The head of a span's block counts as overhead, and the budget never falls below 64 tokens: without a bound of its
/// own, a question makes a tree of any size.
#[test]
fn a_span_question_larger_than_any_tree_is_too_long() {
    let vela = vela("vela", "tiny-08b");
    let state = value(&json!("Hello Tom."));
    let small = json!({"type": "noul", "instructions": "Small?"});
    let questions = asking(&json!({"small": small, "huge": span_of(1, &"word ".repeat(20_000))}));
    let message = refusal(&vela, &state, &questions[1..]);
    assert!(message.contains("32768"), "{message}");
    let decision = decide(&vela, &state, &questions, Strictness::PerQuestion);
    assert_eq!(failed_ids(&decision), ["huge"]);
    assert_eq!(failure_messages(&decision), [message]);
    // As much as the largest tree may have, less what frames it.
    let large = asking(&json!({"large": span_of(1, &"word ".repeat(16_000))}));
    assert!(failed_ids(&decide(&vela, &state, &large, Strictness::PerQuestion)).is_empty());
}

#[test]
fn a_span_reads_a_bounded_number_of_words_however_few_their_tokens() {
    let vela = vela_with_hashes();
    let questions = asking(&json!({"small": {"type": "noul", "instructions": "?"}, "mark": span_of(1, "Mark.")}));
    let state = |tokens: usize| value(&json!("#".repeat(HASHES * tokens)));
    assert!(failed_ids(&decide(&vela, &state(512), &questions, Strictness::PerQuestion)).is_empty());
    let message = refusal(&vela, &state(513), &questions);
    assert!(message.contains("32768 words"), "{message}");
    assert_eq!(failed_ids(&decide(&vela, &state(513), &questions, Strictness::PerQuestion)), ["mark"]);
}

#[test]
fn the_logits_of_a_request_are_bounded() {
    let vela = vela_with_hashes();
    let state = value(&json!("#".repeat(HASHES * 400)));
    let wide = span_of(255, "Mark.");
    // 25,600 words times 255 labels, three times, exceed 2^24.
    let mut questions =
        asking(&json!({"small": {"type": "noul", "instructions": "?"}, "a": wide, "b": wide, "c": wide}));
    let message = refusal(&vela, &state, &questions);
    assert!(message.contains("16777216"), "{message}");
    let lay_out = |questions: &Asking| planned(&vela, &state, questions, Strictness::PerQuestion);
    let (plan, _) = lay_out(&questions);
    assert_eq!(plan.trees.len(), 2);
    questions.truncate(3);
    assert_eq!(lay_out(&questions).0, plan);
}

#[test]
fn a_question_without_tokens_fails_by_itself() {
    let vela = vela_that_gives_up();
    let state = value(&json!("Hello Tom."));
    let mut questions = asking(&json!({"hostile": span_of(1, HOSTILE), "mark": span_of(1, "Mark."),
        "small": {"type": "noul", "instructions": "Small?"}}));
    let decision = decide(&vela, &state, &questions, Strictness::PerQuestion);
    assert_eq!(failed_ids(&decision), ["hostile"]);
    let [message] = failure_messages(&decision)[..] else { panic!("{decision:?}") };
    assert!(message.contains("cannot be encoded"), "{message}");
    let refused = entry(vela.render(&state, &questions, Strictness::AllOrNothing).err());
    assert_eq!(refused, (json!(["body", "questions", "hostile"]), "unsupported"));
    for strictness in [Strictness::AllOrNothing, Strictness::PerQuestion] {
        let refused = entry(vela.render(&value(&json!(HOSTILE)), &questions[1..], strictness).err());
        assert_eq!(refused, (json!(["body", "state"]), "type"));
    }
    questions.remove(0);
    let expected = decide(&vela, &state, &questions, Strictness::PerQuestion);
    assert_eq!(decision.answers[1..], expected.answers, "as if it had not been asked");
    assert_eq!((decision.input_tokens, decision.spans), (expected.input_tokens, expected.spans));
}

/// The only entry of a 422: its place and its code.
fn entry(refused: Option<Refusal>) -> (Json, &'static str) {
    let Some(Refusal::Invalid(details)) = refused else { panic!("{refused:?}") };
    let body: Json = serde_json::from_str(&write_details(&details)).unwrap();
    assert_eq!(details.len(), 1, "{body}");
    (body["detail"][0]["loc"].clone(), details[0].code)
}

/// The state's tokens would be of no use, and here it has none.
#[test]
fn a_state_of_which_nothing_valid_is_asked_is_not_tokenised() {
    let vela = vela_that_gives_up();
    let questions = asking(&json!({"a": null}));
    assert_eq!(failed_ids(&decide(&vela, &value(&json!(HOSTILE)), &questions, Strictness::PerQuestion)), ["a"]);
}

/// What memory is reckoned with: the smallest questions have no smaller blocks, options or labels than is said of them.
#[test]
fn blocks_and_labels_have_their_least_tokens() {
    for member in ["tiny-08b", "tiny-4b", "tiny-router", "tiny-short"] {
        let vela = vela("vela", member);
        let bounds = vela.layouter.parameters().tree_bounds(255);
        for kind in ["choice", "noul", "score", "set", "span"] {
            let criteria = match kind {
                "choice" => json!({"a": null, "b": null}),
                "noul" => json!({"false": "a", "true": "a"}),
                "score" => json!(["a", "a"]),
                _ => json!({"a": null}),
            };
            let question = json!({"type": kind, "instructions": "a", "criteria": criteria});
            let questions = asking(&json!({"q": question}));
            let laid = vela.lay_out(&value(&json!("a")), &questions, Strictness::AllOrNothing).unwrap();
            let (plan, _) = vela.plan(laid);
            let block = &plan.trees[0].blocks[0];
            assert!(block.ids.len() >= bounds.least_block_tokens, "{member}, {kind}: {}", block.ids.len());
            let least = match &block.readout {
                Readout::Candidates { options, .. } => {
                    options.windows(2).map(|ends| (ends[1] - ends[0]) as usize).min()
                }
                Readout::Spans { labels, .. } => labels.iter().map(Range::len).min(),
            };
            // A set of one label has one option end and no distance between two.
            assert!(least.is_none_or(|least| least >= bounds.least_label_tokens), "{member}, {kind}: {least:?}");
        }
    }
}
