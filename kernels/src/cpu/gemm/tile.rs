//! The register tile: a few rows times two vectors of columns, accumulated in registers.

use crate::cpu::gemm::NR_VECTORS;
use crate::cpu::simd::Simd;

/// Rows of the tallest register tile.
pub(crate) const MAX_MR: usize = 14;

/// Heights that are compiled; a tile takes the smallest that holds its rows, so that few rows cost little.
const HEIGHTS: [usize; 8] = [1, 2, 3, 4, 6, 8, 11, 14];

/// Rows of the tile that `rows` rows are multiplied in, at most [`MAX_MR`].
pub(crate) fn tile_rows(rows: usize) -> usize {
    HEIGHTS.into_iter().find(|&height| height >= rows).expect("a tile has at most MAX_MR rows")
}

/// `out[i, j] = Σ_k lhs[k, i] · rhs[k, j]`, summed in the order of `k`, one chain per element.
///
/// `lhs` is `[k, tile_rows]` with `tile_rows` from [`tile_rows`], `rhs` is `[k, NR]`, `out` is `[tile_rows, NR]`
/// (and may be longer).
#[inline(always)]
pub(crate) fn multiply<S: Simd>(simd: S, tile_rows: usize, lhs: &[f32], rhs: &[f32], out: &mut [f32]) {
    match tile_rows {
        1 => tile::<S, 1>(simd, lhs, rhs, out),
        2 => tile::<S, 2>(simd, lhs, rhs, out),
        3 => tile::<S, 3>(simd, lhs, rhs, out),
        4 => tile::<S, 4>(simd, lhs, rhs, out),
        6 => tile::<S, 6>(simd, lhs, rhs, out),
        8 if S::MR > 6 => tile::<S, 8>(simd, lhs, rhs, out),
        11 if S::MR > 6 => tile::<S, 11>(simd, lhs, rhs, out),
        14 if S::MR > 6 => tile::<S, 14>(simd, lhs, rhs, out),
        other => unreachable!("no tile of {other} rows is compiled"),
    }
}

#[inline(always)]
fn tile<S: Simd, const MR: usize>(simd: S, lhs: &[f32], rhs: &[f32], out: &mut [f32]) {
    let mut sums = [[simd.splat(0.0); NR_VECTORS]; MR];
    let (lhs, _) = lhs.as_chunks::<MR>();
    for (lhs, rhs) in lhs.iter().zip(rhs.chunks_exact(NR_VECTORS * S::LANES)) {
        let rhs = [simd.load(rhs), simd.load(&rhs[S::LANES..])];
        for (sums, &lhs) in sums.iter_mut().zip(lhs) {
            let lhs = simd.splat(lhs);
            sums[0] = simd.mul_add(lhs, rhs[0], sums[0]);
            sums[1] = simd.mul_add(lhs, rhs[1], sums[1]);
        }
    }
    for (sums, out) in sums.iter().zip(out.chunks_exact_mut(NR_VECTORS * S::LANES)) {
        simd.store(sums[0], out);
        simd.store(sums[1], &mut out[S::LANES..]);
    }
}
