//! The gated delta rule in chunks of tokens, on the matrix product's register tile.
//!
//! Within a chunk that begins with the state `S₀`, with `Gₜ` the sum of the log decays up to token `t`, the rule's updates
//! `uₜ = βₜ (vₜ − exp(gₜ) Sₜ₋₁ᵀkₜ)` solve a triangular system,
//!
//! `uₜ = βₜ (vₜ − exp(Gₜ) S₀ᵀkₜ) − Σ_{i<t} βₜ exp(Gₜ − Gᵢ) ⟨kₜ, kᵢ⟩ uᵢ`,
//!
//! and outputs and the next state are matrix products of them (the WY form; Yang et al., Parallelizing Linear Transformers
//! with the Delta Rule over Sequence Length, 2024, and Gated Delta Networks, 2024):
//!
//! `oₜ = exp(Gₜ) S₀ᵀqₜ + Σ_{i≤t} exp(Gₜ − Gᵢ) ⟨qₜ, kᵢ⟩ uᵢ`, `S = exp(G) S₀ + Σᵢ exp(G − Gᵢ) kᵢ ⊗ uᵢ`.
//!
//! The system is solved a tile of tokens at a time: what earlier tiles contribute is a product, what is left row by row.
//! The work is split by tree (a sequence and those that continue it) and key head. A prefix's last state is copied for each
//! of its blocks, and stored elsewhere only where it is to be kept; behind a block no state is computed.
//!
//! Invariant: chunks and tiles are counted from the start of a sequence, and no token takes part in what an earlier one
//! gives: zero times an infinite value is not a number.

use std::ops::Range;

use crate::checks::Shape;
use crate::cpu::gemm::{NR_VECTORS, PanelColumns, TileRows, multiply, padded, tile_rows};
use crate::cpu::lease::{Carver, Lease};
use crate::cpu::math;
use crate::cpu::pool::Pool;
use crate::cpu::shared::SharedMatrix;
use crate::cpu::simd::{Isa, Kernel, Simd, parts};
use crate::host::{HostMatrix, HostState, set_len};
use crate::{GatedDeltaShape, Packing, Parent, Sequence, States};

/// Tokens of a chunk, rounded down to whole tiles: more make the triangular products larger, fewer the state's.
const CHUNK: usize = 64;

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
    /// `g`.
    log_decay: f32,
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

/// Bytes that one piece of work has for itself.
pub(crate) fn piece_bytes(shape: GatedDeltaShape, isa: Isa) -> usize {
    Sizes::of(shape, isa.run(PanelColumns), isa.run(TileRows)).piece() * size_of::<f32>()
}

/// The shape of a state, whatever its prefix's length: a row per value head, as [`Sizes::state`] has it.
pub(crate) fn state_layout(shape: GatedDeltaShape, isa: Isa) -> Shape {
    (shape.value_heads, Sizes::of(shape, isa.run(PanelColumns), isa.run(TileRows)).state())
}

/// How much memory everything takes, in elements.
#[derive(Clone, Copy)]
struct Sizes {
    shape: GatedDeltaShape,
    /// `NR`: columns of a panel.
    width: usize,
    /// Rows of a full tile.
    full_rows: usize,
}

impl Sizes {
    fn of(shape: GatedDeltaShape, width: usize, full_rows: usize) -> Self {
        Sizes { shape, width, full_rows }
    }

    /// Tokens of a chunk.
    fn chunk(self) -> usize {
        CHUNK / self.full_rows * self.full_rows
    }

    /// Value heads of a key head.
    fn group(self) -> usize {
        self.shape.value_heads / self.shape.key_heads
    }

    /// Rows of the tiles over the key dimension.
    fn key_rows(self) -> usize {
        padded(self.shape.key_dim, self.full_rows)
    }

    fn value_panels(self) -> usize {
        self.shape.value_dim.div_ceil(self.width)
    }

    fn token_panels(self) -> usize {
        self.chunk().div_ceil(self.width)
    }

    /// A value head's state, `[value panels][key_rows][NR]`.
    fn state(self) -> usize {
        self.value_panels() * self.key_rows() * self.width
    }

    /// q or k of a chunk as a left operand, `[tiles][key_dim][rows]`.
    fn rows(self) -> usize {
        self.chunk() * self.shape.key_dim
    }

    /// k of a chunk as a right operand, `[token panels][key_dim][NR]`.
    fn columns(self) -> usize {
        self.token_panels() * self.shape.key_dim * self.width
    }

    /// Transposed k of a chunk as a left operand, `[tiles of the key dimension][tokens][rows]`.
    fn transposed(self) -> usize {
        self.key_rows() * self.chunk()
    }

    /// Products of tokens with tokens, `[tiles][token panels][rows, NR]`.
    fn products(self) -> usize {
        self.chunk() * self.token_panels() * self.width
    }

    /// Coefficients of tokens for tokens as a left operand, `[tiles][tokens][rows]`.
    fn coefficients(self) -> usize {
        self.chunk() * self.chunk()
    }

    /// A value of every token, `[value panels][tokens][NR]`.
    fn values(self) -> usize {
        self.value_panels() * self.chunk() * self.width
    }

    /// Everything that [`ChunkMemory`] and the states of a piece of work take.
    fn piece(self) -> usize {
        let chunk = 2 * self.rows() + self.columns() + self.transposed() + 2 * self.products();
        chunk + 2 * self.coefficients() + 3 * self.values() + 2 * self.group() * self.state()
    }
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
        let heads = self.shape.key_heads;
        let out = SharedMatrix::new(out);
        pool.for_each(trees.len() * heads, |item| {
            isa.run(KeyHead { operands: self, scratch, tree: &trees[item / heads], head: item % heads, out: &out });
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
                gate.log_decay = -self.a_log[head].exp() * step_size;
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

/// One key head, and the value heads that it serves, over one tree.
struct KeyHead<'a> {
    operands: &'a GatedDelta<'a>,
    scratch: &'a GatedDeltaScratch,
    tree: &'a Tree<'a>,
    head: usize,
    out: &'a SharedMatrix<'a>,
}

impl Kernel for KeyHead<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let sizes = Sizes::of(self.operands.shape, NR_VECTORS * S::LANES, S::MR);
        let state = sizes.state();
        let mut lease = Lease::of(sizes.piece());
        let mut carver = Carver::new(lease.values_mut());
        let prefix = carver.take(sizes.group() * state);
        let block = carver.take(sizes.group() * state);
        let mut memory = ChunkMemory::carve(sizes, &mut carver);
        let value_heads = self.head * sizes.group()..(self.head + 1) * sizes.group();
        match &self.tree.root {
            Root::Kept(kept) => {
                for (prefix, head) in prefix.chunks_exact_mut(state).zip(value_heads) {
                    prefix.copy_from_slice(kept.row(head));
                }
            }
            Root::Sequence { sequence, keep } => {
                prefix.fill(0.0);
                let is_continued = keep.is_some() || !self.tree.blocks.is_empty();
                self.read(simd, &mut memory, *sequence, is_continued, prefix);
                if let Some(keep) = keep {
                    for (prefix, head) in prefix.chunks_exact(state).zip(value_heads) {
                        // SAFETY: the tree and the head make the row this piece's own; the part ends here.
                        unsafe { keep.part(head, 0..state) }.copy_from_slice(prefix);
                    }
                }
            }
        }
        for &sequence in &self.tree.blocks {
            block.copy_from_slice(prefix);
            self.read(simd, &mut memory, sequence, false, block);
        }
    }
}

/// What a chunk is computed in; see [`Sizes`] for the layouts. k is normalised here, and q normalised and scaled.
struct ChunkMemory<'m> {
    sizes: Sizes,
    q_rows: &'m mut [f32],
    k_rows: &'m mut [f32],
    k_columns: &'m mut [f32],
    k_transposed: &'m mut [f32],
    /// `⟨kₜ, kᵢ⟩` and `⟨qₜ, kᵢ⟩`.
    kk: &'m mut [f32],
    qk: &'m mut [f32],
    /// What of `uᵢ` goes into `uₜ`, and into `oₜ`.
    into_update: &'m mut [f32],
    into_output: &'m mut [f32],
    /// `uₜ`.
    updates: &'m mut [f32],
    /// `exp(G − Gᵢ) uᵢ`.
    decayed: &'m mut [f32],
    /// `oₜ`.
    outputs: &'m mut [f32],
}

impl<'m> ChunkMemory<'m> {
    fn carve(sizes: Sizes, carver: &mut Carver<'m>) -> Self {
        ChunkMemory {
            sizes,
            q_rows: carver.take(sizes.rows()),
            k_rows: carver.take(sizes.rows()),
            k_columns: carver.take(sizes.columns()),
            k_transposed: carver.take(sizes.transposed()),
            kk: carver.take(sizes.products()),
            qk: carver.take(sizes.products()),
            into_update: carver.take(sizes.coefficients()),
            into_output: carver.take(sizes.coefficients()),
            updates: carver.take(sizes.values()),
            decayed: carver.take(sizes.values()),
            outputs: carver.take(sizes.values()),
        }
    }
}

/// Some consecutive tokens of a chunk that are computed together.
#[derive(Clone, Copy)]
struct Tile {
    /// Counted from the start of the chunk.
    first: usize,
    rows: usize,
    /// Rows of the register tile.
    height: usize,
}

/// The tiles of so many rows.
#[inline(always)]
fn tiles(rows: usize, full_rows: usize) -> impl Iterator<Item = Tile> {
    (0..rows).step_by(full_rows).map(move |first| {
        let rows = full_rows.min(rows - first);
        Tile { first, rows, height: tile_rows(rows) }
    })
}

/// What gates make of a chunk's tokens, for one value head.
struct Decays {
    /// `Gₜ`.
    log: [f32; CHUNK],
    /// `exp(Gₜ)`.
    from_start: [f32; CHUNK],
    /// `exp(G − Gₜ)`.
    to_end: [f32; CHUNK],
    beta: [f32; CHUNK],
}

impl KeyHead<'_> {
    /// Reads a sequence's tokens into the states of the value heads and writes their outputs. Where it `is_continued`, the
    /// states are those behind its last token afterwards, and unspecified where not.
    #[inline(always)]
    fn read<S: Simd>(
        &self,
        simd: S,
        memory: &mut ChunkMemory<'_>,
        sequence: Sequence,
        is_continued: bool,
        states: &mut [f32],
    ) {
        let sizes = memory.sizes;
        let end = sequence.start + sequence.len;
        for first in (sequence.start..end).step_by(sizes.chunk()) {
            let rows = first..end.min(first + sizes.chunk());
            let updates_state = is_continued || rows.end < end;
            self.pack(memory, rows.clone());
            token_products(simd, memory, rows.len());
            for (index, state) in states.chunks_exact_mut(sizes.state()).enumerate() {
                let head = self.head * sizes.group() + index;
                let decays = self.decays(simd, head, rows.clone());
                coefficients(simd, memory, &decays, rows.len());
                self.start_updates(simd, memory, &decays, head, rows.clone(), state);
                solve(simd, memory, rows.len());
                self.write_outputs(simd, memory, head, rows.clone());
                if updates_state {
                    update_state(simd, memory, &decays, rows.len(), state);
                }
            }
        }
    }

    /// Normalises q and k of a chunk and lays them out for the products.
    #[inline(always)]
    fn pack(&self, memory: &mut ChunkMemory<'_>, rows: Range<usize>) {
        let Sizes { shape, width, full_rows } = memory.sizes;
        let (key_dim, tokens) = (shape.key_dim, rows.len());
        let last = tokens.next_multiple_of(width);
        memory.k_columns[(last - width) * key_dim..last * key_dim].fill(0.0);
        for tile in tiles(tokens, full_rows) {
            let elements = tile.first * key_dim..(tile.first + tile.height) * key_dim;
            let (q_tile, k_tile) = (&mut memory.q_rows[elements.clone()], &mut memory.k_rows[elements]);
            for index in tile.rows..tile.height {
                q_tile[index..].iter_mut().step_by(tile.height).for_each(|value| *value = 0.0);
                k_tile[index..].iter_mut().step_by(tile.height).for_each(|value| *value = 0.0);
            }
            for index in 0..tile.rows {
                let token = tile.first + index;
                let (q, k) = self.operands.query_and_key(rows.start + token, self.head);
                let scales = self.scratch.scales[(rows.start + token) * shape.key_heads + self.head];
                let k_column = &mut memory.k_columns[token / width * width * key_dim + token % width..];
                let tile_values = q_tile[index..].iter_mut().zip(&mut k_tile[index..]).step_by(tile.height);
                let columns = k_column.iter_mut().step_by(width);
                for ((((q_value, k_value), column), &q), &k) in tile_values.zip(columns).zip(q).zip(k) {
                    let k = k * scales.k;
                    (*q_value, *k_value, *column) = (q * scales.q, k, k);
                }
                for dims in tiles(key_dim, full_rows) {
                    let transposed =
                        &mut memory.k_transposed[dims.first * tokens + token * dims.height..][..dims.height];
                    for (value, &k) in transposed.iter_mut().zip(&k[dims.first..dims.first + dims.rows]) {
                        *value = k * scales.k;
                    }
                    transposed[dims.rows..].fill(0.0);
                }
            }
        }
    }

    /// The gates of a value head over a chunk.
    #[inline(always)]
    fn decays<S: Simd>(&self, simd: S, head: usize, rows: Range<usize>) -> Decays {
        let tokens = rows.len();
        let zeros = [0.0; CHUNK];
        let mut decays = Decays { log: zeros, from_start: zeros, to_end: zeros, beta: zeros };
        let mut sum = 0.0;
        for (token, row) in rows.enumerate() {
            let gate = self.scratch.gates[row * self.operands.shape.value_heads + head];
            sum += gate.log_decay;
            (decays.log[token], decays.beta[token]) = (sum, gate.beta);
        }
        for part in parts::<S>(tokens) {
            let log = simd.load_part(&decays.log, part, 0.0);
            simd.store_part(math::exp(simd, log), &mut decays.from_start, part);
            simd.store_part(math::exp(simd, simd.sub(simd.splat(sum), log)), &mut decays.to_end, part);
        }
        decays
    }

    /// `βₜ (vₜ − exp(Gₜ) S₀ᵀkₜ)` to the updates, and `exp(Gₜ) S₀ᵀqₜ` to the outputs.
    #[inline(always)]
    fn start_updates<S: Simd>(
        &self,
        simd: S,
        memory: &mut ChunkMemory<'_>,
        decays: &Decays,
        head: usize,
        rows: Range<usize>,
        state: &[f32],
    ) {
        let Sizes { shape, width, full_rows } = memory.sizes;
        let GatedDeltaShape { key_heads, key_dim, value_dim, .. } = shape;
        let panel_rows = memory.sizes.chunk();
        let first_value = 2 * key_heads * key_dim + head * value_dim;
        for (panel, state) in state.chunks_exact(memory.sizes.key_rows() * width).enumerate() {
            let panel_values = panel * panel_rows * width..(panel + 1) * panel_rows * width;
            let (updates, outputs) = (&mut memory.updates[panel_values.clone()], &mut memory.outputs[panel_values]);
            updates.fill(0.0);
            outputs.fill(0.0);
            let columns = panel * width..value_dim.min((panel + 1) * width);
            for tile in tiles(rows.len(), full_rows) {
                let elements = tile.first * key_dim..(tile.first + tile.height) * key_dim;
                let values = tile.first * width..(tile.first + tile.height) * width;
                multiply(simd, tile.height, &memory.k_rows[elements.clone()], state, &mut updates[values.clone()]);
                multiply(simd, tile.height, &memory.q_rows[elements], state, &mut outputs[values]);
                for token in tile.first..tile.first + tile.rows {
                    let v = &self.operands.qkv.row(rows.start + token)[first_value..][columns.clone()];
                    let decay = simd.splat(decays.from_start[token]);
                    let beta = simd.splat(decays.beta[token]);
                    let update = &mut updates[token * width..][..width];
                    let output = &mut outputs[token * width..][..width];
                    for part in parts::<S>(v.len()) {
                        let remembered = simd.mul(decay, simd.load_part(update, part, 0.0));
                        let error = simd.sub(simd.load_part(v, part, 0.0), remembered);
                        simd.store_part(simd.mul(beta, error), update, part);
                    }
                    // What lies beyond the last column stays as it is: zeros, as the state has there.
                    for part in parts::<S>(width) {
                        simd.store_part(simd.mul(decay, simd.load_part(output, part, 0.0)), output, part);
                    }
                }
            }
        }
    }

    /// Writes a value head's columns of every token.
    #[inline(always)]
    fn write_outputs<S: Simd>(&self, simd: S, memory: &ChunkMemory<'_>, head: usize, rows: Range<usize>) {
        let Sizes { shape, width, .. } = memory.sizes;
        let panel_values = memory.sizes.chunk() * width;
        let columns = head * shape.value_dim..(head + 1) * shape.value_dim;
        for (token, row) in rows.enumerate() {
            // SAFETY: the rows of a tree and the head make the columns this piece's own; the part ends with this iteration.
            let out = unsafe { self.out.part(row, columns.clone()) };
            for (out, outputs) in out.chunks_mut(width).zip(memory.outputs.chunks_exact(panel_values)) {
                let outputs = &outputs[token * width..][..width];
                for part in parts::<S>(out.len()) {
                    simd.store_part(simd.load_part(outputs, part, 0.0), out, part);
                }
            }
        }
    }
}

/// The products of tokens with tokens that come before them, or are they.
#[inline(always)]
fn token_products<S: Simd>(simd: S, memory: &mut ChunkMemory<'_>, tokens: usize) {
    let Sizes { shape, width, full_rows } = memory.sizes;
    let (key_dim, tile_values) = (shape.key_dim, memory.sizes.token_panels() * width);
    for tile in tiles(tokens, full_rows) {
        let elements = tile.first * key_dim..(tile.first + tile.height) * key_dim;
        let (k_tile, q_tile) = (&memory.k_rows[elements.clone()], &memory.q_rows[elements]);
        for panel in 0..(tile.first + tile.rows).div_ceil(width) {
            let columns = &memory.k_columns[panel * width * key_dim..][..width * key_dim];
            let first = tile.first * tile_values + panel * tile.height * width;
            for (rows, products) in [(k_tile, &mut *memory.kk), (q_tile, &mut *memory.qk)] {
                let products = &mut products[first..first + tile.height * width];
                products.fill(0.0);
                multiply(simd, tile.height, rows, columns, products);
            }
        }
    }
}

/// What of earlier updates goes into a token's update and output: the products, decayed. Those of the token's own tile are
/// in the same places as those of earlier ones; what comes after a token is left as it was.
#[inline(always)]
fn coefficients<S: Simd>(simd: S, memory: &mut ChunkMemory<'_>, decays: &Decays, tokens: usize) {
    let Sizes { width, full_rows, .. } = memory.sizes;
    let (tile_values, chunk) = (memory.sizes.token_panels() * width, memory.sizes.chunk());
    let mut decay = [0.0; CHUNK];
    for tile in tiles(tokens, full_rows) {
        let into_update = &mut memory.into_update[tile.first * chunk..][..tile.height * chunk];
        let into_output = &mut memory.into_output[tile.first * chunk..][..tile.height * chunk];
        for index in 0..tile.rows {
            let token = tile.first + index;
            let log = simd.splat(decays.log[token]);
            for part in parts::<S>(token + 1) {
                let difference = simd.sub(log, simd.load_part(&decays.log, part, 0.0));
                simd.store_part(math::exp(simd, difference), &mut decay, part);
            }
            let beta = decays.beta[token];
            for panel in 0..(token + 1).div_ceil(width) {
                let first = tile.first * tile_values + (panel * tile.height + index) * width;
                let (kk, qk) = (&memory.kk[first..first + width], &memory.qk[first..first + width]);
                let others = panel * width..(token + 1).min((panel + 1) * width);
                for ((other, &kk), &qk) in others.zip(kk).zip(qk) {
                    into_update[other * tile.height + index] = -beta * decay[other] * kk;
                    into_output[other * tile.height + index] = decay[other] * qk;
                }
            }
        }
        // The rows that a tile lacks are computed with whatever is there, and never read.
    }
}

/// Solves for the updates and adds their part to the outputs.
#[inline(always)]
fn solve<S: Simd>(simd: S, memory: &mut ChunkMemory<'_>, tokens: usize) {
    let Sizes { width, full_rows, .. } = memory.sizes;
    let chunk = memory.sizes.chunk();
    let panels = memory.updates.chunks_exact_mut(chunk * width).zip(memory.outputs.chunks_exact_mut(chunk * width));
    for (updates, outputs) in panels {
        for tile in tiles(tokens, full_rows) {
            let coefficients = tile.first * chunk..tile.first * chunk + tile.height * (tile.first + tile.rows);
            let into_update = &memory.into_update[coefficients.clone()];
            let into_output = &memory.into_output[coefficients];
            let before = tile.first * tile.height;
            let (earlier, own) = updates.split_at_mut(tile.first * width);
            let outputs = &mut outputs[tile.first * width..(tile.first + tile.height) * width];
            multiply(simd, tile.height, &into_update[..before], earlier, own);
            for index in 1..tile.rows {
                let (solved, update) = own.split_at_mut(index * width);
                let coefficients = into_update[before + index..].iter().step_by(tile.height);
                for (solved, &coefficient) in solved.chunks_exact(width).zip(coefficients) {
                    add_scaled(simd, coefficient, solved, &mut update[..width]);
                }
            }
            multiply(simd, tile.height, &into_output[..before], earlier, outputs);
            for (index, output) in outputs.chunks_exact_mut(width).enumerate().take(tile.rows) {
                let coefficients = into_output[before + index..].iter().step_by(tile.height);
                for (update, &coefficient) in own.chunks_exact(width).zip(coefficients).take(index + 1) {
                    add_scaled(simd, coefficient, update, output);
                }
            }
        }
    }
}

/// `out += factor · x`.
#[inline(always)]
fn add_scaled<S: Simd>(simd: S, factor: f32, x: &[f32], out: &mut [f32]) {
    let factor = simd.splat(factor);
    for (x, out) in x.chunks_exact(S::LANES).zip(out.chunks_exact_mut(S::LANES)) {
        simd.store(simd.mul_add(factor, simd.load(x), simd.load(out)), out);
    }
}

/// `S = exp(G) S₀ + Σᵢ exp(G − Gᵢ) kᵢ ⊗ uᵢ`.
#[inline(always)]
fn update_state<S: Simd>(simd: S, memory: &mut ChunkMemory<'_>, decays: &Decays, tokens: usize, state: &mut [f32]) {
    let Sizes { shape, width, full_rows } = memory.sizes;
    let (chunk, key_rows) = (memory.sizes.chunk(), memory.sizes.key_rows());
    let total = simd.splat(decays.from_start[tokens - 1]);
    for (panel, state) in state.chunks_exact_mut(key_rows * width).enumerate() {
        let values = panel * chunk * width..panel * chunk * width + tokens * width;
        let (updates, decayed) = (&memory.updates[values.clone()], &mut memory.decayed[values]);
        for (token, (update, decayed)) in updates.chunks_exact(width).zip(decayed.chunks_exact_mut(width)).enumerate() {
            let decay = simd.splat(decays.to_end[token]);
            for (update, decayed) in update.chunks_exact(S::LANES).zip(decayed.chunks_exact_mut(S::LANES)) {
                simd.store(simd.mul(decay, simd.load(update)), decayed);
            }
        }
        for state in state.chunks_exact_mut(S::LANES) {
            simd.store(simd.mul(total, simd.load(state)), state);
        }
        for dims in tiles(shape.key_dim, full_rows) {
            let k = &memory.k_transposed[dims.first * tokens..][..dims.height * tokens];
            let state = &mut state[dims.first * width..(dims.first + dims.height) * width];
            multiply(simd, dims.height, k, decayed, state);
        }
    }
}
