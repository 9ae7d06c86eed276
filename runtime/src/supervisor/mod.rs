//! Starting, watching and ending executors.
//!
//! The [`Supervisor`] alone knows how executors are made and alone writes the [`Roster`]: who serves what, on which
//! device, in which state. Everybody else reads a snapshot of it. An executor that fails is built again after a
//! pause that grows with its failures ([`backoff`]).
//!
//! Absent on purpose: queues and deadlines (admission's), and anything of a request.

mod actor;
mod backoff;
#[cfg(test)]
pub(crate) mod fakes;
mod fit;
mod inventory;
mod roster;
mod seats;

pub use actor::{Drain, Placement, Seat, Settings, Supervisor};
pub use backoff::Policy;
pub use fit::{Demand, Shortage, Wanted, check_room};
pub use inventory::available_host_bytes;
pub use roster::{ExecutorState, Listing, Member, Replica, Roster};
pub use seats::{SeatError, Seating, check_served, hardware, open, seats};
