//! The anchor of a command that names one member.

use anyhow::{Context, Result};

use crate::member::{Anchor, Trust};

/// Where an anchor may stand that should not be on the command line. Only where one member is named: a deployment may have
/// many, and each has its anchor in the file.
const VARIABLE: &str = "SYNOD_ANCHOR";

/// `--anchor`, or the environment.
#[derive(clap::Args)]
pub(super) struct AnchorArgument {
    // As text: backticks, which documentation would need, have no place in a help page.
    #[arg(
        long,
        value_name = "ANCHOR",
        help = "sha256:HEX of a bundle's manifest.json or a package's MODEL_MANIFEST.json, unless it is a released package [env: SYNOD_ANCHOR]"
    )]
    anchor: Option<Anchor>,
}

impl AnchorArgument {
    /// What makes the member trusted.
    pub(super) fn trust(&self) -> Result<Trust> {
        let anchor = match self.anchor {
            Some(anchor) => Some(anchor),
            None => from_environment()?,
        };
        Ok(anchor.map_or(Trust::Released, Trust::Anchored))
    }
}

fn from_environment() -> Result<Option<Anchor>> {
    let Some(anchor) = std::env::var_os(VARIABLE) else { return Ok(None) };
    let anchor = anchor.to_str().unwrap_or_default().parse().context(VARIABLE)?;
    Ok(Some(anchor))
}
