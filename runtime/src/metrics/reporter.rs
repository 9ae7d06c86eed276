//! The metrics actor: writes scrapes, and mirrors the roster's states into gauges as it does.

use std::sync::Arc;

use actix::{Actor, Context, Handler, Message};
use tokio::sync::watch;

use super::Metrics;
use crate::supervisor::{ExecutorState, Roster};

/// Owns the text of `/metrics`.
pub struct Reporter {
    metrics: Arc<Metrics>,
    roster: watch::Receiver<Arc<Roster>>,
}

/// Asks for the text of a scrape.
#[derive(Message)]
#[rtype(result = "Result<String, prometheus::Error>")]
pub struct Scrape;

impl Reporter {
    /// A reporter of `metrics` and of the executors in `roster`.
    pub fn new(metrics: Arc<Metrics>, roster: watch::Receiver<Arc<Roster>>) -> Self {
        Reporter { metrics, roster }
    }
}

impl Actor for Reporter {
    type Context = Context<Self>;
}

impl Handler<Scrape> for Reporter {
    type Result = Result<String, prometheus::Error>;

    fn handle(&mut self, Scrape: Scrape, _: &mut Self::Context) -> Self::Result {
        let roster = Arc::clone(&self.roster.borrow());
        for member in &roster.members {
            for replica in &member.replicas {
                self.metrics.executor_state(
                    &member.listing.name,
                    &replica.device,
                    replica.state.name(),
                    &ExecutorState::NAMES,
                );
            }
        }
        self.metrics.encode()
    }
}
