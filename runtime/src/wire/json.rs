//! JSON as the specification means it (vela.md §3, system-one.md): strict, key order kept, integers of any size.

use std::fmt;

/// Limits of the reader.
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

/// Members in order, keys unique.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Object {
    members: Vec<(String, Value)>,
}
