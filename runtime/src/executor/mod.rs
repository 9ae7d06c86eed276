//! Executors: one device and one loaded member each, on a thread of its own.
//!
//! An [`Executor`] runs the device and nothing else: it takes whole requests from its queue, forms a batch, runs the
//! forward and sends raw logits back. Whoever has a [`Handle`] and a [`Ticket`] may submit work; it is withdrawn,
//! waiting or running, when the submitter is gone or its deadline has passed.
//!
//! Invariant: every [`Job`] gets exactly one reply while its submitter waits for it, and what its request occupies
//! stays counted until the job is gone. A panic or an error ends a batch, never the thread. Absent on purpose:
//! deciding when to build again (the supervisor's) and what a reply means to a client (admission's).

mod actor;
mod batch;
mod health;
mod queue;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::admission::Ticket;
use crate::family::{Family, Logits, Plan};
use crate::member::Progress;
use crate::model::Forward;

pub use actor::{Build, Event, Executor, Report, Wake};
pub use queue::{Handle, Queue, Reply};

/// Makes what an executor holds. It is called on the executor's thread, at the start and after every fault.
pub type Factory = Box<dyn Fn(&LoadProgress) -> Result<Loaded, Box<dyn Error + Send + Sync>> + Send>;

/// A member, loaded for one device.
pub struct Loaded {
    pub forward: Box<dyn Forward>,
    pub face: Arc<Face>,
}

/// What the rest of the program needs to know of a loaded member: its reading half and what identifies it.
pub struct Face {
    pub family: Arc<dyn Family>,
    /// The family's name, as `/v1/models` shows it.
    pub family_name: &'static str,
    /// The member's own name, as its package says.
    pub model_name: String,
    /// `sha256:…` of the manifest that the member was verified by.
    pub digest: String,
}

/// One request's work.
pub struct Job {
    plan: Plan,
    /// What the request occupies; it goes on with the logits.
    ticket: Ticket,
    tokens: usize,
    submitted: Instant,
    deadline: Instant,
    reply: oneshot::Sender<Result<Computed, Failure>>,
    /// Un-counts the job's tokens wherever it ends.
    load: queue::Counted,
}

/// A job's logits, `[tree][block]` in the order of its plan, and how long they took.
#[derive(Debug)]
pub struct Computed {
    pub logits: Vec<Vec<Logits>>,
    pub ticket: Ticket,
    /// From submission to the start of the batch.
    pub queue: Duration,
    /// Of the whole batch that it was computed in.
    pub forward: Duration,
}

/// Why a job has no logits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The forward failed on this job's trees or panicked on its batch. `reason` is for the log: it holds numbers and
    /// names of tensors, never a text of the request.
    #[error("inference failed: {reason}")]
    Inference { reason: String },
    /// The deadline passed while the job waited or ran.
    #[error("the deadline passed")]
    Deadline,
    /// The executor is down and could not be built again.
    #[error("executor is down")]
    Down,
}

/// How far a load is, in bytes. Written by the loading thread, read by whoever reports readiness.
#[derive(Debug, Default)]
pub struct LoadProgress {
    total_bytes: AtomicU64,
    done_bytes: AtomicU64,
}

impl LoadProgress {
    /// Bytes read, and bytes to read as far as known.
    pub fn bytes(&self) -> (u64, u64) {
        (self.done_bytes.load(Ordering::Relaxed), self.total_bytes.load(Ordering::Relaxed))
    }
}

impl Progress for LoadProgress {
    fn start(&self, total_bytes: u64) {
        self.total_bytes.store(total_bytes, Ordering::Relaxed);
    }

    fn advance(&self, bytes: u64) {
        self.done_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
