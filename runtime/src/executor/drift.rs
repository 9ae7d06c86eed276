//! Recorded cases that an executor is held to: at the start, and again whenever it has been idle for long enough.
//!
//! A case is read, laid out and judged elsewhere; here it runs on the device. Invariant: one case is in memory at a
//! time, and work that comes while it runs on idle time ends it: it is replayed later, and to its end if that has happened
//! [`INTERRUPTIONS`] times. Absent on purpose: refused requests, in which no device has a part.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use synod_config::{Gates, OnDrift};

use super::actor::{Fault, guarded_forward};
use crate::family::{Logits, Plan, Tree};
use crate::metrics::DriftMetrics;
use crate::model::Forward;

/// Recorded cases, and what they are for.
#[derive(Clone)]
pub struct Replay {
    pub cases: Arc<dyn Cases>,
    /// From the end of one round to the next.
    pub every: Duration,
    pub on_drift: OnDrift,
}

/// The recorded cases of a member.
pub trait Cases: Send + Sync {
    /// By name, in the order in which they are replayed.
    fn names(&self) -> &[String];

    /// What they are judged by.
    fn gates(&self) -> Gates;

    /// Reads the case of this number and lays its request out; nothing if no device has a part in it.
    ///
    /// # Errors
    /// [`Unopened`].
    fn open(&self, number: usize) -> Result<Option<Box<dyn OpenCase + '_>>, Unopened>;
}

/// A case that was read.
pub trait OpenCase {
    /// What is to be computed.
    fn plan(&self) -> &Plan;

    /// How far the logits of the plan, `[tree][block]`, and the response that they give are from the recorded ones.
    fn judge(&self, logits: &[Vec<Logits>]) -> Drift;
}

/// Why a case has nothing to compute. One line each.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unopened {
    /// It cannot be read, which says nothing of the member.
    #[error("{0}")]
    Unreadable(String),
    /// The member does not read its request as recorded.
    #[error("{0}")]
    Differs(String),
}

/// How far a member is from a case.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Drift {
    /// The largest distance of a logit, relative to `max(1, |recorded|)`; none where no logits were recorded.
    pub logit: Option<f64>,
    /// The largest distance of a number of the response; none where rounding alone may flip a decision of it.
    pub answer: Option<f64>,
    /// The first thing that is not as recorded, or beyond its gate: place, expected, found.
    pub difference: Option<String>,
}

/// What the last replay said of an executor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// There are no recorded cases of its member.
    #[default]
    Unverified,
    /// Everything was as recorded, within the gates.
    Verified,
    /// It serves all the same, as its deployment says. `reason` names the first case and its place.
    Drifted { reason: String },
}

impl Standing {
    /// Its name in health and model lists.
    pub fn name(&self) -> &'static str {
        match self {
            Standing::Unverified => "unverified",
            Standing::Verified => "verified",
            Standing::Drifted { .. } => "drifted",
        }
    }
}

/// How often work may end a case before the case is run to its end: where the device is never idle for as long as a case
/// takes, no round would ever be over.
const INTERRUPTIONS: u32 = 8;

/// A round of replays: every case once.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// The number of the next case.
    next: usize,
    /// Cases that were computed and judged.
    judged: usize,
    /// Cases that are not as recorded.
    failed: usize,
    /// The first of them, with its difference.
    first: Option<String>,
    /// Whether it stands still because work waits.
    pub(super) is_interrupted: bool,
    /// How often work has ended the next case.
    interruptions: u32,
}

impl Round {
    /// Whether every case has had its turn.
    pub(super) fn is_over(&self, replay: &Replay) -> bool {
        self.next >= replay.cases.names().len()
    }

    /// What the cases so far say, where nothing else was known of the member.
    pub(super) fn standing(&self) -> Standing {
        match (&self.first, self.judged) {
            (Some(first), _) if self.failed > 1 => {
                Standing::Drifted { reason: format!("{first}; {} cases are out of their gates", self.failed) }
            }
            (Some(first), _) => Standing::Drifted { reason: first.clone() },
            (None, 0) => Standing::Unverified,
            (None, _) => Standing::Verified,
        }
    }

    fn add(&mut self, name: &str, drift: &Drift) {
        self.judged += 1;
        if let Some(difference) = &drift.difference {
            self.failed += 1;
            self.first.get_or_insert_with(|| format!("case {name}: {difference}"));
        }
    }

    /// Whether the next case has given way to work often enough.
    pub(super) fn is_overdue(&self) -> bool {
        self.interruptions >= INTERRUPTIONS
    }

    /// Counts that work has ended the next case.
    pub(super) fn interrupt(&mut self) {
        self.is_interrupted = true;
        self.interruptions += 1;
    }

    /// Replays the next case. True if it is as recorded, or could not be told. `keep_going` is as of [`Forward::forward`].
    ///
    /// # Errors
    /// [`Fault`] of the forward: nothing was learned of the case. One that was abandoned is the next one still.
    pub(super) fn replay_next(
        &mut self,
        forward: &mut dyn Forward,
        replay: &Replay,
        keep_going: &dyn Fn() -> bool,
        is_start: bool,
        metrics: &DriftMetrics,
    ) -> Result<bool, Fault> {
        let number = self.next;
        let name = &replay.cases.names()[number];
        let replayed = catch_unwind(AssertUnwindSafe(|| replay_case(forward, &*replay.cases, number, keep_going)));
        let replayed = replayed.map_err(|_| Fault::Panic)??;
        self.next += 1;
        self.interruptions = 0;
        let drift = match replayed {
            Ok(None) => return Ok(true),
            Ok(Some(drift)) => drift,
            // A file that went away is no reason to take a member out of service that was held to it already.
            Err(Unopened::Unreadable(reason)) if !is_start => {
                tracing::warn!(member = metrics.member(), device = metrics.device(), reason, "a case is not replayed");
                return Ok(true);
            }
            Err(unopened) => Drift { difference: Some(unopened.to_string()), ..Drift::default() },
        };
        metrics.case(number, name, drift.logit, drift.answer, drift.difference.is_none());
        if let Some(difference) = &drift.difference {
            let (member, device) = (metrics.member(), metrics.device());
            tracing::error!(member, device, case = name, difference, "out of its gate");
        }
        self.add(name, &drift);
        Ok(drift.difference.is_none())
    }
}

fn replay_case(
    forward: &mut dyn Forward,
    cases: &dyn Cases,
    number: usize,
    keep_going: &dyn Fn() -> bool,
) -> Result<Result<Option<Drift>, Unopened>, Fault> {
    let case = match cases.open(number) {
        Ok(Some(case)) => case,
        Ok(None) => return Ok(Ok(None)),
        Err(unopened) => return Ok(Err(unopened)),
    };
    let trees: Vec<&Tree> = case.plan().trees.iter().collect();
    // Kept prefixes are what the device computed when it was well.
    forward.use_prefix_cache(false);
    let logits = guarded_forward(forward, &trees, keep_going);
    forward.use_prefix_cache(true);
    Ok(Ok(Some(case.judge(&logits?))))
}
