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
    /// What the host has for executors: what is left, and what those that run hold. Not looked at if absent.
    pub host_bytes: Option<u64>,
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
    /// The system gives no thread to load on: too many files are open, or too many processes run.
    #[error("executors: expected another thread, found none ({0}); raise the limits of open files and of processes")]
    Thread(String),
}

/// When new executors can be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// While the old ones serve.
    Beside,
    /// Once the old ones have stopped.
    After,
}

/// What the executors that run can come to hold, in bytes: most of a workspace is taken when it is first needed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Claims {
    /// Those that are kept.
    pub(super) kept: u64,
    /// Those that are not kept, until they stop.
    pub(super) gone: u64,
}

impl Room {
    /// For what is `wanted` beside the `claims` of what runs, where executors have `host_bytes` in all.
    ///
    /// # Errors
    /// [`Shortage`] if it does not fit even once what is not kept has stopped.
    pub(super) fn find(wanted: &[Demand], claims: &Claims, host_bytes: u64) -> Result<Self, Box<Shortage>> {
        let after_bytes = host_bytes.saturating_sub(claims.kept);
        if check_room(wanted, after_bytes.saturating_sub(claims.gone)).is_ok() {
            return Ok(Room::Beside);
        }
        check_room(wanted, after_bytes).map(|()| Room::After)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::memory::MemoryNeed;

    const GONE: Claims = Claims { kept: 0, gone: 50 };

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
        assert_eq!(Room::find(&demands(&[40, 60]), &GONE, 150), Ok(Room::Beside));
        assert_eq!(Room::find(&[], &GONE, 0), Ok(Room::Beside));
    }

    #[test]
    fn what_fits_after_waits_and_what_never_fits_is_refused() {
        assert_eq!(Room::find(&demands(&[40, 61]), &GONE, 150), Ok(Room::After));
        assert_eq!(Room::find(&demands(&[150]), &GONE, 150), Ok(Room::After));
        let shortage = Room::find(&demands(&[151]), &GONE, 150).unwrap_err();
        assert_eq!(shortage.available_bytes, 150);
    }

    #[test]
    fn what_is_kept_is_not_given_twice() {
        let claims = Claims { kept: 30, gone: 70 };
        assert_eq!(Room::find(&demands(&[50]), &claims, 150), Ok(Room::Beside));
        assert_eq!(Room::find(&demands(&[51]), &claims, 150), Ok(Room::After));
        assert_eq!(Room::find(&demands(&[120]), &claims, 150), Ok(Room::After));
        assert_eq!(Room::find(&demands(&[121]), &claims, 150).unwrap_err().available_bytes, 120);
        assert_eq!(Room::find(&[], &claims, 0), Ok(Room::Beside));
    }
}
