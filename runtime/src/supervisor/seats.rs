//! From a deployment's members to what the supervisor starts: what this build serves, what it needs, how it is loaded.
//!
//! A member's package is opened once, by whichever of its executors comes first, and its reading half is shared by
//! all. After a load that failed it is opened anew: a file may have been put back. What trying again cannot mend, a
//! profile or device that this build does not serve or a core that this machine does not have, is an error at once.

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

use synod_config::{self as config, Cores, Profile};
use synod_kernels::KernelError;
use synod_kernels::cpu::{CpuDevice, Isa};

use super::Listing;
use super::fit::{Demand, Shortage, Wanted, check_room};
use crate::executor::{Batching, Face, Factory, LoadProgress, Loaded, Replay};
use crate::family::vela::Vela;
use crate::member::{Anchor, Digest, MemberError, MemberFiles, Progress, Trust};
use crate::model::memory::Hardware;
use crate::model::{Model, cpu_device};
use crate::replay::Recordings;
use crate::wire::request::Limits;

type LoadError = Box<dyn Error + Send + Sync>;

/// A member to serve and the devices to serve it on.
pub struct Seat {
    pub listing: Listing,
    pub placements: Vec<Placement>,
}

/// One device of a member, and how to load the member on it.
pub struct Placement {
    pub device: String,
    /// Equal where an executor that runs already would do the same as a new one.
    pub fingerprint: String,
    /// The memory that it takes; absent if the package could not be looked at.
    pub demand: Option<Demand>,
    pub batching: Batching,
    pub factory: Factory,
}

/// What all members are seated with.
#[derive(Clone, Copy, Debug)]
pub struct Seating {
    pub limits: Limits,
    pub batching: Batching,
    /// Makes whoever follows each load beside the roster, such as a bar at a terminal.
    pub follower: Option<fn() -> Box<dyn Progress>>,
}

/// Why a member cannot be seated, however often it is tried.
#[derive(Debug, thiserror::Error)]
pub enum SeatError {
    /// No machine serves it with this build.
    #[error("member {member}: expected cpu devices, found {placement}; this build serves no other")]
    Unserved { member: String, placement: config::Placement },
    /// This machine does not have the device.
    #[error("member {member}: {placement}: {source}")]
    Device { member: String, placement: config::Placement, source: Box<KernelError> },
    /// This machine has not the memory.
    #[error(transparent)]
    Memory(#[from] Box<Shortage>),
}

/// A seat for every member.
///
/// # Errors
/// [`SeatError`], for the first member that this build or this machine does not serve.
pub fn seats(members: &[config::Member], seating: Seating) -> Result<Vec<Seat>, SeatError> {
    members.iter().map(|member| seat(member, seating)).collect()
}

/// Whether all placements of `seats` fit into `host_bytes`, before any is loaded.
///
/// # Errors
/// [`SeatError::Memory`], for the first one that does not.
pub fn check_host(seats: &[Seat], host_bytes: u64) -> Result<(), SeatError> {
    let placements = seats.iter().flat_map(|seat| &seat.placements);
    let demands: Vec<Demand> = placements.filter_map(|placement| placement.demand.clone()).collect();
    Ok(check_room(&demands, host_bytes)?)
}

/// What a placement computes on; of cores that it leaves open, those of this machine.
///
/// # Errors
/// [`KernelError::Resource`] if the system does not say which cores there are.
pub fn hardware(placement: &config::Placement) -> Result<Hardware, KernelError> {
    Ok(match placement {
        config::Placement::Cpu(cores) => Hardware::Cpu { isa: Isa::best(), threads: core_numbers(cores)?.len() },
        config::Placement::Cuda(_) => Hardware::Cuda,
    })
}

fn device_error(member: &config::Member, placement: &config::Placement, source: KernelError) -> SeatError {
    SeatError::Device { member: member.name.clone(), placement: placement.clone(), source: Box::new(source) }
}

/// Whether this build serves a member where the deployment wants it, on a machine that has its devices.
///
/// # Errors
/// [`SeatError::Unserved`].
pub fn check_served(member: &config::Member) -> Result<(), SeatError> {
    member.placements.iter().try_for_each(|placement| cores(member, placement).map(drop))
}

/// Opens a member's package or bundle, by its anchor or as a released package, for the profile that is asked of it.
///
/// # Errors
/// As [`MemberFiles::open`], and for weights that were rounded where exact ones are asked for.
pub fn open(member: &config::Member) -> Result<MemberFiles, MemberError> {
    let trust = member.anchor.map_or(Trust::Released, |anchor| Trust::Anchored(Anchor(Digest::from(anchor.0))));
    let files = MemberFiles::open(&member.path, trust)?;
    if member.profile == Profile::Fp32 {
        files.check_exact()?;
    }
    Ok(files)
}

fn seat(member: &config::Member, seating: Seating) -> Result<Seat, SeatError> {
    let shared = Arc::new(Shared { member: member.clone(), seating, opened: Mutex::default() });
    // A package that cannot be opened now has no demand: its executors will say so, and try again.
    let max_options = seating.limits.max_options;
    let wanted = open(member).ok().map(|files| Wanted::of(member, &files, seating.batching.tokens, max_options));
    let placements = member
        .placements
        .iter()
        .map(|placement| place(&shared, placement, wanted.as_ref()))
        .collect::<Result<_, _>>()?;
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

fn place(shared: &Arc<Shared>, placement: &config::Placement, wanted: Option<&Wanted>) -> Result<Placement, SeatError> {
    let cores = cores(&shared.member, placement)?.clone();
    device(&cores, shared.member.profile).map_err(|source| device_error(&shared.member, placement, source))?;
    let hardware = hardware(placement).map_err(|source| device_error(&shared.member, placement, source))?;
    let name = placement.to_string();
    let demand = wanted.map(|wanted| Demand {
        member: shared.member.name.clone(),
        device: name.clone(),
        need: wanted.need(hardware),
    });
    let (fingerprint, batching) = (fingerprint(&shared.member, shared.seating), shared.seating.batching);
    let shared = Arc::clone(shared);
    let factory = Arc::new(move |progress: &LoadProgress| shared.load(&cores, progress));
    Ok(Placement { device: name, fingerprint, demand, batching, factory })
}

/// Everything that a loaded member depends on, but for its device: what is only shown of it is left out.
fn fingerprint(member: &config::Member, seating: Seating) -> String {
    let shown = config::Member {
        placements: Vec::new(),
        required: true,
        aliases: Vec::new(),
        description: None,
        release_date: None,
        ..member.clone()
    };
    format!("{shown:?} {:?} {:?}", seating.limits, seating.batching)
}

/// The cores of a placement that this build serves.
fn cores<'a>(member: &config::Member, placement: &'a config::Placement) -> Result<&'a Cores, SeatError> {
    match placement {
        config::Placement::Cpu(cores) => Ok(cores),
        config::Placement::Cuda(_) => {
            Err(SeatError::Unserved { member: member.name.clone(), placement: placement.clone() })
        }
    }
}

fn device(cores: &Cores, profile: Profile) -> Result<CpuDevice, KernelError> {
    cpu_device(&core_numbers(cores)?, profile)
}

fn core_numbers(cores: &Cores) -> Result<Vec<usize>, KernelError> {
    match cores {
        Cores::All => CpuDevice::available_cores(),
        Cores::These(cores) => Ok(cores.clone().collect()),
    }
}

/// What a member's executors have in common.
struct Shared {
    member: config::Member,
    seating: Seating,
    opened: Mutex<Option<Arc<Opened>>>,
}

struct Opened {
    package: MemberFiles,
    face: Arc<Face>,
    replay: Option<Replay>,
}

impl Shared {
    fn load(&self, cores: &Cores, progress: &LoadProgress) -> Result<Loaded, LoadError> {
        let opened = self.open()?;
        let followed = Followed { progress, follower: self.seating.follower.map(|follower| follower()) };
        let (batch_tokens, cache_bytes) = (self.seating.batching.tokens, self.member.prefix_cache_bytes);
        let model =
            Model::load(device(cores, self.member.profile)?, &opened.package, batch_tokens, cache_bytes, &followed)
                .inspect_err(|_| self.forget())?;
        Ok(Loaded { forward: Box::new(model), face: Arc::clone(&opened.face), replay: opened.replay.clone() })
    }

    /// The package, opened if it is not yet; executors that come meanwhile wait for it.
    fn open(&self) -> Result<Arc<Opened>, LoadError> {
        let mut slot = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = &*slot {
            return Ok(Arc::clone(opened));
        }
        let package = open(&self.member)?;
        let vela = Vela::of_package(&package, self.member.noul_calibration, self.seating.limits)?;
        let config::Member { replay: folder, gates, drift_every: every, on_drift, .. } = &self.member;
        let cases = Recordings::find(folder.as_deref(), package.model_name(), &vela, *gates)?;
        let replay = cases.map(|cases| Replay { cases: Arc::new(cases), every: *every, on_drift: *on_drift });
        let face = Face {
            family: Arc::new(vela),
            family_name: "vela",
            model_name: package.model_name().to_owned(),
            digest: format!("sha256:{}", package.digest()),
        };
        let opened = Arc::new(Opened { package, face: Arc::new(face), replay });
        *slot = Some(Arc::clone(&opened));
        Ok(opened)
    }

    /// Has the next load open the package anew.
    fn forget(&self) {
        *self.opened.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// A load's progress, for whoever asks over HTTP and for whoever else follows it.
struct Followed<'a> {
    progress: &'a LoadProgress,
    follower: Option<Box<dyn Progress>>,
}

impl Progress for Followed<'_> {
    fn start(&self, total_bytes: u64) {
        self.progress.start(total_bytes);
        self.follower.iter().for_each(|follower| follower.start(total_bytes));
    }

    fn advance(&self, bytes: u64) {
        self.progress.advance(bytes);
        self.follower.iter().for_each(|follower| follower.advance(bytes));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use synod_config::Deployment;

    use super::*;

    fn member(lines: &str) -> config::Member {
        let text = format!("[[member]]\nname = \"m\"\npath = \"m\"\n{lines}\n");
        Deployment::from_toml_with(&text, Path::new("x.toml"), |_| true).unwrap().0.members.remove(0)
    }

    fn seating() -> Seating {
        let batching = Batching { tokens: 1, window: Duration::ZERO };
        Seating { limits: Limits::default(), batching, follower: None }
    }

    fn seated(lines: &str) -> Result<usize, String> {
        let seats = seats(&[member(lines)], seating()).map_err(|error| error.to_string())?;
        Ok(seats[0].placements.len())
    }

    #[test]
    fn what_this_build_does_not_serve_is_refused_by_the_check_and_the_start() {
        let unserved = "member m: expected cpu devices, found cuda:0; this build serves no other";
        for profile in ["fp32", "bf16"] {
            let lines = |devices: &str| format!("devices = [\"{devices}\"]\nprofile = \"{profile}\"");
            assert_eq!(check_served(&member(&lines("cuda:0"))).unwrap_err().to_string(), unserved);
            assert_eq!(seated(&lines("cuda:0")), Err(unserved.to_owned()));
            assert!(check_served(&member(&lines("cpu:*"))).is_ok());
            assert_eq!(seated(&lines("cpu:*")), Ok(1));
        }
    }

    /// Every placement loads weights of its own. Only what has room is started; nothing is loaded to find out.
    #[test]
    fn placements_without_room_are_refused_at_the_start() {
        let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/members/tiny-08b");
        let manifest = std::fs::read(Path::new(fixture).join("MODEL_MANIFEST.json")).unwrap();
        let anchor = Anchor(Digest::of(&manifest));
        let mut member = member("devices = [\"cpu:*\"]");
        member.path = fixture.into();
        member.anchor = Some(anchor.to_string().parse().unwrap());
        let seats = seats(&[member.clone(), member], seating()).unwrap();
        let demands: Vec<&Demand> = seats.iter().map(|seat| seat.placements[0].demand.as_ref().unwrap()).collect();
        let (first, second) = (demands[0].need.total(), demands[1].need.total());
        let shortage = |host_bytes| match check_host(&seats, host_bytes) {
            Err(SeatError::Memory(shortage)) => shortage,
            Err(other) => panic!("{other}"),
            Ok(()) => panic!("it fits"),
        };
        assert_eq!(shortage(first - 1).demand, *demands[0]);
        assert_eq!(shortage(first + second - 1).demand, *demands[1]);
        assert!(check_host(&seats, first + second).is_ok());
    }

    /// What is only shown of a member costs no executor; what it computes with does.
    #[test]
    fn a_fingerprint_is_of_what_is_loaded() {
        let print = |lines: &str| fingerprint(&member(lines), seating());
        let plain = print("devices = [\"cpu:0\"]");
        for shown in ["description = \"x\"", "aliases = [\"x\"]", "required = false", "release_date = \"2026-01-01\""] {
            assert_eq!(print(&format!("devices = [\"cpu:0\", \"cpu:1\"]\n{shown}")), plain, "{shown}");
        }
        for loaded in ["path = \"other\"", "noul_calibration = true", "prefix_cache_mib = 7"] {
            let text = format!("[[member]]\nname = \"m\"\ndevices = [\"cpu:0\"]\n{loaded}\n");
            let text = if loaded.starts_with("path") { text } else { format!("{text}path = \"m\"\n") };
            let member = Deployment::from_toml_with(&text, Path::new("x.toml"), |_| true).unwrap().0.members.remove(0);
            assert_ne!(fingerprint(&member, seating()), plain, "{loaded}");
        }
        let larger = Seating { batching: Batching { tokens: 2, window: Duration::ZERO }, ..seating() };
        assert_ne!(fingerprint(&member("devices = [\"cpu:0\"]"), larger), plain);
    }

    /// Loading it again and again would never serve it; another machine may.
    #[test]
    fn a_core_that_this_machine_does_not_have_is_refused_at_the_start() {
        let lines = "devices = [\"cpu:4095\"]";
        assert!(check_served(&member(lines)).is_ok());
        let error = seated(lines).unwrap_err();
        assert!(error.starts_with("member m: cpu:4095: ") && error.contains("core 4095"), "{error}");
    }
}
