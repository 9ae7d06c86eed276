//! What only the admin address has: the state of everything, and loading the deployment again.

use actix::Message;
use actix_web::http::StatusCode;
use actix_web::{HttpResponse, web};
use serde_json::{Value, json};

use super::status::{replica, respond};
use super::{Problem, Service};
use crate::metrics::{ExecutorMetrics, Metrics};
use crate::model::memory::MemoryNeed;
use crate::supervisor::{Card, Cards, Member, Reloaded, Replica};

/// Asks that the deployment file be read again and served from now on.
#[derive(Message)]
#[rtype(result = "Result<Loaded, String>")]
pub struct LoadAgain;

/// A deployment that took the place of another.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub executors: Reloaded,
    /// What the file says and this server does not do, or not before it is started again.
    pub warnings: Vec<String>,
}

/// `POST /admin/reload`
pub(super) async fn reload(service: web::Data<Service>) -> Result<HttpResponse, Problem> {
    let refused = |reason: String| Problem::Reload { reason };
    let reload = service.reload.as_ref().ok_or_else(|| refused("no deployment file is served".into()))?;
    let loaded = reload.send(LoadAgain).await.map_err(|error| refused(error.to_string()))?.map_err(refused)?;
    let Reloaded { kept, started, stopped } = loaded.executors;
    let executors = json!({ "kept": kept, "started": started, "stopped": stopped });
    Ok(respond(StatusCode::OK, &json!({ "executors": executors, "warnings": loaded.warnings })))
}

/// `GET /admin/state`
pub(super) async fn state(service: web::Data<Service>) -> HttpResponse {
    let roster = service.roster.borrow().clone();
    let gate = service.admission.gate();
    let state = json!({
        "draining": roster.draining,
        "default_model": roster.default_model,
        "inflight": { "requests": gate.requests(), "tokens": gate.tokens() },
        "held_bytes": service.terms.borrow().bodies.held().bytes(),
        "cards": cards_state(&service.cards.borrow()),
        "members": roster.members.iter().map(|member| member_state(member, &service.metrics)).collect::<Vec<_>>(),
    });
    respond(StatusCode::OK, &state)
}

fn cards_state(cards: &Cards) -> Value {
    match cards {
        Cards::Unknown => json!({ "state": "unknown" }),
        Cards::Absent { reason } => json!({ "state": "absent", "reason": reason }),
        Cards::Present { driver, cards } => {
            json!({ "state": "present", "driver": driver, "cards": cards.iter().map(card_state).collect::<Vec<_>>() })
        }
    }
}

fn card_state(card: &Card) -> Value {
    json!({
        "device": format!("cuda:{}", card.index),
        "uuid": card.uuid,
        "name": card.name,
        "total_bytes": card.total_bytes,
        "free_bytes": card.free_bytes,
        "compute_capability": card.compute_capability.map(|(major, minor)| format!("{major}.{minor}")),
        "ecc": card.ecc,
        "throttled_by": card.throttled_by,
        "defect": card.defect,
    })
}

fn member_state(member: &Member, metrics: &Metrics) -> Value {
    let name = &member.listing.name;
    json!({
        "name": name,
        "ready": member.is_ready(),
        "backlog_ms": member.backlog().map(|time| time.as_millis() as u64),
        "executors": member.replicas.iter().map(|it| executor_state(it, &metrics.executor(name, &it.device))).collect::<Vec<_>>(),
    })
}

fn executor_state(executor: &Replica, counted: &ExecutorMetrics) -> Value {
    let mut state = replica(executor);
    state["digest"] = json!(executor.face.as_ref().map(|face| &face.digest));
    state["memory_bytes"] = json!(executor.need.as_ref().map(MemoryNeed::total));
    state["queue"] = json!({ "requests": counted.queue_requests.get(), "tokens": counted.queue_tokens.get() });
    let cache = &counted.prefix_cache;
    state["prefix_cache"] = json!({
        "bytes": cache.bytes.get(),
        "bound_bytes": executor.need.map(|need| need.prefix_cache),
        "hits": cache.hits.get(),
        "misses": cache.misses.get(),
        "evictions": cache.evictions.get(),
    });
    state["load_tokens"] = json!(executor.handle.load_tokens());
    state["tokens_per_second"] = json!(executor.handle.tokens_per_second());
    state
}
