//! What the server says of itself: models, liveness, readiness, metrics.

use actix_web::http::StatusCode;
use actix_web::http::header::ContentType;
use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::{Value, json};

use super::{Problem, Service};
use crate::executor::Standing;
use crate::metrics::Scrape;
use crate::supervisor::{ExecutorState, Member, Replica, Roster};

/// `GET /v1/models`: an entry for every name and alias.
pub(super) async fn models(service: web::Data<Service>, request: HttpRequest) -> Result<HttpResponse, Problem> {
    service.terms.borrow().keys.check(request.headers())?;
    let roster = service.roster.borrow().clone();
    let entries = roster.members.iter().flat_map(|member| {
        let names = std::iter::once(&member.listing.name).chain(&member.listing.aliases);
        names.map(|name| model_entry(name, member))
    });
    Ok(respond(StatusCode::OK, &json!({ "models": entries.collect::<Vec<_>>() })))
}

/// `GET /health/live`: the event loop turns.
pub(super) async fn live() -> HttpResponse {
    respond(StatusCode::OK, &json!({ "status": "live" }))
}

/// `GET /health/ready`: 200 when every required member serves.
pub(super) async fn ready(service: web::Data<Service>) -> HttpResponse {
    let roster = service.roster.borrow().clone();
    let status = if roster.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    respond(status, &readiness(&roster))
}

/// `GET /metrics`
pub(super) async fn metrics(service: web::Data<Service>) -> Result<HttpResponse, Problem> {
    let failed = |reason: String| Problem::Metrics { reason };
    let scrape = service.reporter.send(Scrape).await.map_err(|error| failed(error.to_string()))?;
    let text = scrape.map_err(|error| failed(error.to_string()))?;
    Ok(HttpResponse::Ok().content_type(prometheus::TEXT_FORMAT).body(text))
}

pub(super) fn respond(status: StatusCode, body: &Value) -> HttpResponse {
    HttpResponse::build(status).content_type(ContentType::json()).body(body.to_string())
}

/// The SDK's three fields first, then what else there is to know.
fn model_entry(name: &str, member: &Member) -> Value {
    let listing = &member.listing;
    let replicas: Vec<Value> = member.replicas.iter().map(replica).collect();
    let mut entry = json!({
        "name": name,
        "description": listing.description,
        "release_date": listing.release_date,
        "served_as": listing.name,
        "profile": listing.profile,
        "ready": member.is_ready(),
        "replicas": replicas,
    });
    if let Some(face) = member.face() {
        entry["family"] = json!(face.family_name);
        entry["model_name"] = json!(face.model_name);
        entry["digest"] = json!(face.digest);
        entry["question_types"] = json!(face.family.question_types());
        entry["limits"] = json!({ "max_length_tokens": face.family.max_length_tokens() });
    }
    entry
}

fn readiness(roster: &Roster) -> Value {
    let members = roster.members.iter().map(|member| {
        json!({
            "name": member.listing.name,
            "required": member.listing.required,
            "ready": member.is_ready(),
            "replicas": member.replicas.iter().map(replica).collect::<Vec<_>>(),
        })
    });
    let waiting = roster.members.iter().filter(|member| member.listing.required && !member.is_ready());
    json!({
        "ready": roster.is_ready(),
        "draining": roster.draining,
        "waiting_for": waiting.map(|member| member.listing.name.as_str()).collect::<Vec<_>>(),
        "members": members.collect::<Vec<_>>(),
    })
}

/// A device, its state, and why or how far; of one that serves, what its recorded cases say of it.
pub(super) fn replica(replica: &Replica) -> Value {
    let mut entry = json!({ "device": replica.device, "state": replica.state.name() });
    match &replica.state {
        ExecutorState::Loading(progress) => {
            let (done_bytes, total_bytes) = progress.bytes();
            entry["loaded_bytes"] = json!(done_bytes);
            entry["total_bytes"] = json!(total_bytes);
        }
        ExecutorState::Restarting { reason }
        | ExecutorState::Failed { reason }
        | ExecutorState::Quarantined { reason } => entry["reason"] = json!(reason),
        ExecutorState::Ready => {
            entry["verification"] = json!(replica.standing.name());
            if let Standing::Drifted { reason } = &replica.standing {
                entry["reason"] = json!(reason);
            }
        }
    }
    entry
}
