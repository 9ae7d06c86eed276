//! The prefix cache: it saves work, stays within its bound, and changes no bit.

use std::cell::Cell;
use std::sync::Arc;

use synod_kernels::Device;
use synod_kernels::reference::Reference;

use super::properties::{SEEDS, assert_same_bits, forward, random_ids, random_trees};
use super::{Random, cpu, fixtures, load, load_with};
use crate::family::{Block, Logits, Readout, Tree};
use crate::model::prefix_cache::entry_bytes;
use crate::model::{Forward, Model, ModelError, Tally};
use crate::replay::{Case, case_files};

const MEMBERS: [&str; 4] = ["tiny-08b", "tiny-4b", "tiny-router", "tiny-short"];
/// More than everything that a test keeps.
const AMPLE_BYTES: u64 = 1 << 30;

/// Bytes of an entry of `tokens` tokens.
fn bytes<D: Device>(model: &Model<D>, tokens: usize) -> u64 {
    model.prefix_bytes(&vec![0; tokens])
}

fn assert_same(found: &[Vec<Logits>], expected: &[Vec<Logits>], at: &str) {
    assert_eq!(found.len(), expected.len(), "{at}");
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found.len(), expected.len(), "{at}");
        for (found, expected) in found.iter().zip(expected) {
            assert_same_bits(found, expected, at);
        }
    }
}

/// Random calls of trees whose prefixes come again, alone and several times in one call, beside others that are new.
fn random_calls(random: &mut Random) -> Vec<Vec<Tree>> {
    let mut known = random_trees(random);
    let mut call = |random: &mut Random| {
        let new = random_trees(random);
        let mut trees: Vec<Tree> = Vec::new();
        for _ in 0..=random.below(5) {
            let mut tree = known[random.below(known.len() as u32) as usize].clone();
            if random.below(2) == 0 {
                // An equal prefix of another request: another allocation, and other blocks.
                tree.prefix = tree.prefix.to_vec().into();
                tree.blocks.clone_from(&new[0].blocks);
            }
            trees.push(tree);
        }
        if random.below(3) == 0 {
            trees.insert(random.below(trees.len() as u32 + 1) as usize, new[1].clone());
            known.extend(new);
        }
        trees
    };
    (0..8).map(|_| call(random)).collect()
}

#[test]
fn no_bit_depends_on_what_is_kept() {
    let new = crate::testing::seed();
    for member in ["tiny-08b", "tiny-4b"] {
        let mut off = load(cpu(2), member);
        let (mut hits, mut evictions) = (0, 0);
        for seed in SEEDS.into_iter().chain([new]) {
            let calls = random_calls(&mut Random::new(seed));
            let expected: Vec<_> = calls.iter().map(|trees| forward(&mut off, trees)).collect();
            let longest = calls.iter().flatten().map(|tree| tree.prefix.len()).max().unwrap();
            let one = bytes(&off, longest);
            let small = [(one, 1), (2 * one, 300), (5 * one / 2, 24_576)];
            for (bound, batch_tokens) in small.into_iter().chain([(1, 24_576), (AMPLE_BYTES, 24_576)]) {
                let mut model = load_with(cpu(2), member, batch_tokens, bound);
                for (round, (trees, expected)) in calls.iter().zip(&expected).cycle().take(2 * calls.len()).enumerate()
                {
                    let at = format!("{member}, seed {seed}, {bound} bytes, {batch_tokens} tokens, call {round}");
                    assert_same(&forward(&mut model, trees), expected, &at);
                    assert!(model.tally().prefix_cache_bytes <= bound, "{at}");
                }
                let Tally { prefix_hits, prefix_evictions, .. } = model.tally();
                let at = format!("{member}, seed {seed}, {bound} bytes");
                match bound {
                    1 => assert_eq!((prefix_hits, prefix_evictions), (0, 0), "{at}: nothing fits"),
                    AMPLE_BYTES => assert!(prefix_hits > 0 && prefix_evictions == 0, "{at}: everything fits"),
                    _ => (hits, evictions) = (hits + prefix_hits, evictions + prefix_evictions),
                }
            }
        }
        assert_eq!(off.tally().prefix_misses, 0, "nobody asks a cache that is off");
        println!("{member}: small caches had {hits} hits and {evictions} evictions");
        assert!(hits > 0 && evictions > 0, "{member}");
    }
}

/// Real plans: windows, many questions, span heads.
#[test]
fn recorded_plans_have_the_same_bits_behind_kept_prefixes() {
    for member in MEMBERS {
        let (mut off, mut on) = (load(cpu(2), member), load_with(cpu(2), member, 24_576, AMPLE_BYTES));
        for path in case_files(&fixtures("vela").join(member)).unwrap() {
            let case = Case::read(&path).unwrap();
            let Some(plan) = case.plan() else { continue };
            let expected = forward(&mut off, &plan.trees);
            for _ in 0..2 {
                let found = forward(&mut on, &plan.trees);
                for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
                    assert_eq!(found, expected, "{}", path.display());
                }
            }
        }
        let (off, on) = (off.tally(), on.tally());
        assert!(on.prefix_hits >= on.prefix_misses, "{member}: {on:?}");
        assert_eq!(on.tokens_computed + on.tokens_cached, 2 * off.tokens_computed, "{member}");
    }
}

/// The definition keeps and continues prefixes too, however the devices do it.
#[test]
fn the_definition_continues_kept_prefixes() {
    let random = &mut Random::new(11);
    let trees = random_trees(random)[..2].to_vec();
    let mut model = load_with(Reference, "tiny-08b", 24_576, AMPLE_BYTES);
    let cold = forward(&mut model, &trees);
    assert_same(&forward(&mut model, &trees), &cold, "reference, seed 11");
    assert_eq!(model.tally().prefix_hits, model.tally().prefix_misses);
}

fn question(random: &mut Random, prefix: &Arc<[u32]>) -> Tree {
    let readout = Readout::Candidates { options: vec![3, 9], query: 29, set_bias: false };
    Tree { prefix: Arc::clone(prefix), blocks: vec![Block { ids: random_ids(random, 30), readout }] }
}

#[test]
fn a_state_that_is_asked_again_costs_its_blocks_only() {
    let random = &mut Random::new(12);
    let prefix: Arc<[u32]> = random_ids(random, 150).into();
    let mut model = load_with(cpu(2), "tiny-08b", 24_576, AMPLE_BYTES);
    for _ in 0..10 {
        forward(&mut model, &[question(random, &prefix)]);
    }
    let tally = model.tally();
    assert_eq!((tally.tokens_computed, tally.tokens_cached), (150 + 10 * 30, 9 * 150));
    assert_eq!((tally.prefix_hits, tally.prefix_misses, tally.prefix_evictions), (9, 1, 0));
    assert_eq!(tally.prefix_cache_bytes, bytes(&model, 150));
}

/// A plan of several passes computes a prefix once, in the first pass that has a tree of it.
#[test]
fn passes_of_one_call_share_what_is_kept() {
    let random = &mut Random::new(13);
    let prefix: Arc<[u32]> = random_ids(random, 150).into();
    let trees: Vec<Tree> = (0..3).map(|_| question(random, &prefix)).collect();
    let mut model = load_with(cpu(2), "tiny-08b", 1, AMPLE_BYTES);
    forward(&mut model, &trees);
    assert_eq!(model.tally().tokens_computed, 150 + 3 * 30);
}

#[test]
fn what_the_bound_has_no_room_for_goes_or_is_not_kept() {
    let random = &mut Random::new(14);
    let prefixes: Vec<Arc<[u32]>> = [100, 100, 100, 1500].map(|len| random_ids(random, len).into()).into();
    let bound = 2 * bytes(&load(cpu(1), "tiny-08b"), 100);
    let mut model = load_with(cpu(2), "tiny-08b", 24_576, bound);
    assert!(bytes(&model, 1500) > bound, "the longest prefix is to be larger than the cache");
    let mut ask = |numbers: &[usize]| {
        let trees: Vec<Tree> = numbers.iter().map(|&number| question(random, &prefixes[number])).collect();
        let before = model.tally();
        forward(&mut model, &trees);
        let after = model.tally();
        assert!(after.prefix_cache_bytes <= bound);
        (after.prefix_hits - before.prefix_hits, after.prefix_evictions - before.prefix_evictions)
    };
    assert_eq!(ask(&[0]), (0, 0));
    assert_eq!(ask(&[1, 1]), (0, 0));
    assert_eq!(ask(&[0, 1, 0]), (2, 0));
    assert_eq!(ask(&[3]), (0, 0), "larger than the cache");
    assert_eq!(ask(&[0, 1]), (2, 0), "and it cost nobody their place");
    assert_eq!(ask(&[0]), (1, 0));
    assert_eq!(ask(&[2]), (0, 1));
    assert_eq!(ask(&[0, 2]), (2, 0), "the one that was used longest ago went");
    assert_eq!(ask(&[0, 1, 2]), (2, 0), "what a pass uses stays");
    assert_eq!(ask(&[0, 1, 2, 3]), (2, 0));
}

/// Of a call that ends early nothing is kept that was not computed to its end.
#[test]
fn an_abandoned_call_leaves_no_half_of_a_prefix() {
    let random = &mut Random::new(15);
    let prefix: Arc<[u32]> = random_ids(random, 150).into();
    let tree = question(random, &prefix);
    let expected = forward(&mut load(cpu(2), "tiny-08b"), std::slice::from_ref(&tree));
    let mut model = load_with(cpu(2), "tiny-08b", 24_576, AMPLE_BYTES);
    for layers in 0..4 {
        let asked = Cell::new(0);
        let keep_going = || asked.replace(asked.get() + 1) < layers;
        assert!(matches!(model.forward(&[&tree], &keep_going), Err(ModelError::Abandoned)));
        assert_eq!(model.tally().prefix_cache_bytes, 0);
    }
    for _ in 0..2 {
        assert_same(&forward(&mut model, std::slice::from_ref(&tree)), &expected, "seed 15");
    }
    assert_eq!((model.tally().prefix_hits, model.tally().prefix_misses), (1, 1));
}

#[test]
fn a_cache_that_is_not_used_keeps_what_it_has() {
    let random = &mut Random::new(16);
    let prefixes = [random_ids(random, 50), random_ids(random, 50)].map(Arc::<[u32]>::from);
    let mut model = load_with(cpu(2), "tiny-08b", 24_576, AMPLE_BYTES);
    forward(&mut model, &[question(random, &prefixes[0])]);
    let before = model.tally();
    model.use_prefix_cache(false);
    forward(&mut model, &prefixes.each_ref().map(|prefix| question(random, prefix)));
    let unused = model.tally();
    assert_eq!(unused.tokens_computed - before.tokens_computed, 2 * 80);
    assert_eq!((unused.prefix_hits, unused.prefix_misses), (before.prefix_hits, before.prefix_misses));
    assert_eq!(unused.prefix_cache_bytes, before.prefix_cache_bytes);
    model.use_prefix_cache(true);
    forward(&mut model, &prefixes.each_ref().map(|prefix| question(random, prefix)));
    assert_eq!((model.tally().prefix_hits, model.tally().prefix_misses), (1, 2));
}

/// What an entry is said to take follows its states to the byte, and a little for what holds them.
#[test]
fn an_entry_counts_its_states_and_ids() {
    let model = load(cpu(1), "tiny-08b");
    let states = model.backbone.prefix_state_bytes(&model.device, 64);
    assert_eq!(bytes(&model, 64), entry_bytes(&[0; 64], states));
    assert!(bytes(&model, 64) > bytes(&model, 63), "keys and values grow with the prefix");
}
