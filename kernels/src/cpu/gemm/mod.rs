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
use crate::cpu::aligned::AlignedArray;
use crate::cpu::pool::Pool;
use crate::cpu::shared::SharedMatrix;
use crate::cpu::simd::{Isa, Kernel, MAX_LANES, Simd};
use crate::host::HostMatrix;

pub use pack::CpuWeight;
pub(crate) use pack::Lhs;
pub(crate) use tile::{MAX_MR, multiply, tile_rows};

/// Inputs summed before their sum is added to the output.
pub(crate) const KC: usize = 256;
/// Vectors in a row of a register tile; a panel of weights holds `NR_VECTORS * LANES` outputs.
pub(crate) const NR_VECTORS: usize = 2;
/// Columns of the widest register tile.
pub(crate) const MAX_NR: usize = NR_VECTORS * MAX_LANES;

/// Rows that are packed at a time, which bounds the scratch memory: whole tiles of every instruction set.
const PACKED_ROWS: usize = 1008;
/// Rows of one piece of work: so many that widening a weight is cheap beside using it, so few that a block of them
/// (`TASK_ROWS * KC` elements) stays in the second-level cache.
const TASK_ROWS: usize = 336;
/// Panels of one piece of work, where there is enough work for all threads.
const TASK_PANELS: usize = 4;

/// `out = x · weightᵀ`; `lhs` is scratch memory.
pub(crate) fn linear(
    pool: &Pool,
    isa: Isa,
    weight: &CpuWeight,
    x: &HostMatrix,
    lhs: &mut Lhs,
    out: &mut HostMatrix,
) -> Result<(), KernelError> {
    let (rows, inputs) = x.shape();
    checks::dimension("linear", "columns of x", weight.inputs(), inputs)?;
    checks::dimension("linear", "columns of a weight's panel", isa.run(PanelColumns), weight.panel_columns())?;
    out.reshape(rows, weight.outputs());
    if inputs == 0 {
        out.values_mut().fill(0.0);
        return Ok(());
    }
    let out = SharedMatrix::new(out);
    for first in (0..rows).step_by(PACKED_ROWS) {
        let rows = first..rows.min(first + PACKED_ROWS);
        lhs.pack(pool, x, rows.clone(), isa.run(TileRows));
        let row_tasks = rows.len().div_ceil(TASK_ROWS);
        let busy = row_tasks * weight.panels() >= 8 * TASK_PANELS * pool.threads();
        let task_panels = if busy { TASK_PANELS } else { 1 };
        let column_tasks = weight.panels().div_ceil(task_panels);
        pool.for_each(row_tasks * column_tasks, |task| {
            let first_row = task / column_tasks * TASK_ROWS;
            let first_panel = task % column_tasks * task_panels;
            isa.run(Task {
                weight,
                lhs,
                tiles: lhs.tiles(first_row..rows.len().min(first_row + TASK_ROWS)),
                panels: first_panel..weight.panels().min(first_panel + task_panels),
                first,
                out: &out,
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
    /// over the tiles.
    #[inline(always)]
    #[allow(clippy::large_stack_arrays)] // 32 KiB, on threads of our own pool.
    fn run<S: Simd>(self, simd: S) {
        let mut widened = AlignedArray([0.0; KC * MAX_NR]);
        let mut products = AlignedArray([0.0; MAX_MR * MAX_NR]);
        let inputs = self.weight.inputs();
        for start in (0..inputs).step_by(KC) {
            let block = start..inputs.min(start + KC);
            for panel in self.panels.clone() {
                let rhs = self.weight.block(simd, panel, block.clone(), &mut widened.0);
                for tile in self.tiles.clone() {
                    let (rows, tile_rows, lhs) = self.lhs.block(tile, block.clone());
                    multiply(simd, tile_rows, lhs, rhs, &mut products.0);
                    self.accumulate::<S>(&products.0, rows, panel, start == 0);
                }
            }
        }
    }
}

impl Task<'_> {
    /// Adds a tile's products to the output; the first block's products are the output so far.
    #[inline(always)]
    fn accumulate<S: Simd>(&self, products: &[f32], rows: std::ops::Range<usize>, panel: usize, is_first: bool) {
        let width = NR_VECTORS * S::LANES;
        let columns = panel * width..self.weight.outputs().min((panel + 1) * width);
        for (row, products) in rows.zip(products.chunks_exact(width)) {
            // SAFETY: `linear` gives each task rows and panels that no other task has, and a task's parts live one at a
            // time.
            let out = unsafe { self.out.part(self.first + row, columns.clone()) };
            if is_first {
                out.copy_from_slice(&products[..columns.len()]);
            } else {
                for (out, product) in out.iter_mut().zip(products) {
                    *out += product;
                }
            }
        }
    }
}
