//! `synod-bench load`: a server under load.

use std::time::Duration;

use anyhow::{Result, bail};
use clap::{ArgGroup, Args};
use synod_bench::load::{self, Arrivals, Kind, Pace};
use synod_bench::machine;
use synod_kernels::cpu::CpuDevice;

/// Load a server and report what its callers saw.
///
/// With --rate, requests arrive when they are due, and latencies count from then, whatever this program waits for. With
/// --closed, so many clients each ask again once they are answered: what the server can do. Latencies are those of
/// answered requests; every other end is counted beside them.
#[derive(Args)]
#[command(group(ArgGroup::new("pace").required(true).args(["rate", "closed"])))]
pub(crate) struct Load {
    /// The server
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8100")]
    url: String,
    /// Where its metrics are; by default at the server's /metrics
    #[arg(long, value_name = "URL")]
    metrics_url: Option<String>,
    /// Bearer key; by default what `SYNOD_KEY` holds, where the process list does not show it
    #[arg(long)]
    key: Option<String>,
    /// Served name or alias; by default the server's default model
    #[arg(long)]
    model: Option<String>,
    /// What is asked
    #[arg(long, value_enum, default_value_t = Kind::Mix)]
    kind: Kind,
    /// Requests per second
    #[arg(long, value_parser = positive)]
    rate: Option<f64>,
    /// How the time between two of them varies
    #[arg(long, value_enum, default_value_t = Arrivals::Poisson, conflicts_with = "closed")]
    arrivals: Arrivals,
    /// Clients that each ask again once they are answered
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    closed: Option<u32>,
    /// For how long
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = positive)]
    duration: f64,
    /// Requests under way at once, each on a connection of its own; the others wait, and their waiting counts
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    connections: u32,
    /// After how long a client gives up
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = positive)]
    timeout: f64,
    /// Requests before the measured ones, one after another
    #[arg(long, value_name = "N", default_value_t = 8)]
    warmup: u64,
    /// Of texts and arrivals; by default another one every time
    #[arg(long)]
    seed: Option<u64>,
    /// Fail unless `synod_outcomes_total` counts what these clients saw, and nothing else
    #[arg(long)]
    check_outcomes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Load {
    pub(crate) fn run(self) -> Result<()> {
        let machine = machine::line(&CpuDevice::available_cores()?, "load generator");
        let pace = match (self.rate, self.closed) {
            (Some(rate), _) => Pace::Open { rate, arrivals: self.arrivals },
            (None, clients) => Pace::Closed { clients: clients.unwrap_or(1) as usize },
        };
        let load = load::Load {
            url: self.url,
            metrics_url: self.metrics_url,
            key: self.key.or_else(|| std::env::var("SYNOD_KEY").ok()),
            model: self.model,
            kind: self.kind,
            pace,
            duration: Duration::from_secs_f64(self.duration),
            connections: self.connections.max(self.closed.unwrap_or(0)) as usize,
            timeout: Duration::from_secs_f64(self.timeout),
            warmup: self.warmup,
            seed: self.seed.unwrap_or_else(rand::random),
        };
        let report = load.run()?;
        if self.json {
            let mut json = report.to_json();
            json["machine"] = machine.into();
            println!("{json:#}");
        } else {
            println!("{machine}\n{report}");
        }
        match report.disagreement {
            Some(disagreement) if self.check_outcomes => bail!("{disagreement}"),
            _ => Ok(()),
        }
    }
}

/// A number above 0, of at most a year's seconds.
fn positive(text: &str) -> Result<f64, String> {
    let wanted = "expected a number above 0 and at most 31536000";
    let number: f64 = text.parse().map_err(|_| wanted.to_owned())?;
    (number > 0.0 && number <= 31_536_000.0).then_some(number).ok_or_else(|| wanted.to_owned())
}
