//! Numeric operations of a decision model behind one [`Device`] trait.
//!
//! A device implements *operations* over packed, unpadded token matrices; it never sees a layer, a member or a
//! request. [`mod@reference`] is the definition of every operation in plain loops, kept for good: each faster
//! implementation is tested against it. [`cpu`] is the implementation that serves on processors.

mod checks;
pub mod cpu;
pub mod device;
pub mod error;
mod host;
mod huge;
pub mod reference;
mod rotary;
#[cfg(test)]
mod tests;

pub use device::{
    AttentionShape, DType, Device, GatedDeltaShape, HostTensor, Packing, PairGroup, Parent, RowSource, Sequence,
    StateShape, States,
};
pub use error::KernelError;
pub use host::{HostEmbedding, HostMatrix, HostState, HostVector, widen};
