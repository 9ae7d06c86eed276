//! The metrics actor: writes scrapes, and mirrors the roster's states and the cards into gauges as it does.

use std::collections::BTreeMap;
use std::sync::Arc;

use actix::{Actor, Context, Handler, Message};
use tokio::sync::watch;

use super::Metrics;
use crate::supervisor::{Cards, ExecutorState, Roster, available_host_bytes, total_host_bytes};

/// Owns the text of `/metrics`.
pub struct Reporter {
    metrics: Arc<Metrics>,
    roster: watch::Receiver<Arc<Roster>>,
    cards: watch::Receiver<Arc<Cards>>,
}

/// Asks for the text of a scrape.
#[derive(Message)]
#[rtype(result = "Result<String, prometheus::Error>")]
pub struct Scrape;

impl Reporter {
    /// A reporter of `metrics`, of the executors in `roster` and of the machine's `cards`.
    pub fn new(
        metrics: Arc<Metrics>,
        roster: watch::Receiver<Arc<Roster>>,
        cards: watch::Receiver<Arc<Cards>>,
    ) -> Self {
        Reporter { metrics, roster, cards }
    }
}

impl Actor for Reporter {
    type Context = Context<Self>;
}

impl Handler<Scrape> for Reporter {
    type Result = Result<String, prometheus::Error>;

    fn handle(&mut self, Scrape: Scrape, _: &mut Self::Context) -> Self::Result {
        let roster = Arc::clone(&self.roster.borrow());
        let cards = Arc::clone(&self.cards.borrow());
        self.metrics.executor_states(&states(&roster), &ExecutorState::NAMES);
        self.metrics.devices.show((total_host_bytes(), available_host_bytes()), &cards);
        for member in &roster.members {
            for replica in &member.replicas {
                if let Some(need) = &replica.need {
                    self.metrics.devices.show_member(&member.listing.name, &replica.device, need);
                }
            }
        }
        self.metrics.encode()
    }
}

/// Every executor's state, by member and device. While one takes another's place on a device, the one that serves is
/// shown.
fn states(roster: &Roster) -> BTreeMap<(&str, &str), &str> {
    let mut states = BTreeMap::new();
    for member in &roster.members {
        for replica in &member.replicas {
            let shown = states.entry((member.listing.name.as_str(), replica.device.as_str()));
            let shown = shown.or_insert(replica.state.name());
            if replica.state.is_ready() {
                *shown = replica.state.name();
            }
        }
    }
    states
}
