//! Synod from outside: what the end-to-end tests share.
//!
//! A test writes a [`deployment`], starts the process of [`server`] on a free port, talks to it over plain sockets or
//! through [`http`], and compares what came back with [`json_text`]. Nothing here knows a private item of the product:
//! expected values are those of the recorded [`fixtures`] and of the specification.

pub mod deployment;
pub mod fixtures;
pub mod http;
pub mod json_text;
pub mod server;
