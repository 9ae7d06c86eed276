//! The causal depthwise convolution of the gated delta rule's layers.

use crate::checks::{MAX_CONV_TAPS, Shape};
use crate::cpu::lease::Lease;
use crate::cpu::math;
use crate::cpu::pool::Pool;
use crate::cpu::simd::{Isa, Kernel, Simd, parts};
use crate::host::{HostMatrix, HostState};
use crate::{Packing, Parent, Sequence, States};

/// The shape of a state: the inputs of the last `taps - 1` tokens, or of as many as there are, oldest first.
pub(crate) fn state_layout(channels: usize, taps: usize, tokens: usize) -> Shape {
    (tokens.min(taps.saturating_sub(1)), channels)
}

/// The checked operation of [`crate::Device::causal_conv1d_silu`]; `out` has its shape.
pub(crate) fn causal_conv1d_silu(
    pool: &Pool,
    isa: Isa,
    packing: &Packing,
    states: States<'_, HostState>,
    weight: &[f32],
    x: &HostMatrix,
    out: &mut HostMatrix,
) {
    let channels = x.shape().1;
    let mut taps = Lease::of(weight.len());
    transpose(pool, weight, channels, taps.values_mut());
    let taps = &*taps.values_mut();
    pool.for_each_row(out, |row, out| {
        // Sequences are in row order; an empty one has no row.
        let number = packing.sequences.partition_point(|sequence| sequence.start + sequence.len <= row);
        let (sequence, kept) = (packing.sequences[number], states.kept.as_slice());
        isa.run(ConvRow { packing, kept, sequence, taps, x, row, out });
    });
    for (&number, state) in packing.keep.iter().zip(states.new) {
        let Sequence { start, len, .. } = packing.sequences[number];
        let (rows, _) = state.values.shape();
        for row in 0..rows {
            state.values.row_mut(row).copy_from_slice(x.row(start + len - rows + row));
        }
    }
}

/// `[channels, taps]` to `[taps, channels]`.
fn transpose(pool: &Pool, weight: &[f32], channels: usize, transposed: &mut [f32]) {
    pool.for_each_chunk(transposed, channels, 1, |tap, transposed| {
        for (value, weights) in transposed.iter_mut().zip(weight.chunks_exact(weight.len() / channels)) {
            *value = weights[tap];
        }
    });
}

/// One token's convolution and SiLU.
struct ConvRow<'a> {
    packing: &'a Packing,
    kept: &'a [&'a HostState],
    sequence: Sequence,
    /// `[taps, channels]`.
    taps: &'a [f32],
    x: &'a HostMatrix,
    row: usize,
    out: &'a mut [f32],
}

impl<'a> ConvRow<'a> {
    /// The input of the token `back` tokens before this one, in its sequence or its parent.
    #[inline(always)]
    fn input(&self, back: usize) -> Option<&'a [f32]> {
        let token = self.row - self.sequence.start;
        if back <= token {
            return Some(self.x.row(self.row - back));
        }
        let back = back - token;
        match self.sequence.parent? {
            Parent::Sequence(parent) => {
                let Sequence { start, len, .. } = self.packing.sequences[parent];
                len.checked_sub(back).map(|token| self.x.row(start + token))
            }
            Parent::Kept(state) => {
                let values = &self.kept[state].values;
                values.shape().0.checked_sub(back).map(|row| values.row(row))
            }
        }
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
        let found = weights.filter_map(|(tap, weight)| Some((self.input(taps - 1 - tap)?, weight)));
        let mut inputs: [(&[f32], &[f32]); MAX_CONV_TAPS] = [(&[], &[]); MAX_CONV_TAPS];
        let mut count = 0;
        for (input, found) in inputs.iter_mut().zip(found) {
            *input = found;
            count += 1;
        }
        for part in parts::<S>(channels) {
            let mut sum = simd.splat(0.0);
            for (x, weight) in &inputs[..count] {
                sum = simd.mul_add(simd.load_part(x, part, 0.0), simd.load_part(weight, part, 0.0), sum);
            }
            simd.store_part(math::silu(simd, sum), self.out, part);
        }
    }
}
