//! Where a package is written before it is whole: in a folder beside its place, which gets its name at the end.
//!
//! Invariant: a staging folder that holds files is locked for as long as its run lives. So what a killed run has left
//! can be told from what another run is writing, and the next run for the same place removes it.

use std::fs::{self, DirEntry, File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::TempDir;

use crate::member::Digest;

/// A new folder beside the place of a package; removed when it is dropped.
pub(super) struct Staging {
    folder: TempDir,
    /// Open as long as the folder is written to, which keeps it locked.
    lock: File,
}

impl Staging {
    /// Makes a staging folder for `out`, and `out`'s parents; removes those of killed runs for `out`.
    pub(super) fn beside(out: &Path) -> io::Result<Self> {
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
        Ok(Self { folder, lock })
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Gives the folder its place: over an empty folder, but not over what has come into it since.
    pub(super) fn move_to(self, out: &Path) -> io::Result<()> {
        let Self { folder, lock } = self;
        fs::rename(folder.path(), out)?;
        // What it would remove has its final name now.
        let _ = folder.keep();
        drop(lock);
        Ok(())
    }
}

/// How the names of staging folders for `out` begin, whatever characters and length its own name has.
fn prefix(out: &Path) -> String {
    let name = out.file_name().unwrap_or_default();
    format!(".synod-synth-{}-", &Digest::of(name.as_bytes()).to_string()[..16])
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
    if holds_package_files(&path)? {
        fs::remove_dir_all(&path)?;
    }
    Ok(())
}

/// Whether there are files and all are of a package. An empty folder may be one that its run has yet to lock.
fn holds_package_files(folder: &Path) -> io::Result<bool> {
    let mut is_empty = true;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        let is_known = path.extension().is_some_and(|extension| extension == "json" || extension == "safetensors");
        if !is_known || !entry.file_type()?.is_file() {
            return Ok(false);
        }
        is_empty = false;
    }
    Ok(!is_empty)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    /// What a killed run leaves: a folder with `file`, and no lock.
    fn killed(out: &Path, file: &str) -> PathBuf {
        let Staging { folder, lock } = Staging::beside(out).unwrap();
        fs::write(folder.path().join(file), "x").unwrap();
        drop(lock);
        folder.keep()
    }

    #[test]
    fn a_package_is_as_open_as_any_folder() {
        let folder = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
        let (out, any) = (folder.path().join("out"), folder.path().join("any"));
        Staging::beside(&out).unwrap().move_to(&out).unwrap();
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

        let staging = Staging::beside(&out).unwrap();
        assert!(!leftover.exists());
        for kept in [&other, &foreign, live.path(), unlocked_yet.path(), &file, &link, &other.join("config.json")] {
            assert!(kept.exists(), "{}", kept.display());
        }

        staging.move_to(&out).unwrap();
        assert!(out.is_dir());
        let path = live.path().to_owned();
        drop(live);
        assert!(!path.exists(), "a run that fails leaves nothing");
    }
}
