//! Memory that a piece of work has to itself while it runs, and that its thread keeps for the next one.
//!
//! Invariant: once a thread has seen the largest piece of work of each kind, none allocates any more.

use std::cell::Cell;

use crate::cpu::aligned::AlignedBuffer;

thread_local! {
    /// What pieces of work on this thread have given back, the last one on top.
    static RETURNED: Cell<Vec<AlignedBuffer>> = const { Cell::new(Vec::new()) };
}

/// F32 values from the start of a cache line on, until it is dropped.
pub(crate) struct Lease {
    /// Absent only while it is dropped.
    buffer: Option<AlignedBuffer>,
    len: usize,
}

impl Lease {
    /// `len` values, which are unspecified.
    pub(crate) fn of(len: usize) -> Self {
        let mut returned = RETURNED.take();
        let buffer = returned.pop().filter(|buffer| buffer.len() >= len);
        RETURNED.set(returned);
        Lease { buffer: Some(buffer.unwrap_or_else(|| AlignedBuffer::zeroed(len))), len }
    }

    /// `len` zeros.
    pub(crate) fn zeroed(len: usize) -> Self {
        let mut lease = Lease::of(len);
        lease.values_mut().fill(0.0);
        lease
    }

    #[inline(always)]
    pub(crate) fn values_mut(&mut self) -> &mut [f32] {
        match &mut self.buffer {
            Some(buffer) => &mut buffer.values_mut()[..self.len],
            None => &mut [],
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut returned = RETURNED.take();
        returned.extend(self.buffer.take());
        RETURNED.set(returned);
    }
}

/// Hands out leased memory from its start on.
pub(crate) struct Carver<'m>(&'m mut [f32]);

impl<'m> Carver<'m> {
    pub(crate) fn new(values: &'m mut [f32]) -> Self {
        Carver(values)
    }

    /// The next `len` values.
    pub(crate) fn take(&mut self, len: usize) -> &'m mut [f32] {
        let (taken, rest) = std::mem::take(&mut self.0).split_at_mut(len);
        self.0 = rest;
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Addresses and lengths of two leases that are alive together.
    fn pair(first: usize, second: usize) -> [(*const f32, usize); 2] {
        let (mut first, mut second) = (Lease::zeroed(first), Lease::of(second));
        [first.values_mut(), second.values_mut()].map(|values| (values.as_ptr(), values.len()))
    }

    #[test]
    fn what_is_given_back_is_leased_again() {
        let [first, second] = pair(100, 10);
        assert_eq!((first.1, second.1), (100, 10));
        assert_ne!(first.0, second.0);
        let again = pair(100, 10);
        assert_eq!(again, [first, second], "locals are dropped in the reverse of their order");
        let [larger, _] = pair(1000, 10);
        assert_eq!(larger.1, 1000);
        let [smaller, _] = pair(100, 5);
        assert_eq!(smaller, (larger.0, 100), "a large one serves small work");
        assert!((larger.0 as usize).is_multiple_of(64));
    }
}
