//! Routes, keys, limits, and the one table from error classes to statuses.
//!
//! A handler authenticates, reads a bounded body and awaits admission; it computes nothing. [`observe`] wraps every
//! route: it gives a request its id, counts how it ended and logs one line of ids, counts and times. Every response
//! that this module makes is JSON (but for the metrics' text), also where the client spoke nonsense.
//!
//! Absent on purpose: the meaning of a body (`wire`, `family`) and who computes it (`admission`). A request head that
//! is no HTTP is answered by actix below this module, with a status and no body.

mod admin;
mod auth;
mod body;
mod bucket;
mod decisions;
mod error;
mod observe;
mod server;
mod status;
#[cfg(test)]
mod tests;
mod text;

use std::future::{Ready, ready};
use std::sync::Arc;

use actix::{Addr, Recipient};
use actix_web::middleware::from_fn;
use actix_web::{App, HttpRequest, HttpResponse, Resource, web};
use tokio::sync::watch;

pub use admin::{LoadAgain, Loaded};
pub use auth::Keys;
pub use body::Bodies;
pub use error::{Problem, written};
pub use server::{Listening, Surface, listen};

use crate::admission::Admission;
use crate::metrics::{Metrics, Reporter};
use crate::supervisor::{Cards, Roster};
use crate::wire::request::Strictness;

const SYSTEM_ONE: &str = "/v1/systemone";
const DECISIONS: &str = "/v1/decisions";
const MODELS: &str = "/v1/models";
const LIVE: &str = "/health/live";
const READY: &str = "/health/ready";
const METRICS: &str = "/metrics";
const STATE: &str = "/admin/state";
const RELOAD: &str = "/admin/reload";

/// Every route with its method. The path is its label in metrics and logs.
pub const ROUTES: [(&str, &str); 6] =
    [("POST", SYSTEM_ONE), ("POST", DECISIONS), ("GET", MODELS), ("GET", LIVE), ("GET", READY), ("GET", METRICS)];
/// The routes of the admin address alone.
const ADMIN_ROUTES: [(&str, &str); 2] = [("GET", STATE), ("POST", RELOAD)];
/// The routes whose requests have an outcome.
const DECISION_ROUTES: [&str; 2] = [SYSTEM_ONE, DECISIONS];

/// What the handlers share.
pub struct Service {
    pub admission: Admission,
    pub roster: watch::Receiver<Arc<Roster>>,
    pub reporter: Addr<Reporter>,
    pub cards: watch::Receiver<Arc<Cards>>,
    pub metrics: Arc<Metrics>,
    pub terms: watch::Receiver<Arc<Terms>>,
    /// Loads the deployment again; absent where it is not from a file.
    pub reload: Option<Recipient<LoadAgain>>,
}

/// On which terms callers are let in. Another deployment may change them.
pub struct Terms {
    pub keys: Keys,
    pub bodies: Bodies,
}

/// An app with the routes of `surface`.
pub(crate) fn app(
    service: &web::Data<Service>,
    surface: Surface,
) -> App<
    impl actix_web::dev::ServiceFactory<
        actix_web::dev::ServiceRequest,
        Config = (),
        Response = actix_web::dev::ServiceResponse<impl actix_web::body::MessageBody + use<>>,
        Error = actix_web::Error,
        InitError = (),
    > + use<>,
> {
    App::new()
        .app_data(web::Data::clone(service))
        .configure(|config| routes(config, surface))
        .default_service(web::to(|| refuse(Problem::UnknownRoute)))
        .wrap(from_fn(observe::observe))
}

fn routes(config: &mut web::ServiceConfig, surface: Surface) {
    if surface.decides() {
        config
            .service(decision_route(SYSTEM_ONE, Strictness::AllOrNothing))
            .service(decision_route(DECISIONS, Strictness::PerQuestion))
            .service(only_get(MODELS).route(web::get().to(status::models)));
    }
    if surface.reports() {
        config
            .service(only_get(LIVE).route(web::get().to(status::live)))
            .service(only_get(READY).route(web::get().to(status::ready)))
            .service(only_get(METRICS).route(web::get().to(status::metrics)));
    }
    if surface.administrates() {
        config.service(only_get(STATE).route(web::get().to(admin::state))).service(
            web::resource(RELOAD)
                .route(web::post().to(admin::reload))
                .default_service(web::to(|| refuse(Problem::Method { allow: "POST" }))),
        );
    }
}

fn decision_route(path: &'static str, strictness: Strictness) -> Resource {
    let decide = move |service: web::Data<Service>, request: HttpRequest, payload: web::Payload| async move {
        decisions::decide(&service, &request, payload, strictness).await
    };
    web::resource(path)
        .route(web::post().to(decide))
        .default_service(web::to(|| refuse(Problem::Method { allow: "POST" })))
}

fn only_get(path: &'static str) -> Resource {
    web::resource(path).default_service(web::to(|| refuse(Problem::Method { allow: "GET" })))
}

fn refuse(problem: Problem) -> Ready<Result<HttpResponse, Problem>> {
    ready(Err(problem))
}
