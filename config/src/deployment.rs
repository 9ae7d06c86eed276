//! The resolved deployment: what the rest of the program takes as given.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::Placement;

/// A whole deployment. Names and aliases are unique over all members, every reference to one is resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Deployment {
    pub server: Server,
    /// Without a key every caller is let in, which needs a loopback address or `open`.
    pub keys: Vec<Key>,
    pub queue: Queue,
    /// At least one.
    pub members: Vec<Member>,
}

impl Deployment {
    /// The member that a served name or alias means.
    pub fn member(&self, name: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.name == name || member.aliases.iter().any(|alias| alias == name))
    }
}

/// `[server]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    pub bind: SocketAddr,
    /// Where `/health/*` and `/metrics` move, if anywhere.
    pub admin: Option<SocketAddr>,
    /// HTTP threads; the runtime decides where none are given.
    pub workers: Option<NonZeroUsize>,
    /// Whether callers without a key are welcome on an address that others can reach.
    pub open: bool,
    /// Name of the member that answers a request without `model`.
    pub default_model: Option<String>,
    /// How long running requests may take to end after a stop was asked for.
    pub drain: Duration,
    /// The server's own limit on a request, from its arrival to its answer.
    pub request_timeout: Duration,
    pub limits: Limits,
}

/// What a request may hold (system-one.md, Limits).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Before and after decompression.
    pub max_body_bytes: usize,
    pub max_json_depth: usize,
    pub max_questions: usize,
    /// Of one call that has several.
    pub max_states: usize,
    /// Code points.
    pub max_question_id_chars: usize,
    /// Options, labels or names of one question.
    pub max_options: usize,
    pub max_score_levels: usize,
}

impl Server {
    /// Whether callers without a key come in from other machines and nobody has said that they may.
    pub fn admits_strangers(&self, without_keys: bool) -> bool {
        without_keys && !self.open && !self.bind.ip().is_loopback()
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_body_bytes: 8 << 20,
            max_json_depth: 128,
            max_questions: 256,
            max_states: 64,
            max_question_id_chars: 256,
            max_options: 255,
            max_score_levels: 10,
        }
    }
}

/// `[[key]]`: one caller.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// Of the key's bytes as they stand in the `Authorization` header.
    pub sha256: [u8; 32],
    /// What metrics and logs call it.
    pub name: String,
    /// Names (never aliases) of the members that it may ask, in the file's order; at least one.
    pub models: Vec<String>,
    /// Share of a busy queue, relative to the other keys; at least 1.
    pub weight: u32,
    /// Requests per second, above 0; no limit if absent.
    pub rate: Option<f64>,
}

/// `[queue]`: what waits, and how it is batched. Every count is at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    pub max_requests: usize,
    pub max_tokens: usize,
    /// Tokens of one batch; at most `max_tokens`.
    pub batch_tokens: usize,
    /// How long a batch waits for company while its device is busy.
    pub batch_window: Duration,
}

impl Default for Queue {
    fn default() -> Self {
        Self { max_requests: 1024, max_tokens: 2_000_000, batch_tokens: 24_576, batch_window: Duration::ZERO }
    }
}

/// `[[member]]`: one served member.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// The served name.
    pub name: String,
    /// A package or a bundle; absolute, or relative to the working directory as the deployment file is.
    pub path: PathBuf,
    /// Digest of the manifest that makes a member trusted which is not a released one.
    pub anchor: Option<Anchor>,
    pub profile: Profile,
    /// At least one; each gets an executor of its own.
    pub placements: Vec<Placement>,
    /// Whether the server is ready only once this member is.
    pub required: bool,
    pub aliases: Vec<String>,
    pub prefix_cache_bytes: u64,
    pub gates: Gates,
    /// A folder of recorded cases for the start and for drift.
    pub replay: Option<PathBuf>,
    pub drift_every: Duration,
    pub on_drift: OnDrift,
    pub noul_calibration: bool,
    pub description: Option<String>,
    /// `YYYY-MM-DD`.
    pub release_date: Option<String>,
}

/// SHA-256 of a manifest, written `sha256:HEX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Anchor(pub [u8; 32]);

/// A text that is no [`Anchor`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected sha256: and 64 hex digits")]
pub struct AnchorError;

impl FromStr for Anchor {
    type Err = AnchorError;

    fn from_str(text: &str) -> Result<Self, AnchorError> {
        text.strip_prefix("sha256:").and_then(sha256_from_hex).map(Anchor).ok_or(AnchorError)
    }
}

impl fmt::Display for Anchor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The bytes of 64 hex digits in either case.
pub(crate) fn sha256_from_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(bytes)
}

/// The arithmetic of a member's backbone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Profile {
    Fp32,
    Bf16,
}

impl FromStr for Profile {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let profile = [Profile::Fp32, Profile::Bf16].into_iter().find(|profile| profile.name() == name);
        profile.ok_or_else(|| "expected fp32 or bf16".to_owned())
    }
}

impl Profile {
    /// Its name in files and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Fp32 => "fp32",
            Profile::Bf16 => "bf16",
        }
    }

    /// The widest gates that it may have, which are its default ones (design: Deployment file).
    pub fn gates(self) -> Gates {
        match self {
            Profile::Fp32 => Gates { logit: 1e-4, answer: 2e-5 },
            Profile::Bf16 => Gates { logit: 0.35, answer: 0.09 },
        }
    }
}

/// How far a replayed case may be from its recording; above 0, never wider than [`Profile::gates`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gates {
    /// Of a logit; for `fp32` times `max(1, |recorded|)`.
    pub logit: f64,
    /// Of a probability.
    pub answer: f64,
}

/// What happens to a member that is out of its gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnDrift {
    /// It serves no more.
    Quarantine,
    /// It serves on, and metrics say so.
    Report,
}
