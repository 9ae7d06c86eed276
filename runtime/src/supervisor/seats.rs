//! From a deployment's members to what the supervisor starts.
//!
//! A member's package is opened once, by whichever of its executors comes first, and its reading half is shared by
//! all. After a load that failed it is opened anew: a file may have been put back.

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, bail};
use synod_config::{Cores, Deployment, Member, Placement, Profile};
use synod_kernels::cpu::CpuDevice;

use crate::cli::local;
use crate::cli::progress::Bar;
use crate::executor::{Face, LoadProgress, Loaded};
use crate::member::{Anchor, Digest, Package, Progress, Trust};
use crate::model::Model;
use crate::supervisor::{self, Listing, Seat};
use crate::wire::request::Limits;

type LoadError = Box<dyn Error + Send + Sync>;

/// A seat for every member.
///
/// # Errors
/// A placement or profile that this build does not serve.
pub(super) fn seats(deployment: &Deployment, limits: Limits) -> Result<Vec<Seat>> {
    for line in without_effect(deployment) {
        tracing::warn!("{line}: has no effect in this version");
    }
    let executors: usize = deployment.members.iter().map(|member| member.placements.len()).sum();
    let seat_of = |member| seat(member, limits, deployment.queue.batch_tokens, executors == 1);
    deployment.members.iter().map(seat_of).collect()
}

fn seat(member: &Member, limits: Limits, batch_tokens: usize, shows_bar: bool) -> Result<Seat> {
    let shared = Arc::new(Shared { member: member.clone(), opened: Mutex::default(), limits, batch_tokens, shows_bar });
    let placements = member.placements.iter().map(|placement| place(&shared, placement)).collect::<Result<_>>()?;
    let listing = Listing {
        name: member.name.clone(),
        aliases: member.aliases.clone(),
        description: member.description.clone().unwrap_or_default(),
        release_date: member.release_date.clone().unwrap_or_default(),
        profile: member.profile.name().to_owned(),
        required: member.required,
    };
    Ok(Seat { listing, placements })
}

fn place(shared: &Arc<Shared>, placement: &Placement) -> Result<supervisor::Placement> {
    let member = &shared.member;
    let (Placement::Cpu(cores), Profile::Fp32) = (placement, member.profile) else {
        bail!(
            "member {}: expected profile fp32 on cpu devices, found {} on {placement}; this build serves fp32 on cpu only",
            member.name,
            member.profile.name(),
        );
    };
    let (shared, cores) = (Arc::clone(shared), cores.clone());
    let factory = Box::new(move |progress: &LoadProgress| shared.load(&cores, progress));
    Ok(supervisor::Placement { device: placement.to_string(), factory })
}

/// What a member's executors have in common.
struct Shared {
    member: Member,
    opened: Mutex<Option<Arc<Opened>>>,
    limits: Limits,
    batch_tokens: usize,
    /// Two bars at once would overwrite each other.
    shows_bar: bool,
}

struct Opened {
    package: Package,
    face: Arc<Face>,
}

impl Shared {
    fn load(&self, cores: &Cores, progress: &LoadProgress) -> Result<Loaded, LoadError> {
        let opened = self.open()?;
        let progress = Shown { progress, bar: self.shows_bar.then(|| Bar::new("loading")) };
        let loaded = load_model(&opened.package, cores, self.batch_tokens, &progress);
        if loaded.is_err() {
            *self.opened.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        Ok(Loaded { forward: Box::new(loaded?), face: Arc::clone(&opened.face) })
    }

    /// The package, opened if it is not yet; executors that come meanwhile wait for it.
    fn open(&self) -> Result<Arc<Opened>, LoadError> {
        let mut slot = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = &*slot {
            return Ok(Arc::clone(opened));
        }
        let trust =
            self.member.anchor.map_or(Trust::Released, |anchor| Trust::Anchored(Anchor(Digest::from(anchor.0))));
        let package = Package::open(&self.member.path, trust)?;
        let face = Face {
            family: Arc::new(local::vela(&package, self.member.noul_calibration, self.limits)?),
            family_name: "vela",
            model_name: package.model_name().to_owned(),
            digest: format!("sha256:{}", package.digest()),
        };
        let opened = Arc::new(Opened { package, face: Arc::new(face) });
        *slot = Some(Arc::clone(&opened));
        Ok(opened)
    }
}

fn load_model(
    package: &Package,
    cores: &Cores,
    batch_tokens: usize,
    progress: &dyn Progress,
) -> Result<Model<CpuDevice>, LoadError> {
    let cores = match cores {
        Cores::All => CpuDevice::available_cores()?,
        Cores::These(cores) => cores.clone().collect(),
    };
    Ok(Model::load(CpuDevice::new(&cores)?, package, batch_tokens, progress)?)
}

/// A load's progress, for whoever asks over HTTP and for whoever sits at the terminal.
struct Shown<'a> {
    progress: &'a LoadProgress,
    bar: Option<Bar>,
}

impl Progress for Shown<'_> {
    fn start(&self, total_bytes: u64) {
        self.progress.start(total_bytes);
        self.bar.iter().for_each(|bar| bar.start(total_bytes));
    }

    fn advance(&self, bytes: u64) {
        self.progress.advance(bytes);
        self.bar.iter().for_each(|bar| bar.advance(bytes));
    }
}

/// Keys of the file that ask for something that this version does not do yet. Whoever wrote them should know.
fn without_effect(deployment: &Deployment) -> Vec<String> {
    let mut lines = Vec::new();
    for key in &deployment.keys {
        if key.rate.is_some() {
            lines.push(format!("key {}: rate", key.name));
        }
        if key.weight != 1 {
            lines.push(format!("key {}: weight", key.name));
        }
    }
    if !deployment.queue.batch_window.is_zero() {
        lines.push("queue: batch_window_us".to_owned());
    }
    let replays = deployment.members.iter().filter(|member| member.replay.is_some());
    lines.extend(replays.map(|member| format!("member {}: replay", member.name)));
    lines
}
