//! Operands of the operations over sequences, as data, and one way to run them on any device.

use rand::rngs::StdRng;

use crate::tests::{Array, packing, random_values, vector};
use crate::{AttentionShape, Device, GatedDeltaShape, Packing, StateShape, States};

/// Packings from nothing to several trees: prefixes shorter than the convolution, empty prefixes and blocks, sequences
/// without company, lengths around the tiles' edges.
pub(crate) fn packings() -> Vec<Packing> {
    vec![
        packing(&[]),
        packing(&[(None, 1)]),
        packing(&[(None, 5), (None, 6), (None, 7)]),
        packing(&[(None, 13), (None, 14), (None, 15)]),
        packing(&[(None, 1), (None, 2), (None, 3), (Some(0), 5), (Some(1), 1), (Some(2), 2), (Some(1), 4)]),
        packing(&[(None, 33), (Some(0), 1), (Some(0), 14), (None, 9), (None, 31), (Some(4), 32), (Some(0), 16)]),
        packing(&[(None, 0), (Some(0), 3), (None, 4), (Some(2), 0), (Some(2), 2), (None, 0)]),
    ]
}

/// One operation over sequences and its operands.
pub(crate) trait SequenceCase: Clone {
    fn packing(&self) -> &Packing;

    fn state_shape(&self) -> StateShape;

    /// The operands of some rows, which form another packing.
    fn select(&self, packing: Packing, rows: &[usize]) -> Self;

    fn run_with<D: Device>(&self, device: &D, states: States<'_, D::State>) -> Array;

    fn run<D: Device>(&self, device: &D) -> Array {
        self.run_with(device, States::default())
    }
}

/// Operands of the convolution.
#[derive(Clone)]
pub(crate) struct ConvCase {
    pub(crate) packing: Packing,
    pub(crate) weight: Vec<f32>,
    pub(crate) x: Array,
}

impl ConvCase {
    pub(crate) fn new(random: &mut StdRng, packing: &Packing, channels: usize, taps: usize) -> Self {
        let weight = random_values(random, channels, taps).values;
        ConvCase { packing: packing.clone(), weight, x: random_values(random, packing.tokens(), channels) }
    }
}

impl SequenceCase for ConvCase {
    fn packing(&self) -> &Packing {
        &self.packing
    }

    fn state_shape(&self) -> StateShape {
        StateShape::Conv { channels: self.x.columns, taps: self.weight.len() / self.x.columns.max(1) }
    }

    fn select(&self, packing: Packing, rows: &[usize]) -> Self {
        Self { packing, x: self.x.select(rows), ..self.clone() }
    }

    fn run_with<D: Device>(&self, device: &D, states: States<'_, D::State>) -> Array {
        let mut out = device.matrix();
        let (weight, x) = (vector(device, &self.weight), self.x.upload(device));
        device.causal_conv1d_silu(&self.packing, states, &weight, &x, &mut out).unwrap();
        Array::download(device, &out)
    }
}

/// Operands of the gated delta rule.
#[derive(Clone)]
pub(crate) struct GatedDeltaCase {
    pub(crate) packing: Packing,
    pub(crate) shape: GatedDeltaShape,
    pub(crate) qkv: Array,
    pub(crate) a: Array,
    pub(crate) b: Array,
    pub(crate) a_log: Vec<f32>,
    pub(crate) dt_bias: Vec<f32>,
}

impl GatedDeltaCase {
    pub(crate) fn new(random: &mut StdRng, packing: &Packing, shape: GatedDeltaShape) -> Self {
        let tokens = packing.tokens();
        GatedDeltaCase {
            packing: packing.clone(),
            shape,
            qkv: random_values(random, tokens, shape.channels()),
            a: random_values(random, tokens, shape.value_heads),
            b: random_values(random, tokens, shape.value_heads),
            a_log: random_values(random, 1, shape.value_heads).values,
            // Spread from states that fade at once to states that stay.
            dt_bias: random_values(random, 1, shape.value_heads).values.iter().map(|x| 6.0 * x - 3.0).collect(),
        }
    }
}

impl SequenceCase for GatedDeltaCase {
    fn packing(&self) -> &Packing {
        &self.packing
    }

    fn state_shape(&self) -> StateShape {
        StateShape::GatedDelta(self.shape)
    }

    fn select(&self, packing: Packing, rows: &[usize]) -> Self {
        Self { packing, qkv: self.qkv.select(rows), a: self.a.select(rows), b: self.b.select(rows), ..self.clone() }
    }

    fn run_with<D: Device>(&self, device: &D, states: States<'_, D::State>) -> Array {
        let (qkv, a, b) = (self.qkv.upload(device), self.a.upload(device), self.b.upload(device));
        let (a_log, dt_bias) = (vector(device, &self.a_log), vector(device, &self.dt_bias));
        let mut out = device.matrix();
        device.gated_delta_rule(&self.packing, states, self.shape, &qkv, &a, &b, &a_log, &dt_bias, &mut out).unwrap();
        Array::download(device, &out)
    }
}

/// `(key_heads, value_heads, key_dim, value_dim)` below, at and above the edges of the vectors, and a real one.
pub(crate) fn gated_delta_shapes() -> Vec<GatedDeltaShape> {
    [(1, 1, 1, 1), (2, 4, 16, 24), (1, 2, 7, 65), (1, 3, 32, 64), (2, 2, 128, 128)]
        .map(|(key_heads, value_heads, key_dim, value_dim)| GatedDeltaShape {
            key_heads,
            value_heads,
            key_dim,
            value_dim,
        })
        .to_vec()
}

/// Operands of the attention.
#[derive(Clone)]
pub(crate) struct AttentionCase {
    pub(crate) packing: Packing,
    pub(crate) shape: AttentionShape,
    pub(crate) q_gate: Array,
    pub(crate) k: Array,
    pub(crate) v: Array,
    pub(crate) q_norm: Vec<f32>,
    pub(crate) k_norm: Vec<f32>,
}

impl AttentionCase {
    pub(crate) fn new(random: &mut StdRng, packing: &Packing, shape: AttentionShape) -> Self {
        let tokens = packing.tokens();
        AttentionCase {
            packing: packing.clone(),
            shape,
            q_gate: random_values(random, tokens, shape.num_attention_heads * 2 * shape.head_dim),
            k: random_values(random, tokens, shape.num_key_value_heads * shape.head_dim),
            v: random_values(random, tokens, shape.num_key_value_heads * shape.head_dim),
            q_norm: random_values(random, 1, shape.head_dim).values,
            k_norm: random_values(random, 1, shape.head_dim).values,
        }
    }
}

impl SequenceCase for AttentionCase {
    fn packing(&self) -> &Packing {
        &self.packing
    }

    fn state_shape(&self) -> StateShape {
        StateShape::Attention(self.shape)
    }

    fn select(&self, packing: Packing, rows: &[usize]) -> Self {
        Self {
            packing,
            q_gate: self.q_gate.select(rows),
            k: self.k.select(rows),
            v: self.v.select(rows),
            ..self.clone()
        }
    }

    fn run_with<D: Device>(&self, device: &D, states: States<'_, D::State>) -> Array {
        let (q_gate, k, v) = (self.q_gate.upload(device), self.k.upload(device), self.v.upload(device));
        let (q_norm, k_norm) = (vector(device, &self.q_norm), vector(device, &self.k_norm));
        let mut out = device.matrix();
        device.gated_attention(&self.packing, states, self.shape, &q_gate, &k, &v, &q_norm, &k_norm, &mut out).unwrap();
        Array::download(device, &out)
    }
}

/// Head counts and widths below, at and above the edges of the panels, without rotation, and a real one.
pub(crate) fn attention_shapes() -> Vec<AttentionShape> {
    [(1, 1, 2, 2), (4, 2, 24, 8), (2, 1, 33, 0), (3, 3, 32, 32), (4, 1, 256, 64)]
        .map(|(num_attention_heads, num_key_value_heads, head_dim, rotary_dim)| AttentionShape {
            num_attention_heads,
            num_key_value_heads,
            head_dim,
            rotary_dim,
            rope_theta: 1e7,
            rms_norm_eps: 1e-6,
        })
        .to_vec()
}
