//! Scalar functions and whole-row formulas in F64.

use std::f64::consts::FRAC_1_SQRT_2;
use std::ops::Range;

use crate::host::HostMatrix;

// SAFETY: `erf` is C99's, in the mathematical library that std already links: `double erf(double)`. It is pure and
// defined for every argument, hence `safe`.
unsafe extern "C" {
    safe fn erf(x: f64) -> f64;
}

/// `Σ x[i] · y[i]`, in order.
pub(super) fn dot(x: &[f32], y: &[f32]) -> f64 {
    let mut sum = 0.0;
    for (&x, &y) in x.iter().zip(y) {
        sum += f64::from(x) * f64::from(y);
    }
    sum
}

pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

pub(super) fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

/// `ln(1 + exp(x))`; the identity above 20, as PyTorch has it.
pub(super) fn softplus(x: f64) -> f64 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// The exact form of GELU.
fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + erf(x * FRAC_1_SQRT_2))
}

/// `Σ_c scalar[c] · GELU(left[c] + right[c])`.
pub(super) fn gelu_sum(left: &[f32], right: &[f32], scalar: &[f32]) -> f64 {
    let mut sum = 0.0;
    for column in 0..scalar.len() {
        sum += f64::from(scalar[column]) * gelu(f64::from(left[column]) + f64::from(right[column]));
    }
    sum
}

/// `x · rsqrt(mean(x²) + eps)`.
pub(super) fn rms_norm(x: &[f32], eps: f32) -> Vec<f64> {
    let mean_square = dot(x, x) / x.len() as f64;
    let scale = 1.0 / (mean_square + f64::from(eps)).sqrt();
    x.iter().map(|&value| f64::from(value) * scale).collect()
}

/// `x · rsqrt(Σx² + 1e-6)`.
pub(super) fn l2_norm(x: &[f32]) -> Vec<f64> {
    let scale = 1.0 / (dot(x, x) + 1e-6).sqrt();
    x.iter().map(|&value| f64::from(value) * scale).collect()
}

/// `(x − mean) / sqrt(variance + eps)`, with the biased variance.
pub(super) fn standardised(x: &[f32], eps: f32) -> Vec<f64> {
    let count = x.len() as f64;
    let mean = x.iter().map(|&value| f64::from(value)).sum::<f64>() / count;
    let variance = x.iter().map(|&value| (f64::from(value) - mean).powi(2)).sum::<f64>() / count;
    x.iter().map(|&value| (f64::from(value) - mean) / (variance + f64::from(eps)).sqrt()).collect()
}

/// The mean of the rows `range`, which is not empty.
pub(super) fn mean_row(x: &HostMatrix, range: &Range<u32>) -> Vec<f64> {
    let mut sum = vec![0.0; x.shape().1];
    for row in range.start..range.end {
        for (sum, &value) in sum.iter_mut().zip(x.row(row as usize)) {
            *sum += f64::from(value);
        }
    }
    let count = f64::from(range.end - range.start);
    sum.into_iter().map(|sum| sum / count).collect()
}
