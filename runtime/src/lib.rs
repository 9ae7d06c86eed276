//! Synod: exact, fast serving of System One decision models.
//!
//! One folder per stage that a request passes, in the order it passes them: [`http`] takes bytes, [`wire`] reads
//! them, [`admission`] queues them, [`family`] turns text into a plan and logits into answers, [`executor`] runs the
//! plan through [`model`] on one device. [`member`] is what makes files trustworthy, [`supervisor`] starts and
//! watches executors, [`metrics`] counts, [`replay`] compares with recorded cases, [`cli`] is the command line.

pub mod admission;
pub mod cli;
pub mod executor;
pub mod family;
pub mod http;
pub mod member;
pub mod metrics;
pub mod model;
pub mod replay;
pub mod supervisor;
#[cfg(test)]
mod testing;
pub mod wire;
