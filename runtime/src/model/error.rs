//! Why a model could not be loaded or could not compute.

use synod_kernels::KernelError;

use crate::family::SpanHead;
use crate::member::MemberError;

/// Why a model could not be loaded, or why one call failed. Nothing here holds text of a request; what is said of one
/// is a number or a position.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The member's files could not be read or are not what was verified.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// A tensor that the config calls for is not in the member's files.
    #[error("tensor {name}: expected in the member's files, found none; export the member again")]
    MissingTensor { name: String },
    /// A tensor that the config does not call for, or that comes a second time.
    #[error("tensor {name}: expected once at most and only if the config calls for it; export the member again")]
    UnexpectedTensor { name: String },
    /// A tensor's shape is not the one that the config calls for.
    #[error("tensor {name}: shape: expected {expected:?}, found {found:?}; export the member again")]
    TensorShape { name: String, expected: Vec<usize>, found: Vec<usize> },
    /// The device refused a tensor.
    #[error("tensor {name}: {source}")]
    LoadTensor { name: String, source: KernelError },
    /// A token id of a tree is not in the vocabulary.
    #[error("token id: expected below {vocab_size}, found {id}")]
    TokenId { id: u32, vocab_size: usize },
    /// A readout points outside its block, or a label covers no token.
    #[error("readout of block {block} of tree {tree}: expected positions in a block of {len} tokens, found {position}")]
    Readout { tree: usize, block: usize, len: usize, position: u32 },
    /// A block asks for a span head that this member does not have.
    #[error("span head {}: this member has none", .head.name())]
    NoSpanHead { head: SpanHead },
    /// Inputs that were given to a head are not of the shape that its readout calls for.
    #[error("head inputs: expected {expected:?} values, found {found}")]
    HeadInputs { expected: [usize; 2], found: usize },
    /// Trees of one batch hold more rows than a device can address.
    #[error("batch: expected at most {max} tokens, found {found}")]
    BatchTokens { max: usize, found: usize },
    /// Nobody wanted the logits any more before they were computed.
    #[error("abandoned: nobody waits for the logits")]
    Abandoned,
    /// An operation failed on the device.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

impl ModelError {
    /// Whether the trees that were given are to blame. Everything else is the device's or the member's: the same trees
    /// may be computed elsewhere, and the next ones may fail here.
    pub fn is_of_request(&self) -> bool {
        match self {
            ModelError::TokenId { .. }
            | ModelError::Readout { .. }
            | ModelError::NoSpanHead { .. }
            | ModelError::HeadInputs { .. }
            | ModelError::BatchTokens { .. } => true,
            ModelError::Member(_)
            | ModelError::MissingTensor { .. }
            | ModelError::UnexpectedTensor { .. }
            | ModelError::TensorShape { .. }
            | ModelError::LoadTensor { .. }
            | ModelError::Abandoned
            | ModelError::Kernel(_) => false,
        }
    }
}
