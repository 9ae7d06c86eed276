//! `synod check`: everything about a deployment that can be known without loading weights.

use std::io::{Write, stdout};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use synod_config::{Deployment, Member};

use super::one_line;
use super::table::table;
use crate::family::vela::Vela;
use crate::model::memory::mib;
use crate::model::qwen3_5::config::TensorSpec;
use crate::replay::Recordings;
use crate::supervisor::{self, Wanted};
use crate::wire::request::Limits;

/// Check a deployment file and the packages that it names, without loading weights.
///
/// Reads and verifies every file of a package but the bytes of its weights, whose headers are checked against the
/// config. Devices are not looked for: a deployment may be checked on another machine.
#[derive(clap::Args)]
pub(super) struct Check {
    /// The deployment file
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// The columns of the report.
const HEADER: [&str; 8] =
    ["member", "model", "profile", "devices", "memory (MiB)", "parameters", "max tokens", "trusted by"];

impl Check {
    pub(super) fn run(self) -> Result<()> {
        let (deployment, warnings) = Deployment::load(&self.config)?;
        for warning in &warnings {
            eprintln!("{warning}");
        }
        let mut rows = vec![HEADER.map(str::to_owned)];
        let mut problems = Vec::new();
        for member in &deployment.members {
            if let Err(error) = supervisor::check_served(member) {
                problems.push(error.to_string());
                continue;
            }
            match inspect(member, &deployment) {
                Ok(row) => rows.push(row),
                Err(error) => problems.push(format!("{}: {}", member.name, one_line(&error))),
            }
        }
        if !problems.is_empty() {
            bail!(problems.join("\n"));
        }
        stdout().write_all(table(&rows).as_bytes()).context("stdout")
    }
}

/// Opens a member's package and reads its tokenizer and calibration; a row of the report.
fn inspect(member: &Member, deployment: &Deployment) -> Result<[String; HEADER.len()]> {
    let path = || member.path.display().to_string();
    let package = supervisor::open(member).with_context(path)?;
    let vela = Vela::of_package(&package, member.noul_calibration, Limits::default()).with_context(path)?;
    Recordings::find(member.replay.as_deref(), package.model_name(), &vela, member.gates)?;
    let config = package.config();
    let broad = if package.has_broad_head() { config.broad_inventory() } else { Vec::new() };
    let limits = deployment.server.limits;
    let wanted = Wanted::of(member, &package, deployment.queue.batch_tokens, limits.max_options);
    let memory = |placement| Ok(mib(wanted.need(supervisor::hardware(placement)?).total()).to_string());
    let memory = member.placements.iter().map(memory).collect::<Result<Vec<_>>>()?;
    let parameters: usize = config.inventory().iter().chain(&broad).map(TensorSpec::elements).sum();
    Ok([
        member.name.clone(),
        package.model_name().to_owned(),
        member.profile.name().to_owned(),
        member.placements.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
        memory.join(" "),
        parameters.to_string(),
        config.max_length.to_string(),
        if member.anchor.is_some() { "its anchor" } else { "its release" }.to_owned(),
    ])
}
