//! Who serves what, where, in which state: a snapshot that the supervisor publishes and everybody else reads.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::executor::{Face, Handle, LoadProgress, Standing};
use crate::model::memory::MemoryNeed;

/// The members of a deployment. A snapshot: the supervisor publishes another one when anything changes.
#[derive(Clone, Default)]
pub struct Roster {
    pub members: Vec<Member>,
    /// Answers requests that name no model.
    pub default_model: Option<String>,
    /// Set once the process was told to end: new work is refused.
    pub draining: bool,
}

/// A member and its executors.
#[derive(Clone)]
pub struct Member {
    pub listing: Arc<Listing>,
    pub replicas: Vec<Replica>,
    /// Whether a new deployment had its executors stopped first, and others load in their place: requests wait.
    pub is_replaced: bool,
}

/// What the deployment says of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    pub name: String,
    pub aliases: Vec<String>,
    pub description: String,
    /// `YYYY-MM-DD`
    pub release_date: String,
    pub profile: String,
    /// Whether readiness waits for it.
    pub required: bool,
}

/// One executor of a member.
#[derive(Clone)]
pub struct Replica {
    /// As the deployment names it: `cpu:0`.
    pub device: String,
    pub state: ExecutorState,
    /// What its last replay of recorded cases said; of interest while it is ready.
    pub standing: Standing,
    /// Known once it was loaded for the first time.
    pub face: Option<Arc<Face>>,
    /// The memory that is counted for it; absent if its package could not be looked at.
    pub need: Option<MemoryNeed>,
    pub handle: Handle,
}

/// What a request for a member that has no ready executor may expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// Another set of executors is about to serve, and no request is to notice.
    Replaced,
    /// An executor that served is being built again.
    Returning,
    /// Nothing says that it will serve soon.
    Down,
}

/// Where an executor is in its life.
#[derive(Clone, Debug)]
pub enum ExecutorState {
    /// Reading the member's files.
    Loading(Arc<LoadProgress>),
    /// Serving.
    Ready,
    /// Served, failed, and waits to be built again.
    Restarting { reason: String },
    /// Could not be built, and waits to be tried again.
    Failed { reason: String },
    /// Failed too often, or is out of its gates. It is tried again after a long pause, or when the deployment is
    /// loaded again.
    Quarantined { reason: String },
}

impl ExecutorState {
    /// Every state's name.
    pub const NAMES: [&'static str; 5] = ["loading", "ready", "restarting", "failed", "quarantined"];

    /// Its name in metrics, health and model lists.
    pub fn name(&self) -> &'static str {
        match self {
            ExecutorState::Loading(_) => "loading",
            ExecutorState::Ready => "ready",
            ExecutorState::Restarting { .. } => "restarting",
            ExecutorState::Failed { .. } => "failed",
            ExecutorState::Quarantined { .. } => "quarantined",
        }
    }

    /// Whether the supervisor has heard that it serves.
    pub fn is_ready(&self) -> bool {
        matches!(self, ExecutorState::Ready)
    }
}

impl Replica {
    /// Whether work may be sent to it. An executor that fails says so first, and reports afterwards.
    pub fn is_ready(&self) -> bool {
        self.state.is_ready() && self.handle.is_open()
    }

    /// Whether it served, went down, and is being built again.
    fn is_returning(&self) -> bool {
        let is_built_again = match self.state {
            ExecutorState::Ready => !self.handle.is_open(),
            ExecutorState::Restarting { .. } | ExecutorState::Loading(_) => true,
            ExecutorState::Failed { .. } | ExecutorState::Quarantined { .. } => false,
        };
        is_built_again && self.face.is_some()
    }
}

impl Member {
    /// Whether any of its executors serves.
    pub fn is_ready(&self) -> bool {
        self.replicas.iter().any(Replica::is_ready)
    }

    /// What to expect of it while it is not ready.
    pub fn outlook(&self) -> Outlook {
        match () {
            () if self.is_replaced => Outlook::Replaced,
            () if self.replicas.iter().any(Replica::is_returning) => Outlook::Returning,
            () => Outlook::Down,
        }
    }

    /// Its reading half: that of an executor which serves, else of one that did.
    pub fn face(&self) -> Option<&Arc<Face>> {
        let ready = self.replicas.iter().find(|replica| replica.is_ready());
        ready.and_then(|replica| replica.face.as_ref()).or_else(|| self.replicas.iter().find_map(|r| r.face.as_ref()))
    }

    /// Whether clients may call it `name`.
    pub fn answers_to(&self, name: &str) -> bool {
        self.listing.name == name || self.listing.aliases.iter().any(|alias| alias == name)
    }

    /// The ready executor with the fewest tokens under way.
    pub fn least_loaded(&self) -> Option<&Replica> {
        self.replicas.iter().filter(|replica| replica.is_ready()).min_by_key(|replica| replica.handle.load_tokens())
    }

    /// The same among those that read requests as `face` does.
    pub fn least_loaded_of(&self, face: &Arc<Face>) -> Option<&Replica> {
        let reads_alike = |replica: &&Replica| replica.face.as_ref().is_some_and(|own| Arc::ptr_eq(own, face));
        let ready = self.replicas.iter().filter(|replica| replica.is_ready());
        ready.filter(reads_alike).min_by_key(|replica| replica.handle.load_tokens())
    }

    /// How long what is under way will take, at the measured pace of its ready executors together; nothing before they
    /// have computed anything.
    pub fn backlog(&self) -> Option<Duration> {
        let ready = || self.replicas.iter().filter(|replica| replica.is_ready()).map(|replica| &replica.handle);
        let rate: f64 = ready().filter_map(Handle::tokens_per_second).sum();
        let tokens: usize = ready().map(Handle::load_tokens).sum();
        if rate > 0.0 { Duration::try_from_secs_f64(tokens as f64 / rate).ok() } else { None }
    }
}

impl Roster {
    /// The member that is called `name`.
    pub fn member(&self, name: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.answers_to(name))
    }

    /// Every name and alias, in the deployment's order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.members
            .iter()
            .flat_map(|member| std::iter::once(&member.listing.name).chain(&member.listing.aliases).map(String::as_str))
    }

    /// Whether every member that the deployment requires serves, and the process means to go on.
    pub fn is_ready(&self) -> bool {
        !self.draining && self.members.iter().all(|member| member.is_ready() || !member.listing.required)
    }
}

impl fmt::Debug for Roster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let states = self.members.iter().flat_map(|member| {
            member.replicas.iter().map(|replica| (&member.listing.name, &replica.device, &replica.state))
        });
        f.debug_list().entries(states).finish()
    }
}
