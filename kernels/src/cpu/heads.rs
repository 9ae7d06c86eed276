//! Operations of the heads: few rows, so sums are F64 where they run over rows.

use std::f32::consts::FRAC_1_SQRT_2;
use std::ops::Range;

use crate::cpu::math;
use crate::cpu::pool::Pool;
use crate::cpu::simd::{Isa, Kernel, Simd, parts};
use crate::host::HostMatrix;
use crate::{PairGroup, checks};

// SAFETY: `erff` is C99's, in the mathematical library that std already links: `float erff(float)`. It is pure and
// defined for every argument, hence `safe`.
unsafe extern "C" {
    safe fn erff(x: f32) -> f32;
}

/// The mean of the rows `range`, which is not empty, summed in row order.
pub(crate) fn mean_row(x: &HostMatrix, range: &Range<u32>) -> Vec<f64> {
    let mut sums = vec![0.0; x.shape().1];
    for row in range.start..range.end {
        for (sum, &value) in sums.iter_mut().zip(x.row(row as usize)) {
            *sum += f64::from(value);
        }
    }
    let count = f64::from(range.end - range.start);
    sums.into_iter().map(|sum| sum / count).collect()
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
        out.clear();
        out.resize(total, 0.0);
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
