//! The Vela 2.0 decoder members (spec: vela.md §3–§6, §8 dispatch, §9).
//!
//! In the order data passes: `state` and `questions` read what the caller sent, `tokens` and `words` cut text,
//! `layout` makes rows, trees and windows, and, once logits are back, `thresholds`, `decode` and `finish` make answers.

pub mod calibration;
pub mod decode;
pub mod finish;
pub mod layout;
pub mod questions;
pub mod state;
pub mod thresholds;
pub mod tokens;
pub mod unicode;
pub mod words;
