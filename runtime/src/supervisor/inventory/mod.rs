//! What this machine has: the memory of its host, and its graphics cards as NVML reports them.

mod cards;
mod host;

pub use cards::{Card, Cards, Sensors};
pub use host::{available_host_bytes, reachable_host_bytes, total_host_bytes};
