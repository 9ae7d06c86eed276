//! Another version of the deployment file in place of the one that is served, on SIGHUP or over the admin address.
//!
//! Invariant: whatever is wrong with the file, what runs goes on as it was. Absent on purpose: how executors follow
//! each other, which is the supervisor's.

use std::path::PathBuf;
use std::sync::Arc;

use actix::{Actor, ActorFutureExt, Addr, AtomicResponse, Context, Handler, WrapFuture};
use synod_config::{Deployment, Server};
use tokio::signal::unix::Signal;
use tokio::sync::watch;

use super::{admission, executors, read, seating, systemd, terms};
use crate::admission::Settings;
use crate::http::{LoadAgain, Loaded, Terms};
use crate::supervisor::{self, Reload, Seat, Supervisor};

/// Reads the deployment file again and hands its parts to whoever they concern. One reload at a time.
pub(super) struct Reloader {
    file: PathBuf,
    running: Running,
    settings: watch::Sender<Arc<Settings>>,
    terms: watch::Sender<Arc<Terms>>,
}

/// What is served now, and by whom.
#[derive(Clone)]
pub(super) struct Running {
    /// As it is served: with the address that the command line gave.
    pub(super) deployment: Deployment,
    /// What its file asked of the server when it was started.
    pub(super) asked: Server,
    pub(super) supervisor: Addr<Supervisor>,
}

impl Reloader {
    pub(super) fn new(
        file: PathBuf,
        running: Running,
        settings: watch::Sender<Arc<Settings>>,
        terms: watch::Sender<Arc<Terms>>,
    ) -> Self {
        Reloader { file, running, settings, terms }
    }

    /// What is read by others: after the executors, so that a new name is known before a key allows it.
    fn publish(&mut self, deployment: Deployment) {
        self.settings.send_replace(Arc::new(admission(&deployment)));
        let before = Arc::clone(&self.terms.borrow());
        let terms = terms(&deployment, &before.keys, Arc::clone(before.bodies.held()));
        self.terms.send_replace(Arc::new(terms));
        self.running.deployment = deployment;
    }
}

impl Actor for Reloader {
    type Context = Context<Self>;
}

impl Handler<LoadAgain> for Reloader {
    type Result = AtomicResponse<Self, Result<Loaded, String>>;

    fn handle(&mut self, LoadAgain: LoadAgain, _: &mut Self::Context) -> Self::Result {
        systemd::reloading();
        let again = load_again(self.file.clone(), self.running.clone()).into_actor(self);
        AtomicResponse::new(Box::pin(again.map(|loaded, reloader, _| {
            systemd::reloaded();
            match loaded {
                Ok((deployment, loaded)) => {
                    reloader.publish(deployment);
                    let supervisor::Reloaded { kept, started, stopped } = loaded.executors;
                    tracing::info!(kept, started, stopped, "the deployment was loaded again");
                    loaded.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
                    Ok(loaded)
                }
                Err(reason) => {
                    tracing::error!(reason, "the deployment was not loaded again; nothing was changed");
                    Err(reason)
                }
            }
        })))
    }
}

/// Reads the file, and has the supervisor serve its members.
async fn load_again(file: PathBuf, running: Running) -> Result<(Deployment, Loaded), String> {
    let (served, asked) = (running.deployment.server, running.asked);
    // Opening packages reads files.
    let prepare = tokio::task::spawn_blocking(move || prepare(&file, &served, &asked));
    let (deployment, warnings, seats) = prepare.await.map_err(|_| "reading it panicked".to_owned())??;
    let settings = executors(&deployment);
    let reload = Reload { seats, settings, host_bytes: supervisor::reachable_host_bytes() };
    let reloaded = running.supervisor.send(reload).await.map_err(|error| error.to_string())?;
    let executors = reloaded.map_err(|error| error.to_string())?;
    Ok((deployment, Loaded { executors, warnings }))
}

/// Everything that can be refused before anything is changed.
fn prepare(
    file: &std::path::Path,
    served: &Server,
    asked: &Server,
) -> Result<(Deployment, Vec<String>, Vec<Seat>), String> {
    let (mut deployment, mut warnings) = read(file).map_err(|error| format!("{error:#}"))?;
    warnings.extend(keep_started(&mut deployment.server, served, asked));
    if deployment.server.admits_strangers(deployment.keys.is_empty()) {
        let bind = served.bind;
        return Err(format!("server.bind: expected a [[key]] or server.open, as {bind} is no loopback address"));
    }
    let seats = supervisor::seats(&deployment.members, seating(&deployment)).map_err(|error| error.to_string())?;
    Ok((deployment, warnings, seats))
}

/// Keeps what only a start can change, and names it where the file has it otherwise.
fn keep_started(server: &mut Server, served: &Server, asked: &Server) -> Vec<String> {
    let keys = [
        ("bind", server.bind != asked.bind),
        ("admin", server.admin != asked.admin),
        ("workers", server.workers != asked.workers),
        ("drain_s", server.drain != asked.drain),
    ];
    let differing = keys.into_iter().filter(|(_, differs)| *differs);
    let warnings = differing.map(|(key, _)| format!("server.{key}: is as it was until the server is started again"));
    let warnings = warnings.collect();
    (server.bind, server.admin, server.workers, server.drain) =
        (served.bind, served.admin, served.workers, served.drain);
    warnings
}

/// Loads the deployment again on every SIGHUP. What is not from a file stays as it is.
pub(super) async fn on_hangup(mut hangup: Signal, reloader: Option<Addr<Reloader>>) {
    while hangup.recv().await.is_some() {
        if let Some(reloader) = &reloader {
            // The reloader logs what comes of it.
            reloader.do_send(LoadAgain);
        } else {
            tracing::warn!("no deployment file is served: there is nothing to load again");
        }
    }
}
