//! Operands in the order in which the register tile reads them.

use std::ops::Range;

use half::bf16;

use crate::cpu::gemm::{KC, NR_VECTORS, PACKED_ROWS, PanelColumns, TileRows, tile_rows};
use crate::cpu::pool::Pool;
use crate::cpu::simd::{Isa, Simd};
use crate::host::{HostMatrix, set_len};
use crate::{DType, HostTensor, KernelError, huge};

/// A Linear weight `[out, in]` as panels `[out / NR][in][NR]`; the outputs that the last panel lacks are zero.
#[derive(Debug)]
pub struct CpuWeight {
    outputs: usize,
    inputs: usize,
    panel_columns: usize,
    panels: Panels,
}

#[derive(Debug)]
enum Panels {
    Bf16(Vec<u16>),
    F32(Vec<f32>),
}

impl CpuWeight {
    /// Packs a weight for an instruction set.
    pub(crate) fn pack(pool: &Pool, isa: Isa, weight: HostTensor<'_>) -> Result<Self, KernelError> {
        let (outputs, inputs) = weight.linear_shape("load_weight")?;
        let panel_columns = isa.run(PanelColumns);
        let panels = match weight.dtype {
            DType::Bf16 => {
                Panels::Bf16(pack_panels(pool, inputs, panel_columns, weight.bytes.as_chunks().0, u16::from_le_bytes))
            }
            DType::F32 => {
                Panels::F32(pack_panels(pool, inputs, panel_columns, weight.bytes.as_chunks().0, f32::from_le_bytes))
            }
        };
        Ok(CpuWeight { outputs, inputs, panel_columns, panels })
    }

    pub(crate) fn outputs(&self) -> usize {
        self.outputs
    }

    /// The element type that it has in memory.
    pub(crate) fn dtype(&self) -> DType {
        match self.panels {
            Panels::Bf16(_) => DType::Bf16,
            Panels::F32(_) => DType::F32,
        }
    }

    pub(crate) fn inputs(&self) -> usize {
        self.inputs
    }

    pub(crate) fn panel_columns(&self) -> usize {
        self.panel_columns
    }

    pub(crate) fn panels(&self) -> usize {
        self.outputs.div_ceil(self.panel_columns)
    }

    /// Bytes of its panels.
    pub fn bytes(&self) -> usize {
        match &self.panels {
            Panels::Bf16(values) => size_of_val(values.as_slice()),
            Panels::F32(values) => size_of_val(values.as_slice()),
        }
    }

    /// A block of inputs of a panel, `[block, NR]` in F32: as stored, or widened into `scratch`.
    #[inline(always)]
    pub(crate) fn block<'a, S: Simd>(
        &'a self,
        simd: S,
        panel: usize,
        block: Range<usize>,
        scratch: &'a mut [f32],
    ) -> &'a [f32] {
        let width = NR_VECTORS * S::LANES;
        let elements = (panel * self.inputs + block.start) * width..(panel * self.inputs + block.end) * width;
        match &self.panels {
            Panels::F32(values) => &values[elements],
            Panels::Bf16(values) => {
                let values = &values[elements];
                let widened = &mut scratch[..values.len()];
                for (values, widened) in values.chunks_exact(S::LANES).zip(widened.chunks_exact_mut(S::LANES)) {
                    simd.store(simd.load_bf16(values), widened);
                }
                widened
            }
        }
    }
}

/// Transposes each group of `width` rows of a row-major `[rows, inputs]` weight.
fn pack_panels<T: Copy + Default + Send, const BYTES: usize>(
    pool: &Pool,
    inputs: usize,
    width: usize,
    elements: &[[u8; BYTES]],
    from_bytes: impl Fn([u8; BYTES]) -> T + Sync,
) -> Vec<T> {
    let panel_elements = inputs * width;
    if panel_elements == 0 {
        return Vec::new();
    }
    let mut panels = vec![T::default(); elements.len().div_ceil(panel_elements) * panel_elements];
    huge::advise(&panels);
    pool.for_each_chunk(&mut panels, panel_elements, 1, |panel, values| {
        let rows = &elements[panel * panel_elements..elements.len().min((panel + 1) * panel_elements)];
        for (column, row) in rows.chunks_exact(inputs).enumerate() {
            for (input, &bytes) in row.iter().enumerate() {
                values[input * width + column] = from_bytes(bytes);
            }
        }
    });
    panels
}

/// `rows` and the rows that the last tile lacks.
pub(crate) fn padded(rows: usize, full_rows: usize) -> usize {
    let last = rows % full_rows;
    rows - last + if last == 0 { 0 } else { tile_rows(last) }
}

/// Rows of a left operand as tiles `[rows / MR][in][MR]`; the last tile is as low as the compiled heights allow, and
/// the rows that it lacks are zero.
#[derive(Debug, Default)]
pub(crate) struct Lhs {
    rows: usize,
    inputs: usize,
    full_rows: usize,
    values: Vec<f32>,
}

impl Lhs {
    /// Packs some rows of a matrix with at least one column, each element rounded to BF16 if it `rounds`.
    pub(crate) fn pack(&mut self, pool: &Pool, x: &HostMatrix, rows: Range<usize>, full_rows: usize, rounds: bool) {
        let inputs = x.shape().1;
        (self.rows, self.inputs, self.full_rows) = (rows.len(), inputs, full_rows);
        set_len(&mut self.values, padded(rows.len(), full_rows) * inputs);
        pool.for_each_chunk(&mut self.values, full_rows * inputs, 1, |tile, values| {
            let height = values.len() / inputs;
            let first = rows.start + tile * full_rows;
            // A block of the tile at a time, which stays in cache while each row is scattered over it.
            for (block, values) in values.chunks_mut(KC * height).enumerate() {
                for row in 0..height {
                    let scattered = values[row..].iter_mut().step_by(height);
                    if first + row < rows.end {
                        let source = &x.row(first + row)[block * KC..];
                        if rounds {
                            scattered.zip(source).for_each(|(value, &x)| *value = bf16::from_f32(x).to_f32());
                        } else {
                            scattered.zip(source).for_each(|(value, &x)| *value = x);
                        }
                    } else {
                        scattered.for_each(|value| *value = 0.0);
                    }
                }
            }
        });
    }

    /// Bytes that it keeps.
    pub(crate) fn bytes(&self) -> usize {
        self.values.capacity() * size_of::<f32>()
    }

    /// The most bytes that it keeps once it has packed a left operand of `rows` rows.
    pub(crate) fn bytes_for(isa: Isa, rows: usize, inputs: usize) -> usize {
        padded(rows.min(PACKED_ROWS), isa.run(TileRows)) * inputs * size_of::<f32>()
    }

    /// The tiles of some of the packed rows, which start at a tile.
    pub(crate) fn tiles(&self, rows: Range<usize>) -> Range<usize> {
        rows.start / self.full_rows..rows.end.div_ceil(self.full_rows)
    }

    /// Of a tile: its rows and its height.
    #[inline(always)]
    pub(crate) fn rows(&self, tile: usize) -> (Range<usize>, usize) {
        let first = tile * self.full_rows;
        let rows = first..self.rows.min(first + self.full_rows);
        (rows.clone(), tile_rows(rows.len()))
    }

    /// The heights of some tiles together.
    pub(crate) fn padded_rows(&self, tiles: Range<usize>) -> usize {
        padded(self.rows.min(tiles.end * self.full_rows) - tiles.start * self.full_rows, self.full_rows)
    }

    /// Of a tile: its rows, its height, and a block of its inputs `[block, height]`.
    #[inline(always)]
    pub(crate) fn block(&self, tile: usize, block: Range<usize>) -> (Range<usize>, usize, &[f32]) {
        let (rows, height) = self.rows(tile);
        let values = &self.values[rows.start * self.inputs..];
        (rows, height, &values[block.start * height..block.end * height])
    }
}
