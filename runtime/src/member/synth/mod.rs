//! Synthetic members: the released shapes with reproducible random weights (spec: synth.md).
//!
//! `shape` says which config a shape has, `values` which numbers a tensor has, and `files` how they come into a package.
//! Invariant: a member is a function of its [`SynthSpec`] alone, tensor by tensor equal to the reference recorder's.
//! Memory is bounded by a few pieces of a tensor, whatever the shape. The shape `kev-4b` is not here.

mod files;
mod shape;
mod values;

use std::path::Path;

pub use shape::{Shape, SynthSpec};

use super::{Anchor, MemberConfig, PlaceError, Progress};
use crate::model::qwen3_5::config::ConfigError;

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SynthReport {
    pub model_name: String,
    /// What it must be opened with: such a member is local like any other.
    pub anchor: Anchor,
    /// Values of all its tensors.
    pub parameters: u64,
}

/// Why no synthetic member was made.
#[derive(Debug, thiserror::Error)]
pub enum SynthError {
    /// Only whole groups of three GDN layers and one full attention layer make a member.
    #[error("layers: expected a multiple of four, found {found}")]
    Layers { found: usize },
    /// The embedded tokenizer would produce ids beyond the embedding.
    #[error("vocab: expected at least {minimum}, the ids of the embedded tokenizer, found {found}")]
    Vocabulary { minimum: usize, found: usize },
    /// The dimensions do not make a member that could be served.
    #[error("{source}; ask for a smaller member")]
    Config { source: ConfigError },
    /// It could not be written where it was wanted.
    #[error(transparent)]
    Place(#[from] PlaceError),
}

/// Writes the member of `spec` as a package into the folder `out`, which must be absent or empty: first beside it, then
/// by one rename, so that there is a whole package or none.
///
/// # Errors
/// [`SynthError`]; `out` is as it was then. A place that cannot take a package is refused before anything is written.
pub fn write(spec: &SynthSpec, out: &Path, progress: &dyn Progress) -> Result<SynthReport, SynthError> {
    files::write_package(&spec.package()?, out, progress)
}

#[cfg(test)]
mod tests;
