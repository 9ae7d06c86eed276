//! The bounds of what is under way, as permits that un-count themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use prometheus::IntGauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

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

/// Counts the requests between reading and answer, and the tokens that they compute.
#[derive(Debug)]
pub struct Gate {
    requests: Arc<Semaphore>,
    max_requests: u32,
    tokens: AtomicUsize,
    max_tokens: usize,
    inflight: IntGauge,
}

/// What one request occupies: its place among the requests, its tokens, its bytes.
///
/// It is owned by whatever works for the request at the moment (a message to a reader, a job, a response being
/// written), not by whoever waits for that: a client that leaves gives nothing back before its work is gone.
#[derive(Debug)]
pub struct Ticket {
    // Dropped first: where the gate is idle, nothing is held.
    pub held: Held,
    pub permit: Permit,
}

/// One request's place. Dropping it gives the place and its tokens back.
#[derive(Debug)]
pub struct Permit {
    gate: Arc<Gate>,
    tokens: usize,
    _place: OwnedSemaphorePermit,
}

impl Gate {
    /// A gate for `max_requests` requests (at most `u32::MAX`) of `max_tokens` tokens together.
    pub fn new(max_requests: usize, max_tokens: usize, inflight: IntGauge) -> Arc<Self> {
        let max_requests = u32::try_from(max_requests.min(Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX);
        let requests = Arc::new(Semaphore::new(max_requests as usize));
        Arc::new(Gate { requests, max_requests, tokens: AtomicUsize::new(0), max_tokens, inflight })
    }

    /// Takes a place for a request.
    ///
    /// # Errors
    /// [`QueueFull::Requests`] when there is none.
    pub fn enter(self: &Arc<Self>) -> Result<Permit, QueueFull> {
        let place = Arc::clone(&self.requests).try_acquire_owned().map_err(|_| QueueFull::Requests)?;
        self.inflight.inc();
        Ok(Permit { gate: Arc::clone(self), tokens: 0, _place: place })
    }

    /// Waits until no request is under way. New ones must be refused meanwhile, or it may wait for ever.
    pub async fn idle(&self) {
        // The semaphore is never closed, so acquiring every place ends only when every place is free.
        let _ = self.requests.acquire_many(self.max_requests).await;
    }

    /// Tokens of the requests under way.
    pub fn tokens(&self) -> usize {
        self.tokens.load(Ordering::Relaxed)
    }
}

impl Permit {
    /// Counts the tokens that the request computes, now that they are known.
    ///
    /// # Errors
    /// [`QueueFull::Tokens`] when they do not fit beside the others'.
    pub fn charge(&mut self, tokens: usize) -> Result<(), QueueFull> {
        let max = self.gate.max_tokens;
        let add = |current: usize| current.checked_add(tokens).filter(|sum| *sum <= max);
        let added = self.gate.tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        added.map_err(|_| QueueFull::Tokens)?;
        self.tokens += tokens;
        Ok(())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.gate.tokens.fetch_sub(self.tokens, Ordering::Relaxed);
        self.gate.inflight.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(max_requests: usize, max_tokens: usize) -> Arc<Gate> {
        Gate::new(max_requests, max_tokens, IntGauge::new("inflight", "test").unwrap())
    }

    #[test]
    fn places_are_given_back() {
        let gate = gate(2, 10);
        let first = gate.enter().unwrap();
        let second = gate.enter().unwrap();
        assert_eq!(gate.enter().err(), Some(QueueFull::Requests));
        assert_eq!(gate.inflight.get(), 2);
        drop(first);
        drop(gate.enter().unwrap());
        drop(second);
        assert_eq!(gate.inflight.get(), 0);
    }

    #[test]
    fn tokens_are_bounded_together_and_given_back() {
        let gate = gate(9, 10);
        let mut first = gate.enter().unwrap();
        first.charge(7).unwrap();
        let mut second = gate.enter().unwrap();
        assert_eq!(second.charge(4), Err(QueueFull::Tokens));
        second.charge(3).unwrap();
        assert_eq!(gate.tokens(), 10);
        drop(first);
        drop(second);
        assert_eq!(gate.tokens(), 0);
    }
}
