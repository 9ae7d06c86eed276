//! finish
