//! A member in this process, without a server: what `ask` and the benchmarks answer with.
//!
//! The same package, family and forward as behind HTTP, one request at a time. Absent on purpose: queues, deadlines and
//! limits on time; whoever runs a command can stop it.

use std::path::Path;

use anyhow::{Context, Result};
use synod_config::{Profile, Queue};
use synod_kernels::cpu::CpuDevice;

use crate::family::vela::Vela;
use crate::family::{Family, Logits, Rendered, Tree};
use crate::member::demo::Demo;
use crate::member::{MemberFiles, Progress, Trust};
use crate::model::{Forward, Model, cpu_device};
use crate::wire::request::Limits;

/// A verified package and how it reads requests; its weights are not loaded yet.
pub struct LocalMember {
    source: Source,
    family: Vela,
    profile: Profile,
}

enum Source {
    Given(Box<MemberFiles>),
    /// Keeps its folder until it is dropped.
    Demo(Box<Demo>),
}

impl LocalMember {
    /// Opens the package or bundle in a folder, for a profile.
    ///
    /// # Errors
    /// Files that are not what they should be, or rounded weights where exact ones are asked for, named with their path.
    pub fn open(path: &Path, trust: Trust, profile: Profile) -> Result<Self> {
        let package = MemberFiles::open(path, trust).with_context(|| path.display().to_string())?;
        if profile == Profile::Fp32 {
            package.check_exact().with_context(|| path.display().to_string())?;
        }
        Self::of(Source::Given(Box::new(package)), profile)
    }

    /// Makes the demo member: random weights, gone when this is dropped.
    ///
    /// # Errors
    /// No room for temporary files.
    pub fn demo() -> Result<Self> {
        Self::of(Source::Demo(Box::new(Demo::create()?)), Profile::Fp32)
    }

    fn of(source: Source, profile: Profile) -> Result<Self> {
        let family = Vela::of_package(source.package(), false, Limits::default())?;
        Ok(Self { source, family, profile })
    }

    /// The package.
    pub fn package(&self) -> &MemberFiles {
        self.source.package()
    }

    /// The member's reading half.
    pub fn family(&self) -> &dyn Family {
        &self.family
    }

    /// The same, as what it is.
    pub fn vela(&self) -> &Vela {
        &self.family
    }

    /// Loads the weights, which verifies their bytes, for the given cores.
    ///
    /// # Errors
    /// Weights that are not what the manifest says, or cores that this process may not use.
    pub fn load(&self, cores: &[usize], progress: &dyn Progress) -> Result<Model<CpuDevice>> {
        let device = cpu_device(cores, self.profile)?;
        Ok(Model::load(device, self.package(), Queue::default().batch_tokens, 0, progress)?)
    }
}

impl Source {
    fn package(&self) -> &MemberFiles {
        match self {
            Source::Given(package) => package,
            Source::Demo(demo) => demo.package(),
        }
    }
}

/// The logits of a request's plan.
///
/// # Errors
/// As [`Forward::forward`].
pub fn compute(model: &mut impl Forward, rendered: &Rendered) -> Result<Vec<Vec<Logits>>> {
    Ok(model.forward(&rendered.plan.trees.iter().collect::<Vec<&Tree>>(), &|| true)?)
}
