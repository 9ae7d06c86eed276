//! The definition of every operation, in plain loops, kept for good: each faster device is tested against it.
//!
//! Operands and results are F32. Inside one operation everything is computed in F64 and rounded once, when the result
//! is stored, so that a faster device's distance from here is that device's own rounding error. Two things are F32 on
//! purpose, because the model's definition has them so: the rotary embedding's angles, and every value that passes
//! from one operation to the next. Absent on purpose: speed, threads, and `unsafe` but for the declaration of C's `erf`,
//! which std lacks.

mod kept;
mod rowwise;
mod sequence;

use std::ops::Range;

use self::kept::Whole;
use crate::checks::{self, AttentionSizes, GatedDeltaSizes, PairSizes};
use crate::host::{HostEmbedding, HostMatrix, HostState, HostVector};
use crate::{
    AttentionShape, Device, GatedDeltaShape, HostTensor, KernelError, Packing, PairGroup, RowSource, StateShape, States,
};

/// The reference device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reference;

/// A Linear weight `[out, in]`, widened to F32, row-major.
#[derive(Debug)]
pub struct ReferenceWeight {
    out: usize,
    inputs: usize,
    values: Vec<f32>,
}

impl Device for Reference {
    type Matrix = HostMatrix;
    type Weight = ReferenceWeight;
    type Vector = HostVector;
    type Embedding = HostEmbedding;
    type State = HostState;

    fn matrix(&self) -> HostMatrix {
        HostMatrix::default()
    }

    fn shape(&self, x: &HostMatrix) -> (usize, usize) {
        x.shape()
    }

    fn load_weight(&self, weight: HostTensor<'_>) -> Result<ReferenceWeight, KernelError> {
        let (out, inputs) = weight.linear_shape("load_weight")?;
        Ok(ReferenceWeight { out, inputs, values: weight.widened("load_weight")? })
    }

    fn load_vector(&self, values: HostTensor<'_>) -> Result<HostVector, KernelError> {
        values.widened("load_vector").map(HostVector)
    }

    fn load_embedding(&self, rows: Box<dyn RowSource>) -> Result<HostEmbedding, KernelError> {
        Ok(HostEmbedding(rows))
    }

    fn state(&self, shape: StateShape, tokens: usize) -> Result<HostState, KernelError> {
        Ok(HostState::new(tokens, kept::layout(shape, tokens)))
    }

    fn state_bytes(&self, shape: StateShape, tokens: usize) -> usize {
        HostState::bytes_for(kept::layout(shape, tokens))
    }

    fn embedding_gather(&self, table: &HostEmbedding, ids: &[u32], out: &mut HostMatrix) -> Result<(), KernelError> {
        table.check(ids)?;
        out.reshape(ids.len(), table.0.width());
        table.0.read_rows(ids, out.values_mut())
    }

    fn linear_each(
        &self,
        x: &HostMatrix,
        products: &mut [(&ReferenceWeight, &mut HostMatrix)],
    ) -> Result<(), KernelError> {
        let (rows, inputs) = x.shape();
        for (weight, out) in products {
            checks::dimension("linear", "columns of x", weight.inputs, inputs)?;
            out.reshape(rows, weight.out);
            for row in 0..rows {
                for column in 0..weight.out {
                    let taps = &weight.values[column * inputs..][..inputs];
                    out.row_mut(row)[column] = rowwise::dot(x.row(row), taps) as f32;
                }
            }
        }
        Ok(())
    }

    fn rms_norm(&self, x: &HostMatrix, weight: &HostVector, eps: f32, out: &mut HostMatrix) -> Result<(), KernelError> {
        let (rows, columns) = x.shape();
        checks::dimension("rms_norm", "elements of weight", columns, weight.0.len())?;
        out.reshape(rows, columns);
        for row in 0..rows {
            let normed = rowwise::rms_norm(x.row(row), eps);
            for (column, value) in normed.into_iter().enumerate() {
                out.row_mut(row)[column] = (value * (1.0 + f64::from(weight.0[column]))) as f32;
            }
        }
        Ok(())
    }

    fn add(&self, residual: &mut HostMatrix, x: &HostMatrix) -> Result<(), KernelError> {
        checks::same_shape("add", residual.shape(), x.shape())?;
        for (sum, value) in residual.values_mut().iter_mut().zip(x.values()) {
            *sum += value;
        }
        Ok(())
    }

    fn add_rms_norm(
        &self,
        residual: &mut HostMatrix,
        x: &HostMatrix,
        weight: &HostVector,
        eps: f32,
        out: &mut HostMatrix,
    ) -> Result<(), KernelError> {
        checks::same_shape("add_rms_norm", residual.shape(), x.shape())?;
        checks::dimension("add_rms_norm", "elements of weight", x.shape().1, weight.0.len())?;
        self.add(residual, x)?;
        self.rms_norm(residual, weight, eps, out)
    }

    fn silu_mul(&self, gate: &mut HostMatrix, up: &HostMatrix) -> Result<(), KernelError> {
        checks::same_shape("silu_mul", gate.shape(), up.shape())?;
        for (gate, &up) in gate.values_mut().iter_mut().zip(up.values()) {
            *gate = (rowwise::silu(f64::from(*gate)) * f64::from(up)) as f32;
        }
        Ok(())
    }

    fn causal_conv1d_silu(
        &self,
        packing: &Packing,
        states: States<'_, HostState>,
        weight: &HostVector,
        x: &HostMatrix,
        out: &mut HostMatrix,
    ) -> Result<(), KernelError> {
        let taps = checks::conv(packing, &states.sizes(), &kept::layout, weight.0.len(), x.shape())?;
        out.reshape(x.shape().0, x.shape().1);
        let whole = Whole::new(packing, &states.kept);
        let mut result = whole.result(out);
        let all = whole.operand(0..x.shape().1, x);
        sequence::causal_conv1d_silu(&whole.packing, taps, &weight.0, &all, &mut result);
        whole.copy_own(&result, out);
        kept::keep(packing, states, &[x]);
        Ok(())
    }

    fn gated_delta_rule(
        &self,
        packing: &Packing,
        states: States<'_, HostState>,
        shape: GatedDeltaShape,
        qkv: &HostMatrix,
        a: &HostMatrix,
        b: &HostMatrix,
        a_log: &HostVector,
        dt_bias: &HostVector,
        out: &mut HostMatrix,
    ) -> Result<(), KernelError> {
        let sizes = GatedDeltaSizes {
            qkv: qkv.shape(),
            a: a.shape(),
            b: b.shape(),
            a_log: a_log.0.len(),
            dt_bias: dt_bias.0.len(),
        };
        checks::gated_delta(packing, &states.sizes(), &kept::layout, shape, &sizes)?;
        out.reshape(qkv.shape().0, shape.value_heads * shape.value_dim);
        let whole = Whole::new(packing, &states.kept);
        let mut result = whole.result(out);
        let (channels, heads) = (shape.channels(), shape.value_heads);
        sequence::GatedDelta {
            shape,
            qkv: &whole.operand(0..channels, qkv),
            a: &whole.operand(channels..channels + heads, a),
            b: &whole.operand(channels + heads..channels + 2 * heads, b),
            a_log: &a_log.0,
            dt_bias: &dt_bias.0,
        }
        .run(&whole.packing, &mut result);
        whole.copy_own(&result, out);
        kept::keep(packing, states, &[qkv, a, b]);
        Ok(())
    }

    fn gated_rms_norm(
        &self,
        o: &mut HostMatrix,
        z: &HostMatrix,
        weight: &HostVector,
        eps: f32,
    ) -> Result<(), KernelError> {
        let value_dim = weight.0.len();
        checks::gated_rms_norm(o.shape(), z.shape(), value_dim)?;
        for (o, z) in o.values_mut().chunks_exact_mut(value_dim).zip(z.values().chunks_exact(value_dim)) {
            let normed = rowwise::rms_norm(o, eps);
            for column in 0..value_dim {
                let gate = rowwise::silu(f64::from(z[column]));
                o[column] = (f64::from(weight.0[column]) * normed[column] * gate) as f32;
            }
        }
        Ok(())
    }

    fn gated_attention(
        &self,
        packing: &Packing,
        states: States<'_, HostState>,
        shape: AttentionShape,
        q_gate: &HostMatrix,
        k: &HostMatrix,
        v: &HostMatrix,
        q_norm: &HostVector,
        k_norm: &HostVector,
        out: &mut HostMatrix,
    ) -> Result<(), KernelError> {
        let sizes = AttentionSizes {
            q_gate: q_gate.shape(),
            k: k.shape(),
            v: v.shape(),
            q_norm: q_norm.0.len(),
            k_norm: k_norm.0.len(),
        };
        checks::gated_attention(packing, &states.sizes(), &kept::layout, shape, &sizes)?;
        out.reshape(q_gate.shape().0, shape.num_attention_heads * shape.head_dim);
        let whole = Whole::new(packing, &states.kept);
        let mut result = whole.result(out);
        let width = k.shape().1;
        sequence::Attention {
            shape,
            // Nobody asks for the result of a kept token, so its query may be anything.
            q_gate: &whole.operand_of_own(q_gate),
            k: &whole.operand(0..width, k),
            v: &whole.operand(width..2 * width, v),
            q_norm: &q_norm.0,
            k_norm: &k_norm.0,
        }
        .run(&whole.packing, &mut result);
        whole.copy_own(&result, out);
        kept::keep(packing, states, &[k, v]);
        Ok(())
    }

    fn gather_rows(&self, x: &HostMatrix, rows: &[u32], out: &mut HostMatrix) -> Result<(), KernelError> {
        checks::indices("gather_rows", "row", rows, x.shape().0)?;
        out.reshape(rows.len(), x.shape().1);
        for (target, &row) in rows.iter().enumerate() {
            out.row_mut(target).copy_from_slice(x.row(row as usize));
        }
        Ok(())
    }

    fn mean_rows(&self, x: &HostMatrix, ranges: &[Range<u32>], out: &mut HostMatrix) -> Result<(), KernelError> {
        ranges.iter().try_for_each(|range| checks::range("mean_rows", range, x.shape().0))?;
        out.reshape(ranges.len(), x.shape().1);
        for (target, range) in ranges.iter().enumerate() {
            for (column, mean) in rowwise::mean_row(x, range).into_iter().enumerate() {
                out.row_mut(target)[column] = mean as f32;
            }
        }
        Ok(())
    }

    fn layer_norm(
        &self,
        x: &HostMatrix,
        weight: &HostVector,
        bias: &HostVector,
        eps: f32,
        out: &mut HostMatrix,
    ) -> Result<(), KernelError> {
        let (rows, columns) = x.shape();
        checks::dimension("layer_norm", "elements of weight", columns, weight.0.len())?;
        checks::dimension("layer_norm", "elements of bias", columns, bias.0.len())?;
        out.reshape(rows, columns);
        for row in 0..rows {
            for (column, value) in rowwise::standardised(x.row(row), eps).into_iter().enumerate() {
                let scaled = value * f64::from(weight.0[column]) + f64::from(bias.0[column]);
                out.row_mut(row)[column] = scaled as f32;
            }
        }
        Ok(())
    }

    fn center_rows(&self, x: &mut HostMatrix, groups: &[Range<u32>]) -> Result<(), KernelError> {
        checks::disjoint_ranges("center_rows", groups, x.shape().0)?;
        for group in groups {
            let mean = rowwise::mean_row(x, group);
            for row in group.start..group.end {
                for (value, mean) in x.row_mut(row as usize).iter_mut().zip(&mean) {
                    *value = (f64::from(*value) - mean) as f32;
                }
            }
        }
        Ok(())
    }

    fn add_slots(&self, x: &mut HostMatrix, table: &HostVector, index: &[u32]) -> Result<(), KernelError> {
        let (_, columns) = x.shape();
        checks::slots(x.shape(), table.0.len(), index)?;
        for (row, &slot) in index.iter().enumerate() {
            for (column, value) in x.row_mut(row).iter_mut().enumerate() {
                *value += table.0[slot as usize * columns + column];
            }
        }
        Ok(())
    }

    fn add_bias(&self, x: &mut HostMatrix, bias: &HostVector) -> Result<(), KernelError> {
        let (rows, columns) = x.shape();
        checks::dimension("add_bias", "elements of bias", columns, bias.0.len())?;
        for row in 0..rows {
            for (value, bias) in x.row_mut(row).iter_mut().zip(&bias.0) {
                *value += bias;
            }
        }
        Ok(())
    }

    fn pair_scores(
        &self,
        groups: &[PairGroup],
        left_dot: &HostMatrix,
        left_mlp: &HostMatrix,
        right_dot: &HostMatrix,
        right_mlp: &HostMatrix,
        scalar: &HostVector,
        out: &mut Vec<f32>,
    ) -> Result<(), KernelError> {
        let sizes = PairSizes {
            left_dot: left_dot.shape(),
            left_mlp: left_mlp.shape(),
            right_dot: right_dot.shape(),
            right_mlp: right_mlp.shape(),
            scalar: scalar.0.len(),
        };
        checks::pair_scores(groups, &sizes)?;
        out.clear();
        for group in groups {
            for left in group.left.clone().map(|row| row as usize) {
                for right in group.right.clone().map(|row| row as usize) {
                    let dot = rowwise::dot(left_dot.row(left), right_dot.row(right));
                    let mlp = rowwise::gelu_sum(left_mlp.row(left), right_mlp.row(right), &scalar.0);
                    out.push((dot / (left_dot.shape().1 as f64).sqrt() + mlp) as f32);
                }
            }
        }
        Ok(())
    }

    fn download(&self, x: &HostMatrix, out: &mut Vec<f32>) -> Result<(), KernelError> {
        out.clear();
        out.extend_from_slice(x.values());
        Ok(())
    }

    fn upload(&self, values: &[f32], rows: usize, columns: usize, out: &mut HostMatrix) -> Result<(), KernelError> {
        checks::dimension("upload", "elements", checks::product(&[rows, columns]), values.len())?;
        out.reshape(rows, columns);
        out.values_mut().copy_from_slice(values);
        Ok(())
    }
}
