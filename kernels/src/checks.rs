//! Operand checks that every device makes before it touches memory, so that all of them refuse the same inputs.
//!
//! Invariant: an operation that passed its check here indexes inside its operands. Products of dimensions saturate
//! instead of wrapping, so that absurd dimensions mismatch instead of matching by accident.

use std::ops::Range;

use crate::{AttentionShape, GatedDeltaShape, KernelError, Packing, PairGroup, Parent, StateShape};

/// `[rows, columns]` of a matrix operand.
pub(crate) type Shape = (usize, usize);

/// Refuses a dimension that is not `expected`.
pub(crate) fn dimension(
    op: &'static str,
    what: &'static str,
    expected: usize,
    found: usize,
) -> Result<(), KernelError> {
    if expected == found { Ok(()) } else { Err(KernelError::Shape { op, what, expected, found }) }
}

/// Refuses an index that is not below `bound`.
pub(crate) fn index(op: &'static str, what: &'static str, index: usize, bound: usize) -> Result<(), KernelError> {
    if index < bound { Ok(()) } else { Err(KernelError::Index { op, what, index, bound }) }
}

/// Refuses two matrices of different shapes.
pub(crate) fn same_shape(op: &'static str, expected: Shape, found: Shape) -> Result<(), KernelError> {
    dimension(op, "rows", expected.0, found.0)?;
    dimension(op, "columns", expected.1, found.1)
}

/// Refuses any of `indices` that is not below `bound`.
pub(crate) fn indices(op: &'static str, what: &'static str, indices: &[u32], bound: usize) -> Result<(), KernelError> {
    indices.iter().try_for_each(|&i| index(op, what, i as usize, bound))
}

/// Refuses a range that is empty or not inside `rows`.
pub(crate) fn range(op: &'static str, range: &Range<u32>, rows: usize) -> Result<(), KernelError> {
    index(op, "start of a range", range.start as usize, range.end as usize)?;
    index(op, "last row of a range", range.end as usize - 1, rows)
}

/// Refuses groups that are empty, overlap, run backwards or leave `rows`.
pub(crate) fn disjoint_ranges(op: &'static str, ranges: &[Range<u32>], rows: usize) -> Result<(), KernelError> {
    let mut end = 0;
    for group in ranges {
        range(op, group, rows)?;
        index(op, "end of the range before", end as usize, group.start as usize + 1)?;
        end = group.end;
    }
    Ok(())
}

/// Tokens of the prefix, and shape in the device's layout, of every state that goes with a packing.
#[derive(Default)]
pub(crate) struct StateSizes {
    pub(crate) kept: Vec<(usize, Shape)>,
    pub(crate) new: Vec<(usize, Shape)>,
}

impl StateSizes {
    /// Refuses states whose shape is not what `shape_for` says of their tokens.
    fn check(&self, op: &'static str, shape_for: impl Fn(usize) -> Shape) -> Result<(), KernelError> {
        self.kept.iter().chain(&self.new).try_for_each(|&(tokens, (rows, columns))| {
            let expected = shape_for(tokens);
            dimension(op, "rows of a state", expected.0, rows)?;
            dimension(op, "columns of a state", expected.1, columns)
        })
    }
}

/// Refuses a packing that does not cover `rows` exactly once and in order, a parent that comes later, has a parent
/// itself or is not among the states, a position that is not where the parent ends, and states to be written that are not
/// those of the sequences to keep.
fn packing(op: &'static str, packing: &Packing, states: &StateSizes, rows: usize) -> Result<(), KernelError> {
    let mut end = 0;
    for (number, sequence) in packing.sequences.iter().enumerate() {
        dimension(op, "start of a sequence", end, sequence.start)?;
        let position = match sequence.parent {
            None => 0,
            Some(Parent::Sequence(parent)) => {
                index(op, "parent of a sequence", parent, number)?;
                let parent = packing.sequences[parent];
                dimension(op, "parents of a parent", 0, usize::from(parent.parent.is_some()))?;
                parent.len
            }
            Some(Parent::Kept(state)) => {
                index(op, "state that a sequence continues", state, states.kept.len())?;
                states.kept[state].0
            }
        };
        dimension(op, "position of a sequence", position, sequence.position)?;
        end = sequence.start.saturating_add(sequence.len);
    }
    dimension(op, "rows of the packing", rows, end)?;
    keep(op, packing, states)
}

/// The part of [`packing`] that is about states to be written.
fn keep(op: &'static str, packing: &Packing, states: &StateSizes) -> Result<(), KernelError> {
    dimension(op, "states to write", packing.keep.len(), states.new.len())?;
    let mut next = 0;
    for (&number, &(tokens, _)) in packing.keep.iter().zip(&states.new) {
        index(op, "sequence to keep", number, packing.sequences.len())?;
        index(op, "sequence to keep next", next, number + 1)?;
        next = number + 1;
        let sequence = packing.sequences[number];
        dimension(op, "parents of a sequence to keep", 0, usize::from(sequence.parent.is_some()))?;
        dimension(op, "tokens of a state to write", sequence.len, tokens)?;
    }
    Ok(())
}

/// A product of dimensions that stays at the largest number instead of wrapping.
pub(crate) fn product(dimensions: &[usize]) -> usize {
    dimensions.iter().fold(1, |product, &dimension| product.saturating_mul(dimension))
}

/// The shape of a state in a device's layout, of an operation and a number of tokens.
type StateLayout<'a> = &'a dyn Fn(StateShape, usize) -> Shape;

/// The most taps of a convolution; the models have four.
pub(crate) const MAX_CONV_TAPS: usize = 8;

/// Shapes of the convolution's operands; returns the number of taps.
pub(crate) fn conv(
    rows: &Packing,
    states: &StateSizes,
    layout: StateLayout<'_>,
    weight: usize,
    x: Shape,
) -> Result<usize, KernelError> {
    const OP: &str = "causal_conv1d_silu";
    packing(OP, rows, states, x.0)?;
    let taps = weight.checked_div(x.1).unwrap_or(0);
    if taps == 0 {
        return Err(KernelError::Shape { op: OP, what: "elements of weight", expected: x.1.max(1), found: weight });
    }
    dimension(OP, "elements of weight", x.1 * taps, weight)?;
    if taps > MAX_CONV_TAPS {
        return Err(KernelError::Shape { op: OP, what: "taps, at most", expected: MAX_CONV_TAPS, found: taps });
    }
    states.check(OP, |tokens| layout(StateShape::Conv { channels: x.1, taps }, tokens))?;
    Ok(taps)
}

/// Operand sizes of [`crate::Device::gated_delta_rule`].
pub(crate) struct GatedDeltaSizes {
    pub(crate) qkv: Shape,
    pub(crate) a: Shape,
    pub(crate) b: Shape,
    pub(crate) a_log: usize,
    pub(crate) dt_bias: usize,
}

/// Checks the gated delta rule's operands against its head counts and widths.
pub(crate) fn gated_delta(
    rows: &Packing,
    states: &StateSizes,
    layout: StateLayout<'_>,
    shape: GatedDeltaShape,
    sizes: &GatedDeltaSizes,
) -> Result<(), KernelError> {
    const OP: &str = "gated_delta_rule";
    let GatedDeltaShape { key_heads, value_heads, key_dim, value_dim } = shape;
    packing(OP, rows, states, sizes.qkv.0)?;
    for (what, width) in
        [("key_heads", key_heads), ("value_heads", value_heads), ("key_dim", key_dim), ("value_dim", value_dim)]
    {
        if width == 0 {
            return Err(KernelError::Shape { op: OP, what, expected: 1, found: 0 });
        }
    }
    dimension(OP, "value_heads left over by key_heads", 0, value_heads % key_heads)?;
    let channels = product(&[2, key_heads, key_dim]).saturating_add(product(&[value_heads, value_dim]));
    dimension(OP, "columns of qkv", channels, sizes.qkv.1)?;
    same_shape(OP, (sizes.qkv.0, value_heads), sizes.a)?;
    same_shape(OP, (sizes.qkv.0, value_heads), sizes.b)?;
    dimension(OP, "elements of a_log", value_heads, sizes.a_log)?;
    dimension(OP, "elements of dt_bias", value_heads, sizes.dt_bias)?;
    states.check(OP, |tokens| layout(StateShape::GatedDelta(shape), tokens))
}

/// Operand sizes of [`crate::Device::gated_attention`].
pub(crate) struct AttentionSizes {
    pub(crate) q_gate: Shape,
    pub(crate) k: Shape,
    pub(crate) v: Shape,
    pub(crate) q_norm: usize,
    pub(crate) k_norm: usize,
}

/// Checks the gated attention's operands against its head counts and widths.
pub(crate) fn gated_attention(
    rows: &Packing,
    states: &StateSizes,
    layout: StateLayout<'_>,
    shape: AttentionShape,
    sizes: &AttentionSizes,
) -> Result<(), KernelError> {
    const OP: &str = "gated_attention";
    let AttentionShape { num_attention_heads: heads, num_key_value_heads: kv_heads, head_dim, rotary_dim, .. } = shape;
    packing(OP, rows, states, sizes.q_gate.0)?;
    for (what, width) in [("num_attention_heads", heads), ("num_key_value_heads", kv_heads), ("head_dim", head_dim)] {
        if width == 0 {
            return Err(KernelError::Shape { op: OP, what, expected: 1, found: 0 });
        }
    }
    dimension(OP, "num_attention_heads left over by num_key_value_heads", 0, heads % kv_heads)?;
    dimension(OP, "rotary_dim left over by pairs", 0, rotary_dim % 2)?;
    index(OP, "rotary_dim", rotary_dim, head_dim.saturating_add(1))?;
    dimension(OP, "columns of q_gate", product(&[heads, 2, head_dim]), sizes.q_gate.1)?;
    same_shape(OP, (sizes.q_gate.0, product(&[kv_heads, head_dim])), sizes.k)?;
    same_shape(OP, (sizes.q_gate.0, product(&[kv_heads, head_dim])), sizes.v)?;
    dimension(OP, "elements of q_norm", head_dim, sizes.q_norm)?;
    dimension(OP, "elements of k_norm", head_dim, sizes.k_norm)?;
    states.check(OP, |tokens| layout(StateShape::Attention(shape), tokens))
}

/// Operand sizes of [`crate::Device::pair_scores`].
pub(crate) struct PairSizes {
    pub(crate) left_dot: Shape,
    pub(crate) left_mlp: Shape,
    pub(crate) right_dot: Shape,
    pub(crate) right_mlp: Shape,
    pub(crate) scalar: usize,
}

/// Checks the pair scores' operands and groups; a group may be empty on either side.
pub(crate) fn pair_scores(groups: &[PairGroup], sizes: &PairSizes) -> Result<(), KernelError> {
    const OP: &str = "pair_scores";
    let (left_rows, width) = sizes.left_dot;
    let right_rows = sizes.right_dot.0;
    same_shape(OP, (left_rows, width), sizes.left_mlp)?;
    same_shape(OP, (right_rows, width), sizes.right_dot)?;
    same_shape(OP, (right_rows, width), sizes.right_mlp)?;
    dimension(OP, "elements of scalar", width, sizes.scalar)?;
    for group in groups {
        for (side, rows) in [(&group.left, left_rows), (&group.right, right_rows)] {
            index(OP, "start of a group", side.start as usize, side.end as usize + 1)?;
            index(OP, "end of a group", side.end as usize, rows + 1)?;
        }
    }
    Ok(())
}

/// Checks the gated norm's operands: `o` and `z` of one shape, made of whole heads of `value_dim`.
pub(crate) fn gated_rms_norm(o: Shape, z: Shape, value_dim: usize) -> Result<(), KernelError> {
    const OP: &str = "gated_rms_norm";
    same_shape(OP, o, z)?;
    if value_dim == 0 {
        return Err(KernelError::Shape { op: OP, what: "elements of weight", expected: 1, found: 0 });
    }
    dimension(OP, "columns left over by heads", 0, o.1 % value_dim)
}

/// Checks a table of `slots` rows as wide as `x` and one index into it per row of `x`.
pub(crate) fn slots(x: Shape, table: usize, index: &[u32]) -> Result<(), KernelError> {
    const OP: &str = "add_slots";
    dimension(OP, "elements of index", x.0, index.len())?;
    let slots = table.checked_div(x.1).unwrap_or(0);
    dimension(OP, "elements of table", slots * x.1, table)?;
    indices(OP, "slot", index, slots)
}
