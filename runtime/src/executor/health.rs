//! When a forward that failed asks for a new executor.
//!
//! One request can be at fault for one error, so an error alone does not cost the other requests a rebuild. Several
//! in a row with no success between them are the device's.

/// Failed forwards in a row that make a device suspect.
const STRIKES: u32 = 3;

/// Failed forwards since the last one that succeeded.
#[derive(Debug, Default)]
pub(super) struct Strikes(u32);

impl Strikes {
    pub(super) fn succeeded(&mut self) {
        self.0 = 0;
    }

    /// Counts a request that failed by itself; true when the executor should be built again.
    pub(super) fn failed(&mut self) -> bool {
        self.0 += 1;
        self.0 >= STRIKES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_in_a_row_ask_for_a_rebuild() {
        let mut strikes = Strikes::default();
        assert!(!strikes.failed());
        assert!(!strikes.failed());
        strikes.succeeded();
        assert!(!strikes.failed());
        assert!(!strikes.failed());
        assert!(strikes.failed());
    }
}
