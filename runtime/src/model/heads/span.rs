//! A span head: one logit per word and label (spec: vela.md §8). `span2` and `span_broad` are two of them.
//!
//! Words at one token share its state, yet each is a word of its own: it counts in the mean and has its own logits.

use std::iter::repeat_n;
use std::ops::Range;

use synod_kernels::{Device, PairGroup};

use super::{LayerNorm, Scratch, consecutive_ranges};
use crate::family::Logits;
use crate::model::ModelError;
use crate::model::parameters::Parameters;

/// `(K w)·(Q l) / √d + v · GELU(M w + b + N l)`, with `w = LN_wn(word)` less its mean over the words of the block and
/// `l = LN_ln(label) + slot`, less its mean over the labels of the block if there are two or more.
///
/// The shipped `o.{weight,bias}` are unused.
pub(super) struct SpanHead<D: Device> {
    wn: LayerNorm<D>,
    ln: LayerNorm<D>,
    /// `[slots, hidden_size]`: one row for the label at each place of the list, the last for all further ones.
    slot: D::Vector,
    slots: usize,
    k: D::Weight,
    q: D::Weight,
    m: D::Weight,
    m_bias: D::Vector,
    n: D::Weight,
    v: D::Vector,
}

/// Rows of one block's readout in the matrix of read states. There is at least one word and one label.
pub(super) struct SpanRows {
    /// The row of each word.
    pub(super) words: Vec<u32>,
    /// The rows of every token of each label.
    pub(super) labels: Vec<Range<u32>>,
}

impl SpanRows {
    /// The words' rows begin at `first`, one for each run of words at one token; those of every label's tokens follow.
    /// `words` and `labels` are positions in the block.
    pub(super) fn new(first: u32, words: &[u32], labels: &[Range<u32>]) -> Self {
        let runs = words.chunk_by(|word, next| word == next);
        let words: Vec<u32> = runs.zip(first..).flat_map(|(run, row)| repeat_n(row, run.len())).collect();
        let end = words.last().map_or(first, |last| last + 1);
        let labels = consecutive_ranges(labels.iter().map(Range::len))
            .into_iter()
            .map(|label| end + label.start..end + label.end)
            .collect();
        Self { words, labels }
    }
}

impl<D: Device> SpanHead<D> {
    /// Takes the tensors `PREFIX.*`; `slots` is the number of rows of `slot.weight`, at least one.
    pub(super) fn build(parameters: &mut Parameters<D>, prefix: &str, slots: usize) -> Result<Self, ModelError> {
        let name = |tail: &str| format!("{prefix}.{tail}");
        Ok(Self {
            wn: LayerNorm::build(parameters, &name("wn"))?,
            ln: LayerNorm::build(parameters, &name("ln"))?,
            slot: parameters.vector(&name("slot.weight"))?,
            slots,
            k: parameters.linear(&name("K.weight"))?,
            q: parameters.linear(&name("Q.weight"))?,
            m: parameters.linear(&name("M.weight"))?,
            m_bias: parameters.vector(&name("M.bias"))?,
            n: parameters.linear(&name("N.weight"))?,
            v: parameters.vector(&name("v.weight"))?,
        })
    }

    /// `[words, labels]` logits for each of `blocks`.
    pub(super) fn logits(
        &self,
        device: &D,
        states: &D::Matrix,
        blocks: &[SpanRows],
        scratch: &mut Scratch<D::Matrix>,
    ) -> Result<Vec<Logits>, ModelError> {
        let words = consecutive_ranges(blocks.iter().map(|block| block.words.len()));
        let rows: Vec<u32> = blocks.iter().flat_map(|block| block.words.iter().copied()).collect();
        let left = &mut scratch.left;
        device.gather_rows(states, &rows, &mut left.states)?;
        self.wn.forward(device, left)?;
        device.center_rows(&mut left.normed, &words)?;
        device.linear(&self.k, &left.normed, &mut left.dot)?;
        device.linear(&self.m, &left.normed, &mut left.mlp)?;
        device.add_bias(&mut left.mlp, &self.m_bias)?;

        let labels = consecutive_ranges(blocks.iter().map(|block| block.labels.len()));
        let rows: Vec<Range<u32>> = blocks.iter().flat_map(|block| block.labels.iter().cloned()).collect();
        let right = &mut scratch.right;
        device.mean_rows(states, &rows, &mut right.states)?;
        self.ln.forward(device, right)?;
        device.add_slots(&mut right.normed, &self.slot, &self.slot_indices(blocks))?;
        // A single label less its own mean would be nothing.
        let centred: Vec<_> = labels.iter().filter(|block| block.len() >= 2).cloned().collect();
        device.center_rows(&mut right.normed, &centred)?;
        device.linear(&self.q, &right.normed, &mut right.dot)?;
        device.linear(&self.n, &right.normed, &mut right.mlp)?;

        let groups: Vec<_> = words.into_iter().zip(labels).map(|(left, right)| PairGroup { left, right }).collect();
        scratch.pair_logits(device, &groups, &self.v)
    }

    /// The slot of every label of every block: its place in the block's list, or the last slot.
    fn slot_indices(&self, blocks: &[SpanRows]) -> Vec<u32> {
        let last = self.slots as u32 - 1;
        blocks.iter().flat_map(|block| (0..block.labels.len() as u32).map(|place| place.min(last))).collect()
    }
}
