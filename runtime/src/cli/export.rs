//! `synod export`: a package becomes a bundle.

use std::io::{Write, stdout};
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Subcommand, ValueEnum};

use super::anchor::AnchorArgument;
use super::progress::Bar;
use crate::member::export::{BundleReport, ExportPart, ExportProfile, ExportReport, ExportSpec, export};
use crate::metrics::peak_resident_bytes;

/// Make the bundle of a package: verified once, and again at every load.
///
/// Prints each bundle's anchor, which a deployment needs to load it.
#[derive(clap::Args)]
pub(super) struct Export {
    #[command(subcommand)]
    family: Family,
}

#[derive(Subcommand)]
enum Family {
    /// A Vela 2.0 decoder member
    Vela(Vela),
}

#[derive(clap::Args)]
struct Vela {
    /// Folder of the package
    #[arg(long, value_name = "PATH")]
    package: PathBuf,
    /// Folder to write, absent or empty
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    #[command(flatten)]
    anchor: AnchorArgument,
    /// Weights as they are, all of the backbone in BF16, or the first with the second in its folder bf16
    #[arg(long, value_enum, default_value = "faithful")]
    profile: Profile,
    /// Leave the heads out
    #[arg(long, conflicts_with = "heads_only")]
    executor_only: bool,
    /// Leave the backbone out
    #[arg(long)]
    heads_only: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Profile {
    Faithful,
    Bf16,
    Both,
}

impl Export {
    pub(super) fn run(self) -> Result<()> {
        let Family::Vela(vela) = self.family;
        let Vela { package, out, anchor, profile, executor_only, heads_only } = vela;
        let profile = match profile {
            Profile::Faithful => ExportProfile::Faithful,
            Profile::Bf16 => ExportProfile::Bf16,
            Profile::Both => ExportProfile::Both,
        };
        let part = match (executor_only, heads_only) {
            (true, _) => ExportPart::ExecutorOnly,
            (_, true) => ExportPart::HeadsOnly,
            _ => ExportPart::Whole,
        };
        let spec = ExportSpec { profile, part };
        let report = export(&package, anchor.trust()?, spec, &out, &Bar::new("exporting"))?;
        stdout().write_all(account(&report).as_bytes()).context("stdout")
    }
}

fn account(report: &ExportReport) -> String {
    let model_name = report.model_name.escape_debug();
    let mut lines = Vec::new();
    for BundleReport { path, profile, anchor, tensors, size_bytes } in &report.bundles {
        lines.push(format!("{}: {profile} bundle of {model_name}: {tensors}, {size_bytes} bytes", path.display()));
        lines.push(format!("anchor = \"{anchor}\""));
    }
    lines.extend(peak_resident_bytes().map(|bytes| format!("peak memory {} MiB", bytes >> 20)));
    lines.join("\n") + "\n"
}
