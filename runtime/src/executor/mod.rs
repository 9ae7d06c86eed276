//! Executors: one device and one loaded member each, on a thread of its own.
//!
//! An [`Executor`] runs the device and nothing else: it takes whole requests from its queue, forms a batch, runs the
//! forward and sends raw logits back. Whoever has a [`Handle`] may submit [`Work`]; it is withdrawn, waiting or
//! running, when nobody waits for it any more or every deadline has passed.
//!
//! Invariant: everybody who waits for a job gets exactly one reply, and what they occupy stays counted until the job is
//! gone. A panic or an error ends a batch, never the thread. Absent on purpose: deciding when to build again (the
//! supervisor's), where lost work goes and what a reply means to a client (admission's).

mod actor;
mod batch;
mod drift;
mod handle;
mod job;
mod lanes;
mod queue;
mod rate;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::family::Family;
use crate::member::Progress;
use crate::model::Forward;

pub use actor::{Batching, Build, Event, Executor, Report, Retire, Wake};
pub use drift::{Cases, Drift, OpenCase, Replay, Standing, Unopened};
pub use handle::{Handle, Joinable, Reply};
pub use job::{Computed, Failure, Occupied, Work};
pub use lanes::Lane;
pub use queue::Queue;

/// Makes what an executor holds. It is called on the executor's thread, at the start and after every fault; it outlives
/// that thread, so that a lost one can be replaced.
pub type Factory = Arc<dyn Fn(&LoadProgress) -> Result<Loaded, Box<dyn Error + Send + Sync>> + Send + Sync>;

/// A member, loaded for one device.
pub struct Loaded {
    pub forward: Box<dyn Forward>,
    pub face: Arc<Face>,
    /// Absent if nothing was recorded of the member.
    pub replay: Option<Replay>,
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
