//! What `synod plan` writes. Needs are rounded up to whole MiB, what there is is rounded down.

use std::fmt::Write as _;

use synod_config::{Card, Placement, Profile};

use super::rooms::{Layout, Planned, Room, RoomKind, Tenant};
use crate::cli::table::table;
use crate::model::memory::{Hardware, MemoryNeed, flops_per_token, mib};

const PARTS: usize = MemoryNeed::PARTS.len();
/// Member, profile, device, the parts, and their sum.
const COLUMNS: usize = 3 + PARTS + 1;

/// The breakdown of every member in every profile, on each kind of device that it is placed on.
pub(super) fn needs(planned: &[Planned<'_>]) -> String {
    let mut rows = vec![row("member", "profile", "device", MemoryNeed::PARTS.map(str::to_owned), "total")];
    let mut has_cards = false;
    for Planned { member, wanted, placements } in planned {
        for profile in [Profile::Fp32, Profile::Bf16] {
            for (device, hardware) in devices(placements) {
                has_cards |= matches!(hardware, Hardware::Cuda);
                let mut asked = (*wanted).clone();
                let mark = if asked.setting.profile == profile { " *" } else { "" };
                asked.setting.profile = profile;
                let need = asked.need(hardware);
                let parts = need.parts().map(|bytes| mib(bytes).to_string());
                let profile = format!("{}{mark}", profile.name());
                rows.push(row(member, &profile, &device, parts, &mib(need.total()).to_string()));
            }
        }
    }
    let mut text = table(&rows);
    text.push_str("\nMiB, each rounded up; * is what the deployment asks for. ");
    text.push_str("The workspace is for the larger of batch_tokens and the largest tree.\n");
    if has_cards {
        text.push_str("On cards, context and library are assumed and nothing is measured yet.\n");
    }
    text
}

fn row(member: &str, profile: &str, device: &str, parts: [String; PARTS], total: &str) -> [String; COLUMNS] {
    let mut cells = [member, profile, device].map(str::to_owned).into_iter().chain(parts).chain([total.to_owned()]);
    std::array::from_fn(|_| cells.next().unwrap_or_default())
}

/// Placements that differ in what they need: cores by their number, all cards alike.
fn devices(placements: &[(&Placement, Hardware)]) -> Vec<(String, Hardware)> {
    let mut devices: Vec<(String, Hardware)> = Vec::new();
    for (placement, hardware) in placements {
        let name = match hardware {
            Hardware::Cuda => "cuda".to_owned(),
            Hardware::Cpu { .. } => placement.to_string(),
        };
        if devices.iter().all(|(known, _)| *known != name) {
            devices.push((name, *hardware));
        }
    }
    devices
}

/// What fits where, what would make the rest fit, and how fast a card could be at most.
pub(super) fn fits(layout: &Layout<'_>, is_host_given: bool) -> String {
    let mut text = String::new();
    for room in &layout.rooms {
        let name = match room.kind {
            RoomKind::Host if !is_host_given => "host, as available here".to_owned(),
            kind => name(kind),
        };
        write_line(&mut text, format_args!("\n{name}, {} MiB: {}", room.bytes >> 20, verdict(room)));
        if !room.fits() {
            for advice in room.advice(&layout.rooms) {
                write_line(&mut text, format_args!("  would fit with {advice}"));
            }
        }
        if let Some(rate) = room.rate {
            room.tenants.iter().for_each(|tenant| write_line(&mut text, format_args!("  {}", speed(tenant, rate))));
        }
    }
    text
}

fn verdict(room: &Room<'_>) -> String {
    if room.tenants.is_empty() {
        return "nothing is placed here".to_owned();
    }
    let own = room.tenants.iter().map(|tenant| format!("{} {}", tenant.member, mib(tenant.own_bytes())));
    let context = Some(room.context_bytes()).filter(|&bytes| bytes > 0);
    let needs: Vec<String> = own.chain(context.map(|bytes| format!("context {}", mib(bytes)))).collect();
    let needed = room.needed_bytes();
    let sum = if needs.len() == 1 { String::new() } else { format!(" = {}", mib(needed)) };
    let outcome = match room.bytes.checked_sub(needed) {
        Some(left) => format!("fits, {} left", left >> 20),
        None => format!("does not fit, {} too much", mib(needed - room.bytes)),
    };
    format!("{}{sum}: {outcome}", needs.join(" + "))
}

/// A bound and no forecast: no device does nothing but multiply parameters at its rate.
fn speed(tenant: &Tenant<'_>, rate: f64) -> String {
    let flops = flops_per_token(&tenant.wanted.config) as f64;
    format!(
        "{}: an upper bound of {:.0} tokens per second, {} TFLOPS over {:.3} GFLOP a token",
        tenant.member,
        rate / flops,
        rate / 1e12,
        flops / 1e9
    )
}

/// What has no room because nobody said what there is.
pub(super) fn unplaced(planned: &[Planned<'_>], layout: &Layout<'_>, has_cards: bool) -> String {
    let mut text = String::new();
    let placements = || planned.iter().flat_map(|planned| &planned.placements);
    let by_number = |placement: &Placement| matches!(placement, Placement::Cuda(Card::All | Card::Ordinal(_)));
    if !has_cards && placements().any(|(placement, _)| by_number(placement)) {
        write_line(
            &mut text,
            format_args!("\nno cards are known to this build; give --cards to see what fits on them"),
        );
    }
    let is_on_cpu = placements().any(|(placement, _)| matches!(placement, Placement::Cpu(_)));
    if is_on_cpu && layout.rooms.iter().all(|room| room.kind != RoomKind::Host) {
        write_line(&mut text, format_args!("\nthis system does not say what memory is available; give --host"));
    }
    for (member, uuid) in &layout.unknown {
        write_line(&mut text, format_args!("\n{member} on cuda:{uuid}: which of the cards it is, is not known here"));
    }
    text
}

/// Whatever does not fit, by name.
pub(super) fn misfits(layout: &Layout<'_>) -> Vec<String> {
    let full = layout.rooms.iter().filter(|room| !room.fits()).map(|room| name(room.kind));
    let beyond = layout.beyond.iter().map(|(member, number)| format!("{member} on cuda:{number}, which is not given"));
    full.chain(beyond).collect()
}

fn name(kind: RoomKind) -> String {
    match kind {
        RoomKind::Card(number) => format!("cuda:{number}"),
        RoomKind::Host => "host".to_owned(),
    }
}

fn write_line(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("writing to a string cannot fail");
}
