//! From a deployment's members to what the supervisor starts: what this build serves, and how it is loaded.
//!
//! A member's package is opened once, by whichever of its executors comes first, and its reading half is shared by
//! all. After a load that failed it is opened anew: a file may have been put back. What trying again cannot mend, a
//! profile or device that this build does not serve or a core that this machine does not have, is an error at once.

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

use synod_config::{self as config, Cores, Profile};
use synod_kernels::KernelError;
use synod_kernels::cpu::{CpuDevice, Isa};

use super::fit::{Demand, Shortage, Wanted, check_room};
use super::{Listing, Placement, Seat};
use crate::executor::{Face, LoadProgress, Loaded};
use crate::family::vela::Vela;
use crate::member::{Anchor, Digest, MemberError, MemberFiles, Progress, Trust};
use crate::model::Model;
use crate::model::memory::Hardware;
use crate::wire::request::Limits;

type LoadError = Box<dyn Error + Send + Sync>;

/// What all members are seated with.
#[derive(Clone, Copy, Debug)]
pub struct Seating {
    pub limits: Limits,
    pub batch_tokens: usize,
    /// What the members may take of this host's memory; not looked at if absent.
    pub host_bytes: Option<u64>,
    /// Makes whoever follows each load beside the roster, such as a bar at a terminal.
    pub follower: Option<fn() -> Box<dyn Progress>>,
}

/// Why a member cannot be seated, however often it is tried.
#[derive(Debug, thiserror::Error)]
pub enum SeatError {
    /// No machine serves it with this build.
    #[error(
        "member {member}: expected profile fp32 on cpu devices, found {} on {placement}; this build serves no other",
        .profile.name()
    )]
    Unserved { member: String, profile: Profile, placement: config::Placement },
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
    let seats = members.iter().map(|member| seat(member, seating)).collect::<Result<_, _>>()?;
    if let Some(host_bytes) = seating.host_bytes {
        check_room(&demands(members, seating)?, host_bytes)?;
    }
    Ok(seats)
}

/// What every placement needs, before any is loaded. A package that cannot be opened now has no place here: its
/// executors will say so, and try again.
fn demands(members: &[config::Member], seating: Seating) -> Result<Vec<Demand>, SeatError> {
    let mut demands = Vec::new();
    for member in members {
        let Ok(files) = open(member) else { continue };
        let wanted = Wanted::of(member, &files, seating.batch_tokens, seating.limits.max_options);
        for placement in &member.placements {
            let hardware = hardware(placement).map_err(|source| device_error(member, placement, source))?;
            let device = placement.to_string();
            demands.push(Demand { member: member.name.clone(), device, need: wanted.need(hardware) });
        }
    }
    Ok(demands)
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
    let placements = member.placements.iter().map(|placement| place(&shared, placement)).collect::<Result<_, _>>()?;
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

fn place(shared: &Arc<Shared>, placement: &config::Placement) -> Result<Placement, SeatError> {
    let cores = cores(&shared.member, placement)?.clone();
    device(&cores).map_err(|source| device_error(&shared.member, placement, source))?;
    let shared = Arc::clone(shared);
    let factory = Box::new(move |progress: &LoadProgress| shared.load(&cores, progress));
    Ok(Placement { device: placement.to_string(), factory })
}

/// The cores of a placement that this build serves.
fn cores<'a>(member: &config::Member, placement: &'a config::Placement) -> Result<&'a Cores, SeatError> {
    match (placement, member.profile) {
        (config::Placement::Cpu(cores), Profile::Fp32) => Ok(cores),
        (_, profile) => Err(SeatError::Unserved { member: member.name.clone(), profile, placement: placement.clone() }),
    }
}

fn device(cores: &Cores) -> Result<CpuDevice, KernelError> {
    CpuDevice::new(&core_numbers(cores)?)
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
}

impl Shared {
    fn load(&self, cores: &Cores, progress: &LoadProgress) -> Result<Loaded, LoadError> {
        let opened = self.open()?;
        let followed = Followed { progress, follower: self.seating.follower.map(|follower| follower()) };
        let model = Model::load(device(cores)?, &opened.package, self.seating.batch_tokens, &followed)
            .inspect_err(|_| self.forget())?;
        Ok(Loaded { forward: Box::new(model), face: Arc::clone(&opened.face) })
    }

    /// The package, opened if it is not yet; executors that come meanwhile wait for it.
    fn open(&self) -> Result<Arc<Opened>, LoadError> {
        let mut slot = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = &*slot {
            return Ok(Arc::clone(opened));
        }
        let package = open(&self.member)?;
        let face = Face {
            family: Arc::new(Vela::of_package(&package, self.member.noul_calibration, self.seating.limits)?),
            family_name: "vela",
            model_name: package.model_name().to_owned(),
            digest: format!("sha256:{}", package.digest()),
        };
        let opened = Arc::new(Opened { package, face: Arc::new(face) });
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

    use synod_config::Deployment;

    use super::*;

    fn member(lines: &str) -> config::Member {
        let text = format!("[[member]]\nname = \"m\"\npath = \"m\"\n{lines}\n");
        Deployment::from_toml_with(&text, Path::new("x.toml"), |_| true).unwrap().0.members.remove(0)
    }

    fn seated(lines: &str) -> Result<usize, String> {
        let seating = Seating { limits: Limits::default(), batch_tokens: 1, host_bytes: Some(0), follower: None };
        let seats = seats(&[member(lines)], seating).map_err(|error| error.to_string())?;
        Ok(seats[0].placements.len())
    }

    #[test]
    fn what_this_build_does_not_serve_is_refused_by_the_check_and_the_start() {
        let unserved = |found: &str| {
            format!("member m: expected profile fp32 on cpu devices, found {found}; this build serves no other")
        };
        for (lines, found) in [
            ("devices = [\"cuda:0\"]", "fp32 on cuda:0"),
            ("devices = [\"cpu:*\"]\nprofile = \"bf16\"", "bf16 on cpu:*"),
        ] {
            assert_eq!(check_served(&member(lines)).unwrap_err().to_string(), unserved(found));
            assert_eq!(seated(lines), Err(unserved(found)));
        }
        assert!(check_served(&member("devices = [\"cpu:*\"]")).is_ok());
        assert_eq!(seated("devices = [\"cpu:*\"]"), Ok(1));
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
        let seating = |host_bytes| Seating { limits: Limits::default(), batch_tokens: 1, host_bytes, follower: None };
        let members = [member.clone(), member];
        let needs = demands(&members, seating(None)).unwrap();
        assert_eq!(needs.len(), 2);
        let (first, second) = (needs[0].need.total(), needs[1].need.total());
        let shortage = |host_bytes| match seats(&members, seating(Some(host_bytes))) {
            Err(SeatError::Memory(shortage)) => shortage,
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("seated"),
        };
        assert_eq!(shortage(first - 1).demand, needs[0]);
        assert_eq!(shortage(first + second - 1).demand, needs[1]);
        assert!(seats(&members, seating(Some(first + second))).is_ok());
        assert!(seats(&members, seating(None)).is_ok());
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
