//! How far executors are from their recorded cases.
//!
//! Names of cases are a deployment's, never a client's, but a folder may hold thousands: those beyond [`MAX_NAMED`] have
//! no distances here, and count in `synod_drift_ok` all the same. What an executor no longer replays is removed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::{GaugeVec, IntGaugeVec, Opts, Registry};
use synod_config::Gates;

use super::{gauges, register};

/// Cases of one executor that have distances of their own.
const MAX_NAMED: usize = 100;

/// The families, of all executors.
#[derive(Clone)]
pub(super) struct Drifts {
    logit_max: GaugeVec,
    answer_max: GaugeVec,
    gate: GaugeVec,
    ok: IntGaugeVec,
    verified: IntGaugeVec,
    /// The cases that have a series, by member and device.
    shown: Arc<Mutex<BTreeMap<Place, BTreeSet<String>>>>,
}

/// Those of one executor.
#[derive(Clone)]
pub struct DriftMetrics {
    place: Arc<Place>,
    drifts: Drifts,
}

/// Member and device.
type Place = [String; 2];

impl Drifts {
    pub(super) fn register(registry: &Registry) -> Self {
        let family =
            |name: &str, help: &str, labels: &[&str]| register(registry, GaugeVec::new(Opts::new(name, help), labels));
        let (place, by_case) = (["member", "device"], ["member", "device", "case"]);
        Drifts {
            logit_max: family(
                "synod_drift_logit_max",
                "Largest distance of a logit from its recording in the last replay, relative to max(1, |recorded|).",
                &by_case,
            ),
            answer_max: family(
                "synod_drift_answer_max",
                "Largest distance of a number of the response from its recording in the last replay.",
                &by_case,
            ),
            gate: family(
                "synod_drift_gate",
                "The gate that replayed cases are held to.",
                &["member", "device", "kind"],
            ),
            ok: gauges(
                registry,
                "synod_drift_ok",
                "Whether every case was within its gates in the last replay.",
                &place,
            ),
            verified: gauges(
                registry,
                "synod_verified",
                "Whether the member was held to recorded cases and is within its gates; 0 without recorded cases.",
                &place,
            ),
            shown: Arc::default(),
        }
    }

    /// The executor of `member` on `device`, which is not verified yet.
    pub(super) fn of(&self, member: &str, device: &str) -> DriftMetrics {
        self.verified.with_label_values(&[member, device]);
        DriftMetrics { place: Arc::new([member.to_owned(), device.to_owned()]), drifts: self.clone() }
    }

    /// Removes all that is said of an executor.
    pub(super) fn forget(&self, member: &str, device: &str) {
        self.forget_replays(&[member.to_owned(), device.to_owned()]);
        let _ = self.verified.remove_label_values(&[member, device]);
    }

    fn forget_replays(&self, place: &Place) {
        self.show(place, BTreeSet::new());
        let [member, device] = place;
        // Errors say that there was none.
        for kind in ["logit", "answer"] {
            let _ = self.gate.remove_label_values(&[member.as_str(), device, kind]);
        }
        let _ = self.ok.remove_label_values(&[member, device]);
    }

    /// Keeps the distances of `cases` of an executor, and no others.
    fn show(&self, place: &Place, cases: BTreeSet<String>) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let before = shown.insert(place.clone(), cases).unwrap_or_default();
        let [member, device] = place;
        for gone in before.difference(&shown[place]) {
            for family in [&self.logit_max, &self.answer_max] {
                // An error says that there was none.
                let _ = family.remove_label_values(&[member, device, gone]);
            }
        }
    }
}

impl DriftMetrics {
    /// What the deployment calls the member.
    pub fn member(&self) -> &str {
        &self.place[0]
    }

    pub fn device(&self) -> &str {
        &self.place[1]
    }

    fn labels(&self) -> [&str; 2] {
        [self.member(), self.device()]
    }

    /// The executor is held to nothing from now on.
    pub fn unverified(&self) {
        self.drifts.forget_replays(&self.place);
        self.drifts.verified.with_label_values(&self.labels()).set(0);
    }

    /// The executor is held to `cases` by `gates` from now on.
    pub fn begin(&self, cases: &[String], gates: Gates) {
        self.drifts.show(&self.place, cases.iter().take(MAX_NAMED).cloned().collect());
        for (kind, gate) in [("logit", gates.logit), ("answer", gates.answer)] {
            self.drifts.gate.with_label_values(&[self.member(), self.device(), kind]).set(gate);
        }
    }

    /// Shows the distances of case `number`. What could not be compared at all is infinitely far.
    pub fn case(&self, number: usize, name: &str, logit: Option<f64>, answer: Option<f64>, is_within: bool) {
        if number >= MAX_NAMED {
            return;
        }
        let beyond = (!is_within && logit.is_none() && answer.is_none()).then_some(f64::INFINITY);
        for (family, distance) in [(&self.drifts.logit_max, logit), (&self.drifts.answer_max, answer)] {
            if let Some(distance) = distance.or(beyond) {
                family.with_label_values(&[self.member(), self.device(), name]).set(distance);
            }
        }
    }

    /// Shows what a replay said: whether all cases were within their gates.
    pub fn judged(&self, is_within: bool) {
        self.drifts.ok.with_label_values(&self.labels()).set(i64::from(is_within));
        self.drifts.verified.with_label_values(&self.labels()).set(i64::from(is_within));
    }
}
