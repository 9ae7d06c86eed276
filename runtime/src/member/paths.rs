//! Names become open files here, and only files of the package.
//!
//! Invariant: a file that was opened is a regular file, and when its path was resolved it lay inside the package's folder,
//! with no symlink on the way. The one exception is a snapshot of the Hugging Face hub's cache, whose files are links into
//! the `blobs` beside it. Whoever may write to the package can still swap a folder on the way between resolving and
//! opening; such a file is refused by its digest like any other that is not the listed one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirEntry, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::MemberError;
use super::package::TOKENIZER;

/// Of files that are read whole, tokenizers are by far the largest; they have about 20 MB.
const MAX_TOKENIZER_BYTES: u64 = 64 << 20;
/// The others have some ten kilobytes. Parsed, such a file may take forty times its size in memory.
const MAX_SMALL_FILE_BYTES: u64 = 4 << 20;

/// More entries than this are no member's folder.
const MAX_ENTRIES: usize = 1 << 16;

/// What is in a folder, at any depth; names are relative, their parts divided by `/`.
#[derive(Default)]
pub(super) struct Tree {
    /// Every file with its size.
    pub(super) files: BTreeMap<String, u64>,
    pub(super) folders: BTreeSet<String>,
}

/// The folder of a package or a bundle.
pub(super) struct Root {
    /// Absolute, without symlinks.
    folder: PathBuf,
    /// Where links may lead, if the folder is a hub snapshot.
    blobs: Option<PathBuf>,
}

impl Root {
    /// The package at `path`, which may itself be a link: whoever names it chose it.
    pub(super) fn new(path: &Path) -> Result<Self, MemberError> {
        let folder = path.canonicalize().map_err(|source| MemberError::io(&path.display().to_string(), source))?;
        let blobs = hub_blobs(&folder);
        Ok(Self { folder, blobs })
    }

    /// The bundle at `path`: nothing in it may be a link, wherever it lies.
    pub(super) fn without_links(path: &Path) -> Result<Self, MemberError> {
        Ok(Self { blobs: None, ..Self::new(path)? })
    }

    /// Opens a file of the package for reading. `name` must have passed [`check_confined`].
    ///
    /// # Errors
    /// [`MemberError::Io`], or [`MemberError::NotRegular`] for a symlink, a folder, a device or a pipe.
    pub(super) fn open(&self, name: &str) -> Result<File, MemberError> {
        let io = |source| MemberError::io(name, source);
        let not_regular = |found| MemberError::NotRegular { file: name.to_owned(), found };
        let path = self.folder.join(name);
        let resolved = path.canonicalize().map_err(io)?;
        let is_blob = self.blobs.as_ref().is_some_and(|blobs| resolved.starts_with(blobs));
        if resolved != path && !is_blob {
            return Err(not_regular("a symlink"));
        }
        // A device is not even opened: that alone can have effects.
        if !fs::symlink_metadata(&resolved).map_err(io)?.is_file() {
            return Err(not_regular("a folder, pipe or device"));
        }
        // Should the file have been swapped since: a link in its place is not followed. And a pipe does not block.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(&resolved).map_err(io)?;
        if file.metadata().map_err(io)?.is_file() { Ok(file) } else { Err(not_regular("a folder, pipe or device")) }
    }

    /// Everything in the folder.
    ///
    /// # Errors
    /// [`MemberError::NotRegular`] for what [`Root::open`] would not open, [`MemberError::Io`] for what cannot be read,
    /// [`MemberError::Entries`] for a folder without end.
    pub(super) fn walk(&self) -> Result<Tree, MemberError> {
        let mut tree = Tree::default();
        let mut pending = vec![String::new()];
        while let Some(folder) = pending.pop() {
            let shown = if folder.is_empty() { "." } else { &folder };
            let io = |source| MemberError::io(shown, source);
            for entry in fs::read_dir(self.folder.join(&folder)).map_err(io)? {
                let entry = entry.map_err(io)?;
                let name = entry.file_name().to_string_lossy().into_owned();
                let name = if folder.is_empty() { name } else { format!("{folder}/{name}") };
                if tree.files.len() + tree.folders.len() == MAX_ENTRIES {
                    return Err(MemberError::Entries { limit: MAX_ENTRIES });
                }
                if entry.file_type().map_err(io)?.is_dir() {
                    pending.push(name.clone());
                    tree.folders.insert(name);
                } else {
                    let size_bytes = self.size_bytes(&name, &entry)?;
                    tree.files.insert(name, size_bytes);
                }
            }
        }
        Ok(tree)
    }

    /// The size of a file that was found in the folder.
    fn size_bytes(&self, name: &str, entry: &DirEntry) -> Result<u64, MemberError> {
        let io = |source| MemberError::io(name, source);
        let not_regular = |found| MemberError::NotRegular { file: name.to_owned(), found };
        let path = entry.path();
        if entry.file_type().map_err(io)?.is_symlink() {
            let resolved = path.canonicalize().map_err(io)?;
            if !self.blobs.as_ref().is_some_and(|blobs| resolved.starts_with(blobs)) {
                return Err(not_regular("a symlink"));
            }
        }
        let metadata = fs::metadata(path).map_err(io)?;
        if metadata.is_file() { Ok(metadata.len()) } else { Err(not_regular("a folder, pipe or device")) }
    }

    /// Whether there is something called `name`, whatever it is.
    pub(super) fn has(&self, name: &str) -> bool {
        self.folder.join(name).symlink_metadata().is_ok()
    }

    /// Whether `path`, absolute, lies in the folder.
    pub(super) fn contains(&self, path: &Path) -> bool {
        path.starts_with(&self.folder)
    }

    /// Reads a small file whole, once.
    pub(super) fn read(&self, name: &str) -> Result<Vec<u8>, MemberError> {
        let file = self.open(name)?;
        let limit_bytes = if name == TOKENIZER { MAX_TOKENIZER_BYTES } else { MAX_SMALL_FILE_BYTES };
        let too_large = |found_bytes| MemberError::TooLarge { file: name.to_owned(), limit_bytes, found_bytes };
        let size_bytes = file.metadata().map_err(|source| MemberError::io(name, source))?.len();
        if size_bytes > limit_bytes {
            return Err(too_large(size_bytes));
        }
        let mut bytes = Vec::with_capacity(size_bytes as usize);
        file.take(limit_bytes + 1).read_to_end(&mut bytes).map_err(|source| MemberError::io(name, source))?;
        // It may have grown since its size was asked for.
        if bytes.len() as u64 > limit_bytes { Err(too_large(bytes.len() as u64)) } else { Ok(bytes) }
    }
}

/// `…/models--ORG--NAME/blobs` of a snapshot `…/models--ORG--NAME/snapshots/REVISION`.
fn hub_blobs(folder: &Path) -> Option<PathBuf> {
    let snapshots = folder.parent().filter(|parent| parent.ends_with("snapshots"))?;
    let repository = snapshots.parent()?;
    let is_hub = repository.file_name()?.to_str()?.starts_with("models--");
    is_hub.then(|| repository.join("blobs"))
}

/// Checks a name that stands in `file`: relative, without anything that could lead out of the package, and of characters
/// that every tool shows.
pub(super) fn check_confined(file: &str, name: &str) -> Result<(), MemberError> {
    let is_plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    if name.split('/').all(is_plain) && !name.contains(|char: char| char == '\\' || char.is_control()) {
        Ok(())
    } else {
        Err(MemberError::Path { file: file.to_owned(), name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;

    #[test]
    fn names_that_could_lead_out_are_refused() {
        for name in ["a", "a/b.json", "..a", "a..b/c"] {
            check_confined("list.json", name).unwrap();
        }
        for name in ["", "/a", "..", "../a", "a/../b", "a//b", "a/", "./a", "a\\b", "a\0", "a\nb", "\x1b[2J", "a\u{85}"]
        {
            let error = check_confined("list.json", name).expect_err(name);
            assert!(error.to_string().starts_with("list.json: expected relative paths"), "{error}");
            assert!(!error.to_string().contains(char::is_control), "{error}");
        }
    }

    #[test]
    fn what_is_not_a_regular_file_of_the_package_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let outside = folder.path().join("outside");
        let package = folder.path().join("package");
        fs::create_dir_all(package.join("nested")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("file"), "x").unwrap();
        symlink(outside.join("file"), package.join("link")).unwrap();
        symlink(&outside, package.join("folder-link")).unwrap();
        fs::write(package.join("nested/file"), "x").unwrap();
        assert!(Command::new("mkfifo").arg(package.join("pipe")).status().unwrap().success());

        let root = Root::new(&package).unwrap();
        assert_eq!(root.read("nested/file").unwrap(), b"x");
        // A pipe that nobody writes to would keep an open that waits from ever returning.
        let other = "a folder, pipe or device";
        for (name, found) in
            [("link", "a symlink"), ("folder-link/file", "a symlink"), ("nested", other), ("pipe", other)]
        {
            let error = root.open(name).expect_err(name).to_string();
            let expected = format!("{name}: expected a regular file inside the package, found {found}; ");
            assert!(error.starts_with(&expected), "{error}");
        }
        assert!(matches!(root.open("missing"), Err(MemberError::Io { .. })));
    }

    #[test]
    fn links_of_a_hub_snapshot_resolve_inside_its_own_blobs() {
        let cache = tempfile::tempdir().unwrap();
        let repository = cache.path().join("models--org--name");
        let snapshot = repository.join("snapshots/0123");
        fs::create_dir_all(&snapshot).unwrap();
        fs::create_dir(repository.join("blobs")).unwrap();
        fs::write(repository.join("blobs/abc"), "x").unwrap();
        fs::write(repository.join("refs"), "x").unwrap();
        symlink("../../blobs/abc", snapshot.join("good")).unwrap();
        symlink("../../refs", snapshot.join("bad")).unwrap();

        let root = Root::new(&snapshot).unwrap();
        assert_eq!(root.read("good").unwrap(), b"x");
        assert!(matches!(root.open("bad"), Err(MemberError::NotRegular { .. })));
    }
}
