//! Every listed file of a package or a bundle, read and hashed, and an account of it.
//!
//! Loading verifies what it uses while it uses it; this reads everything and uses nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::bundle::{self, Bundle};
use super::files::{Kind, kind};
use super::hash::{HashedReader, Pass, Progress, Stop, in_parallel};
use super::package::{self, Package};
use super::paths::Root;
use super::registry::Release;
use super::shard::Shard;
use super::{BundleProfile, Digest, MemberError, TensorCounts, Trust};

/// What was verified.
#[derive(Debug)]
pub struct Verification {
    pub model_name: String,
    pub form: Form,
    /// The release whose pins were held to, as `repository at revision`.
    pub release: Option<String>,
    /// Every listed file and the manifest, by name.
    pub files: Vec<VerifiedFile>,
    /// Files of a package that nobody vouches for. They are not used.
    pub unlisted: Vec<String>,
    pub tensors: TensorCounts,
}

/// What a folder turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Package,
    Bundle(BundleProfile),
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Form::Package => f.write_str("package"),
            Form::Bundle(profile) => write!(f, "{profile} bundle"),
        }
    }
}

/// A file whose content is what it should be.
#[derive(Debug)]
pub struct VerifiedFile {
    pub name: String,
    pub size_bytes: u64,
    /// Reading and hashing it.
    pub elapsed: Duration,
    pub digest: Digest,
    pub against: Against,
}

/// Where the digest stood that a file was compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Against {
    /// The table of released members.
    Pin,
    /// It was given from outside.
    Anchor,
    /// The manifest.
    Manifest,
}

impl fmt::Display for Against {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Against::Pin => "pin",
            Against::Anchor => "anchor",
            Against::Manifest => "manifest",
        })
    }
}

/// Verifies every listed file of the package or bundle in the folder `path`, several at a time, the largest first.
///
/// # Errors
/// As [`super::MemberFiles::open`], but half a member is welcome; then the first file, in the order of their sizes, that is
/// not what was pinned, anchored or listed.
pub fn verify(path: &Path, trust: Trust, progress: &dyn Progress) -> Result<Verification, MemberError> {
    match kind(&Root::new(path)?)? {
        Kind::Package => {
            let package = Package::open(path, trust)?;
            let files = Files {
                root: &package.root,
                manifest: package::MANIFEST,
                expected: package.digests.clone(),
                shards: &package.files.shards,
                pinned: package
                    .release
                    .map_or_else(Vec::new, |release| release.files.iter().map(|(name, _)| *name).collect()),
                remedy: &package.files.remedy,
            };
            Ok(Verification {
                model_name: package.files.model_name().to_owned(),
                form: Form::Package,
                release: package.release.map(described),
                files: files.verify(trust, progress)?,
                tensors: TensorCounts::of(&package.files.shards),
                unlisted: package.unlisted,
            })
        }
        Kind::Bundle => {
            let bundle = Bundle::open(path, trust)?;
            let listed = bundle.manifest.files.0.iter().map(|(name, entry)| (name.clone(), entry.sha256));
            let files = Files {
                root: &bundle.root,
                manifest: bundle::MANIFEST,
                expected: listed.chain([(bundle::MANIFEST.to_owned(), bundle.digest)]).collect(),
                shards: &bundle.shards,
                pinned: bundle.release.map_or_else(Vec::new, |_| bundle::PINNED.to_vec()),
                remedy: bundle::REMEDY,
            };
            Ok(Verification {
                model_name: bundle.model_name().to_owned(),
                form: Form::Bundle(bundle.manifest.profile),
                release: bundle.release.map(described),
                files: files.verify(trust, progress)?,
                tensors: TensorCounts::of(&bundle.shards),
                unlisted: Vec::new(),
            })
        }
    }
}

fn described(release: &Release) -> String {
    format!("{} at {}", release.model_name, release.revisions[0])
}

/// The files of a folder and what they must be.
struct Files<'a> {
    root: &'a Root,
    manifest: &'static str,
    expected: BTreeMap<String, Digest>,
    /// Those of them that are open, whose headers have been read.
    shards: &'a [Shard],
    /// Those of them that were held to the table of released members.
    pinned: Vec<&'static str>,
    remedy: &'a str,
}

/// A file that is about to be read.
struct Opened<'a> {
    name: &'a str,
    expected: Digest,
    size_bytes: u64,
}

impl Files<'_> {
    fn verify(&self, trust: Trust, progress: &dyn Progress) -> Result<Vec<VerifiedFile>, MemberError> {
        let mut opened = Vec::new();
        for (name, &expected) in &self.expected {
            let size_bytes = match self.shard(name) {
                // The file that is open, whatever stands under its name by now.
                Some(shard) => shard.size_bytes,
                None => self.root.open(name)?.metadata().map_err(|source| MemberError::io(name, source))?.len(),
            };
            opened.push(Opened { name, expected, size_bytes });
        }
        opened.sort_by_key(|file| std::cmp::Reverse(file.size_bytes));
        progress.start(opened.iter().map(|file| file.size_bytes).sum());
        let pass = &Pass::new(progress);
        let opened = &opened;
        let reader = || move |index: usize| self.read(&opened[index], trust, pass);
        let results = in_parallel::<_, _, MemberError>(thread::Builder::new, opened.len(), pass, reader, || Ok(()))?;
        let mut files = results.into_iter().collect::<Result<Vec<_>, _>>()?;
        files.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(files)
    }

    /// Reads and hashes a file from where it was left open, if it was.
    fn read(&self, file: &Opened<'_>, trust: Trust, pass: &Pass<'_>) -> Result<VerifiedFile, Stop> {
        let Opened { name, expected, size_bytes } = *file;
        let started = Instant::now();
        let opened;
        let mut reader = if let Some(shard) = self.shard(name) {
            shard.data(pass)
        } else {
            opened = self.root.open(name)?;
            HashedReader::new(name, &opened, pass)
        };
        reader.skip_to(size_bytes)?;
        let digest = reader.digest();
        MemberError::check_digest(name, expected, digest, self.remedy)?;
        let against = self.against(name, trust);
        Ok(VerifiedFile { name: name.to_owned(), size_bytes, elapsed: started.elapsed(), digest, against })
    }

    fn shard(&self, name: &str) -> Option<&Shard> {
        self.shards.iter().find(|shard| shard.name == name)
    }

    fn against(&self, name: &str, trust: Trust) -> Against {
        if self.pinned.contains(&name) {
            Against::Pin
        } else if name == self.manifest && matches!(trust, Trust::Anchored(_)) {
            Against::Anchor
        } else {
            Against::Manifest
        }
    }
}
