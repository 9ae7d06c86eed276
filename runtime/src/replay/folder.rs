//! Which files of a folder are cases.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Tables of digests stand beside the cases of synthetic members.
const DIGESTS: &str = ".sha256.json";

/// The files of recorded cases in a folder, by name: every `*.json` but `*.sha256.json`. Folders inside it are other
/// members' and are not walked.
///
/// # Errors
/// The folder or an entry cannot be read.
pub fn case_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.ends_with(".json") && !name.ends_with(DIGESTS) && !path.is_dir() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
