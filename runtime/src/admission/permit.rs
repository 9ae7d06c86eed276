//! The bounds of what is under way, as permits that un-count themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use prometheus::IntGauge;
use tokio::sync::Notify;

use super::Held;

/// Why nothing more is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueFull {
    #[error("too many requests are under way; try again")]
    Requests,
    #[error("too many tokens are under way; try again")]
    Tokens,
    #[error("too many bodies and responses are held; try again")]
    Bytes,
}

/// How much may be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Requests between reading and answer.
    pub max_requests: usize,
    /// Tokens that these may compute together, and the most that one of them may.
    pub max_tokens: usize,
}

/// Counts the requests between reading and answer, and the tokens that they compute.
#[derive(Debug)]
pub struct Gate {
    requests: AtomicUsize,
    tokens: AtomicUsize,
    inflight: IntGauge,
    /// Told when the last request ends.
    emptied: Notify,
}

/// What one request occupies: its place among the requests, its tokens, its bytes.
///
/// Whatever works for the request at the moment (a message to a reader, a job, a response being written) has a share
/// of it: a client that leaves gives nothing back before its work is gone.
#[derive(Clone, Debug)]
pub struct Ticket {
    // Dropped first: where the gate is idle, nothing is held.
    pub held: Arc<Held>,
    pub permit: Arc<Permit>,
}

/// One request's place. Dropping it gives the place and its tokens back.
#[derive(Debug)]
pub struct Permit {
    gate: Arc<Gate>,
    tokens: AtomicUsize,
}

impl Gate {
    /// A gate that nobody has passed.
    pub fn new(inflight: IntGauge) -> Arc<Self> {
        let (requests, tokens) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Gate { requests, tokens, inflight, emptied: Notify::new() })
    }

    /// Takes a place for a request.
    ///
    /// # Errors
    /// [`QueueFull::Requests`] when there is none.
    pub fn enter(self: &Arc<Self>, bounds: Bounds) -> Result<Permit, QueueFull> {
        add(&self.requests, 1, bounds.max_requests).ok_or(QueueFull::Requests)?;
        self.inflight.inc();
        Ok(Permit { gate: Arc::clone(self), tokens: AtomicUsize::new(0) })
    }

    /// Waits until no request is under way. New ones must be refused meanwhile, or it may wait for ever.
    pub async fn idle(&self) {
        loop {
            let emptied = self.emptied.notified();
            if self.requests.load(Ordering::SeqCst) == 0 {
                return;
            }
            emptied.await;
        }
    }

    /// Requests under way.
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    /// Tokens of the requests under way.
    pub fn tokens(&self) -> usize {
        self.tokens.load(Ordering::Relaxed)
    }
}

impl Permit {
    /// Counts the tokens that the request computes, now that they are known; again, if it was read again.
    ///
    /// # Errors
    /// [`QueueFull::Tokens`] when they do not fit beside the others'.
    pub fn charge(&self, tokens: usize, bounds: Bounds) -> Result<(), QueueFull> {
        let more = tokens.saturating_sub(self.tokens.load(Ordering::Relaxed));
        add(&self.gate.tokens, more, bounds.max_tokens).ok_or(QueueFull::Tokens)?;
        self.tokens.fetch_add(more, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.gate.tokens.fetch_sub(*self.tokens.get_mut(), Ordering::Relaxed);
        self.gate.inflight.dec();
        if self.gate.requests.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.gate.emptied.notify_waiters();
        }
    }
}

/// Adds `more` to a count that may reach `max`.
fn add(count: &AtomicUsize, more: usize, max: usize) -> Option<usize> {
    let add = |count: usize| count.checked_add(more).filter(|sum| *sum <= max);
    count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add).ok()
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    const BOUNDS: Bounds = Bounds { max_requests: 2, max_tokens: 10 };

    fn gate() -> Arc<Gate> {
        Gate::new(IntGauge::new("inflight", "test").unwrap())
    }

    #[test]
    fn places_are_given_back() {
        let gate = gate();
        let first = gate.enter(BOUNDS).unwrap();
        let second = gate.enter(BOUNDS).unwrap();
        assert_eq!(gate.enter(BOUNDS).err(), Some(QueueFull::Requests));
        assert_eq!(gate.inflight.get(), 2);
        drop(first);
        drop(gate.enter(BOUNDS).unwrap());
        drop(second);
        assert_eq!((gate.inflight.get(), gate.requests()), (0, 0));
    }

    #[test]
    fn tokens_are_bounded_together_and_given_back() {
        let gate = gate();
        let first = gate.enter(BOUNDS).unwrap();
        first.charge(7, BOUNDS).unwrap();
        first.charge(7, BOUNDS).unwrap();
        let second = gate.enter(BOUNDS).unwrap();
        assert_eq!(second.charge(4, BOUNDS), Err(QueueFull::Tokens));
        second.charge(3, BOUNDS).unwrap();
        assert_eq!(gate.tokens(), 10);
        drop(first);
        drop(second);
        assert_eq!(gate.tokens(), 0);
    }

    /// Lower bounds refuse more; they take nothing from those who are in.
    #[test]
    fn bounds_may_change_under_way() {
        let gate = gate();
        let (_first, second) = (gate.enter(BOUNDS).unwrap(), gate.enter(BOUNDS).unwrap());
        let lower = Bounds { max_requests: 1, max_tokens: 1 };
        drop(second);
        assert_eq!(gate.enter(lower).err(), Some(QueueFull::Requests));
        assert!(gate.enter(BOUNDS).is_ok());
    }

    #[test]
    fn idle_is_when_the_last_one_left() {
        let gate = gate();
        let place = gate.enter(BOUNDS).unwrap();
        let mut idle = pin!(gate.idle());
        let mut context = Context::from_waker(Waker::noop());
        assert!(idle.as_mut().poll(&mut context).is_pending());
        drop(place);
        assert_eq!(idle.as_mut().poll(&mut context), Poll::Ready(()));
    }
}
