//! The one error type of this crate.

/// Why an operation could not run. `op` is the operation's name in [`crate::Device`], `what` the part of its operands.
///
/// Every variant names the operation; nothing here is a property of a request's text.
#[allow(missing_docs)] // The fields are what the messages say.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// An operand's dimension is not what the other operands call for.
    #[error("{op}: {what}: expected {expected}, found {found}")]
    Shape { op: &'static str, what: &'static str, expected: usize, found: usize },
    /// A tensor's element type cannot be used here.
    #[error("{op}: {what}: expected {expected}, found {found}")]
    DType { op: &'static str, what: &'static str, expected: &'static str, found: &'static str },
    /// A token id, row or position lies outside the table it indexes.
    #[error("{op}: {what}: expected an index below {bound}, found {index}")]
    Index { op: &'static str, what: &'static str, index: usize, bound: usize },
    /// The embedding file could not be read, or a row no longer has the bytes that were verified.
    #[error("{op}: {message}")]
    Rows { op: &'static str, message: String },
    /// Device memory or threads could not be had.
    #[error("{op}: {message}")]
    Resource { op: &'static str, message: String },
}
