//! One bundle on its way into its folder.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use synod_kernels::DType;

use super::weights::WeightFile;
use super::{BundleProfile, BundleReport};
use crate::member::bundle::{HEADS, MANIFEST, MODEL_CONFIG, MODEL_FOLDER, MODEL_INDEX};
use crate::member::json::{self, UniqueMap};
use crate::member::manifest::{Content, FORMAT, FORMAT_VERSION, FileEntry, Identity, Manifest, TensorEntry, serves};
use crate::member::package::{CALIBRATION, Package, TOKENIZER, TOKENIZER_CONFIG};
use crate::member::shard::{self, HeaderEntry};
use crate::member::{Anchor, Digest, MemberError, TensorCounts};
use crate::model::qwen3_5::config::TensorSpec;

/// A bundle that is being written.
pub(super) struct Target {
    /// Where it lies in the staging folder, and in the outermost bundle.
    path: PathBuf,
    folder: &'static str,
    profile: BundleProfile,
    contents: &'static [Content],
    files: BTreeMap<String, FileEntry>,
    tensors: BTreeMap<String, UniqueMap<TensorEntry>>,
}

/// A bundle that was written.
pub(super) struct Finished {
    /// Where it lies in the outermost bundle.
    pub(super) folder: &'static str,
    pub(super) report: BundleReport,
    /// Its files as the manifest of a bundle around it lists them.
    pub(super) files: Vec<(String, FileEntry)>,
}

/// A file that is being written, hashed on the way.
pub(super) struct OutputFile {
    name: String,
    file: File,
    hasher: Sha256,
    size_bytes: u64,
}

impl OutputFile {
    /// Creates the file `name` of the bundle `target`.
    pub(super) fn create(target: &Target, name: &str) -> Result<Self, MemberError> {
        let file = File::create_new(target.path.join(name)).map_err(|source| MemberError::write(name, source))?;
        Ok(Self { name: name.to_owned(), file, hasher: Sha256::new(), size_bytes: 0 })
    }

    /// Appends `bytes`.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), MemberError> {
        self.file.write_all(bytes).map_err(|source| MemberError::write(&self.name, source))?;
        self.hasher.update(bytes);
        self.size_bytes += bytes.len() as u64;
        Ok(())
    }

    /// Brings the file to the disk, so that the rename at the end never outlives its content.
    pub(super) fn finish(self) -> Result<(String, FileEntry), MemberError> {
        self.file.sync_all().map_err(|source| MemberError::write(&self.name, source))?;
        Ok((self.name, FileEntry { size_bytes: self.size_bytes, sha256: Digest::finish(self.hasher) }))
    }
}

impl Target {
    /// Makes the folders of a bundle that will lie in `folder` of `staging`.
    pub(super) fn new(
        staging: &Path,
        folder: &'static str,
        profile: BundleProfile,
        contents: &'static [Content],
    ) -> Result<Self, MemberError> {
        let path = staging.join(folder);
        let inner = if contents.contains(&Content::Model) { path.join(MODEL_FOLDER) } else { path.clone() };
        fs::create_dir_all(inner).map_err(|source| MemberError::write(MODEL_FOLDER, source))?;
        Ok(Self { path, folder, profile, contents, files: BTreeMap::new(), tensors: BTreeMap::new() })
    }

    /// Whether the backbone is rounded.
    pub(super) fn rounds(&self) -> bool {
        self.profile == BundleProfile::Bf16
    }

    /// How a tensor of the backbone that has `dtype` in the package is stored.
    pub(super) fn dtype(&self, dtype: DType) -> DType {
        if self.rounds() { DType::Bf16 } else { dtype }
    }

    /// Takes the backbone's files, which have been written.
    pub(super) fn add_weights(&mut self, files: Vec<WeightFile>) {
        for WeightFile { name, entry, tensors } in files {
            self.files.insert(name.clone(), entry);
            self.tensors.insert(name, UniqueMap(tensors));
        }
    }

    /// Writes everything beside the backbone's weights and the manifest.
    pub(super) fn write_small_files(
        &mut self,
        package: &Package,
        heads: &BTreeMap<String, Vec<u8>>,
    ) -> Result<(), MemberError> {
        if self.contents.contains(&Content::Model) {
            self.write_json(MODEL_CONFIG, &config(package)?["backbone_config"])?;
            self.write_json(MODEL_INDEX, &self.index())?;
        }
        if self.contents.contains(&Content::Heads) {
            self.write_heads(package, heads)?;
        }
        self.write(CALIBRATION, package.files.calibration())?;
        self.write(TOKENIZER, package.files.tokenizer())?;
        if let Some(bytes) = package.tokenizer_config()? {
            self.write(TOKENIZER_CONFIG, &bytes)?;
        }
        Ok(())
    }

    /// The index of the backbone's files, as tools of the field read it.
    fn index(&self) -> Value {
        let mut total_bytes = 0;
        let mut weight_map = BTreeMap::new();
        for (file, UniqueMap(tensors)) in &self.tensors {
            let file = file.strip_prefix(MODEL_FOLDER).unwrap_or(file);
            for (name, TensorEntry { dtype, shape }) in tensors {
                weight_map.insert(name, file);
                let bytes = if *dtype == DType::F32.name() { DType::F32.bytes() } else { DType::Bf16.bytes() };
                total_bytes += shape.iter().product::<usize>() * bytes;
            }
        }
        json!({ "metadata": { "total_size": total_bytes }, "weight_map": weight_map })
    }

    fn write_heads(&mut self, package: &Package, heads: &BTreeMap<String, Vec<u8>>) -> Result<(), MemberError> {
        let inventory = package.files.config().head_inventory(package.files.has_broad_head());
        let mut output = OutputFile::create(self, HEADS)?;
        let entries =
            inventory.iter().map(|spec| HeaderEntry { name: &spec.name, dtype: DType::F32, shape: &spec.shape });
        output.write(&shard::header(entries))?;
        for spec in &inventory {
            output.write(
                heads.get(&spec.name).expect("every tensor of the inventory was found when the package was opened"),
            )?;
        }
        let (name, entry) = output.finish()?;
        self.files.insert(name, entry);
        let stored = |spec: &TensorSpec| TensorEntry { dtype: DType::F32.name().to_owned(), shape: spec.shape.clone() };
        let tensors = inventory.iter().map(|spec| (spec.name.clone(), stored(spec))).collect();
        self.tensors.insert(HEADS.to_owned(), UniqueMap(tensors));
        Ok(())
    }

    fn write(&mut self, name: &str, bytes: &[u8]) -> Result<(), MemberError> {
        let mut output = OutputFile::create(self, name)?;
        output.write(bytes)?;
        let (name, entry) = output.finish()?;
        self.files.insert(name, entry);
        Ok(())
    }

    fn write_json(&mut self, name: &str, value: &Value) -> Result<(), MemberError> {
        self.write(name, format!("{value:#}\n").as_bytes())
    }

    /// Writes the manifest, which lists the files of this bundle and of the one that is `nested` in it.
    pub(super) fn finish(
        mut self,
        package: &Package,
        nested: Vec<(String, FileEntry)>,
    ) -> Result<Finished, MemberError> {
        self.files.extend(nested);
        let manifest = self.manifest(package)?;
        let bytes = serde_json::to_string_pretty(&manifest).expect("a manifest has string keys only") + "\n";
        self.write(MANIFEST, bytes.as_bytes())?;
        let report = BundleReport {
            path: PathBuf::new(),
            profile: self.profile,
            anchor: Anchor(Digest::of(bytes.as_bytes())),
            tensors: self.counts(),
            size_bytes: self.files.values().map(|entry| entry.size_bytes).sum(),
        };
        let folder = self.folder;
        let files = self.files.into_iter().map(|(name, entry)| (format!("{folder}{name}"), entry)).collect();
        Ok(Finished { folder, report, files })
    }

    fn counts(&self) -> TensorCounts {
        let mut counts = TensorCounts::default();
        for (file, UniqueMap(tensors)) in &self.tensors {
            for TensorEntry { dtype, shape } in tensors.values() {
                let values = shape.iter().product::<usize>();
                counts.parameters += values;
                match dtype.as_str() {
                    _ if file == HEADS => counts.heads += 1,
                    "F32" => counts.backbone_f32 += 1,
                    _ => counts.backbone_bf16 += 1,
                }
                counts.backbone_parameters += if file == HEADS { 0 } else { values };
            }
        }
        counts
    }

    fn manifest(&self, package: &Package) -> Result<Manifest, MemberError> {
        let member = Identity {
            model_name: package.files.model_name().to_owned(),
            repository: package.release.map(|release| release.model_name.to_owned()),
            revision: package.release.map(|release| release.revisions[0].to_owned()),
        };
        Ok(Manifest {
            format: FORMAT.to_owned(),
            format_version: FORMAT_VERSION,
            member,
            profile: self.profile,
            contents: self.contents.to_vec(),
            serves: serves(self.profile, self.contents),
            config: config(package)?,
            inputs: UniqueMap(package.digests.clone()),
            tensors: UniqueMap(self.tensors.clone()),
            files: UniqueMap(self.files.clone()),
        })
    }
}

/// The package's config with all its keys, also those that have no meaning for serving.
fn config(package: &Package) -> Result<Value, MemberError> {
    json::parse("config.json", "a member's config", &package.config_json)
}
