//! The rules that join tables: names, references to them, devices and who may call.

use std::collections::HashMap;

use crate::Key;
use crate::placement::Placement;
use crate::read::{RawKey, RawServer};
use crate::read_member::RawMember;
use crate::table::{Placed, Report};

/// What every name and alias of the file means.
pub(crate) struct Names {
    /// Name or alias to member's name.
    members: HashMap<String, String>,
    /// Members' names in the file's order.
    in_order: Vec<String>,
}

impl Names {
    /// Collects them and reports each that is there already.
    pub(crate) fn of(members: &[RawMember], report: &mut Report) -> Self {
        let mut names = Names { members: HashMap::new(), in_order: Vec::new() };
        let mut lines: HashMap<&str, usize> = HashMap::new();
        for member in members {
            let Some(name) = &member.name else { continue };
            names.in_order.push(name.value.clone());
            for placed in std::iter::once(name).chain(&member.aliases) {
                if let Some(line) = lines.get(placed.value.as_str()) {
                    let problem = format!("{:?} is already a name or alias at line {line}", placed.value);
                    report.error(&placed.place, problem, "give every member names of its own");
                    continue;
                }
                lines.insert(&placed.value, placed.place.line);
                names.members.insert(placed.value.clone(), name.value.clone());
            }
        }
        names
    }

    /// The member's name behind a name or alias; one that means nothing is reported.
    pub(crate) fn resolve(&self, name: &Placed<String>, report: &mut Report) -> Option<String> {
        let found = self.members.get(&name.value).cloned();
        if found.is_none() {
            let known = self.in_order.join(", ");
            let problem = format!("no member has the name or alias {:?}", name.value);
            report.error(&name.place, problem, format!("write one of: {known}"));
        }
        found
    }
}

/// Keys with the members that they may ask. Absent if a key lacks what it needs, which has been reported.
pub(crate) fn resolve_keys(keys: Vec<RawKey>, names: &Names, report: &mut Report) -> Option<Vec<Key>> {
    let mut key_names: HashMap<String, usize> = HashMap::new();
    let mut digests: HashMap<[u8; 32], usize> = HashMap::new();
    let mut resolved = Some(Vec::new());
    for raw in keys {
        if let Some(name) = &raw.name
            && let Some(line) = key_names.insert(name.value.clone(), name.place.line)
        {
            let problem = format!("{:?} is already a key's name at line {line}", name.value);
            report.error(&name.place, problem, "give every key a name of its own");
        }
        if let Some(sha256) = &raw.sha256
            && let Some(line) = digests.insert(sha256.value, sha256.place.line)
        {
            let problem = format!("the same key as at line {line}");
            report.error(&sha256.place, problem, "list every key once");
        }
        let models = resolve_models(&raw, names, report);
        let key = raw.name.zip(raw.sha256).map(|(name, sha256)| Key {
            sha256: sha256.value,
            name: name.value,
            models,
            weight: raw.weight,
            rate: raw.rate,
        });
        match (key, &mut resolved) {
            (Some(key), Some(keys)) => keys.push(key),
            _ => resolved = None,
        }
    }
    resolved
}

/// The members that a key may ask: all where it names none, each once.
fn resolve_models(key: &RawKey, names: &Names, report: &mut Report) -> Vec<String> {
    let Some(models) = &key.models else { return names.in_order.clone() };
    if models.value.is_empty() {
        report.error(&models.place, "a key that may ask no model", "name one, or leave models out to allow all");
    }
    let mut resolved = Vec::new();
    for model in &models.value {
        let name = names.resolve(model, report);
        resolved.extend(name.filter(|name| !resolved.contains(name)));
    }
    resolved
}

/// A member has one executor on a core or card. Different members may share one, as memory allows, but on a core
/// they take each other's time, which is worth a warning.
pub(crate) fn check_placements(members: &[RawMember], report: &mut Report) {
    for (i, member) in members.iter().enumerate() {
        let others = members[..i].iter().flat_map(|other| &other.devices);
        for (j, device) in member.devices.iter().enumerate() {
            let overlaps = |other: &&Placed<Placement>| device.value.overlaps(&other.value);
            if let Some(own) = member.devices[..j].iter().find(overlaps) {
                let problem = overlap(device, own);
                report.error(&device.place, problem, "give every executor of a member a device of its own");
            } else if let Some(other) = others.clone().find(overlaps)
                && matches!(device.value, Placement::Cpu(_))
            {
                let problem = overlap(device, other);
                report.warning(&device.place, problem, "both members run, each slower while the other is busy");
            }
        }
    }
}

fn overlap(device: &Placed<Placement>, other: &Placed<Placement>) -> String {
    format!("{} overlaps {} at line {}", device.value, other.value, other.place.line)
}

/// Without keys only this machine may call, unless the deployment says otherwise.
pub(crate) fn check_access(server: &RawServer, without_keys: bool, report: &mut Report) {
    let bind = server.server.bind;
    if server.server.admits_strangers(without_keys) {
        let problem = format!("{bind} is open to other machines and there is no [[key]]");
        report.error(&server.bind, problem, "add a key, bind to 127.0.0.1, or set server.open = true");
    }
}
