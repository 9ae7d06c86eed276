//! `synod replay`: a member against recorded cases.

use std::io::{Write, stdout};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use synod_config::{Gates, Profile};
use synod_kernels::cpu::CpuDevice;

use super::anchor::AnchorArgument;
use super::local::LocalMember;
use super::progress::Bar;
use crate::http::written;
use crate::member::Excerpt;
use crate::model::Model;
use crate::replay::{Case, CaseReport, DECIDED_MARGIN, HEAD_GATE, RECORDED_GATE, case_files};

/// Compare a member with recorded cases: token plans, heads, logits and whole responses.
///
/// Writes a line for each case to stdout: the largest distance of each kind, and "ok" or the first difference. Ends with
/// code 1 if anything is not as recorded or beyond its gate.
#[derive(clap::Args)]
pub(super) struct Replay {
    /// Folder of the member's package or bundle
    #[arg(long, value_name = "PATH")]
    member: PathBuf,
    /// Folder of the recorded cases; folders inside it are not looked at
    #[arg(long, value_name = "DIR")]
    fixtures: PathBuf,
    /// fp32 or bf16: what the member computes in, and whose gates it is held to
    #[arg(long, value_name = "PROFILE", default_value = Profile::Fp32.name())]
    profile: Profile,
    /// A tighter gate for logits than that of the profile (fp32: 1e-4, bf16: 0.35); a wider one is brought back to it
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    gate: Option<String>,
    #[command(flatten)]
    anchor: AnchorArgument,
}

impl Replay {
    pub(super) fn run(self) -> Result<()> {
        let (gates, warning) = tightened(self.gate.as_deref(), self.profile);
        if let Some(warning) = warning {
            eprintln!("{warning}");
        }
        let folder = || self.fixtures.display().to_string();
        let files = case_files(&self.fixtures).with_context(folder)?;
        if files.is_empty() {
            bail!("{}: expected recorded cases (*.json), found none; name the folder that holds them", folder());
        }
        let member = LocalMember::open(&self.member, self.anchor.trust()?, self.profile)?;
        let mut model = member.load(&CpuDevice::available_cores()?, &Bar::new("loading"))?;
        let mut table = Table::new(&files);
        table.header()?;
        for file in &files {
            table.add(&replay(file, &member, &mut model, gates))?;
        }
        table.finish(gates)
    }
}

/// The gates of a profile, or with a tighter one for logits. A gate can never be wider: then the second value says so.
fn tightened(given: Option<&str>, profile: Profile) -> (Gates, Option<String>) {
    let widest = profile.gates();
    let Some(given) = given else { return (widest, None) };
    match given.parse::<f64>() {
        Ok(gate) if gate > 0.0 && gate <= widest.logit => (Gates { logit: gate, ..widest }, None),
        _ => {
            let warning = format!(
                "--gate: expected a number above 0 and at most {0:e}, the gate of {1}, found {2}; {0:e} is used; a gate \
                 can only be made tighter",
                widest.logit,
                profile.name(),
                Excerpt(given)
            );
            (widest, Some(warning))
        }
    }
}

/// What the member makes of one file, however bad it is.
fn replay(file: &Path, member: &LocalMember, model: &mut Model<CpuDevice>, gates: Gates) -> Compared {
    let case = match Case::read(file) {
        Ok(case) => case,
        Err(error) => return Compared::Unreadable { name: name(file), reason: error.problem.to_string() },
    };
    let mut report = case.compare(member.package().model_name(), member.vela(), model, gates, written);
    if report.plan {
        case.compare_heads(model, gates, &mut report);
    }
    Compared::Replayed { report, margin: case.margin() }
}

/// A file that was looked at.
enum Compared {
    Unreadable { name: String, reason: String },
    Replayed { report: CaseReport, margin: Option<f64> },
}

impl Compared {
    fn is_ok(&self) -> bool {
        matches!(self, Compared::Replayed { report, .. } if report.is_ok())
    }
}

fn name(file: &Path) -> String {
    Excerpt(&file.file_stem().unwrap_or_default().to_string_lossy()).to_string()
}

const COLUMNS: usize = 5;
const HEADER: [&str; COLUMNS] = ["heads", "states", "logits", "recorded", "own"];

/// The report, a line as soon as it is known.
struct Table {
    name_width: usize,
    cases: usize,
    ok: usize,
    /// Cases whose own response was not compared, as their margin is too small.
    undecided: usize,
    largest: [Option<f64>; COLUMNS],
}

impl Table {
    fn new(files: &[PathBuf]) -> Self {
        let longest = files.iter().map(|file| name(file).chars().count()).max().unwrap_or_default();
        Self { name_width: longest.max("largest".len()), cases: 0, ok: 0, undecided: 0, largest: [None; COLUMNS] }
    }

    fn line(&self, name: &str, plan: &str, distances: [String; COLUMNS], result: &str) -> Result<()> {
        let distances = distances.map(|distance| format!("{distance:>8}")).join("  ");
        let line = format!("{name:0$}  {plan:5}  {distances}  {result}", self.name_width);
        writeln!(stdout(), "{}", line.trim_end()).context("stdout")
    }

    fn header(&self) -> Result<()> {
        self.line("case", "plan", HEADER.map(str::to_owned), "result")
    }

    fn add(&mut self, compared: &Compared) -> Result<()> {
        self.cases += 1;
        self.ok += usize::from(compared.is_ok());
        let (report, margin) = match compared {
            Compared::Replayed { report, margin } => (report, margin),
            Compared::Unreadable { name, reason } => return self.line(name, "-", [None; COLUMNS].map(cell), reason),
        };
        let distances = [report.heads, report.states, report.logits, report.recorded, report.own];
        for (largest, distance) in self.largest.iter_mut().zip(distances) {
            *largest = [*largest, distance].into_iter().flatten().reduce(f64::max);
        }
        let plan = match report.refused {
            Some(status) => status.to_string(),
            None => if report.plan { "equal" } else { "-" }.to_owned(),
        };
        let result = match (&report.difference, margin) {
            (Some(difference), _) => difference.to_string(),
            (None, Some(margin)) if *margin < DECIDED_MARGIN => {
                self.undecided += 1;
                format!("ok; margin {margin:.1e}, so its own response is not compared")
            }
            (None, _) => "ok".to_owned(),
        };
        self.line(&Excerpt(&report.case).to_string(), &plan, distances.map(cell), &result)
    }

    /// The last lines; an error if anything failed.
    fn finish(self, gates: Gates) -> Result<()> {
        self.line("largest", "", self.largest.map(cell), "")?;
        let head = gates.logit.min(HEAD_GATE);
        let summary = format!(
            "{} cases, {} as recorded, {} of them without a comparison of the own response; gates: heads {head:e}, logits {:e} times max(1, |recorded|), responses {:e} from \
             recorded and {:e} from own logits",
            self.cases,
            self.ok,
            self.undecided,
            gates.logit,
            gates.answer.min(RECORDED_GATE),
            gates.answer
        );
        writeln!(stdout(), "{summary}").context("stdout")?;
        match self.cases - self.ok {
            0 => Ok(()),
            failed => bail!("{failed} of {} cases: not as recorded", self.cases),
        }
    }
}

fn cell(distance: Option<f64>) -> String {
    distance.map_or_else(|| "-".to_owned(), |distance| format!("{distance:.1e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_only_ever_tightens() {
        let logit = |given: Option<&str>| {
            let (gates, warning) = tightened(given, Profile::Fp32);
            assert_eq!(gates.answer.to_bits(), 2e-5_f64.to_bits());
            (gates.logit.to_string(), warning.is_some())
        };
        let is = |gate: f64, warned: bool| (gate.to_string(), warned);
        assert_eq!(logit(None), is(1e-4, false));
        assert_eq!(logit(Some("1e-4")), is(1e-4, false));
        assert_eq!(logit(Some("3e-6")), is(3e-6, false));
        for wide in ["1.1e-4", "1", "inf", "NaN", "0", "-1e-6", "", "tight", "1e-6 "] {
            assert_eq!(logit(Some(wide)), is(1e-4, true), "{wide:?}");
        }
        let (_, warning) = tightened(Some("a\nb"), Profile::Fp32);
        assert_eq!(warning.unwrap().lines().count(), 1);
    }
}
