//! What was measured, for people and for programs.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use super::scrape::{Outcome, Outcomes, Scrape};
use super::{Load, Pace, Sample};

/// Into how many stretches of time a run is divided, to show what drifts.
const WINDOWS: u32 = 10;

/// What a run's clients and its server counted.
#[derive(Clone)]
pub struct Report {
    load: Load,
    /// From the first request to the last reply.
    pub elapsed: Duration,
    pub sent: u64,
    pub answered: u64,
    /// `input_tokens` of all answers.
    pub tokens: u64,
    /// Of answered requests, from when they were due.
    pub latency: Latency,
    /// Requests by status and code, or by how they were lost.
    pub statuses: BTreeMap<String, u64>,
    /// Equal stretches of the run, by when requests were due.
    pub windows: Vec<Window>,
    /// What the server counted.
    pub outcomes: Outcomes,
    /// How that does not agree with what the clients saw.
    pub disagreement: Option<String>,
    /// The server's memory at the start, at most, at the end.
    pub resident_bytes: Option<[u64; 3]>,
}

/// Percentiles by nearest rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    pub p50: Duration,
    pub p90: Duration,
    pub p99: Duration,
    pub p999: Duration,
    pub max: Duration,
}

/// A stretch of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Window {
    pub answered: u64,
    pub latency: Latency,
    /// The server's memory, the last time that it was asked in this stretch.
    pub resident_bytes: Option<u64>,
}

impl Latency {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let per_mille = |rank: usize| {
            let index = (times.len() * rank).div_ceil(1000).saturating_sub(1);
            times.get(index).copied().unwrap_or_default()
        };
        let [p50, p90, p99, p999, max] = [500, 900, 990, 999, 1000].map(per_mille);
        Latency { p50, p90, p99, p999, max }
    }

    fn entries(&self) -> [(&'static str, f64); 5] {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let Latency { p50, p90, p99, p999, max } = *self;
        [("p50", ms(p50)), ("p90", ms(p90)), ("p99", ms(p99)), ("p99.9", ms(p999)), ("max", ms(max))]
    }
}

impl Report {
    pub(super) fn new(
        load: &Load,
        elapsed: Duration,
        samples: &[Sample],
        before: &Scrape,
        after: &Scrape,
        resident: &[(Duration, u64)],
    ) -> Self {
        let mut statuses = BTreeMap::new();
        let (mut seen, mut lost) = (Outcomes::default(), 0);
        for sample in samples {
            *statuses.entry(sample.reply.status.clone()).or_insert(0) += 1;
            match sample.reply.outcome {
                Some(outcome) => seen.add(outcome),
                None => lost += 1,
            }
        }
        let answered: Vec<&Sample> = samples.iter().filter(|it| it.reply.outcome == Some(Outcome::Answered)).collect();
        let outcomes = after.outcomes_since(before);
        let peak = resident.iter().map(|(_, bytes)| *bytes).chain(before.resident_bytes).chain(after.resident_bytes);
        let peak = peak.max().unwrap_or(0);
        Report {
            load: load.clone(),
            elapsed,
            sent: samples.len() as u64,
            answered: answered.len() as u64,
            tokens: answered.iter().map(|sample| sample.reply.input_tokens).sum(),
            latency: Latency::of(answered.iter().map(|sample| sample.latency).collect()),
            statuses,
            windows: windows(load.duration, &answered, resident),
            outcomes,
            disagreement: outcomes.disagreement(&seen, lost),
            resident_bytes: before.resident_bytes.zip(after.resident_bytes).map(|(start, end)| [start, peak, end]),
        }
    }

    /// Answers per second.
    pub fn requests_per_second(&self) -> f64 {
        self.answered as f64 / self.elapsed.as_secs_f64()
    }

    /// `input_tokens` of answers per second.
    pub fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.elapsed.as_secs_f64()
    }

    /// Everything, for programs.
    pub fn to_json(&self) -> Value {
        let latency = |latency: &Latency| latency.entries().into_iter().collect::<Value>();
        let windows = self.windows.iter().map(|window| {
            json!({
                "answered": window.answered,
                "latency_ms": latency(&window.latency),
                "resident_bytes": window.resident_bytes,
            })
        });
        let resident = self.resident_bytes.map(|[start, max, end]| json!({"start": start, "max": max, "end": end}));
        json!({
            "url": self.load.url,
            "model": self.load.model,
            "kind": self.load.kind.name(),
            "pace": self.pace(),
            "seed": self.load.seed,
            "connections": self.load.connections,
            "duration_s": self.load.duration.as_secs_f64(),
            "elapsed_s": self.elapsed.as_secs_f64(),
            "sent": self.sent,
            "answered": self.answered,
            "requests_per_second": self.requests_per_second(),
            "tokens_per_second": self.tokens_per_second(),
            "latency_ms": latency(&self.latency),
            "statuses": self.statuses,
            "windows": windows.collect::<Vec<_>>(),
            "outcomes": self.outcomes.entries().collect::<Value>(),
            "outcomes_disagreement": self.disagreement,
            "resident_bytes": resident,
        })
    }

    fn pace(&self) -> String {
        match self.load.pace {
            Pace::Open { rate, arrivals } => format!("{rate} requests/s, {}", arrivals.name()),
            Pace::Closed { clients } => format!("{clients} clients in a closed loop"),
        }
    }
}

fn windows(duration: Duration, answered: &[&Sample], resident: &[(Duration, u64)]) -> Vec<Window> {
    let window = |index: u32| {
        let stretch = duration * index / WINDOWS..duration * (index + 1) / WINDOWS;
        let times = answered.iter().filter(|sample| stretch.contains(&sample.due)).map(|sample| sample.latency);
        let times: Vec<Duration> = times.collect();
        let resident = resident.iter().rfind(|(at, _)| stretch.contains(at));
        Window {
            answered: times.len() as u64,
            latency: Latency::of(times),
            resident_bytes: resident.map(|(_, bytes)| *bytes),
        }
    };
    (0..WINDOWS).map(window).collect()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let load = &self.load;
        writeln!(f, "{} requests, {}, seed {}", load.kind.name(), self.pace(), load.seed)?;
        writeln!(f, "{} connections at most, {:.1} s", load.connections, self.elapsed.as_secs_f64())?;
        let statuses: Vec<String> = self.statuses.iter().map(|(status, count)| format!("{status}: {count}")).collect();
        writeln!(f, "{} sent; {}", self.sent, statuses.join(", "))?;
        writeln!(f, "{:.1} requests/s, {:.0} tokens/s", self.requests_per_second(), self.tokens_per_second())?;
        let show = |latency: &Latency| latency.entries().map(|(_, ms)| format!("{ms:>9.1}")).join(" ");
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        writeln!(
            f,
            "{:>12} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
            "ms", "answered", "p50", "p90", "p99", "p99.9", "max", "MiB"
        )?;
        writeln!(f, "{:>12} {:>9} {}", "all", self.answered, show(&self.latency))?;
        for (index, window) in self.windows.iter().enumerate() {
            let end = load.duration.as_secs_f64() * (index + 1) as f64 / f64::from(WINDOWS);
            let resident = window.resident_bytes.map_or_else(|| "-".to_owned(), |bytes| format!("{:.1}", mib(bytes)));
            let name = format!("to {end:.1} s");
            writeln!(f, "{name:>12} {:>9} {} {resident:>9}", window.answered, show(&window.latency))?;
        }
        if let Some([start, max, end]) = self.resident_bytes {
            let [start, max, end] = [start, max, end].map(mib);
            writeln!(f, "server's memory: {start:.1} MiB at the start, {max:.1} at most, {end:.1} at the end")?;
        }
        let outcomes: Vec<String> = self.outcomes.entries().map(|(name, count)| format!("{count} {name}")).collect();
        write!(f, "server's count: {}; ", outcomes.join(", "))?;
        match &self.disagreement {
            None => write!(f, "as the clients saw"),
            Some(disagreement) => write!(f, "{disagreement}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let ms = Duration::from_millis;
        let of = |count: u64| Latency::of((1..=count).rev().map(ms).collect());
        assert_eq!(of(0), Latency::default());
        let Latency { p50, p90, p99, p999, max } = of(1);
        assert_eq!([p50, p90, p99, p999, max], [ms(1); 5]);
        let Latency { p50, p90, p99, p999, max } = of(2000);
        assert_eq!([p50, p90, p99, p999, max], [ms(1000), ms(1800), ms(1980), ms(1998), ms(2000)]);
    }
}
