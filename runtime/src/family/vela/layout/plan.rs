//! What an executor gets of a layout, and where each question's logits will be found.

use std::ops::Range;

use super::{LaidBlock, Layout};
use crate::family::vela::questions::{Kind, Question};
use crate::family::{Block, Plan, Readout, Tree};

/// Where logits of a question come back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// Index in the plan, and in its logits.
    pub tree: usize,
    pub block: usize,
    /// Whether it is one of a long span's windows, whose logits are averaged.
    pub is_window: bool,
    /// Rows: the options (abstain last) of a candidate block, or words of a span's part by their index there.
    pub rows: Range<usize>,
}

impl Layout {
    /// The blocks that are read, and by question (of all of `questions`) where: none for one that is too long.
    pub fn into_plan(self, questions: &[Question]) -> (Plan, Vec<Vec<Read>>) {
        let mut plan = Plan::default();
        let mut reads = vec![Vec::new(); questions.len()];
        for laid in self.trees {
            let mut tree = Tree { prefix: laid.prefix, blocks: Vec::new() };
            for block in laid.blocks.into_iter().filter(|block| !block.replaced) {
                let question = &questions[block.question];
                let rows = match question.kind {
                    Kind::Span => block.first_word..block.first_word + block.words.len(),
                    _ => 0..block.pieces.len(),
                };
                reads[block.question].push(Read {
                    tree: plan.trees.len(),
                    block: tree.blocks.len(),
                    is_window: laid.window.is_some(),
                    rows,
                });
                tree.blocks.push(planned(question, block));
            }
            if !tree.blocks.is_empty() {
                plan.trees.push(tree);
            }
        }
        (plan, reads)
    }
}

fn planned(question: &Question, block: LaidBlock) -> Block {
    let LaidBlock { ids, pieces, words, .. } = block;
    let readout = if question.kind == Kind::Span {
        let labels = pieces.iter().map(|piece| piece.start as u32..piece.end as u32).collect();
        Readout::Spans { head: question.head, words, labels }
    } else {
        // No piece is empty: each has text, and a tokenizer gives text a token or an error.
        let options = pieces.iter().map(|piece| piece.end as u32 - 1).collect();
        Readout::Candidates { options, query: ids.len() as u32 - 1, set_bias: question.kind == Kind::Set }
    };
    Block { ids, readout }
}
