//! From parts and questions to rows, trees and windows of token ids (spec: vela.md §6).
//!
//! Invariant: within one request every piece of text is tokenised once, and trees whose prefixes are equal share one
//! copy. A [`Layout`] keeps everything, blocks that windows replace included, because token counts do;
//! [`Layout::into_plan`] leaves what is read.

mod build;
mod pieces;
mod plan;
mod truncate;

use std::fmt;

use self::build::{Builder, Row};
use self::pieces::{QuestionPieces, SharedPieces};
pub use self::plan::Read;
pub use self::truncate::Numbers;
use super::questions::{Kind, Question};
use super::state::{Part, Role};
use super::tokens::{Ids, Tokenizer, TokenizerError};
use super::words::{Word, first_tokens, split_words};
use crate::family::{TokenRange, TreeBounds};
use crate::member::{MemberConfig, SpanLayout};
use crate::wire::request::Strictness;

/// The most tokens that one request may take, all rows and windows together. The spec has no such limit: it keeps a
/// long state with many span questions, each of which reads its own windows, from filling the memory. A device would
/// need hours for it.
const MAX_REQUEST_TOKENS: usize = 1 << 24;

/// The most logits of spans, words times labels, that one request may ask for: 64 MiB of them. A reading of our own as
/// well: words are not bounded by tokens, since every punctuation mark is one and a single token can hold 64 of them.
const MAX_REQUEST_SCORES: usize = 1 << 24;

/// Every member takes trees of twice this many tokens: the released ones are made for it, and it bounds what a member
/// with a shorter `max_length` can be asked.
const LEAST_TREE_TOKENS: usize = 16_384;

/// No block and no option or label has fewer tokens than this: what stands around a question's own words takes more with
/// any tokenizer that keeps words and punctuation apart, as the released one does. Memory is reckoned with it, nothing
/// else relies on it.
const LEAST_BLOCK_TOKENS: usize = 32;
const LEAST_LABEL_TOKENS: usize = 8;

/// What a member's input may be, in tokens (`max_length` and `span_layout` of its `config.json`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutParameters {
    pub max_length: usize,
    /// The longest span target that its block repeats; longer ones are read in windows.
    pub hybrid_rmax: usize,
    /// At least 1 and at most `hybrid_rmax`, so that every window's block repeats its window.
    pub window: usize,
    /// At least 1.
    pub stride: usize,
}

impl LayoutParameters {
    /// Those of a member.
    pub fn of_config(config: &MemberConfig) -> Self {
        let SpanLayout { hybrid_rmax, window, stride, .. } = config.span_layout;
        Self { max_length: config.max_length, hybrid_rmax, window, stride }
    }

    /// The most tokens that one tree may have, and the most words that it may read. The spec's budget never falls below
    /// 64 tokens, however much the question of a span takes, so it bounds no tree that has one; and a device cannot
    /// divide a tree. A reading of our own: twice the member's input, which no tree within the budget comes near.
    pub(crate) fn max_tree_tokens(self) -> usize {
        2 * self.max_length.max(LEAST_TREE_TOKENS)
    }

    /// The bounds of a tree, for questions of at most `max_labels` options or labels.
    pub fn tree_bounds(self, max_labels: usize) -> TreeBounds {
        TreeBounds {
            tokens: self.max_tree_tokens(),
            least_block_tokens: LEAST_BLOCK_TOKENS,
            least_label_tokens: LEAST_LABEL_TOKENS,
            max_labels,
        }
    }
}

/// What lays a member's requests out: its limits, and the pieces that all requests have.
pub struct Layouter {
    parameters: LayoutParameters,
    shared: SharedPieces,
}

/// A part of the state in tokens.
#[derive(Clone, Debug)]
pub struct TokenPart {
    pub role: Role,
    pub ids: Vec<u32>,
    /// The words that have a first token, ascending in range and token; none where no span reads the part.
    pub words: Vec<Word>,
}

/// Every tree of a request, in order: each row's own, then the windows of its long span.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    pub trees: Vec<LaidTree>,
    /// The questions that do not fit or have no tokens, by index, ascending, and why; never any when all-or-nothing.
    pub refused: Vec<(usize, LayoutError)>,
}

/// A tree with everything that led to it.
#[derive(Clone, Debug)]
pub struct LaidTree {
    pub row: usize,
    /// Tokens of the span's target, for a window.
    pub window: Option<TokenRange>,
    /// Kept tokens by part.
    pub kept: Vec<usize>,
    pub numbers: Numbers,
    pub prefix: Ids,
    pub blocks: Vec<LaidBlock>,
}

/// A question's block.
#[derive(Clone, Debug)]
pub struct LaidBlock {
    /// Index of its question.
    pub question: usize,
    pub ids: Vec<u32>,
    /// The options (abstain last) or labels, relative to the block.
    pub pieces: Vec<TokenRange>,
    /// Index of the first of its words among the words of its part; the others follow it.
    pub first_word: usize,
    /// Where each word is read, relative to the block.
    pub words: Vec<u32>,
    /// Counted, but read in windows instead.
    pub replaced: bool,
}

/// Why a request cannot be laid out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TooLong {
    pub row: usize,
    pub window: Option<TokenRange>,
    pub reason: TooLongReason,
}

/// What did not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TooLongReason {
    /// The row or window does not fit the member's input even with the shortest parts.
    Questions(Numbers),
    /// The tree is within the budget, which does not count all of a span's question, but larger than any may be.
    Tree { limit_tokens: usize },
    /// One block would read more words than any may.
    Words { limit_words: usize },
    /// All rows and windows together exceed what one request may take.
    Request { limit_tokens: usize },
    /// All spans together ask for more logits, words times labels, than one request may.
    Scores { limit_scores: usize },
}

impl TooLongReason {
    /// Whether it can only be the row's span that asks too much.
    fn is_of_span(&self) -> bool {
        matches!(self, TooLongReason::Words { .. } | TooLongReason::Scores { .. })
    }
}

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            // The recorded cases have this text.
            TooLongReason::Questions(_) => f.write_str("the questions do not fit the member's input"),
            TooLongReason::Tree { limit_tokens } => {
                write!(f, "a row takes more than {limit_tokens} tokens; shorten its questions")
            }
            TooLongReason::Words { limit_words } => {
                write!(f, "a span reads more than {limit_words} words at once; send less punctuation")
            }
            TooLongReason::Request { limit_tokens } => {
                write!(f, "rows and windows take more than {limit_tokens} tokens; ask less of so long a state")
            }
            TooLongReason::Scores { limit_scores } => {
                write!(f, "words times labels of all spans exceed {limit_scores}; ask for fewer labels or spans")
            }
        }
    }
}

/// Either kind of failure to lay out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    #[error("{0}")]
    TooLong(TooLong),
    /// The tokenizer gives up on a text of this question.
    #[error("{error}")]
    Tokenizer { question: usize, error: TokenizerError },
}

impl From<TooLong> for LayoutError {
    fn from(problem: TooLong) -> Self {
        LayoutError::TooLong(problem)
    }
}

impl TokenPart {
    /// Tokenises a part; its words are looked for where a span will read them.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`].
    pub fn read(tokenizer: &Tokenizer, part: &Part, with_words: bool) -> Result<Self, TokenizerError> {
        let encoding = tokenizer.encode_part(&part.text)?;
        let words = if with_words { first_tokens(&split_words(&part.text), &encoding.offsets) } else { Vec::new() };
        Ok(TokenPart { role: part.role, ids: encoding.ids.clone(), words })
    }
}

impl Layouter {
    /// Tokenises the shared pieces.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`].
    pub fn new(tokenizer: &Tokenizer, parameters: LayoutParameters) -> Result<Self, TokenizerError> {
        Ok(Layouter { parameters, shared: SharedPieces::new(tokenizer)? })
    }

    /// The limits.
    pub fn parameters(&self) -> LayoutParameters {
        self.parameters
    }

    /// Lays a request out. `questions` read only parts that exist.
    ///
    /// All-or-nothing, the first question without tokens, or else the first row or window that does not fit, refuses
    /// the request; else such questions are sorted out as system-one.md says, and stand in [`Layout::refused`].
    ///
    /// # Errors
    /// [`LayoutError`], when all-or-nothing.
    pub fn lay_out(
        &self,
        tokenizer: &Tokenizer,
        parts: &[TokenPart],
        questions: &[Question],
        strictness: Strictness,
    ) -> Result<Layout, LayoutError> {
        let mut layout = Layout::default();
        let mut pieces = Vec::with_capacity(questions.len());
        for (index, question) in questions.iter().enumerate() {
            match QuestionPieces::new(tokenizer, &self.shared, question) {
                Ok(of_question) => pieces.push(Some(of_question)),
                Err(error) => {
                    let problem = LayoutError::Tokenizer { question: index, error };
                    if strictness == Strictness::AllOrNothing {
                        return Err(problem);
                    }
                    pieces.push(None);
                    layout.refused.push((index, problem));
                }
            }
        }
        let rows = split_rows(questions, |question| pieces[question].is_some());
        let mut builder = Builder::new(self, parts, questions, pieces);
        for row in rows {
            match strictness {
                Strictness::AllOrNothing => layout.trees.extend(builder.row(&row)?),
                Strictness::PerQuestion => {
                    let (trees, too_long) = fitting(&mut builder, row);
                    layout.trees.extend(trees);
                    layout.refused.extend(too_long.into_iter().map(|(question, problem)| (question, problem.into())));
                }
            }
        }
        layout.refused.sort_unstable_by_key(|(question, _)| *question);
        Ok(layout)
    }
}

impl Layout {
    /// Tokens of all trees, replaced blocks included: `usage.input_tokens`.
    pub fn tokens(&self) -> usize {
        self.trees.iter().map(LaidTree::tokens).sum()
    }
}

impl LaidTree {
    /// Tokens of the prefix and of every block.
    pub fn tokens(&self) -> usize {
        self.prefix.len() + self.blocks.iter().map(|block| block.ids.len()).sum::<usize>()
    }
}

/// The first row takes every candidate question and the first span; each further span has its own.
fn split_rows(questions: &[Question], is_readable: impl Fn(usize) -> bool) -> Vec<Row> {
    let readable = (0..questions.len()).filter(|&question| is_readable(question));
    let (spans, candidates): (Vec<usize>, _) = readable.partition(|&question| questions[question].kind == Kind::Span);
    let mut spans = spans.into_iter();
    let first = Row { index: 0, candidates, span: spans.next() };
    let further = spans.enumerate().map(|(i, span)| Row { index: i + 1, candidates: Vec::new(), span: Some(span) });
    std::iter::once(first).filter(|row| !row.is_empty()).chain(further).collect()
}

/// The trees of a row without the questions that do not fit, and those questions.
///
/// Each pass removes at least one question, so this ends. Whoever would fit alone is not to blame; a second pass
/// therefore finds no one to blame, and removes all that are left.
fn fitting(builder: &mut Builder<'_>, mut row: Row) -> (Vec<LaidTree>, Vec<(usize, TooLong)>) {
    let mut too_long = Vec::new();
    while !row.is_empty() {
        let problem = match builder.row(&row) {
            Ok(trees) => return (trees, too_long),
            Err(problem) => problem,
        };
        let mut blamed = blamed(builder, &row, &problem);
        if blamed.is_empty() {
            blamed = row.questions().map(|question| (question, problem.clone())).collect();
        }
        row.remove(|question| blamed.iter().any(|(blamed, _)| *blamed == question));
        too_long.append(&mut blamed);
    }
    (Vec::new(), too_long)
}

/// The questions of a row that single-handedly keep it from fitting, each with its own reason.
fn blamed(builder: &Builder<'_>, row: &Row, problem: &TooLong) -> Vec<(usize, TooLong)> {
    if problem.window.is_some() || problem.reason.is_of_span() {
        return row.span.map(|span| (span, problem.clone())).into_iter().collect();
    }
    let reason = |question: usize| builder.fits_alone(question).err().map(|reason| (question, reason));
    let blamed = row.questions().filter_map(reason);
    blamed.map(|(question, reason)| (question, TooLong { reason, ..problem.clone() })).collect()
}
