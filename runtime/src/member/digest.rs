//! SHA-256 digests as files and deployments write them.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest as _, Sha256};

/// A SHA-256 digest; written as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self::finish(Sha256::new_with_prefix(bytes))
    }

    /// The digest of everything that `hasher` was given.
    pub(super) fn finish(hasher: Sha256) -> Self {
        Self(hasher.finalize().into())
    }
}

impl From<[u8; 32]> for Digest {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl TryFrom<String> for Digest {
    type Error = DigestError;

    fn try_from(text: String) -> Result<Self, DigestError> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

/// A text that is not a digest or an anchor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}")]
pub struct DigestError {
    expected: &'static str,
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| DigestError { expected: "64 hexadecimal digits" })?;
        Ok(Self(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// What makes a member that is not a released one trusted: the digest of its `MODEL_MANIFEST.json`, or of a bundle's `manifest.json`, given from
/// outside the package (spec: bundle.md, "External anchor"). Written as `sha256:HEX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Anchor(pub Digest);

impl FromStr for Anchor {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let digest = text.strip_prefix("sha256:").and_then(|hex| hex.parse().ok());
        digest.map(Self).ok_or(DigestError { expected: "\"sha256:\" and 64 hexadecimal digits" })
    }
}

impl fmt::Display for Anchor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FIPS 180-2, appendix B.1.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn digests_are_written_in_lower_case_hexadecimal() {
        assert_eq!(Digest::of(b"abc").to_string(), ABC);
        assert_eq!(ABC.parse(), Ok(Digest::of(b"abc")));
        assert_eq!(format!("sha256:{ABC}").parse(), Ok(Anchor(Digest::of(b"abc"))));
    }

    #[test]
    fn anything_else_is_no_anchor() {
        for text in ["", "sha256:", ABC, &format!("sha512:{ABC}"), &format!("sha256:{}", &ABC[1..]), "sha256:é"] {
            assert!(text.parse::<Anchor>().is_err(), "{text}");
        }
    }
}
