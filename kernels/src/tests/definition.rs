//! Results that can be derived by hand, on the reference and on every instruction set.

use std::f32::consts::SQRT_2;

use crate::reference::Reference;
use crate::tests::cases::{AttentionCase, ConvCase, GatedDeltaCase, SequenceCase};
use crate::tests::{Array, assert_close, cpu_devices, packing, vector, weight};
use crate::{AttentionShape, DType, Device, GatedDeltaShape, KernelError, PairGroup, RowSource};

/// Runs a check on the reference and on every CPU device.
macro_rules! on_every_device {
    ($($name:ident),* $(,)?) => {
        mod reference_device {
            $(#[test] fn $name() { super::$name(&super::Reference); })*
        }
        mod cpu_device {
            $(#[test] fn $name() { super::cpu_devices(2).iter().for_each(super::$name); })*
        }
    };
}

on_every_device!(
    linear_is_x_times_the_transpose,
    bf16_weights_are_the_upper_half_of_f32,
    rms_norm_is_zero_centred,
    add_rms_norm_keeps_the_sum,
    silu_mul_gates,
    conv_reads_the_parents_last_tokens,
    delta_rule_with_beta_one_replaces_what_the_key_holds,
    delta_rule_decays_and_blends_by_half,
    delta_rule_scales_queries_and_maps_heads,
    gated_rms_norm_has_a_plain_weight,
    attention_to_equal_scores_is_a_mean,
    attention_rotates_by_position,
    attention_normalises_with_zero_centred_weights,
    rows_are_gathered_averaged_and_centred,
    layer_norm_uses_the_biased_variance,
    slots_and_biases_are_added,
    pair_scores_are_dot_and_exact_gelu,
    embedding_rows_come_in_the_order_of_ids,
);

fn check<D: Device>(device: &D, found: &D::Matrix, expected: &[f32], tolerance: f32) {
    let found = Array::download(device, found);
    assert_close(&found, &Array::new(found.columns, expected), tolerance, "by hand");
}

fn linear_is_x_times_the_transpose<D: Device>(device: &D) {
    let w = weight(device, DType::F32, &Array::new(2, &[1.0, 0.0, 0.0, 1.0, 1.0, 1.0]));
    let mut out = device.matrix();
    device.linear(&w, &Array::new(2, &[1.0, 2.0, 3.0, 4.0]).upload(device), &mut out).unwrap();
    check(device, &out, &[1.0, 2.0, 3.0, 3.0, 4.0, 7.0], 0.0);
}

fn bf16_weights_are_the_upper_half_of_f32<D: Device>(device: &D) {
    // 1 + 2^-8 needs one bit more than BF16 has: the helper cuts it to 1.
    let w = weight(device, DType::Bf16, &Array::new(3, &[1.0 + 1.0 / 256.0, -2.5, 1e30]));
    let mut out = device.matrix();
    device.linear(&w, &Array::new(3, &[1.0, 2.0, 0.0]).upload(device), &mut out).unwrap();
    check(device, &out, &[-4.0], 0.0);
}

fn rms_norm_is_zero_centred<D: Device>(device: &D) {
    let mut out = device.matrix();
    let x = Array::new(2, &[3.0, 4.0]).upload(device);
    device.rms_norm(&x, &vector(device, &[0.0, 1.0]), 0.0, &mut out).unwrap();
    // mean(x²) = 12.5
    check(device, &out, &[3.0 / 12.5_f32.sqrt(), 8.0 / 12.5_f32.sqrt()], 1e-6);
    device.rms_norm(&x, &vector(device, &[0.0, 1.0]), 87.5, &mut out).unwrap();
    check(device, &out, &[0.3, 0.8], 1e-6);
}

fn add_rms_norm_keeps_the_sum<D: Device>(device: &D) {
    let mut residual = Array::new(2, &[1.0, 1.0]).upload(device);
    let x = Array::new(2, &[2.0, 3.0]).upload(device);
    let mut out = device.matrix();
    device.add_rms_norm(&mut residual, &x, &vector(device, &[0.0, 0.0]), 87.5, &mut out).unwrap();
    check(device, &residual, &[3.0, 4.0], 0.0);
    check(device, &out, &[0.3, 0.4], 1e-6);
    device.add(&mut residual, &x).unwrap();
    check(device, &residual, &[5.0, 7.0], 0.0);
}

fn silu_mul_gates<D: Device>(device: &D) {
    let mut gate = Array::new(5, &[0.0, 100.0, -100.0, 1.0, -1.0]).upload(device);
    let up = Array::new(5, &[3.0, 2.0, 2.0, 2.0, 2.0]).upload(device);
    device.silu_mul(&mut gate, &up).unwrap();
    let sigmoid = 1.0 / (1.0 + (-1.0_f32).exp());
    check(device, &gate, &[0.0, 200.0, 0.0, 2.0 * sigmoid, -2.0 * (1.0 - sigmoid)], 1e-6);
}

fn conv_reads_the_parents_last_tokens<D: Device>(device: &D) {
    // SiLU is the identity on sums as large as these. Channels differ by a factor of 2.
    let case = ConvCase {
        packing: packing(&[(None, 3), (None, 1), (Some(0), 2), (Some(1), 2)]),
        weight: vec![1e2, 1e3, 1e4, 1e5, 2e2, 2e3, 2e4, 2e5],
        x: Array::new(2, &[1., 1., 2., 2., 3., 3., 7., 7., 4., 4., 5., 5., 8., 8., 9., 9.]),
    };
    let expected = [100_000., 210_000., 321_000., 700_000., 432_100., 543_200., 870_000., 987_000.];
    let expected: Vec<f32> = expected.iter().flat_map(|&sum| [sum, 2.0 * sum]).collect();
    assert_close(&case.run(device), &Array::new(2, &expected), 1e-6, "by hand");
}

/// One head of one key dimension, where L2-normalised keys and queries of 1,000 are 1.
fn delta_case(len: &[(Option<usize>, usize)], v: &[f32], b: f32) -> GatedDeltaCase {
    let one = |value: f32| Array::new(1, &vec![value; v.len()]);
    GatedDeltaCase {
        packing: packing(len),
        shape: GatedDeltaShape { key_heads: 1, value_heads: 1, key_dim: 1, value_dim: 1 },
        qkv: Array::new(3, &v.iter().flat_map(|&v| [1e3, 1e3, v]).collect::<Vec<_>>()),
        a: one(0.0),
        b: one(b),
        a_log: vec![0.0],
        dt_bias: vec![0.0],
    }
}

fn delta_rule_with_beta_one_replaces_what_the_key_holds<D: Device>(device: &D) {
    // beta = sigmoid(100) = 1: S ← S/2 + (v − S/2) = v.
    let case = delta_case(&[(None, 3)], &[4.0, 8.0, -1.0], 100.0);
    assert_close(&case.run(device), &Array::new(1, &[4.0, 8.0, -1.0]), 1e-6, "by hand");
}

fn delta_rule_decays_and_blends_by_half<D: Device>(device: &D) {
    // a = 0: exp(g) = exp(−ln 2) = 1/2; b = 0: beta = 1/2; hence S ← S/4 + v/2. The last two sequences continue the
    // first, from S = 4.5.
    let case = delta_case(&[(None, 2), (None, 1), (Some(0), 2), (Some(0), 1)], &[4.0, 8.0, 2.0, 0.0, 1.0, 10.0], 0.0);
    assert_close(&case.run(device), &Array::new(1, &[2.0, 4.5, 1.0, 1.125, 0.781_25, 6.125]), 1e-6, "by hand");
}

fn delta_rule_scales_queries_and_maps_heads<D: Device>(device: &D) {
    // Two key heads of width 4, four value heads; beta = 1, the first token. q = k in the first key head, so that
    // o = v · 4^-0.5; q ⊥ k in the second, so that o = 0.
    let (e0, e1) = ([1e3, 0., 0., 0.], [0., 1e3, 0., 0.]);
    let qkv = [&e0[..], &e0, &e0, &e1, &[2.0, 4.0, 6.0, 8.0]].concat();
    let case = GatedDeltaCase {
        packing: packing(&[(None, 1)]),
        shape: GatedDeltaShape { key_heads: 2, value_heads: 4, key_dim: 4, value_dim: 1 },
        qkv: Array::new(20, &qkv),
        a: Array::new(4, &[0.0; 4]),
        b: Array::new(4, &[100.0; 4]),
        a_log: vec![0.0; 4],
        dt_bias: vec![0.0; 4],
    };
    assert_close(&case.run(device), &Array::new(4, &[1.0, 2.0, 0.0, 0.0]), 1e-6, "by hand");
}

fn gated_rms_norm_has_a_plain_weight<D: Device>(device: &D) {
    let mut o = Array::new(4, &[3.0, 4.0, 6.0, 8.0]).upload(device);
    let z = Array::new(4, &[100.0, 100.0, 0.0, 100.0]).upload(device);
    device.gated_rms_norm(&mut o, &z, &vector(device, &[1.0, 0.5]), 0.0).unwrap();
    let unit = 100.0 / 12.5_f32.sqrt();
    check(device, &o, &[3.0 * unit, 2.0 * unit, 0.0, 2.0 * unit], 1e-6);
}

fn attention_shape(heads: usize, kv_heads: usize, head_dim: usize, rotary_dim: usize) -> AttentionShape {
    AttentionShape {
        num_attention_heads: heads,
        num_key_value_heads: kv_heads,
        head_dim,
        rotary_dim,
        rope_theta: 10_000.0,
        rms_norm_eps: 1e-6,
    }
}

fn attention_to_equal_scores_is_a_mean<D: Device>(device: &D) {
    // Keys of zero have equal scores with every query; gates of zero halve. Two heads share one key head.
    let case = AttentionCase {
        packing: packing(&[(None, 2), (None, 1), (Some(0), 2)]),
        shape: attention_shape(2, 1, 1, 0),
        q_gate: Array::new(4, &[1.0, 0.0, 5.0, 100.0].repeat(5)),
        k: Array::new(1, &[0.0; 5]),
        v: Array::new(1, &[2.0, 4.0, 10.0, 6.0, 8.0]),
        q_norm: vec![0.0],
        k_norm: vec![0.0],
    };
    let means = [2.0, 3.0, 10.0, 4.0, 5.0];
    let expected: Vec<f32> = means.iter().flat_map(|&mean| [mean / 2.0, mean]).collect();
    assert_close(&case.run(device), &Array::new(2, &expected), 1e-6, "by hand");
}

fn attention_rotates_by_position<D: Device>(device: &D) {
    // Query and keys are √2·(1, 0) once normed; the first pair turns by one radian per position, so scores are
    // 2·cos(distance)/√2. The second sequence is the same tokens as prefix and block.
    let case = AttentionCase {
        packing: packing(&[(None, 2), (None, 1), (Some(1), 1)]),
        shape: attention_shape(1, 1, 2, 2),
        q_gate: Array::new(4, &[7.0, 0.0, 0.0, 100.0].repeat(4)),
        k: Array::new(2, &[3.0, 0.0].repeat(4)),
        v: Array::new(2, &[1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0]),
        q_norm: vec![0.0; 2],
        k_norm: vec![0.0; 2],
    };
    let first = 1.0 / (1.0 + (SQRT_2 * (1.0 - 1.0_f32.cos())).exp());
    let rows = [0.5, 1.0, 0.5 * first, first];
    assert_close(&case.run(device), &Array::new(2, &rows.repeat(2)), 1e-6, "by hand");
}

fn attention_normalises_with_zero_centred_weights<D: Device>(device: &D) {
    // q = (1, 1) · (1 + 1), k = ±(1, 1) · (1 − 1/2) once normed: scores ±2/√2 for tokens 0 and 1.
    let case = AttentionCase {
        packing: packing(&[(None, 2)]),
        shape: attention_shape(1, 1, 2, 0),
        q_gate: Array::new(4, &[9.0, 9.0, 100.0, 100.0].repeat(2)),
        k: Array::new(2, &[4.0, 4.0, -0.5, -0.5]),
        v: Array::new(2, &[1.0, 2.0, 0.0, 0.0]),
        q_norm: vec![1.0; 2],
        k_norm: vec![-0.5; 2],
    };
    let first = 1.0 / (1.0 + (-2.0 * SQRT_2).exp());
    assert_close(&case.run(device), &Array::new(2, &[1.0, 2.0, first, 2.0 * first]), 2e-6, "by hand");
}

fn rows_are_gathered_averaged_and_centred<D: Device>(device: &D) {
    let mut x = Array::new(2, &[1.0, 10.0, 2.0, 20.0, 6.0, 90.0, 5.0, 5.0]).upload(device);
    let mut out = device.matrix();
    device.gather_rows(&x, &[2, 0, 2], &mut out).unwrap();
    check(device, &out, &[6.0, 90.0, 1.0, 10.0, 6.0, 90.0], 0.0);
    device.mean_rows(&x, &[0..3, 3..4], &mut out).unwrap();
    check(device, &out, &[3.0, 40.0, 5.0, 5.0], 0.0);
    device.center_rows(&mut x, &[0..3]).unwrap();
    check(device, &x, &[-2.0, -30.0, -1.0, -20.0, 3.0, 50.0, 5.0, 5.0], 0.0);
}

fn layer_norm_uses_the_biased_variance<D: Device>(device: &D) {
    let x = Array::new(2, &[1001.0, 1003.0]).upload(device);
    let mut out = device.matrix();
    let (weight, bias) = (vector(device, &[2.0, 2.0]), vector(device, &[10.0, 20.0]));
    device.layer_norm(&x, &weight, &bias, 0.0, &mut out).unwrap();
    check(device, &out, &[8.0, 22.0], 1e-6);
    device.layer_norm(&x, &weight, &bias, 3.0, &mut out).unwrap();
    check(device, &out, &[9.0, 21.0], 1e-6);
}

fn slots_and_biases_are_added<D: Device>(device: &D) {
    let mut x = Array::new(2, &[1.0, 2.0, 3.0, 4.0]).upload(device);
    device.add_slots(&mut x, &vector(device, &[10.0, 20.0, 30.0, 40.0, 50.0, 60.0]), &[2, 0]).unwrap();
    check(device, &x, &[51.0, 62.0, 13.0, 24.0], 0.0);
    device.add_bias(&mut x, &vector(device, &[1.0, -1.0])).unwrap();
    check(device, &x, &[52.0, 61.0, 14.0, 23.0], 0.0);
}

fn pair_scores_are_dot_and_exact_gelu<D: Device>(device: &D) {
    // Width 4, so dots are halved. GELU(1) = Φ(1), GELU(−1) = −Φ(−1), from tables of the normal distribution.
    let upload = |values: &[f32]| Array::new(4, values).upload(device);
    let left_dot = upload(&[9., 9., 9., 9., 1., 0., 0., 0., 0., 2., 0., 0.]);
    let left_mlp = upload(&[9., 9., 9., 9., 1., 0., 0., 0., -3., 0., 0., 0.]);
    let right_dot = upload(&[2., 4., 0., 0., 9., 9., 9., 9.]);
    let right_mlp = upload(&[0., 0., 0., 0., 2., 1., 0., 0.]);
    let scalar = vector(device, &[1.0, 10.0, 100.0, 1000.0]);
    let groups = [
        PairGroup { left: 1..3, right: 0..1 },
        PairGroup { left: 2..2, right: 0..2 },
        PairGroup { left: 2..3, right: 1..2 },
    ];
    let mut out = vec![5.0];
    device.pair_scores(&groups, &left_dot, &left_mlp, &right_dot, &right_mlp, &scalar, &mut out).unwrap();
    let phi = 0.841_344_8;
    let expected = [1.0 + phi, 4.0 - 3.0 * 0.001_349_898, 9.0 - (1.0 - phi) + 10.0 * phi];
    assert_close(&Array::new(1, &out), &Array::new(1, &expected), 1e-6, "by hand");
}

/// Rows of which element `c` of row `r` is `10·r + c`.
struct Numbered;

impl RowSource for Numbered {
    fn rows(&self) -> usize {
        4
    }

    fn width(&self) -> usize {
        2
    }

    fn read_rows(&self, ids: &[u32], out: &mut [f32]) -> Result<(), KernelError> {
        for (id, row) in ids.iter().zip(out.chunks_exact_mut(2)) {
            row.copy_from_slice(&[10.0 * *id as f32, 10.0 * *id as f32 + 1.0]);
        }
        Ok(())
    }
}

fn embedding_rows_come_in_the_order_of_ids<D: Device>(device: &D) {
    let table = device.load_embedding(Box::new(Numbered)).unwrap();
    let mut out = device.matrix();
    device.embedding_gather(&table, &[3, 0, 3], &mut out).unwrap();
    check(device, &out, &[30.0, 31.0, 0.0, 1.0, 30.0, 31.0], 0.0);
    let error = device.embedding_gather(&table, &[1, 4], &mut out).unwrap_err();
    assert_eq!(error.to_string(), "embedding_gather: token id: expected an index below 4, found 4");
    device.embedding_gather(&table, &[], &mut out).unwrap();
    assert_eq!(device.shape(&out), (0, 2));
}

/// The rotary angles, against values of the formula in F64: not an operation of its own, but the one place where an
/// F32 angle is the definition.
#[test]
fn rotary_angles_are_positions_times_frequencies() {
    let rotary = crate::rotary::Rotary::new(4, 10_000.0);
    for (position, pair, angle) in [(0, 0, 0.0), (3, 0, 3.0_f64), (250, 1, 2.5), (16_383, 1, 163.83)] {
        let (cos, sin) = rotary.cos_sin(position, pair);
        assert!((f64::from(cos) - angle.cos()).abs() < 2e-5, "{position} {pair} {cos}");
        assert!((f64::from(sin) - angle.sin()).abs() < 2e-5, "{position} {pair} {sin}");
    }
}
