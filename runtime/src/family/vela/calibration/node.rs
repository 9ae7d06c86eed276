//! Typed reading of JSON values that know where they stand, so that every error names its key.

use super::CalibrationError;
use crate::family::vela::state::text_of;
use crate::family::vela::unicode::is_blank;
use crate::wire::json::Value;

/// A value and its path. Null is the same as absent.
pub(super) struct Node<'a> {
    path: String,
    value: Option<&'a Value>,
}

impl<'a> Node<'a> {
    pub(super) fn root(value: &'a Value) -> Self {
        Node { path: String::new(), value: Some(value) }
    }

    /// A member of an object; absent if there is none.
    pub(super) fn child(&self, key: &str) -> Node<'a> {
        let value = self.value.and_then(Value::as_object).and_then(|object| object.get(key));
        self.member(key, value)
    }

    /// Itself, if it is there.
    pub(super) fn given(&self) -> Option<&Self> {
        self.value.map(|_| self)
    }

    /// The members of an object in file order; none if it is absent.
    pub(super) fn members(&self, expected: &'static str) -> Result<Vec<(&'a str, Node<'a>)>, CalibrationError> {
        match self.value {
            None => Ok(Vec::new()),
            Some(Value::Object(object)) => {
                Ok(object.iter().map(|(key, value)| (key, self.member(key, Some(value)))).collect())
            }
            Some(_) => Err(self.unlike(expected)),
        }
    }

    /// The items of an array; none if it is absent.
    pub(super) fn items(&self) -> Result<Vec<Node<'a>>, CalibrationError> {
        match self.value {
            None => Ok(Vec::new()),
            Some(Value::Array(items)) => {
                let item = |(index, value)| Node { path: format!("{}[{index}]", self.path), value: Some(value) };
                Ok(items.iter().enumerate().map(item).collect())
            }
            Some(_) => Err(self.unlike("a list")),
        }
    }

    /// Text that is not blank.
    pub(super) fn text(&self) -> Result<&'a str, CalibrationError> {
        let text = self.value.and_then(Value::as_str).filter(|text| !is_blank(text));
        text.ok_or_else(|| self.unlike("text"))
    }

    /// Text, or JSON as text; empty if absent.
    pub(super) fn description(&self) -> Result<String, CalibrationError> {
        let text = self.value.map(text_of);
        match text {
            Some(text) if is_blank(&text) => Err(self.unlike("a description that is not blank, or null")),
            text => Ok(text.unwrap_or_default()),
        }
    }

    pub(super) fn boolean(&self) -> Result<bool, CalibrationError> {
        match self.value {
            Some(Value::Bool(value)) => Ok(*value),
            _ => Err(self.unlike("true or false")),
        }
    }

    /// A finite number.
    pub(super) fn number(&self, expected: &'static str) -> Result<f64, CalibrationError> {
        let number = match self.value {
            Some(Value::Float(number)) => Some(*number),
            Some(Value::Int(digits)) => digits.parse().ok(),
            _ => None,
        };
        number.filter(|number| number.is_finite()).ok_or_else(|| self.unlike(expected))
    }

    pub(super) fn positive(&self) -> Result<f64, CalibrationError> {
        let number = self.number("a positive number")?;
        if number > 0.0 { Ok(number) } else { Err(self.unlike("a positive number")) }
    }

    /// What logits are divided by. Within these bounds, no float32 divided by it leaves float64, so that no probability
    /// of finite logits is NaN.
    pub(super) fn temperature(&self) -> Result<f64, CalibrationError> {
        const EXPECTED: &str = "a number in [0.001, 1000]";
        let number = self.number(EXPECTED)?;
        if (1e-3..=1e3).contains(&number) { Ok(number) } else { Err(self.unlike(EXPECTED)) }
    }

    pub(super) fn threshold(&self) -> Result<f64, CalibrationError> {
        let number = self.number("a number in [0, 1]")?;
        if (0.0..=1.0).contains(&number) { Ok(number) } else { Err(self.unlike("a number in [0, 1]")) }
    }

    /// The error that names this place and what was found there.
    pub(super) fn unlike(&self, expected: &'static str) -> CalibrationError {
        let found = match self.value {
            None => "nothing".to_owned(),
            Some(Value::Object(_)) => "an object".to_owned(),
            Some(Value::Array(_)) => "a list".to_owned(),
            Some(Value::Text(_)) => "text".to_owned(),
            Some(Value::Int(digits)) if digits.len() > 30 => "an integer beyond float64".to_owned(),
            Some(value) => text_of(value),
        };
        let key = if self.path.is_empty() { "the file" } else { &self.path };
        CalibrationError::Value { key: key.to_owned(), expected, found }
    }

    fn member(&self, key: &str, value: Option<&'a Value>) -> Node<'a> {
        let dot = if self.path.is_empty() { "" } else { "." };
        Node { path: format!("{}{dot}{key}", self.path), value: value.filter(|value| !value.is_null()) }
    }
}
