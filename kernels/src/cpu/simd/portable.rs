//! Vectors as plain arrays, which the compiler maps to what the target always has (SSE2, NEON).

use crate::cpu::simd::{Kernel, Simd};

const LANES: usize = 4;

/// The instruction set that every machine has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Portable;

impl Portable {
    #[inline(always)]
    fn map(x: [f32; LANES], y: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
        std::array::from_fn(|lane| f(x[lane], y[lane]))
    }
}

impl Simd for Portable {
    type Vector = [f32; LANES];
    const LANES: usize = LANES;
    const MR: usize = 6;

    #[inline(never)]
    fn apart<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }

    #[inline(always)]
    fn splat(self, value: f32) -> [f32; LANES] {
        [value; LANES]
    }

    #[inline(always)]
    fn load(self, values: &[f32]) -> [f32; LANES] {
        let values = &values[..LANES];
        std::array::from_fn(|lane| values[lane])
    }

    #[inline(always)]
    fn store(self, vector: [f32; LANES], values: &mut [f32]) {
        values[..LANES].copy_from_slice(&vector);
    }

    #[inline(always)]
    fn load_bf16(self, values: &[u16]) -> [f32; LANES] {
        let values = &values[..LANES];
        std::array::from_fn(|lane| f32::from_bits(u32::from(values[lane]) << 16))
    }

    #[inline(always)]
    fn add(self, x: [f32; LANES], y: [f32; LANES]) -> [f32; LANES] {
        Self::map(x, y, |x, y| x + y)
    }

    #[inline(always)]
    fn sub(self, x: [f32; LANES], y: [f32; LANES]) -> [f32; LANES] {
        Self::map(x, y, |x, y| x - y)
    }

    #[inline(always)]
    fn mul(self, x: [f32; LANES], y: [f32; LANES]) -> [f32; LANES] {
        Self::map(x, y, |x, y| x * y)
    }

    #[inline(always)]
    fn div(self, x: [f32; LANES], y: [f32; LANES]) -> [f32; LANES] {
        Self::map(x, y, |x, y| x / y)
    }

    #[inline(always)]
    fn mul_add(self, x: [f32; LANES], y: [f32; LANES], z: [f32; LANES]) -> [f32; LANES] {
        // Not `f32::mul_add`: without the instruction that is a function call per lane.
        self.add(self.mul(x, y), z)
    }

    #[inline(always)]
    fn min(self, x: [f32; LANES], y: [f32; LANES]) -> [f32; LANES] {
        Self::map(x, y, |x, y| if x < y { x } else { y })
    }

    #[inline(always)]
    fn max(self, x: [f32; LANES], y: [f32; LANES]) -> [f32; LANES] {
        Self::map(x, y, |x, y| if x > y { x } else { y })
    }

    #[inline(always)]
    fn power_of_two(self, x: [f32; LANES]) -> [f32; LANES] {
        x.map(|x| f32::from_bits(((x as i32 + 127) << 23) as u32))
    }
}
