//! Row passes of the backbone: norms, residuals and gates, each one read and one write of its operands.

use crate::cpu::math;
use crate::cpu::simd::{Kernel, Simd, parts};

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
        for part in parts::<S>(self.out.len()) {
            let x = simd.load_part(self.x, part, 0.0);
            let weight = simd.load_part(self.weight, part, 0.0);
            simd.store_part(simd.mul(simd.mul(x, scale), simd.add(one, weight)), self.out, part);
        }
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
        for part in parts::<S>(self.residual.len()) {
            let sum = simd.add(simd.load_part(self.residual, part, 0.0), simd.load_part(self.x, part, 0.0));
            simd.store_part(sum, self.residual, part);
        }
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
        for part in parts::<S>(self.gate.len()) {
            let gate = math::silu(simd, simd.load_part(self.gate, part, 0.0));
            simd.store_part(simd.mul(gate, simd.load_part(self.up, part, 0.0)), self.gate, part);
        }
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
            for part in parts::<S>(value_dim) {
                let normed = simd.mul(simd.load_part(o, part, 0.0), scale);
                let weighted = simd.mul(simd.load_part(self.weight, part, 0.0), normed);
                let gate = math::silu(simd, simd.load_part(z, part, 0.0));
                simd.store_part(simd.mul(weighted, gate), o, part);
            }
        }
    }
}
