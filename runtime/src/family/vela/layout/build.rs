//! One row or window at a time: measure it, cut its parts, put its pieces together.

use std::collections::HashMap;

use super::pieces::{QuestionPieces, SharedPieces};
use super::truncate::Numbers;
use super::{LaidBlock, LaidTree, LayoutParameters, Layouter, MAX_REQUEST_TOKENS, TokenPart, TooLong, TooLongReason};
use crate::family::TokenRange;
use crate::family::vela::questions::{Kind, Question};
use crate::family::vela::tokens::{Ids, Tokenizer, TokenizerError};
use crate::family::vela::words::windows;

/// Questions, by index, that share a tree.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) index: usize,
    pub(super) candidates: Vec<usize>,
    pub(super) span: Option<usize>,
}

impl Row {
    pub(super) fn is_empty(&self) -> bool {
        self.candidates.is_empty() && self.span.is_none()
    }

    pub(super) fn questions(&self) -> impl Iterator<Item = usize> {
        self.candidates.iter().copied().chain(self.span)
    }

    pub(super) fn remove(&mut self, questions: &[usize]) {
        self.candidates.retain(|question| !questions.contains(question));
        self.span = self.span.filter(|span| !questions.contains(span));
    }
}

/// What the trees of one request are made of, and how much they have taken so far.
pub(super) struct Builder<'a> {
    shared: &'a SharedPieces,
    parameters: LayoutParameters,
    parts: &'a [TokenPart],
    questions: &'a [Question],
    pieces: Vec<QuestionPieces>,
    /// By the kept tokens of each part: rows, and windows of different spans over one target, have equal prefixes.
    prefixes: HashMap<Vec<TokenRange>, Ids>,
    tokens: usize,
}

/// The span question of a tree, and the part that it reads.
#[derive(Clone, Copy)]
struct Target {
    question: usize,
    part: usize,
}

impl<'a> Builder<'a> {
    pub(super) fn new(
        tokenizer: &Tokenizer,
        layouter: &'a Layouter,
        parts: &'a [TokenPart],
        questions: &'a [Question],
    ) -> Result<Self, TokenizerError> {
        let Layouter { parameters, ref shared } = *layouter;
        let pieces = questions
            .iter()
            .map(|question| QuestionPieces::new(tokenizer, shared, question))
            .collect::<Result<_, _>>()?;
        Ok(Builder { shared, parameters, parts, questions, pieces, prefixes: HashMap::new(), tokens: 0 })
    }

    /// A row's own tree and the windows of its span, if that is long. A row that fails has taken nothing.
    pub(super) fn row(&mut self, row: &Row) -> Result<Vec<LaidTree>, TooLong> {
        let before = self.tokens;
        self.own_tree_and_windows(row).inspect_err(|_| self.tokens = before)
    }

    /// Whether a question would fit in a row of its own; whether the windows of a long span do is not asked.
    pub(super) fn fits_alone(&self, question: usize) -> bool {
        let alone = [question];
        let is_span = self.questions[question].kind == Kind::Span;
        let (candidates, span) = if is_span { (&[][..], Some(self.target(question))) } else { (&alone[..], None) };
        let numbers = self.measure(candidates, span, &self.whole_parts());
        self.kept(&numbers, candidates, span).is_some()
    }

    fn own_tree_and_windows(&mut self, row: &Row) -> Result<Vec<LaidTree>, TooLong> {
        let span = row.span.map(|question| self.target(question));
        let mut own = self.tree(row, None, &row.candidates, span)?;
        let Some(target) = span.filter(|target| self.parts[target.part].ids.len() > self.parameters.hybrid_rmax) else {
            return Ok(vec![own]);
        };
        own.blocks.last_mut().expect("a row with a span ends with its block").replaced = true;
        let mut trees = vec![own];
        for window in self.windows(target) {
            trees.push(self.tree(row, Some(window), &[], span)?);
        }
        Ok(trees)
    }

    fn target(&self, question: usize) -> Target {
        let role = self.questions[question].roles[0];
        let part = self.parts.iter().position(|part| part.role == role).expect("a question reads parts that exist");
        Target { question, part }
    }

    fn whole_parts(&self) -> Vec<TokenRange> {
        self.parts.iter().map(|part| TokenRange { start: 0, end: part.ids.len() }).collect()
    }

    fn windows(&self, target: Target) -> Vec<TokenRange> {
        let part = &self.parts[target.part];
        let mut starts: Vec<usize> = part.words.iter().map(|word| word.token).collect();
        starts.dedup();
        windows(&starts, part.ids.len(), self.parameters.window, self.parameters.stride)
    }

    /// A row's own tree, or one with its span's target cut to a window.
    fn tree(
        &mut self,
        row: &Row,
        window: Option<TokenRange>,
        candidates: &[usize],
        span: Option<Target>,
    ) -> Result<LaidTree, TooLong> {
        let too_long = |reason| TooLong { row: row.index, window, reason };
        let mut ranges = self.whole_parts();
        if let (Some(window), Some(target)) = (window, span) {
            ranges[target.part] = window;
        }
        let numbers = self.measure(candidates, span, &ranges);
        let Some(kept) = self.kept(&numbers, candidates, span) else {
            return Err(too_long(TooLongReason::Questions(numbers)));
        };
        let repeats = span.is_some_and(|target| self.repeats(ranges[target.part]));
        for (range, kept) in ranges.iter_mut().zip(&kept) {
            range.end = range.start + kept;
        }
        let prefix = self.prefix(&ranges);
        let mut blocks: Vec<_> = candidates.iter().map(|&question| self.block(question, None)).collect();
        blocks.extend(span.map(|target| {
            let repeat = repeats.then_some((target.part, ranges[target.part]));
            self.block(target.question, repeat)
        }));
        let tree = LaidTree { row: row.index, window, kept, numbers, prefix, blocks };
        self.tokens += tree.tokens();
        if self.tokens > MAX_REQUEST_TOKENS {
            return Err(too_long(TooLongReason::Request { limit_tokens: MAX_REQUEST_TOKENS }));
        }
        Ok(tree)
    }

    /// Whether a block repeats its target: by its length before truncation.
    fn repeats(&self, target: TokenRange) -> bool {
        target.len() <= self.parameters.hybrid_rmax
    }

    fn measure(&self, candidates: &[usize], span: Option<Target>, ranges: &[TokenRange]) -> Numbers {
        let max_length = self.parameters.max_length;
        let mut schema = 0;
        for pieces in candidates.iter().map(|&question| &self.pieces[question]) {
            schema += 1 + pieces.frame_tokens() + pieces.option_tokens();
        }
        let tags = |part: &TokenPart| self.shared.open(part.role).len() + self.shared.close.len();
        let mut overhead = self.shared.context.len() + self.parts.iter().map(tags).sum::<usize>();
        if let Some(target) = span {
            let pieces = &self.pieces[target.question];
            schema += pieces.option_tokens();
            overhead += pieces.frame_tokens();
            if self.repeats(ranges[target.part]) {
                overhead += self.shared.text.len() + tags(&self.parts[target.part]);
                overhead += ranges[target.part].len().min(max_length.saturating_sub(overhead) / 2);
            }
        }
        Numbers::new(max_length, schema, overhead, ranges.iter().map(|range| range.len()).collect())
    }

    fn kept(&self, numbers: &Numbers, candidates: &[usize], span: Option<Target>) -> Option<Vec<usize>> {
        let reads = |question: usize, part: usize| self.questions[question].roles.contains(&self.parts[part].role);
        numbers.kept(|part| {
            candidates.iter().any(|&question| reads(question, part)) || span.is_some_and(|target| target.part == part)
        })
    }

    fn prefix(&mut self, ranges: &[TokenRange]) -> Ids {
        if let Some(prefix) = self.prefixes.get(ranges) {
            return Ids::clone(prefix);
        }
        let mut ids = self.shared.context.to_vec();
        for (part, range) in self.parts.iter().zip(ranges) {
            self.push_segment(&mut ids, part, *range);
        }
        let prefix = Ids::from(ids);
        self.prefixes.insert(ranges.to_vec(), Ids::clone(&prefix));
        prefix
    }

    /// A question's block; `repeat` is the part and the kept tokens of it that a span's block repeats.
    fn block(&self, question: usize, repeat: Option<(usize, TokenRange)>) -> LaidBlock {
        let own = &self.pieces[question];
        let mut ids = own.head.to_vec();
        let mut pieces = Vec::with_capacity(own.options.len());
        for option in &own.options {
            pieces.push(TokenRange { start: ids.len(), end: ids.len() + option.len() });
            ids.extend_from_slice(option);
        }
        let (mut first_word, mut words) = (0, Vec::new());
        if let Some((part, kept)) = repeat {
            let part = &self.parts[part];
            ids.extend_from_slice(&self.shared.text);
            let text_at = ids.len() + self.shared.open(part.role).len();
            self.push_segment(&mut ids, part, kept);
            // Words ascend by token, so those inside the kept range follow each other.
            first_word = part.words.partition_point(|word| word.token < kept.start);
            let inside = part.words[first_word..].iter().take_while(|word| word.token < kept.end);
            words = inside.map(|word| (text_at + word.token - kept.start) as u32).collect();
        }
        ids.extend_from_slice(&own.suffix);
        LaidBlock { question, ids, pieces, first_word, words, replaced: false }
    }

    fn push_segment(&self, ids: &mut Vec<u32>, part: &TokenPart, range: TokenRange) {
        ids.extend_from_slice(self.shared.open(part.role));
        ids.extend_from_slice(&part.ids[range.start..range.end]);
        ids.extend_from_slice(&self.shared.close);
    }
}
