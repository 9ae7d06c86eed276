//! Another deployment in place of the one that runs.
//!
//! Policy alone: whether the new executors fit beside the old ones, or only after them.

use actix::Message;

use super::actor::Settings;
use super::fit::{Demand, Shortage, check_room};
use super::seats::Seat;

/// Asks that `seats` be served from now on. Placements of the same fingerprint keep their executor; for the others the
/// new ones load first, and the old ones serve until then.
#[derive(Message)]
#[rtype(result = "Result<Reloaded, ReloadError>")]
pub struct Reload {
    pub seats: Vec<Seat>,
    pub settings: Settings,
    /// What the host has left beside what runs; not looked at if absent.
    pub available_bytes: Option<u64>,
}

/// What a reload did to the executors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    pub kept: usize,
    pub started: usize,
    pub stopped: usize,
}

/// Why a reload changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReloadError {
    /// Not even without the executors that it stops.
    #[error(transparent)]
    Memory(#[from] Box<Shortage>),
}

/// When new executors can be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// While the old ones serve.
    Beside,
    /// Once the old ones have stopped.
    After,
}

impl Room {
    /// For what is `wanted` where `freed` comes free and `available_bytes` are left beside it.
    ///
    /// # Errors
    /// [`Shortage`] if it does not fit even then.
    pub(super) fn find(wanted: &[Demand], freed: &[Demand], available_bytes: u64) -> Result<Self, Box<Shortage>> {
        if check_room(wanted, available_bytes).is_ok() {
            return Ok(Room::Beside);
        }
        let freed_bytes = freed.iter().fold(0u64, |sum, demand| sum.saturating_add(demand.need.total()));
        check_room(wanted, available_bytes.saturating_add(freed_bytes)).map(|()| Room::After)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::memory::MemoryNeed;

    fn demands(bytes: &[u64]) -> Vec<Demand> {
        let demand = |linear: &u64| Demand {
            member: "m".into(),
            device: "cpu:0".into(),
            need: MemoryNeed { linear: *linear, ..MemoryNeed::default() },
        };
        bytes.iter().map(demand).collect()
    }

    #[test]
    fn what_fits_beside_does_not_wait() {
        assert_eq!(Room::find(&demands(&[40, 60]), &demands(&[50]), 100), Ok(Room::Beside));
        assert_eq!(Room::find(&[], &demands(&[50]), 0), Ok(Room::Beside));
    }

    #[test]
    fn what_fits_after_waits_and_what_never_fits_is_refused() {
        assert_eq!(Room::find(&demands(&[40, 61]), &demands(&[50]), 100), Ok(Room::After));
        assert_eq!(Room::find(&demands(&[150]), &demands(&[50]), 100), Ok(Room::After));
        let shortage = Room::find(&demands(&[151]), &demands(&[50]), 100).unwrap_err();
        assert_eq!(shortage.available_bytes, 150);
    }
}
