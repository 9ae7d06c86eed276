//! Foreign text in messages.
//!
//! Invariant: whatever stands in a file of a package, a message that quotes it stays one short line and moves no cursor.

use std::fmt::{self, Write};

/// As much as a message quotes; the longest tensor names have about 60 characters.
const MAX_CHARS: usize = 200;

/// Shows text from an untrusted file inside a message: what does not print is escaped, what is too long is cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Excerpt<'a>(pub(crate) &'a str);

impl fmt::Display for Excerpt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut = self.0.char_indices().nth(MAX_CHARS).map(|(index, _)| index);
        for char in self.0[..cut.unwrap_or(self.0.len())].chars() {
            match char {
                // Printable, and part of messages that quote something themselves.
                '"' | '\'' | '\\' => f.write_char(char)?,
                _ => char.escape_debug().try_for_each(|char| f.write_char(char))?,
            }
        }
        if cut.is_some() { f.write_char('…') } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_prints_is_shown_as_it_is_and_the_rest_escaped() {
        for (text, expected) in [
            ("", ""),
            (r#"missing field `d`, not "é\b" or 'c'"#, r#"missing field `d`, not "é\b" or 'c'"#),
            ("two\r\nlines\t\0", r"two\r\nlines\t\0"),
            ("\x1b[31mred\u{7f}\u{9b}", r"\u{1b}[31mred\u{7f}\u{9b}"),
            ("\u{2028}\u{202e}", r"\u{2028}\u{202e}"),
        ] {
            assert_eq!(Excerpt(text).to_string(), expected);
        }
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let fits = "é".repeat(MAX_CHARS);
        assert_eq!(Excerpt(&fits).to_string(), fits);
        assert_eq!(Excerpt(&format!("{fits}é")).to_string(), format!("{fits}…"));
    }
}
