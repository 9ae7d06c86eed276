//! Operands that do not fit are refused with an error, by the reference and by the CPU device alike.

use crate::cpu::CpuDevice;
use crate::reference::Reference;
use crate::tests::{Array, cpu_devices, packing, vector, weight};
use crate::{
    AttentionShape, DType, Device, GatedDeltaShape, HostTensor, KernelError, Packing, PairGroup, Parent, StateShape,
    States,
};

#[test]
fn the_reference_refuses() {
    refuses(&Reference);
}

#[test]
fn the_cpu_device_refuses() {
    cpu_devices(1).iter().for_each(refuses);
}

fn refuses<D: Device>(device: &D) {
    refuses_tensors(device);
    refuses_row_operands(device);
    refuses_indices(device);
    refuses_packings(device);
    refuses_states(device);
    refuses_delta_shapes(device);
    refuses_attention_shapes(device);
}

fn zeros<D: Device>(device: &D, rows: usize, columns: usize) -> D::Matrix {
    Array { rows, columns, values: vec![0.0; rows * columns] }.upload(device)
}

#[track_caller]
fn shape_error<T>(result: Result<T, KernelError>, message: &str) {
    let error = result.err().expect("refused");
    assert!(matches!(error, KernelError::Shape { .. }), "{error}");
    assert_eq!(error.to_string(), message);
}

#[track_caller]
fn index_error<T>(result: Result<T, KernelError>, message: &str) {
    let error = result.err().expect("refused");
    assert!(matches!(error, KernelError::Index { .. }), "{error}");
    assert_eq!(error.to_string(), message);
}

fn refuses_tensors<D: Device>(device: &D) {
    let tensor = |shape, bytes| HostTensor { dtype: DType::Bf16, shape, bytes };
    shape_error(
        device.load_weight(tensor(&[2, 3], &[0; 11])),
        "load_weight: bytes of the tensor: expected 12, found 11",
    );
    shape_error(
        device.load_weight(tensor(&[6], &[0; 12])),
        "load_weight: dimensions of the weight: expected 2, found 1",
    );
    let absurd = [usize::MAX, 2];
    assert!(device.load_vector(tensor(&absurd, &[0; 8])).is_err());
    let mut out = device.matrix();
    shape_error(device.upload(&[0.0; 5], 2, 3, &mut out), "upload: elements: expected 6, found 5");
    assert!(device.upload(&[0.0; 2], usize::MAX, 2, &mut out).is_err());
}

fn refuses_row_operands<D: Device>(device: &D) {
    let (mut out, x, four) = (device.matrix(), zeros(device, 2, 3), vector(device, &[0.0; 4]));
    let three = vector(device, &[0.0; 3]);
    let w = weight(device, DType::F32, &Array::new(4, &[0.0; 8]));
    shape_error(device.linear(&w, &x, &mut out), "linear: columns of x: expected 4, found 3");
    shape_error(device.rms_norm(&x, &four, 0.0, &mut out), "rms_norm: elements of weight: expected 3, found 4");
    shape_error(
        device.layer_norm(&x, &three, &four, 0.0, &mut out),
        "layer_norm: elements of bias: expected 3, found 4",
    );
    shape_error(device.add(&mut zeros(device, 3, 3), &x), "add: rows: expected 3, found 2");
    shape_error(
        device.add_rms_norm(&mut zeros(device, 2, 4), &x, &three, 0.0, &mut out),
        "add_rms_norm: columns: expected 4, found 3",
    );
    shape_error(device.silu_mul(&mut zeros(device, 2, 4), &x), "silu_mul: columns: expected 4, found 3");
    shape_error(device.add_bias(&mut zeros(device, 2, 3), &four), "add_bias: elements of bias: expected 3, found 4");
    shape_error(
        device.gated_rms_norm(&mut zeros(device, 2, 6), &zeros(device, 2, 6), &four, 0.0),
        "gated_rms_norm: columns left over by heads: expected 0, found 2",
    );
    let none = vector(device, &[]);
    assert!(device.gated_rms_norm(&mut zeros(device, 2, 6), &zeros(device, 2, 6), &none, 0.0).is_err());
}

fn refuses_indices<D: Device>(device: &D) {
    let (mut out, mut x) = (device.matrix(), zeros(device, 4, 2));
    index_error(device.gather_rows(&x, &[3, 4], &mut out), "gather_rows: row: expected an index below 4, found 4");
    index_error(
        device.mean_rows(&x, &[0..1, 2..5], &mut out),
        "mean_rows: last row of a range: expected an index below 4, found 4",
    );
    index_error(
        device.mean_rows(&x, &[2..2], &mut out),
        "mean_rows: start of a range: expected an index below 2, found 2",
    );
    index_error(
        device.center_rows(&mut x, &[0..2, 1..3]),
        "center_rows: end of the range before: expected an index below 2, found 2",
    );
    let table = vector(device, &[0.0; 6]);
    index_error(device.add_slots(&mut x, &table, &[0, 1, 2, 3]), "add_slots: slot: expected an index below 3, found 3");
    shape_error(device.add_slots(&mut x, &table, &[0, 1]), "add_slots: elements of index: expected 4, found 2");
    let groups = [PairGroup { left: 0..4, right: 0..5 }];
    index_error(
        device.pair_scores(&groups, &x, &x, &x, &x, &vector(device, &[0.0; 2]), &mut Vec::new()),
        "pair_scores: end of a group: expected an index below 5, found 5",
    );
}

fn refuses_packings<D: Device>(device: &D) {
    let (mut out, x, weight) = (device.matrix(), zeros(device, 5, 2), vector(device, &[0.0; 8]));
    let mut conv = |packing: &Packing| device.causal_conv1d_silu(packing, States::default(), &weight, &x, &mut out);
    shape_error(conv(&packing(&[(None, 4)])), "causal_conv1d_silu: rows of the packing: expected 5, found 4");
    let chained = packing(&[(None, 2), (Some(0), 2), (Some(1), 1)]);
    shape_error(conv(&chained), "causal_conv1d_silu: parents of a parent: expected 0, found 1");
    let mut gap = packing(&[(None, 2), (None, 2)]);
    gap.sequences[1].start = 3;
    shape_error(conv(&gap), "causal_conv1d_silu: start of a sequence: expected 2, found 3");
    let mut later = packing(&[(None, 2), (None, 3)]);
    later.sequences[0].parent = Some(Parent::Sequence(1));
    index_error(conv(&later), "causal_conv1d_silu: parent of a sequence: expected an index below 0, found 1");
    let mut elsewhere = packing(&[(None, 2), (Some(0), 3)]);
    elsewhere.sequences[1].position = 1;
    shape_error(conv(&elsewhere), "causal_conv1d_silu: position of a sequence: expected 2, found 1");
    let mut endless = packing(&[(None, 5)]);
    endless.sequences[0].len = usize::MAX;
    assert!(conv(&endless).is_err());
    let whole = packing(&[(None, 5)]);
    let seven = vector(device, &[0.0; 7]);
    shape_error(
        device.causal_conv1d_silu(&whole, States::default(), &seven, &x, &mut out),
        "causal_conv1d_silu: elements of weight: expected 6, found 7",
    );
    assert!(device.causal_conv1d_silu(&whole, States::default(), &vector(device, &[]), &x, &mut out).is_err());
}

fn refuses_states<D: Device>(device: &D) {
    const CONV: StateShape = StateShape::Conv { channels: 2, taps: 4 };
    let (mut out, x, weight) = (device.matrix(), zeros(device, 5, 2), vector(device, &[0.0; 8]));
    let state = |shape, tokens| device.state(shape, tokens).expect("there is room");
    let mut conv = |packing: &Packing, kept: &[&D::State], new: &mut [D::State]| {
        let states = States { kept: kept.to_vec(), new: new.iter_mut().collect() };
        device.causal_conv1d_silu(packing, states, &weight, &x, &mut out)
    };
    let mut behind = packing(&[(None, 5)]);
    behind.sequences[0].parent = Some(Parent::Kept(1));
    behind.sequences[0].position = 7;
    let seven = state(CONV, 7);
    index_error(
        conv(&behind, &[&seven], &mut []),
        "causal_conv1d_silu: state that a sequence continues: expected an index below 1, found 1",
    );
    conv(&behind, &[&seven, &seven], &mut []).expect("fits");
    shape_error(
        conv(&behind, &[&seven, &state(CONV, 8)], &mut []),
        "causal_conv1d_silu: position of a sequence: expected 8, found 7",
    );
    let other = state(StateShape::Conv { channels: 3, taps: 4 }, 7);
    shape_error(
        conv(&behind, &[&seven, &other], &mut []),
        "causal_conv1d_silu: columns of a state: expected 2, found 3",
    );

    let mut keeping = packing(&[(None, 2), (None, 2), (Some(1), 1)]);
    keeping.keep = vec![0, 1];
    conv(&keeping, &[], &mut [state(CONV, 2), state(CONV, 2)]).expect("fits");
    shape_error(conv(&keeping, &[], &mut [state(CONV, 2)]), "causal_conv1d_silu: states to write: expected 2, found 1");
    shape_error(
        conv(&keeping, &[], &mut [state(CONV, 2), state(CONV, 3)]),
        "causal_conv1d_silu: tokens of a state to write: expected 2, found 3",
    );
    for (keep, message) in [
        (vec![0, 3], "causal_conv1d_silu: sequence to keep: expected an index below 3, found 3"),
        (vec![1, 1], "causal_conv1d_silu: sequence to keep next: expected an index below 2, found 2"),
    ] {
        keeping.keep = keep;
        index_error(conv(&keeping, &[], &mut [state(CONV, 2), state(CONV, 2)]), message);
    }
    keeping.keep = vec![2];
    shape_error(
        conv(&keeping, &[], &mut [state(CONV, 1)]),
        "causal_conv1d_silu: parents of a sequence to keep: expected 0, found 1",
    );
}

fn refuses_delta_shapes<D: Device>(device: &D) {
    let good = GatedDeltaShape { key_heads: 2, value_heads: 4, key_dim: 3, value_dim: 5 };
    let whole = packing(&[(None, 1)]);
    let (qkv, gates, four) = (zeros(device, 1, 32), zeros(device, 1, 4), vector(device, &[0.0; 4]));
    let mut out = device.matrix();
    let mut run =
        |shape| device.gated_delta_rule(&whole, States::default(), shape, &qkv, &gates, &gates, &four, &four, &mut out);
    run(good).expect("fits");
    shape_error(
        run(GatedDeltaShape { key_heads: 3, ..good }),
        "gated_delta_rule: value_heads left over by key_heads: expected 0, found 1",
    );
    shape_error(run(GatedDeltaShape { key_dim: 4, ..good }), "gated_delta_rule: columns of qkv: expected 36, found 32");
    shape_error(run(GatedDeltaShape { key_heads: 0, ..good }), "gated_delta_rule: key_heads: expected 1, found 0");
    assert!(run(GatedDeltaShape { key_dim: usize::MAX, ..good }).is_err());
    let (three, narrow) = (vector(device, &[0.0; 3]), zeros(device, 1, 3));
    shape_error(
        device.gated_delta_rule(&whole, States::default(), good, &qkv, &gates, &gates, &four, &three, &mut out),
        "gated_delta_rule: elements of dt_bias: expected 4, found 3",
    );
    shape_error(
        device.gated_delta_rule(&whole, States::default(), good, &qkv, &gates, &narrow, &four, &four, &mut out),
        "gated_delta_rule: columns: expected 4, found 3",
    );
}

fn refuses_attention_shapes<D: Device>(device: &D) {
    let good = AttentionShape {
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 6,
        rotary_dim: 4,
        rope_theta: 1e4,
        rms_norm_eps: 1e-6,
    };
    let whole = packing(&[(None, 1)]);
    let (q_gate, kv, six) = (zeros(device, 1, 48), zeros(device, 1, 12), vector(device, &[0.0; 6]));
    let mut out = device.matrix();
    let mut run =
        |shape| device.gated_attention(&whole, States::default(), shape, &q_gate, &kv, &kv, &six, &six, &mut out);
    run(good).expect("fits");
    shape_error(
        run(AttentionShape { num_key_value_heads: 3, ..good }),
        "gated_attention: num_attention_heads left over by num_key_value_heads: expected 0, found 1",
    );
    shape_error(
        run(AttentionShape { rotary_dim: 3, ..good }),
        "gated_attention: rotary_dim left over by pairs: expected 0, found 1",
    );
    index_error(
        run(AttentionShape { rotary_dim: 8, ..good }),
        "gated_attention: rotary_dim: expected an index below 7, found 8",
    );
    assert!(run(AttentionShape { head_dim: 0, ..good }).is_err());
    assert!(run(AttentionShape { head_dim: usize::MAX, ..good }).is_err());
    let narrow = zeros(device, 1, 11);
    shape_error(
        device.gated_attention(&whole, States::default(), good, &q_gate, &kv, &narrow, &six, &six, &mut out),
        "gated_attention: columns: expected 12, found 11",
    );
}

/// A placement that cannot be had is an error before any thread of it works.
#[test]
fn cores_that_are_not_there_are_refused() {
    let messages = [
        (CpuDevice::new(&[]), "cpu threads: a placement needs at least one core"),
        (CpuDevice::new(&[1_000_000]), "cpu threads: core 1000000 is not among those this process may use"),
    ];
    for (result, message) in messages {
        let error = result.err().expect("refused").to_string();
        assert!(error.starts_with(message), "{error}");
    }
}
