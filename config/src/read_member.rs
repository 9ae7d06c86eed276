//! `[[member]]` tables.

use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::de::DeValue;

use crate::read::{FLAG, MAX_TIME, NAME};
use crate::table::{Placed, Report, Table, Want, boolean, positive, text, whole};
use crate::{Anchor, Gates, Member, OnDrift, Placement, Profile};

/// What paths in the file mean.
pub(crate) struct Paths<'a> {
    pub(crate) folder: &'a Path,
    pub(crate) exists: &'a dyn Fn(&Path) -> bool,
}

impl Paths<'_> {
    /// The path from the file's folder, reported if nothing is there.
    fn resolve(&self, path: Placed<String>, report: &mut Report) -> PathBuf {
        let resolved = self.folder.join(path.value);
        if !(self.exists)(&resolved) {
            let problem = format!("nothing is at {}", resolved.display());
            report.error(&path.place, problem, "correct the path; a relative one starts at this file's folder");
        }
        resolved
    }
}

/// A member with the places that the rules between members speak of.
pub(crate) struct RawMember {
    pub(crate) name: Option<Placed<String>>,
    pub(crate) aliases: Vec<Placed<String>>,
    pub(crate) devices: Vec<Placed<Placement>>,
    /// Absent if something required is, which has been reported.
    pub(crate) member: Option<Member>,
}

pub(crate) fn read_member(mut table: Table, paths: &Paths, report: &mut Report) -> RawMember {
    let name = table.require(report, "name", NAME, text);
    let want = Want { what: "a path", example: "\"/models/vela-4b\"" };
    let path = table.require(report, "path", want, text).map(|path| paths.resolve(path, report));
    let devices = read_devices(&mut table, report);
    let want = Want { what: "a name", example: "\"jev-latest\"" };
    let aliases = table.list(report, "aliases", want, text).map_or(Vec::new(), |aliases| aliases.value);
    let options = read_options(&mut table, paths, report);
    table.finish(report);

    let member = name.as_ref().zip(path).map(|(name, path)| Member {
        name: name.value.clone(),
        path,
        placements: devices.iter().map(|device| device.value.clone()).collect(),
        aliases: aliases.iter().map(|alias| alias.value.clone()).collect(),
        ..options
    });
    RawMember { name, aliases, devices, member }
}

fn read_devices(table: &mut Table, report: &mut Report) -> Vec<Placed<Placement>> {
    let want = Want {
        what: "a device such as \"cpu:0\", \"cpu:0-7\", \"cpu:*\", \"cuda:0\", \"cuda:GPU-<uuid>\" or \"cuda:*\"",
        example: "\"cpu:*\"",
    };
    let given = table.has("devices");
    let devices = table.list(report, "devices", want, |value: &DeValue| value.as_str()?.parse().ok());
    let place = devices.as_ref().map_or(table.place("devices"), |devices| devices.place.clone());
    let devices = devices.map(|devices| devices.value);
    if !given || devices.as_ref().is_some_and(Vec::is_empty) {
        let advice = "write for instance devices = [\"cpu:*\"]";
        report.error(&place, "expected at least one device, found none", advice);
    }
    devices.unwrap_or_default()
}

/// Everything about a member that may be left out.
fn read_options(table: &mut Table, paths: &Paths, report: &mut Report) -> Member {
    let profile = read_profile(table, report);
    Member {
        name: String::new(),
        path: PathBuf::new(),
        anchor: read_anchor(table, report),
        profile,
        placements: Vec::new(),
        required: table.get(report, "required", FLAG, boolean).is_none_or(|required| required.value),
        aliases: Vec::new(),
        prefix_cache_bytes: {
            let want = Want { what: "a whole number of MiB up to 1048576", example: "2048" };
            table.get(report, "prefix_cache_mib", want, whole(0..=1 << 20)).map_or(256, |mib| mib.value) << 20
        },
        gates: read_gates(table, profile, report),
        replay: {
            let want = Want { what: "a path", example: "\"/models/vela-4b-cases\"" };
            table.get(report, "replay", want, text).map(|path| paths.resolve(path, report))
        },
        drift_every: {
            let want = Want { what: "a whole number of seconds from 1 to 1000000000", example: "300" };
            let seconds = table.get(report, "drift_every_s", want, whole(1..=MAX_TIME)).map_or(300, |s| s.value);
            Duration::from_secs(seconds)
        },
        on_drift: read_on_drift(table, report),
        noul_calibration: table.get(report, "noul_calibration", FLAG, boolean).is_some_and(|flag| flag.value),
        description: {
            let want = Want { what: "a text", example: "\"Answers about support tickets\"" };
            table.get(report, "description", want, text).map(|description| description.value)
        },
        release_date: {
            let want = Want { what: "a date as YYYY-MM-DD in quotes", example: "\"2026-10-01\"" };
            table.get(report, "release_date", want, date).map(|date| date.value)
        },
    }
}

fn read_anchor(table: &mut Table, report: &mut Report) -> Option<Anchor> {
    let want = Want { what: "sha256: and 64 hex digits", example: "\"sha256:…\", as synod verify prints it" };
    table.get(report, "anchor", want, |value| value.as_str()?.parse().ok()).map(|anchor| anchor.value)
}

fn read_profile(table: &mut Table, report: &mut Report) -> Profile {
    let want = Want { what: "\"fp32\" or \"bf16\"", example: "\"fp32\"" };
    let profile = table.get(report, "profile", want, |value| value.as_str()?.parse().ok());
    profile.map_or(Profile::Fp32, |profile| profile.value)
}

fn read_on_drift(table: &mut Table, report: &mut Report) -> OnDrift {
    let want = Want { what: "\"quarantine\" or \"report\"", example: "\"quarantine\"" };
    let on_drift = table.get(report, "on_drift", want, |value| match value.as_str()? {
        "quarantine" => Some(OnDrift::Quarantine),
        "report" => Some(OnDrift::Report),
        _ => None,
    });
    on_drift.map_or(OnDrift::Quarantine, |on_drift| on_drift.value)
}

/// Gates can only tighten: a wider one is brought back to the profile's, with a warning.
fn read_gates(table: &mut Table, profile: Profile, report: &mut Report) -> Gates {
    let widest = profile.gates();
    let advice = "write for instance gates = { logit = 0.3, answer = 0.05 }";
    let Some(mut table) = table.table(report, "gates", "member.gates.", advice) else { return widest };
    let mut gate = |key, example, widest| {
        let Some(gate) = table.get(report, key, Want { what: "a number above 0", example }, positive) else {
            return widest;
        };
        if gate.value > widest {
            let problem = format!("{} is wider than {widest:?}, the gate of {}", gate.value, profile.name());
            report.warning(&gate.place, problem, format!("{widest:?} is used; gates can only be made tighter"));
        }
        gate.value.min(widest)
    };
    let gates = Gates { logit: gate("logit", "0.3", widest.logit), answer: gate("answer", "0.05", widest.answer) };
    table.finish(report);
    gates
}

/// `YYYY-MM-DD` of a day that exists.
fn date(value: &DeValue) -> Option<String> {
    let text = value.as_str()?;
    let date: toml::value::Datetime = text.parse().ok()?;
    (date.date.is_some() && date.time.is_none() && date.offset.is_none()).then(|| text.to_owned())
}
