//! How fast a member's files are verified, beside a tool that everybody has.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use synod::cli::progress::Bar;
use synod::member::synth::{self, Shape, SynthSpec};
use synod::member::verify::verify;
use synod::member::{Anchor, Digest, Trust};
use synod_kernels::cpu::CpuDevice;
use tempfile::TempDir;

use synod_bench::machine;

const EQUAL_FILES: usize = 8;
const MANIFEST: &str = "MODEL_MANIFEST.json";

/// Time the verification of a package beside `openssl dgst -sha256` of its files, one after another.
///
/// Eight equal files, then the shards of a large member. Each figure is the best of the runs, in turn, after one reading
/// that fills the page cache. `bound` is what the sizes allow: all bytes over those of the busiest core, if the largest file
/// that is left always goes to the core that is free first.
#[derive(Args)]
pub(crate) struct Hash {
    /// Package of the large member; without it, `synth --shape 4b` writes one to a temporary folder (10 GB)
    #[arg(long, value_name = "PATH")]
    member: Option<PathBuf>,
    /// Anchor of that package
    #[arg(long, value_name = "ANCHOR", requires = "member")]
    anchor: Option<Anchor>,
    /// Bytes of each of the equal files, in MiB
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=4096))]
    equal_mib: u32,
    /// Measured runs
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
}

impl Hash {
    pub(crate) fn run(self) -> Result<()> {
        let cores = CpuDevice::available_cores()?;
        println!("{}", machine::line(&cores, "SHA-256"));
        println!("best of {} runs", self.runs);
        println!("{:24} {:>12} {:>10} {:>9} {:>6} {:>6}", "files", "bytes", "openssl s", "verify s", "times", "bound");
        let folder = TempDir::with_prefix("synod-bench-")?;
        let equal = folder.path().join("equal");
        let anchor = equal_files(&equal, self.equal_mib as usize)?;
        self.measure("eight equal files", &equal, Trust::Anchored(anchor), cores.len())?;
        fs::remove_dir_all(&equal)?;
        if let Some(path) = &self.member {
            let trust = self.anchor.map_or(Trust::Released, Trust::Anchored);
            return self.measure("the given member", path, trust, cores.len());
        }
        let large = folder.path().join("large");
        let spec = SynthSpec { shape: Shape::Vela4b, layers: None, vocab: None, seed: 1 };
        let report = synth::write(&spec, &large, &Bar::new("writing"))?;
        self.measure("synth --shape 4b", &large, Trust::Anchored(report.anchor), cores.len())
    }

    fn measure(&self, name: &str, package: &Path, trust: Trust, cores: usize) -> Result<()> {
        let verified = verify(package, trust, &())?;
        let paths: Vec<_> = verified.files.iter().map(|file| package.join(&file.name)).collect();
        let sizes: Vec<_> = verified.files.iter().map(|file| file.size_bytes).collect();
        let (mut openssl, mut own) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..self.runs {
            openssl = openssl.min(seconds(|| paths.iter().try_for_each(|path| openssl_digest(path)))?);
            own = own.min(seconds(|| Ok(verify(package, trust, &()).map(drop)?))?);
        }
        let (bytes, times) = (sizes.iter().sum::<u64>(), openssl / own);
        let bound = bound(sizes, cores);
        println!("{name:24} {bytes:>12} {openssl:>10.2} {own:>9.2} {times:>6.2} {bound:>6.2}");
        Ok(())
    }
}

/// A small package that lists eight equal files beside its own; what it must be opened with.
fn equal_files(package: &Path, size_mib: usize) -> Result<Anchor> {
    synth::write(&SynthSpec { shape: Shape::Tiny, layers: None, vocab: None, seed: 1 }, package, &())?;
    let path = package.join(MANIFEST);
    let mut manifest: serde_json::Value = serde_json::from_slice(&fs::read(&path)?)?;
    let content: Vec<u8> =
        (0..size_mib << 18).flat_map(|word| (word as u32).wrapping_mul(0x9E37_79B9).to_le_bytes()).collect();
    let digest = Digest::of(&content).to_string();
    for number in 1..=EQUAL_FILES {
        let name = format!("equal-{number}.bin");
        fs::write(package.join(&name), &content).with_context(|| name.clone())?;
        manifest["files_sha256"][name] = digest.clone().into();
    }
    let manifest = manifest.to_string();
    fs::write(&path, &manifest)?;
    Ok(Anchor(Digest::of(manifest.as_bytes())))
}

fn seconds(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let started = Instant::now();
    work()?;
    Ok(started.elapsed().as_secs_f64())
}

fn openssl_digest(path: &Path) -> Result<()> {
    let mut command = Command::new("openssl");
    command.args(["dgst", "-sha256"]).arg(path).stdout(Stdio::null());
    let status = command.status().context("openssl: expected it on the path")?;
    if status.success() { Ok(()) } else { bail!("openssl: {}: {status}", path.display()) }
}

/// How many times as fast `cores` can be as one, where a file is never divided.
fn bound(mut sizes: Vec<u64>, cores: usize) -> f64 {
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let mut loads = vec![0; cores];
    for size in &sizes {
        if let Some(free) = loads.iter_mut().min() {
            *free += size;
        }
    }
    sizes.iter().sum::<u64>() as f64 / loads.into_iter().max().unwrap_or(1).max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_that_of_the_busiest_core() {
        let check =
            |sizes: &[u64], cores, expected: f64| assert!((bound(sizes.to_vec(), cores) - expected).abs() < 1e-12);
        check(&[1; 8], 2, 2.0);
        check(&[1; 8], 1, 1.0);
        check(&[2, 3, 2], 2, 7.0 / 4.0);
        check(&[10, 1], 4, 1.1);
    }
}
