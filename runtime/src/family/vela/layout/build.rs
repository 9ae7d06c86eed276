//! One row at a time: sketch its own tree and its windows, and when all of them are within bounds, put pieces together.
//!
//! Invariant: no id is copied for a row that will be refused.

use std::collections::HashMap;
use std::iter;
use std::ops::Range;

use super::pieces::{QuestionPieces, SharedPieces};
use super::truncate::Numbers;
use super::{
    LaidBlock, LaidTree, LayoutParameters, Layouter, MAX_REQUEST_SCORES, MAX_REQUEST_TOKENS, TokenPart, TooLong,
    TooLongReason,
};
use crate::family::TokenRange;
use crate::family::vela::questions::{Kind, Question};
use crate::family::vela::tokens::Ids;
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

    pub(super) fn remove(&mut self, is_gone: impl Fn(usize) -> bool) {
        self.candidates.retain(|&question| !is_gone(question));
        self.span = self.span.filter(|&span| !is_gone(span));
    }
}

/// What the trees of one request are made of, and how much they have taken so far.
pub(super) struct Builder<'a> {
    shared: &'a SharedPieces,
    parameters: LayoutParameters,
    parts: &'a [TokenPart],
    questions: &'a [Question],
    /// None of a question whose text has no tokens, which is in no row.
    pieces: Vec<Option<QuestionPieces>>,
    /// By the kept tokens of each part: rows, and windows of different spans over one target, have equal prefixes.
    prefixes: HashMap<Vec<TokenRange>, Ids>,
    taken: Taken,
}

/// The span question of a tree, and the part that it reads.
#[derive(Clone, Copy)]
struct Target {
    question: usize,
    part: usize,
}

/// A tree within its own bounds, before an id of it is copied.
struct Sketch<'r> {
    window: Option<TokenRange>,
    candidates: &'r [usize],
    span: Option<Target>,
    numbers: Numbers,
    /// Kept tokens of each part.
    ranges: Vec<TokenRange>,
    /// The words that its span block repeats, by their index in the part; `None` where it repeats nothing.
    words: Option<Range<usize>>,
    tokens: usize,
}

/// What one request holds in all.
#[derive(Clone, Copy, Default)]
struct Taken {
    tokens: usize,
    /// Logits of spans: words times labels.
    scores: usize,
}

impl Taken {
    fn add(&mut self, tokens: usize, scores: usize) -> Result<(), TooLongReason> {
        self.tokens += tokens;
        self.scores += scores;
        if self.tokens > MAX_REQUEST_TOKENS {
            return Err(TooLongReason::Request { limit_tokens: MAX_REQUEST_TOKENS });
        }
        if self.scores > MAX_REQUEST_SCORES {
            return Err(TooLongReason::Scores { limit_scores: MAX_REQUEST_SCORES });
        }
        Ok(())
    }
}

impl<'a> Builder<'a> {
    /// `pieces` of every question that a row will name.
    pub(super) fn new(
        layouter: &'a Layouter,
        parts: &'a [TokenPart],
        questions: &'a [Question],
        pieces: Vec<Option<QuestionPieces>>,
    ) -> Self {
        let Layouter { parameters, ref shared } = *layouter;
        Builder { shared, parameters, parts, questions, pieces, prefixes: HashMap::new(), taken: Taken::default() }
    }

    /// A row's own tree and the windows of its span, if that is long. A row that fails has taken nothing.
    pub(super) fn row(&mut self, row: &Row) -> Result<Vec<LaidTree>, TooLong> {
        let (sketches, taken) = self.sketches(row)?;
        self.taken = taken;
        Ok(sketches.into_iter().map(|sketch| self.tree(row.index, sketch)).collect())
    }

    /// Why a question would not fit in a row of its own, if so; whether the windows of a long span do is not asked.
    pub(super) fn fits_alone(&self, question: usize) -> Result<(), TooLongReason> {
        let alone = [question];
        let is_span = self.questions[question].kind == Kind::Span;
        let (candidates, span) = if is_span { (&[][..], Some(self.target(question))) } else { (&alone[..], None) };
        self.sketch(None, candidates, span).map(|_| ())
    }

    /// All trees of a row, and what the request will then have taken.
    fn sketches<'r>(&self, row: &'r Row) -> Result<(Vec<Sketch<'r>>, Taken), TooLong> {
        let span = row.span.map(|question| self.target(question));
        let is_long = |target: &Target| self.parts[target.part].ids.len() > self.parameters.hybrid_rmax;
        let windows = span.filter(is_long).map(|target| self.windows(target)).unwrap_or_default();
        let (mut sketches, mut taken) = (Vec::with_capacity(1 + windows.len()), self.taken);
        for window in iter::once(None).chain(windows.into_iter().map(Some)) {
            let too_long = |reason| TooLong { row: row.index, window, reason };
            let candidates = if window.is_none() { &row.candidates[..] } else { &[] };
            let sketch = self.sketch(window, candidates, span).map_err(too_long)?;
            taken.add(sketch.tokens, self.scores(&sketch)).map_err(too_long)?;
            sketches.push(sketch);
        }
        Ok((sketches, taken))
    }

    /// A row's own tree, or one with its span's target cut to a window.
    fn sketch<'r>(
        &self,
        window: Option<TokenRange>,
        candidates: &'r [usize],
        span: Option<Target>,
    ) -> Result<Sketch<'r>, TooLongReason> {
        let mut ranges = self.whole_parts();
        if let (Some(window), Some(target)) = (window, span) {
            ranges[target.part] = window;
        }
        let numbers = self.measure(candidates, span, &ranges);
        let Some(kept) = self.kept(&numbers, candidates, span) else {
            return Err(TooLongReason::Questions(numbers));
        };
        let repeating = span.filter(|target| self.repeats(ranges[target.part]));
        for (range, kept) in ranges.iter_mut().zip(kept) {
            range.end = range.start + kept;
        }
        let words = repeating.map(|target| self.words(target.part, ranges[target.part]));
        let limit = self.parameters.max_tree_tokens();
        let tokens = self.tree_tokens(candidates, span, repeating, &ranges);
        if tokens > limit {
            return Err(TooLongReason::Tree { limit_tokens: limit });
        }
        if words.as_ref().is_some_and(|words| words.len() > limit) {
            return Err(TooLongReason::Words { limit_words: limit });
        }
        Ok(Sketch { window, candidates, span, numbers, ranges, words, tokens })
    }

    fn pieces(&self, question: usize) -> &QuestionPieces {
        self.pieces[question].as_ref().expect("a question in a row has its pieces")
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

    /// Whether a block repeats its target: by its length before truncation.
    fn repeats(&self, target: TokenRange) -> bool {
        target.len() <= self.parameters.hybrid_rmax
    }

    /// The words of a part whose tokens are kept, by their index: they ascend by token, so they follow each other.
    fn words(&self, part: usize, kept: TokenRange) -> Range<usize> {
        let before = |token: usize| self.parts[part].words.partition_point(|word| word.token < token);
        before(kept.start)..before(kept.end)
    }

    fn scores(&self, sketch: &Sketch<'_>) -> usize {
        let labels = sketch.span.map_or(0, |target| self.pieces(target.question).options.len());
        sketch.words.as_ref().map_or(0, |words| words.len() * labels)
    }

    /// Tokens of the tags of a part.
    fn tag_tokens(&self, part: &TokenPart) -> usize {
        self.shared.open(part.role).len() + self.shared.close.len()
    }

    /// Tokens of the prefix and of every block.
    fn tree_tokens(
        &self,
        candidates: &[usize],
        span: Option<Target>,
        repeating: Option<Target>,
        ranges: &[TokenRange],
    ) -> usize {
        let segment = |part: usize| self.tag_tokens(&self.parts[part]) + ranges[part].len();
        let prefix = self.shared.context.len() + (0..self.parts.len()).map(segment).sum::<usize>();
        let questions = candidates.iter().copied().chain(span.map(|target| target.question));
        let pieces: usize = questions.map(|question| self.pieces(question).tokens()).sum();
        prefix + pieces + repeating.map_or(0, |target| self.shared.text.len() + segment(target.part))
    }

    fn measure(&self, candidates: &[usize], span: Option<Target>, ranges: &[TokenRange]) -> Numbers {
        let max_length = self.parameters.max_length;
        let mut schema = 0;
        for pieces in candidates.iter().map(|&question| self.pieces(question)) {
            schema += 1 + pieces.frame_tokens() + pieces.option_tokens();
        }
        let mut overhead = self.shared.context.len() + self.parts.iter().map(|p| self.tag_tokens(p)).sum::<usize>();
        if let Some(target) = span {
            let pieces = self.pieces(target.question);
            schema += pieces.option_tokens();
            overhead += pieces.frame_tokens();
            if self.repeats(ranges[target.part]) {
                overhead += self.shared.text.len() + self.tag_tokens(&self.parts[target.part]);
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

    /// What a sketch shows, in full.
    fn tree(&mut self, row: usize, sketch: Sketch<'_>) -> LaidTree {
        let Sketch { window, candidates, span, numbers, ranges, words, tokens } = sketch;
        let prefix = self.prefix(&ranges);
        let mut blocks: Vec<_> = candidates.iter().map(|&question| self.block(question, None)).collect();
        blocks.extend(span.map(|target| {
            let repeat = words.map(|words| Repeat { part: target.part, kept: ranges[target.part], words });
            self.block(target.question, repeat)
        }));
        let kept = ranges.iter().map(|range| range.len()).collect();
        let tree = LaidTree { row, window, kept, numbers, prefix, blocks };
        debug_assert_eq!(tree.tokens(), tokens);
        tree
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

    fn block(&self, question: usize, repeat: Option<Repeat>) -> LaidBlock {
        let own = self.pieces(question);
        let mut ids = own.head.to_vec();
        let mut pieces = Vec::with_capacity(own.options.len());
        for option in &own.options {
            pieces.push(TokenRange { start: ids.len(), end: ids.len() + option.len() });
            ids.extend_from_slice(option);
        }
        // A window is no longer than what a block repeats: only a long span's block in its row's own tree does not.
        let replaced = repeat.is_none() && self.questions[question].kind == Kind::Span;
        let (mut first_word, mut words) = (0, Vec::new());
        if let Some(Repeat { part, kept, words: inside }) = repeat {
            let part = &self.parts[part];
            ids.extend_from_slice(&self.shared.text);
            let text_at = ids.len() + self.shared.open(part.role).len();
            self.push_segment(&mut ids, part, kept);
            first_word = inside.start;
            words = part.words[inside].iter().map(|word| (text_at + word.token - kept.start) as u32).collect();
        }
        ids.extend_from_slice(&own.suffix);
        LaidBlock { question, ids, pieces, first_word, words, replaced }
    }

    fn push_segment(&self, ids: &mut Vec<u32>, part: &TokenPart, range: TokenRange) {
        ids.extend_from_slice(self.shared.open(part.role));
        ids.extend_from_slice(&part.ids[range.start..range.end]);
        ids.extend_from_slice(&self.shared.close);
    }
}

/// What a span's block repeats: kept tokens of a part, and the words among them by their index there.
struct Repeat {
    part: usize,
    kept: TokenRange,
    words: Range<usize>,
}
