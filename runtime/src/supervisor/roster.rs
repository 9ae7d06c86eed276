//! Who serves what, where, in which state: a snapshot that the supervisor publishes and everybody else reads.

use std::fmt;
use std::sync::Arc;

use crate::executor::{Face, Handle, LoadProgress};

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
    /// Known once it was loaded for the first time.
    pub face: Option<Arc<Face>>,
    pub replicas: Vec<Replica>,
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
    pub handle: Handle,
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
}

impl ExecutorState {
    /// Every state's name.
    pub const NAMES: [&'static str; 4] = ["loading", "ready", "restarting", "failed"];

    /// Its name in metrics, health and model lists.
    pub fn name(&self) -> &'static str {
        match self {
            ExecutorState::Loading(_) => "loading",
            ExecutorState::Ready => "ready",
            ExecutorState::Restarting { .. } => "restarting",
            ExecutorState::Failed { .. } => "failed",
        }
    }

    /// Whether work may be sent to it.
    pub fn is_ready(&self) -> bool {
        matches!(self, ExecutorState::Ready)
    }
}

impl Member {
    /// Whether any of its executors serves.
    pub fn is_ready(&self) -> bool {
        self.replicas.iter().any(|replica| replica.state.is_ready())
    }

    /// Whether clients may call it `name`.
    pub fn answers_to(&self, name: &str) -> bool {
        self.listing.name == name || self.listing.aliases.iter().any(|alias| alias == name)
    }

    /// The ready executor with the fewest tokens under way.
    pub fn least_loaded(&self) -> Option<&Replica> {
        self.replicas
            .iter()
            .filter(|replica| replica.state.is_ready())
            .min_by_key(|replica| replica.handle.load_tokens())
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
