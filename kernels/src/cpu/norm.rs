//! Row passes of the backbone: norms, residuals and gates, each one read and one write of its operands.

use crate::cpu::math;
use crate::cpu::simd::{Kernel, Simd};

/// `out = x · rsqrt(mean(x²) + eps) · (1 + weight)` of one row.
pub(crate) struct RmsNormRow<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) weight: &'a [f32],
    pub(crate) eps: f32,
    pub(crate) out: &'a mut [f32],
}

impl Kernel for RmsNormRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let scale = simd.splat(math::rms_scale(simd, self.x, self.eps));
        let one = simd.splat(1.0);
        math::zip_map(simd, self.out, [self.x, self.weight], |_, [x, weight]| {
            simd.mul(simd.mul(x, scale), simd.add(one, weight))
        });
    }
}

/// `residual += x` of one row.
pub(crate) struct AddRow<'a> {
    pub(crate) residual: &'a mut [f32],
    pub(crate) x: &'a [f32],
}

impl Kernel for AddRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        math::zip_map(simd, self.residual, [self.x], |residual, [x]| simd.add(residual, x));
    }
}

/// `gate = silu(gate) · up` of one row.
pub(crate) struct SiluMulRow<'a> {
    pub(crate) gate: &'a mut [f32],
    pub(crate) up: &'a [f32],
}

impl Kernel for SiluMulRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        math::zip_map(simd, self.gate, [self.up], |gate, [up]| simd.mul(math::silu(simd, gate), up));
    }
}

/// `o = weight · o · rsqrt(mean(o²) + eps) · silu(z)` of every head of one row.
pub(crate) struct GatedRmsNormRow<'a> {
    pub(crate) o: &'a mut [f32],
    pub(crate) z: &'a [f32],
    pub(crate) weight: &'a [f32],
    pub(crate) eps: f32,
}

impl Kernel for GatedRmsNormRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let value_dim = self.weight.len();
        for (o, z) in self.o.chunks_exact_mut(value_dim).zip(self.z.chunks_exact(value_dim)) {
            let scale = simd.splat(math::rms_scale(simd, o, self.eps));
            math::zip_map(simd, o, [z, self.weight], |o, [z, weight]| {
                simd.mul(simd.mul(weight, simd.mul(o, scale)), math::silu(simd, z))
            });
        }
    }
}
