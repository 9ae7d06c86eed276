//! `synod-bench cpu`: what the CPU device reaches, beside what its cores could do.
//!
//! The products of the member's shapes, whole forwards by their number of tokens and phase, and whole requests from their
//! JSON to the response's: each on the same cores, in one run.

mod forwards;
mod products;
mod requests;
mod timed;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Value, json};
use synod::cli::local::LocalMember;
use synod::cli::progress::Bar;
use synod::member::synth::{self, Shape, SynthSpec};
use synod::member::{Anchor, Trust};
use synod::model::{Model, cpu_device};
use synod_config::Profile;
use synod_kernels::cpu::{CpuDevice, Isa};
use tempfile::TempDir;

use self::timed::{Account, Timed};
use synod_bench::machine;

/// The requests that are measured.
const REQUESTS: [&str; 2] = ["golden-request.json", "router-request.json"];
/// How many times as long a prompt the last of them is measured over as well.
const LONGER: usize = 4;

/// Measure products, forwards and requests on this machine's cores.
///
/// `peak` is what the cores do with every operand in a register, measured first. Model operations are two for each
/// multiply-add of the definition: 2 · inputs · outputs of every Linear layer for every row that it computes, 6 · `key_dim` ·
/// `value_dim` for every token and value head of the gated delta rule, 4 · `head_dim` for every query head, query and key that it
/// sees. Rows that the last layer skips do not count, nor does anything else.
#[derive(Args)]
pub(crate) struct Cpu {
    /// Package of the member; without it, one with random weights is written to a temporary folder
    #[arg(long, value_name = "PATH", conflicts_with = "shape")]
    member: Option<PathBuf>,
    /// Anchor of that package
    #[arg(long, value_name = "ANCHOR", requires = "member")]
    anchor: Option<Anchor>,
    /// Shape of the member with random weights; 0.8b takes 2 GiB, 9b takes 20
    #[arg(long, default_value = "0.8b")]
    shape: Shape,
    /// Layers of the member with random weights, a multiple of four; by default the shape's own
    #[arg(long, conflicts_with = "member")]
    layers: Option<usize>,
    /// Tokens of the measured forwards; none with an empty list
    #[arg(long, value_delimiter = ',', default_value = "256,1024,4096,16384", value_name = "N,N,…")]
    tokens: Vec<usize>,
    /// Measured runs of each forward and request; one more before them is not counted
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// fp32 or bf16: what the member computes in
    #[arg(long, value_name = "PROFILE", default_value = Profile::Fp32.name())]
    profile: Profile,
    /// The first N cores that this process may use; by default all of them
    #[arg(long, value_name = "N")]
    cores: Option<usize>,
    /// Measure the products alone, on every instruction set of the machine
    #[arg(long)]
    products: bool,
    /// Write what was measured of the requests, and the lengths of their trees, to this file as well
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Folder of the requests
    #[arg(long, value_name = "DIR", default_value = "tests/fixtures")]
    fixtures: PathBuf,
}

impl Cpu {
    pub(crate) fn run(self) -> Result<()> {
        let mut cores = CpuDevice::available_cores()?;
        cores.truncate(self.cores.unwrap_or(cores.len()));
        if self.products {
            return Isa::available().into_iter().try_for_each(|isa| {
                let device = CpuDevice::with_isa(&cores, isa)?;
                let peak = begin(&cores, &device);
                products::measure(&device, peak)
            });
        }
        let device = cpu_device(&cores, self.profile)?;
        let peak = begin(&cores, &device);
        products::measure(&device, peak)?;

        // Lives as long as the member: its embedding is read from its file.
        let folder = TempDir::with_prefix("synod-bench-")?;
        let member = self.open(&folder)?;
        let mut bench = Bench::load(member, device, peak)?;
        forwards::measure(&mut bench, &self.tokens, self.runs)?;
        requests::head();
        let mut measured = Vec::new();
        for (name, body) in self.bodies()? {
            measured.push(requests::measure(&mut bench, &name, &body, self.runs).context(name)?);
        }
        let Some(path) = &self.json else { return Ok(()) };
        let report = json!({
            "machine": machine::line(&cores, CpuDevice::new(&cores)?.isa()),
            "profile": self.profile.name(),
            "peak_gflops": peak / 1e9,
            "runs": self.runs,
            "requests": measured,
        });
        fs::write(path, report.to_string()).with_context(|| path.display().to_string())
    }

    /// Name and body of each request: those of the folder, and the last one with its state repeated.
    fn bodies(&self) -> Result<Vec<(String, Vec<u8>)>> {
        let read = |name: &str| {
            let path = self.fixtures.join(name);
            fs::read(&path).with_context(|| path.display().to_string())
        };
        let mut bodies =
            REQUESTS.iter().map(|name| Ok(((*name).to_owned(), read(name)?))).collect::<Result<Vec<_>>>()?;
        if let Some((name, body)) = bodies.last() {
            let mut request: Value = serde_json::from_slice(body).with_context(|| name.clone())?;
            let state = request["state"].as_str().with_context(|| format!("{name}: the state is not a text"))?;
            request["state"] = Value::from([state; LONGER].join("\n"));
            bodies.push((format!("{name} × {LONGER}"), request.to_string().into_bytes()));
        }
        Ok(bodies)
    }

    fn open(&self, folder: &TempDir) -> Result<LocalMember> {
        if let Some(path) = &self.member {
            return LocalMember::open(path, self.anchor.map_or(Trust::Released, Trust::Anchored), self.profile);
        }
        let path = folder.path().join("member");
        let spec = SynthSpec { shape: self.shape, layers: self.layers, vocab: None, seed: 1 };
        let report = synth::write(&spec, &path, &Bar::new("writing"))?;
        LocalMember::open(&path, Trust::Anchored(report.anchor), self.profile)
    }
}

/// Says what is measured on, and returns its peak.
fn begin(cores: &[usize], device: &CpuDevice) -> f64 {
    let peak = device.peak_flops();
    println!("{}", machine::line(cores, device.isa()));
    println!("peak: {:.1} GFLOP/s in F32", peak / 1e9);
    peak
}

/// A loaded member and its device's account.
struct Bench {
    member: LocalMember,
    model: Model<Timed<CpuDevice>>,
    account: Account,
    /// F32 operations per second of the device's cores.
    peak: f64,
}

impl Bench {
    fn load(member: LocalMember, device: CpuDevice, peak: f64) -> Result<Self> {
        let (device, account) = Timed::new(device);
        // Every forward in one pass, however long.
        let model = Model::load(device, member.package(), usize::MAX, 0, &Bar::new("loading"))?;
        println!("\n{}", member.package().model_name());
        Ok(Self { member, model, account, peak })
    }
}

/// The element that a share of the others does not exceed (nearest rank); `times` are sorted and there is one.
fn percentile(times: &[Duration], percent: usize) -> Duration {
    times[(times.len() * percent).div_ceil(100).max(1) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let of = |count: u64, percent| percentile(&(1..=count).map(Duration::from_millis).collect::<Vec<_>>(), percent);
        let found = [(1, 50), (1, 95), (5, 50), (5, 95), (4, 50), (100, 95)].map(|(n, p)| of(n, p).as_millis());
        assert_eq!(found, [1, 1, 3, 5, 2, 95]);
    }
}
