//! From a request's state to at most three parts with named fields (spec: vela.md §3).

use crate::family::CharRange;

/// A part of the state; parts always come in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    User,
    Context,
    Answer,
}

/// A state key as the caller wrote it, and where its value stands in its part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    pub name: String,
    pub role: Role,
    pub range: CharRange,
}

/// A non-blank text with its fields in request order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub role: Role,
    pub text: String,
    pub fields: Vec<Field>,
}

/// A state that was read: its parts in role order, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    pub parts: Vec<Part>,
}
