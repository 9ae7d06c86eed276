//! The two halves of a request that cost processor time, on threads of their own: readers and finishers.
//!
//! A message owns its request's [`Ticket`], and so does its reply. One whose sender has left is skipped when its turn
//! comes; until then it lies in the arbiter's queue, and stays counted.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{Actor, Handler, Message, SyncContext};
use tokio::sync::watch;

use super::{Call, Held, QueueFull, Refused, Settings, Ticket, not_ready};
use crate::executor::{Computed, Face};
use crate::family::{Family, Pending, Plan, Rendered};
use crate::supervisor::{Member, Outlook, Roster};
use crate::wire::json::{self, Value};
use crate::wire::request::{Question, Request, States, Strictness};
use crate::wire::response::{Detail, Loc, Refusal, StateError, write_decision, write_decisions};

/// Reads requests. Holds nothing of one between two messages.
pub(super) struct Reader {
    settings: watch::Receiver<Arc<Settings>>,
    roster: watch::Receiver<Arc<Roster>>,
}

/// Finishes requests. Apart from the readers, so that no answer waits for anybody's body to be read.
pub(super) struct Finisher;

/// Asks for a request's plan.
#[derive(Message)]
#[rtype(result = "Result<Prepared, Unread>")]
pub(super) struct Read {
    pub(super) call: Call,
    pub(super) ticket: Ticket,
    /// When the server's own time for it is over.
    pub(super) limit: Instant,
}

/// Why a request was not read to its plan.
#[derive(Debug)]
pub(super) enum Unread {
    Refused(Refused),
    /// It does not fit beside the others.
    Full(QueueFull),
    /// Its member has no ready executor now.
    Absent {
        outlook: Outlook,
        deadline: Instant,
        refused: Refused,
    },
}

impl<T: Into<Refused>> From<T> for Unread {
    fn from(refused: T) -> Self {
        Unread::Refused(refused.into())
    }
}

/// A request that is ready to be computed.
pub(super) struct Prepared {
    /// The served name of the member that answers.
    pub(super) model: String,
    /// As it was when the request was read: its executors live as long as this does.
    pub(super) member: Member,
    /// What read the request: only an executor that has the same may compute it.
    pub(super) face: Arc<Face>,
    pub(super) parts: Parts,
    /// The type of every question.
    pub(super) kinds: Vec<&'static str>,
    pub(super) deadline: Instant,
    pub(super) parse: Duration,
    pub(super) render: Duration,
}

/// What a request asks for: one state, or several by name.
pub(super) enum Parts {
    One(Part),
    Several(Vec<(String, Result<Part, StateError>)>),
}

/// A state's plan, and what its answers are made with.
pub(super) struct Part {
    plan: Arc<Plan>,
    pending: Box<dyn Pending>,
}

impl Parts {
    /// The plans of the states that were read, in order.
    pub(super) fn plans(&self) -> impl Iterator<Item = &Arc<Plan>> {
        let (one, several) = match self {
            Parts::One(part) => (Some(part), [].as_slice()),
            Parts::Several(parts) => (None, parts.as_slice()),
        };
        one.into_iter().chain(several.iter().filter_map(|(_, part)| part.as_ref().ok())).map(|part| &part.plan)
    }
}

impl From<Rendered> for Part {
    fn from(Rendered { plan, pending }: Rendered) -> Self {
        Part { plan: Arc::new(plan), pending }
    }
}

/// Asks for a computed request's response.
#[derive(Message)]
#[rtype(result = "Result<Finished, Refused>")]
pub(super) struct Finish {
    pub(super) model: String,
    pub(super) parts: Parts,
    /// In the order of the parts' plans.
    pub(super) computed: Vec<Arc<Computed>>,
    pub(super) ticket: Ticket,
}

/// A response's text.
pub(super) struct Finished {
    pub(super) body: String,
    /// The response's bytes.
    pub(super) held: Arc<Held>,
    pub(super) time: Duration,
}

/// A body's contents.
enum Asked {
    One(Request),
    Several(States),
}

impl Asked {
    fn model(&self) -> Option<&str> {
        match self {
            Asked::One(request) => request.model.as_deref(),
            Asked::Several(states) => states.model.as_deref(),
        }
    }

    fn deadline_ms(&self) -> Option<u64> {
        match self {
            Asked::One(request) => request.deadline_ms,
            Asked::Several(states) => states.deadline_ms,
        }
    }

    fn questions(&self) -> Box<dyn Iterator<Item = &Question> + '_> {
        match self {
            Asked::One(request) => Box::new(request.questions.iter().map(|(_, question)| question)),
            Asked::Several(states) => {
                let questions = states.states.iter().flat_map(|(_, state)| &state.questions);
                Box::new(questions.map(|(_, question)| question))
            }
        }
    }
}

impl Reader {
    pub(super) fn new(settings: watch::Receiver<Arc<Settings>>, roster: watch::Receiver<Arc<Roster>>) -> Self {
        Reader { settings, roster }
    }

    fn read(&self, Read { call, ticket, limit }: Read) -> Result<Prepared, Unread> {
        let started = Instant::now();
        let settings = Arc::clone(&self.settings.borrow());
        let body = call.encoding.decode(&call.body, settings.max_body_bytes)?;
        ticket.held.grow_to(body.len()).map_err(Unread::Full)?;
        let asked = self.read_body(json::parse_with_depth(&body, settings.max_depth)?, &call, &settings)?;
        let parsed = Instant::now();
        let deadline = deadline(call.received, limit, asked.deadline_ms());
        if parsed >= deadline {
            return Err(Refused::Deadline.into());
        }
        let roster = Arc::clone(&self.roster.borrow());
        let member = route(&roster, asked.model(), call.allowed.as_deref())?;
        let face = member.least_loaded().and_then(|replica| replica.face.as_ref());
        let face = Arc::clone(face.ok_or_else(|| Unread::Absent {
            outlook: member.outlook(),
            deadline,
            refused: not_ready(member),
        })?);
        let parts = render(&*face.family, &asked, call.strictness)?;
        let tokens = parts.plans().fold(0usize, |sum, plan| sum.saturating_add(plan.tokens()));
        charge(&ticket, tokens, &settings)?;
        let kinds = asked.questions().map(|question| face.family.question_kind(question).unwrap_or("other")).collect();
        Ok(Prepared {
            model: member.listing.name.clone(),
            member: member.clone(),
            face,
            parts,
            kinds,
            deadline,
            parse: parsed - started,
            render: parsed.elapsed(),
        })
    }

    fn read_body(&self, body: Value, call: &Call, settings: &Settings) -> Result<Asked, Refused> {
        if call.strictness == Strictness::PerQuestion && States::are_in(&body) {
            let states = States::read(body, &settings.limits);
            return states.map(Asked::Several).map_err(|problem| Refused::Invalid(problem.into_details(|_| None)));
        }
        Request::read(body, &settings.limits)
            .map(Asked::One)
            .map_err(|problem| Refused::Invalid(problem.into_details(|request| self.refusal(request, call))))
    }

    /// What the member that a malformed request is for has against its questions. Of one that is not to be reached, or
    /// not by this caller, nothing is said.
    fn refusal(&self, request: &Request, call: &Call) -> Option<Refusal> {
        let roster = Arc::clone(&self.roster.borrow());
        let member = route(&roster, request.model.as_deref(), call.allowed.as_deref()).ok()?;
        let face = member.face().filter(|_| member.is_ready())?;
        face.family.render(&request.state, &request.questions, call.strictness).err()
    }
}

/// Renders every state. One of several that is invalid is left out, and stands with its error in the response.
fn render(family: &dyn Family, asked: &Asked, strictness: Strictness) -> Result<Parts, Refusal> {
    match asked {
        Asked::One(request) => Ok(Parts::One(family.render(&request.state, &request.questions, strictness)?.into())),
        Asked::Several(states) => {
            let parts = states.states.iter().map(|(name, state)| {
                let rendered = family.render(&state.state, &state.questions, strictness);
                (name.clone(), rendered.map(Part::from).map_err(StateError::from))
            });
            Ok(Parts::Several(parts.collect()))
        }
    }
}

/// Counts what a request will compute. What could never fit is told so, and not to try again.
fn charge(ticket: &Ticket, tokens: usize, settings: &Settings) -> Result<(), Unread> {
    let max = settings.bounds.max_tokens;
    if tokens > max {
        let message = format!("the request is {tokens} tokens of work; at most {max} are taken here: ask for less");
        return Err(Refused::TooLong { message }.into());
    }
    ticket.permit.charge(tokens, settings.bounds).map_err(Unread::Full)
}

impl Finisher {
    fn finish(Finish { model, parts, computed, ticket }: Finish) -> Result<Finished, Refused> {
        let started = Instant::now();
        let mut computed = computed.into_iter();
        let mut finish = |part: Part| {
            let computed = computed.next().ok_or_else(super::stopped)?;
            part.pending.finish(&computed.logits).map_err(Refused::from)
        };
        let body = match parts {
            Parts::One(part) => write_decision(&model, &finish(part)?),
            Parts::Several(parts) => {
                let finish = |(name, part): (String, Result<Part, StateError>)| {
                    Ok((name, part.map(&mut finish).map_or_else(|error| Ok(Err(error)), |done| done.map(Ok))?))
                };
                let states = parts.into_iter().map(finish).collect::<Result<Vec<_>, Refused>>()?;
                write_decisions(&model, &states)
            }
        };
        ticket.held.becomes(body.len());
        Ok(Finished { body, held: ticket.held, time: started.elapsed() })
    }
}

impl Actor for Reader {
    type Context = SyncContext<Self>;
}

impl Handler<Read> for Reader {
    type Result = Result<Prepared, Unread>;

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
fn contained<T, E: From<Refused>>(work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let panicked = |_| Err(Refused::Internal { reason: "reading or finishing panicked".into() }.into());
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(panicked)
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
