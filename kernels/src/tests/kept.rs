//! A sequence that continues a kept prefix has the bits that it has behind the prefix's own tokens.

use rand::Rng;
use rand::rngs::StdRng;

use crate::reference::Reference;
use crate::tests::cases::{
    AttentionCase, ConvCase, GatedDeltaCase, SequenceCase, attention_shapes, gated_delta_shapes, packings,
};
use crate::tests::{Array, cpu_devices, packing, random};
use crate::{Device, Packing, Parent, Sequence, StateShape, States};

/// A packing without some of its sequences, whose continuations then continue states: the last one removed has the first.
/// Beside it, the rows that are left.
fn without(packing: &Packing, removed: &[usize]) -> (Packing, Vec<usize>) {
    let (mut rest, mut rows) = (Packing::default(), Vec::new());
    let mut numbers = vec![0; packing.sequences.len()];
    for (number, &sequence) in packing.sequences.iter().enumerate() {
        if removed.contains(&number) {
            continue;
        }
        numbers[number] = rest.sequences.len();
        let parent = sequence.parent.map(|parent| {
            let Parent::Sequence(parent) = parent else { panic!("a packing without states") };
            match removed.iter().rev().position(|&removed| removed == parent) {
                Some(state) => Parent::Kept(state),
                None => Parent::Sequence(numbers[parent]),
            }
        });
        rest.sequences.push(Sequence { start: rest.tokens(), parent, ..sequence });
        rows.extend(sequence.start..sequence.start + sequence.len);
    }
    (rest, rows)
}

fn roots(packing: &Packing) -> Vec<usize> {
    (0..packing.sequences.len()).filter(|&number| packing.sequences[number].parent.is_none()).collect()
}

/// Keeps some prefixes of a batch, and runs the rest of the batch from their states.
fn check<D: Device, C: SequenceCase>(device: &D, case: &C, keep: &[usize], what: &str) {
    let expected = case.run(device);
    let tokens = |&number: &usize| case.packing().sequences[number].len;
    let mut states: Vec<D::State> =
        keep.iter().map(|number| device.state(case.state_shape(), tokens(number)).unwrap()).collect();
    let keeping = Packing { keep: keep.to_vec(), ..case.packing().clone() };
    let all: Vec<usize> = (0..keeping.tokens()).collect();
    let new = States { kept: Vec::new(), new: states.iter_mut().collect() };
    let found = case.select(keeping, &all).run_with(device, new);
    assert!(found.bits() == expected.bits(), "{what}: {keep:?} of {:?} are kept", case.packing());
    let (rest, rows) = without(case.packing(), keep);
    let kept = States { kept: states.iter().rev().collect(), new: Vec::new() };
    let found = case.select(rest, &rows).run_with(device, kept);
    assert!(found.bits() == expected.select(&rows).bits(), "{what}: behind {keep:?} of {:?}", case.packing());
}

/// Every prefix is kept, and then some.
fn check_all<D: Device, C: SequenceCase>(device: &D, case: &C, random: &mut StdRng, what: &str) {
    let roots = roots(case.packing());
    let some: Vec<usize> = roots.iter().copied().filter(|_| random.random()).collect();
    check(device, case, &roots, what);
    check(device, case, &some, what);
}

fn check_everywhere<C: SequenceCase>(case: &C, random: &mut StdRng) {
    check_all(&Reference, case, random, "reference");
    for device in cpu_devices(2) {
        check_all(&device, case, random, device.isa());
    }
}

#[test]
fn convolutions_continue_kept_prefixes() {
    let random = &mut random();
    for packing in packings() {
        for (channels, taps) in [(1, 4), (16, 1), (70, 3), (33, 6)] {
            check_everywhere(&ConvCase::new(random, &packing, channels, taps), random);
        }
    }
}

#[test]
fn delta_rules_continue_kept_prefixes() {
    let random = &mut random();
    for packing in packings() {
        for shape in gated_delta_shapes() {
            check_everywhere(&GatedDeltaCase::new(random, &packing, shape), random);
        }
    }
}

#[test]
fn attentions_continue_kept_prefixes() {
    let random = &mut random();
    for packing in packings() {
        for shape in attention_shapes() {
            check_everywhere(&AttentionCase::new(random, &packing, shape), random);
        }
    }
}

/// More keys than one block of the product with the values, and prefixes that end within a panel of keys.
#[test]
fn attention_continues_kept_prefixes_of_many_keys() {
    let random = &mut random();
    let packing = packing(&[(None, 5), (None, 300), (Some(1), 7), (Some(1), 300), (None, 2), (Some(0), 4)]);
    check_everywhere(&AttentionCase::new(random, &packing, attention_shapes()[1]), random);
}

/// The comparison above sees a state that is not what its prefix left.
#[test]
fn a_spoiled_state_shows() {
    let random = &mut random();
    let packing = packing(&[(None, 20), (Some(0), 5)]);
    let (rest, rows) = without(&packing, &[0]);
    let case = GatedDeltaCase::new(random, &packing, gated_delta_shapes()[1]);
    for device in cpu_devices(1) {
        let blank = device.state(case.state_shape(), 20).unwrap();
        let kept = States { kept: vec![&blank], new: Vec::new() };
        let found: Array = case.select(rest.clone(), &rows).run_with(&device, kept);
        assert!(found.bits() != case.run(&device).select(&rows).bits(), "{}", device.isa());
    }
}

/// What is said of a state's bytes is what it takes: a cache is bounded by it.
#[test]
fn a_state_takes_as_many_bytes_as_foretold() {
    let shapes = gated_delta_shapes().into_iter().map(StateShape::GatedDelta);
    let shapes = shapes.chain(attention_shapes().into_iter().map(StateShape::Attention));
    for shape in shapes.chain([StateShape::Conv { channels: 33, taps: 4 }]) {
        for tokens in [0, 1, 2, 3, 4, 31, 32, 33, 1000] {
            let state = Reference.state(shape, tokens).unwrap();
            assert_eq!(state.values.bytes(), Reference.state_bytes(shape, tokens), "reference: {shape:?}");
            for device in cpu_devices(1) {
                let state = device.state(shape, tokens).unwrap();
                assert_eq!(state.values.bytes(), device.state_bytes(shape, tokens), "{}: {shape:?}", device.isa());
            }
        }
    }
}
