//! What one request may ask at most: it is refused by count, before anything of that size exists.

use serde_json::json;

use super::decisions::{Asking, asking, decide, failed_ids, value};
use super::*;

/// A released vocabulary has tokens of 64 `#`, each of which is a word; here a token of the fixtures stands for one.
const HASHES: usize = 64;

fn vela_with_hashes() -> Vela {
    let read = |name: &str| fs::read(Path::new(FIXTURES).join("members/tiny-08b").join(name)).unwrap();
    let mut tokenizer: Json = serde_json::from_slice(&read("tokenizer.json")).unwrap();
    let token = tokenizer["added_tokens"].as_array_mut().unwrap().last_mut().unwrap();
    token["content"] = "#".repeat(HASHES).into();
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

fn span_of(labels: usize, instructions: &str) -> Json {
    let criteria: serde_json::Map<_, _> = (0..labels).map(|i| (format!("l{i}"), Json::Null)).collect();
    json!({"type": "span", "instructions": instructions, "criteria": criteria})
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
    let lay_out = |questions: &Asking| vela.lay_out(&state, questions, Strictness::PerQuestion).unwrap();
    let (plan, _) = lay_out(&questions);
    assert_eq!(plan.trees.len(), 2);
    questions.truncate(3);
    assert_eq!(lay_out(&questions).0, plan);
}
