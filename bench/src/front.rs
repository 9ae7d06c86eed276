//! `synod-bench front`: what a request costs around its forward.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::Value;
use synod::member::synth::{self, Shape, SynthSpec};
use synod::member::{Anchor, Digest};
use synod_bench::machine;
use synod_kernels::cpu::CpuDevice;
use tempfile::TempDir;

const MANIFEST: &str = "MODEL_MANIFEST.json";
const TOKENIZER: &str = "tokenizer.json";
/// Rows of the smallest embedding that a synthetic member has.
const MIN_VOCAB: usize = 2000;
/// How long a server may take to start.
const START_LIMIT: Duration = Duration::from_mins(2);

/// Time HTTP, reading, rendering and finishing around the forward of the golden request.
///
/// A `synod serve` process answers with a tiny member, over one connection that is kept. `around` is what the client
/// waited, less the forward as `server-timing` has it; beside it, at the median, the phases, `between` (handing over from
/// thread to thread: the server's total less its phases) and `socket` (what the client waited beyond that total). The
/// request is asked again and again (`warm`: its pieces are in the token cache), with a number in every text that no
/// request before had (`cold`), and as the first one of a new process (`first`).
#[derive(Args)]
pub(crate) struct Front {
    /// A tokenizer.json for the member; by default the small one of synthetic members
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// Measured requests of each kind
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Processes that are started for `first`
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    starts: u32,
    /// The program; by default the one beside this
    #[arg(long, value_name = "PATH")]
    synod: Option<PathBuf>,
    /// Folder of the request
    #[arg(long, value_name = "DIR", default_value = "tests/fixtures")]
    fixtures: PathBuf,
}

impl Front {
    pub(crate) fn run(self) -> Result<()> {
        let path = self.fixtures.join("golden-request.json");
        let golden = fs::read(&path).with_context(|| path.display().to_string())?;
        let golden: Value = serde_json::from_slice(&golden).with_context(|| path.display().to_string())?;
        let folder = TempDir::with_prefix("synod-bench-")?;
        let vocab = write_deployment(folder.path(), self.tokenizer.as_deref())?;
        let synod = self.synod.map_or_else(beside_this, Ok)?;
        println!("{}", machine::line(&CpuDevice::available_cores()?, "front"));
        println!("{vocab} tokens in the vocabulary; {} requests, {} starts", self.runs, self.starts);
        println!(
            "{:8} {:>6} {:>9} {:>9}  {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
            "", "tokens", "around", "p99", "parse", "render", "queue", "finish", "between", "socket"
        );
        let mut first = Vec::new();
        let mut server = Server::start(&synod, folder.path())?;
        first.push(server.ask(&golden)?);
        for _ in 1..self.starts {
            server = Server::start(&synod, folder.path())?;
            first.push(server.ask(&golden)?);
        }
        // A few more, so that every thread has its memory of words.
        for _ in 0..20 {
            server.ask(&golden)?;
        }
        let warm = (0..self.runs).map(|_| server.ask(&golden)).collect::<Result<Vec<_>>>()?;
        let cold = (0..self.runs).map(|number| server.ask(&renumbered(&golden, number))).collect::<Result<Vec<_>>>()?;
        for (name, runs) in [("warm", warm), ("cold", cold), ("first", first)] {
            print_row(name, &runs);
        }
        Ok(())
    }
}

/// A package with a tiny member and its deployment file. The entries of its vocabulary.
fn write_deployment(folder: &Path, tokenizer: Option<&Path>) -> Result<usize> {
    let package = folder.join("member");
    let tokenizer = tokenizer.map(|path| fs::read(path).with_context(|| path.display().to_string())).transpose()?;
    let vocab = tokenizer.as_deref().map_or(Ok(MIN_VOCAB), vocab)?;
    let spec = SynthSpec { shape: Shape::Tiny, layers: None, vocab: Some(vocab.max(MIN_VOCAB)), seed: 1 };
    let mut anchor = synth::write(&spec, &package, &())?.anchor;
    if let Some(tokenizer) = tokenizer {
        fs::write(package.join(TOKENIZER), &tokenizer)?;
        let mut manifest: Value = serde_json::from_slice(&fs::read(package.join(MANIFEST))?)?;
        manifest["files_sha256"][TOKENIZER] = Digest::of(&tokenizer).to_string().into();
        let manifest = manifest.to_string();
        fs::write(package.join(MANIFEST), &manifest)?;
        anchor = Anchor(Digest::of(manifest.as_bytes()));
    }
    let deployment = format!(
        "[server]\nbind = \"127.0.0.1:0\"\ndefault_model = \"m\"\n[[member]]\nname = \"m\"\npath = \"member\"\n\
         anchor = \"{anchor}\"\ndevices = [\"cpu:*\"]\n"
    );
    fs::write(folder.join("deployment.toml"), deployment)?;
    Ok(vocab)
}

/// One more than the largest id of a tokenizer.
fn vocab(tokenizer: &[u8]) -> Result<usize> {
    let tokenizer: Value = serde_json::from_slice(tokenizer).context(TOKENIZER)?;
    let words = tokenizer["model"]["vocab"].as_object().into_iter().flat_map(serde_json::Map::values);
    let added = tokenizer["added_tokens"].as_array().into_iter().flatten().map(|token| &token["id"]);
    let largest = words.chain(added).filter_map(Value::as_u64).max();
    Ok(largest.context("tokenizer.json: expected model.vocab, found none")? as usize + 1)
}

fn beside_this() -> Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name("synod");
    ensure!(path.is_file(), "{}: expected the program, found none; build it in the same profile", path.display());
    Ok(path)
}

/// A request with a number in every text that is free: nothing of it was tokenised before.
fn renumbered(request: &Value, number: u32) -> Value {
    match request {
        Value::String(text) => format!("{text} {number}").into(),
        Value::Array(items) => items.iter().map(|item| renumbered(item, number)).collect(),
        Value::Object(entries) => entries
            .iter()
            .map(|(key, value)| match key.as_str() {
                "type" | "over" | "preset" => (key.clone(), value.clone()),
                "criteria" => (key.clone(), renumbered_criteria(value, number)),
                _ => (key.clone(), renumbered(value, number)),
            })
            .collect(),
        other => other.clone(),
    }
}

/// Names of options are texts, too.
fn renumbered_criteria(criteria: &Value, number: u32) -> Value {
    let Value::Object(options) = criteria else { return renumbered(criteria, number) };
    options.iter().map(|(name, text)| (format!("{name} {number}"), renumbered(text, number))).collect()
}

/// A process that serves, and a connection to it.
struct Server {
    child: Child,
    connection: BufReader<TcpStream>,
}

/// One request as the client and the server timed it.
struct Run {
    client: Duration,
    input_tokens: u64,
    /// Of `server-timing`, in milliseconds.
    phases: Vec<(String, f64)>,
}

impl Server {
    fn start(synod: &Path, folder: &Path) -> Result<Self> {
        let mut child = Command::new(synod)
            .args(["serve", "--config", "deployment.toml"])
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(folder.join("log"))?)
            .spawn()
            .with_context(|| synod.display().to_string())?;
        let stdout = child.stdout.take().context("stdout is piped")?;
        let mut started = Started { child: Some(child), log: folder.join("log") };
        let mut lines = BufReader::new(stdout).lines();
        let address = lines.find_map(|line| line.ok()?.strip_prefix("listening on http://")?.parse().ok());
        let address: SocketAddr = address.with_context(|| started.log())?;
        // What else it prints must not fill the pipe.
        thread::spawn(move || lines.for_each(drop));
        let deadline = Instant::now() + START_LIMIT;
        let mut connection = connect(address)?;
        while get(&mut connection, "/health/ready")? != 200 {
            ensure!(Instant::now() < deadline, "not ready: {}", started.log());
            thread::sleep(Duration::from_millis(20));
        }
        Ok(Server { child: started.child.take().context("it was started")?, connection })
    }

    fn ask(&mut self, request: &Value) -> Result<Run> {
        let body = request.to_string();
        let head = format!(
            "POST /v1/systemone HTTP/1.1\r\nhost: synod\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let message = [head.as_bytes(), body.as_bytes()].concat();
        let started = Instant::now();
        self.connection.get_mut().write_all(&message)?;
        let reply = read_reply(&mut self.connection)?;
        let client = started.elapsed();
        ensure!(reply.status == 200, "status {}: {}", reply.status, String::from_utf8_lossy(&reply.body));
        let body: Value = serde_json::from_slice(&reply.body)?;
        let input_tokens = body["usage"]["input_tokens"].as_u64().context("no usage.input_tokens")?;
        Ok(Run { client, input_tokens, phases: phases(&reply.server_timing)? })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// A process that does not serve yet.
struct Started {
    child: Option<Child>,
    log: PathBuf,
}

impl Started {
    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.child.iter_mut().for_each(end);
    }
}

fn end(child: &mut Child) {
    // Both fail only where it has ended already.
    drop(child.kill());
    drop(child.wait());
}

fn connect(address: SocketAddr) -> Result<BufReader<TcpStream>> {
    let connection = TcpStream::connect(address)?;
    connection.set_nodelay(true)?;
    connection.set_read_timeout(Some(START_LIMIT))?;
    Ok(BufReader::new(connection))
}

fn get(connection: &mut BufReader<TcpStream>, path: &str) -> Result<u16> {
    connection.get_mut().write_all(format!("GET {path} HTTP/1.1\r\nhost: synod\r\n\r\n").as_bytes())?;
    Ok(read_reply(connection)?.status)
}

#[derive(Default)]
struct Reply {
    status: u16,
    server_timing: String,
    body: Vec<u8>,
}

fn read_reply(connection: &mut impl BufRead) -> Result<Reply> {
    let (mut reply, mut length, mut line) = (Reply::default(), 0, String::new());
    loop {
        line.clear();
        if connection.read_line(&mut line)? == 0 {
            bail!("the server closed the connection");
        }
        let text = line.trim_end();
        match text.split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => length = value.parse()?,
            Some((name, value)) if name.eq_ignore_ascii_case("server-timing") => {
                value.clone_into(&mut reply.server_timing);
            }
            Some(_) => {}
            None if text.is_empty() => break,
            None => reply.status = text.split(' ').nth(1).context("no status line")?.parse()?,
        }
    }
    reply.body.resize(length, 0);
    connection.read_exact(&mut reply.body)?;
    Ok(reply)
}

/// The entries of a `server-timing` header.
fn phases(header: &str) -> Result<Vec<(String, f64)>> {
    let entry = |entry: &str| {
        let (name, ms) = entry.split_once(";dur=").with_context(|| format!("server-timing: {entry}"))?;
        Ok((name.to_owned(), ms.parse()?))
    };
    header.split(", ").map(entry).collect()
}

impl Run {
    fn ms(&self, phase: &str) -> f64 {
        self.phases.iter().find(|(name, _)| name == phase).map_or(0.0, |(_, ms)| *ms)
    }

    fn client_ms(&self) -> f64 {
        self.client.as_secs_f64() * 1e3
    }

    /// What the client waited, but for the forward.
    fn around(&self) -> f64 {
        self.client_ms() - self.ms("forward")
    }

    /// The server's total, less its phases.
    fn between(&self) -> f64 {
        let phases = self.phases.iter().filter(|(name, _)| name != "total").map(|(_, ms)| ms);
        self.ms("total") - phases.sum::<f64>()
    }

    fn socket(&self) -> f64 {
        self.client_ms() - self.ms("total")
    }
}

fn print_row(name: &str, runs: &[Run]) {
    let at = |per_cent: usize, of: &dyn Fn(&Run) -> f64| {
        let mut values: Vec<f64> = runs.iter().map(of).collect();
        values.sort_unstable_by(f64::total_cmp);
        values[(values.len() * per_cent).div_ceil(100).saturating_sub(1)]
    };
    let phase = |name: &'static str| at(50, &|run| run.ms(name));
    println!(
        "{name:8} {:>6} {:>9.3} {:>9.3}  {:>8.3} {:>8.3} {:>8.3} {:>8.3} {:>8.3} {:>8.3}",
        runs[0].input_tokens,
        at(50, &Run::around),
        at(99, &Run::around),
        phase("parse"),
        phase("render"),
        phase("queue"),
        phase("finish"),
        at(50, &Run::between),
        at(50, &Run::socket),
    );
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_cold_request_has_no_text_of_another() {
        let request = json!({
            "state": {"request": "Hi."},
            "questions": {"a": {"type": "choice", "instructions": "Which?", "over": "request", "criteria": {"x": "y", "z": null}},
                          "b": {"type": "score", "criteria": ["low", "high"]}, "pii": {"preset": "pii"}},
        });
        let expected = json!({
            "state": {"request": "Hi. 7"},
            "questions": {"a": {"type": "choice", "instructions": "Which? 7", "over": "request", "criteria": {"x 7": "y 7", "z 7": null}},
                          "b": {"type": "score", "criteria": ["low 7", "high 7"]}, "pii": {"preset": "pii"}},
        });
        assert_eq!(renumbered(&request, 7), expected);
    }

    #[test]
    fn the_parts_of_a_wait_add_up() {
        let phases = phases(
            "parse;dur=0.100, render;dur=0.200, queue;dur=0.010, forward;dur=5.000, finish;dur=0.050, total;dur=5.500",
        );
        let run = Run { client: Duration::from_micros(5600), input_tokens: 1, phases: phases.unwrap() };
        for (found, expected) in [(run.around(), 0.6), (run.between(), 0.14), (run.socket(), 0.1)] {
            assert!((found - expected).abs() < 1e-9, "{found} for {expected}");
        }
    }

    #[test]
    fn a_vocabulary_ends_with_its_largest_id() {
        let tokenizer = json!({"model": {"vocab": {"a": 0, "b": 4}}, "added_tokens": [{"id": 9, "content": "x"}]});
        assert_eq!(vocab(tokenizer.to_string().as_bytes()).unwrap(), 10);
        assert!(vocab(b"{}").is_err());
    }
}
