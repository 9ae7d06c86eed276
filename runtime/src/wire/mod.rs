//! What crosses the socket: strict reading, exact writing, and the plain types between the two.
//!
//! `wire` knows JSON, code points and numbers as Python writes them; it knows no tokens and no devices.

pub mod canonical;
pub mod json;
pub mod request;
pub mod response;
