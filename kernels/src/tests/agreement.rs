//! Every CPU operation against the reference on random operands, on every instruction set of this machine.

use rand::Rng;

use crate::cpu::CpuDevice;
use crate::reference::Reference;
use crate::tests::cases::{
    AttentionCase, ConvCase, GatedDeltaCase, SequenceCase, attention_shapes, gated_delta_shapes, packings,
};
use crate::tests::{Array, assert_close, cpu_devices, packing, random, random_values, vector, weight};
use crate::{DType, Device, PairGroup};

/// Sizes around the edges of vectors and tiles, and nothing.
const SIZES: [usize; 14] = [0, 1, 3, 4, 5, 6, 7, 13, 14, 15, 16, 31, 33, 65];

fn linear<D: Device>(device: &D, dtype: DType, w: &Array, x: &Array) -> Array {
    let mut out = device.matrix();
    device.linear(&weight(device, dtype, w), &x.upload(device), &mut out).unwrap();
    Array::download(device, &out)
}

/// The error of each element relative to `Σ|x·w|`, which bounds any order of F32 sums.
fn check_linear(device: &CpuDevice, dtype: DType, w: &Array, x: &Array) {
    let absolute = |values: &Array| Array { values: values.values.iter().map(|v| v.abs()).collect(), ..values.clone() };
    let found = linear(device, dtype, w, x);
    let expected = linear(&Reference, dtype, w, x);
    let magnitude = linear(&Reference, dtype, &absolute(w), &absolute(x));
    assert_eq!((found.rows, found.columns), (x.rows, w.rows));
    for ((found, expected), magnitude) in found.values.iter().zip(&expected.values).zip(&magnitude.values) {
        let what = format!("{} {} m={} n={} k={}", device.isa(), dtype.name(), x.rows, w.rows, w.columns);
        assert!((found - expected).abs() <= 1e-6 * magnitude, "{what}: {found} for {expected}");
    }
}

#[test]
fn linear_agrees_over_every_edge() {
    let mut random = random();
    for device in cpu_devices(2) {
        for m in SIZES {
            for n in SIZES {
                let k = SIZES[random.random_range(0..SIZES.len())];
                let (w, x) = (random_values(&mut random, n, k), random_values(&mut random, m, k));
                for dtype in [DType::F32, DType::Bf16] {
                    check_linear(&device, dtype, &w, &x);
                }
            }
        }
    }
}

/// What is rounded is the left operand of BF16 weights, and nothing else: the bits are those of its rounding in F32.
#[test]
fn a_device_in_bf16_rounds_what_it_multiplies_with_bf16_weights() {
    let mut random = random();
    for (exact, rounding) in cpu_devices(2).into_iter().zip(cpu_devices(1)) {
        let rounding = rounding.in_bf16();
        for (m, n, k) in [(1, 5, 3), (7, 33, 300), (40, 70, 64)] {
            let (w, x) = (random_values(&mut random, n, k), random_values(&mut random, m, k));
            let rounded = x.values.iter().map(|&value| half::bf16::from_f32(value).to_f32()).collect();
            let rounded = Array { values: rounded, ..x.clone() };
            let found = linear(&rounding, DType::Bf16, &w, &x);
            assert_eq!(found.bits(), linear(&exact, DType::Bf16, &w, &rounded).bits());
            assert_ne!(found.bits(), linear(&exact, DType::Bf16, &w, &x).bits());
            assert_eq!(linear(&rounding, DType::F32, &w, &x).bits(), linear(&exact, DType::F32, &w, &x).bits());
        }
    }
}

/// Several weights of one left operand are as many products.
#[test]
fn products_of_one_left_operand_are_those_of_each_weight() {
    let mut random = random();
    for device in cpu_devices(2) {
        for m in [1, 20, 400] {
            let x = random_values(&mut random, m, 40);
            let weights = [1, 100, 17].map(|n| random_values(&mut random, n, 40));
            let packed = weights.each_ref().map(|w| weight(&device, DType::F32, w));
            let mut outs = [(); 3].map(|()| device.matrix());
            let mut products: Vec<_> = packed.iter().zip(&mut outs).collect();
            device.linear_each(&x.upload(&device), &mut products).unwrap();
            for (w, out) in weights.iter().zip(&outs) {
                let alone = linear(&device, DType::F32, w, &x);
                assert_eq!(Array::download(&device, out).bits(), alone.bits(), "{m} rows");
            }
        }
    }
}

/// Several blocks of inputs, several pieces of rows and columns, and more rows than are packed at a time.
#[test]
fn linear_agrees_over_several_blocks() {
    let mut random = random();
    for device in cpu_devices(2) {
        for (m, n, k) in [(3, 70, 255), (20, 65, 257), (350, 40, 512), (1030, 130, 17), (2, 1000, 600)] {
            let (w, x) = (random_values(&mut random, n, k), random_values(&mut random, m, k));
            for dtype in [DType::F32, DType::Bf16] {
                check_linear(&device, dtype, &w, &x);
            }
        }
    }
}

/// Runs one operation on the reference and on each device, and compares.
#[track_caller]
fn check(tolerance: f32, on_reference: &Array, on_device: impl Fn(&CpuDevice) -> Array) {
    for device in cpu_devices(2) {
        assert_close(&on_device(&device), on_reference, tolerance, device.isa());
    }
}

fn norms<D: Device>(device: &D, x: &Array, y: &Array, w: &[f32]) -> [Array; 4] {
    let (w, mut residual) = (vector(device, w), x.upload(device));
    let (y, x) = (y.upload(device), x.upload(device));
    let [mut normed, mut added, mut layer] = [device.matrix(), device.matrix(), device.matrix()];
    device.rms_norm(&x, &w, 1e-6, &mut normed).unwrap();
    device.add_rms_norm(&mut residual, &y, &w, 1e-6, &mut added).unwrap();
    device.layer_norm(&x, &w, &w, 1e-5, &mut layer).unwrap();
    [normed, added, residual, layer].map(|matrix| Array::download(device, &matrix))
}

#[test]
fn norms_agree() {
    let mut random = random();
    for (rows, columns) in [(0, 5), (1, 1), (3, 15), (9, 16), (5, 17), (7, 1024), (2, 4096)] {
        let [x, y] = [(); 2].map(|()| random_values(&mut random, rows, columns));
        let w = random_values(&mut random, 1, columns).values;
        let expected = norms(&Reference, &x, &y, &w);
        for (index, expected) in expected.iter().enumerate() {
            check(1e-6, expected, |device| norms(device, &x, &y, &w)[index].clone());
        }
    }
}

fn gates<D: Device>(device: &D, x: &Array, y: &Array, value_dim: usize) -> [Array; 2] {
    let (mut gate, mut o, y) = (x.upload(device), x.upload(device), y.upload(device));
    device.silu_mul(&mut gate, &y).unwrap();
    let w: Vec<f32> = (0..value_dim).map(|i| 1.0 - (i % 8) as f32 / 4.0).collect();
    device.gated_rms_norm(&mut o, &y, &vector(device, &w), 1e-6).unwrap();
    [gate, o].map(|matrix| Array::download(device, &matrix))
}

#[test]
fn gates_agree() {
    let mut random = random();
    for (rows, heads, value_dim) in [(0, 1, 4), (1, 1, 1), (3, 2, 7), (9, 3, 16), (5, 2, 33), (4, 16, 128)] {
        let [x, y] = [(); 2].map(|()| {
            let mut values = random_values(&mut random, rows, heads * value_dim);
            values.values.iter_mut().for_each(|value| *value *= 8.0);
            values
        });
        for (index, expected) in gates(&Reference, &x, &y, value_dim).iter().enumerate() {
            check(2e-6, expected, |device| gates(device, &x, &y, value_dim)[index].clone());
        }
    }
}

#[test]
fn convolutions_agree() {
    let mut random = random();
    for packing in packings() {
        for (channels, taps) in [(1, 4), (15, 4), (16, 1), (70, 3), (33, 6)] {
            let case = ConvCase::new(&mut random, &packing, channels, taps);
            check(1e-6, &case.run(&Reference), |device| case.run(device));
        }
    }
}

#[test]
fn delta_rules_agree() {
    let mut random = random();
    for packing in packings() {
        for shape in gated_delta_shapes() {
            let case = GatedDeltaCase::new(&mut random, &packing, shape);
            check(3e-6, &case.run(&Reference), |device| case.run(device));
        }
    }
}

#[test]
fn attentions_agree() {
    let mut random = random();
    for packing in packings() {
        for shape in attention_shapes() {
            let case = AttentionCase::new(&mut random, &packing, shape);
            check(2e-6, &case.run(&Reference), |device| case.run(device));
        }
    }
}

/// More keys than one block of the product with the values, in the prefix and in the sequence.
#[test]
fn attention_agrees_over_several_blocks_of_keys() {
    let mut random = random();
    let shape = attention_shapes()[1];
    let case = AttentionCase::new(&mut random, &packing(&[(None, 270), (Some(0), 290), (None, 3)]), shape);
    check(2e-6, &case.run(&Reference), |device| case.run(device));
}

fn head_steps<D: Device>(device: &D, x: &Array, table: &[f32]) -> [Array; 4] {
    let (mut centred, mut slotted, x) = (x.upload(device), x.upload(device), x.upload(device));
    let (mut gathered, mut means) = (device.matrix(), device.matrix());
    device.center_rows(&mut centred, &[0..1, 2..9]).unwrap();
    device.add_slots(&mut slotted, &vector(device, table), &[0, 2, 1, 2, 0, 1, 2, 2, 0]).unwrap();
    device.gather_rows(&x, &[8, 0, 3, 3], &mut gathered).unwrap();
    device.mean_rows(&x, &[0..9, 4..5, 2..7], &mut means).unwrap();
    [centred, slotted, gathered, means].map(|matrix| Array::download(device, &matrix))
}

#[test]
fn head_steps_agree() {
    let mut random = random();
    for columns in [1, 15, 16, 33, 256] {
        let x = random_values(&mut random, 9, columns);
        let table = random_values(&mut random, 3, columns).values;
        for (index, expected) in head_steps(&Reference, &x, &table).iter().enumerate() {
            check(1e-6, expected, |device| head_steps(device, &x, &table)[index].clone());
        }
    }
}

fn pair_scores<D: Device>(device: &D, groups: &[PairGroup], x: &[Array; 4], scalar: &[f32]) -> Array {
    let [left_dot, left_mlp, right_dot, right_mlp] = x.each_ref().map(|values| values.upload(device));
    let mut out = Vec::new();
    let scalar = vector(device, scalar);
    device.pair_scores(groups, &left_dot, &left_mlp, &right_dot, &right_mlp, &scalar, &mut out).unwrap();
    Array::new(1, &out)
}

#[test]
fn pair_scores_agree() {
    let mut random = random();
    for width in [1, 15, 16, 33, 256] {
        let [left_dot, left_mlp] = [(); 2].map(|()| random_values(&mut random, 20, width));
        let [right_dot, right_mlp] = [(); 2].map(|()| random_values(&mut random, 6, width));
        let operands = [left_dot, left_mlp, right_dot, right_mlp];
        let scalar = random_values(&mut random, 1, width).values;
        let groups = [
            PairGroup { left: 0..13, right: 1..6 },
            PairGroup { left: 13..13, right: 0..6 },
            PairGroup { left: 5..20, right: 0..1 },
            PairGroup { left: 0..4, right: 2..2 },
        ];
        let expected = pair_scores(&Reference, &groups, &operands, &scalar);
        assert_eq!(expected.rows, 13 * 5 + 15);
        check(2e-6, &expected, |device| pair_scores(device, &groups, &operands, &scalar));
    }
}
