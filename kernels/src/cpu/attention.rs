//! Gated causal attention by blocks of queries and keys, on the matrix product's register tile.
//!
//! Keys are normed and rotated once and packed as panels `[head_dim][NR keys]`, values as panels `[tokens][NR columns]`;
//! a prefix's panels serve all its blocks, and those of later batches where they are kept. A piece of work has the query
//! heads of one key head (GQA) for some consecutive queries, so that what it reads of the keys and values serves all of
//! them: it goes through blocks of [`KC`] keys, counted from the start of the prefix and of the sequence, with an online
//! softmax (Milakov and Gimelshein, Online normalizer calculation for softmax, 2018; Dao et al., `FlashAttention`, 2022):
//! scores, their exponentials relative to the largest so far, and the sum of the values with these weights, which is
//! scaled where a later block has a larger score. A tile's own keys come last, query by query up to the query itself.
//!
//! Invariant: a key that a query does not see takes no part in the query's result. A probability of zero would not keep
//! it out: zero times an infinite value is not a number. Tiles are counted from the start of the sequence, so a query's
//! sum has the same bits whichever queries share its tile.

use std::ops::Range;

use crate::checks::Shape;
use crate::cpu::gemm::{KC, MAX_MR, NR_VECTORS, PanelColumns, TileRows, multiply, tile_rows};
use crate::cpu::lease::{Carver, Lease};
use crate::cpu::math;
use crate::cpu::pool::Pool;
use crate::cpu::shared::SharedMatrix;
use crate::cpu::simd::{Isa, Kernel, MAX_LANES, Simd, parts};
use crate::host::{HostMatrix, HostState, set_len};
use crate::rotary::RotaryTable;
use crate::{AttentionShape, Packing, Parent, Sequence, States};

/// The operands of [`crate::Device::gated_attention`], checked.
pub(crate) struct Attention<'a> {
    pub(crate) shape: AttentionShape,
    pub(crate) q_gate: &'a HostMatrix,
    pub(crate) k: &'a HostMatrix,
    pub(crate) v: &'a HostMatrix,
    pub(crate) q_norm: &'a [f32],
    pub(crate) k_norm: &'a [f32],
    /// Covers every position of the packing.
    pub(crate) rotary: &'a RotaryTable,
}

/// Packed keys and values, kept between calls for their memory.
#[derive(Default)]
pub(crate) struct AttentionScratch {
    /// `[kv_heads][panels of all sequences][head_dim][NR]`, normed and rotated.
    keys: Vec<f32>,
    /// `[kv_heads][head_dim / NR][tokens][NR]`.
    values: Vec<f32>,
}

impl AttentionScratch {
    /// Bytes that it keeps.
    pub(crate) fn bytes(&self) -> usize {
        (self.keys.capacity() + self.values.capacity()) * size_of::<f32>()
    }

    /// The most bytes that it keeps once it has seen `tokens` tokens in `sequences` sequences in one batch: the last panel
    /// of a sequence's keys may hold a single one.
    pub(crate) fn bytes_for(shape: AttentionShape, isa: Isa, tokens: usize, sequences: usize) -> usize {
        let width = isa.run(PanelColumns);
        let key_panels = (tokens + sequences * (width - 1)) / width;
        packed_elements(shape, width, key_panels, tokens).iter().sum::<usize>() * size_of::<f32>()
    }
}

/// Elements of the packed keys and values of `tokens` tokens, the keys in `key_panels` panels.
fn packed_elements(shape: AttentionShape, width: usize, key_panels: usize, tokens: usize) -> [usize; 2] {
    let AttentionShape { num_key_value_heads, head_dim, .. } = shape;
    let keys = num_key_value_heads * key_panels * head_dim * width;
    [keys, num_key_value_heads * head_dim.div_ceil(width) * tokens * width]
}

/// The shape of a state: in one row, the keys and then the values of all tokens, packed as in [`Packed`].
pub(crate) fn state_layout(shape: AttentionShape, isa: Isa, tokens: usize) -> Shape {
    let width = isa.run(PanelColumns);
    (1, packed_elements(shape, width, tokens.div_ceil(width), tokens).iter().sum())
}

/// Rows, of queries times heads, that a piece of work has about: so many that reading keys and values is cheap beside
/// using them, so few that their queries, scores, weights and sums stay in the second-level cache.
const PIECE_ROWS: usize = 96;

/// How large a piece of work is.
#[derive(Clone, Copy)]
struct Sizes {
    shape: AttentionShape,
    /// `NR`: columns of a panel.
    width: usize,
    /// Rows of a full tile.
    full_rows: usize,
}

impl Sizes {
    fn of(shape: AttentionShape, width: usize, full_rows: usize) -> Self {
        Sizes { shape, width, full_rows }
    }

    /// Query heads of a key head.
    fn group(self) -> usize {
        self.shape.num_attention_heads / self.shape.num_key_value_heads
    }

    /// Tiles of each query head.
    fn tiles_per_head(self) -> usize {
        (PIECE_ROWS / (self.full_rows * self.group())).max(1)
    }

    /// Queries of each query head.
    fn queries(self) -> usize {
        self.tiles_per_head() * self.full_rows
    }

    fn tiles(self) -> usize {
        self.tiles_per_head() * self.group()
    }

    /// A tile's queries as a left operand, `[head_dim][rows]`.
    fn query(self) -> usize {
        self.shape.head_dim * self.full_rows
    }

    /// A tile's scores with a block of keys, `[key panels][rows, NR]`.
    fn scores(self) -> usize {
        KC * self.full_rows
    }

    /// A tile's weights of a block of keys as a left operand, `[keys][rows]`.
    fn weights(self) -> usize {
        KC * self.full_rows
    }

    /// A tile's sums, `[panels of columns][rows, NR]`.
    fn sums(self) -> usize {
        self.panels() * self.width * self.full_rows
    }

    /// Panels of a head's columns.
    fn panels(self) -> usize {
        self.shape.head_dim.div_ceil(self.width)
    }

    fn piece(self) -> usize {
        let tile = self.query() + self.scores() + self.weights() + self.sums() + 2 * self.full_rows;
        self.tiles() * tile + self.shape.head_dim
    }
}

/// Bytes that one piece of work has for itself.
pub(crate) fn piece_bytes(shape: AttentionShape, isa: Isa) -> usize {
    Sizes::of(shape, isa.run(PanelColumns), isa.run(TileRows)).piece() * size_of::<f32>()
}

/// Some keys of one sequence, side by side in one panel.
struct KeyPanel {
    rows: Range<usize>,
    /// Position of the first key.
    position: usize,
}

/// Packed keys and values of some sequences, of a batch or of a kept prefix.
#[derive(Clone, Copy)]
struct Packed<'a> {
    /// `[kv_heads][key_panels][head_dim][NR]`, normed and rotated.
    keys: &'a [f32],
    key_panels: usize,
    /// `[kv_heads][head_dim / NR][tokens][NR]`.
    values: &'a [f32],
    tokens: usize,
}

/// Some keys of one sequence, from its first on, and their values.
#[derive(Clone, Copy)]
struct Segment<'a> {
    packed: Packed<'a>,
    first_panel: usize,
    first_row: usize,
    keys: usize,
}

/// Where everything lies in the scratch memory, and the query tiles.
struct Plan {
    panel_columns: usize,
    key_panels: Vec<KeyPanel>,
    /// First key panel of each sequence.
    first_panels: Vec<usize>,
    /// Sequence and queries (counted from the sequence's start) of the pieces of work of each key head.
    pieces: Vec<(usize, Range<usize>)>,
}

impl Plan {
    fn new(packing: &Packing, panel_columns: usize, piece_queries: usize) -> Self {
        let mut plan = Plan { panel_columns, key_panels: Vec::new(), first_panels: Vec::new(), pieces: Vec::new() };
        for (number, &sequence) in packing.sequences.iter().enumerate() {
            plan.first_panels.push(plan.key_panels.len());
            for key in (0..sequence.len).step_by(panel_columns) {
                let rows = sequence.start + key..sequence.start + sequence.len.min(key + panel_columns);
                plan.key_panels.push(KeyPanel { rows, position: sequence.position + key });
            }
            let pieces = (0..sequence.len).step_by(piece_queries);
            plan.pieces.extend(pieces.map(|first| (number, first..sequence.len.min(first + piece_queries))));
        }
        plan
    }

    /// The first `keys` keys of a sequence, whose batch is `packed`.
    fn segment<'a>(&self, packed: Packed<'a>, packing: &Packing, sequence: usize, keys: usize) -> Segment<'a> {
        let (first_panel, first_row) = (self.first_panels[sequence], packing.sequences[sequence].start);
        Segment { packed, first_panel, first_row, keys }
    }
}

impl Attention<'_> {
    /// Attends over every sequence; `out` has its shape.
    pub(crate) fn run(
        &self,
        pool: &Pool,
        isa: Isa,
        packing: &Packing,
        states: States<'_, HostState>,
        scratch: &mut AttentionScratch,
        out: &mut HostMatrix,
    ) {
        let sizes = Sizes::of(self.shape, isa.run(PanelColumns), isa.run(TileRows));
        let plan = Plan::new(packing, sizes.width, sizes.queries());
        if plan.pieces.is_empty() {
            return;
        }
        self.pack_keys(pool, isa, &plan, &mut scratch.keys);
        self.pack_values(pool, &plan, &mut scratch.values);
        let (key_panels, tokens) = (plan.key_panels.len(), self.v.shape().0);
        let packed = Packed { keys: &scratch.keys, key_panels, values: &scratch.values, tokens };
        for (&number, state) in packing.keep.iter().zip(states.new) {
            let len = packing.sequences[number].len;
            self.keep(plan.panel_columns, plan.segment(packed, packing, number, len), state);
        }
        let kept: Vec<Segment<'_>> = states.kept.iter().map(|state| self.kept(plan.panel_columns, state)).collect();
        let out = SharedMatrix::new(out);
        let heads = self.shape.num_key_value_heads;
        // The last pieces of a sequence see the most keys: first, so that threads end together.
        pool.for_each(plan.pieces.len() * heads, |item| {
            let (number, queries) = plan.pieces[plan.pieces.len() - 1 - item / heads].clone();
            let sequence = packing.sequences[number];
            let prefix = sequence.parent.map(|parent| match parent {
                Parent::Sequence(parent) => plan.segment(packed, packing, parent, sequence.position),
                Parent::Kept(state) => kept[state],
            });
            isa.run(Piece {
                operands: self,
                prefix,
                own: plan.segment(packed, packing, number, queries.end),
                sequence,
                queries,
                kv_head: item % heads,
                out: &out,
            });
        });
    }

    /// All keys of a kept prefix.
    fn kept<'s>(&self, width: usize, state: &'s HostState) -> Segment<'s> {
        let (tokens, key_panels) = (state.tokens, state.tokens.div_ceil(width));
        let [keys, _] = packed_elements(self.shape, width, key_panels, tokens);
        let (keys, values) = state.values.values().split_at(keys);
        let packed = Packed { keys, key_panels, values, tokens };
        Segment { packed, first_panel: 0, first_row: 0, keys: tokens }
    }

    /// Copies the packed keys and values of a whole sequence to its state.
    fn keep(&self, width: usize, segment: Segment<'_>, state: &mut HostState) {
        let (tokens, key_panels) = (state.tokens, state.tokens.div_ceil(width));
        if tokens == 0 {
            return;
        }
        let [keys, _] = packed_elements(self.shape, width, key_panels, tokens);
        let (keys, values) = state.values.values_mut().split_at_mut(keys);
        let Segment { packed, first_panel, first_row, .. } = segment;
        let panel = self.shape.head_dim * width;
        for (kv_head, keys) in keys.chunks_exact_mut(key_panels * panel).enumerate() {
            let first = (kv_head * packed.key_panels + first_panel) * panel;
            keys.copy_from_slice(&packed.keys[first..first + keys.len()]);
        }
        for (column, values) in values.chunks_exact_mut(tokens * width).enumerate() {
            let first = (column * packed.tokens + first_row) * width;
            values.copy_from_slice(&packed.values[first..first + values.len()]);
        }
    }

    fn pack_keys(&self, pool: &Pool, isa: Isa, plan: &Plan, keys: &mut Vec<f32>) {
        let AttentionShape { num_key_value_heads, head_dim, .. } = self.shape;
        let panel_elements = head_dim * plan.panel_columns;
        let panels = plan.key_panels.len();
        set_len(keys, num_key_value_heads * panels * panel_elements);
        pool.for_each_chunk(keys, panel_elements, 1, |index, values| {
            isa.run(PackKeys {
                operands: self,
                panel: &plan.key_panels[index % panels],
                kv_head: index / panels,
                values,
            });
        });
    }

    fn pack_values(&self, pool: &Pool, plan: &Plan, values: &mut Vec<f32>) {
        let AttentionShape { num_key_value_heads, head_dim, .. } = self.shape;
        let (tokens, _) = self.v.shape();
        let width = plan.panel_columns;
        let panels = head_dim.div_ceil(width);
        set_len(values, num_key_value_heads * panels * tokens * width);
        pool.for_each_chunk(values, tokens * width, 1, |index, values| {
            let first = index % panels * width;
            let columns = first..head_dim.min(first + width);
            for (token, values) in values.chunks_exact_mut(width).enumerate() {
                let head = &self.v.row(token)[index / panels * head_dim..][..head_dim];
                values[..columns.len()].copy_from_slice(&head[columns.clone()]);
                values[columns.len()..].fill(0.0);
            }
        });
    }

    /// `out = rotate(rms_norm(head)) · scale`.
    #[inline(always)]
    fn norm_and_rotate<S: Simd>(
        &self,
        simd: S,
        (head, weight): (&[f32], &[f32]),
        position: usize,
        scale: f32,
        out: &mut [f32],
    ) {
        let one = simd.splat(1.0);
        let factor = simd.splat(math::rms_scale(simd, head, self.shape.rms_norm_eps) * scale);
        for part in parts::<S>(head.len()) {
            let normed = simd.mul(simd.load_part(head, part, 0.0), factor);
            simd.store_part(simd.mul(normed, simd.add(one, simd.load_part(weight, part, 0.0))), out, part);
        }
        let (cos, sin) = self.rotary.cos_sin(position);
        let (left, right) = out[..self.shape.rotary_dim].split_at_mut(self.shape.rotary_dim / 2);
        for (((left, right), cos), sin) in left.iter_mut().zip(right).zip(cos).zip(sin) {
            (*left, *right) = (*left * cos - *right * sin, *right * cos + *left * sin);
        }
    }
}

/// Norms, rotates and transposes one panel of keys of one head.
struct PackKeys<'a> {
    operands: &'a Attention<'a>,
    panel: &'a KeyPanel,
    kv_head: usize,
    /// `[head_dim, NR]`.
    values: &'a mut [f32],
}

impl Kernel for PackKeys<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let width = NR_VECTORS * S::LANES;
        let head_dim = self.operands.shape.head_dim;
        let mut lease = Lease::of(head_dim);
        let key = lease.values_mut();
        self.values.fill(0.0);
        for (column, row) in self.panel.rows.clone().enumerate() {
            let head = &self.operands.k.row(row)[self.kv_head * head_dim..][..head_dim];
            let position = self.panel.position + column;
            self.operands.norm_and_rotate(simd, (head, self.operands.k_norm), position, 1.0, key);
            for (values, &key) in self.values.chunks_exact_mut(width).zip(&*key) {
                values[column] = key;
            }
        }
    }
}

/// Some consecutive queries of one sequence, of every query head of one key head.
struct Piece<'a> {
    operands: &'a Attention<'a>,
    /// The parent's keys, all of which every query sees.
    prefix: Option<Segment<'a>>,
    /// The sequence's own keys that the last query sees.
    own: Segment<'a>,
    sequence: Sequence,
    queries: Range<usize>,
    kv_head: usize,
    out: &'a SharedMatrix<'a>,
}

/// Some of a piece's queries, of one head, that are computed together.
#[derive(Clone, Copy)]
struct Tile {
    /// Among the piece's tiles.
    number: usize,
    head: usize,
    /// The first query, counted from the sequence's start.
    first: usize,
    rows: usize,
    /// Rows of the register tile.
    height: usize,
}

/// What a piece is computed in; see [`Sizes`] for the layouts.
struct PieceMemory<'m> {
    queries: &'m mut [f32],
    scores: &'m mut [f32],
    weights: &'m mut [f32],
    sums: &'m mut [f32],
    /// The largest score of each row so far.
    largest: &'m mut [f32],
    /// The sum of the weights of each row so far.
    totals: &'m mut [f32],
    rotated: &'m mut [f32],
}

impl<'m> PieceMemory<'m> {
    fn carve(sizes: Sizes, values: &'m mut [f32]) -> Self {
        let mut carver = Carver::new(values);
        let tiles = sizes.tiles();
        PieceMemory {
            queries: carver.take(tiles * sizes.query()),
            scores: carver.take(tiles * sizes.scores()),
            weights: carver.take(tiles * sizes.weights()),
            sums: carver.take(tiles * sizes.sums()),
            largest: carver.take(tiles * sizes.full_rows),
            totals: carver.take(tiles * sizes.full_rows),
            rotated: carver.take(sizes.shape.head_dim),
        }
    }
}

impl Kernel for Piece<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let sizes = Sizes::of(self.operands.shape, NR_VECTORS * S::LANES, S::MR);
        let mut lease = Lease::of(sizes.piece());
        let mut memory = PieceMemory::carve(sizes, lease.values_mut());
        memory.sums.fill(0.0);
        memory.totals.fill(0.0);
        memory.largest.fill(f32::NEG_INFINITY);
        for tile in self.tiles(sizes) {
            self.pack_queries(simd, sizes, tile, &mut memory);
        }
        if let Some(prefix) = self.prefix {
            self.attend(simd, sizes, prefix, |_| prefix.keys, &mut memory);
        }
        self.attend(simd, sizes, self.own, |tile| tile.first, &mut memory);
        for tile in self.tiles(sizes) {
            self.attend_own(simd, sizes, tile, &mut memory);
            self.write(simd, sizes, tile, &memory);
        }
    }
}

impl<'a> Piece<'a> {
    #[inline(always)]
    fn tiles(&self, sizes: Sizes) -> impl Iterator<Item = Tile> {
        let (queries, per_head) = (self.queries.clone(), sizes.tiles_per_head());
        (0..sizes.tiles()).filter_map(move |number| {
            let first = queries.start + number % per_head * sizes.full_rows;
            let rows = queries.end.checked_sub(first).filter(|rows| *rows > 0)?.min(sizes.full_rows);
            let head = self.kv_head * sizes.group() + number / per_head;
            Some(Tile { number, head, first, rows, height: tile_rows(rows) })
        })
    }

    /// The query and the gate of a row of a tile.
    #[inline(always)]
    fn query_and_gate(&self, tile: Tile, index: usize) -> (&[f32], &[f32]) {
        let head_dim = self.operands.shape.head_dim;
        let row = self.operands.q_gate.row(self.sequence.start + tile.first + index);
        row[2 * tile.head * head_dim..][..2 * head_dim].split_at(head_dim)
    }

    /// Norms, rotates and scales the queries of a tile.
    #[inline(always)]
    fn pack_queries<S: Simd>(&self, simd: S, sizes: Sizes, tile: Tile, memory: &mut PieceMemory<'_>) {
        let scale = 1.0 / (sizes.shape.head_dim as f32).sqrt();
        let packed = &mut memory.queries[tile.number * sizes.query()..][..sizes.shape.head_dim * tile.height];
        for index in 0..tile.rows {
            let (query, _) = self.query_and_gate(tile, index);
            let position = self.sequence.position + tile.first + index;
            self.operands.norm_and_rotate(simd, (query, self.operands.q_norm), position, scale, memory.rotated);
            for (packed, &value) in packed.chunks_exact_mut(tile.height).zip(&*memory.rotated) {
                packed[index] = value;
            }
        }
        for packed in packed.chunks_exact_mut(tile.height) {
            packed[tile.rows..].fill(0.0);
        }
    }

    /// Takes a segment's keys in, block by block: of each tile those before `visible`.
    #[inline(always)]
    fn attend<S: Simd>(
        &self,
        simd: S,
        sizes: Sizes,
        segment: Segment<'a>,
        visible: impl Fn(Tile) -> usize,
        memory: &mut PieceMemory<'_>,
    ) {
        let most = self.tiles(sizes).map(&visible).max().unwrap_or(0);
        for start in (0..most).step_by(KC) {
            let keys_of = |tile: Tile| visible(tile).saturating_sub(start).min(KC);
            let block = start..most.min(start + KC);
            // Every panel of keys, and then of values, is read once for all tiles.
            for (index, panel) in (block.start..block.end).step_by(sizes.width).enumerate() {
                for tile in self.tiles(sizes).filter(|tile| panel < block.start + keys_of(*tile)) {
                    self.score(simd, sizes, segment, panel, (tile, index), memory);
                }
            }
            for tile in self.tiles(sizes) {
                let keys = keys_of(tile);
                if keys > 0 {
                    for index in 0..tile.rows {
                        weigh(simd, sizes, (tile, index), keys, memory);
                    }
                }
            }
            for panel in 0..sizes.panels() {
                let values = &self.values(segment, panel, sizes.width)[block.start * sizes.width..];
                for tile in self.tiles(sizes) {
                    let keys = keys_of(tile);
                    let weights = &memory.weights[tile.number * sizes.weights()..][..keys * tile.height];
                    let first = tile.number * sizes.sums() + panel * tile.height * sizes.width;
                    let sums = &mut memory.sums[first..first + tile.height * sizes.width];
                    multiply(simd, tile.height, weights, values, sums);
                }
            }
        }
    }

    /// Takes a tile's own keys in: of each query those up to itself.
    #[inline(always)]
    fn attend_own<S: Simd>(&self, simd: S, sizes: Sizes, tile: Tile, memory: &mut PieceMemory<'_>) {
        let width = sizes.width;
        // Scores are in whole panels, and the tile may begin within one; its keys' scores are moved to the front.
        let first_panel = tile.first / width * width;
        let end = tile.first + tile.rows;
        for (index, panel) in (first_panel..end).step_by(width).enumerate() {
            self.score(simd, sizes, self.own, panel, (tile, index), memory);
        }
        let scores = &mut memory.scores[tile.number * sizes.scores()..][..sizes.scores()];
        for index in 0..tile.rows {
            for key in 0..=index {
                let place = |key: usize| key / width * tile.height * width + index * width + key % width;
                scores[place(key)] = scores[place(tile.first - first_panel + key)];
            }
        }
        for index in 0..tile.rows {
            weigh(simd, sizes, (tile, index), index + 1, memory);
        }
        let weights = &memory.weights[tile.number * sizes.weights()..][..tile.rows * tile.height];
        for panel in 0..sizes.panels() {
            let values = &self.values(self.own, panel, width)[tile.first * width..];
            let first = tile.number * sizes.sums() + panel * tile.height * width;
            for (index, sums) in memory.sums[first..].chunks_exact_mut(width).enumerate().take(tile.rows) {
                let mut own = [0.0; MAX_MR];
                for (own, weights) in own.iter_mut().zip(weights.chunks_exact(tile.height)).take(index + 1) {
                    *own = weights[index];
                }
                multiply(simd, 1, &own[..=index], values, sums);
            }
        }
    }

    /// A tile's scores with the panel of keys that begins at key `panel`, as panel `index` of its scores.
    #[inline(always)]
    fn score<S: Simd>(
        &self,
        simd: S,
        sizes: Sizes,
        segment: Segment<'a>,
        panel: usize,
        (tile, index): (Tile, usize),
        memory: &mut PieceMemory<'_>,
    ) {
        let panel_elements = sizes.shape.head_dim * sizes.width;
        let number = self.kv_head * segment.packed.key_panels + segment.first_panel + panel / sizes.width;
        let keys = &segment.packed.keys[number * panel_elements..][..panel_elements];
        let queries = &memory.queries[tile.number * sizes.query()..][..sizes.shape.head_dim * tile.height];
        let first = tile.number * sizes.scores() + index * tile.height * sizes.width;
        let scores = &mut memory.scores[first..first + tile.height * sizes.width];
        scores.fill(0.0);
        multiply(simd, tile.height, queries, keys, scores);
    }

    /// Writes `sigmoid(gate) · sums / total` of every query of a tile.
    #[inline(always)]
    fn write<S: Simd>(&self, simd: S, sizes: Sizes, tile: Tile, memory: &PieceMemory<'_>) {
        let Sizes { shape: AttentionShape { head_dim, .. }, width, .. } = sizes;
        let sums = &memory.sums[tile.number * sizes.sums()..][..sizes.sums()];
        for index in 0..tile.rows {
            let (_, gate) = self.query_and_gate(tile, index);
            let row = self.sequence.start + tile.first + index;
            let scale = simd.splat(1.0 / memory.totals[tile.number * sizes.full_rows + index]);
            // SAFETY: no other piece has this head of this query; the part ends with this iteration.
            let out = unsafe { self.out.part(row, tile.head * head_dim..(tile.head + 1) * head_dim) };
            for (panel, (out, gate)) in out.chunks_mut(width).zip(gate.chunks(width)).enumerate() {
                let sums = &sums[(panel * tile.height + index) * width..][..width];
                for part in parts::<S>(out.len()) {
                    let mean = simd.mul(simd.load_part(sums, part, 0.0), scale);
                    let gate = math::sigmoid(simd, simd.load_part(gate, part, 0.0));
                    simd.store_part(simd.mul(mean, gate), out, part);
                }
            }
        }
    }

    /// The values of a segment's keys, and perhaps of what lies behind it, for a panel of columns: `[tokens, NR]`.
    #[inline(always)]
    fn values(&self, segment: Segment<'a>, panel: usize, width: usize) -> &'a [f32] {
        let Packed { values, tokens, .. } = segment.packed;
        let panels = self.operands.shape.head_dim.div_ceil(width);
        &values[(self.kv_head * panels + panel) * tokens * width..][..tokens * width][segment.first_row * width..]
    }
}

/// Turns the scores of a row's first `keys` keys of a block into weights, and what the row has so far into what it would
/// have been with its largest score known from the start.
#[inline(always)]
fn weigh<S: Simd>(simd: S, sizes: Sizes, (tile, index): (Tile, usize), keys: usize, memory: &mut PieceMemory<'_>) {
    let width = sizes.width;
    let row = tile.number * sizes.full_rows + index;
    let panels = tile.height * width;
    let scores = &mut memory.scores[tile.number * sizes.scores()..][..sizes.scores()];
    let mut largest = simd.splat(memory.largest[row]);
    for (first, scores) in (0..keys).step_by(width).zip(scores.chunks_exact(panels)) {
        let scores = &scores[index * width..][..width.min(keys - first)];
        for part in parts::<S>(scores.len()) {
            largest = simd.max(largest, simd.load_part(scores, part, f32::NEG_INFINITY));
        }
    }
    let largest_score = simd.largest(largest);
    let largest = simd.splat(largest_score);
    let mut total = simd.splat(0.0);
    let weights = &mut memory.weights[tile.number * sizes.weights()..][..sizes.weights()];
    for (first, scores) in (0..keys).step_by(width).zip(scores.chunks_exact_mut(panels)) {
        let scores = &mut scores[index * width..][..width.min(keys - first)];
        for part in parts::<S>(scores.len()) {
            let weight = math::exp(simd, simd.sub(simd.load_part(scores, part, f32::NEG_INFINITY), largest));
            total = simd.add(total, weight);
            simd.store_part(weight, scores, part);
        }
        let weights = weights[first * tile.height + index..].iter_mut().step_by(tile.height);
        for (weight, &score) in weights.zip(&*scores) {
            *weight = score;
        }
    }
    let before = memory.largest[row];
    let mut lanes = [0.0; MAX_LANES];
    simd.store(math::exp(simd, simd.sub(simd.splat(before), largest)), &mut lanes);
    memory.largest[row] = largest_score;
    memory.totals[row] = memory.totals[row] * lanes[0] + simd.sum(total);
    if before.to_bits() != largest_score.to_bits() {
        let factor = simd.splat(lanes[0]);
        let sums = &mut memory.sums[tile.number * sizes.sums()..][..sizes.sums()];
        for sums in sums.chunks_exact_mut(panels) {
            for sums in sums[index * width..][..width].chunks_exact_mut(S::LANES) {
                simd.store(simd.mul(simd.load(sums), factor), sums);
            }
        }
    }
}
