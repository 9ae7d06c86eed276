//! Words of a text, the tokens they are read at, and the windows of a long target (spec: vela.md §5, §6).
//!
//! `split` finds the ranges of words and units; here they meet tokens. All ranges ascend. Nothing here knows a
//! tokenizer: token offsets come in as code points of the text.

mod split;
#[cfg(test)]
mod tests;

pub use split::{split_units, split_words, starts_like_url};

use crate::family::{CharRange, TokenRange};

/// A word and the token it is read at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    pub range: CharRange,
    pub token: usize,
}

/// The first token of every word; a word without a token of its own start is dropped.
///
/// With `reach` the running maximum of the ends of non-empty tokens, a word is read at the first token whose reach is
/// beyond the word's start, or, if that token is empty, at the next one that is not, provided it starts before the
/// word's end. `words` ascend, so both cursors only move forward.
pub fn first_tokens(words: &[CharRange], offsets: &[CharRange]) -> Vec<Word> {
    let is_empty = |token: usize| offsets[token].end <= offsets[token].start;
    let (mut reached, mut reach, mut token) = (0, 0, 0);
    let mut found = Vec::with_capacity(words.len());
    for &range in words {
        while reached < offsets.len() {
            if !is_empty(reached) {
                reach = reach.max(offsets[reached].end);
            }
            if reach > range.start {
                break;
            }
            reached += 1;
        }
        token = token.max(reached);
        while token < offsets.len() && is_empty(token) {
            token += 1;
        }
        if token < offsets.len() && offsets[token].start < range.end {
            found.push(Word { range, token });
        }
    }
    found
}

/// Token ranges that cover a target of `length` tokens, each at most `window` long and starting at a word where it
/// can; `starts` are the first tokens of the target's words, ascending. A target without words is one window.
///
/// # Panics
/// If `window` or `stride` is 0, which a member's load refuses.
pub fn windows(starts: &[usize], length: usize, window: usize, stride: usize) -> Vec<TokenRange> {
    assert!(window > 0 && stride > 0, "windows advance");
    let Some(&first) = starts.first() else {
        return vec![TokenRange { start: 0, end: length }];
    };
    let mut found = Vec::new();
    let mut start = first;
    loop {
        let limit = start.saturating_add(window);
        if limit >= length {
            found.push(TokenRange { start, end: length });
            return found;
        }
        let end = last_start_below(starts, limit).filter(|&last| last > start).unwrap_or(limit);
        found.push(TokenRange { start, end });
        start = first_start_from(starts, start.saturating_add(stride)).filter(|&next| next < end).unwrap_or(end);
    }
}

fn last_start_below(starts: &[usize], limit: usize) -> Option<usize> {
    starts[..starts.partition_point(|&start| start < limit)].last().copied()
}

fn first_start_from(starts: &[usize], least: usize) -> Option<usize> {
    starts.get(starts.partition_point(|&start| start < least)).copied()
}
