//! The CPU implementation of the operations.
