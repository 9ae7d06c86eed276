//! Gated causal attention by tiles of queries, on the matrix product's register tile.
//!
//! Keys are normed and rotated once and packed as panels `[head_dim][NR keys]`, values as panels `[tokens][NR columns]`;
//! a prefix's panels serve all its blocks, and those of later batches where they are kept. A piece of work has a few queries of one head: their scores with every key
//! they see (a strip of `MR × keys`, never `L × L`), the softmax of each row, and the product with the values: of the
//! keys that all the tile's queries see, block by block of [`KC`] keys counted from the start of the prefix and of the
//! sequence; of the tile's own keys, query by query up to the query itself.
//!
//! Invariant: a key that a query does not see takes no part in the query's result. A probability of zero would not keep
//! it out: zero times an infinite value is not a number. Tiles are counted from the start of the sequence, so a query's
//! sum has the same bits whichever queries share its tile.

use std::ops::Range;

use crate::checks::Shape;
use crate::cpu::gemm::{KC, MAX_MR, MAX_NR, NR_VECTORS, PanelColumns, TileRows, multiply, tile_rows};
use crate::cpu::math;
use crate::cpu::pool::Pool;
use crate::cpu::shared::SharedMatrix;
use crate::cpu::simd::{Isa, Kernel, Simd, parts};
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

/// The most bytes that one thread works on, for a query that sees `visible` keys: scores, weights and queries of a tile.
pub(crate) fn tile_bytes(shape: AttentionShape, isa: Isa, visible: usize) -> usize {
    let rows = isa.run(TileRows);
    (rows * (2 * visible + shape.head_dim) + shape.head_dim) * size_of::<f32>()
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
    /// Sequence and queries (counted from the sequence's start) of each tile.
    tiles: Vec<(usize, Range<usize>)>,
}

impl Plan {
    fn new(packing: &Packing, panel_columns: usize, tile_queries: usize) -> Self {
        let mut plan = Plan { panel_columns, key_panels: Vec::new(), first_panels: Vec::new(), tiles: Vec::new() };
        for (number, &sequence) in packing.sequences.iter().enumerate() {
            plan.first_panels.push(plan.key_panels.len());
            for key in (0..sequence.len).step_by(panel_columns) {
                let rows = sequence.start + key..sequence.start + sequence.len.min(key + panel_columns);
                plan.key_panels.push(KeyPanel { rows, position: sequence.position + key });
            }
            let tiles = (0..sequence.len).step_by(tile_queries);
            plan.tiles.extend(tiles.map(|first| (number, first..sequence.len.min(first + tile_queries))));
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
        let plan = Plan::new(packing, isa.run(PanelColumns), isa.run(TileRows));
        if plan.tiles.is_empty() {
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
        let heads = self.shape.num_attention_heads;
        pool.for_each(plan.tiles.len() * heads, |item| {
            let (number, queries) = plan.tiles[item / heads].clone();
            let sequence = packing.sequences[number];
            let prefix = sequence.parent.map(|parent| match parent {
                Parent::Sequence(parent) => plan.segment(packed, packing, parent, sequence.position),
                Parent::Kept(state) => kept[state],
            });
            isa.run(QueryTile {
                operands: self,
                prefix,
                own: plan.segment(packed, packing, number, queries.end),
                sequence,
                queries,
                head: item % heads,
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
        let mut key = vec![0.0; head_dim];
        self.values.fill(0.0);
        for (column, row) in self.panel.rows.clone().enumerate() {
            let head = &self.operands.k.row(row)[self.kv_head * head_dim..][..head_dim];
            let position = self.panel.position + column;
            self.operands.norm_and_rotate(simd, (head, self.operands.k_norm), position, 1.0, &mut key);
            for (values, &key) in self.values.chunks_exact_mut(width).zip(&key) {
                values[column] = key;
            }
        }
    }
}

/// Some consecutive queries of one head of one sequence.
struct QueryTile<'a> {
    operands: &'a Attention<'a>,
    /// The parent's keys, all of which every query sees.
    prefix: Option<Segment<'a>>,
    /// The sequence's own keys that the last query sees.
    own: Segment<'a>,
    sequence: Sequence,
    queries: Range<usize>,
    head: usize,
    out: &'a SharedMatrix<'a>,
}

impl Kernel for QueryTile<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let height = tile_rows(self.queries.len());
        let common = self.sequence.position + self.queries.start;
        let visible = common + self.queries.len();
        let mut scores = vec![0.0; height * visible];
        self.score(simd, height, &mut scores);
        let mut weights =
            Weights { height, common: vec![0.0; common * height], own: [[0.0; MAX_MR]; MAX_MR], totals: [1.0; MAX_MR] };
        for (query, scores) in scores.chunks_exact_mut(visible).take(self.queries.len()).enumerate() {
            let seen = &mut scores[..=common + query];
            weights.totals[query] = exponentials(simd, seen);
            let (shared, own) = seen.split_at(common);
            for (weights, &weight) in weights.common.chunks_exact_mut(height).zip(shared) {
                weights[query] = weight;
            }
            weights.own[query][..own.len()].copy_from_slice(own);
        }
        self.mix(simd, &weights);
    }
}

/// How much of each value goes into each query's result, before the division by the query's total.
struct Weights {
    /// Queries of the register tile.
    height: usize,
    /// `[keys before the tile, height]`: of the keys that every query sees.
    common: Vec<f32>,
    /// `[query, key]`: of the tile's own keys, as many for each query as it sees.
    own: [[f32; MAX_MR]; MAX_MR],
    totals: [f32; MAX_MR],
}

impl<'a> QueryTile<'a> {
    #[inline(always)]
    fn kv_head(&self) -> usize {
        let AttentionShape { num_attention_heads, num_key_value_heads, .. } = self.operands.shape;
        self.head / (num_attention_heads / num_key_value_heads)
    }

    /// The query's row of `q_gate`, its query and its gate.
    #[inline(always)]
    fn query_and_gate(&self, query: usize) -> (&[f32], &[f32]) {
        let head_dim = self.operands.shape.head_dim;
        let row = self.operands.q_gate.row(self.sequence.start + self.queries.start + query);
        row[2 * self.head * head_dim..][..2 * head_dim].split_at(head_dim)
    }

    /// `[head_dim, height]`: the queries normed, rotated and scaled.
    #[inline(always)]
    fn pack_queries<S: Simd>(&self, simd: S, height: usize) -> Vec<f32> {
        let head_dim = self.operands.shape.head_dim;
        let scale = 1.0 / (head_dim as f32).sqrt();
        let mut rotated = vec![0.0; head_dim];
        let mut packed = vec![0.0; head_dim * height];
        for query in 0..self.queries.len() {
            let (head, _) = self.query_and_gate(query);
            let position = self.sequence.position + self.queries.start + query;
            self.operands.norm_and_rotate(simd, (head, self.operands.q_norm), position, scale, &mut rotated);
            for (packed, &value) in packed.chunks_exact_mut(height).zip(&rotated) {
                packed[query] = value;
            }
        }
        packed
    }

    /// Writes every query's scores with the keys that any of them sees, `[height, visible]`.
    #[inline(always)]
    fn score<S: Simd>(&self, simd: S, height: usize, scores: &mut [f32]) {
        let width = NR_VECTORS * S::LANES;
        let visible = scores.len() / height;
        let panel_elements = self.operands.shape.head_dim * width;
        let queries = self.pack_queries(simd, height);
        let mut products = [0.0; MAX_MR * MAX_NR];
        let mut start = 0;
        for segment in self.prefix.into_iter().chain([self.own]) {
            let end = start + segment.keys;
            for (panel, first) in (start..end).step_by(width).enumerate() {
                let panel = self.kv_head() * segment.packed.key_panels + segment.first_panel + panel;
                let keys = &segment.packed.keys[panel * panel_elements..][..panel_elements];
                products[..height * width].fill(0.0);
                multiply(simd, height, &queries, keys, &mut products);
                let columns = first..end.min(first + width);
                for (products, scores) in products.chunks_exact(width).zip(scores.chunks_exact_mut(visible)) {
                    scores[columns.clone()].copy_from_slice(&products[..columns.len()]);
                }
            }
            start = end;
        }
    }

    /// Writes `sigmoid(gate) · Σ_j weights[j] · v[j] / total` of every query.
    #[inline(always)]
    fn mix<S: Simd>(&self, simd: S, weights: &Weights) {
        let width = NR_VECTORS * S::LANES;
        let head_dim = self.operands.shape.head_dim;
        let mut sums = [0.0; MAX_MR * MAX_NR];
        for panel in 0..head_dim.div_ceil(width) {
            self.weighted_values(simd, weights, panel, &mut sums);
            let columns = panel * width..head_dim.min((panel + 1) * width);
            for query in 0..self.queries.len() {
                let row = self.sequence.start + self.queries.start + query;
                let (_, gate) = self.query_and_gate(query);
                let head = self.head * head_dim;
                // SAFETY: no other piece has this head of these queries; the part ends with this iteration.
                let out = unsafe { self.out.part(row, head + columns.start..head + columns.end) };
                let sums = &sums[query * width..][..out.len()];
                let scale = simd.splat(1.0 / weights.totals[query]);
                let gate = &gate[columns.clone()];
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
        &values[(self.kv_head() * panels + panel) * tokens * width..][..tokens * width][segment.first_row * width..]
    }

    /// `sums[i, c] = Σ_j weights[j, i] · v[j, c]` for a panel of columns, over the keys that query `i` sees.
    #[inline(always)]
    fn weighted_values<S: Simd>(&self, simd: S, weights: &Weights, panel: usize, sums: &mut [f32; MAX_MR * MAX_NR]) {
        let width = NR_VECTORS * S::LANES;
        let mut rest = weights.common.as_slice();
        sums.fill(0.0);
        for segment in self.prefix.into_iter().chain([Segment { keys: self.queries.start, ..self.own }]) {
            let (weights_of_segment, after) = rest.split_at(segment.keys * weights.height);
            rest = after;
            let values = self.values(segment, panel, width);
            for (block, values) in weights_of_segment.chunks(KC * weights.height).zip(values.chunks(KC * width)) {
                multiply(simd, weights.height, block, values, sums);
            }
        }
        let values = &self.values(self.own, panel, width)[self.queries.start * width..];
        for (query, sums) in sums.chunks_exact_mut(width).take(self.queries.len()).enumerate() {
            multiply(simd, 1, &weights.own[query][..=query], values, sums);
        }
    }
}

/// `scores[j] = exp(scores[j] − max)`; returns their sum.
#[inline(always)]
fn exponentials<S: Simd>(simd: S, scores: &mut [f32]) -> f32 {
    let mut largest = simd.splat(f32::NEG_INFINITY);
    for part in parts::<S>(scores.len()) {
        largest = simd.max(largest, simd.load_part(scores, part, f32::NEG_INFINITY));
    }
    let largest = simd.splat(simd.largest(largest));
    let mut total = simd.splat(0.0);
    for part in parts::<S>(scores.len()) {
        let score = simd.load_part(scores, part, f32::NEG_INFINITY);
        let value = math::exp(simd, simd.sub(score, largest));
        total = simd.add(total, value);
        simd.store_part(value, scores, part);
    }
    simd.sum(total)
}
