use std::fmt::Write as _;
use std::thread;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::cache::{Bounds, TextCache};
use super::*;

const TOKENIZER: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/members/tiny-08b/tokenizer.json"));

fn tokenizer() -> Tokenizer {
    Tokenizer::from_bytes(TOKENIZER).unwrap()
}

#[test]
fn a_piece_has_the_same_ids_as_a_part_and_as_its_own_repeat() {
    let tokenizer = tokenizer();
    for text in ["", "Context:\n", "Größe 42 µm, 体温を測る", "<|im_start|>", "e\u{301}e\u{301}"] {
        let part = tokenizer.encode_part(text).unwrap();
        assert_eq!(part.ids.len(), part.offsets.len());
        for _ in 0..2 {
            assert_eq!(tokenizer.encode_piece(text).unwrap()[..], part.ids, "{text:?}");
        }
    }
}

#[test]
fn offsets_count_code_points_of_the_text_before_normalisation() {
    // "e" with a combining acute is two code points that NFC makes one.
    let part = tokenizer().encode_part("e\u{301}x体").unwrap();
    assert_eq!(part.offsets.first().unwrap().start, 0);
    assert_eq!(part.offsets.last().unwrap().end, 4, "{:?}", part.offsets);
}

#[test]
fn truncation_and_padding_of_the_file_are_ignored() {
    let mut json: serde_json::Value = serde_json::from_slice(TOKENIZER).unwrap();
    json["truncation"] =
        serde_json::json!({"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0});
    json["padding"] = serde_json::json!({"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "<|endoftext|>"});
    let asked = Tokenizer::from_bytes(json.to_string().as_bytes()).unwrap();
    let text = "A sentence of rather more than four tokens.";
    assert_eq!(asked.encode_piece(text).unwrap(), tokenizer().encode_piece(text).unwrap());
}

#[test]
fn bytes_that_are_no_tokenizer_are_an_error() {
    for bytes in [&b""[..], b"{}", b"\xff\xfe", &TOKENIZER[..TOKENIZER.len() / 2]] {
        assert!(matches!(Tokenizer::from_bytes(bytes), Err(TokenizerError::Load { .. })));
    }
}

#[test]
fn a_vocabulary_goes_with_the_model_and_covers_every_byte() {
    let tokenizer = tokenizer();
    assert_eq!(tokenizer.check_vocabulary(2_000), Ok(()));
    let error = TokenizerError::TokenId { vocab_size: 1_999, found: 1_999 };
    assert_eq!(tokenizer.check_vocabulary(1_999), Err(error));

    let mut json: serde_json::Value = serde_json::from_slice(TOKENIZER).unwrap();
    json["model"]["vocab"].as_object_mut().unwrap().remove("~").unwrap();
    let merges = json["model"]["merges"].as_array_mut().unwrap();
    merges.retain(|merge| !merge.to_string().contains('~'));
    let lacking = Tokenizer::from_bytes(json.to_string().as_bytes()).unwrap();
    assert_eq!(lacking.check_vocabulary(2_000), Err(TokenizerError::Byte { symbol: '~' }));
    assert_eq!(lacking.encode_piece("~~"), Err(TokenizerError::Encode { text_bytes: 2 }), "no token, no place to read");
}

/// bundle.md, defect 8. The pattern backtracks exponentially, so `onig` gives up by panicking, as it does for some very
/// long texts under the released pattern.
#[test]
fn a_failure_of_the_crate_is_an_error_and_the_tokenizer_lives_on() {
    let mut json: serde_json::Value = serde_json::from_slice(TOKENIZER).unwrap();
    json["pre_tokenizer"] = serde_json::json!({"type": "Split", "pattern": {"Regex": "(a|b)(?:a|b|ab)*\\1\\1"},
        "behavior": "Isolated", "invert": false});
    let tokenizer = Tokenizer::from_bytes(json.to_string().as_bytes()).unwrap();
    let hostile = "ab".repeat(40);
    for _ in 0..2 {
        assert_eq!(tokenizer.encode_part(&hostile), Err(TokenizerError::Encode { text_bytes: 80 }));
        assert_eq!(tokenizer.encode_piece(&hostile), Err(TokenizerError::Encode { text_bytes: 80 }));
    }
    assert!(!tokenizer.encode_piece("x").unwrap().is_empty());
}

/// bundle.md, defect 8: whatever comes in whatever order, the bounds hold, and what is remembered is right.
#[test]
fn the_cache_stays_within_its_bounds_and_never_lies() {
    let seed = crate::testing::seed();
    let mut random = StdRng::seed_from_u64(seed);
    let bounds = Bounds { entries: 320, bytes: 96_000 };
    let cache = TextCache::new(bounds);
    let mut hits = 0;
    for _ in 0..20_000 {
        let number: u32 = random.random_range(0..2_000);
        let mut text = number.to_string();
        text.extend(std::iter::repeat_n('x', (number as usize % 7) * 150));
        let ids: Ids = vec![number; number as usize % 50].into();
        match cache.get(&text) {
            Some(found) => {
                hits += 1;
                assert_eq!(found, ids);
            }
            None => cache.insert(&text, &ids),
        }
        let held = cache.held();
        assert!(held.entries <= bounds.entries && held.bytes <= bounds.bytes, "{held:?}");
    }
    assert!(hits > 500, "only {hits} hits");
}

#[test]
fn what_is_asked_again_survives_a_flood() {
    let cache = TextCache::new(Bounds { entries: 320, bytes: 1 << 20 });
    let ids: Ids = vec![7].into();
    cache.insert("kept", &ids);
    let mut text = String::new();
    for number in 0..10_000 {
        text.clear();
        write!(text, "flood {number}").unwrap();
        cache.insert(&text, &ids);
        assert!(cache.get("kept").is_some(), "lost at {number}");
    }
    assert!(cache.get("flood 0").is_none());
}

#[test]
fn what_exceeds_a_generation_is_not_kept() {
    let cache = TextCache::new(Bounds { entries: 320, bytes: 32 * 200 });
    cache.insert(&"x".repeat(100), &Ids::from([1]));
    assert!(cache.get(&"x".repeat(100)).is_none());
    assert_eq!(cache.held().entries, 0);
}

#[test]
fn a_part_that_is_asked_again_is_not_tokenised_again() {
    let tokenizer = tokenizer();
    let first = tokenizer.encode_part("a state, asked twice").unwrap();
    assert!(Arc::ptr_eq(&first, &tokenizer.encode_part("a state, asked twice").unwrap()));
    assert_ne!(first, tokenizer.encode_part("a state, asked once").unwrap());
    // Its tokens alone are more than a generation may hold.
    let long = "word and ".repeat(50_000);
    let first = tokenizer.encode_part(&long).unwrap();
    let second = tokenizer.encode_part(&long).unwrap();
    assert!(!Arc::ptr_eq(&first, &second) && first == second);
}

#[test]
fn threads_share_a_tokenizer() {
    let tokenizer = tokenizer();
    let expected: Vec<_> =
        (0..200).map(|i| tokenizer.encode_part(&format!("option {i}")).unwrap().ids.clone()).collect();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for (i, ids) in expected.iter().enumerate() {
                    assert_eq!(tokenizer.encode_piece(&format!("option {i}")).unwrap()[..], ids[..]);
                }
            });
        }
    });
}
