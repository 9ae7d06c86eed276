//! `POST /v1/systemone` and `POST /v1/decisions`.

use std::time::Instant;

use actix_web::http::header::ContentType;
use actix_web::{HttpMessage, HttpRequest, HttpResponse, web};

use super::observe::{Arrival, SERVER_TIMING};
use super::text::HeldText;
use super::{Problem, Service, body};
use crate::admission::{Answered, Call};
use crate::metrics::Phase;
use crate::wire::request::Strictness;

/// Answers one request. What can be refused by its head is refused before its body is read.
pub(super) async fn decide(
    service: &Service,
    request: &HttpRequest,
    payload: web::Payload,
    strictness: Strictness,
) -> Result<HttpResponse, Problem> {
    let received = request.extensions().get::<Arrival>().map_or_else(Instant::now, |arrival| arrival.0);
    let terms = service.terms.borrow().clone();
    let caller = terms.keys.check(request.headers())?;
    request.extensions_mut().insert(caller.clone());
    caller.spend(Instant::now())?;
    body::check_content_type(request.headers())?;
    let encoding = body::encoding(request.headers())?;
    let (body, held) = terms.bodies.receive(request, payload, received).await?;
    let call = Call { body, encoding, strictness, received, lane: caller.lane, allowed: caller.models };
    let answered = service.admission.decide(call, held).await?;
    Ok(HttpResponse::Ok()
        .content_type(ContentType::json())
        .insert_header((SERVER_TIMING, server_timing(&answered)))
        .body(HeldText::new(answered.body, answered.held)))
}

/// The phases in milliseconds (W3C Server Timing).
fn server_timing(answered: &Answered) -> String {
    let entry = |(phase, time): (Phase, std::time::Duration)| {
        format!("{};dur={:.3}", phase.name(), time.as_secs_f64() * 1000.0)
    };
    Phase::ALL.into_iter().zip(answered.phases).map(entry).collect::<Vec<_>>().join(", ")
}
