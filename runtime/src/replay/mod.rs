//! Recorded cases replayed: what a member does of a request, step by step, against what a reference did.
//!
//! [`Case::read`] makes sure that a file is consistent in itself; [`Case::compare`] holds a member's plan, logits and
//! response to it, [`Case::compare_heads`] its heads alone. Both are free of I/O and of any command: a check at start
//! and one on the command line are the same.
//!
//! Invariant: structure, dimensions and finiteness are checked before anything is reduced to a distance, and every
//! recorded reading of a question is compared exactly once. Gates only ever come from
//! [`Profile::gates`](synod_config::Profile::gates) or tighter. Absent on purpose: recording (recipe/vela), and what
//! happens to a member that is out of its gates.

mod calls;
mod case;
mod compare;
mod difference;
mod folder;
mod record;

pub use case::{Case, ReadError, ReadProblem};
pub use compare::{CaseReport, DECIDED_MARGIN, HEAD_GATE, RECORDED_GATE};
pub use difference::Difference;
#[cfg(test)]
pub(crate) use difference::compare_json;
pub use folder::case_files;
#[cfg(test)]
pub(crate) use record::TruncationRecord;
