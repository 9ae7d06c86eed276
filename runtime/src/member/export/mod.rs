//! A package becomes a bundle (spec: bundle.md, "Export").
//!
//! Every weight file of the package is read once, verified on the way, and written tensor by tensor into each profile that
//! is wanted (`weights`); then come the heads, the small files and the manifest (`write`). Everything happens in a staging
//! folder that is renamed at the end.
//! Invariant: there is a whole bundle or none, and nothing is written into the package. Memory holds the heads and a few
//! megabytes, whatever the member's size.

mod weights;
mod write;

use std::path::{Path, PathBuf};
use std::thread;

use super::bundle::NESTED_FOLDER;
use super::files::{Kind, kind};
pub use super::manifest::BundleProfile;
use super::manifest::Content;
use super::package::Package;
use super::paths::Root;
use super::staging::{Staging, resolved};
use super::{Anchor, MemberError, PlaceError, Progress, TensorCounts, Trust};
use weights::Weights;
use write::{Finished, Target};

/// What to export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportSpec {
    /// Faithful or rounded weights.
    pub profile: ExportProfile,
    /// The whole member or half of it.
    pub part: ExportPart,
}

/// Which bundles are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportProfile {
    /// The dtypes of the package.
    Faithful,
    /// The backbone in BF16 throughout.
    Bf16,
    /// The faithful bundle, and the other one in its folder `bf16`.
    Both,
}

/// Which half of the member is written. The small files are part of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportPart {
    Whole,
    /// The backbone without heads.
    ExecutorOnly,
    HeadsOnly,
}

impl ExportPart {
    fn contents(self) -> &'static [Content] {
        match self {
            ExportPart::Whole => &[Content::Model, Content::Heads],
            ExportPart::ExecutorOnly => &[Content::Model],
            ExportPart::HeadsOnly => &[Content::Heads],
        }
    }
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportReport {
    pub model_name: String,
    /// One per profile.
    pub bundles: Vec<BundleReport>,
}

/// A bundle that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleReport {
    pub path: PathBuf,
    pub profile: BundleProfile,
    /// What it must be opened with.
    pub anchor: Anchor,
    pub tensors: TensorCounts,
    /// Of all its files.
    pub size_bytes: u64,
}

/// Why nothing was exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The package is not what it should be, or a file could not be written.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// The bundle could not be written where it was wanted.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// There is nothing more to export.
    #[error("{}: expected a package, found a bundle; export from the package that it was made of", path.display())]
    IsBundle { path: PathBuf },
    /// The bundle would become a part of the package.
    #[error("{}: expected a folder outside the package, found one inside; choose another place", path.display())]
    Inside { path: PathBuf },
}

/// Exports the package in the folder `package` into the folder `out`, which must be absent or empty.
///
/// # Errors
/// [`ExportError`]; `out` is as it was then. A place that cannot take a bundle is refused before the weights are read.
pub fn export(
    package: &Path,
    trust: Trust,
    spec: ExportSpec,
    out: &Path,
    progress: &dyn Progress,
) -> Result<ExportReport, ExportError> {
    let root = Root::new(package)?;
    if kind(&root)? == Kind::Bundle {
        return Err(ExportError::IsBundle { path: package.to_owned() });
    }
    if root.contains(&resolved(out)?) {
        return Err(ExportError::Inside { path: out.to_owned() });
    }
    let package = Package::open(package, trust)?;
    let staging = Staging::beside(out)?;
    let bundles = write_bundles(&package, spec, &staging, progress)?;
    staging.finish()?;
    let report = |(folder, report): (&str, BundleReport)| BundleReport {
        path: out.join(folder).components().collect(),
        ..report
    };
    Ok(ExportReport {
        model_name: package.files.model_name().to_owned(),
        bundles: bundles.into_iter().map(report).collect(),
    })
}

/// The bundles by their folders in `staging`.
fn write_bundles(
    package: &Package,
    spec: ExportSpec,
    staging: &Staging,
    progress: &dyn Progress,
) -> Result<Vec<(&'static str, BundleReport)>, ExportError> {
    let targets = match spec.profile {
        ExportProfile::Faithful => vec![("", BundleProfile::Faithful)],
        ExportProfile::Bf16 => vec![("", BundleProfile::Bf16)],
        ExportProfile::Both => vec![("", BundleProfile::Faithful), (NESTED_FOLDER, BundleProfile::Bf16)],
    };
    let contents = spec.part.contents();
    let mut targets: Vec<_> = targets
        .into_iter()
        .map(|(folder, profile)| Target::new(staging.path(), folder, profile, contents))
        .collect::<Result<_, _>>()?;
    let weights = Weights::export(thread::Builder::new, package, contents, &targets, progress)?;
    for (target, files) in targets.iter_mut().zip(weights.files) {
        target.add_weights(files);
        target.write_small_files(package, &weights.heads)?;
    }
    // Inside out: the outer manifest lists the inner bundle.
    let mut reports = Vec::new();
    let mut nested = Vec::new();
    for target in targets.into_iter().rev() {
        let Finished { folder, report, files } = target.finish(package, nested)?;
        nested = files;
        reports.push((folder, report));
    }
    reports.reverse();
    Ok(reports)
}
