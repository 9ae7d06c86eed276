//! Files become trusted here: digests, paths, inventories, and the only type that weights load from.
//!
//! In the order a folder passes: `paths` confines and opens, `registry` and [`Anchor`] say what is trusted,
//! `config` and `heads` say what must be there, `shard` reads the headers of weight files and `inventory` compares them
//! with it, `package` and `bundle` put these together for the two forms, and [`MemberFiles`] is either of them, whose
//! `read_tensors` hands on bytes while it hashes them. [`EmbeddingRows`] reads the one tensor that stays in its file.
//! [`export`] makes a bundle of a package, [`verify`] reads everything and gives an account, [`synth`] and [`demo`] make
//! members where no released weights are; `staging` is where all that is written waits until it is whole.
//!
//! Invariant: what is used is what was hashed, from the same open descriptor. No weight file is memory-mapped, and
//! no code of a package is ever run.

mod bundle;
mod config;
pub mod demo;
mod digest;
mod error;
mod excerpt;
pub mod export;
mod files;
mod hash;
mod heads;
mod inventory;
mod json;
mod manifest;
mod package;
mod paths;
mod read;
mod registry;
mod rows;
mod shard;
mod staging;
pub mod synth;
pub mod verify;

pub use config::{MemberConfig, SpanHeadConfig, SpanLayout};
pub use digest::{Anchor, Digest};
pub use error::MemberError;
pub(crate) use excerpt::Excerpt;
pub use files::{MemberFiles, Precision, Trust};
pub use hash::Progress;
pub use inventory::TensorCounts;
pub use manifest::BundleProfile;
pub use rows::EmbeddingRows;
pub use staging::PlaceError;

#[cfg(test)]
mod tests;
