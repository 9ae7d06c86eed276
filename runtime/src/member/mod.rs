//! Files become trusted here: digests, paths, inventories, and the only type that weights load from.
//!
//! In the order a package passes: `paths` confines and opens, `registry` and [`Anchor`] say what is trusted,
//! `config` and `heads` say what must be there, `shard` reads the headers of weight files, [`MemberFiles`] puts these
//! together, and its `read_tensors` hands on bytes while it hashes them. [`EmbeddingRows`] reads the one tensor that
//! stays in its file. [`synth`] and [`demo`] make members where no released weights are.
//!
//! Invariant: what is used is what was hashed, from the same open descriptor. No weight file is memory-mapped, and
//! no code of a package is ever run. Bundles and exports are not here.

mod config;
pub mod demo;
mod digest;
mod error;
mod excerpt;
mod heads;
mod json;
mod package;
mod paths;
mod read;
mod registry;
mod rows;
mod shard;
pub mod synth;

pub use config::{MemberConfig, SpanHeadConfig, SpanLayout};
pub use digest::{Anchor, Digest};
pub use error::MemberError;
pub(crate) use excerpt::Excerpt;
pub use package::{MemberFiles, Trust};
pub use read::Progress;
pub use rows::EmbeddingRows;

#[cfg(test)]
mod tests;
