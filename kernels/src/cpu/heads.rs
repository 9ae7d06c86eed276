//! Operations of the heads. They have few rows, so what can cancel is F64 here: the sums of means, of the statistics of
//! a layer norm and of the perceptron's terms in a pair score. Everything else is F32.

use std::f32::consts::FRAC_1_SQRT_2;
use std::ops::Range;

use crate::cpu::math;
use crate::cpu::pool::Pool;
use crate::cpu::simd::{Isa, Kernel, Simd, parts};
use crate::host::{HostMatrix, set_len};
use crate::{PairGroup, checks};

// SAFETY: `erff` is C99's, in the mathematical library that std already links: `float erff(float)`. It is pure and
// defined for every argument, hence `safe`.
unsafe extern "C" {
    safe fn erff(x: f32) -> f32;
}

/// Columns whose sums are kept in registers over the rows.
const MEAN_COLUMNS: usize = 32;

/// Writes the mean of the rows `range`, which is not empty, summed in row order.
fn mean_row(x: &HostMatrix, range: &Range<u32>, mean: &mut [f64]) {
    let count = f64::from(range.end - range.start);
    for (block, means) in mean.chunks_mut(MEAN_COLUMNS).enumerate() {
        let mut sums = [0.0; MEAN_COLUMNS];
        for row in range.clone() {
            let values = &x.row(row as usize)[block * MEAN_COLUMNS..][..means.len()];
            for (sum, &value) in sums.iter_mut().zip(values) {
                *sum += f64::from(value);
            }
        }
        for (mean, sum) in means.iter_mut().zip(sums) {
            *mean = sum / count;
        }
    }
}

/// The mean row of each range, `[ranges, columns]`.
fn mean_rows_f64(pool: &Pool, x: &HostMatrix, ranges: &[Range<u32>]) -> Vec<f64> {
    let columns = x.shape().1;
    let mut means = vec![0.0; ranges.len() * columns];
    pool.for_each_chunk(&mut means, columns, 1, |index, mean| mean_row(x, &ranges[index], mean));
    means
}

/// The checked operation of [`crate::Device::mean_rows`]; `out` has its shape.
pub(crate) fn mean_rows(pool: &Pool, x: &HostMatrix, ranges: &[Range<u32>], out: &mut HostMatrix) {
    let means = mean_rows_f64(pool, x, ranges);
    let columns = x.shape().1;
    pool.for_each_row(out, |row, out| {
        for (out, &mean) in out.iter_mut().zip(&means[row * columns..]) {
            *out = mean as f32;
        }
    });
}

/// The checked operation of [`crate::Device::center_rows`].
pub(crate) fn center_rows(pool: &Pool, x: &mut HostMatrix, groups: &[Range<u32>]) {
    let means = mean_rows_f64(pool, x, groups);
    let columns = x.shape().1;
    pool.for_each_row(x, |row, values| {
        // Groups are ascending and disjoint; a row between them stays as it is.
        let group = groups.partition_point(|group| group.end as usize <= row);
        if groups.get(group).is_some_and(|group| group.start as usize <= row) {
            for (value, mean) in values.iter_mut().zip(&means[group * columns..]) {
                *value = (f64::from(*value) - mean) as f32;
            }
        }
    });
}

/// `out = (x − mean) · rsqrt(variance + eps) · weight + bias` of one row.
pub(crate) struct LayerNormRow<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) weight: &'a [f32],
    pub(crate) bias: &'a [f32],
    pub(crate) eps: f32,
    pub(crate) out: &'a mut [f32],
}

impl Kernel for LayerNormRow<'_> {
    type Output = ();

    /// Two passes for the statistics: a variance as a difference of squares would cancel.
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let count = self.x.len() as f64;
        let mean = self.x.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
        let variance = self.x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / count;
        let scale = simd.splat((1.0 / (variance + f64::from(self.eps)).sqrt()) as f32);
        let mean = simd.splat(mean as f32);
        for part in parts::<S>(self.out.len()) {
            let standardised = simd.mul(simd.sub(simd.load_part(self.x, part, 0.0), mean), scale);
            let (weight, bias) = (simd.load_part(self.weight, part, 0.0), simd.load_part(self.bias, part, 0.0));
            simd.store_part(simd.mul_add(standardised, weight, bias), self.out, part);
        }
    }
}

/// The operands of [`crate::Device::pair_scores`], checked.
pub(crate) struct PairScores<'a> {
    pub(crate) left_dot: &'a HostMatrix,
    pub(crate) left_mlp: &'a HostMatrix,
    pub(crate) right_dot: &'a HostMatrix,
    pub(crate) right_mlp: &'a HostMatrix,
    pub(crate) scalar: &'a [f32],
}

impl PairScores<'_> {
    /// Writes every group's scores; one left row of a group is one piece of work.
    pub(crate) fn run(&self, pool: &Pool, isa: Isa, groups: &[PairGroup], out: &mut Vec<f32>) {
        let total = groups.iter().map(|group| checks::product(&[group.left.len(), group.right.len()])).sum();
        set_len(out, total);
        let mut rest = out.as_mut_slice();
        for group in groups {
            let (scores, after) = rest.split_at_mut(group.left.len() * group.right.len());
            rest = after;
            pool.for_each_chunk(scores, group.right.len(), 1, |left, scores| {
                let left = group.left.start as usize + left;
                for (right, score) in group.right.clone().zip(scores) {
                    *score = isa.run(PairScore { operands: self, left, right: right as usize });
                }
            });
        }
    }
}

/// The score of one pair of rows.
struct PairScore<'a> {
    operands: &'a PairScores<'a>,
    left: usize,
    right: usize,
}

impl Kernel for PairScore<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let PairScores { left_dot, left_mlp, right_dot, right_mlp, scalar } = self.operands;
        let (left, right) = (left_dot.row(self.left), right_dot.row(self.right));
        let dot = math::dot(simd, left, right) / (left.len() as f32).sqrt();
        let mixed = left_mlp.row(self.left).iter().zip(right_mlp.row(self.right));
        let products = mixed.zip(*scalar).map(|((&left, &right), &scalar)| scalar * gelu(left + right));
        // Sums of a few hundred terms of either sign: F64 keeps the logit's last digits.
        (f64::from(dot) + products.map(f64::from).sum::<f64>()) as f32
    }
}

/// The exact (erf) form of GELU.
fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + erff(x * FRAC_1_SQRT_2))
}
