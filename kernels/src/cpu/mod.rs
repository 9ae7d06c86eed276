//! The operations on processors, as they serve.
//!
//! One [`CpuDevice`] has one pool of pinned threads, one instruction set, and scratch memory that grows to the largest
//! batch and stays. Invariant: a result for a token depends only on its own sequence and prefix, bit for bit: work is
//! split between elements of a result, never inside a sum.
//!
//! Weights may be BF16 in memory; products and sums are F32, and F64 where the heads could lose digits (see `heads`). A
//! device that is made so ([`CpuDevice::in_bf16`]) rounds what it multiplies with BF16 weights to BF16 as well.

// What a kernel calls must be inlined into the function that enables its instruction set: see `simd`.
#![allow(clippy::inline_always)]

mod aligned;
mod attention;
mod conv;
mod embedding;
mod footprint;
mod gated_delta;
mod gemm;
mod heads;
mod lease;
mod math;
mod norm;
mod peak;
mod pool;
mod shared;
mod simd;

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use footprint::CpuDemand;
pub use gemm::CpuWeight;
pub use simd::Isa;
#[cfg(target_arch = "x86_64")]
pub use simd::{Avx2, Avx512};

use crate::checks::{self, AttentionSizes, GatedDeltaSizes, PairSizes};
use crate::host::{HostEmbedding, HostMatrix, HostState, HostVector};
use crate::rotary::{Rotary, RotaryTable};
use crate::{
    AttentionShape, DType, Device, GatedDeltaShape, HostTensor, KernelError, Packing, PairGroup, RowSource, StateShape,
    States,
};

/// Some cores of this machine, as a device.
pub struct CpuDevice {
    pool: pool::Pool,
    isa: Isa,
    rounds_inputs: bool,
    scratch: Mutex<Scratch>,
}

/// Memory that operations reuse. Nothing in it outlives an operation but the rotary table.
#[derive(Default)]
struct Scratch {
    embedding: embedding::DistinctRows,
    lhs: gemm::Lhs,
    gated_delta: gated_delta::GatedDeltaScratch,
    attention: attention::AttentionScratch,
    rotary: RotaryTable,
}

impl CpuDevice {
    /// Starts one thread on each of `cores`, with the fastest instruction set of this machine.
    ///
    /// # Errors
    /// [`KernelError::Resource`] if `cores` is empty or has a core that this process may not use, or if a thread cannot
    /// be started or pinned.
    pub fn new(cores: &[usize]) -> Result<Self, KernelError> {
        Self::with_isa(cores, Isa::best())
    }

    /// As [`CpuDevice::new`], with a given instruction set.
    pub fn with_isa(cores: &[usize], isa: Isa) -> Result<Self, KernelError> {
        Ok(CpuDevice { pool: pool::Pool::new(cores)?, isa, rounds_inputs: false, scratch: Mutex::default() })
    }

    /// The same device with products of BF16 weights in BF16: their left operand is rounded to BF16 (to nearest, ties to
    /// even), and what remains is exact: the product of two BF16 values is an F32, and sums are F32. Products of F32 weights
    /// stay as they are.
    #[must_use]
    pub fn in_bf16(mut self) -> Self {
        self.rounds_inputs = true;
        self
    }

    /// The cores that this process may use, in ascending order.
    ///
    /// # Errors
    /// [`KernelError::Resource`] if the system does not say.
    pub fn available_cores() -> Result<Vec<usize>, KernelError> {
        pool::available_cores()
    }

    /// The instruction set that the device computes with, for logs.
    pub fn isa(&self) -> &'static str {
        self.isa.name()
    }

    fn scratch(&self) -> MutexGuard<'_, Scratch> {
        // What an operation that panicked left behind is overwritten like any other old contents.
        self.scratch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Isa {
    /// The shape of a state of a prefix of `tokens` tokens.
    fn state_layout(self, shape: StateShape, tokens: usize) -> checks::Shape {
        match shape {
            StateShape::Conv { channels, taps } => conv::state_layout(channels, taps, tokens),
            StateShape::GatedDelta(shape) => gated_delta::state_layout(shape, self),
            StateShape::Attention(shape) => attention::state_layout(shape, self, tokens),
        }
    }
}

impl Device for CpuDevice {
    type Matrix = HostMatrix;
    type Weight = CpuWeight;
    type Vector = HostVector;
    type Embedding = HostEmbedding;
    type State = HostState;

    fn matrix(&self) -> HostMatrix {
        HostMatrix::default()
    }

    fn shape(&self, x: &HostMatrix) -> (usize, usize) {
        x.shape()
    }

    fn load_weight(&self, weight: HostTensor<'_>) -> Result<CpuWeight, KernelError> {
        CpuWeight::pack(&self.pool, self.isa, weight)
    }

    fn load_vector(&self, values: HostTensor<'_>) -> Result<HostVector, KernelError> {
        values.widened("load_vector").map(HostVector)
    }

    fn load_embedding(&self, rows: Box<dyn RowSource>) -> Result<HostEmbedding, KernelError> {
        Ok(HostEmbedding(rows))
    }

    fn state(&self, shape: StateShape, tokens: usize) -> Result<HostState, KernelError> {
        Ok(HostState::new(tokens, self.isa.state_layout(shape, tokens)))
    }

    fn state_bytes(&self, shape: StateShape, tokens: usize) -> usize {
        HostState::bytes_for(self.isa.state_layout(shape, tokens))
    }

    fn embedding_gather(&self, table: &HostEmbedding, ids: &[u32], out: &mut HostMatrix) -> Result<(), KernelError> {
        table.check(ids)?;
        self.scratch().embedding.gather(&self.pool, table, ids, out)
    }

    fn linear_each(&self, x: &HostMatrix, products: &mut [(&CpuWeight, &mut HostMatrix)]) -> Result<(), KernelError> {
        let rounds = self.rounds_inputs && products.iter().all(|(weight, _)| weight.dtype() == DType::Bf16);
        gemm::linear_each(&self.pool, self.isa, x, products, rounds, &mut self.scratch().lhs)
    }

    fn rms_norm(&self, x: &HostMatrix, weight: &HostVector, eps: f32, out: &mut HostMatrix) -> Result<(), KernelError> {
        let (rows, columns) = x.shape();
        checks::dimension("rms_norm", "elements of weight", columns, weight.0.len())?;
        out.reshape(rows, columns);
        self.pool.for_each_row(out, |row, out| {
            self.isa.run(norm::RmsNormRow { x: x.row(row), weight: &weight.0, eps, out });
        });
        Ok(())
    }

    fn add(&self, residual: &mut HostMatrix, x: &HostMatrix) -> Result<(), KernelError> {
        checks::same_shape("add", residual.shape(), x.shape())?;
        self.pool.for_each_row(residual, |row, residual| self.isa.run(norm::AddRow { residual, x: x.row(row) }));
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
        let (rows, columns) = x.shape();
        checks::same_shape("add_rms_norm", residual.shape(), x.shape())?;
        checks::dimension("add_rms_norm", "elements of weight", columns, weight.0.len())?;
        out.reshape(rows, columns);
        self.pool.for_each_row_pair(residual, out, |row, residual, out| {
            self.isa.run(norm::AddRow { residual, x: x.row(row) });
            self.isa.run(norm::RmsNormRow { x: residual, weight: &weight.0, eps, out });
        });
        Ok(())
    }

    fn silu_mul(&self, gate: &mut HostMatrix, up: &HostMatrix) -> Result<(), KernelError> {
        checks::same_shape("silu_mul", gate.shape(), up.shape())?;
        self.pool.for_each_row(gate, |row, gate| self.isa.run(norm::SiluMulRow { gate, up: up.row(row) }));
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
        checks::conv(
            packing,
            &states.sizes(),
            &|shape, tokens| self.isa.state_layout(shape, tokens),
            weight.0.len(),
            x.shape(),
        )?;
        out.reshape(x.shape().0, x.shape().1);
        conv::causal_conv1d_silu(&self.pool, self.isa, packing, states, &weight.0, x, out);
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
        checks::gated_delta(
            packing,
            &states.sizes(),
            &|shape, tokens| self.isa.state_layout(shape, tokens),
            shape,
            &sizes,
        )?;
        out.reshape(qkv.shape().0, shape.value_heads * shape.value_dim);
        let operands = gated_delta::GatedDelta { shape, qkv, a, b, a_log: &a_log.0, dt_bias: &dt_bias.0 };
        operands.run(&self.pool, self.isa, packing, states, &mut self.scratch().gated_delta, out);
        Ok(())
    }

    fn gated_rms_norm(
        &self,
        o: &mut HostMatrix,
        z: &HostMatrix,
        weight: &HostVector,
        eps: f32,
    ) -> Result<(), KernelError> {
        checks::gated_rms_norm(o.shape(), z.shape(), weight.0.len())?;
        self.pool.for_each_row(o, |row, o| {
            self.isa.run(norm::GatedRmsNormRow { o, z: z.row(row), weight: &weight.0, eps });
        });
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
        checks::gated_attention(
            packing,
            &states.sizes(),
            &|shape, tokens| self.isa.state_layout(shape, tokens),
            shape,
            &sizes,
        )?;
        out.reshape(q_gate.shape().0, shape.num_attention_heads * shape.head_dim);
        let mut scratch = self.scratch();
        let Scratch { attention, rotary, .. } = &mut *scratch;
        let positions = packing.sequences.iter().map(|sequence| sequence.position + sequence.len).max().unwrap_or(0);
        self.pool.run(|| rotary.cover(Rotary::new(shape.rotary_dim, shape.rope_theta), positions));
        let (q_norm, k_norm) = (&q_norm.0, &k_norm.0);
        let operands = attention::Attention { shape, q_gate, k, v, q_norm, k_norm, rotary };
        operands.run(&self.pool, self.isa, packing, states, attention, out);
        Ok(())
    }

    fn gather_rows(&self, x: &HostMatrix, rows: &[u32], out: &mut HostMatrix) -> Result<(), KernelError> {
        checks::indices("gather_rows", "row", rows, x.shape().0)?;
        out.reshape(rows.len(), x.shape().1);
        self.pool.for_each_row(out, |row, out| out.copy_from_slice(x.row(rows[row] as usize)));
        Ok(())
    }

    fn mean_rows(&self, x: &HostMatrix, ranges: &[Range<u32>], out: &mut HostMatrix) -> Result<(), KernelError> {
        ranges.iter().try_for_each(|range| checks::range("mean_rows", range, x.shape().0))?;
        out.reshape(ranges.len(), x.shape().1);
        heads::mean_rows(&self.pool, x, ranges, out);
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
        self.pool.for_each_row(out, |row, out| {
            self.isa.run(heads::LayerNormRow { x: x.row(row), weight: &weight.0, bias: &bias.0, eps, out });
        });
        Ok(())
    }

    fn center_rows(&self, x: &mut HostMatrix, groups: &[Range<u32>]) -> Result<(), KernelError> {
        checks::disjoint_ranges("center_rows", groups, x.shape().0)?;
        heads::center_rows(&self.pool, x, groups);
        Ok(())
    }

    fn add_slots(&self, x: &mut HostMatrix, table: &HostVector, index: &[u32]) -> Result<(), KernelError> {
        let (_, columns) = x.shape();
        checks::slots(x.shape(), table.0.len(), index)?;
        self.pool.for_each_row(x, |row, residual| {
            let slot = &table.0[index[row] as usize * columns..][..columns];
            self.isa.run(norm::AddRow { residual, x: slot });
        });
        Ok(())
    }

    fn add_bias(&self, x: &mut HostMatrix, bias: &HostVector) -> Result<(), KernelError> {
        checks::dimension("add_bias", "elements of bias", x.shape().1, bias.0.len())?;
        self.pool.for_each_row(x, |_, residual| self.isa.run(norm::AddRow { residual, x: &bias.0 }));
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
        let operands = heads::PairScores { left_dot, left_mlp, right_dot, right_mlp, scalar: &scalar.0 };
        operands.run(&self.pool, self.isa, groups, out);
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
