//! The gated delta rule, token by token, vectorised over the value dimension.
//!
//! The columns of a state evolve independently, so the work is split by tree (a sequence and those that continue it),
//! value head and group of columns. One group's state, `[key_dim, VECTORS * LANES]`, is used for all the tokens of a tree
//! before the next one's; a prefix's last state is copied for each of its blocks, and stored elsewhere only where it is to
//! be kept. With 128 key
//! dimensions a state has 32 KiB on AVX-512 and 16 KiB on AVX2: the former fits a first-level cache of 48 KiB with room
//! for the tokens, and reaches into the second level where the first has 32 KiB.
//!
//! Absent so far: the chunked form (matrix products over chunks of tokens).

use crate::checks::Shape;
use crate::cpu::aligned::AlignedBuffer;
use crate::cpu::math;
use crate::cpu::pool::Pool;
use crate::cpu::shared::SharedMatrix;
use crate::cpu::simd::{Isa, Kernel, MAX_LANES, Simd};
use crate::host::{HostMatrix, HostState, set_len};
use crate::{GatedDeltaShape, Packing, Parent, Sequence, States};

/// Vectors of state columns that one piece of work has: as many sums run side by side over the key dimension. Fewer would
/// make a state smaller, and every sum's multiply-adds wait for each other.
const VECTORS: usize = 4;

/// The operands of [`crate::Device::gated_delta_rule`], checked.
pub(crate) struct GatedDelta<'a> {
    pub(crate) shape: GatedDeltaShape,
    pub(crate) qkv: &'a HostMatrix,
    pub(crate) a: &'a HostMatrix,
    pub(crate) b: &'a HostMatrix,
    pub(crate) a_log: &'a [f32],
    pub(crate) dt_bias: &'a [f32],
}

/// What a token's step needs beside q, k and v, once for all columns.
#[derive(Clone, Copy, Default)]
struct Gate {
    /// `exp(g)`.
    decay: f32,
    beta: f32,
}

/// Factors that L2-normalise a token's q and k; q's holds `key_dim^-0.5` too.
#[derive(Clone, Copy, Default)]
struct Scales {
    q: f32,
    k: f32,
}

/// Per-token scalars, kept between calls for their memory.
#[derive(Default)]
pub(crate) struct GatedDeltaScratch {
    /// `[tokens, value_heads]`.
    gates: Vec<Gate>,
    /// `[tokens, key_heads]`.
    scales: Vec<Scales>,
}

impl GatedDeltaScratch {
    /// Bytes that it keeps.
    pub(crate) fn bytes(&self) -> usize {
        self.gates.capacity() * size_of::<Gate>() + self.scales.capacity() * size_of::<Scales>()
    }

    /// Bytes that it keeps once it has seen `tokens` tokens in one batch.
    pub(crate) fn bytes_for(shape: GatedDeltaShape, tokens: usize) -> usize {
        tokens * (shape.value_heads * size_of::<Gate>() + shape.key_heads * size_of::<Scales>())
    }
}

/// Bytes of the states that one thread works on.
pub(crate) fn state_bytes(shape: GatedDeltaShape, isa: Isa) -> usize {
    2 * shape.key_dim * isa.run(GroupColumns) * size_of::<f32>()
}

/// The shape of a state, whatever its prefix's length: a row per value head and group of columns, as one piece of work
/// has it (`[key_dim, VECTORS * LANES]`).
pub(crate) fn state_layout(shape: GatedDeltaShape, isa: Isa) -> Shape {
    let width = isa.run(GroupColumns);
    (shape.value_heads * shape.value_dim.div_ceil(width), shape.key_dim * width)
}

impl GatedDelta<'_> {
    /// Runs the rule over every sequence; `out` has its shape.
    pub(crate) fn run(
        &self,
        pool: &Pool,
        isa: Isa,
        packing: &Packing,
        states: States<'_, HostState>,
        scratch: &mut GatedDeltaScratch,
        out: &mut HostMatrix,
    ) {
        self.prepare(pool, isa, scratch);
        let trees = trees(packing, states);
        let groups = self.shape.value_dim.div_ceil(isa.run(GroupColumns));
        let heads = self.shape.value_heads;
        let out = SharedMatrix::new(out);
        pool.for_each(trees.len() * heads * groups, |item| {
            isa.run(Columns {
                operands: self,
                scratch,
                tree: &trees[item / (heads * groups)],
                state_row: item % (heads * groups),
                head: item / groups % heads,
                group: item % groups,
                out: &out,
            });
        });
    }

    /// Computes every token's gates and scales.
    fn prepare(&self, pool: &Pool, isa: Isa, scratch: &mut GatedDeltaScratch) {
        const GRAIN: usize = 16;
        let GatedDeltaShape { key_heads, value_heads, key_dim, .. } = self.shape;
        let tokens = self.qkv.shape().0;
        set_len(&mut scratch.gates, tokens * value_heads);
        pool.for_each_chunk(&mut scratch.gates, value_heads, GRAIN, |token, gates| {
            for (head, gate) in gates.iter_mut().enumerate() {
                let step_size = softplus(self.a.row(token)[head] + self.dt_bias[head]);
                gate.decay = (-self.a_log[head].exp() * step_size).exp();
                gate.beta = 1.0 / (1.0 + (-self.b.row(token)[head]).exp());
            }
        });
        set_len(&mut scratch.scales, tokens * key_heads);
        pool.for_each_chunk(&mut scratch.scales, key_heads, GRAIN, |token, scales| {
            for (head, scales) in scales.iter_mut().enumerate() {
                let (q, k) = self.query_and_key(token, head);
                scales.q = isa.run(L2Scale(q)) / (key_dim as f32).sqrt();
                scales.k = isa.run(L2Scale(k));
            }
        });
    }

    /// q and k of a key head, `[key_dim]` each.
    #[inline(always)]
    fn query_and_key(&self, row: usize, key_head: usize) -> (&[f32], &[f32]) {
        let GatedDeltaShape { key_heads, key_dim, .. } = self.shape;
        let qkv = self.qkv.row(row);
        (&qkv[key_head * key_dim..][..key_dim], &qkv[(key_heads + key_head) * key_dim..][..key_dim])
    }
}

/// `ln(1 + exp(x))`; the identity above 20, as PyTorch has it.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// `rsqrt(Σx² + 1e-6)`.
struct L2Scale<'a>(&'a [f32]);

impl Kernel for L2Scale<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        1.0 / (math::dot(simd, self.0, self.0) + 1e-6).sqrt()
    }
}

/// State columns of one piece of work.
struct GroupColumns;

impl Kernel for GroupColumns {
    type Output = usize;
    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> usize {
        VECTORS * S::LANES
    }
}

/// Where the blocks of a tree start.
enum Root<'a> {
    /// Behind a sequence of the batch, whose last state goes to `keep` if it is kept.
    Sequence { sequence: Sequence, keep: Option<SharedMatrix<'a>> },
    /// In a state of an earlier batch.
    Kept(&'a HostMatrix),
}

/// A sequence without parent and those that continue it, or one that continues a kept prefix.
struct Tree<'a> {
    root: Root<'a>,
    blocks: Vec<Sequence>,
}

fn trees<'a>(packing: &Packing, states: States<'a, HostState>) -> Vec<Tree<'a>> {
    let mut keep = packing.keep.iter().copied().zip(states.new).peekable();
    let mut trees: Vec<Tree<'_>> = Vec::new();
    let mut tree_of = vec![0; packing.sequences.len()];
    for (number, &sequence) in packing.sequences.iter().enumerate() {
        match sequence.parent {
            Some(Parent::Sequence(parent)) => trees[tree_of[parent]].blocks.push(sequence),
            Some(Parent::Kept(state)) => {
                trees.push(Tree { root: Root::Kept(&states.kept[state].values), blocks: vec![sequence] });
            }
            None => {
                tree_of[number] = trees.len();
                let keep = keep.next_if(|(kept, _)| *kept == number);
                let keep = keep.map(|(_, state)| SharedMatrix::new(&mut state.values));
                trees.push(Tree { root: Root::Sequence { sequence, keep }, blocks: Vec::new() });
            }
        }
    }
    trees
}

/// A group of state columns of one value head over one tree.
struct Columns<'a> {
    operands: &'a GatedDelta<'a>,
    scratch: &'a GatedDeltaScratch,
    tree: &'a Tree<'a>,
    /// The row of a state that its columns have.
    state_row: usize,
    head: usize,
    group: usize,
    out: &'a SharedMatrix<'a>,
}

impl Kernel for Columns<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let elements = self.operands.shape.key_dim * VECTORS * S::LANES;
        let [mut prefix, mut block] = [(); 2].map(|()| AlignedBuffer::zeroed(elements));
        let prefix: &[f32] = match &self.tree.root {
            Root::Kept(state) => state.row(self.state_row),
            Root::Sequence { sequence, keep } => {
                self.read(simd, *sequence, prefix.values_mut());
                if let Some(keep) = keep {
                    // SAFETY: the tree, the head and the group make the row this piece's own; the part ends here.
                    unsafe { keep.part(self.state_row, 0..elements) }.copy_from_slice(prefix.values_mut());
                }
                prefix.values_mut()
            }
        };
        for &sequence in &self.tree.blocks {
            block.values_mut().copy_from_slice(prefix);
            self.read(simd, sequence, block.values_mut());
        }
    }
}

impl Columns<'_> {
    /// Reads a sequence's tokens into the state `[key_dim, VECTORS * LANES]` and writes their outputs.
    #[inline(always)]
    fn read<S: Simd>(&self, simd: S, sequence: Sequence, state: &mut [f32]) {
        let GatedDeltaShape { key_heads, value_heads, key_dim, value_dim } = self.operands.shape;
        let key_head = self.head / (value_heads / key_heads);
        let width = VECTORS * S::LANES;
        let first = self.group * width;
        let columns = self.head * value_dim + first..self.head * value_dim + value_dim.min(first + width);
        let mut v = [0.0; VECTORS * MAX_LANES];
        let mut o = [0.0; VECTORS * MAX_LANES];
        for row in sequence.start..sequence.start + sequence.len {
            let (q, k) = self.operands.query_and_key(row, key_head);
            let values = &self.operands.qkv.row(row)[2 * key_heads * key_dim..][columns.clone()];
            v[..values.len()].copy_from_slice(values);
            let gate = self.scratch.gates[row * value_heads + self.head];
            let scales = self.scratch.scales[row * key_heads + key_head];
            step(simd, state, (q, k, &v), gate, scales, &mut o);
            // SAFETY: the rows of a tree, the head and the group make the columns this piece's own; the part ends here.
            let out = unsafe { self.out.part(row, columns.clone()) };
            out.copy_from_slice(&o[..columns.len()]);
        }
    }
}

/// One token: `S ← S·exp(g)`, `S ← S + k ⊗ (beta · (v − Sᵀk))`, `o = Sᵀq`, with q and k raw and their scales applied to
/// the sums over the key dimension.
#[inline(always)]
fn step<S: Simd>(
    simd: S,
    state: &mut [f32],
    (q, k, v): (&[f32], &[f32], &[f32]),
    gate: Gate,
    scales: Scales,
    o: &mut [f32],
) {
    let width = VECTORS * S::LANES;
    let mut remembered = [simd.splat(0.0); VECTORS];
    for (state, &k) in state.chunks_exact(width).zip(k) {
        let k = simd.splat(k);
        for (vector, sum) in remembered.iter_mut().enumerate() {
            *sum = simd.mul_add(simd.load(&state[vector * S::LANES..]), k, *sum);
        }
    }

    let decay = simd.splat(gate.decay);
    let remembered_scale = simd.splat(gate.decay * scales.k);
    let update_scale = simd.splat(gate.beta * scales.k);
    let mut updates = [simd.splat(0.0); VECTORS];
    for (vector, update) in updates.iter_mut().enumerate() {
        let error = simd.sub(simd.load(&v[vector * S::LANES..]), simd.mul(remembered[vector], remembered_scale));
        *update = simd.mul(error, update_scale);
    }

    let mut sums = [simd.splat(0.0); VECTORS];
    for ((state, &k), &q) in state.chunks_exact_mut(width).zip(k).zip(q) {
        let (k, q) = (simd.splat(k), simd.splat(q));
        for (vector, sum) in sums.iter_mut().enumerate() {
            let state = &mut state[vector * S::LANES..];
            let updated = simd.mul_add(k, updates[vector], simd.mul(simd.load(state), decay));
            simd.store(updated, state);
            *sum = simd.mul_add(updated, q, *sum);
        }
    }
    let q_scale = simd.splat(scales.q);
    for (vector, &sum) in sums.iter().enumerate() {
        simd.store(simd.mul(sum, q_scale), &mut o[vector * S::LANES..]);
    }
}
