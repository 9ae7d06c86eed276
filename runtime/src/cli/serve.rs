//! `synod serve`: a deployment becomes running actors behind sockets.
//!
//! What is started, in this order: the supervisor and its executors (which load in the background), admission, the
//! metrics' reporter, the sockets. What ends them: SIGTERM or SIGINT. New work is refused then, what is under way is
//! finished within `drain_s`, and the process ends well. A second signal ends it at once. SIGHUP has the deployment
//! file read again ([`reload`]).

mod log;
mod reload;
mod systemd;

use std::io::{Write, stdout};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use actix::{Actor, Addr};
use actix_web::dev::ServerHandle;
use actix_web::web;
use anyhow::{Context, Result, bail};
use clap::ArgGroup;
use futures_util::future::{Either, select};
use synod_config::{Deployment, Server};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use super::progress::Bar;
use crate::admission::{self, Admission, Bounds, HeldBytes};
use crate::executor::Batching;
use crate::http::{Bodies, Keys, Listening, ROUTES, Service, Surface, Terms, listen};
use crate::member::Progress;
use crate::member::demo::Demo;
use crate::metrics::{Metrics, Reporter};
use crate::supervisor::{self, Drain, Policy, Seating, Sensors, Supervisor};
use crate::wire::request::Limits;
use log::LogFormat;
use reload::{Reloader, Running};

/// Serve a deployment, or a demonstration, over HTTP.
///
/// The address is printed as soon as it takes requests; `GET /health/ready` tells when the members are loaded.
#[derive(clap::Args)]
#[command(group(ArgGroup::new("deployment").required(true).args(["config", "demo"])))]
pub(super) struct Serve {
    /// The deployment file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Serve a small member with random weights instead: for trying the interface, its answers mean nothing
    #[arg(long)]
    demo: bool,
    /// Address to serve on instead of the deployment's; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<SocketAddr>,
    /// How the log on stderr is written; `RUST_LOG` chooses what is in it
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    log_format: LogFormat,
}

impl Serve {
    pub(super) fn run(self) -> Result<()> {
        let _log = log::start(self.log_format);
        let demo = self.demo.then(Demo::create).transpose()?;
        let mut deployment = match (&demo, &self.config) {
            (Some(demo), _) => demo_deployment(demo)?,
            (None, Some(file)) => load(file)?,
            (None, None) => bail!("expected --config FILE or --demo, found neither"),
        };
        let asked = deployment.server.clone();
        if let Some(bind) = self.bind {
            deployment.server.bind = bind;
            check_access(&deployment, self.demo)?;
        }
        if demo.is_some() {
            say("This is a demonstration: the member has random weights, and its answers mean nothing.");
        }
        actix::System::new().block_on(serve(deployment, asked, self.config))
    }
}

fn load(file: &Path) -> Result<Deployment> {
    let (deployment, warnings) = read(file)?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    Ok(deployment)
}

/// A deployment, and what is to be said of it.
fn read(file: &Path) -> Result<(Deployment, Vec<String>)> {
    let (deployment, warnings) = Deployment::load(file)?;
    let warnings = warnings.iter().map(ToString::to_string).collect();
    Ok((deployment, warnings))
}

/// The demo member under the name `demo`, and under the one that an unconfigured SDK asks for.
fn demo_deployment(demo: &Demo) -> Result<Deployment> {
    let text = format!(
        "[server]\ndefault_model = \"demo\"\n[[member]]\nname = \"demo\"\npath = \"demo\"\nanchor = \"{}\"\n\
         profile = \"fp32\"\nprefix_cache_mib = 0\ndevices = [\"cpu:*\"]\naliases = [\"jev-latest\"]\nrelease_date = \"2026-01-01\"\n\
         description = \"A demonstration with random weights: its answers mean nothing.\"\n",
        demo.anchor()
    );
    let (mut deployment, _) = Deployment::from_toml_with(&text, Path::new("demo"), |_| true)?;
    demo.path().clone_into(&mut deployment.members[0].path);
    Ok(deployment)
}

/// The deployment's own rule, for an address that it has not seen.
fn check_access(deployment: &Deployment, is_demo: bool) -> Result<()> {
    let bind = deployment.server.bind;
    match (deployment.server.admits_strangers(deployment.keys.is_empty()), is_demo) {
        (false, _) => Ok(()),
        (true, true) => bail!(
            "--bind: expected a loopback address for a demonstration, found {bind}; to be reached from other machines, \
             serve a deployment file with a [[key]]"
        ),
        (true, false) => bail!(
            "--bind: expected a loopback address without keys, found {bind}; list a [[key]] or set server.open in the \
             deployment file"
        ),
    }
}

/// Starts everything, serves until told to stop, and drains.
///
/// `asked` is what the file says of the server, where the command line may have said otherwise.
async fn serve(deployment: Deployment, asked: Server, file: Option<PathBuf>) -> Result<()> {
    let mut stop = Stop::listen()?;
    let hangup = signal(SignalKind::hangup()).context("signals cannot be listened to")?;
    let metrics = Arc::new(Metrics::new());
    let seats = supervisor::seats(&deployment.members, seating(&deployment))?;
    let cards = Sensors::start().context("no thread for NVML")?;
    if let Some(host_bytes) = supervisor::available_host_bytes() {
        supervisor::check_host(&seats, host_bytes)?;
    }
    let (supervisor, roster) = Supervisor::start_all(seats, executors(&deployment), Arc::clone(&metrics));
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let (set_settings, settings) = watch::channel(Arc::new(admission(&deployment)));
    let (set_terms, terms) = watch::channel(Arc::new(terms(&deployment, &Keys::default(), Arc::default())));
    let reloader = file.map(|file| {
        let running = Running { deployment: deployment.clone(), asked, supervisor: supervisor.clone() };
        Reloader::new(file, running, set_settings, set_terms).start()
    });
    actix::spawn(reload::on_hangup(hangup, reloader.clone()));
    let service = web::Data::new(Service {
        admission: Admission::start(threads, settings, roster.clone(), Arc::clone(&metrics)),
        reporter: Reporter::new(Arc::clone(&metrics), roster.clone(), cards.clone()).start(),
        roster,
        cards,
        metrics,
        terms,
        reload: reloader.map(Addr::recipient),
    });
    let server = &deployment.server;

    let surface = if server.admin.is_some() { Surface::Decisions } else { Surface::All };
    let main = bind(&service, surface, server.bind, server.workers)?;
    let admin =
        server.admin.map(|address| bind(&service, Surface::Admin, address, NonZeroUsize::new(1))).transpose()?;
    actix::spawn(systemd::when_ready(service.roster.clone()));
    greet(main.address, admin.as_ref().map(|admin| admin.address), &deployment);

    let handles: Vec<ServerHandle> =
        std::iter::once(&main).chain(&admin).map(|listening| listening.server.handle()).collect();
    let admin = admin.map(|admin| actix::spawn(admin.server));
    let main = actix::spawn(main.server);
    let main = match select(main, Box::pin(stop.recv())).await {
        Either::Left((ended, _)) => return ended?.context("the server ended by itself"),
        Either::Right(((), main)) => main,
    };
    systemd::stopping();
    drain(&supervisor, &service, &deployment, &mut stop).await;
    for handle in handles {
        handle.stop(true).await;
    }
    for server in std::iter::once(main).chain(admin) {
        server.await?.context("the server did not end well")?;
    }
    tracing::info!("stopped");
    Ok(())
}

fn seating(deployment: &Deployment) -> Seating {
    // Two bars at once would overwrite each other.
    let executors: usize = deployment.members.iter().map(|member| member.placements.len()).sum();
    let bar = || -> Box<dyn Progress> { Box::new(Bar::new("loading")) };
    Seating {
        limits: request_limits(&deployment.server.limits),
        batching: Batching { tokens: deployment.queue.batch_tokens, window: deployment.queue.batch_window },
        follower: if executors == 1 { Some(bar) } else { None },
    }
}

fn executors(deployment: &Deployment) -> supervisor::Settings {
    supervisor::Settings { default_model: deployment.server.default_model.clone(), backoff: Policy::default() }
}

fn admission(deployment: &Deployment) -> admission::Settings {
    let limits = deployment.server.limits;
    let bounds = Bounds { max_requests: deployment.queue.max_requests, max_tokens: deployment.queue.max_tokens };
    admission::Settings {
        max_body_bytes: limits.max_body_bytes,
        max_depth: limits.max_json_depth,
        limits: request_limits(&limits),
        bounds,
        request_timeout: deployment.server.request_timeout,
    }
}

/// `before` are the keys that were served until now; `held` is what requests under way hold, whichever deployment took
/// them.
fn terms(deployment: &Deployment, before: &Keys, held: Arc<HeldBytes>) -> Terms {
    let server = &deployment.server;
    Terms {
        keys: Keys::new(&deployment.keys, before),
        bodies: Bodies::new(server.limits.max_body_bytes, server.request_timeout, held),
    }
}

fn request_limits(limits: &synod_config::Limits) -> Limits {
    Limits {
        max_questions: limits.max_questions,
        max_states: limits.max_states,
        max_question_id_chars: limits.max_question_id_chars,
        max_options: limits.max_options,
        max_score_levels: limits.max_score_levels,
    }
}

fn bind(
    service: &web::Data<Service>,
    surface: Surface,
    address: SocketAddr,
    workers: Option<NonZeroUsize>,
) -> Result<Listening> {
    listen(service, surface, address, workers).with_context(|| format!("{address}: cannot be bound"))
}

/// Refuses new work and waits for the old, as long as the deployment allows or until a second signal.
async fn drain(supervisor: &Addr<Supervisor>, service: &Service, deployment: &Deployment, stop: &mut Stop) {
    // The supervisor lives as long as the system that runs this.
    let _ = supervisor.send(Drain).await;
    let idle = tokio::time::timeout(deployment.server.drain, service.admission.gate().idle());
    match select(Box::pin(idle), Box::pin(stop.recv())).await {
        Either::Left((Ok(()), _)) => {}
        Either::Left((Err(_), _)) => tracing::warn!("requests were still under way when drain_s was over"),
        Either::Right(((), _)) => tracing::warn!("told a second time: requests under way are refused"),
    }
    service.admission.end();
}

/// The signals that end the process.
struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    fn listen() -> Result<Self> {
        let listen = |kind| signal(kind).context("signals cannot be listened to");
        Ok(Stop { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    async fn recv(&mut self) {
        select(Box::pin(self.terminate.recv()), Box::pin(self.interrupt.recv())).await;
    }
}

/// Says where the server is and how it is asked. The first line is for programs as much as for people.
fn greet(address: SocketAddr, admin: Option<SocketAddr>, deployment: &Deployment) {
    say(&format!("listening on http://{address}"));
    if let Some(admin) = admin {
        say(&format!("health and metrics on http://{admin}"));
    }
    let model = match (&deployment.server.default_model, deployment.members.first()) {
        (None, Some(member)) => format!("\"model\": \"{}\", ", member.name),
        _ => String::new(),
    };
    say(&format!(
        "\n  curl -s http://{address}/v1/systemone -H 'content-type: application/json' -d \\\n  \
         '{{{model}\"state\": \"I was charged twice!\", \"questions\": {{\"billing\": {{\"type\": \"noul\", \
         \"instructions\": \"Is this about billing?\"}}}}}}'\n"
    ));
    for (method, route) in ROUTES {
        say(&format!("  {method} {route}"));
    }
}

/// Prints a line. Whoever closed stdout does not want to read it.
fn say(line: &str) {
    let mut out = stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
