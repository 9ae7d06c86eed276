//! Families of decision models: text becomes a plan, logits become answers. No device code.
//!
//! [`Plan`] goes to an executor, [`Logits`] come back; between the two, what a family must remember of a request
//! waits in a [`Pending`]. Another family (Kev) is another implementation of [`Family`] and nothing else.

pub mod vela;

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use crate::wire::json::Value;
use crate::wire::request::{Question, Strictness};
use crate::wire::response::{Decision, Refusal};

/// Code points of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CharRange {
    pub start: usize,
    pub end: usize,
}

/// Tokens of a part or a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenRange {
    pub start: usize,
    pub end: usize,
}

impl TokenRange {
    /// Number of tokens.
    pub fn len(self) -> usize {
        self.end - self.start
    }

    /// Whether it covers nothing.
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }
}

/// What an executor computes for one request: the trees of all its rows and windows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Plan {
    pub trees: Vec<Tree>,
}

/// One prefix and the blocks that continue it, each by itself (spec: vela.md §6). Every block is read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tree {
    pub prefix: Arc<[u32]>,
    pub blocks: Vec<Block>,
}

/// A question's tokens after its prefix, and where its hidden states are read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Block {
    pub ids: Vec<u32>,
    pub readout: Readout,
}

/// Positions inside a block (0 is the block's first token) and the head that reads them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Readout {
    /// The candidate head: one logit per option, read at `options[i]` against `query`.
    Candidates { options: Vec<u32>, query: u32, set_bias: bool },
    /// A span head: one logit per word and label; a word is read at its token, a label as the mean over its tokens.
    /// Without words nothing is computed and the logits are empty.
    Spans { head: SpanHead, words: Vec<u32>, labels: Vec<Range<u32>> },
}

/// Which of a member's span heads reads a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpanHead {
    /// `span2.*`
    Router,
    /// `span_broad.*`
    Broad,
}

impl SpanHead {
    /// Its name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            SpanHead::Router => "router",
            SpanHead::Broad => "broad",
        }
    }
}

impl Plan {
    /// Tokens of every block.
    pub fn block_tokens(&self) -> usize {
        self.trees.iter().flat_map(|tree| &tree.blocks).map(|block| block.ids.len()).sum()
    }

    /// Tokens that it holds and that a device computes for it in one pass: every block, and once each prefix that trees
    /// share (as one allocation, which is how a layout shares them). A device that needs several passes computes a
    /// prefix once in each that has a tree of it.
    pub fn tokens(&self) -> usize {
        let mut seen = HashSet::new();
        let prefixes = self.trees.iter().map(|tree| &tree.prefix);
        self.block_tokens()
            + prefixes.filter(|prefix| seen.insert(Arc::as_ptr(prefix))).map(|prefix| prefix.len()).sum::<usize>()
    }
}

impl Tree {
    /// Tokens of the prefix and of every block.
    pub fn tokens(&self) -> usize {
        self.prefix.len() + self.blocks.iter().map(|block| block.ids.len()).sum::<usize>()
    }
}

/// What a tree may hold, whoever asks: the memory of a forward is reckoned with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeBounds {
    /// The most tokens, and the most words that it reads.
    pub tokens: usize,
    /// The fewest tokens of a block.
    pub least_block_tokens: usize,
    /// The fewest tokens of an option or a label.
    pub least_label_tokens: usize,
    /// The most labels of a block.
    pub max_labels: usize,
}

/// The raw F32 logits of one block, as its head gave them (a Set's include `set_bias`).
#[derive(Clone, Debug, PartialEq)]
pub struct Logits {
    /// One row per option's or word; row-major.
    pub values: Vec<f32>,
    /// Values per row: 1 for candidates, the number of labels for spans.
    pub columns: usize,
}

impl Logits {
    /// The values of one row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.columns..(row + 1) * self.columns]
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.values.len() / self.columns.max(1)
    }

    /// Whether every value is a number.
    pub fn is_finite(&self) -> bool {
        self.values.iter().all(|x| x.is_finite())
    }
}

/// A request between its two halves.
pub struct Rendered {
    pub plan: Plan,
    pub pending: Box<dyn Pending>,
}

/// What a family needs to turn a request's logits into its answers.
pub trait Pending: Send {
    /// `logits[tree][block]` in the order of the plan.
    ///
    /// # Errors
    /// [`Refusal::InvalidModelOutput`] when a logit is not finite and the request is all-or-nothing.
    fn finish(self: Box<Self>, logits: &[Vec<Logits>]) -> Result<Decision, Refusal>;
}

/// One family's reading of requests and writing of answers, for one member. Pure: no device, no clock, no status.
pub trait Family: Send + Sync {
    /// Reads a state and its questions, and lays them out.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] for an invalid state, or, when all-or-nothing, for any invalid question;
    /// [`Refusal::TooLong`] when all-or-nothing and the questions alone do not fit.
    fn render(
        &self,
        state: &Value,
        questions: &[(String, Question)],
        strictness: Strictness,
    ) -> Result<Rendered, Refusal>;

    /// A small plan with a readout of every kind that the member has. It is computed before anybody asks, so that what a
    /// device does only the first time is done, and what fails there fails a load and no request.
    ///
    /// # Errors
    /// As [`render`](Self::render): the member reads nothing as it should.
    fn warm_up(&self) -> Result<Plan, Refusal>;

    /// The type that a question names, or that its preset has: one of [`question_types`](Self::question_types).
    fn question_kind(&self, question: &Question) -> Option<&'static str>;

    /// Question types that `/v1/models` lists.
    fn question_types(&self) -> &'static [&'static str];

    /// The longest input of a row, in tokens.
    fn max_length_tokens(&self) -> usize;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_prefix_counts_once() {
        let readout = Readout::Candidates { options: vec![0], query: 0, set_bias: false };
        let block = Block { ids: vec![7; 3], readout };
        let tree = |prefix: &Arc<[u32]>| Tree { prefix: Arc::clone(prefix), blocks: vec![block.clone()] };
        let (shared, other) = (Arc::from([1; 100]), Arc::from([2; 10]));
        assert_eq!(Plan { trees: vec![tree(&shared), tree(&other), tree(&shared)] }.tokens(), 100 + 10 + 3 * 3);
        assert_eq!(Plan::default().tokens(), 0);
    }
}
