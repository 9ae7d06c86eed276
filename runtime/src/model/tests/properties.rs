//! What the definition of the tree forward promises, on random trees (spec: vela.md §6).
//!
//! Company never changes an answer: these tests compare bits. A block equals the tail of its plain sequence: there the
//! work is divided differently, and the distance is bounded.

use std::cell::Cell;
use std::sync::Arc;

use synod_kernels::cpu::CpuDevice;

use super::{LOGIT_GATE, Random, cpu, distance, load, load_with_passes};
use crate::family::{Block, Logits, Readout, SpanHead, Tree};
use crate::model::{Forward, Model, ModelError};

/// One member whose key heads each serve one value head, one whose key heads serve two.
const MEMBERS: [&str; 2] = ["tiny-08b", "tiny-4b"];
const VOCABULARY: u32 = 2000;
/// Seeds that every run has, beside a new one.
pub(super) const SEEDS: [u64; 2] = [1, 2];

/// Lengths around the edges at which kernels change their course, and some between.
fn random_len(random: &mut Random, max: u32) -> usize {
    const EDGES: [u32; 12] = [1, 2, 3, 4, 5, 16, 31, 32, 33, 63, 64, 65];
    let len = if random.below(2) == 0 { EDGES[random.below(12) as usize] } else { 1 + random.below(max) };
    len.min(max) as usize
}

pub(super) fn random_ids(random: &mut Random, len: usize) -> Vec<u32> {
    (0..len).map(|_| random.below(VOCABULARY)).collect()
}

fn random_readout(random: &mut Random, len: usize) -> Readout {
    let len = len as u32;
    let positions =
        |random: &mut Random, most: u32| -> Vec<u32> { (0..=random.below(most)).map(|_| random.below(len)).collect() };
    match random.below(3) {
        0 => Readout::Candidates {
            options: positions(random, 9),
            query: random.below(len),
            set_bias: random.below(2) == 0,
        },
        head => {
            let head = if head == 1 { SpanHead::Router } else { SpanHead::Broad };
            let starts = positions(random, 5);
            let labels = starts.into_iter().map(|start| start..start + 1 + random.below(len - start)).collect();
            Readout::Spans { head, words: positions(random, 30), labels }
        }
    }
}

fn random_block(random: &mut Random) -> Block {
    let len = random_len(random, 150);
    Block { ids: random_ids(random, len), readout: random_readout(random, len) }
}

/// Trees of which some share a prefix, and one has none.
pub(super) fn random_trees(random: &mut Random) -> Vec<Tree> {
    let prefixes: Vec<Arc<[u32]>> =
        [random_len(random, 200), random_len(random, 200), 0].map(|len| random_ids(random, len).into()).into();
    let tree = |random: &mut Random, prefix: &Arc<[u32]>| {
        let blocks = (0..=random.below(4)).map(|_| random_block(random)).collect();
        Tree { prefix: Arc::clone(prefix), blocks }
    };
    [0, 1, 0, 2, 1].map(|prefix: usize| tree(random, &prefixes[prefix])).into()
}

pub(super) fn forward(model: &mut dyn Forward, trees: &[Tree]) -> Vec<Vec<Logits>> {
    model.forward(&trees.iter().collect::<Vec<_>>(), &|| true).unwrap()
}

pub(super) fn assert_same_bits(found: &Logits, expected: &Logits, at: &str) {
    let bits = |logits: &Logits| logits.values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert!(expected.is_finite() && !expected.values.is_empty(), "{at}: nothing to compare");
    assert_eq!(found.columns, expected.columns, "{at}");
    assert_eq!(bits(found), bits(expected), "{at}");
}

fn assert_close(found: &Logits, expected: &Logits, at: &str) -> f64 {
    assert_eq!((found.columns, found.values.len()), (expected.columns, expected.values.len()), "{at}");
    assert!(found.is_finite() && expected.is_finite(), "{at}: a logit is not finite");
    let pairs = found.values.iter().zip(&expected.values);
    let worst = pairs.map(|(&found, &expected)| distance(found, f64::from(expected))).fold(0.0, f64::max);
    assert!(worst <= LOGIT_GATE, "{at}: a logit is {worst:e} away");
    worst
}

/// Runs `check` for every member and seed, which it is told for its messages.
fn for_each_seed(check: impl Fn(&mut Model<CpuDevice>, &mut Random, &str)) {
    let new = crate::testing::seed();
    for member in MEMBERS {
        let mut model = load(cpu(2), member);
        for seed in SEEDS.into_iter().chain([new]) {
            println!("{member}, seed {seed}");
            check(&mut model, &mut Random::new(seed), &format!("{member}, seed {seed}"));
        }
    }
}

/// Company of any kind: other blocks, other trees, a prefix that another tree shares, another order.
#[test]
fn a_block_has_the_same_bits_alone_and_among_others() {
    for_each_seed(|model, random, at| {
        let trees = random_trees(random);
        let together = forward(model, &trees);
        for (tree, expected) in trees.iter().zip(&together) {
            for (block, expected) in tree.blocks.iter().zip(expected) {
                let alone = Tree { prefix: Arc::clone(&tree.prefix), blocks: vec![block.clone()] };
                assert_same_bits(&forward(model, &[alone])[0][0], expected, at);
            }
        }
        let reversed: Vec<Tree> = trees.iter().rev().cloned().collect();
        for (found, expected) in forward(model, &reversed).iter().rev().zip(&together) {
            for (found, expected) in found.iter().zip(expected) {
                assert_same_bits(found, expected, at);
            }
        }
    });
}

/// Long plans are computed in several passes, and executors have pools of any size.
#[test]
fn neither_passes_nor_threads_change_a_bit() {
    for member in MEMBERS {
        let trees = random_trees(&mut Random::new(4));
        let expected = forward(&mut load(cpu(2), member), &trees);
        let one_thread = load(cpu(1), member);
        for (mut model, how) in
            [(one_thread, "one thread"), (load_with_passes(cpu(2), member, 1), "a pass for each tree")]
        {
            for (found, expected) in forward(&mut model, &trees).iter().flatten().zip(expected.iter().flatten()) {
                assert_same_bits(found, expected, &format!("{member}, seed 4, {how}"));
            }
        }
    }
}

/// bundle.md, defect 9: every readout was a sequence of its own, so that a state was computed once for each.
#[test]
fn a_state_is_computed_once_however_many_readouts_it_has() {
    let mut model = load(cpu(2), "tiny-router");
    let random = &mut Random::new(9);
    let prefix: Arc<[u32]> = random_ids(random, 150).into();
    let block = |random: &mut Random| {
        let readout = Readout::Candidates { options: (0..10).collect(), query: 11, set_bias: false };
        Block { ids: random_ids(random, 12), readout }
    };
    let blocks = |random: &mut Random| (0..4).map(|_| block(random)).collect();
    let mut trees = vec![Tree { prefix: Arc::clone(&prefix), blocks: blocks(random) }];
    forward(&mut model, &trees);
    assert_eq!(model.tally().tokens_computed, 150 + 4 * 12, "forty options and four queries read one state");
    trees.push(Tree { prefix, blocks: blocks(random) });
    forward(&mut model, &trees);
    assert_eq!(model.tally().tokens_computed, 150 + 4 * 12 + 150 + 8 * 12, "two trees read one state");
}

/// Two states whose trees alternate take two passes of a state each, not one for every tree.
#[test]
fn trees_of_one_prefix_share_a_pass_wherever_they_stand() {
    let random = &mut Random::new(10);
    let prefixes = [random_ids(random, 100), random_ids(random, 100)].map(Arc::<[u32]>::from);
    let tree = |index: usize, random: &mut Random| {
        let readout = Readout::Candidates { options: vec![3, 9], query: 29, set_bias: false };
        let block = Block { ids: random_ids(random, 30), readout };
        Tree { prefix: Arc::clone(&prefixes[index % 2]), blocks: vec![block] }
    };
    let trees: Vec<Tree> = (0..6).map(|index| tree(index, random)).collect();
    let mut model = load_with_passes(cpu(2), "tiny-08b", 100 + 3 * 30);
    let found = forward(&mut model, &trees);
    assert_eq!(model.tally().tokens_computed, 2 * 100 + 6 * 30);
    for (found, expected) in found.iter().zip(&forward(&mut load(cpu(2), "tiny-08b"), &trees)) {
        assert_same_bits(&found[0], &expected[0], "seed 10");
    }
}

/// Words at one token are read once, yet each counts in the mean: the same words in an order in which none follows its
/// like have the same logits.
#[test]
fn words_that_share_a_token_are_words_of_their_own() {
    for_each_seed(|model, random, at| {
        let ids = random_ids(random, 40);
        let spans = |words: Vec<u32>| {
            let readout = Readout::Spans { head: SpanHead::Router, words, labels: vec![0..3, 3..5] };
            Tree { prefix: [5, 6].into(), blocks: vec![Block { ids: ids.clone(), readout }] }
        };
        let together = &forward(model, &[spans(vec![9, 9, 9, 20, 20, 31])])[0][0];
        let apart = &forward(model, &[spans(vec![9, 20, 9, 31, 9, 20])])[0][0];
        let order = [0, 2, 4, 1, 5, 3];
        let values = order.iter().flat_map(|&word| apart.row(word)).copied().collect();
        assert_close(together, &Logits { values, columns: 2 }, at);
        assert_eq!(together.row(0), together.row(2), "{at}");
        let once = &forward(model, &[spans(vec![9, 20, 31])])[0][0];
        assert!(distance(together.row(0)[0], f64::from(once.row(0)[0])) > LOGIT_GATE, "{at}: the mean does not count");
    });
}

/// The definition of a block, however its plain sequence `prefix + block` is cut in two.
#[test]
fn a_block_is_the_tail_of_its_plain_sequence() {
    for_each_seed(|model, random, at| {
        let mut worst = 0.0_f64;
        for tree in random_trees(random) {
            let expected = forward(model, std::slice::from_ref(&tree));
            for (block, expected) in tree.blocks.iter().zip(&expected[0]) {
                let cut = random.below(tree.prefix.len() as u32 + 1) as usize;
                for cut in [0, cut] {
                    let found = forward(model, &[cut_earlier(&tree, block, cut)]);
                    worst = worst.max(assert_close(&found[0][0], expected, at));
                }
            }
        }
        println!("{at}: largest distance {worst:.2e}, gate {LOGIT_GATE:.0e}");
    });
}

/// What a replay gives to the heads is what they take when they serve.
#[test]
fn heads_give_the_same_bits_on_inputs_that_are_given_back() {
    for_each_seed(|model, random, at| {
        for tree in random_trees(random) {
            let expected = forward(model, std::slice::from_ref(&tree));
            let inputs = model.head_inputs(&[&tree]).unwrap();
            for ((block, inputs), expected) in tree.blocks.iter().zip(&inputs[0]).zip(&expected[0]) {
                assert_same_bits(&model.head_logits(&block.readout, inputs).unwrap(), expected, at);
            }
        }
    });
}

/// The same tokens and readouts with a prefix of `cut` tokens only; the rest of it begins the block.
fn cut_earlier(tree: &Tree, block: &Block, cut: usize) -> Tree {
    let moved = (tree.prefix.len() - cut) as u32;
    let shift = |positions: &[u32]| positions.iter().map(|position| position + moved).collect();
    let readout = match &block.readout {
        Readout::Candidates { options, query, set_bias } => {
            Readout::Candidates { options: shift(options), query: query + moved, set_bias: *set_bias }
        }
        Readout::Spans { head, words, labels } => Readout::Spans {
            head: *head,
            words: shift(words),
            labels: labels.iter().map(|label| label.start + moved..label.end + moved).collect(),
        },
    };
    let ids = [&tree.prefix[cut..], &block.ids].concat();
    Tree { prefix: tree.prefix[..cut].into(), blocks: vec![Block { ids, readout }] }
}

/// A member serves on after a call that it refuses; a window without words answers with no logits.
#[test]
fn what_cannot_be_computed_is_an_error_of_its_call() {
    let mut model = load(cpu(1), "tiny-router");
    let good = |ids: &[u32]| {
        let readout = Readout::Candidates { options: vec![0], query: 1, set_bias: false };
        Tree { prefix: [5, 6].into(), blocks: vec![Block { ids: ids.to_vec(), readout }] }
    };
    let spans = |head, words: &[u32]| {
        let readout = Readout::Spans { head, words: words.to_vec(), labels: vec![0..1, 1..2] };
        Tree { prefix: [5, 6].into(), blocks: vec![Block { ids: vec![8, 9], readout }] }
    };
    let expected = forward(&mut model, &[good(&[7, 8])]);
    for wrong in [good(&[7, VOCABULARY]), good(&[7]), spans(SpanHead::Broad, &[0])] {
        let error = model.forward(&[&good(&[7, 8]), &wrong], &|| true).unwrap_err();
        assert!(
            matches!(
                error,
                ModelError::TokenId { id: VOCABULARY, vocab_size: 2000 }
                    | ModelError::Readout { tree: 1, block: 0, len: 1, position: 1 }
                    | ModelError::NoSpanHead { head: SpanHead::Broad }
            ),
            "{error}"
        );
        assert_same_bits(&forward(&mut model, &[good(&[7, 8])])[0][0], &expected[0][0], "after an error");
    }
    let computed = model.tally().tokens_computed;
    assert_eq!(forward(&mut model, &[spans(SpanHead::Router, &[])]), [[Logits { values: vec![], columns: 2 }]]);
    assert_eq!(model.tally().tokens_computed, computed, "nothing is read, nothing is computed");
    assert!(model.forward(&[], &|| true).unwrap().is_empty());
}

/// Whatever nobody waits for any more ends at the next layer, and leaves nothing behind that another call could read.
#[test]
fn a_forward_that_nobody_wants_ends_at_the_next_layer() {
    for member in MEMBERS {
        let trees = random_trees(&mut Random::new(7));
        let mut model = load_with_passes(cpu(2), member, 1);
        let asked = Cell::new(0);
        let count = || {
            asked.set(asked.get() + 1);
            true
        };
        let borrowed: Vec<&Tree> = trees.iter().collect();
        let expected = model.forward(&borrowed, &count).unwrap();
        let all = asked.get();
        assert!(all >= 2 * trees.len(), "{member}: asked {all} times only");
        for enough in [0, 1, all / 2, all - 1] {
            asked.set(0);
            let abandoned = model.forward(&borrowed, &|| count() && asked.get() <= enough);
            assert!(matches!(abandoned, Err(ModelError::Abandoned)), "{member}, seed 7");
            assert_eq!(asked.get(), enough + 1, "{member}, seed 7: asked after a no");
            let again = model.forward(&borrowed, &|| true).unwrap();
            for (found, expected) in again.iter().flatten().zip(expected.iter().flatten()) {
                assert_same_bits(found, expected, &format!("{member}, seed 7, abandoned after {enough}"));
            }
        }
    }
}
