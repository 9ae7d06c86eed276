//! Trees become hidden states (`qwen3_5`), hidden states become logits (`heads`). No text, no questions, no JSON.
//!
//! [`Forward`] is what an executor runs; [`Model`] is the one implementation, over whatever device it is given.

mod error;
mod heads;
pub mod memory;
mod parameters;
pub mod qwen3_5;

#[cfg(test)]
mod tests;

use synod_kernels::Device;

pub use self::error::ModelError;
pub use self::heads::HeadInputs;
use self::heads::Heads;
use self::parameters::Parameters;
use self::qwen3_5::forest::{self, Forest};
use self::qwen3_5::{Backbone, Workspace};
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

    /// Tokens computed since loading. A prefix that several trees of a pass share counts once.
    fn tokens_computed(&self) -> u64;
}

/// A member's backbone and heads on one device.
pub struct Model<D: Device> {
    device: D,
    backbone: Backbone<D>,
    heads: Heads<D>,
    workspace: Workspace<D::Matrix>,
    batch_tokens: usize,
    hidden_size: usize,
    tokens_computed: u64,
}

impl<D: Device> Model<D> {
    /// Loads every tensor of a verified package. `progress` hears of every tensor that is read.
    ///
    /// One pass through the layers will take at most `batch_tokens` rows and read as many words, unless a single tree
    /// has more: a tree is never divided, so the workspace is bounded by the larger of this and the largest tree that
    /// a family lays out. Trees that share a prefix go one after another, and each pass that has any of them computes
    /// it.
    ///
    /// # Errors
    /// A tensor that is missing, superfluous or of another shape than the config calls for; files that changed since
    /// they were verified; a device without room.
    pub fn load(
        device: D,
        package: &MemberFiles,
        batch_tokens: usize,
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
        Ok(Self { device, backbone, heads, workspace, batch_tokens, hidden_size, tokens_computed: 0 })
    }

    /// What the head of every block takes, `[tree][block]`; nothing for a block that reads nothing. For replays: each
    /// tree is a pass by itself.
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
            let states = self.backbone.forward(&self.device, &forest, &mut self.workspace, &|| true)?;
            let read = self.heads.inputs(&self.device, states, &forest.reads)?;
            for (place, block) in forest.reads.iter().zip(read) {
                inputs[place.block] = block;
            }
            self.tokens_computed += forest.ids.len() as u64;
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
        let forest = Forest::pack(trees)?;
        let mut logits: Vec<Vec<Logits>> =
            trees.iter().map(|tree| tree.blocks.iter().map(|block| no_logits(&block.readout)).collect()).collect();
        if forest.reads.is_empty() {
            return Ok(logits);
        }
        let states = self.backbone.forward(&self.device, &forest, &mut self.workspace, keep_going)?;
        let read = self.heads.logits(&self.device, states, &forest.reads)?;
        for (place, block) in forest.reads.iter().zip(read) {
            logits[place.tree][place.block] = block;
        }
        self.tokens_computed += forest.ids.len() as u64;
        Ok(logits)
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

    fn tokens_computed(&self) -> u64 {
        self.tokens_computed
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
