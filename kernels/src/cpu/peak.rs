//! What the cores could do at most: the ceiling that a matrix product is measured against.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::cpu::CpuDevice;
use crate::cpu::simd::{Kernel, Simd};

/// Sums that do not wait for each other: more than the latency of a multiply-add times the units that do them, and no
/// more than the registers of the smallest instruction set hold.
const CHAINS: usize = 12;
/// Multiply-adds of each chain in one measurement: some ten milliseconds of vectors.
const ROUNDS: usize = 1 << 22;
/// Measurements; the best counts, since a machine can only be slower than it is.
const MEASUREMENTS: usize = 8;

impl CpuDevice {
    /// F32 operations per second (two for a multiply-add) of all threads together, with every operand in a register. It
    /// takes a fraction of a second.
    pub fn peak_flops(&self) -> f64 {
        let lanes = self.isa.run(Lanes);
        let operations = (2 * CHAINS * ROUNDS * lanes * self.pool.threads()) as f64;
        let measure = || {
            let times = self.pool.on_every_thread(|| {
                let start = Instant::now();
                black_box(self.isa.run(Chains));
                start.elapsed()
            });
            times.into_iter().max().unwrap_or(Duration::MAX)
        };
        let fastest = (0..MEASUREMENTS).map(|_| measure()).min().unwrap_or(Duration::MAX);
        operations / fastest.as_secs_f64()
    }
}

/// Elements of a vector.
struct Lanes;

impl Kernel for Lanes {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> usize {
        S::LANES
    }
}

/// Multiply-adds whose operands stay in registers.
struct Chains;

impl Kernel for Chains {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let (x, y) = (simd.splat(black_box(0.5)), simd.splat(black_box(1e-3)));
        let mut sums = [simd.splat(0.0); CHAINS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = simd.mul_add(x, y, *sum);
            }
        }
        sums.into_iter().map(|sum| simd.sum(sum)).sum()
    }
}
