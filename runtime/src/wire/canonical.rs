//! Text of JSON as Python writes it.
