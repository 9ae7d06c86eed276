//! A release as published (spec: vela.md §2), opened and checked.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::inventory::{check_counts, check_dtypes, check_index, check_inventory};
use super::json::{self, UniqueMap};
use super::paths::{Root, check_confined};
use super::registry::{self, Release};
use super::shard::Shard;
use super::{Anchor, Digest, MemberConfig, MemberError, MemberFiles, Precision, TensorCounts, Trust};
use crate::model::qwen3_5::config::TensorSpec;

pub(super) const MANIFEST: &str = "MODEL_MANIFEST.json";
const CONFIG: &str = "config.json";
pub(super) const CALIBRATION: &str = "calibration.json";
pub(super) const TOKENIZER: &str = "tokenizer.json";
pub(super) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
pub(super) const INDEX: &str = "model.safetensors.index.json";
const BROAD_HEAD: &str = "broad_head.safetensors";

/// A package: what loads, and what an export or a verification needs beside it.
pub(super) struct Package {
    pub(super) files: MemberFiles,
    pub(super) root: Root,
    /// `config.json` as it is written.
    pub(super) config_json: Vec<u8>,
    /// What the manifest lists, and the manifest itself.
    pub(super) digests: BTreeMap<String, Digest>,
    pub(super) release: Option<&'static Release>,
    /// Files that are there and not listed. They are ignored.
    pub(super) unlisted: Vec<String>,
}

#[derive(Deserialize)]
struct Manifest {
    files_sha256: UniqueMap<String>,
}

#[derive(Deserialize)]
pub(super) struct Index {
    pub(super) weight_map: UniqueMap<String>,
}

/// The files of a package that its manifest lists.
struct Listing<'a> {
    root: &'a Root,
    digests: BTreeMap<String, Digest>,
    remedy: String,
}

impl Package {
    /// Opens the package in the folder `path` and checks everything but the weights' own bytes.
    ///
    /// # Errors
    /// The first defect found, files in a fixed order.
    pub(super) fn open(path: &Path, trust: Trust) -> Result<Self, MemberError> {
        let root = Root::new(path)?;
        let manifest = root.read(MANIFEST)?;
        let digest = Digest::of(&manifest);
        if let Trust::Anchored(Anchor(anchor)) = trust {
            MemberError::check_digest(
                MANIFEST,
                anchor,
                digest,
                "fetch the file again from where the anchored copy came from",
            )?;
        }
        let mut listing = Listing::new(&root, &manifest)?;
        let config_json = listing.read(CONFIG)?;
        let config: MemberConfig = json::parse(CONFIG, "a member's config", &config_json)?;
        let release = registry::find(&config.model_name);
        match (release, trust) {
            (Some(release), _) => listing.check_release(release, digest)?,
            (None, Trust::Anchored(_)) => {}
            (None, Trust::Released) => {
                return Err(MemberError::NotReleased { model_name: config.model_name, digest });
            }
        }
        let refused = |source| MemberError::Config { file: CONFIG, source };
        config.validate().map_err(refused)?;
        release.map_or(Ok(()), |release| release.check_config(&config)).map_err(refused)?;

        let unlisted = listing.unlisted()?;
        let has_broad_head = listing.digests.contains_key(BROAD_HEAD);
        let calibration = listing.read(CALIBRATION)?;
        check_calibration(&calibration, has_broad_head)?;
        let tokenizer = listing.read(TOKENIZER)?;
        let shards = listing.open_weights(&config, release)?;
        let Listing { digests, remedy, .. } = listing;
        let files = MemberFiles {
            digest: digest.to_string(),
            config,
            calibration,
            tokenizer,
            has_broad_head,
            precision: Precision::Released,
            remedy,
            shards,
        };
        let digests = digests.into_iter().chain([(MANIFEST.to_owned(), digest)]).collect();
        Ok(Self { files, root, config_json, digests, release, unlisted })
    }

    /// The bytes of `tokenizer_config.json`, if the manifest lists it. It is never interpreted.
    pub(super) fn tokenizer_config(&self) -> Result<Option<Vec<u8>>, MemberError> {
        let Some(&expected) = self.digests.get(TOKENIZER_CONFIG) else { return Ok(None) };
        let bytes = self.root.read(TOKENIZER_CONFIG)?;
        MemberError::check_digest(TOKENIZER_CONFIG, expected, Digest::of(&bytes), &self.files.remedy)?;
        Ok(Some(bytes))
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
        Ok(Self { root, digests, remedy: "fetch the file again from its source".to_owned() })
    }

    /// Holds manifest and listing to what is pinned for `release`.
    fn check_release(&mut self, release: &Release, manifest: Digest) -> Result<(), MemberError> {
        self.remedy = format!("fetch the file again from {} at {}", release.model_name, release.revisions[0]);
        for (name, _) in release.files {
            let pin = release.pin(name).expect("the name comes from the table of pins");
            let found = if *name == MANIFEST { manifest } else { self.digest(name)? };
            MemberError::check_digest(name, pin, found, &self.remedy)?;
        }
        Ok(())
    }

    /// What the file `name` must hash to.
    fn digest(&self, name: &str) -> Result<Digest, MemberError> {
        self.digests
            .get(name)
            .copied()
            .ok_or_else(|| MemberError::NotListed { manifest: MANIFEST, file: name.to_owned() })
    }

    /// Reads a small file once, and returns it if it is the one that is listed.
    fn read(&self, name: &str) -> Result<Vec<u8>, MemberError> {
        let expected = self.digest(name)?;
        let bytes = self.root.read(name)?;
        MemberError::check_digest(name, expected, Digest::of(&bytes), &self.remedy)?;
        Ok(bytes)
    }

    /// What is in the folder and not in the manifest.
    fn unlisted(&self) -> Result<Vec<String>, MemberError> {
        let is_unlisted = |name: &String| name != MANIFEST && !self.digests.contains_key(name);
        Ok(self.root.walk()?.files.into_keys().filter(is_unlisted).collect())
    }

    /// Every weight file, largest first.
    fn open_weights(&self, config: &MemberConfig, release: Option<&Release>) -> Result<Vec<Shard>, MemberError> {
        let mut shards = self.open_shards(config)?;
        if release.is_some() {
            let inventory: Vec<_> =
                config.inventory().into_iter().filter(|spec| spec.name.starts_with("backbone.")).collect();
            check_dtypes(&inventory, &shards.iter().collect::<Vec<_>>(), TensorSpec::released_dtype)?;
        }
        if self.digests.contains_key(BROAD_HEAD) {
            let shard = Shard::open(self.root, BROAD_HEAD, self.digest(BROAD_HEAD)?)?;
            check_inventory(BROAD_HEAD, &config.broad_inventory(), &[&shard])?;
            shards.push(shard);
        }
        if let Some(release) = release {
            check_counts(INDEX, release.tensors, TensorCounts::of(&shards))?;
        }
        shards.sort_by_key(|shard| std::cmp::Reverse(shard.size_bytes));
        Ok(shards)
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
        check_index(INDEX, &weight_map, &shards)?;
        check_inventory(INDEX, &config.inventory(), &shards.iter().collect::<Vec<_>>())?;
        Ok(shards)
    }
}

/// A light look at `calibration.json`: broad weights need their block (spec: vela.md §8).
pub(super) fn check_calibration(calibration: &[u8], has_broad_head: bool) -> Result<(), MemberError> {
    #[derive(Deserialize)]
    struct Calibration {
        broad_head: Option<IgnoredAny>,
    }
    let Calibration { broad_head } = json::parse(CALIBRATION, "a member's calibration", calibration)?;
    if has_broad_head && broad_head.is_none() { Err(MemberError::BroadHead) } else { Ok(()) }
}
