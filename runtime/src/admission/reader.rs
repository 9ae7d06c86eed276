//! The two halves of a request that cost processor time, on threads of their own: readers and finishers.
//!
//! A message owns its request's [`Ticket`], and so does its reply. One whose sender has left is skipped when its turn
//! comes; until then it lies in the arbiter's queue, and stays counted.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{Actor, Handler, Message, SyncContext};
use tokio::sync::watch;

use super::{Call, Held, Permit, Refused, Settings, Ticket, not_ready};
use crate::family::{Logits, Pending, Rendered};
use crate::metrics::Metrics;
use crate::supervisor::{Member, Roster};
use crate::wire::json;
use crate::wire::request::Request;
use crate::wire::response::{Detail, Loc, Refusal, write_decision};

/// Reads requests. Holds nothing of one between two messages.
pub(super) struct Reader {
    settings: Settings,
    roster: watch::Receiver<Arc<Roster>>,
    metrics: Arc<Metrics>,
}

/// Finishes requests. Apart from the readers, so that no answer waits for anybody's body to be read.
pub(super) struct Finisher;

/// Asks for a request's plan.
#[derive(Message)]
#[rtype(result = "Result<Prepared, Refused>")]
pub(super) struct Read {
    pub(super) call: Call,
    pub(super) ticket: Ticket,
    /// When the server's own time for it is over.
    pub(super) limit: Instant,
}

/// A request that is ready to be computed.
pub(super) struct Prepared {
    /// The served name of the member that answers.
    pub(super) model: String,
    pub(super) rendered: Rendered,
    pub(super) ticket: Ticket,
    pub(super) deadline: Instant,
    pub(super) parse: Duration,
    pub(super) render: Duration,
}

/// Asks for a computed request's response.
#[derive(Message)]
#[rtype(result = "Result<Finished, Refused>")]
pub(super) struct Finish {
    pub(super) model: String,
    pub(super) pending: Box<dyn Pending>,
    pub(super) logits: Vec<Vec<Logits>>,
    pub(super) ticket: Ticket,
}

/// A response's text.
pub(super) struct Finished {
    pub(super) body: String,
    /// The response's bytes; the request has left its place already.
    pub(super) held: Held,
    pub(super) time: Duration,
}

impl Reader {
    pub(super) fn new(settings: Settings, roster: watch::Receiver<Arc<Roster>>, metrics: Arc<Metrics>) -> Self {
        Reader { settings, roster, metrics }
    }

    fn read(&self, Read { call, mut ticket, limit }: Read) -> Result<Prepared, Refused> {
        let started = Instant::now();
        let body = call.encoding.decode(&call.body, self.settings.max_body_bytes)?;
        ticket.held.grow_to(body.len())?;
        let value = json::parse_with_depth(&body, self.settings.max_depth)?;
        let request = Request::read(value, &self.settings.limits)
            .map_err(|problem| Refused::Invalid(problem.into_details(|request| self.refusal(request, &call))))?;
        let parsed = Instant::now();
        let deadline = deadline(call.received, limit, request.deadline_ms);
        if parsed >= deadline {
            return Err(Refused::Deadline);
        }
        let roster = Arc::clone(&self.roster.borrow());
        let member = route(&roster, request.model.as_deref(), call.allowed.as_deref())?;
        let face = member.face.as_ref().filter(|_| member.is_ready()).ok_or_else(|| not_ready(member))?;
        let rendered = face.family.render(&request.state, &request.questions, call.strictness)?;
        self.charge(&mut ticket.permit, rendered.plan.tokens())?;
        for (_, question) in &request.questions {
            self.metrics.question(face.family.question_kind(question).unwrap_or("other"));
        }
        Ok(Prepared {
            model: member.listing.name.clone(),
            rendered,
            ticket,
            deadline,
            parse: parsed - started,
            render: parsed.elapsed(),
        })
    }

    /// What the member that a malformed request is for has against its questions. Of one that is not to be reached, or
    /// not by this caller, nothing is said.
    fn refusal(&self, request: &Request, call: &Call) -> Option<Refusal> {
        let roster = Arc::clone(&self.roster.borrow());
        let member = route(&roster, request.model.as_deref(), call.allowed.as_deref()).ok()?;
        let face = member.face.as_ref().filter(|_| member.is_ready())?;
        face.family.render(&request.state, &request.questions, call.strictness).err()
    }

    /// Counts what a request will compute. What could never fit is told so, and not to try again.
    fn charge(&self, permit: &mut Permit, tokens: usize) -> Result<(), Refused> {
        let max = self.settings.max_tokens;
        if tokens > max {
            let message = format!("the request is {tokens} tokens of work; at most {max} are taken here: ask for less");
            return Err(Refused::TooLong { message });
        }
        Ok(permit.charge(tokens)?)
    }
}

impl Finisher {
    fn finish(Finish { model, pending, logits, mut ticket }: Finish) -> Result<Finished, Refused> {
        let started = Instant::now();
        let decision = pending.finish(&logits)?;
        let body = write_decision(&model, &decision);
        ticket.held.becomes(body.len());
        Ok(Finished { body, held: ticket.held, time: started.elapsed() })
    }
}

impl Actor for Reader {
    type Context = SyncContext<Self>;
}

impl Handler<Read> for Reader {
    type Result = Result<Prepared, Refused>;

    fn handle(&mut self, read: Read, _: &mut Self::Context) -> Self::Result {
        contained(|| self.read(read))
    }
}

impl Actor for Finisher {
    type Context = SyncContext<Self>;
}

impl Handler<Finish> for Finisher {
    type Result = Result<Finished, Refused>;

    fn handle(&mut self, finish: Finish, _: &mut Self::Context) -> Self::Result {
        contained(|| Finisher::finish(finish))
    }
}

/// A panic must not cost an actor its thread, which `SyncArbiter` would not replace. Neither actor holds state that it
/// could leave half changed. The payload may hold text of the request and is dropped unread.
fn contained<T>(work: impl FnOnce() -> Result<T, Refused>) -> Result<T, Refused> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(Refused::Internal { reason: "reading or finishing panicked".into() }))
}

/// A request's own deadline can only be earlier than the server's `limit`.
fn deadline(received: Instant, limit: Instant, deadline_ms: Option<u64>) -> Instant {
    let own = deadline_ms.and_then(|ms| received.checked_add(Duration::from_millis(ms)));
    own.map_or(limit, |own| own.min(limit))
}

/// The member that answers to `model`, or to the deployment's default.
fn route<'a>(roster: &'a Roster, model: Option<&str>, allowed: Option<&[String]>) -> Result<&'a Member, Refused> {
    let name = model.or(roster.default_model.as_deref()).ok_or_else(missing_model)?;
    let allows = |member: &Member| allowed.is_none_or(|names| names.contains(&member.listing.name));
    match roster.member(name) {
        Some(member) if allows(member) => Ok(member),
        Some(member) => Err(Refused::ModelNotAllowed { model: member.listing.name.clone() }),
        None => Err(Refused::UnknownModel { known: roster.names().map(str::to_owned).collect() }),
    }
}

fn missing_model() -> Refused {
    let loc = ["body", "model"].map(|step| Loc::Key(step.into())).to_vec();
    Refused::Invalid(vec![Detail { loc, msg: "is required: this deployment has no default".into(), code: "missing" }])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_the_earlier_of_two() {
        let received = Instant::now();
        let limit = received + Duration::from_mins(1);
        assert_eq!(deadline(received, limit, None), limit);
        assert_eq!(deadline(received, limit, Some(1500)), received + Duration::from_millis(1500));
        assert_eq!(deadline(received, limit, Some(60_001)), limit);
        assert_eq!(deadline(received, limit, Some(u64::MAX)), limit);
    }
}
