//! `synod-bench requests`: whole requests in this process, from their JSON to the response's.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use synod::cli::local::{LocalMember, compute};
use synod::cli::progress::Bar;
use synod::member::synth::{self, Shape, SynthSpec};
use synod::member::{Anchor, Digest, Trust};
use synod::model::qwen3_5::config::TensorKind;
use synod::model::{Forward, Model};
use synod::wire::json::{self, Value};
use synod::wire::request::{Limits, Request, Strictness};
use synod::wire::response::write_decision;
use synod_kernels::cpu::CpuDevice;
use tempfile::TempDir;

use synod_bench::machine;

/// The requests that are measured at real sizes.
const REQUESTS: [&str; 2] = ["golden-request.json", "router-request.json"];

/// Time whole requests: at the 0.8B member's size, then the recorded cases on their own small members.
///
/// One run before the measured ones fills the caches of tokenised texts. `tokens` is the response's `input_tokens`,
/// `tokens/s` those over the whole time; `GFLOP/s` is two operations per parameter (without the embedding) and computed
/// token, over the time of the forward.
#[derive(Args)]
pub(crate) struct Requests {
    /// Package of the large member; without it, `synth --shape 0.8b` writes one to a temporary folder (2 GiB)
    #[arg(long, value_name = "PATH")]
    member: Option<PathBuf>,
    /// Anchor of that package
    #[arg(long, value_name = "ANCHOR", requires = "member")]
    anchor: Option<Anchor>,
    /// Measured runs of each request
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// The first N cores that this process may use; by default all of them
    #[arg(long, value_name = "N")]
    cores: Option<usize>,
    /// Folder of the requests, the members and their cases
    #[arg(long, value_name = "DIR", default_value = "tests/fixtures")]
    fixtures: PathBuf,
}

impl Requests {
    pub(crate) fn run(self) -> Result<()> {
        let mut cores = CpuDevice::available_cores()?;
        cores.truncate(self.cores.unwrap_or(cores.len()));
        println!("{}", machine::line(&cores, CpuDevice::new(&cores)?.isa()));
        println!("p50 of {} runs", self.runs);
        self.large(&cores)?;
        for member in ["tiny-08b", "tiny-4b", "tiny-router", "tiny-short"] {
            self.recorded(member, &cores)?;
        }
        Ok(())
    }

    /// The requests at the size of a real member.
    fn large(&self, cores: &[usize]) -> Result<()> {
        // Lives as long as the member: its embedding is read from its file.
        let folder = TempDir::with_prefix("synod-bench-")?;
        let opened = if let Some(path) = &self.member {
            LocalMember::open(path, self.anchor.map_or(Trust::Released, Trust::Anchored))?
        } else {
            let path = folder.path().join("member");
            let spec = SynthSpec { shape: Shape::Vela08b, layers: None, vocab: None, seed: 1 };
            let report = synth::write(&spec, &path, &Bar::new("writing"))?;
            LocalMember::open(&path, Trust::Anchored(report.anchor))?
        };
        let mut bench = Bench::load(opened, cores)?;
        for name in REQUESTS {
            let path = self.fixtures.join(name);
            let body = fs::read(&path).with_context(|| path.display().to_string())?;
            bench.measure(name, &body, self.runs)?;
        }
        Ok(())
    }

    /// The recorded cases of a fixture member that have an answer.
    fn recorded(&self, member: &str, cores: &[usize]) -> Result<()> {
        let package = self.fixtures.join("members").join(member);
        let manifest = fs::read(package.join("MODEL_MANIFEST.json")).with_context(|| package.display().to_string())?;
        let opened = LocalMember::open(&package, Trust::Anchored(Anchor(Digest::of(&manifest))))?;
        let mut bench = Bench::load(opened, cores)?;
        for path in cases(&self.fixtures.join("vela").join(member))? {
            if let Some(body) = answered(&path).with_context(|| path.display().to_string())? {
                let name = path.file_stem().unwrap_or_default().to_string_lossy();
                bench.measure(&name, body.as_bytes(), self.runs)?;
            }
        }
        Ok(())
    }
}

/// The files of a folder, by name.
fn cases(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

/// The request of a recorded case, if it has an answer.
fn answered(path: &Path) -> Result<Option<String>> {
    let case = json::parse(&fs::read(path)?)?;
    let case = case.as_object().context("expected an object")?;
    let request = case.get("request_text").and_then(Value::as_str).context("expected a request_text")?;
    Ok(case.get("response_text").map(|_| request.to_owned()))
}

/// A loaded member that is measured.
struct Bench {
    member: LocalMember,
    model: Model<CpuDevice>,
    /// Of the backbone, without the embedding.
    parameters: usize,
}

/// One request, from its bytes to the response's text.
struct Run {
    total: Duration,
    forward: Duration,
    input_tokens: usize,
    computed_tokens: u64,
}

impl Bench {
    fn load(member: LocalMember, cores: &[usize]) -> Result<Self> {
        let model = member.load(cores, &Bar::new("loading"))?;
        let config = &member.package().config().backbone_config;
        let computing = config.inventory().into_iter().filter(|tensor| tensor.kind != TensorKind::Embedding);
        let parameters = computing.map(|tensor| tensor.elements()).sum();
        println!(
            "\n{}, {:.3} G parameters without the embedding",
            member.package().model_name(),
            parameters as f64 / 1e9
        );
        println!(
            "{:24} {:>7} {:>10} {:>11} {:>9} {:>8}",
            "request", "tokens", "total ms", "forward ms", "tokens/s", "GFLOP/s"
        );
        Ok(Self { member, model, parameters })
    }

    /// Prints the median figures of a request.
    fn measure(&mut self, name: &str, body: &[u8], runs: u32) -> Result<()> {
        self.run(body).with_context(|| name.to_owned())?;
        let runs = (0..runs).map(|_| self.run(body)).collect::<Result<Vec<_>>>()?;
        let total = median(runs.iter().map(|run| run.total)).as_secs_f64();
        let forward = median(runs.iter().map(|run| run.forward)).as_secs_f64();
        let (tokens, computed) = (runs[0].input_tokens, runs[0].computed_tokens);
        let operations = 2.0 * self.parameters as f64 * computed as f64;
        println!(
            "{name:24} {tokens:>7} {:>10.1} {:>11.1} {:>9.0} {:>8.1}",
            total * 1e3,
            forward * 1e3,
            tokens as f64 / total,
            operations / forward / 1e9
        );
        Ok(())
    }

    fn run(&mut self, body: &[u8]) -> Result<Run> {
        let started = Instant::now();
        let refused = |reason: &str| anyhow!("the request is refused: {reason}");
        let body = json::parse(body)?;
        let request = Request::read(body, &Limits::default())
            .map_err(|problem| refused(&format!("{:?}", problem.into_details(|_| None))))?;
        let family = self.member.family();
        let rendered = family
            .render(&request.state, &request.questions, Strictness::AllOrNothing)
            .map_err(|refusal| refused(&format!("{refusal:?}")))?;
        let before = self.model.tally().tokens_computed;
        let forward_started = Instant::now();
        let logits = compute(&mut self.model, &rendered)?;
        let forward = forward_started.elapsed();
        let decision = rendered.pending.finish(&logits).map_err(|refusal| refused(&format!("{refusal:?}")))?;
        let response = write_decision(self.member.package().model_name(), &decision);
        let total = started.elapsed();
        std::hint::black_box(response);
        let computed_tokens = self.model.tally().tokens_computed - before;
        Ok(Run { total, forward, input_tokens: decision.input_tokens, computed_tokens })
    }
}

/// The middle one, or the upper of the two.
fn median(times: impl Iterator<Item = Duration>) -> Duration {
    let mut times: Vec<_> = times.collect();
    times.sort_unstable();
    times[times.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let ms = |times: &[u64]| median(times.iter().map(|&ms| Duration::from_millis(ms))).as_millis();
        assert_eq!((ms(&[7]), ms(&[9, 1, 5]), ms(&[4, 1, 3, 2])), (7, 5, 3));
    }
}
