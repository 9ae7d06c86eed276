//! Recorded cases replayed: what a member does of a request, step by step, against what a reference did.
//!
//! [`Case::read`] makes sure that a file is consistent in itself; [`Case::compare`] holds a member's plan, logits and
//! response to it, [`Case::compare_heads`] its heads alone. [`Case::prepare`] and [`Case::judge`] are the same for
//! whoever runs the forward itself: an executor, through [`Recordings`], at its start and while it is idle.
//!
//! Invariant: structure, dimensions and finiteness are checked before anything is reduced to a distance, and every
//! recorded reading of a question is compared exactly once. Gates only ever come from
//! [`Profile::gates`](synod_config::Profile::gates) or tighter. Absent on purpose: recording (recipe/vela), what
//! happens to a member that is out of its gates (the executor's), and how a refusal is written (whoever compares one
//! brings the table).

mod calls;
mod case;
mod compare;
mod difference;
mod folder;
mod record;
mod recordings;
mod released;

pub use case::{Case, ReadError, ReadProblem};
pub use compare::{
    CaseReport, DECIDED_MARGIN, HEAD_GATE, Prepared, RECORDED_GATE, Unanswerable, Written, decided_margin,
};
pub use difference::Difference;
#[cfg(test)]
pub(crate) use difference::compare_json;
pub use folder::case_files;
#[cfg(test)]
pub(crate) use record::TruncationRecord;
pub use recordings::{FolderError, Recordings};
