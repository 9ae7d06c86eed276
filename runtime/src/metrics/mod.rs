//! Counters and histograms for Prometheus, under the names of design.md.
//!
//! An executor resolves its own children once, when it is placed: what it counts is an atomic of its own. Outcomes
//! and phases are resolved once, too. Responses, questions and refusals are looked up by their label, under a lock
//! that is held for the length of a lookup. The [`Reporter`] actor owns the writing of a scrape, off the path of
//! requests.
//!
//! Labels are bounded by the deployment: members, devices, routes and codes of this program. A name that a client
//! sent is never a label, nor is anything else of a request.

mod devices;
mod drift;
mod prefix_cache;
mod process;
mod reporter;

use std::collections::BTreeMap;
use std::time::Duration;

use prometheus::core::Collector;
use prometheus::{
    Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

use self::prefix_cache::PrefixCaches;
use crate::model::Tally;

pub use drift::DriftMetrics;
pub use prefix_cache::PrefixCacheMetrics;
pub use process::peak_resident_bytes;
pub use reporter::{Reporter, Scrape};

/// Upper bounds in seconds: a cached token lookup is far below the first, the slowest honest answer below the last.
const SECONDS: &[f64] = &[
    0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];
/// Upper bounds in tokens of a batch.
const TOKENS: &[f64] =
    &[64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16_384.0, 24_576.0, 32_768.0, 65_536.0, 131_072.0];
/// Upper bounds in requests of a batch.
const REQUESTS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];

/// The process's metrics, by the part of the program that counts them.
pub struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    outcomes: [IntCounter; Outcome::ALL.len()],
    questions: IntCounterVec,
    rejected: IntCounterVec,
    cancelled: IntCounterVec,
    tokens: IntCounterVec,
    prefix_caches: PrefixCaches,
    batch_tokens: HistogramVec,
    batch_requests: HistogramVec,
    queue_tokens: IntGaugeVec,
    queue_requests: IntGaugeVec,
    executor_state: IntGaugeVec,
    executor_restarts: IntCounterVec,
    /// `synod_request_seconds`, of the two decision routes.
    pub request_seconds: Histogram,
    /// `synod_inflight`: requests that admission holds a permit for.
    pub inflight: IntGauge,
    phases: [Histogram; Phase::ALL.len()],
    devices: devices::Devices,
    drifts: drift::Drifts,
    process: process::Process,
}

/// The stretches that a request's time is made of, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Parse,
    Render,
    Queue,
    Forward,
    Finish,
}

impl Phase {
    /// Every phase, in the order that a request passes them.
    pub const ALL: [Phase; 5] = [Phase::Parse, Phase::Render, Phase::Queue, Phase::Forward, Phase::Finish];

    /// Its name in `server-timing` and as a label.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Parse => "parse",
            Phase::Render => "render",
            Phase::Queue => "queue",
            Phase::Forward => "forward",
            Phase::Finish => "finish",
        }
    }
}

/// How a `POST` of a decision route ended. Each has exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A 200.
    Answered,
    /// Refused before anything was computed for it.
    Rejected,
    /// The client went away first.
    Cancelled,
    /// Accepted, and not answered in the end.
    Failed,
}

impl Outcome {
    const ALL: [Outcome; 4] = [Outcome::Answered, Outcome::Rejected, Outcome::Cancelled, Outcome::Failed];

    /// Its label.
    fn name(self) -> &'static str {
        match self {
            Outcome::Answered => "answered",
            Outcome::Rejected => "rejected",
            Outcome::Cancelled => "cancelled",
            Outcome::Failed => "failed",
        }
    }
}

/// The handles of one executor: its children of the families above, resolved once.
#[derive(Clone)]
pub struct ExecutorMetrics {
    /// `synod_queue_tokens`: tokens of work that waits for a batch.
    pub queue_tokens: IntGauge,
    /// `synod_queue_requests`: requests that wait for a batch.
    pub queue_requests: IntGauge,
    /// `synod_batch_tokens`
    pub batch_tokens: Histogram,
    /// `synod_batch_requests`
    pub batch_requests: Histogram,
    /// `synod_tokens_total{kind="computed"}`
    computed_tokens: IntCounter,
    /// `synod_tokens_total{kind="cached"}`
    cached_tokens: IntCounter,
    /// `synod_prefix_cache_…`
    pub prefix_cache: PrefixCacheMetrics,
    /// `synod_cancelled_total`: requests whose client left while their work waited or ran.
    pub cancelled: IntCounter,
    pub drift: DriftMetrics,
}

impl ExecutorMetrics {
    /// Counts what a forward has done for a batch: its tallies before and after it.
    pub fn batch_done(&self, before: &Tally, after: &Tally) {
        let computed = after.tokens_computed - before.tokens_computed;
        self.batch_tokens.observe(computed as f64);
        self.computed_tokens.inc_by(computed);
        self.cached_tokens.inc_by(after.tokens_cached - before.tokens_cached);
        self.prefix_cache.count(before, after);
    }
}

impl Metrics {
    /// Registers every family.
    pub fn new() -> Self {
        let registry = Registry::new();
        let place = ["member", "device"];
        let phase_seconds = register(
            &registry,
            HistogramVec::new(
                histogram("synod_phase_seconds", "Time of a request in each phase.", SECONDS),
                &["phase"],
            ),
        );
        let outcomes = counters(
            &registry,
            "synod_outcomes_total",
            "How each POST of a decision route ended; every one has exactly one outcome.",
            &["outcome"],
        );
        let build_info = register(
            &registry,
            Gauge::with_opts(
                Opts::new("synod_build_info", "1, with the version of this program.")
                    .const_label("version", env!("CARGO_PKG_VERSION")),
            ),
        );
        build_info.set(1.0);
        Metrics {
            requests: counters(&registry, "synod_requests_total", "Responses by route and status.", &["route", "code"]),
            outcomes: Outcome::ALL.map(|outcome| outcomes.with_label_values(&[outcome.name()])),
            questions: counters(&registry, "synod_questions_total", "Questions admitted, by type.", &["kind"]),
            rejected: counters(&registry, "synod_rejected_total", "Decision requests refused, by code.", &["reason"]),
            cancelled: counters(
                &registry,
                "synod_cancelled_total",
                "Requests whose client left while their work waited or ran.",
                &place,
            ),
            tokens: counters(
                &registry,
                "synod_tokens_total",
                "Tokens by how their hidden states were had: computed, or cached with their prefix.",
                &["member", "device", "kind"],
            ),
            prefix_caches: PrefixCaches::register(&registry),
            batch_tokens: register(
                &registry,
                HistogramVec::new(histogram("synod_batch_tokens", "Tokens computed per batch.", TOKENS), &place),
            ),
            batch_requests: register(
                &registry,
                HistogramVec::new(histogram("synod_batch_requests", "Requests per batch.", REQUESTS), &place),
            ),
            queue_tokens: gauges(&registry, "synod_queue_tokens", "Tokens that wait for a batch.", &place),
            queue_requests: gauges(&registry, "synod_queue_requests", "Requests that wait for a batch.", &place),
            executor_state: gauges(
                &registry,
                "synod_executor_state",
                "1 for the state that an executor is in, 0 for the others.",
                &["member", "device", "state"],
            ),
            executor_restarts: counters(
                &registry,
                "synod_executor_restarts_total",
                "Times that an executor was built again, by why.",
                &["member", "device", "reason"],
            ),
            request_seconds: register(
                &registry,
                Histogram::with_opts(histogram(
                    "synod_request_seconds",
                    "Time from a decision request's head to its response.",
                    SECONDS,
                )),
            ),
            inflight: register(
                &registry,
                IntGauge::new("synod_inflight", "Decision requests between reading and response."),
            ),
            phases: Phase::ALL.map(|phase| phase_seconds.with_label_values(&[phase.name()])),
            devices: devices::Devices::register(&registry),
            drifts: drift::Drifts::register(&registry),
            process: process::Process::register(&registry),
            registry,
        }
    }

    /// Counts a response. `route` is a route of this program, never a path that a client sent.
    pub fn response(&self, route: &'static str, code: u16) {
        self.requests.with_label_values(&[route, &code.to_string()]).inc();
    }

    /// Counts the end of a decision request.
    pub fn outcome(&self, outcome: Outcome) {
        self.outcomes[outcome as usize].inc();
    }

    /// Counts a refusal by its stable code.
    pub fn rejected(&self, code: &'static str) {
        self.rejected.with_label_values(&[code]).inc();
    }

    /// Counts a question; `kind` is one of the family's own names.
    pub fn question(&self, kind: &'static str) {
        self.questions.with_label_values(&[kind]).inc();
    }

    /// Observes a phase of a request.
    pub fn phase(&self, phase: Phase, time: Duration) {
        self.phases[phase as usize].observe(time.as_secs_f64());
    }

    /// Resolves the handles of the executor of `member` on `device`.
    pub fn executor(&self, member: &str, device: &str) -> ExecutorMetrics {
        let place = [member, device];
        ExecutorMetrics {
            queue_tokens: self.queue_tokens.with_label_values(&place),
            queue_requests: self.queue_requests.with_label_values(&place),
            batch_tokens: self.batch_tokens.with_label_values(&place),
            batch_requests: self.batch_requests.with_label_values(&place),
            computed_tokens: self.tokens.with_label_values(&[member, device, "computed"]),
            cached_tokens: self.tokens.with_label_values(&[member, device, "cached"]),
            prefix_cache: self.prefix_caches.of(&place),
            cancelled: self.cancelled.with_label_values(&place),
            drift: self.drifts.of(member, device),
        }
    }

    /// Removes what is said of the drift of an executor that is gone.
    pub fn forget_drift(&self, member: &str, device: &str) {
        self.drifts.forget(member, device);
    }

    /// Counts a restart of the executor of `member` on `device`.
    pub fn restarted(&self, member: &str, device: &str, reason: &'static str) {
        self.executor_restarts.with_label_values(&[member, device, reason]).inc();
    }

    /// Shows the states of `executors` (member, device, state), each one of `states`, and of no other executor.
    pub(crate) fn executor_states(&self, executors: &BTreeMap<(&str, &str), &str>, states: &[&str]) {
        self.executor_state.reset();
        for ((member, device), state) in executors {
            for name in states {
                self.executor_state.with_label_values(&[member, device, name]).set(i64::from(name == state));
            }
        }
    }

    /// The text of a scrape.
    ///
    /// # Errors
    /// When a family cannot be written as text, which a registered one always can.
    pub(crate) fn encode(&self) -> Result<String, prometheus::Error> {
        self.process.refresh();
        prometheus::TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics::new()
    }
}

fn histogram(name: &str, help: &str, buckets: &[f64]) -> HistogramOpts {
    HistogramOpts::new(name, help).buckets(buckets.to_vec())
}

fn counters(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    register(registry, IntCounterVec::new(Opts::new(name, help), labels))
}

fn gauges(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
    register(registry, IntGaugeVec::new(Opts::new(name, help), labels))
}

/// Names, labels and buckets are constants of this file, each used once: a test makes them all, so none can be refused.
fn register<C: Collector + Clone + 'static>(registry: &Registry, family: prometheus::Result<C>) -> C {
    let family = family.expect("the family's name, labels and buckets are valid constants");
    registry.register(Box::new(family.clone())).expect("each name is registered once");
    family
}

#[cfg(test)]
mod tests {
    use synod_config::Gates;

    use super::*;
    use crate::supervisor::Cards;

    /// A scrape must name every family that design.md promises and that has a subject already.
    #[test]
    fn a_scrape_names_every_family() {
        let metrics = Metrics::new();
        metrics.response("/v1/systemone", 200);
        metrics.outcome(Outcome::Answered);
        metrics.question("choice");
        metrics.rejected("queue_full");
        metrics.phase(Phase::Forward, Duration::from_millis(3));
        let work = Tally { tokens_computed: 7, tokens_cached: 6, prefix_hits: 5, prefix_misses: 4, ..Tally::default() };
        let work = Tally { prefix_evictions: 3, prefix_cache_bytes: 2, ..work };
        metrics.executor("m", "cpu:0").batch_done(&Tally::default(), &work);
        let drift = metrics.executor("m", "cpu:0").drift;
        drift.begin(&["golden".to_owned()], Gates { logit: 1e-4, answer: 2e-5 });
        drift.case(0, "golden", Some(0.25), Some(0.5), true);
        drift.judged(true);
        metrics.restarted("m", "cpu:0", "panic");
        metrics.executor_states(&BTreeMap::from([(("m", "cpu:0"), "ready")]), &["loading", "ready"]);
        metrics.devices.show((Some(2), Some(1)), &Cards::Unknown);
        let text = metrics.encode().unwrap();
        for line in [
            r#"synod_requests_total{code="200",route="/v1/systemone"} 1"#,
            "synod_request_seconds_count 0",
            r#"synod_phase_seconds_bucket{phase="forward",le="0.0025"} 0"#,
            r#"synod_phase_seconds_bucket{phase="forward",le="0.005"} 1"#,
            r#"synod_outcomes_total{outcome="answered"} 1"#,
            r#"synod_questions_total{kind="choice"} 1"#,
            r#"synod_tokens_total{device="cpu:0",kind="computed",member="m"} 7"#,
            r#"synod_tokens_total{device="cpu:0",kind="cached",member="m"} 6"#,
            r#"synod_prefix_cache_hits_total{device="cpu:0",member="m"} 5"#,
            r#"synod_prefix_cache_misses_total{device="cpu:0",member="m"} 4"#,
            r#"synod_prefix_cache_evictions_total{device="cpu:0",member="m"} 3"#,
            r#"synod_prefix_cache_bytes{device="cpu:0",member="m"} 2"#,
            r#"synod_batch_tokens_count{device="cpu:0",member="m"} 1"#,
            r#"synod_batch_requests_count{device="cpu:0",member="m"} 0"#,
            r#"synod_queue_tokens{device="cpu:0",member="m"} 0"#,
            r#"synod_queue_requests{device="cpu:0",member="m"} 0"#,
            "synod_inflight 0",
            r#"synod_rejected_total{reason="queue_full"} 1"#,
            r#"synod_cancelled_total{device="cpu:0",member="m"} 0"#,
            r#"synod_executor_state{device="cpu:0",member="m",state="ready"} 1"#,
            r#"synod_executor_state{device="cpu:0",member="m",state="loading"} 0"#,
            r#"synod_executor_restarts_total{device="cpu:0",member="m",reason="panic"} 1"#,
            r#"synod_device_memory_bytes{device="host",kind="total",member=""} 2"#,
            r#"synod_drift_logit_max{case="golden",device="cpu:0",member="m"} 0.25"#,
            r#"synod_drift_answer_max{case="golden",device="cpu:0",member="m"} 0.5"#,
            r#"synod_drift_gate{device="cpu:0",kind="logit",member="m"} 0.0001"#,
            r#"synod_drift_gate{device="cpu:0",kind="answer",member="m"} 0.00002"#,
            r#"synod_drift_ok{device="cpu:0",member="m"} 1"#,
            r#"synod_verified{device="cpu:0",member="m"} 1"#,
            "synod_build_info{version=",
            "process_open_fds ",
            "process_resident_memory_bytes ",
            "process_cpu_seconds_total ",
        ] {
            assert!(text.contains(line), "no line {line:?} in\n{text}");
        }
    }

    /// Cases come and go with deployments, and a folder may hold more than a scrape should.
    #[test]
    fn cases_that_are_not_replayed_any_more_are_gone_and_not_every_case_is_named() {
        let metrics = Metrics::new();
        let drift = metrics.executor("m", "cpu:0").drift;
        let other = metrics.executor("m", "cpu:1").drift;
        let gates = Gates { logit: 1e-4, answer: 2e-5 };
        let replay = |drift: &DriftMetrics, cases: &[String]| {
            drift.begin(cases, gates);
            for (number, case) in cases.iter().enumerate() {
                drift.case(number, case, None, None, false);
            }
        };
        let shown = |name: &str| metrics.encode().unwrap().lines().filter(|line| line.starts_with(name)).count();
        let many: Vec<String> = (0..1000).map(|number| format!("case-{number}")).collect();
        replay(&drift, &many);
        assert_eq!((shown("synod_drift_logit_max{"), shown("synod_drift_answer_max{")), (100, 100));
        assert!(metrics.encode().unwrap().contains(r#"answer_max{case="case-7",device="cpu:0",member="m"} inf"#));
        replay(&other, &many[..1]);
        replay(&drift, &many[..2]);
        assert_eq!(shown("synod_drift_logit_max{"), 3);
        drift.judged(true);
        assert_eq!(shown("synod_drift_ok{"), 1);
        drift.unverified();
        let left = ["synod_drift_logit_max{", "synod_drift_gate{", "synod_drift_ok{", "synod_verified{"].map(shown);
        assert_eq!(left, [1, 2, 0, 2]);
        metrics.forget_drift("m", "cpu:0");
        assert_eq!((shown("synod_drift_logit_max{"), shown("synod_verified{")), (1, 1));
    }
}
