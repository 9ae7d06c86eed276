//! What a backbone keeps of a prefix: one state for each operation over sequences, in the order of a pass.

use std::slice;

use synod_kernels::{Device, KernelError, StateShape, States};

use super::weights::{Backbone, Mixer};

/// The states of one prefix, of every layer: what blocks that continue it need.
pub(crate) struct PrefixState<D: Device> {
    states: Vec<D::State>,
}

impl<D: Device> Backbone<D> {
    /// The operations over sequences of a pass, in order.
    fn state_shapes(&self) -> impl Iterator<Item = StateShape> {
        self.layers
            .iter()
            .flat_map(|layer| match &layer.mixer {
                Mixer::LinearAttention(mixer) => {
                    let conv = StateShape::Conv { channels: mixer.shape.channels(), taps: mixer.conv_kernel_dim };
                    [Some(conv), Some(StateShape::GatedDelta(mixer.shape))]
                }
                Mixer::FullAttention(mixer) => [Some(StateShape::Attention(mixer.shape)), None],
            })
            .flatten()
    }

    /// The states of a prefix of `tokens` tokens, to be written by a pass that computes it.
    ///
    /// # Errors
    /// [`KernelError::Resource`] if the device has no room.
    pub(crate) fn prefix_state(&self, device: &D, tokens: usize) -> Result<PrefixState<D>, KernelError> {
        // A list of exactly the states that there are: what is said of its bytes is what it takes.
        let mut states = Vec::with_capacity(self.state_shapes().count());
        for shape in self.state_shapes() {
            states.push(device.state(shape, tokens)?);
        }
        Ok(PrefixState { states })
    }

    /// Bytes of [`Backbone::prefix_state`].
    pub(crate) fn prefix_state_bytes(&self, device: &D, tokens: usize) -> usize {
        self.state_shapes().map(|shape| device.state_bytes(shape, tokens) + size_of::<D::State>()).sum()
    }
}

/// The states that a pass reads and writes beside its matrices.
pub(crate) struct PassStates<'a, D: Device> {
    /// Of prefixes from earlier passes, in the order of [`synod_kernels::Parent::Kept`].
    pub(crate) kept: Vec<&'a PrefixState<D>>,
    /// Of prefixes that this pass computes and that are kept, in the order of [`synod_kernels::Packing::keep`].
    pub(crate) new: &'a mut [PrefixState<D>],
}

impl<D: Device> Default for PassStates<'_, D> {
    fn default() -> Self {
        Self { kept: Vec::new(), new: &mut [] }
    }
}

impl<'a, D: Device> PassStates<'a, D> {
    /// Hands them out from the first operation on.
    pub(super) fn by_operation(self) -> StatesByOperation<'a, D> {
        StatesByOperation {
            kept: self.kept.into_iter().map(|prefix| prefix.states.iter()).collect(),
            new: self.new.iter_mut().map(|prefix| prefix.states.iter_mut()).collect(),
        }
    }
}

/// The states of a pass, an operation after the other.
pub(super) struct StatesByOperation<'a, D: Device> {
    kept: Vec<slice::Iter<'a, D::State>>,
    new: Vec<slice::IterMut<'a, D::State>>,
}

impl<'a, D: Device> StatesByOperation<'a, D> {
    /// Those of the next operation. None are left out: every prefix has a state for every operation.
    pub(super) fn next(&mut self) -> States<'a, D::State> {
        States {
            kept: self.kept.iter_mut().filter_map(Iterator::next).collect(),
            new: self.new.iter_mut().filter_map(Iterator::next).collect(),
        }
    }
}
