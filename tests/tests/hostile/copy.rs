//! A copy of a member that may be spoiled, and what is looked at before and after it is opened.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use synod::member::{Anchor, MemberError, MemberFiles, Trust};
use synod_tests::fixtures;
use tempfile::TempDir;

/// Files above this size are compared by size and time alone.
const SMALL_BYTES: u64 = 1 << 20;

/// How far the forger gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forged {
    /// The files are spoiled; manifest and anchor are those of the sound member.
    Files,
    /// The spoiled manifest is the one that was anchored: only what it says can give it away.
    Anchor,
    /// The manifest lists the spoiled files, and it is the one that was anchored: no digest can tell.
    Digests,
}

/// A member in a folder of its own, with room beside it for what links may lead to.
pub(crate) struct Copy {
    folder: TempDir,
    manifest: &'static str,
    anchor: Anchor,
}

impl Copy {
    /// Copies the sound member in the folder `source`, whose manifest is called `manifest`.
    pub(crate) fn of(source: &Path, manifest: &'static str) -> Self {
        let folder = tempfile::tempdir().expect("there is a place for temporary files");
        copy_tree(source, &folder.path().join("member"));
        let mut copy = Self { folder, manifest, anchor: Anchor([0; 32].into()) };
        copy.anchor();
        copy
    }

    /// Where the member lies.
    pub(crate) fn root(&self) -> PathBuf {
        self.path("")
    }

    /// A path in the member; `../outside` is beside it.
    pub(crate) fn path(&self, file: &str) -> PathBuf {
        match file.strip_prefix("../") {
            Some(outside) => self.folder.path().join(outside),
            None => self.folder.path().join("member").join(file),
        }
    }

    pub(crate) fn bytes(&self, file: &str) -> Vec<u8> {
        fs::read(self.path(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
    }

    pub(crate) fn write(&self, file: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.path(file), bytes).unwrap_or_else(|error| panic!("{file}: {error}"));
    }

    pub(crate) fn edit(&self, file: &str, edit: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = self.bytes(file);
        edit(&mut bytes);
        self.write(file, bytes);
    }

    /// Replaces a piece of text that must be there, once.
    pub(crate) fn replace(&self, file: &str, from: &str, to: &str) {
        let text = String::from_utf8(self.bytes(file)).expect("a text file");
        assert!(text.contains(from), "{from} is not in {file}");
        self.write(file, text.replacen(from, to, 1));
    }

    pub(crate) fn json(&self, file: &str, edit: impl FnOnce(&mut Value)) {
        self.edit(file, |bytes| {
            let mut value = serde_json::from_slice(bytes).expect("a JSON file");
            edit(&mut value);
            *bytes = serde_json::to_vec(&value).expect("a value can be written");
        });
    }

    /// Edits the manifest.
    pub(crate) fn listing(&self, edit: impl FnOnce(&mut Value)) {
        self.json(self.manifest, edit);
    }

    /// Rewrites the header of a weight file with an honest length, and keeps the data.
    pub(crate) fn header(&self, file: &str, edit: impl FnOnce(&mut Vec<u8>)) {
        self.edit(file, |bytes| {
            let length = u64::from_le_bytes(*bytes.first_chunk().expect("a length")) as usize;
            let mut header = bytes[8..8 + length].to_vec();
            edit(&mut header);
            let length_bytes = (header.len() as u64).to_le_bytes();
            bytes.splice(..8 + length, length_bytes.into_iter().chain(header));
        });
    }

    pub(crate) fn header_json(&self, file: &str, edit: impl FnOnce(&mut Value)) {
        self.header(file, |header| {
            let mut value = serde_json::from_slice(header).expect("a JSON header");
            edit(&mut value);
            *header = serde_json::to_vec(&value).expect("a value can be written");
        });
    }

    /// Adds a tensor of one F32 to the end of a weight file.
    pub(crate) fn add_tensor(&self, file: &str, name: &str) {
        self.header_json(file, |header| {
            let end = data_end(header);
            header[name] = json!({ "dtype": "F32", "shape": [], "data_offsets": [end, end + 4] });
        });
        self.edit(file, |bytes| bytes.extend([0; 4]));
    }

    /// Sets the length that a header is said to have.
    pub(crate) fn header_length(&self, file: &str, length: u64) {
        self.edit(file, |bytes| bytes[..8].copy_from_slice(&length.to_le_bytes()));
    }

    /// Cuts or grows a file without writing anything: what is new is a hole.
    pub(crate) fn resize(&self, file: &str, resized: impl FnOnce(u64) -> u64) {
        let file = OpenOptions::new().write(true).open(self.path(file)).expect("a file to resize");
        let size = file.metadata().expect("an open file has a size").len();
        file.set_len(resized(size)).expect("a file can be resized");
    }

    pub(crate) fn remove(&self, file: &str) {
        fs::remove_file(self.path(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    }

    /// Makes the forgery as good as it gets.
    pub(crate) fn forge(&mut self, forged: Forged) {
        if forged == Forged::Digests {
            self.listing(|manifest| {
                for (list, key) in [("files_sha256", None), ("files", Some("sha256"))] {
                    let Some(files) = manifest.get_mut(list).and_then(Value::as_object_mut) else { continue };
                    for (name, entry) in files {
                        let Ok(bytes) = fs::read(self.path(name)) else { continue };
                        let digest = json!(fixtures::sha256(&bytes));
                        match key {
                            Some(key) => (entry[key], entry["size_bytes"]) = (digest, json!(bytes.len())),
                            None => *entry = digest,
                        }
                    }
                }
            });
        }
        if forged != Forged::Files {
            self.anchor();
        }
    }

    /// Anchors the manifest as it is.
    fn anchor(&mut self) {
        let digest = fixtures::sha256(&self.bytes(self.manifest));
        self.anchor = format!("sha256:{digest}").parse().expect("a digest makes an anchor");
    }

    pub(crate) fn anchor_text(&self) -> String {
        self.anchor.to_string()
    }

    pub(crate) fn open(&self) -> Result<MemberFiles, MemberError> {
        MemberFiles::open(&self.root(), Trust::Anchored(self.anchor))
    }

    /// What opening, and reading if that succeeds, comes to. Everything that was opened is dropped again.
    pub(crate) fn open_and_read(&self) -> Result<(), MemberError> {
        let files = self.open()?;
        files.read_tensors::<MemberError>(&(), &mut |_, _| Ok(())).map(drop)
    }

    /// Descriptors of this process that lead into the copy.
    pub(crate) fn descriptors(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir("/proc/self/fd").expect("this system shows its open files");
        let targets = entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        targets.filter(|target| target.starts_with(self.folder.path())).collect()
    }

    /// Everything in and beside the member, by path: kind and mode, size, time, and the content of small files.
    pub(crate) fn snapshot(&self) -> BTreeMap<PathBuf, String> {
        let mut entries = BTreeMap::new();
        record(self.folder.path(), &mut entries);
        entries
    }
}

/// Where the data of a header's last tensor ends.
fn data_end(header: &Value) -> u64 {
    let tensors = header.as_object().expect("a header is an object").values();
    tensors.filter_map(|tensor| tensor["data_offsets"][1].as_u64()).max().unwrap_or(0)
}

fn copy_tree(source: &Path, target: &Path) {
    fs::create_dir(target).expect("a temporary folder is writable");
    for entry in fs::read_dir(source).unwrap_or_else(|error| panic!("{}: {error}", source.display())) {
        let entry = entry.expect("the entries of a sound member can be read");
        let (from, to) = (entry.path(), target.join(entry.file_name()));
        if from.is_dir() {
            copy_tree(&from, &to);
        } else {
            fs::copy(&from, &to).expect("a sound member can be copied");
        }
    }
}

fn record(path: &Path, entries: &mut BTreeMap<PathBuf, String>) {
    let metadata = fs::symlink_metadata(path).expect("a path of the snapshot is there");
    let is_small_file = metadata.is_file() && metadata.len() <= SMALL_BYTES;
    let content = if is_small_file { fs::read(path).map(|bytes| fixtures::sha256(&bytes)).ok() } else { None };
    let (mode, size) = (metadata.mode(), metadata.len());
    let time = (metadata.mtime(), metadata.mtime_nsec());
    entries.insert(path.to_owned(), format!("{mode:o} {size} {time:?} {content:?}"));
    if metadata.is_dir() {
        for entry in fs::read_dir(path).expect("a folder of the snapshot can be listed") {
            record(&entry.expect("an entry can be read").path(), entries);
        }
    }
}
