//! The tree forward: every layer over the packed rows of a forest.
//!
//! Linear layers and norms see one `[tokens, hidden_size]` matrix; only the mixers look at the packing. All matrices
//! belong to a [`Workspace`] that the next call uses again. Nothing here depends on the number of threads or on which
//! trees are in the batch, because no operation does.

use std::mem;

use synod_kernels::{Device, Packing};

use super::forest::Forest;
use super::state::{PassStates, StatesByOperation};
use super::weights::{Backbone, FullAttention, LinearAttention, Mixer, Mlp};
use crate::model::ModelError;

/// The matrices of a forward, kept between calls so that a steady load allocates nothing.
///
/// The wide ones serve every step of a layer in turn: a step is done with what the step before left in them.
pub(crate) struct Workspace<M> {
    /// The residual stream, `[tokens, hidden_size]`; from the last layer's MLP on, `[read rows, hidden_size]`.
    hidden_states: M,
    /// What a norm leaves for the step that follows it.
    normed: M,
    /// What a mixer or an MLP adds to the residual stream.
    update: M,
    /// First projection of a step: `qkv`, query and gate, or the MLP's gate.
    projected: M,
    /// A mixer's result before its output projection, or the MLP's `up`.
    mixed: M,
    /// The output gate `z`; in a full attention layer, the keys.
    z: M,
    /// What `in_proj_a` gives; in a full attention layer, the values.
    a: M,
    /// What `in_proj_b` gives.
    b: M,
}

impl<M> Workspace<M> {
    /// An empty workspace; it grows to the largest batch that it sees.
    pub(crate) fn new<D: Device<Matrix = M>>(device: &D) -> Self {
        Self {
            hidden_states: device.matrix(),
            normed: device.matrix(),
            update: device.matrix(),
            projected: device.matrix(),
            mixed: device.matrix(),
            z: device.matrix(),
            a: device.matrix(),
            b: device.matrix(),
        }
    }
}

impl<D: Device> Backbone<D> {
    /// The final-normed states `[forest.read_rows, hidden_size]` of a forest. `states` are those of the prefixes that the
    /// forest continues and keeps; what it keeps is whole if the call succeeds. `keep_going` is asked before every layer.
    ///
    /// # Errors
    /// [`ModelError::TokenId`] for a token id outside the vocabulary, [`ModelError::Kernel`] from the device,
    /// [`ModelError::Abandoned`] when `keep_going` says no.
    pub(crate) fn forward<'w>(
        &self,
        device: &D,
        forest: &Forest<'_>,
        workspace: &'w mut Workspace<D::Matrix>,
        states: PassStates<'_, D>,
        keep_going: &dyn Fn() -> bool,
    ) -> Result<&'w D::Matrix, ModelError> {
        if let Some(&id) = forest.ids.iter().find(|&&id| id as usize >= self.vocab_size) {
            return Err(ModelError::TokenId { id, vocab_size: self.vocab_size });
        }
        let (ws, eps, mut states) = (workspace, self.rms_norm_eps, states.by_operation());
        device.embedding_gather(&self.embed_tokens, &forest.ids, &mut ws.hidden_states)?;
        let first_norm = self.layers.first().map_or(&self.norm, |layer| &layer.input_layernorm);
        device.rms_norm(&ws.hidden_states, first_norm, eps, &mut ws.normed)?;
        for (index, layer) in self.layers.iter().enumerate() {
            if !keep_going() {
                return Err(ModelError::Abandoned);
            }
            let next = self.layers.get(index + 1);
            let out_proj = layer.mixer.mix(device, &forest.packing, &mut states, ws)?;
            if next.is_none() {
                // Nothing looks at other tokens any more: what remains is computed only where it is read.
                keep_rows(device, &forest.read_rows, &mut ws.hidden_states, &mut ws.update)?;
                keep_rows(device, &forest.read_rows, &mut ws.mixed, &mut ws.projected)?;
            }
            device.linear(out_proj, &ws.mixed, &mut ws.update)?;
            let norm = &layer.post_attention_layernorm;
            device.add_rms_norm(&mut ws.hidden_states, &ws.update, norm, eps, &mut ws.normed)?;
            layer.mlp.forward(device, ws)?;
            let norm = next.map_or(&self.norm, |next| &next.input_layernorm);
            device.add_rms_norm(&mut ws.hidden_states, &ws.update, norm, eps, &mut ws.normed)?;
        }
        Ok(&ws.normed)
    }
}

/// Replaces a matrix by some of its rows; what it held goes to `spare`, whose content is lost.
fn keep_rows<D: Device>(
    device: &D,
    rows: &[u32],
    matrix: &mut D::Matrix,
    spare: &mut D::Matrix,
) -> Result<(), ModelError> {
    device.gather_rows(matrix, rows, spare)?;
    mem::swap(matrix, spare);
    Ok(())
}

impl<D: Device> Mixer<D> {
    /// From `normed` to `mixed`; returns the output projection, which is still to be applied.
    fn mix(
        &self,
        device: &D,
        packing: &Packing,
        states: &mut StatesByOperation<'_, D>,
        ws: &mut Workspace<D::Matrix>,
    ) -> Result<&D::Weight, ModelError> {
        match self {
            Mixer::LinearAttention(mixer) => mixer.mix(device, packing, states, ws).map(|()| &mixer.out_proj),
            Mixer::FullAttention(mixer) => mixer.mix(device, packing, states, ws).map(|()| &mixer.o_proj),
        }
    }
}

impl<D: Device> LinearAttention<D> {
    fn mix(
        &self,
        device: &D,
        packing: &Packing,
        states: &mut StatesByOperation<'_, D>,
        ws: &mut Workspace<D::Matrix>,
    ) -> Result<(), ModelError> {
        let Workspace { normed, projected, mixed, z, a, b, .. } = ws;
        let projections = &mut [
            (&self.in_proj_qkv, &mut *mixed),
            (&self.in_proj_z, &mut *z),
            (&self.in_proj_a, &mut *a),
            (&self.in_proj_b, &mut *b),
        ];
        device.linear_each(normed, projections)?;
        device.causal_conv1d_silu(packing, states.next(), &self.conv1d, mixed, projected)?;
        device.gated_delta_rule(
            packing,
            states.next(),
            self.shape,
            projected,
            a,
            b,
            &self.a_log,
            &self.dt_bias,
            mixed,
        )?;
        device.gated_rms_norm(mixed, z, &self.norm, self.rms_norm_eps)?;
        Ok(())
    }
}

impl<D: Device> FullAttention<D> {
    fn mix(
        &self,
        device: &D,
        packing: &Packing,
        states: &mut StatesByOperation<'_, D>,
        ws: &mut Workspace<D::Matrix>,
    ) -> Result<(), ModelError> {
        let Workspace { normed, projected: q_gate, mixed, z: k, a: v, .. } = ws;
        let projections = &mut [(&self.q_proj, &mut *q_gate), (&self.k_proj, &mut *k), (&self.v_proj, &mut *v)];
        device.linear_each(normed, projections)?;
        device.gated_attention(packing, states.next(), self.shape, q_gate, k, v, &self.q_norm, &self.k_norm, mixed)?;
        Ok(())
    }
}

impl<D: Device> Mlp<D> {
    /// `update = down(silu(gate(n)) · up(n))` with `n = normed`.
    fn forward(&self, device: &D, ws: &mut Workspace<D::Matrix>) -> Result<(), ModelError> {
        let Workspace { normed, projected: gate, mixed: up, update, .. } = ws;
        device.linear_each(normed, &mut [(&self.gate_proj, &mut *gate), (&self.up_proj, &mut *up)])?;
        device.silu_mul(gate, up)?;
        device.linear(&self.down_proj, gate, update)?;
        Ok(())
    }
}
