//! Around every route: the request's id, its counters, its one line in the log.

use std::sync::Arc;
use std::time::Instant;

use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};
use actix_web::http::{Method, StatusCode};
use actix_web::middleware::Next;
use actix_web::{HttpMessage, web};
use uuid::Uuid;

use super::auth::Caller;
use super::{ADMIN_ROUTES, DECISION_ROUTES, Problem, ROUTES, Service};
use crate::metrics::{Metrics, Outcome};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-typesafe-request-id");
pub(super) const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");
/// Longer ids of clients are replaced: they are repeated in the response and in the log.
const MAX_ID_BYTES: usize = 128;

/// When a request's head had been read.
#[derive(Clone, Copy)]
pub(super) struct Arrival(pub(super) Instant);

/// Counts a decision request's one outcome; a request whose future is dropped before it has another was cancelled.
struct Ending {
    metrics: Arc<Metrics>,
    outcome: Outcome,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.metrics.outcome(self.outcome);
    }
}

/// The middleware.
pub(super) async fn observe(
    service: web::Data<Service>,
    request: ServiceRequest,
    next: Next<impl MessageBody>,
) -> Result<ServiceResponse<impl MessageBody>, actix_web::Error> {
    let received = Instant::now();
    let metrics = &service.metrics;
    let id = request_id(request.headers());
    // As the routes match it: percent-decoded, where `request.path()` is as it was sent.
    let path = request.match_info().as_str();
    let decides = *request.method() == Method::POST && DECISION_ROUTES.contains(&path);
    let mut routes = ROUTES.iter().chain(&ADMIN_ROUTES);
    let route = routes.find(|(_, route)| *route == path).map_or("other", |(_, route)| route);
    let mut ending = decides.then(|| Ending { metrics: Arc::clone(metrics), outcome: Outcome::Cancelled });
    request.extensions_mut().insert(Arrival(received));

    let mut response = next.call(request).await?;

    let status = response.status();
    let total = received.elapsed();
    let problem = response.response().error().and_then(|error| error.as_error::<Problem>());
    metrics.response(route, status.as_u16());
    if let Some(ending) = &mut ending {
        ending.outcome = problem.map_or(Outcome::Answered, Problem::outcome);
        metrics.request_seconds.observe(total.as_secs_f64());
        if let Some(problem) = problem.filter(|problem| problem.outcome() == Outcome::Rejected) {
            metrics.rejected(problem.code());
        }
    }
    let caller = response.request().extensions().get::<Caller>().and_then(|caller| caller.name.clone());
    let key = caller.as_deref();
    log(&Line { id: &id, key, route, status, total_ms: total.as_secs_f64() * 1000.0 }, problem);

    if service.roster.borrow().draining {
        response.response_mut().head_mut().set_connection_type(actix_web::http::ConnectionType::Close);
    }
    let headers = response.headers_mut();
    let total = format!("total;dur={:.3}", total.as_secs_f64() * 1000.0);
    let timing = match headers.get(SERVER_TIMING).and_then(|phases| phases.to_str().ok()) {
        Some(phases) => format!("{phases}, {total}"),
        None => total,
    };
    headers.insert(SERVER_TIMING, header_value(&timing));
    headers.insert(REQUEST_ID, header_value(&id));
    Ok(response)
}

/// The caller's id where it is one that may be repeated, else a new one.
fn request_id(headers: &HeaderMap) -> String {
    let sent = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok()).filter(|id| is_valid_id(id));
    sent.map_or_else(|| Uuid::now_v7().to_string(), str::to_owned)
}

fn is_valid_id(id: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/+=".contains(&byte);
    (1..=MAX_ID_BYTES).contains(&id.len()) && id.bytes().all(known)
}

/// Ids are checked and times are digits: both are visible ASCII.
fn header_value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("ids and times are visible ASCII")
}

/// A request in the log: ids, counts and times; never a text of the request.
struct Line<'a> {
    id: &'a str,
    /// The name of the caller's key.
    key: Option<&'a str>,
    route: &'a str,
    status: StatusCode,
    total_ms: f64,
}

fn log(&Line { id, key, route, status, total_ms }: &Line<'_>, problem: Option<&Problem>) {
    let (status, code) = (status.as_u16(), problem.map(Problem::code));
    match problem.and_then(Problem::log_reason) {
        Some(reason) => tracing::error!(id, key, route, status, code, total_ms, reason, "failed"),
        None if DECISION_ROUTES.contains(&route) => tracing::info!(id, key, route, status, code, total_ms, "answered"),
        None => tracing::debug!(id, key, route, status, code, total_ms, "answered"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_short_plain_ids_are_repeated() {
        for valid in ["a", "01890a5d-ac96-774b-bcce-b302099a8057", "req_1.2:3/4+5=", &"x".repeat(128)] {
            assert!(is_valid_id(valid), "{valid}");
        }
        for invalid in ["", "a b", "a\"", "a,b", "<a>", "é", "a\tb", "{a}", &"x".repeat(129)] {
            assert!(!is_valid_id(invalid), "{invalid}");
        }
    }

    #[test]
    fn new_ids_are_time_ordered_uuids() {
        let id = request_id(&HeaderMap::new());
        assert_eq!(Uuid::parse_str(&id).unwrap().get_version_num(), 7);
    }
}
