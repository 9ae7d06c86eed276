//! A bundle: what an export wrote, opened and checked (spec: bundle.md, "Load").
//!
//! Invariant: an open bundle's manifest is the anchored one, every file in the folder is listed with its size, and every
//! header says what the manifest and the config say. A bundle never vouches for itself.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use synod_kernels::DType;

use super::inventory::{check_counts, check_dtypes, check_index, check_inventory};
use super::json::{self, UniqueMap};
use super::manifest::{self, BundleProfile, Content, FileEntry, Manifest, TensorEntry};
use super::package::{CALIBRATION, Index, TOKENIZER, TOKENIZER_CONFIG, check_calibration};
use super::paths::{Root, check_confined};
use super::registry::{self, Release};
use super::shard::Shard;
use super::{Anchor, Digest, MemberConfig, MemberError, MemberFiles, Precision, TensorCounts, Trust};
use crate::model::qwen3_5::config::{BackboneConfig, TensorSpec};

pub(super) const MANIFEST: &str = "manifest.json";
pub(super) const HEADS: &str = "heads.safetensors";
pub(super) const MODEL_FOLDER: &str = "model/";
pub(super) const MODEL_CONFIG: &str = "model/config.json";
pub(super) const MODEL_INDEX: &str = "model/model.safetensors.index.json";
/// What the backbone's tensors are called in a package and in a bundle.
pub(super) const BACKBONE_PREFIX: &str = "backbone.";
pub(super) const MODEL_PREFIX: &str = "model.";
/// Where the other profile lies, if both were exported together.
pub(super) const NESTED_FOLDER: &str = "bf16/";
/// What is held to the pins of a released member itself, beside what the manifest says of the package.
pub(super) const PINNED: [&str; 2] = [CALIBRATION, TOKENIZER];
pub(super) const REMEDY: &str = "copy the bundle again, or export it again";

pub(super) struct Bundle {
    pub(super) root: Root,
    pub(super) digest: Digest,
    pub(super) manifest: Manifest,
    pub(super) release: Option<&'static Release>,
    config: MemberConfig,
    calibration: Vec<u8>,
    tokenizer: Vec<u8>,
    has_broad_head: bool,
    /// Every weight file, largest first, tensors under the names of a package.
    pub(super) shards: Vec<Shard>,
}

impl Bundle {
    /// Opens the bundle in the folder `path` and checks everything but the weights' own bytes. It may hold half a member.
    ///
    /// # Errors
    /// The first defect found, in a fixed order.
    pub(super) fn open(path: &Path, trust: Trust) -> Result<Self, MemberError> {
        let root = Root::without_links(path)?;
        let bytes = root.read(MANIFEST)?;
        let digest = Digest::of(&bytes);
        match trust {
            Trust::Anchored(Anchor(anchor)) => MemberError::check_digest(MANIFEST, anchor, digest, REMEDY)?,
            Trust::Released => return Err(MemberError::NotAnchored { digest }),
        }
        let manifest: Manifest = json::parse(MANIFEST, "a bundle's manifest", &bytes)?;
        let config = check_manifest(&manifest)?;
        check_files(&root, &manifest.files.0)?;
        let release = registry::find(&config.model_name);
        if let Some(release) = release {
            check_release(release, &manifest, &config)?;
        }
        let listing = Listing { root: &root, manifest: &manifest };
        let calibration = listing.read(CALIBRATION)?;
        let tokenizer = listing.read(TOKENIZER)?;
        if manifest.files.0.contains_key(TOKENIZER_CONFIG) {
            listing.read(TOKENIZER_CONFIG)?;
        }
        let has_broad_head = manifest.has_broad_head();
        check_calibration(&calibration, has_broad_head)?;
        let mut shards = Vec::new();
        if manifest.contents.contains(&Content::Model) {
            listing.check_backbone_config(&config.backbone_config)?;
            shards = listing.open_model(&config)?;
        }
        if manifest.contents.contains(&Content::Heads) {
            shards.push(listing.open_heads(&config, has_broad_head)?);
        }
        if let Some(release) = release {
            check_counts(MANIFEST, expected_counts(release, &manifest), TensorCounts::of(&shards))?;
        }
        shards.sort_by_key(|shard| std::cmp::Reverse(shard.size_bytes));
        Ok(Self { root, digest, manifest, release, config, calibration, tokenizer, has_broad_head, shards })
    }

    /// What loads.
    ///
    /// # Errors
    /// [`MemberError::Serves`] for half a member.
    pub(super) fn into_files(self) -> Result<MemberFiles, MemberError> {
        if self.manifest.serves.is_empty() {
            let found = if self.manifest.contents.contains(&Content::Model) { "no heads" } else { "no backbone" };
            return Err(MemberError::Serves {
                expected: "a whole member".to_owned(),
                found: found.to_owned(),
                remedy: "export the bundle without --executor-only and --heads-only",
            });
        }
        Ok(MemberFiles {
            digest: self.digest.to_string(),
            config: self.config,
            calibration: self.calibration,
            tokenizer: self.tokenizer,
            has_broad_head: self.has_broad_head,
            precision: match self.manifest.profile {
                BundleProfile::Faithful => Precision::Released,
                BundleProfile::Bf16 => Precision::Bf16,
            },
            remedy: REMEDY.to_owned(),
            shards: self.shards,
        })
    }

    /// The member's own name.
    pub(super) fn model_name(&self) -> &str {
        &self.config.model_name
    }
}

impl Manifest {
    fn has_broad_head(&self) -> bool {
        let heads = self.tensors.0.get(HEADS);
        heads.is_some_and(|heads| heads.0.keys().any(|name| name.starts_with("span_broad.")))
    }
}

/// Checks what the manifest says against itself; the member's config.
fn check_manifest(manifest: &Manifest) -> Result<MemberConfig, MemberError> {
    if manifest.format != manifest::FORMAT {
        return Err(MemberError::manifest("format", manifest::FORMAT, &manifest.format));
    }
    if manifest.format_version != manifest::FORMAT_VERSION {
        return Err(MemberError::manifest("format_version", manifest::FORMAT_VERSION, manifest.format_version));
    }
    let is_repeated = |(index, content): (usize, &Content)| manifest.contents[..index].contains(content);
    if manifest.contents.iter().enumerate().any(is_repeated) {
        return Err(MemberError::manifest("contents", "each half once", format!("{:?}", manifest.contents)));
    }
    let serves = manifest::serves(manifest.profile, &manifest.contents);
    if manifest.serves != serves {
        return Err(MemberError::manifest("serves", format!("{serves:?}"), format!("{:?}", manifest.serves)));
    }
    check_contents(manifest)?;
    let content = |error: serde_json::Error| MemberError::manifest("config", "a member's config", error);
    let config: MemberConfig = serde_json::from_value(manifest.config.clone()).map_err(content)?;
    config.validate().map_err(|source| MemberError::Config { file: "manifest.json: config", source })?;
    if config.model_name != manifest.member.model_name {
        return Err(MemberError::manifest("member.model_name", &config.model_name, &manifest.member.model_name));
    }
    Ok(config)
}

/// Checks that the weight files that are listed are those of the halves that are there.
fn check_contents(manifest: &Manifest) -> Result<(), MemberError> {
    if manifest.contents.is_empty() {
        return Err(MemberError::manifest("contents", "model, heads or both", "neither"));
    }
    for name in manifest.tensors.0.keys() {
        check_confined(MANIFEST, name)?;
        let half = if name == HEADS { Content::Heads } else { Content::Model };
        if !manifest.contents.contains(&half) {
            return Err(MemberError::manifest("tensors", "files of the contents", name));
        }
    }
    let is_weights = |name: &&String| {
        let path = Path::new(name);
        path.extension().is_some_and(|extension| extension == "safetensors") && !name.starts_with(NESTED_FOLDER)
    };
    match manifest.files.0.keys().filter(is_weights).find(|name| !manifest.tensors.0.contains_key(*name)) {
        None => Ok(()),
        Some(name) => Err(MemberError::manifest("tensors", name, "no such file")),
    }
}

/// Checks that the folder holds what is listed, in the sizes that are listed, and nothing else.
fn check_files(root: &Root, files: &BTreeMap<String, FileEntry>) -> Result<(), MemberError> {
    let mut folders = BTreeSet::new();
    for name in files.keys() {
        check_confined(MANIFEST, name)?;
        folders.extend(name.match_indices('/').map(|(end, _)| &name[..end]));
    }
    let found = root.walk()?;
    let unlisted_file = found.files.keys().find(|name| *name != MANIFEST && !files.contains_key(*name));
    let unlisted_folder = || found.folders.iter().find(|name| !folders.contains(name.as_str()));
    if let Some(name) = unlisted_file.or_else(unlisted_folder) {
        return Err(MemberError::Unlisted { file: name.clone() });
    }
    for (name, entry) in files {
        let size_bytes =
            found.files.get(name).map_or_else(|| "no such file".to_owned(), |size| format!("{size} bytes"));
        let expected = format!("{} bytes", entry.size_bytes);
        if size_bytes != expected {
            return Err(MemberError::Size { file: name.clone(), expected, found: size_bytes });
        }
    }
    Ok(())
}

/// Holds a bundle of a released member to the pins of the package that it was made from.
fn check_release(release: &Release, manifest: &Manifest, config: &MemberConfig) -> Result<(), MemberError> {
    if manifest.member.repository.as_deref() != Some(release.model_name) {
        let found = manifest.member.repository.as_deref().unwrap_or("none");
        return Err(MemberError::manifest("member.repository", release.model_name, found));
    }
    let revision = manifest.member.revision.as_deref().unwrap_or("none");
    if !release.revisions.contains(&revision) {
        return Err(MemberError::manifest("member.revision", release.revisions[0], revision));
    }
    for (name, _) in release.files {
        let found = manifest.inputs.0.get(*name).map_or_else(|| "none".to_owned(), Digest::to_string);
        let expected = release.pin(name).expect("the name comes from the table of pins").to_string();
        if found != expected {
            return Err(MemberError::manifest(format_args!("inputs: {name}"), expected, found));
        }
    }
    for name in PINNED {
        let pin = release.pin(name).expect("every release has these files");
        let not_listed = || MemberError::NotListed { manifest: MANIFEST, file: name.to_owned() };
        let found = manifest.files.0.get(name).ok_or_else(not_listed)?.sha256;
        MemberError::check_digest(name, pin, found, REMEDY)?;
    }
    release.check_config(config).map_err(|source| MemberError::Config { file: "manifest.json: config", source })
}

/// What the halves of a released member that are there hold.
fn expected_counts(release: &Release, manifest: &Manifest) -> TensorCounts {
    let whole = match manifest.profile {
        BundleProfile::Faithful => release.tensors,
        BundleProfile::Bf16 => release.tensors.rounded(),
    };
    let head_parameters = whole.parameters - whole.backbone_parameters;
    let mut counts = TensorCounts::default();
    if manifest.contents.contains(&Content::Model) {
        counts = TensorCounts { heads: 0, parameters: whole.backbone_parameters, ..whole };
    }
    if manifest.contents.contains(&Content::Heads) {
        counts.heads = whole.heads;
        counts.parameters += head_parameters;
    }
    counts
}

/// The files of a bundle that its manifest lists.
struct Listing<'a> {
    root: &'a Root,
    manifest: &'a Manifest,
}

impl Listing<'_> {
    fn entry(&self, name: &str) -> Result<FileEntry, MemberError> {
        let entry = self.manifest.files.0.get(name).copied();
        entry.ok_or_else(|| MemberError::NotListed { manifest: MANIFEST, file: name.to_owned() })
    }

    /// Reads a small file once, and returns it if it is the one that is listed.
    fn read(&self, name: &str) -> Result<Vec<u8>, MemberError> {
        let expected = self.entry(name)?.sha256;
        let bytes = self.root.read(name)?;
        MemberError::check_digest(name, expected, Digest::of(&bytes), REMEDY)?;
        Ok(bytes)
    }

    fn check_backbone_config(&self, expected: &BackboneConfig) -> Result<(), MemberError> {
        let found: BackboneConfig = json::parse(MODEL_CONFIG, "a backbone's config", &self.read(MODEL_CONFIG)?)?;
        if found == *expected {
            return Ok(());
        }
        let expected = "what model/config.json says";
        Err(MemberError::manifest("config.backbone_config", expected, "another backbone"))
    }

    /// Opens a weight file whose tensors are as the manifest lists them.
    fn open_shard(&self, name: &str, tensors: &BTreeMap<String, TensorEntry>) -> Result<Shard, MemberError> {
        let shard = Shard::open(self.root, name, self.entry(name)?.sha256)?;
        for tensor in &shard.tensors {
            let found = format!("{} {:?}", tensor.dtype.name(), tensor.shape);
            let listed = |entry: &TensorEntry| format!("{} {:?}", entry.dtype, entry.shape);
            let expected = tensors.get(&tensor.name).map_or_else(|| "no such tensor".to_owned(), listed);
            if expected != found {
                return Err(MemberError::tensor(name, &tensor.name, expected, found));
            }
        }
        let found: BTreeSet<_> = shard.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        match tensors.keys().find(|name| !found.contains(name.as_str())) {
            None => Ok(shard),
            Some(missing) => Err(MemberError::tensor(name, missing, "it, as the manifest lists it", "no such tensor")),
        }
    }

    /// Opens the backbone's weight files and gives their tensors the names that they have in a package.
    fn open_model(&self, config: &MemberConfig) -> Result<Vec<Shard>, MemberError> {
        let listed = self.manifest.tensors.0.iter().filter(|(name, _)| *name != HEADS);
        let mut shards = Vec::new();
        for (name, UniqueMap(tensors)) in listed {
            if !name.starts_with(MODEL_FOLDER) {
                return Err(MemberError::manifest("tensors", "files in model/ and heads.safetensors", name));
            }
            shards.push(self.open_shard(name, tensors)?);
        }
        let Index { weight_map: UniqueMap(weight_map) } =
            json::parse(MODEL_INDEX, "an index of weight files", &self.read(MODEL_INDEX)?)?;
        let weight_map =
            weight_map.into_iter().map(|(tensor, file)| (tensor, format!("{MODEL_FOLDER}{file}"))).collect();
        check_index(MODEL_INDEX, &weight_map, &shards)?;
        // Compared under the names that stand in the files, which refusals then show.
        let inventory: Vec<_> =
            config.backbone_config.inventory().into_iter().map(|spec| spec.prefixed(MODEL_PREFIX)).collect();
        let files: Vec<_> = shards.iter().collect();
        check_inventory(MANIFEST, &inventory, &files)?;
        match self.manifest.profile {
            BundleProfile::Bf16 => check_dtypes(&inventory, &files, |_| DType::Bf16)?,
            BundleProfile::Faithful if registry::find(&config.model_name).is_some() => {
                check_dtypes(&inventory, &files, TensorSpec::released_dtype)?;
            }
            BundleProfile::Faithful => {}
        }
        for tensor in shards.iter_mut().flat_map(|shard| &mut shard.tensors) {
            tensor.name = tensor.name.replacen(MODEL_PREFIX, BACKBONE_PREFIX, 1);
        }
        Ok(shards)
    }

    fn open_heads(&self, config: &MemberConfig, has_broad_head: bool) -> Result<Shard, MemberError> {
        let tensors = self.manifest.tensors.0.get(HEADS).map(|UniqueMap(tensors)| tensors);
        let missing = || MemberError::manifest("tensors", HEADS, "none");
        let shard = self.open_shard(HEADS, tensors.ok_or_else(missing)?)?;
        let inventory = config.head_inventory(has_broad_head);
        check_inventory(HEADS, &inventory, &[&shard])?;
        check_dtypes(&inventory, &[&shard], |_| DType::F32)?;
        Ok(shard)
    }
}
