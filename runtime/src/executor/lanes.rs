//! Who is next: callers take turns by weight, and within a caller's lane the oldest goes first.
//!
//! Start-time fair queueing (Goyal, Vin and Cheng, 1996): a lane's *start* is the virtual time at which its first item
//! may be served, and each item served moves it on by cost over weight. The lane of the earliest start is next, the
//! older item where two are equal. A lane that was empty starts at the present, so that nobody saves up turns; one
//! that asks for much waits for as much of the others' before its next.
//!
//! Invariant: every item that waits is served, whatever comes after it: its lane's start stands still while the
//! others' move on.

use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::time::Instant;

/// Whose work it is, and its share of a busy queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    /// Equal for all work of one caller.
    pub caller: u64,
    /// Relative to the other callers'; at least 1.
    pub weight: u32,
}

impl Default for Lane {
    /// The lane of callers that nobody tells apart.
    fn default() -> Self {
        Lane { caller: 0, weight: 1 }
    }
}

/// Where an item waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    caller: u64,
    order: Order,
}

/// By age, then as they came.
type Order = (Instant, u64);

/// Items that wait.
pub(super) struct Lanes<T> {
    by_caller: HashMap<u64, Waiting<T>>,
    /// The virtual time: the start of the item that was served last.
    now: f64,
    next_number: u64,
}

struct Waiting<T> {
    items: BTreeMap<Order, (f64, T)>,
    start: f64,
}

impl<T> Default for Lanes<T> {
    fn default() -> Self {
        Lanes { by_caller: HashMap::new(), now: 0.0, next_number: 0 }
    }
}

impl<T> Lanes<T> {
    /// Adds an item of some `cost` that has waited since `since`.
    pub(super) fn push(&mut self, lane: Lane, since: Instant, cost: usize, item: T) -> Place {
        let now = self.now;
        // What a lane owes is remembered for as long as it matters.
        self.by_caller.retain(|_, lane| !lane.items.is_empty() || lane.start > now);
        let order = (since, self.next_number);
        self.next_number += 1;
        let waiting =
            self.by_caller.entry(lane.caller).or_insert_with(|| Waiting { items: BTreeMap::new(), start: now });
        if waiting.items.is_empty() {
            waiting.start = waiting.start.max(now);
        }
        waiting.items.insert(order, (cost as f64 / f64::from(lane.weight.max(1)), item));
        Place { caller: lane.caller, order }
    }

    /// Takes the item whose turn it is, if `take` wants it.
    pub(super) fn next_if(&mut self, take: impl FnOnce(&T) -> bool) -> Option<T> {
        let turn = |lane: &&mut Waiting<T>| lane.items.first_key_value().map(|(order, _)| (lane.start, *order));
        let lane = self
            .by_caller
            .values_mut()
            .filter(|lane| !lane.items.is_empty())
            .min_by(|a, b| turn(a).partial_cmp(&turn(b)).unwrap_or(std::cmp::Ordering::Equal))?;
        let first = lane.items.first_entry()?;
        if !take(&first.get().1) {
            return None;
        }
        let (share, item) = first.remove();
        self.now = lane.start;
        lane.start += share;
        Some(item)
    }

    /// Removes an item that is no longer wanted; it costs its lane nothing.
    pub(super) fn remove(&mut self, place: Place) -> Option<T> {
        self.by_caller.get_mut(&place.caller)?.items.remove(&place.order).map(|(_, item)| item)
    }

    /// Removes everything, in no order.
    pub(super) fn take_all(&mut self) -> Vec<T> {
        let lanes = mem::take(&mut self.by_caller);
        lanes.into_values().flat_map(|lane| lane.items.into_values()).map(|(_, item)| item).collect()
    }

    /// Since when the oldest item has waited.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.by_caller.values().filter_map(|lane| lane.items.keys().next()).map(|(since, _)| *since).min()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    struct Clock(Instant, u64);

    impl Clock {
        fn tick(&mut self) -> Instant {
            self.1 += 1;
            self.0 + Duration::from_millis(self.1)
        }
    }

    fn clock() -> Clock {
        Clock(Instant::now(), 0)
    }

    fn order<T>(lanes: &mut Lanes<T>) -> Vec<T> {
        std::iter::from_fn(|| lanes.next_if(|_| true)).collect()
    }

    const A: Lane = Lane { caller: 1, weight: 1 };
    const B: Lane = Lane { caller: 2, weight: 1 };

    #[test]
    fn one_caller_is_served_by_age() {
        let (mut lanes, mut clock) = (Lanes::default(), clock());
        let old = clock.tick();
        for (name, cost) in [("b", 1), ("c", 1000), ("d", 1)] {
            lanes.push(A, clock.tick(), cost, name);
        }
        lanes.push(A, old, 5000, "a");
        assert_eq!(lanes.oldest(), Some(old));
        assert_eq!(order(&mut lanes), ["a", "b", "c", "d"]);
        assert_eq!(lanes.oldest(), None);
    }

    #[test]
    fn a_refused_first_keeps_its_turn() {
        let (mut lanes, mut clock) = (Lanes::default(), clock());
        lanes.push(A, clock.tick(), 100, "long");
        lanes.push(B, clock.tick(), 1, "short");
        assert_eq!(lanes.next_if(|item| *item == "short"), None, "nobody overtakes it");
        assert_eq!(order(&mut lanes), ["long", "short"]);
    }

    /// A thousand requests of one caller do not stand before the one of another.
    #[test]
    fn callers_take_turns() {
        let (mut lanes, mut clock) = (Lanes::default(), clock());
        for _ in 0..1000 {
            lanes.push(A, clock.tick(), 10, A);
        }
        lanes.push(B, clock.tick(), 10, B);
        let turns: Vec<Lane> = order(&mut lanes);
        assert_eq!(turns.iter().position(|lane| *lane == B), Some(1));
    }

    /// While both are busy, tokens are shared as the weights are, however long each one's requests.
    #[test]
    fn a_busy_queue_is_shared_by_weight() {
        let (heavy, light) = (Lane { caller: 1, weight: 3 }, Lane { caller: 2, weight: 1 });
        let (mut lanes, mut clock) = (Lanes::default(), clock());
        for _ in 0..4000 {
            lanes.push(heavy, clock.tick(), 7, (heavy, 7));
        }
        for _ in 0..100 {
            lanes.push(light, clock.tick(), 100, (light, 100));
        }
        let mut served = [0usize; 3];
        for _ in 0..2000 {
            let (lane, cost) = lanes.next_if(|_| true).unwrap();
            served[lane.caller as usize] += cost;
        }
        let share = served[1] as f64 / served[2] as f64;
        assert!((2.8..3.2).contains(&share), "{share}: {served:?}");
    }

    /// Who was away finds no turns saved up, and who was greedy has not been forgotten.
    #[test]
    fn turns_are_not_saved_up() {
        let (mut lanes, mut clock) = (Lanes::default(), clock());
        for _ in 0..100 {
            lanes.push(A, clock.tick(), 10, "a");
        }
        for _ in 0..50 {
            lanes.next_if(|_| true).unwrap();
        }
        for _ in 0..50 {
            lanes.push(B, clock.tick(), 10, "b");
        }
        let first: Vec<_> = (0..20).map(|_| lanes.next_if(|_| true).unwrap()).collect();
        assert_eq!(first.iter().filter(|name| **name == "b").count(), 10);
    }

    #[test]
    fn what_is_removed_is_gone_and_costs_nothing() {
        let (mut lanes, mut clock) = (Lanes::default(), clock());
        let place = lanes.push(A, clock.tick(), 1_000_000, "left");
        lanes.push(A, clock.tick(), 1, "a");
        lanes.push(B, clock.tick(), 1, "b");
        assert_eq!(lanes.remove(place), Some("left"));
        assert_eq!(lanes.remove(place), None);
        assert_eq!(order(&mut lanes), ["a", "b"]);
        lanes.push(B, clock.tick(), 1, "c");
        assert_eq!(lanes.take_all(), ["c"]);
        assert_eq!(lanes.oldest(), None);
    }
}
