//! The three operations in which a token depends on the tokens before it.

use crate::host::HostMatrix;
use crate::reference::rowwise;
use crate::rotary::Rotary;
use crate::{AttentionShape, GatedDeltaShape, Packing, Parent, Sequence};

/// The row of each token that `sequence` sees, oldest first: its parent's tokens, then its own.
fn visible_rows(packing: &Packing, sequence: &Sequence) -> Vec<usize> {
    let prefix = match sequence.parent {
        None => 0..0,
        Some(Parent::Sequence(parent)) => {
            let Sequence { start, len, .. } = packing.sequences[parent];
            start..start + len
        }
        Some(Parent::Kept(_)) => unreachable!("kept prefixes stand before the batch as sequences of it"),
    };
    prefix.chain(sequence.start..sequence.start + sequence.len).collect()
}

/// The checked operation of [`crate::Device::causal_conv1d_silu`].
pub(super) fn causal_conv1d_silu(packing: &Packing, taps: usize, weight: &[f32], x: &HostMatrix, out: &mut HostMatrix) {
    for sequence in &packing.sequences {
        let visible = visible_rows(packing, sequence);
        for t in visible.len() - sequence.len..visible.len() {
            for channel in 0..x.shape().1 {
                let mut sum = 0.0;
                for tap in 0..taps {
                    if t + tap + 1 >= taps {
                        let input = x.row(visible[t + tap + 1 - taps])[channel];
                        sum += f64::from(weight[channel * taps + tap]) * f64::from(input);
                    }
                }
                out.row_mut(visible[t])[channel] = rowwise::silu(sum) as f32;
            }
        }
    }
}

/// The operands of [`crate::Device::gated_delta_rule`], checked.
pub(super) struct GatedDelta<'a> {
    pub(super) shape: GatedDeltaShape,
    pub(super) qkv: &'a HostMatrix,
    pub(super) a: &'a HostMatrix,
    pub(super) b: &'a HostMatrix,
    pub(super) a_log: &'a [f32],
    pub(super) dt_bias: &'a [f32],
}

impl GatedDelta<'_> {
    /// Every sequence and value head on its own, its prefix recomputed from the zero state.
    pub(super) fn run(&self, packing: &Packing, out: &mut HostMatrix) {
        for sequence in &packing.sequences {
            for head in 0..self.shape.value_heads {
                let mut state = vec![0.0; self.shape.key_dim * self.shape.value_dim];
                for row in visible_rows(packing, sequence) {
                    let o = self.step(&mut state, row, head);
                    if row >= sequence.start {
                        out.row_mut(row)[head * self.shape.value_dim..][..self.shape.value_dim].copy_from_slice(&o);
                    }
                }
            }
        }
    }

    /// One token: updates the state `[key_dim, value_dim]` and returns `o` `[value_dim]`.
    fn step(&self, state: &mut [f64], row: usize, head: usize) -> Vec<f32> {
        let GatedDeltaShape { key_heads, value_heads, key_dim, value_dim } = self.shape;
        let key_head = head / (value_heads / key_heads);
        let qkv = self.qkv.row(row);
        let q = rowwise::l2_norm(&qkv[key_head * key_dim..][..key_dim]);
        let k = rowwise::l2_norm(&qkv[(key_heads + key_head) * key_dim..][..key_dim]);
        let v = &qkv[2 * key_heads * key_dim + head * value_dim..][..value_dim];
        let beta = rowwise::sigmoid(f64::from(self.b.row(row)[head]));
        let step_size = rowwise::softplus(f64::from(self.a.row(row)[head]) + f64::from(self.dt_bias[head]));
        let decay = (-f64::from(self.a_log[head]).exp() * step_size).exp();

        let mut o = Vec::with_capacity(value_dim);
        for column in 0..value_dim {
            let mut remembered = 0.0;
            for i in 0..key_dim {
                state[i * value_dim + column] *= decay;
                remembered += state[i * value_dim + column] * k[i];
            }
            let update = beta * (f64::from(v[column]) - remembered);
            let mut read = 0.0;
            for i in 0..key_dim {
                state[i * value_dim + column] += k[i] * update;
                read += state[i * value_dim + column] * q[i];
            }
            o.push((read / (key_dim as f64).sqrt()) as f32);
        }
        o
    }
}

/// The operands of [`crate::Device::gated_attention`], checked.
pub(super) struct Attention<'a> {
    pub(super) shape: AttentionShape,
    pub(super) q_gate: &'a HostMatrix,
    pub(super) k: &'a HostMatrix,
    pub(super) v: &'a HostMatrix,
    pub(super) q_norm: &'a [f32],
    pub(super) k_norm: &'a [f32],
}

impl Attention<'_> {
    /// Every query on its own, with all its scores at once.
    pub(super) fn run(&self, packing: &Packing, out: &mut HostMatrix) {
        let rotary = Rotary::new(self.shape.rotary_dim, self.shape.rope_theta);
        let AttentionShape { num_attention_heads, num_key_value_heads, head_dim, .. } = self.shape;
        for sequence in &packing.sequences {
            let visible = visible_rows(packing, sequence);
            for kv_head in 0..num_key_value_heads {
                let keys: Vec<Vec<f64>> = visible
                    .iter()
                    .enumerate()
                    .map(|(position, &row)| {
                        let key = &self.k.row(row)[kv_head * head_dim..][..head_dim];
                        self.normed_and_rotated(key, self.k_norm, position, &rotary)
                    })
                    .collect();
                let group = num_attention_heads / num_key_value_heads;
                for head in kv_head * group..(kv_head + 1) * group {
                    for position in sequence.position..visible.len() {
                        let query = &self.q_gate.row(visible[position])[2 * head * head_dim..][..head_dim];
                        let query = self.normed_and_rotated(query, self.q_norm, position, &rotary);
                        let probabilities = self.probabilities(&query, &keys[..=position]);
                        self.mix(&probabilities, &visible, (head, kv_head), out);
                    }
                }
            }
        }
    }

    fn normed_and_rotated(&self, head: &[f32], weight: &[f32], position: usize, rotary: &Rotary) -> Vec<f64> {
        let normed = rowwise::rms_norm(head, self.shape.rms_norm_eps);
        let x: Vec<f64> = normed.iter().zip(weight).map(|(x, &weight)| x * (1.0 + f64::from(weight))).collect();
        let mut rotated = x.clone();
        let half = self.shape.rotary_dim / 2;
        for pair in 0..half {
            let (cos, sin) = rotary.cos_sin(position, pair);
            let (cos, sin) = (f64::from(cos), f64::from(sin));
            rotated[pair] = x[pair] * cos - x[pair + half] * sin;
            rotated[pair + half] = x[pair + half] * cos + x[pair] * sin;
        }
        rotated
    }

    /// Softmax of the query's scores with every key it sees.
    fn probabilities(&self, query: &[f64], keys: &[Vec<f64>]) -> Vec<f64> {
        let scale = 1.0 / (self.shape.head_dim as f64).sqrt();
        let dot = |key: &Vec<f64>| query.iter().zip(key).map(|(q, k)| q * k).sum::<f64>();
        let scores: Vec<f64> = keys.iter().map(|key| dot(key) * scale).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let exponentials: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
        let total: f64 = exponentials.iter().sum();
        exponentials.into_iter().map(|value| value / total).collect()
    }

    /// Writes `sigmoid(gate) · Σ_j probabilities[j] · v[j]` of the query that sees `probabilities.len()` tokens.
    fn mix(&self, probabilities: &[f64], visible: &[usize], heads: (usize, usize), out: &mut HostMatrix) {
        let (head, kv_head) = heads;
        let head_dim = self.shape.head_dim;
        let row = visible[probabilities.len() - 1];
        for column in 0..head_dim {
            let mut sum = 0.0;
            for (probability, &key_row) in probabilities.iter().zip(visible) {
                sum += probability * f64::from(self.v.row(key_row)[kv_head * head_dim + column]);
            }
            let gate = self.q_gate.row(row)[(2 * head + 1) * head_dim + column];
            out.row_mut(row)[head * head_dim + column] = (sum * rowwise::sigmoid(f64::from(gate))) as f32;
        }
    }
}
