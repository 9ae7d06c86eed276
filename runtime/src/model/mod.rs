//! Trees become hidden states (`qwen3_5`), hidden states become logits (`heads`). No text, no questions, no JSON.
//!
//! [`Forward`] is what an executor runs; [`Model`] is the one implementation, over whatever device it is given.

mod error;
mod heads;
pub mod memory;
mod parameters;
mod prefix_cache;
pub mod qwen3_5;
mod tally;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use synod_config::Profile;
use synod_kernels::cpu::CpuDevice;
use synod_kernels::{Device, KernelError};

pub use self::error::ModelError;
pub use self::heads::HeadInputs;
use self::heads::Heads;
use self::parameters::Parameters;
use self::prefix_cache::{PrefixCache, entry_bytes};
use self::qwen3_5::forest::{self, Forest};
use self::qwen3_5::{Backbone, PassStates, PrefixState, Workspace};
pub use self::tally::Tally;
use crate::family::{Logits, Readout, Tree};
use crate::member::{MemberFiles, Progress};

/// What a loaded member computes.
pub trait Forward: Send {
    /// The logits of every block of every tree, `[tree][block]`, in the order given. A block's logits do not depend,
    /// bit for bit, on what else is in the call.
    ///
    /// `keep_going` is asked many times in a call, before every pass and every layer: once it says no, nobody wants
    /// the logits any more.
    ///
    /// # Errors
    /// A tree that this member cannot read (a token id outside the vocabulary, a readout outside its block, a span
    /// head that it lacks), a failing device, or [`ModelError::Abandoned`]. The member can be used again after any of
    /// them.
    fn forward(&mut self, trees: &[&Tree], keep_going: &dyn Fn() -> bool) -> Result<Vec<Vec<Logits>>, ModelError>;

    /// What it has done since loading.
    fn tally(&self) -> Tally;

    /// Whether the next calls may take prefixes from its cache and keep new ones: so at first, if it has a cache. No
    /// logit depends on it; a replay turns it off, because what is kept would hide what has gone wrong since.
    fn use_prefix_cache(&mut self, _is_used: bool) {}
}

/// Cores that compute in a profile.
///
/// # Errors
/// As [`CpuDevice::new`].
pub fn cpu_device(cores: &[usize], profile: Profile) -> Result<CpuDevice, KernelError> {
    let device = CpuDevice::new(cores)?;
    Ok(match profile {
        Profile::Fp32 => device,
        Profile::Bf16 => device.in_bf16(),
    })
}

/// A member's backbone and heads on one device.
pub struct Model<D: Device> {
    device: D,
    backbone: Backbone<D>,
    heads: Heads<D>,
    workspace: Workspace<D::Matrix>,
    batch_tokens: usize,
    hidden_size: usize,
    prefixes: PrefixCache<PrefixState<D>>,
    uses_prefixes: bool,
    tally: Tally,
}

impl<D: Device> Model<D> {
    /// Loads every tensor of a verified package. `progress` hears of every tensor that is read.
    ///
    /// One pass through the layers will take at most `batch_tokens` rows and read as many words, unless a single tree
    /// has more: a tree is never divided, so the workspace is bounded by the larger of this and the largest tree that
    /// a family lays out. Trees that share a prefix go one after another, and each pass that has any of them computes
    /// it, unless its states are kept: those of the prefixes that were used last are, in at most `prefix_cache_bytes`.
    ///
    /// # Errors
    /// A tensor that is missing, superfluous or of another shape than the config calls for; files that changed since
    /// they were verified; a device without room.
    pub fn load(
        device: D,
        package: &MemberFiles,
        batch_tokens: usize,
        prefix_cache_bytes: u64,
        progress: &dyn Progress,
    ) -> Result<Self, ModelError> {
        let config = package.config();
        let broad = if package.has_broad_head() { config.broad_inventory() } else { Vec::new() };
        let mut parameters = Parameters::expecting(config.inventory().into_iter().chain(broad));
        let rows = package
            .read_tensors::<ModelError>(progress, &mut |name, tensor| parameters.accept(&device, name, tensor))?;
        parameters.check_complete()?;
        let backbone = Backbone::build(&config.backbone_config, &device, &mut parameters, Box::new(rows))?;
        let heads = Heads::build(&device, &mut parameters, config.span_head.slots, package.has_broad_head())?;
        let workspace = Workspace::new(&device);
        let hidden_size = config.backbone_config.hidden_size;
        let prefixes = PrefixCache::new(prefix_cache_bytes);
        let (uses_prefixes, tally) = (prefixes.is_on(), Tally::default());
        Ok(Self { device, backbone, heads, workspace, batch_tokens, hidden_size, prefixes, uses_prefixes, tally })
    }

    /// What the head of every block takes, `[tree][block]`; nothing for a block that reads nothing. For replays: each
    /// tree is a pass by itself, all of it computed.
    ///
    /// # Errors
    /// As [`Forward::forward`].
    pub fn head_inputs(&mut self, trees: &[&Tree]) -> Result<Vec<Vec<HeadInputs>>, ModelError> {
        let mut inputs: Vec<_> = trees.iter().map(|tree| vec![HeadInputs::default(); tree.blocks.len()]).collect();
        for (tree, inputs) in trees.iter().zip(&mut inputs) {
            let forest = Forest::pack(&[tree])?;
            if forest.reads.is_empty() {
                continue;
            }
            let states =
                self.backbone.forward(&self.device, &forest, &mut self.workspace, PassStates::default(), &|| true)?;
            let read = self.heads.inputs(&self.device, states, &forest.reads)?;
            for (place, block) in forest.reads.iter().zip(read) {
                inputs[place.block] = block;
            }
            self.tally.tokens_computed += forest.ids.len() as u64;
        }
        Ok(inputs)
    }

    /// The logits that a block's head gives on `inputs`, wherever these come from. For replays.
    ///
    /// # Errors
    /// Inputs of another shape than `readout` calls for, or a span head that this member lacks.
    pub fn head_logits(&mut self, readout: &Readout, inputs: &HeadInputs) -> Result<Logits, ModelError> {
        self.heads.logits_of_inputs(&self.device, readout, inputs, self.hidden_size)
    }

    /// One pass: all of `trees` in one packed matrix.
    fn forward_batch(
        &mut self,
        trees: &[&Tree],
        keep_going: &dyn Fn() -> bool,
    ) -> Result<Vec<Vec<Logits>>, ModelError> {
        self.prefixes.start_pass();
        let (prefixes, uses_prefixes) = (&mut self.prefixes, self.uses_prefixes);
        let mut forest = Forest::pack_with(trees, |prefix| uses_prefixes && prefixes.hold(prefix))?;
        let mut logits: Vec<Vec<Logits>> =
            trees.iter().map(|tree| tree.blocks.iter().map(|block| no_logits(&block.readout)).collect()).collect();
        if forest.reads.is_empty() {
            return Ok(logits);
        }
        let mut new = if uses_prefixes { self.prefixes_to_keep(&mut forest) } else { Vec::new() };
        let held =
            |prefix: &&Arc<[u32]>| self.prefixes.get(prefix).expect("what a pass holds stays until the next one");
        let kept = forest.kept.iter().map(held).collect();
        let states = PassStates { kept, new: &mut new };
        let states = self.backbone.forward(&self.device, &forest, &mut self.workspace, states, keep_going)?;
        let read = self.heads.logits(&self.device, states, &forest.reads)?;
        for (place, block) in forest.reads.iter().zip(read) {
            logits[place.tree][place.block] = block;
        }
        self.count(&forest);
        for (&sequence, state) in forest.packing.keep.iter().zip(new) {
            let prefix = forest.computed[sequence];
            self.prefixes.insert(Arc::clone(prefix), state, self.prefix_bytes(prefix));
        }
        Ok(logits)
    }

    /// Bytes of an entry of the prefix cache.
    fn prefix_bytes(&self, prefix: &[u32]) -> u64 {
        entry_bytes(prefix, self.backbone.prefix_state_bytes(&self.device, prefix.len()))
    }

    /// Makes room for the prefixes that a pass will compute, as far as there is any, and marks them to be kept. They are in
    /// the cache only once the pass has succeeded.
    fn prefixes_to_keep(&mut self, forest: &mut Forest<'_>) -> Vec<PrefixState<D>> {
        let (mut new, mut granted_bytes) = (Vec::new(), 0);
        for (sequence, prefix) in forest.computed.iter().enumerate() {
            let bytes = self.prefix_bytes(prefix);
            if !self.prefixes.make_room(granted_bytes + bytes) {
                continue;
            }
            // A device without room computes all the same: to keep a prefix is no part of what was asked.
            let Ok(state) = self.backbone.prefix_state(&self.device, prefix.len()) else { break };
            granted_bytes += bytes;
            forest.packing.keep.push(sequence);
            new.push(state);
        }
        new
    }

    /// Counts a pass.
    fn count(&mut self, forest: &Forest<'_>) {
        self.tally.tokens_computed += forest.ids.len() as u64;
        self.tally.tokens_cached += forest.kept_tokens() as u64;
        if self.uses_prefixes {
            self.tally.prefix_hits += forest.kept.len() as u64;
            self.tally.prefix_misses += forest.computed.len() as u64;
        }
    }
}

impl<D: Device> Forward for Model<D> {
    fn forward(&mut self, trees: &[&Tree], keep_going: &dyn Fn() -> bool) -> Result<Vec<Vec<Logits>>, ModelError> {
        let order = forest::by_prefix(trees);
        let ordered: Vec<&Tree> = order.iter().map(|&index| trees[index]).collect();
        let mut logits = vec![Vec::new(); trees.len()];
        for batch in forest::batches(&ordered, self.batch_tokens) {
            let computed = self.forward_batch(&ordered[batch.clone()], keep_going)?;
            for (&index, tree) in order[batch].iter().zip(computed) {
                logits[index] = tree;
            }
        }
        Ok(logits)
    }

    fn tally(&self) -> Tally {
        let (prefix_evictions, prefix_cache_bytes) = (self.prefixes.evictions(), self.prefixes.bytes());
        Tally { prefix_evictions, prefix_cache_bytes, ..self.tally }
    }

    fn use_prefix_cache(&mut self, is_used: bool) {
        self.uses_prefixes = is_used && self.prefixes.is_on();
    }
}

/// What a block answers that reads nothing.
fn no_logits(readout: &Readout) -> Logits {
    let columns = match readout {
        Readout::Candidates { .. } => 1,
        Readout::Spans { labels, .. } => labels.len(),
    };
    Logits { values: Vec::new(), columns }
}
