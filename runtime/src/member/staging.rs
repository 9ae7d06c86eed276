//! Where a package or a bundle is written before it is whole: in a folder beside its place, which gets its name at the end.
//!
//! Invariant: a staging folder that holds files is locked for as long as its run lives. So what a killed run has left
//! can be told from what another run is writing, and the next run for the same place removes it.

use std::fs::{self, DirEntry, File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use super::Digest;

/// The folders that bundles have inside.
const NESTED_FOLDERS: [&str; 2] = ["model", "bf16"];
/// An empty staging folder that is older than this has no run that is about to lock it.
const ABANDONED: Duration = Duration::from_mins(1);

/// Why a folder could not be written where it was wanted. Nothing of it is left behind; folders on the way to it may be.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// Something is there already.
    #[error("{}: expected an absent or empty folder, found files; choose another place or remove them", path.display())]
    NotEmpty { path: PathBuf },
    /// A way back through folders that may not exist: where it leads is known only once they do.
    #[error("{}: expected a path without .., found one; write where it leads", path.display())]
    Winding { path: PathBuf },
    /// What is there cannot become a folder.
    #[error("{}: expected an absent or empty folder, found something else; choose another place", path.display())]
    NotAFolder { path: PathBuf },
    /// The files could not be written.
    #[error("{}: {source}; check the place and the free space", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// A new folder beside the place of a package or bundle; removed when it is dropped.
pub(super) struct Staging {
    out: PathBuf,
    folder: TempDir,
    /// Open as long as the folder is written to, which keeps it locked.
    lock: File,
}

impl Staging {
    /// Makes a staging folder for `out`, which must be absent or an empty folder, and `out`'s parents; removes those of
    /// killed runs for `out`.
    pub(super) fn beside(out: &Path) -> Result<Self, PlaceError> {
        let out = resolved(out)?;
        check_free(&out)?;
        Self::make(&out).map_err(|source| PlaceError::Io { path: out.clone(), source })
    }

    fn make(out: &Path) -> io::Result<Self> {
        let parent = out.parent().unwrap_or(out);
        fs::create_dir_all(parent)?;
        let prefix = prefix(out);
        sweep(parent, &prefix);
        // It becomes the package: as open as any folder that its owner makes, which the umask decides.
        let as_any_folder = Permissions::from_mode(0o777);
        let folder = tempfile::Builder::new().prefix(&prefix).permissions(as_any_folder).tempdir_in(parent)?;
        let lock = File::open(folder.path())?;
        // Some network file systems lock no folders. There a sweep gets no lock either, and removes nothing.
        let _ = lock.lock();
        Ok(Self { out: out.to_owned(), folder, lock })
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// What went wrong with a file in it.
    pub(super) fn failed(&self, source: io::Error) -> PlaceError {
        PlaceError::Io { path: self.out.clone(), source }
    }

    /// Gives the folder its place: over an empty folder, but not over what has come into it since.
    pub(super) fn finish(self) -> Result<(), PlaceError> {
        let Self { out, folder, lock } = self;
        let renamed = lock.sync_all().and_then(|()| fs::rename(folder.path(), &out));
        renamed.map_err(|source| PlaceError::Io { path: out, source })?;
        // What it would remove has its final name now.
        let _ = folder.keep();
        drop(lock);
        Ok(())
    }
}

/// `out` with every link on the way to it followed, as far as it exists; itself, should it be a link, is not.
pub(super) fn resolved(out: &Path) -> Result<PathBuf, PlaceError> {
    let failed = |source| PlaceError::Io { path: out.to_owned(), source };
    if out.components().any(|part| part == Component::ParentDir) {
        return Err(PlaceError::Winding { path: out.to_owned() });
    }
    let path = std::path::absolute(out).map_err(failed)?;
    for ancestor in path.ancestors().skip(1) {
        if let (Ok(real), Ok(rest)) = (ancestor.canonicalize(), path.strip_prefix(ancestor)) {
            return Ok(real.join(rest));
        }
    }
    Ok(path)
}

/// Checks that `out` is absent or an empty folder: gigabytes later it would be too late to say that it is not.
fn check_free(out: &Path) -> Result<(), PlaceError> {
    let path = out.to_owned();
    // Of a link itself: nothing is renamed through it.
    match fs::symlink_metadata(out) {
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(PlaceError::Io { path, source }),
        Ok(metadata) if !metadata.is_dir() => return Err(PlaceError::NotAFolder { path }),
        Ok(_) => {}
    }
    match fs::read_dir(out).map(|mut entries| entries.next().is_none()) {
        Err(source) => Err(PlaceError::Io { path, source }),
        Ok(false) => Err(PlaceError::NotEmpty { path }),
        Ok(true) => Ok(()),
    }
}

/// How the names of staging folders for `out` begin, whatever characters and length its own name has.
fn prefix(out: &Path) -> String {
    let name = out.file_name().unwrap_or_default();
    format!(".synod-staging-{}-", &Digest::of(name.as_bytes()).to_string()[..16])
}

/// Removes what killed runs have left in `parent`. What cannot be removed stays: it is in nobody's way.
fn sweep(parent: &Path, prefix: &str) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if entry.file_name().as_bytes().starts_with(prefix.as_bytes()) {
            let _ = remove_leftover(&entry);
        }
    }
}

fn remove_leftover(entry: &DirEntry) -> io::Result<()> {
    let path = entry.path();
    // Not through a link, and nothing that such a run does not write.
    if !entry.file_type()?.is_dir() {
        return Ok(());
    }
    let lock = File::open(&path)?;
    lock.try_lock()?;
    if is_leftover(&path)? {
        fs::remove_dir_all(&path)?;
    }
    Ok(())
}

/// Whether a staging folder that nobody has locked is what a killed run left. An empty one may belong to a run that has yet
/// to lock it, unless it is old.
fn is_leftover(folder: &Path) -> io::Result<bool> {
    if fs::read_dir(folder)?.next().is_none() {
        let age = fs::metadata(folder)?.modified()?.elapsed();
        return Ok(age.is_ok_and(|age| age > ABANDONED));
    }
    holds_only_ours(folder)
}

/// Whether everything in `folder` could be of a package or a bundle.
fn holds_only_ours(folder: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        let is_ours = if kind.is_dir() {
            NESTED_FOLDERS.iter().any(|name| entry.file_name() == *name) && holds_only_ours(&path)?
        } else {
            let is_known = path.extension().is_some_and(|extension| extension == "json" || extension == "safetensors");
            kind.is_file() && is_known
        };
        if !is_ours {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::time::SystemTime;

    use super::*;

    /// What a killed run leaves: a folder with `file`, and no lock.
    fn killed(out: &Path, file: &str) -> PathBuf {
        let Staging { folder, lock, .. } = Staging::beside(out).unwrap();
        fs::write(folder.path().join(file), "x").unwrap();
        drop(lock);
        folder.keep()
    }

    #[test]
    fn a_package_is_as_open_as_any_folder() {
        let folder = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
        let (out, any) = (folder.path().join("out"), folder.path().join("any"));
        Staging::beside(&out).unwrap().finish().unwrap();
        fs::create_dir(&any).unwrap();
        assert_eq!(mode(&out), mode(&any));
    }

    #[test]
    fn only_what_a_killed_run_for_the_same_place_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("nested/out");
        let other = killed(&folder.path().join("nested/other"), "config.json");
        let foreign = killed(&out, "notes.txt");
        let live = Staging::beside(&out).unwrap();
        fs::write(live.path().join("config.json"), "x").unwrap();
        let unlocked_yet = tempfile::Builder::new().prefix(&prefix(&out)).tempdir_in(out.parent().unwrap()).unwrap();
        let file = out.with_file_name(format!("{}file", prefix(&out)));
        fs::write(&file, "x").unwrap();
        let link = out.with_file_name(format!("{}link", prefix(&out)));
        symlink(&other, &link).unwrap();
        let leftover = killed(&out, "model-00001-of-00001.safetensors");
        let nested = killed(&out, "manifest.json");
        fs::create_dir(nested.join("model")).unwrap();
        let old = tempfile::Builder::new().prefix(&prefix(&out)).tempdir_in(out.parent().unwrap()).unwrap();
        File::open(old.path()).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();

        let staging = Staging::beside(&out).unwrap();
        for removed in [&leftover, &nested, old.path()] {
            assert!(!removed.exists(), "{}", removed.display());
        }
        for kept in [&other, &foreign, live.path(), unlocked_yet.path(), &file, &link, &other.join("config.json")] {
            assert!(kept.exists(), "{}", kept.display());
        }

        staging.finish().unwrap();
        assert!(out.is_dir());
        let path = live.path().to_owned();
        drop(live);
        assert!(!path.exists(), "a run that fails leaves nothing");
    }
}
