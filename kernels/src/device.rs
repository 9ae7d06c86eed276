//! What a device must be able to do, and the plain data that says on which tokens.
//!
//! All tokens of a batch lie packed, without padding, one sequence after another, in the rows of one matrix. Which
//! rows form a sequence, and which sequence continues which, is a [`Packing`]. Every operation's result for a token
//! depends only on that token's own sequence (and its prefix): never on what else is in the batch, nor on the number
//! of threads. That is what makes an answer independent of its company, bit for bit.

use std::ops::Range;

use crate::KernelError;

/// Element type of a tensor as it is stored in a member's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE-754 binary32, little-endian.
    F32,
    /// bfloat16: the upper half of a binary32, little-endian.
    Bf16,
}

impl DType {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::Bf16 => 2,
        }
    }

    /// The name that safetensors headers use.
    pub fn name(self) -> &'static str {
        match self {
            DType::F32 => "F32",
            DType::Bf16 => "BF16",
        }
    }
}

/// A tensor in host memory, row-major, as the member's verified bytes.
#[derive(Clone, Copy, Debug)]
pub struct HostTensor<'a> {
    /// Element type of `bytes`.
    pub dtype: DType,
    /// Dimensions, outermost first.
    pub shape: &'a [usize],
    /// `shape.product() * dtype.bytes()` bytes, little-endian.
    pub bytes: &'a [u8],
}

/// Rows of an embedding table that stays in its file.
pub trait RowSource: Send + Sync {
    /// Number of rows (the vocabulary).
    fn rows(&self) -> usize;
    /// Elements per row (the hidden size).
    fn width(&self) -> usize;
    /// Writes the rows `ids`, in order, widened to F32, into `out` (`ids.len() * width()` elements).
    ///
    /// # Errors
    /// [`KernelError::Index`] for an id outside the table, [`KernelError::Rows`] when the file cannot be read or a
    /// row is not the one that was verified.
    fn read_rows(&self, ids: &[u32], out: &mut [f32]) -> Result<(), KernelError>;
}

/// One sequence of a packed batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// Row of its first token.
    pub start: usize,
    /// Number of tokens.
    pub len: usize,
    /// What it continues (its prefix): the recurrent state, convolution tail, keys and values there are this
    /// sequence's start.
    pub parent: Option<Parent>,
    /// Position of its first token for the rotary embedding: 0, or the parent's length.
    pub position: usize,
}

/// What a sequence continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parent {
    /// A sequence of the same batch, by its index: it comes earlier in the list and has no parent itself.
    Sequence(usize),
    /// A prefix of an earlier batch, by the index of its state among [`States::kept`].
    Kept(usize),
}

/// How a batch's rows form sequences. Rows are covered exactly once, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packing {
    /// The sequences, in row order.
    pub sequences: Vec<Sequence>,
    /// Sequences without parent whose states are kept for later batches, by their indices, ascending: the first one's
    /// goes to the first of [`States::new`], and so on.
    pub keep: Vec<usize>,
}

impl Packing {
    /// Number of rows of the packed matrix.
    pub fn tokens(&self) -> usize {
        self.sequences.last().map_or(0, |last| last.start + last.len)
    }
}

/// What one operation has of prefixes beyond its batch. A state holds what sequences that continue a prefix need of one
/// operation of one layer: to start from it and to start from the prefix's own tokens is the same, bit for bit.
#[derive(Debug)]
pub struct States<'a, S> {
    /// What [`Parent::Kept`] counts.
    pub kept: Vec<&'a S>,
    /// What [`Packing::keep`] counts: each is made for its sequence's tokens, and written whole.
    pub new: Vec<&'a mut S>,
}

impl<S> Default for States<'_, S> {
    fn default() -> Self {
        Self { kept: Vec::new(), new: Vec::new() }
    }
}

/// The operation that a state is of, by which a device knows how large the state is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StateShape {
    /// [`Device::causal_conv1d_silu`]: the inputs of the last `taps - 1` tokens (`conv_state`).
    Conv {
        /// Columns of the input.
        channels: usize,
        /// Width of the convolution.
        taps: usize,
    },
    /// [`Device::gated_delta_rule`]: the state behind the last token (`recurrent_state`), however many came before.
    GatedDelta(GatedDeltaShape),
    /// [`Device::gated_attention`]: keys and values of every token (`k_cache` and `v_cache`).
    Attention(AttentionShape),
}

/// Head counts and widths of a gated delta rule layer (spec: vela.md §7, Gated `DeltaNet`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatedDeltaShape {
    /// Heads of q and k; each serves `value_heads / key_heads` consecutive value heads.
    pub key_heads: usize,
    /// Heads of v and of the output.
    pub value_heads: usize,
    /// Elements of a head of q or k.
    pub key_dim: usize,
    /// Elements of a head of v.
    pub value_dim: usize,
}

impl GatedDeltaShape {
    /// Columns of the convolution's input and output: q and k of every key head, then v of every value head.
    pub fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }
}

/// Head counts and widths of a full attention layer (spec: vela.md §7, Full attention).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads; each serves `num_attention_heads / num_key_value_heads` consecutive query heads.
    pub num_key_value_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Leading dimensions of a head that are rotated (`head_dim * partial_rotary_factor`), even.
    pub rotary_dim: usize,
    /// Base of the rotary embedding.
    pub rope_theta: f32,
    /// Epsilon of the norms of queries and keys.
    pub rms_norm_eps: f32,
}

/// The operations of a decision model's prefill on one device.
///
/// Matrices are row-major `[rows, columns]`. An output matrix is given its shape by the operation; its storage is
/// reused where it is large enough, so that a workspace of matrices reaches a steady state without allocating.
/// Every operation checks its operands' shapes and returns [`KernelError::Shape`] instead of reading out of bounds.
pub trait Device: Send {
    /// An activation matrix `[rows, columns]` in device memory.
    type Matrix: Send;
    /// A Linear weight `[out, in]`, packed for this device's matrix product.
    type Weight: Send;
    /// A small F32 parameter (a norm's weight, `A_log`, `dt_bias`, a convolution's taps), in device memory.
    type Vector: Send;
    /// An embedding table.
    type Embedding: Send;
    /// What one operation keeps of a prefix, in device memory.
    type State: Send;

    /// An empty matrix (0 × 0) that operations give a shape.
    fn matrix(&self) -> Self::Matrix;

    /// `[rows, columns]` of a matrix.
    fn shape(&self, x: &Self::Matrix) -> (usize, usize);

    /// Packs a Linear weight `[out, in]`, BF16 or F32. BF16 values stay BF16 in memory and are widened exactly on use.
    fn load_weight(&self, weight: HostTensor<'_>) -> Result<Self::Weight, KernelError>;

    /// Copies a parameter of any shape to the device, widened to F32, flattened row-major.
    fn load_vector(&self, values: HostTensor<'_>) -> Result<Self::Vector, KernelError>;

    /// Takes an embedding table.
    fn load_embedding(&self, rows: Box<dyn RowSource>) -> Result<Self::Embedding, KernelError>;

    /// A state of a prefix of `tokens` tokens, to be written by the operation that `shape` names.
    ///
    /// # Errors
    /// [`KernelError::Resource`] if the device has no room.
    fn state(&self, shape: StateShape, tokens: usize) -> Result<Self::State, KernelError>;

    /// Bytes that [`Device::state`] takes for as much.
    fn state_bytes(&self, shape: StateShape, tokens: usize) -> usize;

    /// `out[i] = table[ids[i]]`, F32, `[ids, hidden]`.
    fn embedding_gather(&self, table: &Self::Embedding, ids: &[u32], out: &mut Self::Matrix)
    -> Result<(), KernelError>;

    /// `out = x · weightᵀ` of every weight with its matrix: `[m, in] × [out, in]ᵀ → [m, out]`, F32 accumulation in an order
    /// that depends on neither `m` nor the thread count. Together they cost one reading of `x`.
    fn linear_each(
        &self,
        x: &Self::Matrix,
        products: &mut [(&Self::Weight, &mut Self::Matrix)],
    ) -> Result<(), KernelError>;

    /// [`Device::linear_each`] of one weight.
    fn linear(&self, weight: &Self::Weight, x: &Self::Matrix, out: &mut Self::Matrix) -> Result<(), KernelError> {
        self.linear_each(x, &mut [(weight, out)])
    }

    /// Zero-centred RMSNorm per row: `out = x · rsqrt(mean(x²) + eps) · (1 + weight)`.
    fn rms_norm(
        &self,
        x: &Self::Matrix,
        weight: &Self::Vector,
        eps: f32,
        out: &mut Self::Matrix,
    ) -> Result<(), KernelError>;

    /// `residual += x`.
    fn add(&self, residual: &mut Self::Matrix, x: &Self::Matrix) -> Result<(), KernelError>;

    /// `residual += x`, then `out = rms_norm(residual)`, in one pass.
    fn add_rms_norm(
        &self,
        residual: &mut Self::Matrix,
        x: &Self::Matrix,
        weight: &Self::Vector,
        eps: f32,
        out: &mut Self::Matrix,
    ) -> Result<(), KernelError>;

    /// SwiGLU, in place: `gate = silu(gate) · up`, both `[m, intermediate]`.
    fn silu_mul(&self, gate: &mut Self::Matrix, up: &Self::Matrix) -> Result<(), KernelError>;

    /// Causal depthwise convolution of width `taps` (no bias), then SiLU:
    /// `out[t, c] = silu(Σ_j weight[c, j] · x[t − (taps − 1) + j, c])`, where tokens before a sequence's start are its
    /// parent's last ones, and zero before a sequence without parent. `weight` is `[channels, taps]` (the
    /// checkpoint's `[channels, 1, taps]` flattened), `x` and `out` are `[tokens, channels]`.
    ///
    /// # Errors
    /// Here and in the other two operations over sequences, beside shapes: [`KernelError::Index`] for a parent that is
    /// not there, [`KernelError::Shape`] for a state of another operation or of another number of tokens.
    fn causal_conv1d_silu(
        &self,
        packing: &Packing,
        states: States<'_, Self::State>,
        weight: &Self::Vector,
        x: &Self::Matrix,
        out: &mut Self::Matrix,
    ) -> Result<(), KernelError>;

    /// The gated delta rule over every sequence (spec: vela.md §7; Yang et al., Gated Delta Networks, 2024).
    ///
    /// `qkv` `[tokens, channels]` after the convolution (q of all key heads, k of all key heads, v of all value
    /// heads), `a` and `b` `[tokens, value_heads]` as projected, `a_log` and `dt_bias` `[value_heads]`. Computes
    /// `beta = sigmoid(b)`, `g = −exp(a_log) · softplus(a + dt_bias)`, L2-normalises q and k
    /// (`x · rsqrt(Σx² + 1e-6)`), scales q by `key_dim^-0.5`, and per token
    /// `S ← S · exp(g)`, `S ← S + k ⊗ (beta · (v − Sᵀk))`, `o = Sᵀq`, from a zero state or the parent's last one.
    /// `out` is `[tokens, value_heads * value_dim]`. The state is F32.
    #[allow(clippy::too_many_arguments)]
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
    ) -> Result<(), KernelError>;

    /// Gated RMSNorm per value head, in place: `o = weight · o · rsqrt(mean(o²) + eps) · silu(z)`, with a plain weight
    /// `[value_dim]` (not `1 + weight`); `o` and `z` are `[tokens, heads * value_dim]`.
    fn gated_rms_norm(
        &self,
        o: &mut Self::Matrix,
        z: &Self::Matrix,
        weight: &Self::Vector,
        eps: f32,
    ) -> Result<(), KernelError>;

    /// Gated causal attention over every sequence and its parent (spec: vela.md §7).
    ///
    /// `q_gate` `[tokens, heads * 2 * head_dim]` (per head: query, then gate), `k` and `v`
    /// `[tokens, kv_heads * head_dim]` as projected. Queries and keys are RMS-normed per head (zero-centred,
    /// `q_norm`, `k_norm` `[head_dim]`) and rotated at their positions; a query sees its parent's tokens and its own
    /// sequence up to itself; scale `head_dim^-0.5`, softmax in F32; the result is multiplied by `sigmoid(gate)`.
    /// `out` is `[tokens, heads * head_dim]`.
    #[allow(clippy::too_many_arguments)]
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
    ) -> Result<(), KernelError>;

    /// `out[i] = x[rows[i]]`.
    fn gather_rows(&self, x: &Self::Matrix, rows: &[u32], out: &mut Self::Matrix) -> Result<(), KernelError>;

    /// `out[i] = mean(x[ranges[i]])`, the mean of consecutive rows, summed in row order. No range is empty.
    fn mean_rows(&self, x: &Self::Matrix, ranges: &[Range<u32>], out: &mut Self::Matrix) -> Result<(), KernelError>;

    /// LayerNorm per row with weight and bias (biased variance).
    fn layer_norm(
        &self,
        x: &Self::Matrix,
        weight: &Self::Vector,
        bias: &Self::Vector,
        eps: f32,
        out: &mut Self::Matrix,
    ) -> Result<(), KernelError>;

    /// Subtracts from every row of each group of rows the group's mean row, in place. Groups are consecutive ranges.
    fn center_rows(&self, x: &mut Self::Matrix, groups: &[Range<u32>]) -> Result<(), KernelError>;

    /// `x[i] += table[index[i]]`, `table` flattened from `[slots, columns]`.
    fn add_slots(&self, x: &mut Self::Matrix, table: &Self::Vector, index: &[u32]) -> Result<(), KernelError>;

    /// `x[i] += bias` for every row.
    fn add_bias(&self, x: &mut Self::Matrix, bias: &Self::Vector) -> Result<(), KernelError>;

    /// The pair scores that every head ends in (spec: vela.md §8). For each [`PairGroup`] and each left row `i` and
    /// right row `j` of it: `⟨left_dot[i], right_dot[j]⟩ / √d + Σ_c scalar[c] · GELU(left_mlp[i, c] + right_mlp[j, c])`,
    /// GELU in its exact (erf) form, in F32 or better. All four matrices are `[rows, d]`. Writes the F32 scores of each
    /// group row-major (`[left, right]`), group after group, to host memory.
    #[allow(clippy::too_many_arguments)]
    fn pair_scores(
        &self,
        groups: &[PairGroup],
        left_dot: &Self::Matrix,
        left_mlp: &Self::Matrix,
        right_dot: &Self::Matrix,
        right_mlp: &Self::Matrix,
        scalar: &Self::Vector,
        out: &mut Vec<f32>,
    ) -> Result<(), KernelError>;

    /// Copies a matrix to host memory, row-major.
    fn download(&self, x: &Self::Matrix, out: &mut Vec<f32>) -> Result<(), KernelError>;

    /// Copies host rows (row-major, `values.len() == rows * columns`) to the device.
    fn upload(&self, values: &[f32], rows: usize, columns: usize, out: &mut Self::Matrix) -> Result<(), KernelError>;
}

/// Rows of the left and right matrices of [`Device::pair_scores`] that are scored against each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairGroup {
    /// Rows of the left matrices.
    pub left: Range<u32>,
    /// Rows of the right matrices.
    pub right: Range<u32>,
}
