//! Devices as a deployment names them. Whether they exist is for the machine to say.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// More cores than any machine has: a bound on what a range may list.
const MAX_CORE: usize = 4_095;

/// Where one executor of a member runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// One executor on these cores.
    Cpu(Cores),
    /// One executor per card.
    Cuda(Card),
}

/// Cores of a CPU placement.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Cores {
    /// `cpu:*`: every core that the process may use.
    All,
    /// `cpu:0`, `cpu:0-7`: logical core numbers, at least one.
    These(RangeInclusive<usize>),
}

/// Cards of a CUDA placement.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Card {
    /// `cuda:*`: every card of the machine.
    All,
    /// `cuda:0`: by ordinal.
    Ordinal(u32),
    /// `cuda:GPU-…`: by the UUID that NVML reports.
    Uuid(String),
}

/// A text that names no device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a device such as \"cpu:0\", \"cpu:0-7\", \"cpu:*\", \"cuda:0\", \"cuda:GPU-<uuid>\" or \"cuda:*\"")]
pub struct PlacementError;

impl Placement {
    /// Whether both would use the same core, or the same card as far as their names tell (an ordinal and a UUID may
    /// mean one card: only the machine knows).
    pub fn overlaps(&self, other: &Placement) -> bool {
        match (self, other) {
            (Placement::Cpu(Cores::These(mine)), Placement::Cpu(Cores::These(others))) => {
                mine.start() <= others.end() && others.start() <= mine.end()
            }
            (Placement::Cuda(mine), Placement::Cuda(others)) => {
                mine == others || *mine == Card::All || *others == Card::All
            }
            (Placement::Cpu(_), Placement::Cpu(_)) => true,
            _ => false,
        }
    }
}

impl FromStr for Placement {
    type Err = PlacementError;

    fn from_str(text: &str) -> Result<Self, PlacementError> {
        let placement = match text.split_once(':') {
            Some(("cpu", "*")) => Some(Placement::Cpu(Cores::All)),
            Some(("cpu", cores)) => core_range(cores).map(|cores| Placement::Cpu(Cores::These(cores))),
            Some(("cuda", "*")) => Some(Placement::Cuda(Card::All)),
            Some(("cuda", card)) if is_uuid(card) => Some(Placement::Cuda(Card::Uuid(card.to_owned()))),
            Some(("cuda", card)) => number(card).map(|ordinal| Placement::Cuda(Card::Ordinal(ordinal))),
            _ => None,
        };
        placement.ok_or(PlacementError)
    }
}

/// `N` or `N-M` with `N <= M`.
fn core_range(text: &str) -> Option<RangeInclusive<usize>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (number(first)?, number(last)?);
    (first <= last && last <= MAX_CORE).then_some(first..=last)
}

/// Decimal digits and nothing else.
fn number<N: FromStr>(text: &str) -> Option<N> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// `GPU-` (or `MIG-`, a slice of one) and an RFC 4122 UUID.
fn is_uuid(text: &str) -> bool {
    let Some(uuid) = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-")) else { return false };
    let groups: Vec<_> = uuid.split('-').collect();
    groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12])
        && groups.concat().bytes().all(|byte| byte.is_ascii_hexdigit())
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Placement::Cpu(Cores::All) => f.write_str("cpu:*"),
            Placement::Cpu(Cores::These(cores)) if cores.start() == cores.end() => write!(f, "cpu:{}", cores.start()),
            Placement::Cpu(Cores::These(cores)) => write!(f, "cpu:{}-{}", cores.start(), cores.end()),
            Placement::Cuda(Card::All) => f.write_str("cuda:*"),
            Placement::Cuda(Card::Ordinal(ordinal)) => write!(f, "cuda:{ordinal}"),
            Placement::Cuda(Card::Uuid(uuid)) => write!(f, "cuda:{uuid}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "GPU-5d1b8b3e-0c5a-4d0e-9f57-0123456789aB";

    #[test]
    fn devices_are_read_and_written_back() {
        let cases = [
            ("cpu:*", Placement::Cpu(Cores::All)),
            ("cpu:0", Placement::Cpu(Cores::These(0..=0))),
            ("cpu:2-7", Placement::Cpu(Cores::These(2..=7))),
            ("cuda:*", Placement::Cuda(Card::All)),
            ("cuda:12", Placement::Cuda(Card::Ordinal(12))),
            (&format!("cuda:{UUID}"), Placement::Cuda(Card::Uuid(UUID.to_owned()))),
        ];
        for (text, expected) in cases {
            let placement: Placement = text.parse().unwrap();
            assert_eq!(placement, expected);
            assert_eq!(placement.to_string(), text);
        }
        assert_eq!("cpu:3-3".parse(), Ok(Placement::Cpu(Cores::These(3..=3))));
    }

    #[test]
    fn other_texts_name_no_device() {
        let cases = [
            "",
            "cpu",
            "cpu:",
            "cpu:a",
            "cpu:-1",
            "cpu:+1",
            "cpu: 1",
            "cpu:7-0",
            "cpu:0-",
            "cpu:0-1-2",
            "cpu:0,1",
            "cpu:4096",
            "cpu:0-99999999999999999999",
            "CPU:0",
            "cuda",
            "cuda:",
            "cuda:-1",
            "cuda:4294967296",
            "cuda:0-1",
            "cuda:GPU-",
            "cuda:GPU-5d1b8b3e",
            "cuda:GPU-5d1b8b3e-0c5a-4d0e-9f57-0123456789ag",
            "gpu:0",
            "rocm:0",
        ];
        for text in cases {
            assert_eq!(text.parse::<Placement>(), Err(PlacementError), "{text}");
        }
    }

    #[test]
    fn overlap_is_by_core_and_by_card() {
        let check = |one: &str, other: &str, expected: bool| {
            let (one, other): (Placement, Placement) = (one.parse().unwrap(), other.parse().unwrap());
            assert_eq!(one.overlaps(&other), expected, "{one} {other}");
            assert_eq!(other.overlaps(&one), expected, "{other} {one}");
        };
        check("cpu:0", "cpu:0", true);
        check("cpu:0-3", "cpu:3-5", true);
        check("cpu:0-7", "cpu:2-3", true);
        check("cpu:0-3", "cpu:4-5", false);
        check("cpu:*", "cpu:5", true);
        check("cpu:*", "cpu:*", true);
        check("cuda:0", "cuda:0", true);
        check("cuda:0", "cuda:1", false);
        check("cuda:*", "cuda:1", true);
        check("cuda:0", &format!("cuda:{UUID}"), false);
        check("cuda:0", "cpu:0", false);
        check("cuda:*", "cpu:*", false);
    }
}
