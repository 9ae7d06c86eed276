//! `synod plan`: what members take, and whether it fits on machines that are not here.

mod cards;
mod report;
mod rooms;

use std::io::{Write, stdout};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use synod_config::{Deployment, Placement};

use self::cards::{read_cards, read_host};
use self::rooms::{Layout, Planned};
use super::one_line;
use crate::supervisor::{self, Wanted};

/// Say how much memory the members of a deployment take, and what fits where.
///
/// Packages are opened as `check` opens them, their weights are not read. Every profile is shown, also those that this
/// build does not serve. Ends with 1 if something does not fit.
#[derive(clap::Args)]
pub(super) struct Plan {
    /// The deployment file
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Cards in the order of their numbers, such as 4x24GiB,2x80GiB; with @120TFLOPS a rate for a bound on speed
    #[arg(long, value_name = "CARDS")]
    cards: Option<String>,
    /// Memory for members on processors, such as 64GiB; by default what is available here
    #[arg(long, value_name = "SIZE")]
    host: Option<String>,
}

impl Plan {
    pub(super) fn run(self) -> Result<()> {
        let cards = self.cards.as_deref().map(read_cards).transpose()?;
        let given_host = self.host.as_deref().map(read_host).transpose()?;
        let (deployment, warnings) = Deployment::load(&self.config)?;
        for warning in &warnings {
            eprintln!("{warning}");
        }
        let wanted = open_all(&deployment)?;
        let planned = planned(&deployment, &wanted)?;
        let host_bytes = given_host.or_else(supervisor::available_host_bytes);
        let layout = Layout::of(&planned, cards.as_deref(), host_bytes);
        let mut text = report::needs(&planned);
        text += &report::fits(&layout, given_host.is_some());
        text += &report::unplaced(&planned, &layout, cards.is_some());
        stdout().write_all(text.as_bytes()).context("stdout")?;
        match report::misfits(&layout) {
            misfits if misfits.is_empty() => Ok(()),
            misfits => bail!("does not fit: {}", misfits.join(", ")),
        }
    }
}

/// What every member wants.
fn open_all(deployment: &Deployment) -> Result<Vec<Wanted>> {
    let (mut wanted, mut problems) = (Vec::new(), Vec::new());
    for member in &deployment.members {
        match supervisor::open(member).with_context(|| member.path.display().to_string()) {
            Ok(files) => {
                let (batch_tokens, limits) = (deployment.queue.batch_tokens, deployment.server.limits);
                wanted.push(Wanted::of(member, &files, batch_tokens, limits.max_options));
            }
            Err(error) => problems.push(format!("{}: {}", member.name, one_line(&error))),
        }
    }
    if problems.is_empty() { Ok(wanted) } else { bail!(problems.join("\n")) }
}

fn planned<'a>(deployment: &'a Deployment, wanted: &'a [Wanted]) -> Result<Vec<Planned<'a>>> {
    let members = deployment.members.iter().zip(wanted);
    let planned = members.map(|(member, wanted)| {
        let hardware = |placement: &'a Placement| Ok((placement, supervisor::hardware(placement)?));
        let placements = member.placements.iter().map(hardware).collect::<Result<_>>()?;
        Ok(Planned { member: &member.name, wanted, placements })
    });
    planned.collect()
}
