//! `synod verify`: reads every listed file of a package or a bundle and says what it was compared with.

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};

use super::anchor::AnchorArgument;
use super::progress::Bar;
use super::table::table;
use crate::member::verify::{Verification, VerifiedFile, verify};

/// Verify a package or a bundle, every file of it.
///
/// What is neither a released package nor anchored fails, and its digest is printed so that it can be anchored.
#[derive(clap::Args)]
pub(super) struct Verify {
    /// Folder of the package or bundle
    #[arg(value_name = "PATH")]
    path: PathBuf,
    #[command(flatten)]
    anchor: AnchorArgument,
}

/// The columns of the account. The time is that of reading and hashing one file beside others.
const HEADER: [&str; 5] = ["file", "bytes", "seconds", "sha256", "compared with"];

impl Verify {
    pub(super) fn run(self) -> Result<()> {
        let started = Instant::now();
        let trust = self.anchor.trust()?;
        let verified =
            verify(&self.path, trust, &Bar::new("verifying")).with_context(|| self.path.display().to_string())?;
        let seconds = started.elapsed().as_secs_f64();
        stdout().write_all(account(&verified, seconds).as_bytes()).context("stdout")
    }
}

fn account(verified: &Verification, seconds: f64) -> String {
    let rows: Vec<_> = [HEADER.map(str::to_owned)].into_iter().chain(verified.files.iter().map(row)).collect();
    // The names of what nobody vouches for are anybody's.
    let mut lines: Vec<_> =
        verified.unlisted.iter().map(|file| format!("{}: not listed, not used", file.escape_debug())).collect();
    lines.push(format!("{}, each of the name, dtype and shape that the config calls for", verified.tensors));
    let total_bytes: u64 = verified.files.iter().map(|file| file.size_bytes).sum();
    let released = |release: &String| format!("its release, {release}");
    let trusted_by = verified.release.as_ref().map_or_else(|| "its anchor".to_owned(), released);
    let (form, name, count) = (verified.form, verified.model_name.escape_debug(), verified.files.len());
    lines.push(format!(
        "verified {form} of {name} by {trusted_by}: {count} files, {total_bytes} bytes in {seconds:.1} s\n"
    ));
    table(&rows) + &lines.join("\n")
}

fn row(file: &VerifiedFile) -> [String; HEADER.len()] {
    [
        file.name.escape_debug().to_string(),
        file.size_bytes.to_string(),
        format!("{:.3}", file.elapsed.as_secs_f64()),
        file.digest.to_string(),
        file.against.to_string(),
    ]
}
