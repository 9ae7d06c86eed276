//! A device that keeps account of what each operation costs.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use synod_kernels::{
    AttentionShape, Device, GatedDeltaShape, HostTensor, KernelError, Packing, PairGroup, RowSource, StateShape, States,
};

/// What an operation is counted as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Embedding rows from their file.
    Embedding,
    /// The backbone's Linear layers.
    Gemm,
    /// The convolution before the gated delta rule.
    Conv,
    GatedDelta,
    Attention,
    /// Norms, residuals, gates and gathered rows of the backbone.
    Rows,
    /// Everything after the final norm.
    Heads,
}

impl Phase {
    pub(crate) const ALL: [Phase; 7] =
        [Phase::Embedding, Phase::Gemm, Phase::Conv, Phase::GatedDelta, Phase::Attention, Phase::Rows, Phase::Heads];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Phase::Embedding => "embedding",
            Phase::Gemm => "gemm",
            Phase::Conv => "conv",
            Phase::GatedDelta => "gdn",
            Phase::Attention => "attention",
            Phase::Rows => "rows",
            Phase::Heads => "heads",
        }
    }
}

/// Time and work of one phase.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    pub(crate) time: Duration,
    /// Floating-point operations of the definition, two for a multiply-add: of the matrix products `2 · m · n · k`, of
    /// the gated delta rule `6 · key_dim · value_dim` per token and value head, of attention `4 · head_dim` per query
    /// head, query and key that it sees. Everything else is counted as none.
    pub(crate) operations: u64,
}

/// The costs of every phase since the account was taken last.
#[derive(Clone, Default)]
pub(crate) struct Account(Arc<Mutex<Entries>>);

#[derive(Default)]
struct Entries {
    costs: [Cost; Phase::ALL.len()],
    in_heads: bool,
}

impl Account {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The costs in the order of [`Phase::ALL`]; the account is empty afterwards.
    pub(crate) fn take(&self) -> [Cost; Phase::ALL.len()] {
        std::mem::take(&mut self.entries().costs)
    }

    /// Does some work and books it. After the backbone's last operation everything is the heads'.
    fn book<R>(&self, phase: Phase, operations: u64, work: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = work();
        let time = start.elapsed();
        let mut entries = self.entries();
        match phase {
            Phase::Embedding => entries.in_heads = false,
            Phase::Heads => entries.in_heads = true,
            _ => {}
        }
        let phase = if entries.in_heads { Phase::Heads } else { phase };
        let cost = &mut entries.costs[phase as usize];
        cost.time += time;
        cost.operations += operations;
        result
    }
}

/// Another device, and the account of what it does.
pub(crate) struct Timed<D> {
    device: D,
    account: Account,
}

impl<D> Timed<D> {
    pub(crate) fn new(device: D) -> (Self, Account) {
        let account = Account::default();
        (Timed { device, account: account.clone() }, account)
    }
}

/// A Linear weight that knows its shape.
pub(crate) struct Weight<W> {
    weight: W,
    elements: u64,
}

/// Query-key pairs of causal attention over every sequence and its parent.
fn pairs(packing: &Packing) -> u64 {
    let pairs = |len: usize, before: usize| (len * before + len * (len + 1) / 2) as u64;
    packing.sequences.iter().map(|sequence| pairs(sequence.len, sequence.position)).sum()
}

impl<D: Device> Device for Timed<D> {
    type Matrix = D::Matrix;
    type Weight = Weight<D::Weight>;
    type Vector = D::Vector;
    type Embedding = D::Embedding;
    type State = D::State;

    fn matrix(&self) -> Self::Matrix {
        self.device.matrix()
    }

    fn shape(&self, x: &Self::Matrix) -> (usize, usize) {
        self.device.shape(x)
    }

    fn load_weight(&self, weight: HostTensor<'_>) -> Result<Self::Weight, KernelError> {
        let elements = weight.shape.iter().product::<usize>() as u64;
        Ok(Weight { weight: self.device.load_weight(weight)?, elements })
    }

    fn load_vector(&self, values: HostTensor<'_>) -> Result<Self::Vector, KernelError> {
        self.device.load_vector(values)
    }

    fn load_embedding(&self, rows: Box<dyn RowSource>) -> Result<Self::Embedding, KernelError> {
        self.device.load_embedding(rows)
    }

    fn state(&self, shape: StateShape, tokens: usize) -> Result<Self::State, KernelError> {
        self.device.state(shape, tokens)
    }

    fn state_bytes(&self, shape: StateShape, tokens: usize) -> usize {
        self.device.state_bytes(shape, tokens)
    }

    fn embedding_gather(
        &self,
        table: &Self::Embedding,
        ids: &[u32],
        out: &mut Self::Matrix,
    ) -> Result<(), KernelError> {
        self.account.book(Phase::Embedding, 0, || self.device.embedding_gather(table, ids, out))
    }

    fn linear_each(
        &self,
        x: &Self::Matrix,
        products: &mut [(&Self::Weight, &mut Self::Matrix)],
    ) -> Result<(), KernelError> {
        let elements: u64 = products.iter().map(|(weight, _)| weight.elements).sum();
        let operations = 2 * self.device.shape(x).0 as u64 * elements;
        let mut products: Vec<_> = products.iter_mut().map(|(weight, out)| (&weight.weight, &mut **out)).collect();
        self.account.book(Phase::Gemm, operations, || self.device.linear_each(x, &mut products))
    }

    fn rms_norm(
        &self,
        x: &Self::Matrix,
        weight: &Self::Vector,
        eps: f32,
        out: &mut Self::Matrix,
    ) -> Result<(), KernelError> {
        self.account.book(Phase::Rows, 0, || self.device.rms_norm(x, weight, eps, out))
    }

    fn add(&self, residual: &mut Self::Matrix, x: &Self::Matrix) -> Result<(), KernelError> {
        self.account.book(Phase::Rows, 0, || self.device.add(residual, x))
    }

    fn add_rms_norm(
        &self,
        residual: &mut Self::Matrix,
        x: &Self::Matrix,
        weight: &Self::Vector,
        eps: f32,
        out: &mut Self::Matrix,
    ) -> Result<(), KernelError> {
        self.account.book(Phase::Rows, 0, || self.device.add_rms_norm(residual, x, weight, eps, out))
    }

    fn silu_mul(&self, gate: &mut Self::Matrix, up: &Self::Matrix) -> Result<(), KernelError> {
        self.account.book(Phase::Rows, 0, || self.device.silu_mul(gate, up))
    }

    fn causal_conv1d_silu(
        &self,
        packing: &Packing,
        states: States<'_, Self::State>,
        weight: &Self::Vector,
        x: &Self::Matrix,
        out: &mut Self::Matrix,
    ) -> Result<(), KernelError> {
        self.account.book(Phase::Conv, 0, || self.device.causal_conv1d_silu(packing, states, weight, x, out))
    }

    fn gated_delta_rule(
        &self,
        packing: &Packing,
        states: States<'_, Self::State>,
        shape: GatedDeltaShape,
        qkv: &Self::Matrix,
        a: &Self::Matrix,
        b: &Self::Matrix,
        a_log: &Self::Vector,
        dt_bias: &Self::Vector,
        out: &mut Self::Matrix,
    ) -> Result<(), KernelError> {
        let per_token = 6 * shape.value_heads * shape.key_dim * shape.value_dim;
        self.account.book(Phase::GatedDelta, (packing.tokens() * per_token) as u64, || {
            self.device.gated_delta_rule(packing, states, shape, qkv, a, b, a_log, dt_bias, out)
        })
    }

    fn gated_rms_norm(
        &self,
        o: &mut Self::Matrix,
        z: &Self::Matrix,
        weight: &Self::Vector,
        eps: f32,
    ) -> Result<(), KernelError> {
        self.account.book(Phase::Rows, 0, || self.device.gated_rms_norm(o, z, weight, eps))
    }

    fn gated_attention(
        &self,
        packing: &Packing,
        states: States<'_, Self::State>,
        shape: AttentionShape,
        q_gate: &Self::Matrix,
        k: &Self::Matrix,
        v: &Self::Matrix,
        q_norm: &Self::Vector,
        k_norm: &Self::Vector,
        out: &mut Self::Matrix,
    ) -> Result<(), KernelError> {
        let per_pair = 4 * shape.num_attention_heads * shape.head_dim;
        self.account.book(Phase::Attention, pairs(packing) * per_pair as u64, || {
            self.device.gated_attention(packing, states, shape, q_gate, k, v, q_norm, k_norm, out)
        })
    }

    fn gather_rows(&self, x: &Self::Matrix, rows: &[u32], out: &mut Self::Matrix) -> Result<(), KernelError> {
        self.account.book(Phase::Rows, 0, || self.device.gather_rows(x, rows, out))
    }

    fn mean_rows(&self, x: &Self::Matrix, ranges: &[Range<u32>], out: &mut Self::Matrix) -> Result<(), KernelError> {
        self.account.book(Phase::Heads, 0, || self.device.mean_rows(x, ranges, out))
    }

    fn layer_norm(
        &self,
        x: &Self::Matrix,
        weight: &Self::Vector,
        bias: &Self::Vector,
        eps: f32,
        out: &mut Self::Matrix,
    ) -> Result<(), KernelError> {
        self.account.book(Phase::Heads, 0, || self.device.layer_norm(x, weight, bias, eps, out))
    }

    fn center_rows(&self, x: &mut Self::Matrix, groups: &[Range<u32>]) -> Result<(), KernelError> {
        self.account.book(Phase::Heads, 0, || self.device.center_rows(x, groups))
    }

    fn add_slots(&self, x: &mut Self::Matrix, table: &Self::Vector, index: &[u32]) -> Result<(), KernelError> {
        self.account.book(Phase::Heads, 0, || self.device.add_slots(x, table, index))
    }

    fn add_bias(&self, x: &mut Self::Matrix, bias: &Self::Vector) -> Result<(), KernelError> {
        self.account.book(Phase::Heads, 0, || self.device.add_bias(x, bias))
    }

    fn pair_scores(
        &self,
        groups: &[PairGroup],
        left_dot: &Self::Matrix,
        left_mlp: &Self::Matrix,
        right_dot: &Self::Matrix,
        right_mlp: &Self::Matrix,
        scalar: &Self::Vector,
        out: &mut Vec<f32>,
    ) -> Result<(), KernelError> {
        self.account.book(Phase::Heads, 0, || {
            self.device.pair_scores(groups, left_dot, left_mlp, right_dot, right_mlp, scalar, out)
        })
    }

    fn download(&self, x: &Self::Matrix, out: &mut Vec<f32>) -> Result<(), KernelError> {
        self.device.download(x, out)
    }

    fn upload(&self, values: &[f32], rows: usize, columns: usize, out: &mut Self::Matrix) -> Result<(), KernelError> {
        self.device.upload(values, rows, columns, out)
    }
}

#[cfg(test)]
mod tests {
    use synod_kernels::cpu::CpuDevice;
    use synod_kernels::{DType, Parent, Sequence};

    use super::*;

    #[test]
    fn every_query_is_paired_with_what_it_sees() {
        let block = |start, len| Sequence { start, len, parent: Some(Parent::Sequence(0)), position: 3 };
        let prefix = Sequence { start: 0, len: 3, parent: None, position: 0 };
        let packing = Packing { sequences: vec![prefix, block(3, 2), block(5, 1)], keep: vec![] };
        assert_eq!(pairs(&packing), 1 + 2 + 3 + (4 + 5) + 4);
    }

    /// The heads' Linear layers are not the backbone's.
    #[test]
    fn what_follows_a_layer_norm_is_the_heads() {
        let cores = CpuDevice::available_cores().unwrap();
        let (device, account) = Timed::new(CpuDevice::new(&cores[..1]).unwrap());
        let ones = |shape: &'static [usize]| (shape, 1.0_f32.to_le_bytes().repeat(shape.iter().product()));
        let (shape, bytes) = ones(&[3, 2]);
        let weight = device.load_weight(HostTensor { dtype: DType::F32, shape, bytes: &bytes }).unwrap();
        let (shape, bytes) = ones(&[2]);
        let vector = device.load_vector(HostTensor { dtype: DType::F32, shape, bytes: &bytes }).unwrap();
        let (mut x, mut normed, mut out) = (device.matrix(), device.matrix(), device.matrix());
        device.upload(&[1.0; 10], 5, 2, &mut x).unwrap();

        device.linear(&weight, &x, &mut out).unwrap();
        device.layer_norm(&x, &vector, &vector, 1e-5, &mut normed).unwrap();
        device.linear(&weight, &normed, &mut out).unwrap();
        device.linear(&weight, &normed, &mut out).unwrap();
        let operations = |costs: [Cost; 7], phase: Phase| costs[phase as usize].operations;
        let costs = account.take();
        assert_eq!((operations(costs, Phase::Gemm), operations(costs, Phase::Heads)), (60, 120));
        assert_eq!(operations(account.take(), Phase::Heads), 0);
    }
}
