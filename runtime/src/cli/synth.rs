//! `synod synth`: a member with random weights, where no released ones are.

use std::io::{Write, stdout};
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::progress::Bar;
use crate::member::synth::{self, Shape, SynthSpec};

/// Write a member with reproducible random weights and the shape of a released one.
///
/// Its answers mean nothing; its speed and its numbers can be compared. It is served like any local member, by the
/// anchor that is printed.
#[derive(clap::Args)]
pub(super) struct Synth {
    /// tiny, 0.8b, 4b or 9b
    #[arg(long)]
    shape: Shape,
    /// Layers of the backbone, a multiple of four; by default the shape's own
    #[arg(long)]
    layers: Option<usize>,
    /// Rows of the embedding, 2000 or more; by default the shape's own
    #[arg(long)]
    vocab: Option<usize>,
    /// Which of the random members
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder to write, absent or empty
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

impl Synth {
    pub(super) fn run(self) -> Result<()> {
        let Synth { shape, layers, vocab, seed, out } = self;
        let report = synth::write(&SynthSpec { shape, layers, vocab, seed }, &out, &Bar::new("writing"))?;
        let (name, parameters) = (report.model_name, report.parameters);
        writeln!(stdout(), "{name}: {parameters} random parameters\nanchor = \"{}\"", report.anchor).context("stdout")
    }
}
