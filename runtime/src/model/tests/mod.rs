//! The model against the oracle's recordings, and against what its definition promises.

mod prefixes;
mod properties;
mod recorded;
mod synthetic;

use std::fs;
use std::path::PathBuf;

use synod_kernels::Device;
use synod_kernels::cpu::CpuDevice;

use super::Model;
use crate::member::{Anchor, Digest, MemberFiles, Trust};

/// What a logit may differ from the oracle's, times `max(1, |reference|)` (spec: synth.md; the fp32 gate).
const LOGIT_GATE: f64 = 1e-4;

/// The distance of a logit from its reference, as a multiple of what [`LOGIT_GATE`] is a bound of.
fn distance(found: f32, reference: f64) -> f64 {
    (f64::from(found) - reference).abs() / reference.abs().max(1.0)
}

fn fixtures(path: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures")).join(path)
}

/// The CPU with exactly `threads` threads, which share cores where there are fewer.
fn cpu(threads: usize) -> CpuDevice {
    let cores = CpuDevice::available_cores().unwrap();
    let cores: Vec<usize> = cores.into_iter().cycle().take(threads).collect();
    CpuDevice::new(&cores).unwrap()
}

/// A fixture member on `device`.
fn load<D: Device>(device: D, member: &str) -> Model<D> {
    load_with_passes(device, member, 24_576)
}

/// A fixture member on `device`, whose passes take at most `batch_tokens` rows.
fn load_with_passes<D: Device>(device: D, member: &str, batch_tokens: usize) -> Model<D> {
    load_with(device, member, batch_tokens, 0)
}

/// The same, with a prefix cache.
fn load_with<D: Device>(device: D, member: &str, batch_tokens: usize, prefix_cache_bytes: u64) -> Model<D> {
    let folder = fixtures("members").join(member);
    let anchor = Anchor(Digest::of(&fs::read(folder.join("MODEL_MANIFEST.json")).unwrap()));
    let package = MemberFiles::open(&folder, Trust::Anchored(anchor)).unwrap();
    Model::load(device, &package, batch_tokens, prefix_cache_bytes, &()).unwrap()
}

/// A reproducible sequence (splitmix64); tests print the seed.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((word ^ (word >> 31)) % u64::from(bound)) as u32
    }
}
