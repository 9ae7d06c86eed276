//! A member's files, opened and checked, wherever they come from: the only type that weights load from.

use std::path::Path;

use super::bundle::Bundle;
use super::package::Package;
use super::paths::Root;
use super::shard::Shard;
use super::{Anchor, MemberConfig, MemberError, bundle, package};

/// What makes a folder trusted. The digests inside it never do: whoever rewrites a file can rewrite them too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The digest of its manifest was given from outside. A released member must match the pins as well.
    Anchored(Anchor),
    /// Nothing was given: it must be the package of a released member.
    Released,
}

/// How close to the release the weights are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// As released: what computes in F32 with them is exact.
    Released,
    /// Everything of the backbone rounded to BF16.
    Bf16,
}

/// A member's files. The small ones are verified and in memory; the weight files are open, their headers read and
/// checked against the config. The bytes of the weights are verified by [`MemberFiles::read_tensors`] as it reads them.
pub struct MemberFiles {
    /// Of the manifest.
    pub(super) digest: String,
    pub(super) config: MemberConfig,
    pub(super) calibration: Vec<u8>,
    pub(super) tokenizer: Vec<u8>,
    pub(super) has_broad_head: bool,
    pub(super) precision: Precision,
    /// How a sound copy can be had, for refusals.
    pub(super) remedy: String,
    /// Every weight file, largest first.
    pub(super) shards: Vec<Shard>,
}

impl MemberFiles {
    /// Opens the package or the bundle in the folder `path` and checks everything but the weights' own bytes.
    ///
    /// # Errors
    /// The first defect found, files in a fixed order; [`MemberError::Serves`] for a bundle that holds half of a member.
    pub fn open(path: &Path, trust: Trust) -> Result<Self, MemberError> {
        match kind(&Root::new(path)?)? {
            Kind::Package => Ok(Package::open(path, trust)?.files),
            Kind::Bundle => Bundle::open(path, trust)?.into_files(),
        }
    }

    /// The member's own name.
    pub fn model_name(&self) -> &str {
        &self.config.model_name
    }

    /// SHA-256 of the manifest (`MODEL_MANIFEST.json` of a package, `manifest.json` of a bundle), in hexadecimal.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// `config.json`, validated.
    pub fn config(&self) -> &MemberConfig {
        &self.config
    }

    /// `calibration.json`, verified. Only the presence of its `broad_head` was looked at.
    pub fn calibration(&self) -> &[u8] {
        &self.calibration
    }

    /// `tokenizer.json`, verified but not read.
    pub fn tokenizer(&self) -> &[u8] {
        &self.tokenizer
    }

    /// Whether it has a broad span head beside the router's.
    pub fn has_broad_head(&self) -> bool {
        self.has_broad_head
    }

    /// How close to the release the weights are.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// `Ok` if exact FP32 answers can be computed with these weights.
    ///
    /// # Errors
    /// [`MemberError::Serves`] for weights that were rounded.
    pub fn check_exact(&self) -> Result<(), MemberError> {
        match self.precision {
            Precision::Released => Ok(()),
            Precision::Bf16 => Err(MemberError::Serves {
                expected: "fp32".to_owned(),
                found: "bf16".to_owned(),
                remedy: "serve the package or a faithful bundle",
            }),
        }
    }
}

/// What a folder is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Package,
    Bundle,
}

/// A package has `MODEL_MANIFEST.json`; a folder without it that has `manifest.json` is a bundle. Which of the two is read
/// is no matter of trust: the anchor is of that file.
pub(super) fn kind(root: &Root) -> Result<Kind, MemberError> {
    if root.has(package::MANIFEST) {
        Ok(Kind::Package)
    } else if root.has(bundle::MANIFEST) {
        Ok(Kind::Bundle)
    } else {
        Err(MemberError::NoManifest)
    }
}
