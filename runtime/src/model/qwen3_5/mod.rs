//! The Qwen3.5 hybrid text backbone (spec: vela.md §7).

pub mod config;
