//! A token's result has the same bits alone and in company, on one thread and on two.
//!
//! Sizes cross every seam at which work is split: tiles, pieces and packs of rows, panels, and blocks of summands.

use std::ops::Range;

use crate::cpu::CpuDevice;
use crate::reference::Reference;
use crate::tests::cases::{
    AttentionCase, ConvCase, GatedDeltaCase, SequenceCase, attention_shapes, gated_delta_shapes,
};
use crate::tests::{Array, cpu_devices, packing, random, random_values, vector, weight};
use crate::{DType, Device, Packing, PairGroup};

/// Two trees and a sequence between them; the second tree is looked at.
fn company() -> Packing {
    packing(&[(None, 9), (Some(0), 20), (None, 17), (None, 37), (Some(3), 16), (Some(3), 3)])
}

/// The second tree's tokens among [`company`]'s.
const ROWS: Range<usize> = 46..102;

fn alone() -> Packing {
    packing(&[(None, 37), (Some(0), 16), (Some(0), 3)])
}

/// Runs an operation in company and alone, on one thread and on two, and compares the bits of the rows that both have.
fn check(rows: Range<usize>, in_company: impl Fn(&CpuDevice) -> Array, alone: impl Fn(&CpuDevice) -> Array) {
    for (one, two) in cpu_devices(1).iter().zip(&cpu_devices(2)) {
        let expected = bits(&in_company(one).slice(rows.clone()));
        assert!(bits(&in_company(two).slice(rows.clone())) == expected, "{}: two threads", one.isa());
        assert!(bits(&alone(one)) == expected, "{}: alone", one.isa());
        assert!(bits(&alone(two)) == expected, "{}: alone on two threads", one.isa());
    }
}

fn bits(values: &Array) -> Vec<u32> {
    values.bits()
}

/// Compares rows of a product of `m` rows with products of those rows alone.
fn check_linear(m: usize, n: usize, k: usize, alone: &[Range<usize>]) {
    let mut random = random();
    let w = random_values(&mut random, n, k);
    let x = random_values(&mut random, m, k);
    for (one, two) in cpu_devices(1).iter().zip(&cpu_devices(2)) {
        for dtype in [DType::F32, DType::Bf16] {
            let linear = |device: &CpuDevice, x: &Array| {
                let mut out = device.matrix();
                device.linear(&weight(device, dtype, &w), &x.upload(device), &mut out).unwrap();
                Array::download(device, &out)
            };
            let together = linear(two, &x);
            let what = format!("{} {}", one.isa(), dtype.name());
            assert!(bits(&linear(one, &x)) == bits(&together), "{what}: threads");
            for rows in alone {
                let found = bits(&linear(two, &x.slice(rows.clone())));
                assert!(found == bits(&together.slice(rows.clone())), "{what}: rows {rows:?}");
            }
        }
    }
}

#[test]
fn linear_rows_do_not_depend_on_other_rows() {
    check_linear(60, 77, 600, &[0..1, 13..14, 14..28, 5..12, 59..60, 1..60]);
}

/// More rows than one piece of work and than are packed at a time, so many outputs that pieces have several panels, and
/// several blocks of inputs: each of them has another shape for the few rows alone.
#[test]
fn linear_rows_do_not_depend_on_how_work_is_split() {
    check_linear(1030, 1000, 600, &[0..1, 335..337, 5..341, 1007..1009, 1029..1030]);
}

/// Every operation on the rows of a matrix, `[rows, anything]` each.
fn row_operations(device: &CpuDevice, x: &Array, w: &[f32]) -> Vec<Array> {
    let (matrix, w) = (x.upload(device), vector(device, w));
    let [mut normed, mut layer, mut sum_normed] = [(); 3].map(|()| device.matrix());
    let [mut residual, mut gated, mut head_gated, mut biased] = [(); 4].map(|()| x.upload(device));
    device.rms_norm(&matrix, &w, 1e-6, &mut normed).unwrap();
    device.layer_norm(&matrix, &w, &w, 1e-5, &mut layer).unwrap();
    device.add_rms_norm(&mut residual, &matrix, &w, 1e-6, &mut sum_normed).unwrap();
    device.silu_mul(&mut gated, &matrix).unwrap();
    device.gated_rms_norm(&mut head_gated, &matrix, &w, 1e-6).unwrap();
    device.add_bias(&mut biased, &w).unwrap();
    [normed, layer, residual, sum_normed, gated, head_gated, biased].map(|out| Array::download(device, &out)).to_vec()
}

#[test]
fn row_operations_do_not_depend_on_other_rows() {
    let mut random = random();
    let x = random_values(&mut random, 45, 300);
    let w = random_values(&mut random, 1, 300).values;
    for rows in [0..1, 3..9, 17..45] {
        for operation in 0..row_operations(&cpu_devices(1)[0], &x, &w).len() {
            check(
                rows.clone(),
                |device| row_operations(device, &x, &w)[operation].clone(),
                |device| row_operations(device, &x.slice(rows.clone()), &w)[operation].clone(),
            );
        }
    }
}

/// Mean, centred rows and pair scores of each group of rows, `[groups][3]`. A group's first rows are its right ones.
fn group_operations(device: &CpuDevice, x: &Array, groups: &[Range<u32>], scalar: &[f32]) -> Vec<[Array; 3]> {
    let (matrix, mut centred, mut means) = (x.upload(device), x.upload(device), device.matrix());
    device.mean_rows(&matrix, groups, &mut means).unwrap();
    device.center_rows(&mut centred, groups).unwrap();
    let right = |group: &Range<u32>| group.start..group.start + 5;
    let pairs: Vec<PairGroup> =
        groups.iter().map(|group| PairGroup { left: group.clone(), right: right(group) }).collect();
    let (mut scores, scalar) = (Vec::new(), vector(device, scalar));
    device.pair_scores(&pairs, &matrix, &matrix, &matrix, &matrix, &scalar, &mut scores).unwrap();
    let (means, centred) = (Array::download(device, &means), Array::download(device, &centred));
    let mut rest = Array::new(5, &scores);
    let mut found = Vec::new();
    for (number, group) in groups.iter().enumerate() {
        let (start, end) = (group.start as usize, group.end as usize);
        let pairs = rest.slice(0..end - start);
        rest = rest.slice(end - start..rest.rows);
        found.push([means.slice(number..number + 1), centred.slice(start..end), pairs]);
    }
    found
}

#[test]
fn group_operations_do_not_depend_on_other_groups() {
    let mut random = random();
    let x = random_values(&mut random, 60, 300);
    let scalar = random_values(&mut random, 1, 300).values;
    let groups = [0..13, 13..40, 44..60];
    for (number, group) in groups.iter().enumerate() {
        let alone = x.slice(group.start as usize..group.end as usize);
        for operation in 0..3 {
            let result = |device: &CpuDevice, x: &Array, groups: &[Range<u32>], number: usize| {
                group_operations(device, x, groups, &scalar)[number][operation].clone()
            };
            check(
                0..if operation == 0 { 1 } else { alone.rows },
                |device| result(device, &x, &groups, number),
                |device| result(device, &alone, &[0..alone.rows as u32], 0),
            );
        }
    }
}

#[test]
fn convolution_does_not_depend_on_company() {
    let case = ConvCase::new(&mut random(), &company(), 35, 4);
    let alone = ConvCase { packing: alone(), weight: case.weight.clone(), x: case.x.slice(ROWS) };
    check(ROWS, |device| case.run(device), |device| alone.run(device));
}

#[test]
fn delta_rule_does_not_depend_on_company() {
    let case = GatedDeltaCase::new(&mut random(), &company(), gated_delta_shapes()[1]);
    let alone = GatedDeltaCase {
        packing: alone(),
        shape: case.shape,
        qkv: case.qkv.slice(ROWS),
        a: case.a.slice(ROWS),
        b: case.b.slice(ROWS),
        a_log: case.a_log.clone(),
        dt_bias: case.dt_bias.clone(),
    };
    check(ROWS, |device| case.run(device), |device| alone.run(device));
}

/// The attention of some rows of a case, which `packing` says what they are alone.
fn attention_rows(case: &AttentionCase, packing: Packing, rows: Range<usize>) -> AttentionCase {
    AttentionCase {
        packing,
        shape: case.shape,
        q_gate: case.q_gate.slice(rows.clone()),
        k: case.k.slice(rows.clone()),
        v: case.v.slice(rows),
        q_norm: case.q_norm.clone(),
        k_norm: case.k_norm.clone(),
    }
}

#[test]
fn attention_does_not_depend_on_company() {
    let case = AttentionCase::new(&mut random(), &company(), attention_shapes()[1]);
    let alone = attention_rows(&case, alone(), ROWS);
    check(ROWS, |device| case.run(device), |device| alone.run(device));
}

/// Prefix and block have more keys than one block of the product with the values, and start between two panels of keys.
#[test]
fn attention_over_many_keys_does_not_depend_on_company() {
    let company = packing(&[(None, 5), (None, 300), (Some(1), 7), (Some(1), 300), (None, 2)]);
    let case = AttentionCase::new(&mut random(), &company, attention_shapes()[1]);
    let alone = attention_rows(&case, packing(&[(None, 300), (Some(0), 7), (Some(0), 300)]), 5..612);
    check(5..612, |device| case.run(device), |device| alone.run(device));
}

/// What a query sees is all that counts: cutting a sequence's end off changes nothing before it.
#[test]
fn attention_does_not_depend_on_later_tokens() {
    let case = AttentionCase::new(&mut random(), &packing(&[(None, 50)]), attention_shapes()[3]);
    for device in cpu_devices(1) {
        let whole = case.run(&device);
        for len in [1, 13, 14, 15, 33, 49] {
            let cut = attention_rows(&case, packing(&[(None, len)]), 0..len);
            assert!(bits(&cut.run(&device)) == bits(&whole.slice(0..len)), "{}: {len} tokens", device.isa());
        }
    }
}

/// A probability of zero would not keep a key out where it is not finite: zero times infinity is not a number.
#[test]
fn attention_does_not_depend_on_later_keys_that_are_not_finite() {
    let case = AttentionCase::new(&mut random(), &packing(&[(None, 20), (Some(0), 300)]), attention_shapes()[1]);
    check_spoiled(&Reference, &case, 33);
    for device in cpu_devices(1) {
        for row in [7, 19, 20, 33, 50, 280, 319] {
            check_spoiled(&device, &case, row);
        }
    }
}

/// Makes one token's value infinite, or its key not a number: the tokens before it keep their bits, the others show it.
fn check_spoiled<D: Device>(device: &D, case: &AttentionCase, row: usize) {
    let expected = bits(&case.run(device).slice(0..row));
    let (mut infinite_v, mut nan_k) = (case.clone(), case.clone());
    let columns = row * case.v.columns..(row + 1) * case.v.columns;
    infinite_v.v.values[columns.clone()].fill(f32::INFINITY);
    nan_k.k.values[columns].fill(f32::NAN);
    for (spoiled, what) in [(infinite_v, "v"), (nan_k, "k")] {
        let found = spoiled.run(device);
        assert!(bits(&found.slice(0..row)) == expected, "{what} of row {row} reached a row before");
        let reached = found.slice(row..found.rows).values;
        assert!(reached.iter().all(|value| !value.is_finite()), "{what} of row {row} did not reach a row behind");
    }
}
