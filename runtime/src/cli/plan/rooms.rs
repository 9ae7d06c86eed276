//! Which placements share which memory, whether they fit there, and what would make them.
//!
//! Policy alone: a room is so many bytes, whoever has them. Advice is never guessed: a change is named only if the need,
//! reckoned again with it, fits.

use synod_config::{Card, Placement, Profile};

use super::cards;
use crate::model::memory::{Hardware, Setting, mib};
use crate::supervisor::Wanted;

/// The memory that some placements share.
#[derive(Clone, Debug)]
pub(super) struct Room<'a> {
    pub(super) kind: RoomKind,
    pub(super) bytes: u64,
    /// Floating-point operations per second, if known.
    pub(super) rate: Option<f64>,
    pub(super) tenants: Vec<Tenant<'a>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoomKind {
    /// By its number.
    Card(usize),
    Host,
}

/// One placement of a member.
#[derive(Clone, Debug)]
pub(super) struct Tenant<'a> {
    pub(super) member: &'a str,
    pub(super) wanted: &'a Wanted,
    pub(super) hardware: Hardware,
}

/// The rooms of a deployment, and the placements that have none.
pub(super) struct Layout<'a> {
    pub(super) rooms: Vec<Room<'a>>,
    /// Ordinals beyond the cards that are given: a member and its card.
    pub(super) beyond: Vec<(&'a str, u32)>,
    /// Cards by UUID, of which a list of sizes knows nothing.
    pub(super) unknown: Vec<(&'a str, String)>,
}

/// One member with its placements.
pub(super) struct Planned<'a> {
    pub(super) member: &'a str,
    pub(super) wanted: &'a Wanted,
    /// Each with what it computes on.
    pub(super) placements: Vec<(&'a Placement, Hardware)>,
}

impl<'a> Layout<'a> {
    /// Puts every placement where it belongs. Without `host_bytes` there is no room for those on processors, without
    /// `cards` none for those on cards, and neither is a defect.
    pub(super) fn of(planned: &[Planned<'a>], cards: Option<&[cards::Card]>, host_bytes: Option<u64>) -> Self {
        let room = |kind, bytes, rate| Room { kind, bytes, rate, tenants: Vec::new() };
        let numbered = cards.unwrap_or_default().iter().enumerate();
        let mut layout = Self {
            rooms: numbered.map(|(number, card)| room(RoomKind::Card(number), card.bytes, card.rate)).collect(),
            beyond: Vec::new(),
            unknown: Vec::new(),
        };
        layout.rooms.extend(host_bytes.map(|bytes| room(RoomKind::Host, bytes, None)));
        for Planned { member, wanted, placements } in planned {
            for &(placement, hardware) in placements {
                layout.place(placement, &Tenant { member, wanted, hardware });
            }
        }
        if cards.is_none() {
            layout.beyond.clear();
        }
        layout.rooms.retain(|room| room.kind != RoomKind::Host || !room.tenants.is_empty());
        layout
    }

    fn place(&mut self, placement: &Placement, tenant: &Tenant<'a>) {
        let is_meant = |kind: RoomKind| match (placement, kind) {
            (Placement::Cpu(_), RoomKind::Host) | (Placement::Cuda(Card::All), RoomKind::Card(_)) => true,
            (Placement::Cuda(Card::Ordinal(ordinal)), RoomKind::Card(number)) => *ordinal as usize == number,
            _ => false,
        };
        let mut has_room = false;
        for room in self.rooms.iter_mut().filter(|room| is_meant(room.kind)) {
            room.tenants.push(tenant.clone());
            has_room = true;
        }
        match placement {
            Placement::Cuda(Card::Ordinal(number)) if !has_room => self.beyond.push((tenant.member, *number)),
            Placement::Cuda(Card::Uuid(uuid)) => self.unknown.push((tenant.member, uuid.clone())),
            _ => {}
        }
    }
}

impl Tenant<'_> {
    /// All but the context, which the process has once on a card, whoever is there.
    pub(super) fn own_bytes(&self) -> u64 {
        self.own_bytes_with(|_| ())
    }

    /// With another setting.
    fn own_bytes_with(&self, change: impl FnOnce(&mut Setting)) -> u64 {
        let mut wanted = self.wanted.clone();
        change(&mut wanted.setting);
        let need = wanted.need(self.hardware);
        need.total() - need.context
    }

    fn context_bytes(&self) -> u64 {
        self.wanted.need(self.hardware).context
    }

    fn is_exact_on_a_card(&self) -> bool {
        matches!(self.hardware, Hardware::Cuda) && self.wanted.setting.profile == Profile::Fp32
    }
}

/// What tenants of one room need: each its own, and all of them one context.
fn needed_bytes(tenants: &[Tenant<'_>]) -> u64 {
    context_bytes(tenants) + tenants.iter().map(Tenant::own_bytes).sum::<u64>()
}

fn context_bytes(tenants: &[Tenant<'_>]) -> u64 {
    tenants.iter().map(Tenant::context_bytes).max().unwrap_or(0)
}

impl Room<'_> {
    pub(super) fn needed_bytes(&self) -> u64 {
        needed_bytes(&self.tenants)
    }

    pub(super) fn fits(&self) -> bool {
        self.needed_bytes() <= self.bytes
    }

    /// What the tenants need in common.
    pub(super) fn context_bytes(&self) -> u64 {
        context_bytes(&self.tenants)
    }

    fn fits_with(&self, change: impl Fn(&Tenant<'_>, &mut Setting)) -> bool {
        let own = self.tenants.iter().map(|tenant| tenant.own_bytes_with(|setting| change(tenant, setting)));
        self.context_bytes() + own.sum::<u64>() <= self.bytes
    }

    fn fits_without(&self, index: usize) -> bool {
        let mut tenants = self.tenants.clone();
        tenants.remove(index);
        needed_bytes(&tenants) <= self.bytes
    }

    fn fits_too(&self, tenant: &Tenant<'_>) -> bool {
        let mut tenants = self.tenants.clone();
        tenants.push(tenant.clone());
        needed_bytes(&tenants) <= self.bytes
    }

    /// Changes each of which makes the tenants fit; if there is none, the one that does when all are made together; and
    /// the size that would do as things are. `rooms` are all rooms, this one among them.
    pub(super) fn advice(&self, rooms: &[Room<'_>]) -> Vec<String> {
        let mut advice: Vec<String> = self.bf16_advice().collect();
        advice.extend(self.batch_advice());
        advice.extend(self.cache_advice());
        advice.extend(self.moving_advice(rooms));
        if advice.is_empty() {
            advice.extend(self.combined_advice());
        }
        let what = match self.kind {
            RoomKind::Card(_) => "a card",
            RoomKind::Host => "a host",
        };
        advice.push(format!("{what} of {} MiB", mib(self.needed_bytes())));
        advice
    }

    fn bf16_advice(&self) -> impl Iterator<Item = String> {
        let exact = self.tenants.iter().filter(|tenant| tenant.is_exact_on_a_card());
        let helps = exact.filter(|helped| {
            self.fits_with(|tenant, setting| {
                if tenant.member == helped.member {
                    setting.profile = Profile::Bf16;
                }
            })
        });
        helps.map(|tenant| format!("profile = \"bf16\" for {}", tenant.member))
    }

    /// The largest tree of any tenant: a smaller `batch_tokens` changes nothing.
    fn least_batch_tokens(&self) -> Option<usize> {
        let tree = self.tenants.iter().map(|tenant| tenant.wanted.setting.tree.tokens).max()?;
        self.tenants.iter().any(|tenant| tenant.wanted.setting.batch_tokens > tree).then_some(tree)
    }

    fn batch_advice(&self) -> Option<String> {
        let least = self.least_batch_tokens()?;
        self.fits_with(|_, setting| setting.batch_tokens = least).then(|| format!("batch_tokens = {least}"))
    }

    /// The largest cache that fits, of the tenants whose caches are large enough to make room alone; else none at all.
    fn cache_advice(&self) -> Vec<String> {
        let excess = self.needed_bytes().saturating_sub(self.bytes);
        let largest_cache = |tenant: &Tenant<'_>| {
            // A member may be here more than once, and has one setting.
            let places = self.tenants.iter().filter(|other| other.member == tenant.member).count() as u64;
            let cache = tenant.wanted.setting.prefix_cache_bytes;
            cache.checked_sub(excess.div_ceil(places)).map(|bytes| bytes >> 20)
        };
        let mut alone: Vec<String> = Vec::new();
        for tenant in &self.tenants {
            let line = largest_cache(tenant).map(|mib| format!("prefix_cache_mib = {mib} for {}", tenant.member));
            alone.extend(line.filter(|line| !alone.contains(line)));
        }
        if alone.is_empty() && self.fits_with(|_, setting| setting.prefix_cache_bytes = 0) {
            alone.push("prefix_cache_mib = 0 for every member here".to_owned());
        }
        alone
    }

    /// Another card for one tenant, where that one has room and the others fit without it.
    fn moving_advice(&self, rooms: &[Room<'_>]) -> Vec<String> {
        let RoomKind::Card(_) = self.kind else { return Vec::new() };
        let target = |tenant: &Tenant<'_>| {
            rooms.iter().find_map(|room| match room.kind {
                RoomKind::Card(number)
                    if room.kind != self.kind && !room.has(tenant.member) && room.fits_too(tenant) =>
                {
                    Some(number)
                }
                _ => None,
            })
        };
        let leavers = self.tenants.iter().enumerate().filter(|(index, _)| self.fits_without(*index));
        let moves = leavers.filter_map(|(_, tenant)| Some((tenant.member, target(tenant)?)));
        moves.map(|(member, number)| format!("{member} on cuda:{number} instead")).collect()
    }

    fn has(&self, member: &str) -> bool {
        self.tenants.iter().any(|tenant| tenant.member == member)
    }

    /// Every change of settings at once.
    fn combined_advice(&self) -> Option<String> {
        let least = self.least_batch_tokens();
        let is_exact = self.tenants.iter().any(Tenant::is_exact_on_a_card);
        let has_cache = self.tenants.iter().any(|tenant| tenant.wanted.setting.prefix_cache_bytes > 0);
        let fits = self.fits_with(|tenant, setting| {
            setting.prefix_cache_bytes = 0;
            setting.batch_tokens = least.unwrap_or(setting.batch_tokens);
            if tenant.is_exact_on_a_card() {
                setting.profile = Profile::Bf16;
            }
        });
        let parts = [
            is_exact.then(|| "profile = \"bf16\"".to_owned()),
            least.map(|least| format!("batch_tokens = {least}")),
            has_cache.then(|| "prefix_cache_mib = 0".to_owned()),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        fits.then(|| format!("{} for every member here", parts.join(" and ")))
    }
}

#[cfg(test)]
mod tests;
