//! Trees become hidden states (`qwen3_5`), hidden states become logits (`heads`). No text, no questions, no JSON.

pub mod qwen3_5;
