//! The Qwen3.5 hybrid text backbone (spec: vela.md §7): a forest of token trees becomes hidden states where they are
//! read. One implementation for every size; sizes come from [`config`] and the tensors, operations from a device.
//!
//! Absent on purpose: an LM head, sampling, and which prefixes' states outlive a call (`model`).

pub mod config;
pub(super) mod forest;
mod forward;
mod state;
mod weights;

pub(super) use forward::Workspace;
pub(super) use state::{PassStates, PrefixState};
pub(super) use weights::Backbone;
