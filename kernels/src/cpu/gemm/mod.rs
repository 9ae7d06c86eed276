//! The matrix product `out = x · weightᵀ` on packed operands.
//!
//! Invariant: an element of `out` is the sum, block by block of [`KC`] inputs in ascending order, of sequential sums
//! within each block. Neither the number of rows, nor an element's place among them, nor the number of threads enters
//! into it, so that a row's result is the same alone and in company, bit for bit.
//!
//! BF16 weights stay BF16 in memory. One block of a panel at a time is widened into the first-level cache and used for
//! many rows, which costs a few percent of the product.

mod pack;
mod tile;

use crate::KernelError;
use crate::checks;
use crate::cpu::lease::Lease;
use crate::cpu::pool::Pool;
use crate::cpu::shared::SharedMatrix;
use crate::cpu::simd::{Isa, Kernel, Simd, parts};
use crate::host::HostMatrix;

pub use pack::CpuWeight;
pub(crate) use pack::{Lhs, padded};
pub(crate) use tile::{MAX_MR, multiply, tile_rows};

/// Inputs summed before their sum is added to the output.
pub(crate) const KC: usize = 256;
/// Vectors in a row of a register tile; a panel of weights holds `NR_VECTORS * LANES` outputs.
pub(crate) const NR_VECTORS: usize = 2;

/// Rows that are packed at a time, which bounds the scratch memory: whole tiles of every instruction set.
const PACKED_ROWS: usize = 1008;
/// Rows of one piece of work: so many that widening a weight is cheap beside using it, so few that a block of them
/// (`TASK_ROWS * KC` elements) and their sums (`TASK_ROWS * TASK_PANELS * NR`) stay in the second-level cache.
const TASK_ROWS: usize = 168;
/// Panels of one piece of work, where there is enough work for all threads.
const TASK_PANELS: usize = 4;

/// Elements that a piece of work needs for itself: the widened block of a panel, and its sums.
pub(crate) fn task_elements(isa: Isa) -> [usize; 2] {
    let width = isa.run(PanelColumns);
    [KC * width, TASK_ROWS * TASK_PANELS * width]
}

/// `out = x · weightᵀ` of each product, with `x` rounded to BF16 if it `rounds`; `lhs` is scratch memory.
pub(crate) fn linear_each(
    pool: &Pool,
    isa: Isa,
    x: &HostMatrix,
    products: &mut [(&CpuWeight, &mut HostMatrix)],
    rounds: bool,
    lhs: &mut Lhs,
) -> Result<(), KernelError> {
    let (rows, inputs) = x.shape();
    for (weight, out) in &mut *products {
        checks::dimension("linear", "columns of x", weight.inputs(), inputs)?;
        checks::dimension("linear", "columns of a weight's panel", isa.run(PanelColumns), weight.panel_columns())?;
        out.reshape(rows, weight.outputs());
        if inputs == 0 {
            out.values_mut().fill(0.0);
        }
    }
    if inputs == 0 {
        return Ok(());
    }
    let outs: Vec<_> = products.iter_mut().map(|(weight, out)| (*weight, SharedMatrix::new(out))).collect();
    let panels: usize = outs.iter().map(|(weight, _)| weight.panels()).sum();
    for first in (0..rows).step_by(PACKED_ROWS) {
        let rows = first..rows.min(first + PACKED_ROWS);
        lhs.pack(pool, x, rows.clone(), isa.run(TileRows), rounds);
        let row_tasks = rows.len().div_ceil(TASK_ROWS);
        let busy = row_tasks * panels >= 8 * TASK_PANELS * pool.threads();
        let task_panels = if busy { TASK_PANELS } else { 1 };
        // Panels after panels, so that what is left when threads run out of work is small.
        let pieces = outs.iter().flat_map(|(weight, out)| {
            let firsts = (0..weight.panels()).step_by(task_panels);
            firsts.map(move |panel| (*weight, out, panel..weight.panels().min(panel + task_panels)))
        });
        let pieces: Vec<_> = pieces.collect();
        pool.for_each(row_tasks * pieces.len(), |task| {
            let first_row = task / pieces.len() * TASK_ROWS;
            let (weight, out, panels) = &pieces[task % pieces.len()];
            isa.run(Task {
                weight,
                lhs,
                tiles: lhs.tiles(first_row..rows.len().min(first_row + TASK_ROWS)),
                panels: panels.clone(),
                first,
                out,
            });
        });
    }
    Ok(())
}

/// Columns of a panel of weights.
pub(crate) struct PanelColumns;

impl Kernel for PanelColumns {
    type Output = usize;
    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> usize {
        NR_VECTORS * S::LANES
    }
}

/// Rows of a full register tile.
pub(crate) struct TileRows;

impl Kernel for TileRows {
    type Output = usize;
    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> usize {
        S::MR
    }
}

/// One rectangle of the output: some tiles of rows times some panels of columns.
struct Task<'a> {
    weight: &'a CpuWeight,
    lhs: &'a Lhs,
    tiles: std::ops::Range<usize>,
    panels: std::ops::Range<usize>,
    /// The output row of the first packed row.
    first: usize,
    out: &'a SharedMatrix<'a>,
}

impl Kernel for Task<'_> {
    type Output = ();

    /// Blocks of inputs outermost, so that the rows' block stays in cache over the panels and the panel's widened block
    /// over the tiles. The output is written once: its rows are far from each other, and every visit of one would miss the
    /// cache.
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let width = NR_VECTORS * S::LANES;
        let inputs = self.weight.inputs();
        let panel_elements = self.lhs.padded_rows(self.tiles.clone()) * width;
        let mut sums = Lease::zeroed(self.panels.len() * panel_elements);
        let mut widened = Lease::of(KC * width);
        for start in (0..inputs).step_by(KC) {
            let block = start..inputs.min(start + KC);
            for (panel, sums) in self.panels.clone().zip(sums.values_mut().chunks_exact_mut(panel_elements)) {
                let rhs = self.weight.block(simd, panel, block.clone(), widened.values_mut());
                let mut rest = sums;
                for tile in self.tiles.clone() {
                    let (_, height, lhs) = self.lhs.block(tile, block.clone());
                    let (sums, after) = std::mem::take(&mut rest).split_at_mut(height * width);
                    multiply(simd, height, lhs, rhs, sums);
                    rest = after;
                }
            }
        }
        self.store(simd, sums.values_mut(), panel_elements);
    }
}

impl Task<'_> {
    /// Writes the panels' columns of every row. `sums` are `[panels][tile_rows of every tile, NR]`.
    #[inline(always)]
    fn store<S: Simd>(&self, simd: S, sums: &[f32], panel_elements: usize) {
        let width = NR_VECTORS * S::LANES;
        let columns = self.panels.start * width..self.weight.outputs().min(self.panels.end * width);
        let mut first = 0;
        for tile in self.tiles.clone() {
            let (rows, height) = self.lhs.rows(tile);
            for (index, row) in rows.enumerate() {
                // SAFETY: `linear_each` gives each task rows and panels that no other task has, and a task's parts live one
                // at a time.
                let out = unsafe { self.out.part(self.first + row, columns.clone()) };
                for (out, sums) in out.chunks_mut(width).zip(sums.chunks_exact(panel_elements)) {
                    let sums = &sums[first + index * width..][..width];
                    for part in parts::<S>(out.len()) {
                        simd.store_part(simd.load_part(sums, part, 0.0), out, part);
                    }
                }
            }
            first += height * width;
        }
    }
}
