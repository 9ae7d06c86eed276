//! JSON as the specification means it (vela.md §3, system-one.md): strict, key order kept, integers of any size.
//!
//! Owns [`Value`], the one form in which request data moves through the runtime, and the reader that makes it. A text
//! that was read is at most [`MAX_DEPTH`] deep and holds only finite floats and real Unicode, so whoever walks a
//! value may recurse and whoever writes one cannot fail. No serde here on purpose: `serde_json` would lose big
//! integers, accept lone surrogates in some places, and decide duplicate keys by itself.

mod reader;
#[cfg(test)]
mod tests;

use std::fmt;

pub use reader::{parse, parse_text, parse_with_depth};

/// The deepest nesting that is read: an object or array inside this many others is refused (READINGS 6). The oracle's code
/// counts the members' depth instead, and so takes one container more if the innermost is empty.
pub const MAX_DEPTH: usize = 128;
/// The longest integer, in digits, that Python's `int()` reads by default.
pub const MAX_INT_DIGITS: usize = 4_300;

/// A JSON value. Object keys keep the place of their first and the value of their last occurrence.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    Bool(bool),
    /// The digits as Python's `int` would print them: no leading zeros or plus, `-0` is `0`.
    Int(String),
    /// Finite.
    Float(f64),
    Text(String),
    Array(Vec<Value>),
    Object(Object),
}

impl Value {
    /// The text of a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The object, if it is one.
    pub fn as_object(&self) -> Option<&Object> {
        match self {
            Value::Object(object) => Some(object),
            _ => None,
        }
    }

    /// The array's items, if it is one.
    pub fn as_array(&self) -> Option<&[Value]> {
        match self {
            Value::Array(items) => Some(items),
            _ => None,
        }
    }

    /// Whether it is `null`.
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }
}

/// Members in order, keys unique.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Object {
    members: Vec<(String, Value)>,
}

impl Object {
    /// An object without members.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a member. A key that is there keeps its place and takes the new value; the old one is returned.
    ///
    /// Looks at every key: the reader, which may meet a million of them, keeps an index of its own.
    pub fn insert(&mut self, key: String, value: Value) -> Option<Value> {
        if let Some((_, old)) = self.members.iter_mut().find(|(name, _)| *name == key) {
            return Some(std::mem::replace(old, value));
        }
        self.members.push((key, value));
        None
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.members.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// Members in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.members.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Keys in order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &str> {
        self.members.iter().map(|(key, _)| key.as_str())
    }

    /// Number of members.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether it has no members.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }
}

impl IntoIterator for Object {
    type Item = (String, Value);
    type IntoIter = std::vec::IntoIter<(String, Value)>;

    fn into_iter(self) -> Self::IntoIter {
        self.members.into_iter()
    }
}

/// Why a text is not JSON, and where. It never repeats the text itself: errors may be logged, requests may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not JSON at byte {offset}: {problem}")]
pub struct JsonError {
    pub problem: Problem,
    /// Bytes before the place, in the text as it was given.
    pub offset: usize,
}

/// What is wrong at a [`JsonError`]'s place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    Utf8,
    ByteOrderMark,
    UnexpectedEnd,
    ExpectedValue,
    ExpectedKey,
    ExpectedColon,
    ExpectedCommaOrBracket,
    ExpectedCommaOrBrace,
    TrailingText,
    NotANumber,
    ControlCharacter,
    UnknownEscape,
    LoneSurrogate,
    FloatRange,
    IntegerDigits,
    Depth { limit: usize },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Problem::Utf8 => "the bytes are not UTF-8",
            Problem::ByteOrderMark => "expected a value, found a byte order mark; send UTF-8 without one",
            Problem::UnexpectedEnd => "the text ends too early",
            Problem::ExpectedValue => "expected a value",
            Problem::ExpectedKey => "expected a key in double quotes",
            Problem::ExpectedColon => "expected a colon after the key",
            Problem::ExpectedCommaOrBracket => "expected a comma or the end of the array",
            Problem::ExpectedCommaOrBrace => "expected a comma or the end of the object",
            Problem::TrailingText => "expected the end of the text after the value",
            Problem::NotANumber => "NaN and Infinity are not JSON numbers",
            Problem::ControlCharacter => "a control character must be escaped in a string",
            Problem::UnknownEscape => "unknown escape in a string",
            Problem::LoneSurrogate => "a lone surrogate escape is not text",
            Problem::FloatRange => "the number is beyond float64",
            Problem::IntegerDigits => return write!(f, "the integer has more than {MAX_INT_DIGITS} digits"),
            Problem::Depth { limit } => return write!(f, "nested deeper than {limit}"),
        };
        f.write_str(text)
    }
}
