//! Why a package or a bundle is refused.

use std::io;

use super::{Digest, Excerpt};
use crate::model::qwen3_5::config::ConfigError;

/// Why a package was not opened, or its tensors were not trusted. Each is one line that names the file, what was
/// expected, what was found and what to do. File names are relative to the package. Fields hold what stands in the
/// files; the message shows it escaped and cut.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    /// A file, or the package itself, could not be opened or read.
    #[error("{}: {source}; check that the package is complete and readable", Excerpt(file))]
    Io { file: String, source: io::Error },
    /// A file of a bundle could not be written.
    #[error("{}: {source}; check the place and the free space", Excerpt(file))]
    Write { file: String, source: io::Error },
    /// A manifest or index names a file outside the package.
    #[error(
        "{}: expected relative paths inside the package, found \"{}\"; do not use this copy, fetch it again from its source",
        Excerpt(file),
        Excerpt(name)
    )]
    Path { file: String, name: String },
    /// A name leads to something that is not a regular file of the package.
    #[error(
        "{}: expected a regular file inside the package, found {found}; copy the file itself into the package",
        Excerpt(file)
    )]
    NotRegular { file: String, found: &'static str },
    /// A file is larger than any member's is.
    #[error("{}: expected at most {limit_bytes} bytes, found {found_bytes}; fetch the file again", Excerpt(file))]
    TooLarge { file: String, limit_bytes: u64, found_bytes: u64 },
    /// A file's content is not what was pinned, anchored or listed.
    #[error("{}: expected SHA-256 {expected}, found {found}; {remedy}", Excerpt(file))]
    Digest { file: String, expected: Digest, found: Digest, remedy: String },
    /// A file that is loaded has no digest in the manifest.
    #[error(
        "{manifest}: expected a digest for {}, found none; fetch the package again from its source, or export the bundle again",
        Excerpt(file)
    )]
    NotListed { manifest: &'static str, file: String },
    /// A bundle holds something that its manifest does not list.
    #[error(
        "{}: expected only what manifest.json lists, found this too; remove it, or export the bundle again",
        Excerpt(file)
    )]
    Unlisted { file: String },
    /// A folder that is neither a package nor a bundle.
    #[error(
        "MODEL_MANIFEST.json: expected it in a package, or manifest.json in a bundle, found neither; name the folder of a package or a bundle"
    )]
    NoManifest,
    /// A file of a bundle is missing, cut or grown.
    #[error("{}: expected {expected}, found {found}; copy the bundle again, or export it again", Excerpt(file))]
    Size { file: String, expected: String, found: String },
    /// More entries than a member's folder has.
    #[error(".: expected at most {limit} files and folders, found more; name the member's own folder")]
    Entries { limit: usize },
    /// A bundle without an anchor: its manifest would vouch for itself.
    #[error(
        "manifest.json: expected an anchor for this bundle, found none; if you trust this copy, give its anchor: sha256:{digest}"
    )]
    NotAnchored { digest: Digest },
    /// A bundle that lacks half of a member, or whose weights were rounded more than was asked for.
    #[error("manifest.json: serves: expected {expected}, found {found}; {remedy}")]
    Serves { expected: String, found: String, remedy: &'static str },
    /// A value of the manifest contradicts another one or a file.
    #[error(
        "manifest.json: {}: expected {}, found {}; export the bundle again",
        Excerpt(key),
        Excerpt(expected),
        Excerpt(found)
    )]
    Manifest { key: String, expected: String, found: String },
    /// Neither released nor anchored.
    #[error(
        "config.json: model_name: expected a released member, found \"{}\"; if you trust this copy, give its anchor: sha256:{digest}",
        Excerpt(model_name)
    )]
    NotReleased { model_name: String, digest: Digest },
    /// A file is not JSON.
    #[error("{}: expected {expected}, found invalid JSON: {}; fetch the file again", Excerpt(file), Excerpt(message))]
    Json { file: String, expected: &'static str, message: String },
    /// A file is JSON, but not of the form that is read.
    #[error("{}: expected {expected}, found other content: {}; fetch the file again", Excerpt(file), Excerpt(message))]
    Content { file: String, expected: &'static str, message: String },
    /// A value of `config.json` that cannot be served.
    #[error("{file}: {source}; this member needs another version of the runtime, or its config is damaged")]
    Config { file: &'static str, source: ConfigError },
    /// Broad weights came without the calibration that they are read with.
    #[error(
        "calibration.json: expected a broad_head block, as there is a broad head, found none; fetch the file again"
    )]
    BroadHead,
    /// A weight file's header contradicts itself or the file.
    #[error("{}: {}: expected {expected}, found {found}; fetch the file again", Excerpt(file), Excerpt(what))]
    Header { file: String, what: String, expected: String, found: String },
    /// A tensor is missing, unknown, misplaced, or not of the shape that the config calls for.
    #[error(
        "{}: {}: expected {}, found {}; config, index and weights must be of one release or export",
        Excerpt(file),
        Excerpt(tensor),
        Excerpt(expected),
        Excerpt(found)
    )]
    Tensor { file: String, tensor: String, expected: String, found: String },
    /// The machine gave no thread to read weight files with.
    #[error(
        "weight files: expected a thread to read them with, found none: {source}; raise the limit on threads or free memory"
    )]
    Thread { source: io::Error },
}

impl MemberError {
    /// An I/O error on `file`.
    pub(super) fn io(file: &str, source: io::Error) -> Self {
        Self::Io { file: file.to_owned(), source }
    }

    /// An I/O error on `file`, which was being written.
    pub(super) fn write(file: &str, source: io::Error) -> Self {
        Self::Write { file: file.to_owned(), source }
    }

    /// A header's defect in `file`.
    #[expect(clippy::needless_pass_by_value, reason = "literals, numbers and formatted texts read best by value")]
    pub(super) fn header(file: &str, what: impl ToString, expected: impl ToString, found: impl ToString) -> Self {
        Self::Header {
            file: file.to_owned(),
            what: what.to_string(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    /// A defect of a bundle's manifest.
    #[expect(clippy::needless_pass_by_value, reason = "literals, numbers and formatted texts read best by value")]
    pub(super) fn manifest(key: impl ToString, expected: impl ToString, found: impl ToString) -> Self {
        Self::Manifest { key: key.to_string(), expected: expected.to_string(), found: found.to_string() }
    }

    /// A defect of one tensor of `file`.
    #[expect(clippy::needless_pass_by_value, reason = "literals, numbers and formatted texts read best by value")]
    pub(super) fn tensor(file: &str, tensor: &str, expected: impl ToString, found: impl ToString) -> Self {
        Self::Tensor {
            file: file.to_owned(),
            tensor: tensor.to_owned(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    /// `Ok` if the digests of `file` are equal; `remedy` says how a sound copy can be had.
    pub(super) fn check_digest(file: &str, expected: Digest, found: Digest, remedy: &str) -> Result<(), Self> {
        if expected == found {
            return Ok(());
        }
        Err(Self::Digest { file: file.to_owned(), expected, found, remedy: remedy.to_owned() })
    }
}
