//! Why a package is refused.

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
    #[error("{}: expected SHA-256 {expected}, found {found}; fetch the file again from {origin}", Excerpt(file))]
    Digest { file: String, expected: Digest, found: Digest, origin: String },
    /// A file that is loaded has no digest in the manifest.
    #[error(
        "MODEL_MANIFEST.json: files_sha256: expected a digest for {}, found none; fetch the package again from its source",
        Excerpt(file)
    )]
    NotListed { file: String },
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
    #[error("config.json: {source}; this member needs another version of the runtime, or its config is damaged")]
    Config { source: ConfigError },
    /// Broad weights came without the calibration that they are read with.
    #[error(
        "calibration.json: expected a broad_head block, as broad_head.safetensors is there, found none; fetch the file again"
    )]
    BroadHead,
    /// A weight file's header contradicts itself or the file.
    #[error("{}: {}: expected {expected}, found {found}; fetch the file again", Excerpt(file), Excerpt(what))]
    Header { file: String, what: String, expected: String, found: String },
    /// A tensor is missing, unknown, misplaced, or not of the shape that the config calls for.
    #[error(
        "{}: {}: expected {}, found {}; config, index and weights must be of one release",
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

    /// `Ok` if the digests of `file` are equal; `origin` is where a sound copy can be had.
    pub(super) fn check_digest(file: &str, expected: Digest, found: Digest, origin: &str) -> Result<(), Self> {
        if expected == found {
            return Ok(());
        }
        Err(Self::Digest { file: file.to_owned(), expected, found, origin: origin.to_owned() })
    }
}
