//! Vectors of F32 on every instruction set, and the choice among those sets at run time.
//!
//! A kernel is written once, over [`Simd`]. Invariant: a value of [`Avx2`] or [`Avx512`] exists only where detection
//! found exactly the features that its functions enable, so that holding one is the proof its `unsafe` blocks need.
//!
//! Every function on the way from [`Isa::run`] down to an instruction must be inlined into the one function that
//! enables the instruction set; that is what all the `inline(always)` below are for. A closure cannot be marked so:
//! where one touched vectors, every instruction became a call. Hence loops over [`parts`], and no closures. Where inlining
//! would multiply code, [`Simd::apart`] begins another function of the same instruction set.

mod portable;
#[cfg(target_arch = "x86_64")]
mod x86_64;

pub(crate) use portable::Portable;
#[cfg(target_arch = "x86_64")]
pub use x86_64::{Avx2, Avx512};

/// The most lanes that any instruction set has.
pub(crate) const MAX_LANES: usize = 16;

/// An instruction set: vectors of `LANES` F32 elements and what can be done with them.
pub(crate) trait Simd: Copy + Send + Sync {
    type Vector: Copy;
    /// Elements of a vector.
    const LANES: usize;
    /// Rows of a register tile of the matrix product (two vectors wide): as many as the registers hold.
    const MR: usize;

    /// Runs a kernel as a function of its own: what is called in many places would be compiled anew in each of them.
    fn apart<K: Kernel>(self, kernel: K) -> K::Output;
    fn splat(self, value: f32) -> Self::Vector;
    /// The first `LANES` values, of which there must be that many.
    fn load(self, values: &[f32]) -> Self::Vector;
    /// Writes the first `LANES` values, of which there must be that many.
    fn store(self, vector: Self::Vector, values: &mut [f32]);
    /// The first `LANES` BF16 values, widened exactly.
    fn load_bf16(self, values: &[u16]) -> Self::Vector;
    fn add(self, x: Self::Vector, y: Self::Vector) -> Self::Vector;
    fn sub(self, x: Self::Vector, y: Self::Vector) -> Self::Vector;
    fn mul(self, x: Self::Vector, y: Self::Vector) -> Self::Vector;
    fn div(self, x: Self::Vector, y: Self::Vector) -> Self::Vector;
    /// `x · y + z`, rounded once where the instruction set can, else twice.
    fn mul_add(self, x: Self::Vector, y: Self::Vector, z: Self::Vector) -> Self::Vector;
    /// The smaller one; `y` where either is not a number.
    fn min(self, x: Self::Vector, y: Self::Vector) -> Self::Vector;
    /// The larger one; `y` where either is not a number.
    fn max(self, x: Self::Vector, y: Self::Vector) -> Self::Vector;
    /// `2^x` of whole numbers in −126..=127.
    fn power_of_two(self, x: Self::Vector) -> Self::Vector;

    /// A part of some values; `fill` in the lanes that the last part lacks.
    #[inline(always)]
    fn load_part(self, values: &[f32], part: Part, fill: f32) -> Self::Vector {
        let values = &values[part.start..part.start + part.len];
        if part.len == Self::LANES {
            return self.load(values);
        }
        let mut lanes = [fill; MAX_LANES];
        lanes[..values.len()].copy_from_slice(values);
        self.load(&lanes)
    }

    /// Writes a part of some values: as many lanes as it has.
    #[inline(always)]
    fn store_part(self, vector: Self::Vector, values: &mut [f32], part: Part) {
        let values = &mut values[part.start..part.start + part.len];
        if part.len == Self::LANES {
            return self.store(vector, values);
        }
        let mut lanes = [0.0; MAX_LANES];
        self.store(vector, &mut lanes);
        values.copy_from_slice(&lanes[..values.len()]);
    }

    /// The sum of the lanes, upper half to lower half until one is left.
    #[inline(always)]
    fn sum(self, vector: Self::Vector) -> f32 {
        let mut lanes = [0.0; MAX_LANES];
        self.store(vector, &mut lanes);
        let mut width = Self::LANES / 2;
        while width > 0 {
            for lane in 0..width {
                lanes[lane] += lanes[lane + width];
            }
            width /= 2;
        }
        lanes[0]
    }

    /// The largest lane.
    #[inline(always)]
    fn largest(self, vector: Self::Vector) -> f32 {
        let mut lanes = [f32::NEG_INFINITY; MAX_LANES];
        self.store(vector, &mut lanes);
        lanes[..Self::LANES].iter().copied().fold(f32::NEG_INFINITY, f32::max)
    }
}

/// Up to `LANES` consecutive elements of a slice.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    start: usize,
    len: usize,
}

/// The parts of a slice of `len` elements, in order; all but the last are whole vectors.
#[inline(always)]
pub(crate) fn parts<S: Simd>(len: usize) -> impl Iterator<Item = Part> {
    (0..len).step_by(S::LANES).map(move |start| Part { start, len: S::LANES.min(len - start) })
}

/// Work that is written once and compiled for each instruction set.
pub(crate) trait Kernel {
    type Output;
    /// Does the work; to be marked `inline(always)`, like everything it calls on vectors.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// An instruction set that this machine has.
#[derive(Clone, Copy, Debug)]
pub enum Isa {
    /// What the target has anyway.
    Portable,
    /// AVX2 with fused multiply-add.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// AVX-512 Foundation.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl Isa {
    /// Every set that this machine has, the fastest last.
    pub fn available() -> Vec<Isa> {
        let mut found = vec![Isa::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            found.extend(Avx2::detect().map(Isa::Avx2));
            found.extend(Avx512::detect().map(Isa::Avx512));
        }
        found
    }

    /// The fastest set that this machine has.
    pub fn best() -> Isa {
        Isa::available().pop().unwrap_or(Isa::Portable)
    }

    /// The name for logs.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(_) => "avx2+fma",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(_) => "avx512f",
        }
    }

    /// Runs a kernel compiled for this set.
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            Isa::Portable => kernel.run(Portable),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(token) => token.run(kernel),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(token) => token.run(kernel),
        }
    }
}
