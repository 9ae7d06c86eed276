//! Load on a server, and what its callers saw.
//!
//! Open loop: requests arrive when they are due, whatever became of those before, and a request's latency counts from
//! when it was due, also while it waits for a connection of this program's own. A server that stalls is thus charged
//! for all who came meanwhile, and not just for the one that it kept waiting ("coordinated omission" is the name of the
//! mistake). Closed loop: so many clients, each of which asks again once it has its answer; this measures what a server
//! can do, and says little of waiting.
//!
//! Every request asks something that no other of its run does: a server computes equal ones once.

mod arrivals;
mod body;
mod report;
mod scrape;
mod target;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::runtime::{Builder, Handle};
use tokio::sync::{Semaphore, oneshot};

pub use arrivals::Arrivals;
pub use body::Kind;
pub use report::{Latency, Report, Window};
pub use scrape::Outcomes;
use scrape::Scrape;
use target::{Reply, Target};

/// How often the server is asked for its counters while it is under load.
const SCRAPE_EVERY: Duration = Duration::from_secs(1);
/// How long the server may take to count the last of what has ended.
const SETTLE: Duration = Duration::from_secs(10);

/// What is sent, where, and how fast. It holds a key, and has no `Debug`.
#[derive(Clone)]
pub struct Load {
    /// The server, as `http://HOST:PORT`.
    pub url: String,
    /// Where `/metrics` is, if elsewhere.
    pub metrics_url: Option<String>,
    pub key: Option<String>,
    /// The served name; none leaves it to the server's default.
    pub model: Option<String>,
    pub kind: Kind,
    pub pace: Pace,
    pub duration: Duration,
    /// Requests under way at once, each on a connection of its own.
    pub connections: usize,
    /// After which a client gives up.
    pub timeout: Duration,
    /// Requests before the measured ones, one after another.
    pub warmup: u64,
    /// Of texts and arrivals.
    pub seed: u64,
}

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// `rate` per second.
    Open { rate: f64, arrivals: Arrivals },
    /// So many clients, each as soon as it has its answer.
    Closed { clients: usize },
}

/// One request's end.
struct Sample {
    /// Since the load began.
    due: Duration,
    latency: Duration,
    reply: Reply,
}

impl Load {
    /// Loads the server and reports.
    ///
    /// # Errors
    /// When the server's metrics cannot be read, or no thread can be started. Whatever becomes of a request is part of
    /// the report.
    pub fn run(&self) -> Result<Report> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let handle = runtime.handle().clone();
        thread::scope(|scope| {
            // Requests are sent from a thread of their own, so that this one is on time.
            let reactor = scope.spawn(move || runtime.block_on(stopped));
            let report = self.run_on(&handle);
            drop(stop);
            let _ = reactor.join();
            report
        })
    }

    fn run_on(&self, handle: &Handle) -> Result<Report> {
        let target = Arc::new(Target::new(self)?);
        for number in 0..self.warmup {
            let ask = { Arc::clone(&target).ask(self.body(u64::MAX - number)) };
            wait_for(handle, ask)?;
        }
        let before = wait_for(handle, Arc::clone(&target).scrape())??;
        let start = Instant::now();
        let (watcher, watched) = channel();
        let watch = handle.spawn(Arc::clone(&target).watch(start, watcher));
        let (sender, samples) = channel();
        match self.pace {
            Pace::Open { rate, arrivals } => {
                self.open(handle, &target, start, arrivals.times(rate, self.seed), &sender);
            }
            Pace::Closed { clients } => {
                self.closed(handle, &target, start, clients, &sender);
            }
        }
        drop(sender);
        // Ends when the last request has.
        let samples: Vec<Sample> = samples.into_iter().collect();
        let elapsed = start.elapsed();
        watch.abort();
        let after = wait_for(handle, target.settled(SETTLE))??;
        let resident: Vec<(Duration, u64)> = watched.into_iter().collect();
        Ok(Report::new(self, elapsed, &samples, &before, &after, &resident))
    }

    /// Sends requests as they are due.
    fn open(
        &self,
        handle: &Handle,
        target: &Arc<Target>,
        start: Instant,
        times: impl Iterator<Item = Duration>,
        samples: &Sender<Sample>,
    ) {
        let connections = Arc::new(Semaphore::new(self.connections));
        for (number, due) in (0..).zip(times.take_while(|due| *due < self.duration)) {
            let body = self.body(number);
            let (target, connections, samples) = (Arc::clone(target), Arc::clone(&connections), samples.clone());
            thread::sleep((start + due).saturating_duration_since(Instant::now()));
            handle.spawn(async move {
                // The semaphore is never closed.
                let _connection = connections.acquire().await;
                let reply = target.ask(body).await;
                let latency = start.elapsed().saturating_sub(due);
                // Received until the last sender is gone.
                let _ = samples.send(Sample { due, latency, reply });
            });
        }
    }

    /// Has every client ask for as long as the load lasts.
    fn closed(&self, handle: &Handle, target: &Arc<Target>, start: Instant, clients: usize, samples: &Sender<Sample>) {
        let next = Arc::new(AtomicU64::new(0));
        for _ in 0..clients {
            let (load, target, next, samples) = (self.clone(), Arc::clone(target), Arc::clone(&next), samples.clone());
            handle.spawn(async move {
                while start.elapsed() < load.duration {
                    let body = load.body(next.fetch_add(1, Ordering::Relaxed));
                    let due = start.elapsed();
                    let reply = Arc::clone(&target).ask(body).await;
                    let _ = samples.send(Sample { due, latency: start.elapsed().saturating_sub(due), reply });
                }
            });
        }
    }

    fn body(&self, number: u64) -> String {
        self.kind.body(self.model.as_deref(), self.seed, number)
    }
}

/// Runs a future on the reactor's thread, and waits for it on this one.
fn wait_for<T: Send + 'static>(handle: &Handle, future: impl Future<Output = T> + Send + 'static) -> Result<T> {
    let (sender, receiver) = oneshot::channel();
    handle.spawn(async move {
        let _ = sender.send(future.await);
    });
    receiver.blocking_recv().context("the thread that sends requests ended")
}

#[cfg(test)]
mod tests;
