//! The register tile: a few rows times two vectors of columns, accumulated in registers.

use crate::cpu::gemm::NR_VECTORS;
use crate::cpu::simd::{Kernel, Simd};

/// Rows of the tallest register tile.
pub(crate) const MAX_MR: usize = 14;

/// Heights that are compiled; a tile takes the smallest that holds its rows, so that few rows cost little.
const HEIGHTS: [usize; 8] = [1, 2, 3, 4, 6, 8, 11, 14];

/// Rows of the tile that `rows` rows are multiplied in, at most [`MAX_MR`].
pub(crate) fn tile_rows(rows: usize) -> usize {
    HEIGHTS.into_iter().find(|&height| height >= rows).expect("a tile has at most MAX_MR rows")
}

/// `sums[i, j] += Σ_k lhs[k, i] · rhs[k, j]`: one chain per element in the order of `k`, added at its end.
///
/// `lhs` is `[k, tile_rows]` with `tile_rows` from [`tile_rows`], `rhs` is `[k, NR]`, `sums` is `[tile_rows, NR]`
/// (each may be longer).
#[inline(always)]
pub(crate) fn multiply<S: Simd>(simd: S, tile_rows: usize, lhs: &[f32], rhs: &[f32], sums: &mut [f32]) {
    simd.apart(Multiply { tile_rows, lhs, rhs, sums });
}

struct Multiply<'a> {
    tile_rows: usize,
    lhs: &'a [f32],
    rhs: &'a [f32],
    sums: &'a mut [f32],
}

impl Kernel for Multiply<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Multiply { tile_rows, lhs, rhs, sums } = self;
        match tile_rows {
            1 => tile::<S, 1>(simd, lhs, rhs, sums),
            2 => tile::<S, 2>(simd, lhs, rhs, sums),
            3 => tile::<S, 3>(simd, lhs, rhs, sums),
            4 => tile::<S, 4>(simd, lhs, rhs, sums),
            6 => tile::<S, 6>(simd, lhs, rhs, sums),
            8 if S::MR > 6 => tile::<S, 8>(simd, lhs, rhs, sums),
            11 if S::MR > 6 => tile::<S, 11>(simd, lhs, rhs, sums),
            14 if S::MR > 6 => tile::<S, 14>(simd, lhs, rhs, sums),
            other => unreachable!("no tile of {other} rows is compiled"),
        }
    }
}

/// Steps of `k` that are written out one after another: the loop's own instructions would cost as much as a tenth of the
/// product otherwise.
const UNROLL: usize = 4;

#[inline(always)]
fn tile<S: Simd, const MR: usize>(simd: S, lhs: &[f32], rhs: &[f32], sums: &mut [f32]) {
    let width = NR_VECTORS * S::LANES;
    let mut chains = [[simd.splat(0.0); NR_VECTORS]; MR];
    let (lhs, _) = lhs.as_chunks::<MR>();
    let (unrolled, rest) = lhs.as_chunks::<UNROLL>();
    let (unrolled_rhs, rest_rhs) = rhs.split_at(unrolled.len() * UNROLL * width);
    for (lhs, rhs) in unrolled.iter().zip(unrolled_rhs.chunks_exact(UNROLL * width)) {
        for step in 0..UNROLL {
            add_step(simd, &lhs[step], &rhs[step * width..], &mut chains);
        }
    }
    for (lhs, rhs) in rest.iter().zip(rest_rhs.chunks_exact(width)) {
        add_step(simd, lhs, rhs, &mut chains);
    }
    for (chains, sums) in chains.iter().zip(sums.chunks_exact_mut(width)) {
        for (vector, &chain) in chains.iter().enumerate() {
            let sums = &mut sums[vector * S::LANES..];
            simd.store(simd.add(simd.load(sums), chain), sums);
        }
    }
}

/// One step of `k`: a column of the left operand times a row of the right one.
#[inline(always)]
fn add_step<S: Simd, const MR: usize>(
    simd: S,
    lhs: &[f32; MR],
    rhs: &[f32],
    chains: &mut [[S::Vector; NR_VECTORS]; MR],
) {
    let rhs = [simd.load(rhs), simd.load(&rhs[S::LANES..])];
    for (chains, &lhs) in chains.iter_mut().zip(lhs) {
        let lhs = simd.splat(lhs);
        chains[0] = simd.mul_add(lhs, rhs[0], chains[0]);
        chains[1] = simd.mul_add(lhs, rhs[1], chains[1]);
    }
}
