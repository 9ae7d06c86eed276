//! The member of `--demo`: synthetic, made at start in a temporary folder, gone with the process.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::synth::{self, Shape, SynthError, SynthSpec};
use super::{Anchor, MemberError, MemberFiles, Trust};

/// A synthetic member of shape `tiny` and seed 1 in a temporary folder, which is removed when this is dropped. It
/// needs no anchor from outside: this process made it, and anchors it with what it wrote.
pub struct Demo {
    package: MemberFiles,
    anchor: Anchor,
    path: PathBuf,
    /// Removes the folder around `path` when it is dropped.
    _folder: TempDir,
}

/// Why there is no demo member.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// There is no temporary folder.
    #[error("temporary folder: {source}; set TMPDIR to a place that can be written")]
    Folder { source: std::io::Error },
    /// It could not be written.
    #[error(transparent)]
    Synth(#[from] SynthError),
    /// It could not be opened.
    #[error(transparent)]
    Member(#[from] MemberError),
}

impl Demo {
    /// Makes the member and opens it.
    ///
    /// # Errors
    /// [`DemoError`]; nothing is left behind then.
    pub fn create() -> Result<Self, DemoError> {
        let folder =
            tempfile::Builder::new().prefix("synod-demo-").tempdir().map_err(|source| DemoError::Folder { source })?;
        let spec = SynthSpec { shape: Shape::Tiny, layers: None, vocab: None, seed: 1 };
        let path = folder.path().join("member");
        let anchor = synth::write(&spec, &path, &())?.anchor;
        let package = MemberFiles::open(&path, Trust::Anchored(anchor))?;
        Ok(Self { package, anchor, path, _folder: folder })
    }

    /// The member, opened.
    pub fn package(&self) -> &MemberFiles {
        &self.package
    }

    /// What opens it again.
    pub fn anchor(&self) -> Anchor {
        self.anchor
    }

    /// Where it lies, as long as this lives.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demo_member_is_served_while_it_lives_and_then_removed() {
        let demo = Demo::create().unwrap();
        assert_eq!(demo.package().model_name(), "synth/tiny-4-2000-1");
        assert!(demo.package().has_broad_head());
        assert!(matches!(MemberFiles::open(demo.path(), Trust::Released), Err(MemberError::NotReleased { .. })));
        let again = MemberFiles::open(demo.path(), Trust::Anchored(demo.anchor())).unwrap();
        assert_eq!(again.digest(), demo.package().digest());
        let folder = demo.path().parent().unwrap().to_owned();
        drop(demo);
        assert!(!folder.exists());
    }
}
