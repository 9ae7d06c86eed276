//! A token's result has the same bits alone and in company, on one thread and on two.

use std::ops::Range;

use crate::cpu::CpuDevice;
use crate::tests::cases::{AttentionCase, ConvCase, GatedDeltaCase, attention_shapes, gated_delta_shapes};
use crate::tests::{Array, cpu_devices, packing, random, random_values, weight};
use crate::{DType, Device, Packing};

/// Two trees and a sequence between them; the second tree is looked at.
fn company() -> Packing {
    packing(&[(None, 9), (Some(0), 20), (None, 17), (None, 37), (Some(3), 16), (Some(3), 3)])
}

/// The second tree's tokens among [`company`]'s.
const ROWS: Range<usize> = 46..102;

fn alone() -> Packing {
    packing(&[(None, 37), (Some(0), 16), (Some(0), 3)])
}

/// Runs an operation in company and alone, on one thread and on two, and compares the bits.
fn check(in_company: impl Fn(&CpuDevice) -> Array, alone: impl Fn(&CpuDevice) -> Array) {
    for (one, two) in cpu_devices(1).iter().zip(&cpu_devices(2)) {
        let expected = bits(&in_company(one).slice(ROWS));
        assert!(bits(&in_company(two).slice(ROWS)) == expected, "{}: two threads", one.isa());
        assert!(bits(&alone(one)) == expected, "{}: alone", one.isa());
        assert!(bits(&alone(two)) == expected, "{}: alone on two threads", one.isa());
    }
}

fn bits(values: &Array) -> Vec<u32> {
    values.values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn linear_rows_do_not_depend_on_other_rows() {
    let mut random = random();
    let w = random_values(&mut random, 77, 600);
    let x = random_values(&mut random, 60, 600);
    for (one, two) in cpu_devices(1).iter().zip(&cpu_devices(2)) {
        for dtype in [DType::F32, DType::Bf16] {
            let linear = |device: &CpuDevice, x: &Array| {
                let mut out = device.matrix();
                device.linear(&weight(device, dtype, &w), &x.upload(device), &mut out).unwrap();
                Array::download(device, &out)
            };
            let together = linear(two, &x);
            assert!(bits(&linear(one, &x)) == bits(&together), "{}: threads", one.isa());
            for rows in [0..1, 13..14, 14..28, 5..12, 59..60, 1..60] {
                let found = bits(&linear(two, &x.slice(rows.clone())));
                assert!(found == bits(&together.slice(rows.clone())), "{}: rows {rows:?}", one.isa());
            }
        }
    }
}

#[test]
fn convolution_does_not_depend_on_company() {
    let case = ConvCase::new(&mut random(), &company(), 35, 4);
    let alone = ConvCase { packing: alone(), weight: case.weight.clone(), x: case.x.slice(ROWS) };
    check(|device| case.run(device), |device| alone.run(device));
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
    check(|device| case.run(device), |device| alone.run(device));
}

#[test]
fn attention_does_not_depend_on_company() {
    let case = AttentionCase::new(&mut random(), &company(), attention_shapes()[1]);
    let alone = AttentionCase {
        packing: alone(),
        shape: case.shape,
        q_gate: case.q_gate.slice(ROWS),
        k: case.k.slice(ROWS),
        v: case.v.slice(ROWS),
        q_norm: case.q_norm.clone(),
        k_norm: case.k_norm.clone(),
    };
    check(|device| case.run(device), |device| alone.run(device));
}

/// What a query sees is all that counts: cutting a sequence's end off changes nothing before it.
#[test]
fn attention_does_not_depend_on_later_tokens() {
    let case = AttentionCase::new(&mut random(), &packing(&[(None, 50)]), attention_shapes()[3]);
    for device in cpu_devices(1) {
        let whole = case.run(&device);
        for len in [1, 13, 14, 15, 33, 49] {
            let cut = AttentionCase {
                packing: packing(&[(None, len)]),
                shape: case.shape,
                q_gate: case.q_gate.slice(0..len),
                k: case.k.slice(0..len),
                v: case.v.slice(0..len),
                q_norm: case.q_norm.clone(),
                k_norm: case.k_norm.clone(),
            };
            assert!(bits(&cut.run(&device)) == bits(&whole.slice(0..len)), "{}: {len} tokens", device.isa());
        }
    }
}
