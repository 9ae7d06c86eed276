//! `synod ask`: one request to a member on this machine, without a server.

use std::fs;
use std::io::{Read, Write, stdin, stdout};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use synod_config::Profile;
use synod_kernels::cpu::CpuDevice;

use super::anchor::AnchorArgument;
use super::local::{LocalMember, compute};
use super::progress::Bar;
use crate::admission::Refused;
use crate::http::Problem;
use crate::wire::json;
use crate::wire::request::{Limits, Request, Strictness};
use crate::wire::response::write_decision;

/// Answer one request with a member on this machine, without a server.
///
/// Writes the response to stdout. A request that a server would refuse is refused with the same body on stderr.
#[derive(clap::Args)]
pub(super) struct Ask {
    /// Folder of the member's package; without it, a small member with random weights answers
    #[arg(long, value_name = "PATH")]
    member: Option<PathBuf>,
    #[command(flatten)]
    anchor: AnchorArgument,
    /// Let every question succeed or fail by itself, as POST /v1/decisions does
    #[arg(long)]
    decisions: bool,
    /// The request's JSON: a file, or - for stdin
    #[arg(value_name = "REQUEST.json")]
    request: PathBuf,
}

impl Ask {
    pub(super) fn run(self) -> Result<()> {
        let member = if let Some(path) = &self.member {
            LocalMember::open(path, self.anchor.trust()?, Profile::Fp32)?
        } else {
            eprintln!("no --member is given: a member with random weights answers, and its answers mean nothing");
            LocalMember::demo()?
        };
        let response = answer(&member, &read_body(&self.request)?, self.strictness())?;
        writeln!(stdout(), "{response}").context("stdout")
    }

    fn strictness(&self) -> Strictness {
        if self.decisions { Strictness::PerQuestion } else { Strictness::AllOrNothing }
    }
}

fn read_body(path: &Path) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    if path == Path::new("-") {
        stdin().read_to_end(&mut body).context("stdin")?;
        return Ok(body);
    }
    fs::read(path).with_context(|| path.display().to_string())
}

/// The response. The request is read before the weights are loaded, so that a bad one is refused at once. Its `model`
/// is not looked at: there is only this one.
fn answer(member: &LocalMember, body: &[u8], strictness: Strictness) -> Result<String> {
    let body = json::parse(body).map_err(refusal)?;
    let render = |request: &Request| member.family().render(&request.state, &request.questions, strictness);
    let request = Request::read(body, &Limits::default())
        .map_err(|problem| refusal(Refused::Invalid(problem.into_details(|request| render(request).err()))))?;
    let rendered = render(&request).map_err(refusal)?;
    let mut model = member.load(&CpuDevice::available_cores()?, &Bar::new("loading"))?;
    let logits = compute(&mut model, &rendered)?;
    let decision = rendered.pending.finish(&logits).map_err(refusal)?;
    Ok(write_decision(member.package().model_name(), &decision))
}

/// The body that a server would send.
fn refusal(refused: impl Into<Refused>) -> anyhow::Error {
    anyhow!(Problem::from(refused.into()).body())
}
