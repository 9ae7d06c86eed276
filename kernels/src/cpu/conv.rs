//! The causal depthwise convolution of the gated delta rule's layers.

use crate::cpu::math;
use crate::cpu::pool::Pool;
use crate::cpu::simd::{Isa, Kernel, Simd, parts};
use crate::host::HostMatrix;
use crate::{Packing, Sequence};

/// The checked operation of [`crate::Device::causal_conv1d_silu`]; `out` has its shape.
pub(crate) fn causal_conv1d_silu(
    pool: &Pool,
    isa: Isa,
    packing: &Packing,
    weight: &[f32],
    x: &HostMatrix,
    out: &mut HostMatrix,
) {
    let channels = x.shape().1;
    let taps = transposed(pool, weight, channels);
    pool.for_each_row(out, |row, out| {
        // Sequences are in row order; an empty one has no row.
        let number = packing.sequences.partition_point(|sequence| sequence.start + sequence.len <= row);
        isa.run(ConvRow { packing, sequence: packing.sequences[number], taps: &taps, x, row, out });
    });
}

/// `[channels, taps]` to `[taps, channels]`.
fn transposed(pool: &Pool, weight: &[f32], channels: usize) -> Vec<f32> {
    let mut transposed = vec![0.0; weight.len()];
    pool.for_each_chunk(&mut transposed, channels, 1, |tap, transposed| {
        for (value, weights) in transposed.iter_mut().zip(weight.chunks_exact(weight.len() / channels)) {
            *value = weights[tap];
        }
    });
    transposed
}

/// One token's convolution and SiLU.
struct ConvRow<'a> {
    packing: &'a Packing,
    sequence: Sequence,
    /// `[taps, channels]`.
    taps: &'a [f32],
    x: &'a HostMatrix,
    row: usize,
    out: &'a mut [f32],
}

impl ConvRow<'_> {
    /// The row of the token `back` tokens before this one, in its sequence or its parent.
    #[inline(always)]
    fn input_row(&self, back: usize) -> Option<usize> {
        let token = self.row - self.sequence.start;
        if back <= token {
            return Some(self.row - back);
        }
        let parent = self.packing.sequences[self.sequence.parent?];
        (parent.start + parent.len).checked_sub(back - token).filter(|&row| row >= parent.start)
    }
}

impl Kernel for ConvRow<'_> {
    type Output = ();

    /// Sums over the taps that have a token, oldest first.
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let channels = self.x.shape().1;
        let taps = self.taps.len() / channels;
        let weights = self.taps.chunks_exact(channels).enumerate();
        let inputs = weights.filter_map(|(tap, weight)| Some((self.x.row(self.input_row(taps - 1 - tap)?), weight)));
        let inputs: Vec<(&[f32], &[f32])> = inputs.collect();
        for part in parts::<S>(channels) {
            let mut sum = simd.splat(0.0);
            for (x, weight) in &inputs {
                sum = simd.mul_add(simd.load_part(x, part, 0.0), simd.load_part(weight, part, 0.0), sum);
            }
            simd.store_part(math::silu(simd, sum), self.out, part);
        }
    }
}
