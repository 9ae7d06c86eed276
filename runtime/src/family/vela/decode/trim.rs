//! What is cut off a span's ends (spec: vela.md §9).

use crate::family::CharRange;
use crate::family::vela::unicode::{is_cjk, is_space};
use crate::family::vela::words::starts_like_url;

/// A range without surrounding spaces, brackets and quotes. What then starts like a URL also ends before its first CJK
/// character, and without trailing punctuation. May leave nothing.
pub(super) fn trim(chars: &[char], range: CharRange) -> CharRange {
    let CharRange { mut start, mut end } = range;
    while start < end && is_edge(chars[start]) {
        start += 1;
    }
    while start < end && is_edge(chars[end - 1]) {
        end -= 1;
    }
    if start < end && starts_like_url(&chars[start..]) {
        end = (start..end).find(|&i| is_cjk(chars[i])).unwrap_or(end);
        while start < end && (is_edge(chars[end - 1]) || ".,;:!?".contains(chars[end - 1])) {
            end -= 1;
        }
    }
    CharRange { start, end }
}

/// A space, a bracket or a quote.
fn is_edge(c: char) -> bool {
    is_space(c) || "[](){}<>「」『』【】《》〈〉\"'“”‘’«»‹›".contains(c)
}
