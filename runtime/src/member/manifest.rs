//! `manifest.json` of a bundle: what an export says of what it wrote (spec: bundle.md, "Export").
//!
//! One type for writing and reading. It is read strictly: an unknown key is refused, and no key stands twice
//! but in `config`, which is a copy of another file's.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Digest;
use super::json::UniqueMap;

pub(super) const FORMAT: &str = "synod-bundle";
pub(super) const FORMAT_VERSION: u64 = 1;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    pub(super) format: String,
    pub(super) format_version: u64,
    pub(super) member: Identity,
    pub(super) profile: BundleProfile,
    /// Which halves are there.
    pub(super) contents: Vec<Content>,
    /// Arithmetic profiles that a deployment can ask of this bundle; none for half a member.
    pub(super) serves: Vec<String>,
    /// The package's `config.json`.
    pub(super) config: Value,
    /// The package's files.
    pub(super) inputs: UniqueMap<Digest>,
    /// Every tensor of every weight file, under the name that it has there.
    pub(super) tensors: UniqueMap<UniqueMap<TensorEntry>>,
    /// Every file of the bundle but this one.
    pub(super) files: UniqueMap<FileEntry>,
}

/// Whose weights these are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Identity {
    pub(super) model_name: String,
    /// Where a released member is published; null for a local one, as its revision.
    pub(super) repository: Option<String>,
    pub(super) revision: Option<String>,
}

/// How the backbone is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BundleProfile {
    /// As in the package.
    Faithful,
    /// Everything BF16.
    Bf16,
}

impl BundleProfile {
    /// Its name in a manifest and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            BundleProfile::Faithful => "faithful",
            BundleProfile::Bf16 => "bf16",
        }
    }
}

impl fmt::Display for BundleProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Half a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Content {
    /// The backbone, in `model/`.
    Model,
    /// `heads.safetensors`.
    Heads,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TensorEntry {
    pub(super) dtype: String,
    pub(super) shape: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileEntry {
    pub(super) size_bytes: u64,
    pub(super) sha256: Digest,
}

/// What a bundle of `profile` with `contents` can be asked for.
pub(super) fn serves(profile: BundleProfile, contents: &[Content]) -> Vec<String> {
    let profiles: &[&str] = match profile {
        _ if !(contents.contains(&Content::Model) && contents.contains(&Content::Heads)) => &[],
        BundleProfile::Faithful => &["fp32", "bf16"],
        BundleProfile::Bf16 => &["bf16"],
    };
    profiles.iter().map(|&profile| profile.to_owned()).collect()
}
