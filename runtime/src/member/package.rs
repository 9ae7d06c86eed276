//! A release as published (spec: vela.md §2), opened and checked.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::json::{self, UniqueMap};
use super::paths::{Root, check_confined};
use super::registry::{self, Release};
use super::shard::{Shard, StoredTensor};
use super::{Anchor, Digest, MemberConfig, MemberError};
use crate::model::qwen3_5::config::TensorSpec;

const MANIFEST: &str = "MODEL_MANIFEST.json";
const CONFIG: &str = "config.json";
const CALIBRATION: &str = "calibration.json";
const TOKENIZER: &str = "tokenizer.json";
const INDEX: &str = "model.safetensors.index.json";
const BROAD_HEAD: &str = "broad_head.safetensors";

/// What makes a package trusted. The digests inside it never do: whoever rewrites a file can rewrite them too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The digest of its manifest was given from outside. A released member must match the pins as well.
    Anchored(Anchor),
    /// Nothing was given: it must be a released member.
    Released,
}

/// A package whose small files are verified and in memory, and whose weight files are open with their headers read and
/// checked against the config. The bytes of the weights are verified by [`MemberFiles::read_tensors`] as it reads them.
pub struct MemberFiles {
    /// Of `MODEL_MANIFEST.json`.
    digest: String,
    config: MemberConfig,
    calibration: Vec<u8>,
    tokenizer: Vec<u8>,
    has_broad_head: bool,
    /// Where a sound copy can be had, for refusals.
    pub(super) origin: String,
    /// Every weight file, largest first.
    pub(super) shards: Vec<Shard>,
}

#[derive(Deserialize)]
struct Manifest {
    files_sha256: UniqueMap<String>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: UniqueMap<String>,
}

/// The files of a package that its manifest lists.
struct Listing<'a> {
    root: &'a Root,
    digests: BTreeMap<String, Digest>,
    origin: String,
}

impl MemberFiles {
    /// Opens the package in the folder `path` and checks everything but the weights' own bytes.
    ///
    /// # Errors
    /// The first defect found, files in a fixed order.
    pub fn open(path: &Path, trust: Trust) -> Result<Self, MemberError> {
        let root = Root::new(path)?;
        let manifest = root.read(MANIFEST)?;
        let digest = Digest::of(&manifest);
        if let Trust::Anchored(Anchor(anchor)) = trust {
            MemberError::check_digest(MANIFEST, anchor, digest, "where the anchored copy came from")?;
        }
        let mut listing = Listing::new(&root, &manifest)?;
        let config: MemberConfig = json::parse(CONFIG, "a member's config", &listing.read(CONFIG)?)?;
        match (registry::find(&config.model_name), trust) {
            (Some(release), _) => listing.check_release(release, digest)?,
            (None, Trust::Anchored(_)) => {}
            (None, Trust::Released) => {
                return Err(MemberError::NotReleased { model_name: config.model_name, digest });
            }
        }
        config.validate().map_err(|source| MemberError::Config { source })?;

        let has_broad_head = listing.digests.contains_key(BROAD_HEAD);
        let calibration = listing.read(CALIBRATION)?;
        check_calibration(&calibration, has_broad_head)?;
        let tokenizer = listing.read(TOKENIZER)?;
        let mut shards = listing.open_shards(&config)?;
        if has_broad_head {
            let shard = Shard::open(&root, BROAD_HEAD, listing.digest(BROAD_HEAD)?)?;
            check_inventory(BROAD_HEAD, &config.broad_inventory(), &[&shard])?;
            shards.push(shard);
        }
        shards.sort_by_key(|shard| std::cmp::Reverse(shard.size_bytes));
        Ok(Self {
            digest: digest.to_string(),
            config,
            calibration,
            tokenizer,
            has_broad_head,
            origin: listing.origin,
            shards,
        })
    }

    /// The member's own name.
    pub fn model_name(&self) -> &str {
        &self.config.model_name
    }

    /// SHA-256 of `MODEL_MANIFEST.json`, in hexadecimal.
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
}

impl<'a> Listing<'a> {
    fn new(root: &'a Root, manifest: &[u8]) -> Result<Self, MemberError> {
        let Manifest { files_sha256: UniqueMap(files) } = json::parse(MANIFEST, "a package's manifest", manifest)?;
        let mut digests = BTreeMap::new();
        for (name, hex) in files {
            check_confined(MANIFEST, &name)?;
            let digest = hex.parse().map_err(|error| MemberError::Content {
                file: MANIFEST.to_owned(),
                expected: "a SHA-256 per file",
                message: format!("{name}: {error}"),
            })?;
            digests.insert(name, digest);
        }
        Ok(Self { root, digests, origin: "its source".to_owned() })
    }

    /// Holds manifest and listing to what is pinned for `release`.
    fn check_release(&mut self, release: &Release, manifest: Digest) -> Result<(), MemberError> {
        self.origin = format!("{} at {}", release.model_name, release.revision);
        for (name, _) in release.files {
            let pin = release.pin(name).expect("the name comes from the table of pins");
            let found = if *name == MANIFEST { manifest } else { self.digest(name)? };
            MemberError::check_digest(name, pin, found, &self.origin)?;
        }
        Ok(())
    }

    /// What the file `name` must hash to.
    fn digest(&self, name: &str) -> Result<Digest, MemberError> {
        self.digests.get(name).copied().ok_or_else(|| MemberError::NotListed { file: name.to_owned() })
    }

    /// Reads a small file once, and returns it if it is the one that is listed.
    fn read(&self, name: &str) -> Result<Vec<u8>, MemberError> {
        let expected = self.digest(name)?;
        let bytes = self.root.read(name)?;
        MemberError::check_digest(name, expected, Digest::of(&bytes), &self.origin)?;
        Ok(bytes)
    }

    /// Opens the weight files that the index names, and checks that index, headers and config agree.
    fn open_shards(&self, config: &MemberConfig) -> Result<Vec<Shard>, MemberError> {
        let Index { weight_map: UniqueMap(weight_map) } =
            json::parse(INDEX, "an index of weight files", &self.read(INDEX)?)?;
        let mut shards = Vec::new();
        for name in weight_map.values().collect::<BTreeSet<_>>() {
            check_confined(INDEX, name)?;
            shards.push(Shard::open(self.root, name, self.digest(name)?)?);
        }
        check_index(&weight_map, &shards)?;
        check_inventory(INDEX, &config.inventory(), &shards.iter().collect::<Vec<_>>())?;
        Ok(shards)
    }
}

/// Checks that the index names exactly the tensors of `shards`, each in its own file.
fn check_index(weight_map: &BTreeMap<String, String>, shards: &[Shard]) -> Result<(), MemberError> {
    // The file that each tensor was found in.
    let mut seen = BTreeMap::new();
    for shard in shards {
        for StoredTensor { name, .. } in &shard.tensors {
            if let Some(other) = seen.insert(name, &shard.name) {
                return Err(MemberError::tensor(
                    &shard.name,
                    name,
                    "it in one file only",
                    format!("it in {other} too"),
                ));
            }
        }
    }
    for (&name, &file) in &seen {
        let found = weight_map.get(name);
        if found != Some(file) {
            return Err(MemberError::tensor(INDEX, name, file, found.map_or("nothing", String::as_str)));
        }
    }
    match weight_map.iter().find(|(name, _)| !seen.contains_key(name)) {
        None => Ok(()),
        Some((name, file)) => Err(MemberError::tensor(file, name, "it, as the index says", "no such tensor")),
    }
}

/// Checks that `shards` together hold the tensors of `inventory` and no others, each once and in its shape. `file` is
/// named when a tensor is in none of them.
fn check_inventory(file: &str, inventory: &[TensorSpec], shards: &[&Shard]) -> Result<(), MemberError> {
    let mut missing: BTreeMap<_, _> = inventory.iter().map(|spec| (spec.name.as_str(), spec)).collect();
    for shard in shards {
        for tensor in &shard.tensors {
            let Some(spec) = missing.remove(tensor.name.as_str()) else {
                return Err(MemberError::tensor(&shard.name, &tensor.name, "no such tensor", "one"));
            };
            if !spec.accepts(&tensor.shape) {
                let (expected, found) = (format!("shape {:?}", spec.shape), format!("{:?}", tensor.shape));
                return Err(MemberError::tensor(&shard.name, &tensor.name, expected, found));
            }
        }
    }
    match missing.into_values().next() {
        None => Ok(()),
        Some(spec) => Err(MemberError::tensor(file, &spec.name, format!("a tensor of shape {:?}", spec.shape), "none")),
    }
}

/// A light look at `calibration.json`: broad weights need their block (spec: vela.md §8).
fn check_calibration(calibration: &[u8], has_broad_head: bool) -> Result<(), MemberError> {
    #[derive(Deserialize)]
    struct Calibration {
        broad_head: Option<IgnoredAny>,
    }
    let Calibration { broad_head } = json::parse(CALIBRATION, "a member's calibration", calibration)?;
    if has_broad_head && broad_head.is_none() { Err(MemberError::BroadHead) } else { Ok(()) }
}
