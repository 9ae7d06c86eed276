//! Deployment files: from TOML to a [`Deployment`] that leaves nothing to check again.
//!
//! [`Deployment::load`] reads a file, [`Deployment::from_toml`] its text; both report every problem at once, one line
//! each, with the file's line and the key. The types here are plain data: what a device is, whether it exists and
//! whether a member fits is the runtime's business. No environment variable is read, and no default depends on the
//! machine.

mod deployment;
mod error;
mod placement;
mod read;
mod read_member;
mod rules;
mod table;
#[cfg(test)]
mod tests;

pub use deployment::{Anchor, Deployment, Gates, Key, Limits, Member, OnDrift, Profile, Queue, Server};
pub use error::{ConfigError, Finding, Place};
pub use placement::{Card, Cores, Placement};
