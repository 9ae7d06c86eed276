//! Rooms on the released shapes, whose configs need no weights.

use super::*;
use crate::family::vela::layout::LayoutParameters;
use crate::member::synth::{Shape, SynthSpec};
use crate::model::memory::MemoryNeed;

const MIB: u64 = 1 << 20;
const CPU: Hardware = Hardware::Cpu { isa: synod_kernels::cpu::Isa::Portable, threads: 4 };

fn wanted(shape: Shape, profile: Profile) -> Wanted {
    let config = SynthSpec { shape, layers: None, vocab: None, seed: 1 }.config().unwrap();
    let tree = LayoutParameters::of_config(&config).tree_bounds(255);
    let setting = Setting { profile, batch_tokens: 24_576, tree, prefix_cache_bytes: 256 * MIB };
    Wanted { config, has_broad_head: true, setting }
}

fn room<'a>(bytes: u64, tenants: &[(&'a str, &'a Wanted)], hardware: Hardware) -> Room<'a> {
    let tenant = |&(member, wanted): &(&'a str, &'a Wanted)| Tenant { member, wanted, hardware };
    let kind = if matches!(hardware, Hardware::Cuda) { RoomKind::Card(0) } else { RoomKind::Host };
    Room { kind, bytes, rate: None, tenants: tenants.iter().map(tenant).collect() }
}

fn need(wanted: &Wanted) -> MemoryNeed {
    wanted.need(Hardware::Cuda)
}

fn advice(room: &Room<'_>) -> Vec<String> {
    room.advice(std::slice::from_ref(room))
}

#[test]
fn tenants_are_added_up_to_the_last_byte() {
    let (small, large) = (wanted(Shape::Vela08b, Profile::Bf16), wanted(Shape::Vela4b, Profile::Bf16));
    // Both are in one process, which has one context.
    let needed = need(&small).total() + need(&large).total() - need(&large).context;
    let room = |bytes| room(bytes, &[("small", &small), ("large", &large)], Hardware::Cuda);
    assert_eq!(room(needed).needed_bytes(), needed);
    assert!(room(needed).fits());
    assert!(!room(needed - 1).fits());
}

/// Where the 4B does not fit in F32, it does in BF16; on a host that would change nothing and is not said.
#[test]
fn bf16_is_advised_where_it_helps() {
    let exact = wanted(Shape::Vela4b, Profile::Fp32);
    let half = need(&wanted(Shape::Vela4b, Profile::Bf16)).total();
    let advice_on = |bytes, hardware| advice(&room(bytes, &[("m", &exact)], hardware));
    let size = format!("a card of {} MiB", mib(need(&exact).total()));
    assert_eq!(advice_on(half, Hardware::Cuda), ["profile = \"bf16\" for m".to_owned(), size.clone()]);
    // A cache less, but BF16 is not enough alone.
    let both = advice_on(half - 256 * MIB, Hardware::Cuda);
    assert_eq!(both[0], "profile = \"bf16\" and prefix_cache_mib = 0 for every member here");
    assert_eq!(advice_on(half - 256 * MIB - 1, Hardware::Cuda), [size]);
    let on_host = exact.need(CPU).total();
    let host = advice_on(on_host / 2, CPU);
    assert_eq!(host, [format!("a host of {} MiB", mib(on_host))]);
}

#[test]
fn the_largest_cache_that_fits_is_advised() {
    let member = wanted(Shape::Vela08b, Profile::Bf16);
    let (needed, context) = (need(&member).total(), need(&member).context);
    let one = |bytes| advice(&room(bytes, &[("m", &member)], Hardware::Cuda));
    assert_eq!(one(needed - 6 * MIB)[0], "prefix_cache_mib = 250 for m");
    assert_eq!(one(needed - 6 * MIB - 1)[0], "prefix_cache_mib = 249 for m");
    assert_eq!(one(needed - 256 * MIB)[0], "prefix_cache_mib = 0 for m");
    // Neither cache is large enough alone; one setting counts for both placements of one member.
    let two = |names: [&'static str; 2]| {
        let tenants = names.map(|name| (name, &member));
        advice(&room(2 * needed - context - 400 * MIB, &tenants, Hardware::Cuda))
    };
    assert_eq!(two(["a", "b"])[0], "prefix_cache_mib = 0 for every member here");
    assert_eq!(two(["a", "a"])[0], "prefix_cache_mib = 56 for a");
}

/// Below the largest tree, `batch_tokens` makes no workspace smaller.
#[test]
fn a_smaller_batch_is_advised_only_where_it_makes_a_difference() {
    let mut member = wanted(Shape::Vela08b, Profile::Bf16);
    let least = need(&member).total();
    let says_batch = |member: &Wanted| {
        advice(&room(least, &[("m", member)], Hardware::Cuda)).contains(&"batch_tokens = 32768".to_owned())
    };
    member.setting.batch_tokens = 65_536;
    assert!(need(&member).total() > least);
    assert!(says_batch(&member));
    member.setting.batch_tokens = 32_768;
    member.setting.prefix_cache_bytes += MIB;
    assert!(!says_batch(&member));
}

#[test]
fn another_card_is_advised_if_it_has_room_and_not_the_member_already() {
    let member = wanted(Shape::Vela08b, Profile::Bf16);
    let bytes = need(&member).total();
    let both = 2 * bytes - need(&member).context;
    let card = |number, bytes, names: &[&'static str]| {
        let tenants: Vec<_> = names.iter().map(|&name| (name, &member)).collect();
        Room { kind: RoomKind::Card(number), ..room(bytes, &tenants, Hardware::Cuda) }
    };
    let moves = |rooms: &[Room<'_>]| -> Vec<String> {
        rooms[0].advice(rooms).into_iter().filter(|advice| advice.contains("instead")).collect()
    };
    let full = card(0, bytes, &["a", "b"]);
    assert!(moves(std::slice::from_ref(&full)).is_empty());
    assert!(moves(&[full.clone(), card(1, bytes - 1, &[])]).is_empty());
    assert!(moves(&[full.clone(), card(1, both - 1, &["c"])]).is_empty());
    assert_eq!(
        moves(&[full.clone(), card(1, bytes - 1, &[]), card(2, bytes, &[])]),
        ["a on cuda:2 instead", "b on cuda:2 instead"]
    );
    assert_eq!(moves(&[full, card(1, both, &["a"])]), ["b on cuda:1 instead"]);
    assert!(moves(&[card(0, bytes, &["a", "b", "d"]), card(1, bytes, &[])]).is_empty(), "one less is not enough");
}

#[test]
fn placements_go_where_their_numbers_say() {
    let member = wanted(Shape::Tiny, Profile::Fp32);
    let card = cards::Card { bytes: 1 << 40, rate: None };
    let uuid = "cuda:GPU-5d1b8b3e-0c5a-4d0e-9f57-0123456789ab";
    let check =
        |cards: Option<&[cards::Card]>, host_bytes, expected: &[(RoomKind, &[&str])], beyond: &[(&str, u32)]| {
            let devices = [("a", ["cuda:1", "cpu:0"]), ("b", ["cuda:*", "cpu:1"]), ("c", ["cuda:7", uuid])];
            let placements =
                devices.map(|(name, devices)| (name, devices.map(|device| device.parse::<Placement>().unwrap())));
            let planned = placements.each_ref().map(|(name, placements)| {
                let hardware =
                    |placement: &Placement| if matches!(placement, Placement::Cpu(_)) { CPU } else { Hardware::Cuda };
                let placements = placements.iter().map(|placement| (placement, hardware(placement))).collect();
                Planned { member: name, wanted: &member, placements }
            });
            let layout = Layout::of(&planned, cards, host_bytes);
            let found: Vec<(RoomKind, Vec<&str>)> = layout
                .rooms
                .iter()
                .map(|room| (room.kind, room.tenants.iter().map(|tenant| tenant.member).collect()))
                .collect();
            let expected: Vec<_> = expected.iter().map(|(kind, members)| (*kind, members.to_vec())).collect();
            assert_eq!(found, expected);
            assert_eq!(layout.beyond, beyond);
            assert_eq!(layout.unknown.len(), 1);
        };
    let host: (RoomKind, &[&str]) = (RoomKind::Host, &["a", "b"]);
    let both: [(RoomKind, &[&str]); 3] = [(RoomKind::Card(0), &["b"]), (RoomKind::Card(1), &["a", "b"]), host];
    check(Some(&[card; 2]), Some(1), &both, &[("c", 7)]);
    check(Some(&[card]), Some(1), &[both[0], host], &[("a", 1), ("c", 7)]);
    check(None, Some(1), &[host], &[]);
    check(None, None, &[], &[]);
}
