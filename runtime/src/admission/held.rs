//! The bytes that requests hold, together bounded.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::QueueFull;

/// Counts what all requests hold of bodies and responses.
#[derive(Debug, Default)]
pub struct HeldBytes {
    bytes: AtomicUsize,
}

/// One request's share, until it is dropped.
#[derive(Debug)]
pub struct Held {
    total: Arc<HeldBytes>,
    bytes: AtomicUsize,
    /// Of all shares together, for this one to grow.
    max_bytes: usize,
}

impl HeldBytes {
    /// A share of nothing yet, which grows while all shares together hold at most `max_bytes`.
    pub fn share(self: &Arc<Self>, max_bytes: usize) -> Held {
        Held { total: Arc::clone(self), bytes: AtomicUsize::new(0), max_bytes }
    }

    /// Bytes held now.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Held {
    /// Counts more bytes of a body.
    ///
    /// # Errors
    /// [`QueueFull::Bytes`] when they do not fit beside the others'.
    pub fn add(&self, bytes: usize) -> Result<(), QueueFull> {
        let add = |held: usize| held.checked_add(bytes).filter(|sum| *sum <= self.max_bytes);
        let added = self.total.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        added.map_err(|_| QueueFull::Bytes)?;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Counts a body that turned out to be `bytes` long, once it was decompressed.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn grow_to(&self, bytes: usize) -> Result<(), QueueFull> {
        self.add(bytes.saturating_sub(self.bytes.load(Ordering::Relaxed)))
    }

    /// Counts a response of `bytes` instead of the request that it answers. It is there already: it always fits.
    pub fn becomes(&self, bytes: usize) {
        self.total.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.total.bytes.fetch_sub(self.bytes.swap(bytes, Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.total.bytes.fetch_sub(*self.bytes.get_mut(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_bytes_are_bounded_together_and_given_back() {
        let total = Arc::new(HeldBytes::default());
        let held = total.share(64);
        held.add(60).unwrap();
        held.grow_to(63).unwrap();
        held.grow_to(10).unwrap();
        let other = total.share(64);
        other.add(1).unwrap();
        assert_eq!(other.add(1), Err(QueueFull::Bytes));
        assert_eq!(other.add(usize::MAX), Err(QueueFull::Bytes));
        other.becomes(100);
        assert_eq!(total.bytes(), 163, "a response is counted even where it does not fit");
        drop(other);
        assert_eq!(total.bytes(), 63);
        drop(held);
        assert_eq!(total.bytes(), 0);
    }

    /// A deployment that is loaded again may have another bound: what is held under the old one counts as well.
    #[test]
    fn bounds_may_change_under_way() {
        let total = Arc::new(HeldBytes::default());
        let (before, after) = (total.share(64), total.share(10));
        before.add(9).unwrap();
        assert_eq!(after.add(2), Err(QueueFull::Bytes));
        after.add(1).unwrap();
        before.add(54).unwrap();
        assert_eq!(before.add(1), Err(QueueFull::Bytes));
    }
}
