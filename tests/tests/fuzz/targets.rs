//! What is fuzzed, and how an input reaches it.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use serde_json::{Value, json};
use synod::member::{Anchor, MemberFiles, Trust};
use synod_config::Deployment;
use synod_tests::deployment;
use synod_tests::fixtures;
use synod_tests::server::run;
use tempfile::TempDir;

use super::harness::{TryInput, Verdict};

const SYNOD: &str = env!("CARGO_BIN_EXE_synod-tested");
const SHARD: &str = "model-00001-of-00001.safetensors";
const PACKAGE_MANIFEST: &str = "MODEL_MANIFEST.json";
const BUNDLE_MANIFEST: &str = "manifest.json";

/// Sound texts, and what tries one that may not be.
pub(crate) struct Target {
    pub(crate) seeds: Vec<Vec<u8>>,
    pub(crate) try_input: TryInput,
}

/// A package or a bundle of which one file changes from input to input.
struct Member {
    folder: TempDir,
    manifest_name: &'static str,
    manifest: Value,
}

impl Member {
    /// The fixture package, with as little beside its weights as opens.
    fn package() -> Self {
        let folder = tempfile::tempdir().expect("there is a place for temporary files");
        let source = fixtures::path("members/tiny-08b");
        for name in [SHARD, "model.safetensors.index.json", "config.json"] {
            fs::copy(source.join(name), folder.path().join(name)).expect("a fixture can be copied");
        }
        fs::write(folder.path().join("tokenizer.json"), "{}").expect("a temporary folder is writable");
        fs::write(folder.path().join("calibration.json"), "{}").expect("a temporary folder is writable");
        let mut files = serde_json::Map::new();
        for entry in fs::read_dir(folder.path()).expect("it was just written").flatten() {
            let digest = fixtures::sha256(&fs::read(entry.path()).expect("it was just written"));
            files.insert(entry.file_name().to_string_lossy().into_owned(), json!(digest));
        }
        let manifest = json!({ "files_sha256": files });
        let member = Self { folder, manifest_name: PACKAGE_MANIFEST, manifest };
        member.seal();
        member
    }

    /// The faithful bundle of the fixture package.
    fn bundle() -> Self {
        let folder = tempfile::tempdir().expect("there is a place for temporary files");
        let source = fixtures::path("members/tiny-08b");
        let (anchor, package) = (fixtures::anchor(&source), source.to_str().expect("a fixture's path is UTF-8"));
        let place = tempfile::tempdir().expect("there is a place for temporary files");
        let out = folder.path().to_str().expect("a temporary path is UTF-8");
        let command = ["export", "vela", "--package", package, "--anchor", &anchor, "--out", out];
        let finished = run(SYNOD, &command, place.path(), "");
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
        let manifest = fs::read(folder.path().join(BUNDLE_MANIFEST)).expect("a bundle has a manifest");
        let manifest = serde_json::from_slice(&manifest).expect("a manifest is JSON");
        Self { folder, manifest_name: BUNDLE_MANIFEST, manifest }
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.folder.path().join(name)).expect("a sound member has the file")
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.folder.path().join(name), bytes).expect("a temporary folder is writable");
    }

    /// Writes the manifest and gives the anchor of it.
    fn seal(&self) -> Anchor {
        self.write_manifest(self.manifest.to_string().as_bytes())
    }

    fn write_manifest(&self, bytes: &[u8]) -> Anchor {
        self.write(self.manifest_name, bytes);
        format!("sha256:{}", fixtures::sha256(bytes)).parse().expect("a digest makes an anchor")
    }

    /// Replaces a small file, lists it as it is, and opens the member.
    fn open_with(&mut self, name: &str, bytes: &[u8]) -> Verdict {
        self.write(name, bytes);
        let digest = json!(fixtures::sha256(bytes));
        if self.manifest_name == PACKAGE_MANIFEST {
            self.manifest["files_sha256"][name] = digest;
        } else {
            self.manifest["files"][name] = json!({ "size_bytes": bytes.len(), "sha256": digest });
        }
        self.open(self.seal())
    }

    fn open(&self, anchor: Anchor) -> Verdict {
        let opened = MemberFiles::open(self.folder.path(), Trust::Anchored(anchor));
        opened.map(drop).map_err(|error| error.to_string())
    }
}

/// Headers of weight files. No digest is in the way: that of weights is taken when they are read.
pub(crate) fn header() -> Target {
    let package = Member::package();
    let bytes = package.read(SHARD);
    let length = u64::from_le_bytes(*bytes.first_chunk().expect("a length")) as usize;
    let (seed, data_bytes) = (bytes[8..8 + length].to_vec(), bytes.len() - 8 - length);
    let anchor = package.seal();
    let path = package.folder.path().join(SHARD);
    let mut is_length_honest = 0_u8;
    let try_input = move |input: &[u8]| {
        // One in 16 lies about its length as well.
        is_length_honest = (is_length_honest + 1) % 16;
        let length = if is_length_honest == 0 { input.len() as u64 ^ 0x1_0101 } else { input.len() as u64 };
        let file = OpenOptions::new().write(true).truncate(true).open(&path).expect("a temporary file is writable");
        file.write_all_at(&length.to_le_bytes(), 0).expect("there is room");
        file.write_all_at(input, 8).expect("there is room");
        file.set_len((8 + input.len() + data_bytes) as u64).expect("a hole takes no room");
        package.open(anchor)
    };
    // Compact, so that a change hits something more often than a space.
    Target { seeds: vec![seed], try_input: Box::new(try_input) }
}

/// Manifests of both forms. Either is tried as the one and as the other.
pub(crate) fn manifest() -> Target {
    let members = [Member::package(), Member::bundle()];
    let seeds = members.iter().map(|member| member.read(member.manifest_name)).collect();
    let try_input = move |input: &[u8]| {
        let [package, bundle] = &members;
        let as_package = package.open(package.write_manifest(input));
        let as_bundle = bundle.open(bundle.write_manifest(input));
        match (as_package, as_bundle) {
            (Ok(()), _) | (_, Ok(())) => Ok(()),
            (Err(one), Err(other)) => Err(worst([one.as_str(), other.as_str()].into_iter()).to_owned()),
        }
    };
    Target { seeds, try_input: Box::new(try_input) }
}

/// Indexes of both forms.
pub(crate) fn index() -> Target {
    let names = ["model.safetensors.index.json", "model/model.safetensors.index.json"];
    let mut members = [Member::package(), Member::bundle()];
    let seeds = members.iter().zip(names).map(|(member, name)| member.read(name)).collect();
    let try_input = move |input: &[u8]| {
        let resembles_package = input.windows(9).filter(|piece| *piece == b"backbone.").count() > 1;
        let form = usize::from(!resembles_package);
        members[form].open_with(names[form], input)
    };
    Target { seeds, try_input: Box::new(try_input) }
}

/// Deployment files, whose refusal has a line per problem.
pub(crate) fn deployment() -> Target {
    let file = Path::new("deployment.toml");
    let small = deployment::Deployment::of(&["tiny-08b"]).alias("jev-latest").server("drain_s = 5").to_toml();
    let large = deployment::Deployment::of(&["tiny-08b", "tiny-4b"]).key("a", "secret", &["tiny-4b"]).to_toml();
    let seeds = vec![small.into_bytes(), large.into_bytes()];
    let try_input = move |input: &[u8]| {
        let text = String::from_utf8_lossy(input);
        let Err(error) = Deployment::from_toml(&text, file) else { return Ok(()) };
        let text = error.to_string();
        Err(worst(text.lines()).to_owned())
    };
    Target { seeds, try_input: Box::new(try_input) }
}

/// Of several refusals the one to judge: it is a fault if any is empty, moves a cursor, or is long.
fn worst<'a>(refusals: impl Iterator<Item = &'a str>) -> &'a str {
    let badness = |refusal: &&str| (refusal.is_empty(), refusal.contains(char::is_control), refusal.len());
    refusals.max_by_key(badness).unwrap_or_default()
}
