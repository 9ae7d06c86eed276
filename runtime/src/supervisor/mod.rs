//! Starting, watching and ending executors.
//!
//! The [`Supervisor`] alone knows how executors are made and alone writes the [`Roster`]: who serves what, on which
//! device, in which state. Everybody else reads a snapshot of it. An executor that fails is built again after a
//! pause that grows with its failures ([`backoff`]); one that always fails is quarantined. Another deployment takes
//! the place of the one that runs without a request noticing ([`reload`]).
//!
//! Absent on purpose: queues and deadlines (admission's), and anything of a request.

mod actor;
mod backoff;
#[cfg(test)]
pub(crate) mod fakes;
mod fit;
mod inventory;
mod reload;
mod roster;
mod seats;
#[cfg(test)]
mod tests;

pub use actor::{Drain, Settings, Supervisor};
pub use backoff::Policy;
pub use fit::{Demand, Shortage, Wanted, check_room};
pub use inventory::{Card, Cards, Sensors, available_host_bytes, reachable_host_bytes, total_host_bytes};
pub use reload::{Reload, ReloadError, Reloaded};
pub use roster::{ExecutorState, Listing, Member, Outlook, Replica, Roster};
pub use seats::{Placement, Seat, SeatError, Seating, check_host, check_served, hardware, open, seats};
