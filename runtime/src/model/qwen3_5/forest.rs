//! Packs trees into the rows of one matrix, without padding.
//!
//! First every distinct prefix that has to be computed, once, however many trees share it; then every block, each a
//! sequence that continues its prefix, or the states that an earlier batch has left of it. Invariant: the rows of a [`Forest`] are covered by its sequences exactly once and in order, no sequence
//! is empty, and every row that is read lies inside its block. A block whose readout reads nothing is not computed.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use synod_kernels::{Packing, Parent, Sequence};

use crate::family::{Block, Readout, Tree};
use crate::model::ModelError;

/// Trees as one packed batch.
#[derive(Debug, Default)]
pub(crate) struct Forest<'a> {
    pub(crate) packing: Packing,
    /// Token id of every row.
    pub(crate) ids: Vec<u32>,
    /// Rows whose final states are read: block after block, each in the order of [`Read`].
    pub(crate) read_rows: Vec<u32>,
    /// The blocks that are read, in the order of the trees.
    pub(crate) reads: Vec<Read<'a>>,
    /// Prefixes that are computed, in the order of their sequences, which are the first ones.
    pub(crate) computed: Vec<&'a Arc<[u32]>>,
    /// Prefixes that were kept and are continued, in the order of [`Parent::Kept`].
    pub(crate) kept: Vec<&'a Arc<[u32]>>,
}

/// A block that is computed, and where its states lie among [`Forest::read_rows`].
#[derive(Debug)]
pub(crate) struct Read<'a> {
    /// Index of its tree in the batch.
    pub(crate) tree: usize,
    /// Index of the block in its tree.
    pub(crate) block: usize,
    /// Its readout; positions are those of the block, not of the batch.
    pub(crate) readout: &'a Readout,
    /// Index in `read_rows` of its first read state. For candidates the options follow, then the query; for spans
    /// the words, of which those that follow each other at one token have one row between them, then every token of
    /// every label.
    pub(crate) first: u32,
}

impl<'a> Forest<'a> {
    /// Packs whole trees, with every prefix to be computed.
    ///
    /// # Errors
    /// As [`Forest::pack_with`].
    pub(crate) fn pack(trees: &[&'a Tree]) -> Result<Self, ModelError> {
        Self::pack_with(trees, |_| false)
    }

    /// Packs whole trees. `is_kept` is asked once of every distinct prefix that has blocks to compute.
    ///
    /// # Errors
    /// [`ModelError::Readout`] where a readout points outside its block, [`ModelError::BatchTokens`] for more rows
    /// than their numbers can hold.
    pub(crate) fn pack_with(trees: &[&'a Tree], mut is_kept: impl FnMut(&[u32]) -> bool) -> Result<Self, ModelError> {
        let tokens = tokens_computed(trees);
        if u32::try_from(tokens).is_err() {
            return Err(ModelError::BatchTokens { max: u32::MAX as usize, found: tokens });
        }
        let mut forest = Self::default();
        let mut prefixes: HashMap<&[u32], Parent> = HashMap::new();
        for tree in trees.iter().filter(|tree| has_prefix_to_compute(tree)) {
            prefixes.entry(&tree.prefix).or_insert_with(|| forest.push_prefix(&tree.prefix, is_kept(&tree.prefix)));
        }
        for (tree_index, tree) in trees.iter().enumerate() {
            let parent = prefixes.get(&*tree.prefix).copied();
            for (block_index, block) in tree.blocks.iter().enumerate().filter(|(_, block)| is_read(block)) {
                check_positions(block).map_err(|position| ModelError::Readout {
                    tree: tree_index,
                    block: block_index,
                    len: block.ids.len(),
                    position,
                })?;
                let sequence = forest.push_sequence(&block.ids, parent, tree.prefix.len());
                forest.push_read(tree_index, block_index, &block.readout, sequence);
            }
        }
        Ok(forest)
    }

    /// Appends a prefix and returns what continues it.
    fn push_prefix(&mut self, prefix: &'a Arc<[u32]>, is_kept: bool) -> Parent {
        if is_kept {
            self.kept.push(prefix);
            return Parent::Kept(self.kept.len() - 1);
        }
        self.computed.push(prefix);
        Parent::Sequence(self.push_sequence(prefix, None, 0))
    }

    /// Tokens of the kept prefixes.
    pub(crate) fn kept_tokens(&self) -> usize {
        self.kept.iter().map(|prefix| prefix.len()).sum()
    }

    /// Appends a sequence and returns its index.
    fn push_sequence(&mut self, ids: &[u32], parent: Option<Parent>, position: usize) -> usize {
        self.packing.sequences.push(Sequence { start: self.ids.len(), len: ids.len(), parent, position });
        self.ids.extend_from_slice(ids);
        self.packing.sequences.len() - 1
    }

    fn push_read(&mut self, tree: usize, block: usize, readout: &'a Readout, sequence: usize) {
        let (start, first) = (self.packing.sequences[sequence].start as u32, self.read_rows.len() as u32);
        let positions = positions(readout);
        self.read_rows.extend(positions.map(|position| start + position));
        self.reads.push(Read { tree, block, readout, first });
    }
}

/// Indices of `trees` so that those of one prefix follow each other: a prefix is then computed again only where its
/// own trees fill more than one batch. Prefixes come in the order in which they first appear, as do the trees of each.
pub(crate) fn by_prefix(trees: &[&Tree]) -> Vec<usize> {
    let mut places: HashMap<&[u32], usize> = HashMap::new();
    let mut of_prefix: Vec<Vec<usize>> = Vec::new();
    for (index, tree) in trees.iter().enumerate() {
        let place = *places.entry(&tree.prefix).or_insert(of_prefix.len());
        if place == of_prefix.len() {
            of_prefix.push(Vec::new());
        }
        of_prefix[place].push(index);
    }
    of_prefix.concat()
}

/// Splits `trees` into runs of whole trees of at most `limit` computed tokens, and at most as many words read, each, in
/// order; a tree that has more by itself is a run by itself. What a run computes once for several trees counts once;
/// what was kept counts too, because it may have to go before its run comes.
///
/// Words count because a head has a row for each, and a token may hold many words.
pub(crate) fn batches(trees: &[&Tree], limit: usize) -> Vec<Range<usize>> {
    let mut batches = Vec::new();
    let mut counter = Counter::default();
    let mut start = 0;
    for (index, tree) in trees.iter().enumerate() {
        let is_full = counter.tokens + counter.tokens_of(tree) > limit || counter.words + words(tree) > limit;
        if index > start && is_full {
            batches.push(start..index);
            (start, counter) = (index, Counter::default());
        }
        counter.add(tree);
    }
    if start < trees.len() {
        batches.push(start..trees.len());
    }
    batches
}

fn tokens_computed(trees: &[&Tree]) -> usize {
    let mut counter = Counter::default();
    for tree in trees {
        counter.add(tree);
    }
    counter.tokens
}

/// Counts the rows that a batch will have, and the words that its heads will.
#[derive(Default)]
struct Counter<'a> {
    /// Of the trees that have something to compute: what no block continues is not packed.
    prefixes: HashSet<&'a [u32]>,
    tokens: usize,
    words: usize,
}

impl<'a> Counter<'a> {
    /// Rows that `tree` would add.
    fn tokens_of(&self, tree: &Tree) -> usize {
        let blocks: usize = tree.blocks.iter().filter(|block| is_read(block)).map(|block| block.ids.len()).sum();
        let is_new = has_prefix_to_compute(tree) && !self.prefixes.contains(&*tree.prefix);
        blocks + if is_new { tree.prefix.len() } else { 0 }
    }

    fn add(&mut self, tree: &'a Tree) {
        self.tokens += self.tokens_of(tree);
        self.words += words(tree);
        if has_prefix_to_compute(tree) {
            self.prefixes.insert(&tree.prefix);
        }
    }
}

fn words(tree: &Tree) -> usize {
    let of_block = |block: &Block| match &block.readout {
        Readout::Candidates { .. } => 0,
        Readout::Spans { words, .. } => words.len(),
    };
    tree.blocks.iter().filter(|block| is_read(block)).map(of_block).sum()
}

fn has_prefix_to_compute(tree: &Tree) -> bool {
    !tree.prefix.is_empty() && tree.blocks.iter().any(is_read)
}

/// Whether a block has logits at all. A span block without words (or without labels) has none.
fn is_read(block: &Block) -> bool {
    match &block.readout {
        Readout::Candidates { options, .. } => !options.is_empty(),
        Readout::Spans { words, labels, .. } => !words.is_empty() && !labels.is_empty(),
    }
}

/// The positions of a block that are read, in the order in which heads expect their states.
fn positions(readout: &Readout) -> Box<dyn Iterator<Item = u32> + '_> {
    match readout {
        Readout::Candidates { options, query, .. } => Box::new(options.iter().copied().chain([*query])),
        Readout::Spans { words, labels, .. } => {
            let words = words.chunk_by(|word, next| word == next).map(|run| run[0]);
            Box::new(words.chain(labels.iter().flat_map(Clone::clone)))
        }
    }
}

/// `Err(position)` for a position that is not inside the block. A label without tokens has no mean: its start is the
/// position that is refused.
fn check_positions(block: &Block) -> Result<(), u32> {
    if let Readout::Spans { labels, .. } = &block.readout
        && let Some(empty) = labels.iter().find(|label| label.is_empty())
    {
        return Err(empty.start);
    }
    // The ends of label ranges are tested before a range is walked: one could claim 2^32 positions.
    let ends: Box<dyn Iterator<Item = u32>> = match &block.readout {
        Readout::Candidates { .. } => positions(&block.readout),
        Readout::Spans { words, labels, .. } => {
            Box::new(words.iter().copied().chain(labels.iter().map(|label| label.end - 1)))
        }
    };
    let len = block.ids.len();
    ends.into_iter().find(|&position| position as usize >= len).map_or(Ok(()), Err)
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // one range is meant, not its elements
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::family::SpanHead;

    fn candidates(ids: &[u32], options: &[u32]) -> Block {
        let query = ids.len() as u32 - 1;
        Block { ids: ids.to_vec(), readout: Readout::Candidates { options: options.to_vec(), query, set_bias: false } }
    }

    fn spans(ids: &[u32], words: &[u32], labels: &[Range<u32>]) -> Block {
        let readout = Readout::Spans { head: SpanHead::Router, words: words.to_vec(), labels: labels.to_vec() };
        Block { ids: ids.to_vec(), readout }
    }

    fn tree(prefix: &[u32], blocks: Vec<Block>) -> Tree {
        Tree { prefix: Arc::from(prefix), blocks }
    }

    fn sequence(start: usize, len: usize, parent: Option<usize>, position: usize) -> Sequence {
        let parent = parent.map(Parent::Sequence);
        Sequence { start, len, parent, position }
    }

    #[test]
    fn equal_prefixes_are_packed_once_and_before_all_blocks() {
        let trees = [
            tree(&[1, 2, 3], vec![candidates(&[10, 11], &[0]), candidates(&[12], &[0])]),
            tree(&[4], vec![spans(&[13, 14, 15], &[2], &[0..2])]),
            tree(&[1, 2, 3], vec![candidates(&[16, 17], &[0])]),
        ];
        let forest = Forest::pack(&trees.each_ref()).unwrap();
        assert_eq!(forest.ids, [1, 2, 3, 4, 10, 11, 12, 13, 14, 15, 16, 17]);
        let expected = [
            sequence(0, 3, None, 0),
            sequence(3, 1, None, 0),
            sequence(4, 2, Some(0), 3),
            sequence(6, 1, Some(0), 3),
            sequence(7, 3, Some(1), 1),
            sequence(10, 2, Some(0), 3),
        ];
        assert_eq!(forest.packing.sequences, expected);
        assert_eq!(forest.read_rows, [4, 5, 6, 6, 9, 7, 8, 10, 11], "options and query; words and label tokens");
        let places: Vec<_> = forest.reads.iter().map(|read| (read.tree, read.block, read.first)).collect();
        assert_eq!(places, [(0, 0, 0), (0, 1, 2), (1, 0, 4), (2, 0, 7)]);
    }

    #[test]
    fn what_was_kept_is_continued_and_not_computed() {
        let trees = [
            tree(&[1, 2, 3], vec![candidates(&[10, 11], &[1])]),
            tree(&[4], vec![candidates(&[12], &[0]), candidates(&[13], &[0])]),
            tree(&[5, 6], vec![candidates(&[14], &[0])]),
            tree(&[4], vec![candidates(&[15], &[0])]),
        ];
        let mut asked = Vec::new();
        let is_kept = |prefix: &[u32]| {
            asked.push(prefix.to_vec());
            prefix != [5, 6]
        };
        let trees: Vec<&Tree> = trees.iter().collect();
        let forest = Forest::pack_with(&trees, is_kept).unwrap();
        assert_eq!(forest.ids, [5, 6, 10, 11, 12, 13, 14, 15]);
        let behind = |start, len, parent, position| Sequence { start, len, parent: Some(parent), position };
        let expected = [
            sequence(0, 2, None, 0),
            behind(2, 2, Parent::Kept(0), 3),
            behind(4, 1, Parent::Kept(1), 1),
            behind(5, 1, Parent::Kept(1), 1),
            behind(6, 1, Parent::Sequence(0), 2),
            behind(7, 1, Parent::Kept(1), 1),
        ];
        assert_eq!(forest.packing.sequences, expected);
        assert_eq!(forest.kept, [&trees[0].prefix, &trees[1].prefix]);
        assert_eq!((forest.computed, asked), (vec![&trees[2].prefix], vec![vec![1, 2, 3], vec![4], vec![5, 6]]));
    }

    /// Every punctuation mark is a word, and a token may hold many: rows are bounded by tokens all the same.
    #[test]
    fn words_at_one_token_are_read_once() {
        let trees =
            [tree(&[1], vec![spans(&[2; 10], &[4; 100_000], &[0..2]), spans(&[3; 4], &[1, 1, 2, 3, 3], &[0..1])])];
        let forest = Forest::pack(&trees.each_ref()).unwrap();
        assert_eq!(forest.read_rows, [5, 1, 2, 12, 13, 14, 11]);
        assert_eq!(forest.reads.iter().map(|read| read.first).collect::<Vec<_>>(), [0, 3]);
    }

    /// A device refuses empty sequences, and a parent that is not there would be read out of bounds.
    #[test]
    fn what_is_empty_or_unread_is_not_packed() {
        let unread = spans(&[9, 9], &[], &[0..1]);
        let trees = [
            tree(&[], vec![candidates(&[10, 11], &[0])]),
            tree(&[1, 2], vec![unread.clone(), spans(&[], &[], &[])]),
            tree(&[3], vec![unread, candidates(&[12], &[0])]),
            tree(&[5], vec![]),
        ];
        let forest = Forest::pack(&trees.each_ref()).unwrap();
        assert_eq!(forest.ids, [3, 10, 11, 12]);
        let expected = [sequence(0, 1, None, 0), sequence(1, 2, None, 0), sequence(3, 1, Some(0), 1)];
        assert_eq!(forest.packing.sequences, expected);
        let places: Vec<_> = forest.reads.iter().map(|read| (read.tree, read.block)).collect();
        assert_eq!(places, [(0, 0), (2, 1)]);
        assert_eq!(Forest::pack(&[]).unwrap().packing.tokens(), 0);
    }

    #[test]
    fn positions_outside_their_block_are_refused() {
        let good = candidates(&[1], &[0]);
        let empty = Readout::Candidates { options: vec![0], query: 0, set_bias: true };
        for (block, wrong) in [
            (candidates(&[1, 2], &[0, 2]), 2),
            (Block { ids: vec![], readout: empty }, 0),
            (spans(&[1, 2, 3], &[3], &[0..1]), 3),
            (spans(&[1, 2, 3], &[0], &[0..1, 2..u32::MAX]), u32::MAX - 1),
            (spans(&[1, 2, 3], &[0], &[0..1, 2..2]), 2),
        ] {
            let len = block.ids.len();
            let trees = [tree(&[7], vec![good.clone()]), tree(&[7], vec![good.clone(), block])];
            let error = Forest::pack(&trees.each_ref()).unwrap_err();
            let ModelError::Readout { tree: 1, block: 1, len: found_len, position } = error else { panic!("{error}") };
            assert_eq!((found_len, position), (len, wrong));
        }
    }

    #[test]
    fn batches_are_runs_of_whole_trees() {
        let block = |len: usize| candidates(&vec![1; len], &[0]);
        let trees = [
            tree(&[1; 10], vec![block(5)]),
            tree(&[1; 10], vec![block(5)]),
            tree(&[2; 10], vec![block(5)]),
            tree(&[3; 50], vec![block(5)]),
            tree(&[4], vec![spans(&[1; 99], &[], &[])]),
        ];
        let trees: Vec<&Tree> = trees.iter().collect();
        for (limit_tokens, expected) in [
            (1000, vec![0..5]),
            (35, vec![0..3, 3..4, 4..5]),
            (20, vec![0..2, 2..3, 3..4, 4..5]),
            (19, vec![0..1, 1..2, 2..3, 3..4, 4..5]),
        ] {
            assert_eq!(batches(&trees, limit_tokens), expected, "at most {limit_tokens} tokens");
        }
        assert!(batches(&[], 10).is_empty());
    }

    #[test]
    fn batches_are_bounded_in_words_too() {
        let wordy = || tree(&[1; 10], vec![spans(&[2; 5], &[0; 30], &[0..1])]);
        let trees = [wordy(), wordy(), wordy()];
        assert_eq!(batches(&trees.each_ref(), 89), [0..2, 2..3]);
        assert_eq!(batches(&trees.each_ref(), 29), [0..1, 1..2, 2..3]);
    }

    /// A prefix counts where it is first computed, not where it is first seen.
    #[test]
    fn a_prefix_that_nothing_read_continues_costs_its_next_tree() {
        let unread = tree(&[1; 10], vec![spans(&[2; 5], &[], &[0..1])]);
        let read = tree(&[1; 10], vec![candidates(&[3; 5], &[0])]);
        let trees = [&unread, &read];
        assert_eq!(tokens_computed(&trees), Forest::pack(&trees).unwrap().ids.len());
        assert_eq!(tokens_computed(&trees), 15);
    }

    #[test]
    fn trees_of_one_prefix_follow_each_other() {
        let trees = [2, 1, 2, 3, 1].map(|id| tree(&[id], vec![]));
        assert_eq!(by_prefix(&trees.each_ref()), [0, 2, 1, 4, 3]);
    }
}
