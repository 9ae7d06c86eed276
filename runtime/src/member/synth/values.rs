//! The numbers of a synthetic member (spec: synth.md, "Numbers").
//!
//! A tensor is one stream of values that its name and the seed decide. The generator is counter-based, so a piece of a
//! tensor can be made without what comes before it.

use std::cmp::Ordering;

use half::bf16;
use sha2::{Digest as _, Sha256};
use synod_kernels::DType;

use super::MemberConfig;
use crate::model::qwen3_5::config::{TensorKind, TensorSpec};

const INCREMENT: u64 = 0x9E37_79B9_7F4A_7C15;
/// Gain and shift of the router's span head, and of the broad one.
const ROUTER: (f64, f64) = (1.8, 3.0);
const BROAD: (f64, f64) = (1.8, 2.0);

/// Where the values of a tensor come from.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Source {
    /// Bell-shaped around `mean`.
    Bell { std: f64, mean: f64 },
    /// The same value everywhere.
    Constant(f32),
}

/// A tensor of a synthetic member, ready to be made piece by piece.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SynthTensor {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) dtype: DType,
    pub(super) elements: u64,
    source: Source,
    /// State of its generator before the first step.
    state: u64,
}

impl SynthTensor {
    /// The tensor `spec` (with its full name) of the member that `config` and `seed` make.
    pub(super) fn new(config: &MemberConfig, seed: u64, spec: &TensorSpec) -> Self {
        let dtype = if spec.name.starts_with("backbone.") { spec.released_dtype() } else { DType::F32 };
        Self {
            name: spec.name.clone(),
            shape: spec.shape.clone(),
            dtype,
            elements: spec.elements() as u64,
            source: source(config, spec),
            state: initial_state(seed, &spec.name),
        }
    }

    /// The order of tensors in a file, that of the format's own writer: F32 first, for alignment; then names decide.
    pub(super) fn file_order(&self, other: &Self) -> Ordering {
        let key = |tensor: &Self| tensor.dtype == DType::Bf16;
        key(self).cmp(&key(other)).then_with(|| self.name.cmp(&other.name))
    }

    /// Bytes of all its values.
    pub(super) fn size_bytes(&self) -> u64 {
        self.elements * self.dtype.bytes() as u64
    }

    /// Fills `out` with the little-endian values from index `first` on.
    pub(super) fn fill(&self, first: u64, out: &mut [u8]) {
        match (self.source, self.dtype) {
            (Source::Constant(value), _) => out.as_chunks_mut().0.fill(value.to_le_bytes()),
            (Source::Bell { std, mean }, dtype) => {
                let bell = Bell { state: self.state.wrapping_add(first.wrapping_mul(INCREMENT)), std, mean };
                match dtype {
                    DType::F32 => fill(out, bell.map(f32::to_le_bytes)),
                    DType::Bf16 => fill(out, bell.map(|value| bf16::from_f32(value).to_le_bytes())),
                }
            }
        }
    }
}

fn fill<const BYTES: usize>(out: &mut [u8], values: impl Iterator<Item = [u8; BYTES]>) {
    for (out, value) in out.as_chunks_mut().0.iter_mut().zip(values) {
        *out = value;
    }
}

/// First eight bytes of SHA-256 over `synod-synth/1/SEED/NAME`.
fn initial_state(seed: u64, name: &str) -> u64 {
    let digest = Sha256::digest(format!("synod-synth/1/{seed}/{name}"));
    u64::from_le_bytes(*digest.first_chunk().expect("a digest has 32 bytes"))
}

/// splitmix64, each word folded into one bell-shaped value.
struct Bell {
    state: u64,
    std: f64,
    mean: f64,
}

impl Iterator for Bell {
    type Item = f32;

    #[inline]
    fn next(&mut self) -> Option<f32> {
        self.state = self.state.wrapping_add(INCREMENT);
        let mut word = self.state;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^= word >> 31;
        let total = (word & 0xFFFF) + ((word >> 16) & 0xFFFF) + ((word >> 32) & 0xFFFF) + (word >> 48);
        // In this order: each operation rounds, and the digests of the recorded members depend on it.
        let centred = total as f64 / 65536.0 - (2.0 - 2.0 / 65536.0);
        Some((centred * 3.0_f64.sqrt() * self.std + self.mean) as f32)
    }
}

/// The table of synth.md.
fn source(config: &MemberConfig, spec: &TensorSpec) -> Source {
    if spec.kind == TensorKind::Scalar {
        return Source::Constant(0.5);
    }
    let (group, name) = spec.name.split_once('.').expect("every tensor but the scalar has a group");
    let (std, mean) = match group {
        "backbone" => backbone(spec, name),
        "head" => candidate_head(config, name),
        "span2" => span_head(config, name, ROUTER),
        _ => span_head(config, name, BROAD),
    };
    Source::Bell { std, mean }
}

/// Standard deviation and mean of a backbone tensor.
fn backbone(spec: &TensorSpec, name: &str) -> (f64, f64) {
    match spec.kind {
        TensorKind::Embedding => (1.0, 0.0),
        TensorKind::PerHead if name.ends_with("A_log") => (0.8, -1.6),
        TensorKind::PerHead => (1.0, -2.0),
        TensorKind::Conv1d => (0.6, 0.0),
        TensorKind::Linear => {
            let gain = match name.rsplit('.').nth(1) {
                Some("o_proj") => 2.5,
                Some("out_proj" | "q_proj" | "k_proj") => 1.5,
                _ => 1.0,
            };
            (gain / (spec.shape[1] as f64).sqrt(), 0.0)
        }
        _ if name.ends_with("linear_attn.norm.weight") => (0.1, 1.0),
        _ => (0.1, 0.0),
    }
}

fn candidate_head(config: &MemberConfig, name: &str) -> (f64, f64) {
    let row = 1.0 / (config.backbone_config.hidden_size as f64).sqrt();
    match name {
        "candidate_norm.weight" | "query_norm.weight" => (0.1, 1.0),
        "key.weight" | "query.weight" => (2.0 * row, 0.0),
        "candidate_mlp.weight" | "query_mlp.weight" => (row, 0.0),
        "scalar.weight" => (1.5 / (config.head_dim as f64).sqrt(), 0.0),
        // The norms' biases and the MLP's.
        _ => (0.1, 0.0),
    }
}

fn span_head(config: &MemberConfig, name: &str, (gain, shift): (f64, f64)) -> (f64, f64) {
    let row = 1.0 / (config.backbone_config.hidden_size as f64).sqrt();
    let d = config.span_head.d as f64;
    match name {
        "wn.weight" | "ln.weight" | "M.bias" => (0.1, 1.0),
        "slot.weight" => (0.5, 0.0),
        "K.weight" | "Q.weight" => (gain * row, 0.0),
        "M.weight" | "N.weight" => (0.4 * row, 0.0),
        "v.weight" => (0.5 / d.sqrt(), -shift / d / 0.85),
        "o.weight" | "o.bias" => (0.02, 0.0),
        // The norms' biases.
        _ => (0.1, 0.0),
    }
}
