//! The candidate head: one logit per option, its end against the block's query (spec: vela.md §8).

use std::ops::Range;

use synod_kernels::{Device, PairGroup};

use super::{LayerNorm, Scratch, consecutive_ranges};
use crate::family::Logits;
use crate::model::ModelError;
use crate::model::parameters::Parameters;

/// `⟨key·LN_c(c), query·LN_q(q)⟩ / √d + scalar · GELU(candidate_mlp·LN_c(c) + b + query_mlp·LN_q(q))`.
pub(super) struct CandidateHead<D: Device> {
    candidate_norm: LayerNorm<D>,
    query_norm: LayerNorm<D>,
    key: D::Weight,
    query: D::Weight,
    candidate_mlp: D::Weight,
    candidate_mlp_bias: D::Vector,
    query_mlp: D::Weight,
    scalar: D::Vector,
    /// Added to every logit of a Set.
    set_bias: f32,
}

/// Rows of one block's readout in the matrix of read states.
pub(super) struct CandidateRows {
    pub(super) options: Range<u32>,
    pub(super) query: u32,
    set_bias: bool,
}

impl CandidateRows {
    /// The options' rows begin at `first`, the query's row follows them.
    pub(super) fn new(first: u32, options: usize, set_bias: bool) -> Self {
        let query = first + options as u32;
        Self { options: first..query, query, set_bias }
    }
}

impl<D: Device> CandidateHead<D> {
    pub(super) fn build(parameters: &mut Parameters<D>) -> Result<Self, ModelError> {
        Ok(Self {
            candidate_norm: LayerNorm::build(parameters, "head.candidate_norm")?,
            query_norm: LayerNorm::build(parameters, "head.query_norm")?,
            key: parameters.linear("head.key.weight")?,
            query: parameters.linear("head.query.weight")?,
            candidate_mlp: parameters.linear("head.candidate_mlp.weight")?,
            candidate_mlp_bias: parameters.vector("head.candidate_mlp.bias")?,
            query_mlp: parameters.linear("head.query_mlp.weight")?,
            scalar: parameters.vector("head.scalar.weight")?,
            set_bias: parameters.scalar("set_bias")?,
        })
    }

    /// One column of logits for each of `blocks`.
    pub(super) fn logits(
        &self,
        device: &D,
        states: &D::Matrix,
        blocks: &[CandidateRows],
        scratch: &mut Scratch<D::Matrix>,
    ) -> Result<Vec<Logits>, ModelError> {
        let options: Vec<u32> = blocks.iter().flat_map(|block| block.options.clone()).collect();
        let left = &mut scratch.left;
        device.gather_rows(states, &options, &mut left.states)?;
        self.candidate_norm.forward(device, left)?;
        device.linear(&self.key, &left.normed, &mut left.dot)?;
        device.linear(&self.candidate_mlp, &left.normed, &mut left.mlp)?;
        device.add_bias(&mut left.mlp, &self.candidate_mlp_bias)?;

        let queries: Vec<u32> = blocks.iter().map(|block| block.query).collect();
        let right = &mut scratch.right;
        device.gather_rows(states, &queries, &mut right.states)?;
        self.query_norm.forward(device, right)?;
        device.linear(&self.query, &right.normed, &mut right.dot)?;
        device.linear(&self.query_mlp, &right.normed, &mut right.mlp)?;

        let options = consecutive_ranges(blocks.iter().map(|block| block.options.len()));
        let queries = consecutive_ranges(blocks.iter().map(|_| 1));
        let groups: Vec<_> = options.into_iter().zip(queries).map(|(left, right)| PairGroup { left, right }).collect();
        let mut logits = scratch.pair_logits(device, &groups, &self.scalar)?;
        for (block, logits) in blocks.iter().zip(&mut logits) {
            if block.set_bias {
                logits.values.iter_mut().for_each(|logit| *logit += self.set_bias);
            }
        }
        Ok(logits)
    }
}
