//! The strict reader. One pass over the bytes, recursion bounded by the depth limit, every text copied once.

use std::collections::HashMap;

use super::{JsonError, MAX_DEPTH, MAX_INT_DIGITS, Object, Problem, Value};

/// Objects up to this many members are searched key by key; larger ones get an index while they are read.
const INDEX_FROM: usize = 16;

/// Reads the bytes of a request body.
///
/// # Errors
/// [`JsonError`] for anything but one UTF-8 JSON value with optional white space around it, within the limits of
/// this module: see [`Problem`].
pub fn parse(bytes: &[u8]) -> Result<Value, JsonError> {
    parse_with_depth(bytes, MAX_DEPTH)
}

/// [`parse`] with a lower limit on nesting; limits above [`MAX_DEPTH`] count as that.
///
/// # Errors
/// As [`parse`].
pub fn parse_with_depth(bytes: &[u8], max_depth: usize) -> Result<Value, JsonError> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Reader::new(text, max_depth).document(),
        Err(error) => Err(JsonError { problem: Problem::Utf8, offset: error.valid_up_to() }),
    }
}

/// Reads a text that may be JSON, such as a state string that starts with a brace.
///
/// # Errors
/// As [`parse`].
pub fn parse_text(text: &str) -> Result<Value, JsonError> {
    Reader::new(text, MAX_DEPTH).document()
}

struct Reader<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    /// Containers that are open around `at`.
    depth: usize,
    max_depth: usize,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str, max_depth: usize) -> Self {
        Self { text, bytes: text.as_bytes(), at: 0, depth: 0, max_depth: max_depth.min(MAX_DEPTH) }
    }

    fn document(mut self) -> Result<Value, JsonError> {
        if self.text.starts_with('\u{feff}') {
            return Err(self.error(Problem::ByteOrderMark));
        }
        self.skip_space();
        let value = self.value()?;
        self.skip_space();
        if self.at < self.bytes.len() { Err(self.error(Problem::TrailingText)) } else { Ok(value) }
    }

    fn error(&self, problem: Problem) -> JsonError {
        JsonError { problem, offset: self.at }
    }

    /// `expected` at a byte, or the early end of the text.
    fn unexpected(&self, expected: Problem) -> JsonError {
        self.error(if self.at < self.bytes.len() { expected } else { Problem::UnexpectedEnd })
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn value(&mut self) -> Result<Value, JsonError> {
        match self.peek() {
            Some(b'{') => self.nested(Self::object),
            Some(b'[') => self.nested(Self::array),
            Some(b'"') => self.string().map(Value::Text),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => self.word(),
        }
    }

    /// Reads a container one level deeper; its opening byte is at `at`.
    fn nested(&mut self, read: fn(&mut Self) -> Result<Value, JsonError>) -> Result<Value, JsonError> {
        if self.depth == self.max_depth {
            return Err(self.error(Problem::Depth { limit: self.max_depth }));
        }
        self.depth += 1;
        self.at += 1;
        let value = read(self)?;
        self.depth -= 1;
        Ok(value)
    }

    fn array(&mut self) -> Result<Value, JsonError> {
        let mut items = Vec::new();
        self.skip_space();
        if self.take(b']') {
            return Ok(Value::Array(items));
        }
        loop {
            self.skip_space();
            items.push(self.value()?);
            self.skip_space();
            if self.take(b']') {
                return Ok(Value::Array(items));
            }
            if !self.take(b',') {
                return Err(self.unexpected(Problem::ExpectedCommaOrBracket));
            }
        }
    }

    fn object(&mut self) -> Result<Value, JsonError> {
        let mut members = Members::default();
        self.skip_space();
        if self.take(b'}') {
            return Ok(Value::Object(members.object));
        }
        loop {
            self.skip_space();
            if self.peek() != Some(b'"') {
                return Err(self.unexpected(Problem::ExpectedKey));
            }
            let key = self.string()?;
            self.skip_space();
            if !self.take(b':') {
                return Err(self.unexpected(Problem::ExpectedColon));
            }
            self.skip_space();
            let value = self.value()?;
            members.set(key, value);
            self.skip_space();
            if self.take(b'}') {
                return Ok(Value::Object(members.object));
            }
            if !self.take(b',') {
                return Err(self.unexpected(Problem::ExpectedCommaOrBrace));
            }
        }
    }

    fn word(&mut self) -> Result<Value, JsonError> {
        let rest = &self.bytes[self.at..];
        for (word, value) in [("null", Value::Null), ("true", Value::Bool(true)), ("false", Value::Bool(false))] {
            if rest.starts_with(word.as_bytes()) {
                self.at += word.len();
                return Ok(value);
            }
        }
        if rest.starts_with(b"NaN") || rest.starts_with(b"Infinity") {
            return Err(self.error(Problem::NotANumber));
        }
        Err(self.unexpected(Problem::ExpectedValue))
    }

    /// `-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?`: an integer without the last two groups, else a float.
    fn number(&mut self) -> Result<Value, JsonError> {
        let start = self.at;
        let negative = self.take(b'-');
        if negative && self.bytes[self.at..].starts_with(b"Infinity") {
            return Err(JsonError { problem: Problem::NotANumber, offset: start });
        }
        let digits_start = self.at;
        if !self.take(b'0') && self.skip_digits() == 0 {
            return Err(self.unexpected(Problem::ExpectedValue));
        }
        let digits_end = self.at;
        if self.fraction_or_exponent()? {
            return match self.text[start..self.at].parse::<f64>() {
                Ok(value) if value.is_finite() => Ok(Value::Float(value)),
                _ => Err(JsonError { problem: Problem::FloatRange, offset: start }),
            };
        }
        if digits_end - digits_start > MAX_INT_DIGITS {
            return Err(JsonError { problem: Problem::IntegerDigits, offset: start });
        }
        let digits = &self.text[digits_start..digits_end];
        Ok(Value::Int(if negative && digits != "0" { format!("-{digits}") } else { digits.to_owned() }))
    }

    /// Skips a fraction and an exponent; whether there was either.
    fn fraction_or_exponent(&mut self) -> Result<bool, JsonError> {
        let mut found = false;
        if self.take(b'.') {
            found = true;
            if self.skip_digits() == 0 {
                return Err(self.unexpected(Problem::ExpectedValue));
            }
        }
        if self.take(b'e') || self.take(b'E') {
            found = true;
            if !self.take(b'+') {
                self.take(b'-');
            }
            if self.skip_digits() == 0 {
                return Err(self.unexpected(Problem::ExpectedValue));
            }
        }
        Ok(found)
    }

    fn skip_digits(&mut self) -> usize {
        let count = self.bytes[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += count;
        count
    }

    /// Reads a string whose opening quote is at `at`.
    fn string(&mut self) -> Result<String, JsonError> {
        self.at += 1;
        let mut out = String::new();
        loop {
            let plain = self.bytes[self.at..]
                .iter()
                .position(|&byte| byte == b'"' || byte == b'\\' || byte < 0x20)
                .unwrap_or(self.bytes.len() - self.at);
            // Both ends are at an ASCII byte or an end of the text, hence at character boundaries.
            out.push_str(&self.text[self.at..self.at + plain]);
            self.at += plain;
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => out.push(self.escape()?),
                _ => return Err(self.unexpected(Problem::ControlCharacter)),
            }
        }
    }

    /// Reads an escape whose backslash is at `at`; a pair of surrogates is one.
    fn escape(&mut self) -> Result<char, JsonError> {
        let start = self.at;
        let Some(&kind) = self.bytes.get(self.at + 1) else {
            self.at = self.bytes.len();
            return Err(self.error(Problem::UnexpectedEnd));
        };
        let plain = match kind {
            b'"' | b'\\' | b'/' => char::from(kind),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let unit = self.code_unit(start)?;
                self.at = start + 6;
                return self.scalar(unit, start);
            }
            _ => return Err(self.error(Problem::UnknownEscape)),
        };
        self.at = start + 2;
        Ok(plain)
    }

    /// The character of a code unit that was read, joined with the escape at `at` if it is a high surrogate.
    fn scalar(&mut self, unit: u16, start: usize) -> Result<char, JsonError> {
        let lone = JsonError { problem: Problem::LoneSurrogate, offset: start };
        if !(0xd800..0xdc00).contains(&unit) {
            return char::from_u32(u32::from(unit)).ok_or(lone);
        }
        if !self.bytes[self.at..].starts_with(b"\\u") {
            return Err(lone);
        }
        let low = self.code_unit(self.at)?;
        self.at += 6;
        char::decode_utf16([unit, low]).next().and_then(Result::ok).ok_or(lone)
    }

    /// The four hex digits of the `\u` escape at `start`.
    fn code_unit(&self, start: usize) -> Result<u16, JsonError> {
        let digits = self.bytes.get(start + 2..start + 6).unwrap_or_default();
        if digits.len() < 4 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(JsonError { problem: Problem::UnknownEscape, offset: start });
        }
        Ok(digits.iter().fold(0, |unit, &digit| unit << 4 | hex_value(digit)))
    }
}

fn hex_value(digit: u8) -> u16 {
    u16::from(match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit - b'A' + 10,
    })
}

/// An object while it is read.
#[derive(Default)]
struct Members {
    object: Object,
    /// Places of all keys, once there are [`INDEX_FROM`] of them.
    places: HashMap<String, usize>,
}

impl Members {
    fn set(&mut self, key: String, value: Value) {
        if self.object.len() < INDEX_FROM {
            self.object.insert(key, value);
            return;
        }
        let members = &mut self.object.members;
        if self.places.is_empty() {
            self.places = members.iter().enumerate().map(|(place, (key, _))| (key.clone(), place)).collect();
        }
        if let Some(&place) = self.places.get(&key) {
            members[place].1 = value;
        } else {
            self.places.insert(key.clone(), members.len());
            members.push((key, value));
        }
    }
}
