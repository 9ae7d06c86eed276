//! The word and unit patterns of the specification, as scanners.
//!
//! The reference matches two regular expressions with Python's `re`, which backtracks and takes quadratic time on
//! unkind texts. Neither needs it: each scanner goes through a text once, in linear time, and returns the ranges that
//! `finditer` would.

use crate::family::CharRange;
use crate::family::vela::unicode::{
    is_cjk, is_cjk_ignoring_case, is_latin_letter_ignoring_case as is_letter, is_space, is_word,
};

/// Words (vela.md §5). At each position the first of these that matches: a URL, an e-mail, a handle, one CJK
/// character, a run of word characters joined by single hyphens, any other character that is not white space.
pub fn split_words(text: &str) -> Vec<CharRange> {
    let chars: Vec<char> = text.chars().collect();
    let mut mails = Mails { chars: &chars, local_end: 0, mail_end: None };
    split(&chars, |start| {
        url_end(&chars, start, Case::Ignored, ends_url_in_words, trails_url_in_words)
            .or_else(|| mails.end_from(start))
            .or_else(|| handle_end(&chars, start))
            .or_else(|| joined_run_end(&chars, start))
            // The CJK class holds one white space, the ideographic one: a word of its own.
            .or_else(|| (is_cjk_ignoring_case(chars[start]) || !is_space(chars[start])).then_some(start + 1))
    })
}

/// Units (vela.md §9), inside which labels are voted on: URLs, runs of alphanumerics and `@ . _ - +`, any other
/// character that is not white space.
pub fn split_units(text: &str) -> Vec<CharRange> {
    let chars: Vec<char> = text.chars().collect();
    split(&chars, |start| {
        url_end(&chars, start, Case::Kept, ends_url_in_units, trails_url_in_units)
            .or_else(|| run_end(&chars, start, is_unit_char))
            .or_else(|| (!is_space(chars[start])).then_some(start + 1))
    })
}

/// Whether a text begins with `http://`, `https://` or `www.` in any case.
pub fn starts_like_url(chars: &[char]) -> bool {
    url_head_end(chars, 0, Case::Ignored).is_some()
}

/// All matches in order; `end_from` is the end of the match that starts at a position, and beyond that position.
fn split(chars: &[char], mut end_from: impl FnMut(usize) -> Option<usize>) -> Vec<CharRange> {
    let mut found = Vec::new();
    let mut start = 0;
    while start < chars.len() {
        start = match end_from(start) {
            Some(end) => {
                found.push(CharRange { start, end });
                end
            }
            None => start + 1,
        };
    }
    found
}

/// The end of the longest run of a class from `start`, if it is not empty.
fn run_end(chars: &[char], start: usize, member: impl Fn(char) -> bool) -> Option<usize> {
    let length = chars[start..].iter().take_while(|&&c| member(c)).count();
    (length > 0).then_some(start + length)
}

/// Whether a URL's head is matched as `re.IGNORECASE` does.
#[derive(Clone, Copy, PartialEq)]
enum Case {
    Kept,
    Ignored,
}

/// A URL: its head, then lazily one or more characters, up to where only trailing ones remain before one that ends it.
///
/// Nothing that trails a URL also ends it, so the lookahead can only succeed in the trailing characters before the
/// first that ends it: the lazy match is all up to there, though at least one character.
fn url_end(
    chars: &[char],
    start: usize,
    case: Case,
    ends: impl Fn(char) -> bool,
    trails: impl Fn(char) -> bool,
) -> Option<usize> {
    let body = url_head_end(chars, start, case)?;
    let mut end = run_end(chars, body, |c| !ends(c))?;
    while end > body + 1 && trails(chars[end - 1]) {
        end -= 1;
    }
    Some(end)
}

fn url_head_end(chars: &[char], start: usize, case: Case) -> Option<usize> {
    ["http://", "https://", "www."].iter().find_map(|head| {
        let end = start + head.len();
        let found = chars.get(start..end)?;
        head.chars().zip(found).all(|(wanted, &c)| same_letter(wanted, c, case)).then_some(end)
    })
}

/// Whether a character matches an ASCII one of a URL's head. The long s is an `s` where case is ignored.
fn same_letter(wanted: char, c: char, case: Case) -> bool {
    c == wanted || case == Case::Ignored && (c.to_ascii_lowercase() == wanted || wanted == 's' && c == 'ſ')
}

fn ends_url_in_words(c: char) -> bool {
    is_space(c) || is_cjk_ignoring_case(c)
}

fn trails_url_in_words(c: char) -> bool {
    matches!(c, '.' | ',' | ';' | ':' | '!' | '?' | ')' | ']' | '}' | '>' | '"' | '\'' | '”' | '’' | '»')
}

fn ends_url_in_units(c: char) -> bool {
    matches!(c, ']' | ')' | '}' | '>' | '「' | '」' | '『' | '』' | '"' | '\'' | '“' | '”') || is_space(c) || is_cjk(c)
}

fn trails_url_in_units(c: char) -> bool {
    matches!(c, '.' | ',' | ';' | ':' | '!' | '?')
}

/// E-mails: `[a-z0-9._%+-]+@[a-z0-9.-]+\.[a-z]{2,}`.
///
/// A run of local characters is followed by an `@` or by nothing that matches, wherever in the run one starts. So the
/// answer is found once per run and kept, and a text of dots does not take quadratic time.
struct Mails<'a> {
    chars: &'a [char],
    /// End of the run that was looked at last.
    local_end: usize,
    /// End of an e-mail that starts anywhere in that run.
    mail_end: Option<usize>,
}

impl Mails<'_> {
    /// The end of an e-mail from `start`; successive calls ascend.
    fn end_from(&mut self, start: usize) -> Option<usize> {
        if start >= self.local_end {
            self.local_end = run_end(self.chars, start, is_mail_local)?;
            let is_mail = self.chars.get(self.local_end) == Some(&'@');
            self.mail_end = if is_mail { domain_end(self.chars, self.local_end + 1) } else { None };
        }
        self.mail_end
    }
}

/// The end of `[a-z0-9.-]+\.[a-z]{2,}`: after the last dot of the run, its first character apart, that two or more
/// letters follow, and these letters.
fn domain_end(chars: &[char], start: usize) -> Option<usize> {
    let end = run_end(chars, start, is_mail_domain)?;
    let mut letters = 0;
    for at in (start + 1..end).rev() {
        if chars[at] == '.' && letters >= 2 {
            return Some(at + 1 + letters);
        }
        letters = if is_letter(chars[at]) { letters + 1 } else { 0 };
    }
    None
}

fn is_mail_local(c: char) -> bool {
    is_mail_domain(c) || matches!(c, '_' | '%' | '+')
}

fn is_mail_domain(c: char) -> bool {
    is_letter(c) || c.is_ascii_digit() || matches!(c, '.' | '-')
}

/// A handle: `@[a-z0-9_]+`.
fn handle_end(chars: &[char], start: usize) -> Option<usize> {
    if chars[start] != '@' {
        return None;
    }
    run_end(chars, start + 1, |c| is_letter(c) || c.is_ascii_digit() || c == '_')
}

/// A run of word characters, with further runs joined by single hyphens. The pattern's underscore as a joint never
/// comes to matter: it is a word character, which the run before it has taken.
fn joined_run_end(chars: &[char], start: usize) -> Option<usize> {
    let mut end = run_end(chars, start, is_word_char)?;
    while chars.get(end) == Some(&'-') {
        let Some(further) = run_end(chars, end + 1, is_word_char) else { break };
        end = further;
    }
    Some(end)
}

fn is_word_char(c: char) -> bool {
    is_word(c) && !is_cjk_ignoring_case(c)
}

fn is_unit_char(c: char) -> bool {
    matches!(c, '@' | '.' | '_' | '-' | '+') || is_word(c) && !is_cjk(c)
}
