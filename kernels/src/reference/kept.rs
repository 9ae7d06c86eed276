//! Prefixes of earlier batches. The definition keeps the operands of their tokens and computes as if these tokens stood
//! before the batch's own: that this changes nothing is what a faster device has to achieve with less.

use std::ops::Range;

use crate::checks::Shape;
use crate::host::{HostMatrix, HostState};
use crate::{Packing, Parent, Sequence, StateShape, States};

/// The shape of a state: a row per token, with everything that the operation reads of a prefix's token.
pub(super) fn layout(shape: StateShape, tokens: usize) -> Shape {
    let columns = match shape {
        StateShape::Conv { channels, .. } => channels,
        StateShape::GatedDelta(shape) => shape.channels() + 2 * shape.value_heads,
        StateShape::Attention(shape) => 2 * shape.num_key_value_heads * shape.head_dim,
    };
    (tokens, columns)
}

/// A batch behind the tokens of the kept prefixes that it continues.
pub(super) struct Whole<'a> {
    pub(super) packing: Packing,
    kept: &'a [&'a HostState],
    /// Rows of the kept tokens.
    lead: usize,
}

impl<'a> Whole<'a> {
    pub(super) fn new(packing: &Packing, kept: &'a [&'a HostState]) -> Self {
        let mut whole = Packing::default();
        for state in kept {
            let start = whole.tokens();
            whole.sequences.push(Sequence { start, len: state.tokens, parent: None, position: 0 });
        }
        let lead = whole.tokens();
        whole.sequences.extend(packing.sequences.iter().map(|&sequence| {
            let parent = sequence.parent.map(|parent| match parent {
                Parent::Kept(state) => Parent::Sequence(state),
                Parent::Sequence(parent) => Parent::Sequence(kept.len() + parent),
            });
            Sequence { start: lead + sequence.start, parent, ..sequence }
        }));
        Whole { packing: whole, kept, lead }
    }

    /// An operand of all tokens, of which the states hold `columns`.
    pub(super) fn operand(&self, columns: Range<usize>, x: &HostMatrix) -> HostMatrix {
        let mut whole = HostMatrix::default();
        whole.reshape(self.lead + x.shape().0, x.shape().1);
        let kept =
            self.kept.iter().flat_map(|state| (0..state.tokens).map(|row| &state.values.row(row)[columns.clone()]));
        let own = (0..x.shape().0).map(|row| x.row(row));
        for (row, values) in kept.chain(own).enumerate() {
            whole.row_mut(row).copy_from_slice(values);
        }
        whole
    }

    /// An operand of all tokens of which the states hold nothing: zero for the kept ones.
    pub(super) fn operand_of_own(&self, x: &HostMatrix) -> HostMatrix {
        let mut whole = self.result(x);
        for row in 0..x.shape().0 {
            whole.row_mut(self.lead + row).copy_from_slice(x.row(row));
        }
        whole
    }

    /// A result of all tokens, of the shape that the batch's own tokens have in `out`.
    pub(super) fn result(&self, out: &HostMatrix) -> HostMatrix {
        let mut whole = HostMatrix::default();
        whole.reshape(self.lead + out.shape().0, out.shape().1);
        whole
    }

    /// Copies the batch's own rows of a result.
    pub(super) fn copy_own(&self, result: &HostMatrix, out: &mut HostMatrix) {
        for row in 0..out.shape().0 {
            out.row_mut(row).copy_from_slice(result.row(self.lead + row));
        }
    }
}

/// Writes the states of the sequences to keep: the rows of all `operands`, side by side.
pub(super) fn keep(packing: &Packing, states: States<'_, HostState>, operands: &[&HostMatrix]) {
    for (&number, state) in packing.keep.iter().zip(states.new) {
        let Sequence { start, len, .. } = packing.sequences[number];
        for row in 0..len {
            let values: Vec<&[f32]> = operands.iter().map(|operand| operand.row(start + row)).collect();
            state.values.row_mut(row).copy_from_slice(&values.concat());
        }
    }
}
