//! A request's envelope: everything outside the state and the questions, which are the family's to read.

use super::json::Value;

/// A question's body as sent; the family reads it.
pub type Question = Value;

/// Whether one bad question spoils the request (`/v1/systemone`) or stands alone (`/v1/decisions`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    AllOrNothing,
    PerQuestion,
}
