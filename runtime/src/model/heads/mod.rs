//! Heads: hidden states at readouts become logits (spec: vela.md §8), everything in F32.
//!
//! All questions of a call go through a head together; a block's logits do not depend on which others are in the
//! call, because every operation here works row by row or within a block's own group of rows.
//!
//! Absent on purpose: temperatures, thresholds and everything else that turns logits into answers (`family`).

mod candidate;
mod inputs;
mod span;

use std::ops::Range;

use synod_kernels::{Device, PairGroup};

use self::candidate::{CandidateHead, CandidateRows};
pub use self::inputs::HeadInputs;
use self::span::{SpanHead, SpanRows};
use super::ModelError;
use super::parameters::Parameters;
use super::qwen3_5::forest::Read;
use crate::family::{Logits, Readout, SpanHead as SpanHeadName};

/// Every head of a member, and the matrices that they share.
pub(super) struct Heads<D: Device> {
    candidate: CandidateHead<D>,
    router: SpanHead<D>,
    broad: Option<SpanHead<D>>,
    scratch: Scratch<D::Matrix>,
}

impl<D: Device> Heads<D> {
    /// Takes `head.*`, `set_bias`, `span2.*` and, where the member has them, `span_broad.*` out of `parameters`.
    /// `slots` is the number of label slots of a span head.
    ///
    /// # Errors
    /// [`ModelError::MissingTensor`] for a tensor that `parameters` does not hold.
    pub(super) fn build(
        device: &D,
        parameters: &mut Parameters<D>,
        slots: usize,
        has_broad_head: bool,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            candidate: CandidateHead::build(parameters)?,
            router: SpanHead::build(parameters, "span2", slots)?,
            broad: has_broad_head.then(|| SpanHead::build(parameters, "span_broad", slots)).transpose()?,
            scratch: Scratch::new(device),
        })
    }

    /// The logits of every block in `reads`, in their order; `states` are the final-normed states
    /// `[read rows, hidden_size]` that [`Read::first`] counts.
    ///
    /// # Errors
    /// [`ModelError::NoSpanHead`] for a block that asks for a head which this member lacks.
    pub(super) fn logits(
        &mut self,
        device: &D,
        states: &D::Matrix,
        reads: &[Read<'_>],
    ) -> Result<Vec<Logits>, ModelError> {
        let (mut candidates, mut router, mut broad) = (Group::default(), Group::default(), Group::default());
        for (index, read) in reads.iter().enumerate() {
            match read.readout {
                Readout::Candidates { options, set_bias, .. } => {
                    candidates.push(index, CandidateRows::new(read.first, options.len(), *set_bias));
                }
                Readout::Spans { head, words, labels } => {
                    let group = match head {
                        SpanHeadName::Router => &mut router,
                        SpanHeadName::Broad => &mut broad,
                    };
                    group.push(index, SpanRows::new(read.first, words, labels));
                }
            }
        }
        let mut logits = vec![Logits { values: Vec::new(), columns: 0 }; reads.len()];
        let scratch = &mut self.scratch;
        candidates.scatter(&mut logits, |rows| self.candidate.logits(device, states, rows, scratch))?;
        router.scatter(&mut logits, |rows| self.router.logits(device, states, rows, scratch))?;
        broad.scatter(&mut logits, |rows| {
            let head = self.broad.as_ref().ok_or(ModelError::NoSpanHead { head: SpanHeadName::Broad })?;
            head.logits(device, states, rows, scratch)
        })?;
        Ok(logits)
    }
}

/// The blocks of one head, and where their logits belong.
struct Group<R> {
    indices: Vec<usize>,
    rows: Vec<R>,
}

impl<R> Default for Group<R> {
    fn default() -> Self {
        Self { indices: Vec::new(), rows: Vec::new() }
    }
}

impl<R> Group<R> {
    fn push(&mut self, index: usize, rows: R) {
        self.indices.push(index);
        self.rows.push(rows);
    }

    /// Runs a head over the group, if there is one, and puts its logits where they belong.
    fn scatter(
        self,
        logits: &mut [Logits],
        head: impl FnOnce(&[R]) -> Result<Vec<Logits>, ModelError>,
    ) -> Result<(), ModelError> {
        if self.rows.is_empty() {
            return Ok(());
        }
        for (index, block) in self.indices.into_iter().zip(head(&self.rows)?) {
            logits[index] = block;
        }
        Ok(())
    }
}

/// Both sides of the pair scores, and the scores, kept between calls.
struct Scratch<M> {
    left: Side<M>,
    right: Side<M>,
    scores: Vec<f32>,
}

/// One side: states as read, as normed, and their two projections `[rows, d]`.
struct Side<M> {
    states: M,
    normed: M,
    dot: M,
    mlp: M,
}

impl<M> Scratch<M> {
    fn new<D: Device<Matrix = M>>(device: &D) -> Self {
        let side =
            || Side { states: device.matrix(), normed: device.matrix(), dot: device.matrix(), mlp: device.matrix() };
        Self { left: side(), right: side(), scores: Vec::new() }
    }

    /// Scores every pair of every group and splits the scores: one [`Logits`] a group.
    fn pair_logits<D: Device<Matrix = M>>(
        &mut self,
        device: &D,
        groups: &[PairGroup],
        scalar: &D::Vector,
    ) -> Result<Vec<Logits>, ModelError> {
        let (left, right) = (&self.left, &self.right);
        device.pair_scores(groups, &left.dot, &left.mlp, &right.dot, &right.mlp, scalar, &mut self.scores)?;
        let mut rest = self.scores.as_slice();
        Ok(groups
            .iter()
            .map(|group| {
                let columns = group.right.len();
                let (scores, tail) = rest.split_at(group.left.len() * columns);
                rest = tail;
                Logits { values: scores.to_vec(), columns }
            })
            .collect())
    }
}

/// A layer norm with weight and bias.
struct LayerNorm<D: Device> {
    weight: D::Vector,
    bias: D::Vector,
}

impl<D: Device> LayerNorm<D> {
    const EPS: f32 = 1e-5;

    /// Takes `NAME.weight` and `NAME.bias`.
    fn build(parameters: &mut Parameters<D>, name: &str) -> Result<Self, ModelError> {
        Ok(Self {
            weight: parameters.vector(&format!("{name}.weight"))?,
            bias: parameters.vector(&format!("{name}.bias"))?,
        })
    }

    /// From a side's `states` to its `normed`.
    fn forward(&self, device: &D, side: &mut Side<D::Matrix>) -> Result<(), ModelError> {
        device.layer_norm(&side.states, &self.weight, &self.bias, Self::EPS, &mut side.normed)?;
        Ok(())
    }
}

/// The consecutive ranges that `lengths` cut off one after another, from 0.
fn consecutive_ranges(lengths: impl IntoIterator<Item = usize>) -> Vec<Range<u32>> {
    let mut start = 0;
    lengths
        .into_iter()
        .map(|len| {
            let range = start..start + len as u32;
            start = range.end;
            range
        })
        .collect()
}
