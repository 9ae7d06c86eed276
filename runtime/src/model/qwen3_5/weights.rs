//! The backbone's weights on a device, layer by layer, under the checkpoint's names (spec: vela.md §7).

use synod_kernels::{AttentionShape, Device, GatedDeltaShape, RowSource};

use super::config::{BackboneConfig, LayerType};
use crate::model::ModelError;
use crate::model::parameters::Parameters;

/// A backbone without LM head: what the tree forward reads. `D` holds every tensor but the embedding's rows.
pub(crate) struct Backbone<D: Device> {
    pub(super) vocab_size: usize,
    pub(super) rms_norm_eps: f32,
    pub(super) embed_tokens: D::Embedding,
    pub(super) layers: Vec<Layer<D>>,
    /// The final norm, `[hidden_size]`.
    pub(super) norm: D::Vector,
}

/// `h += mixer(norm(h))`, then `h += mlp(norm(h))`.
pub(super) struct Layer<D: Device> {
    pub(super) input_layernorm: D::Vector,
    pub(super) mixer: Mixer<D>,
    pub(super) post_attention_layernorm: D::Vector,
    pub(super) mlp: Mlp<D>,
}

/// What carries information from token to token.
pub(super) enum Mixer<D: Device> {
    LinearAttention(LinearAttention<D>),
    FullAttention(FullAttention<D>),
}

/// Gated `DeltaNet`.
pub(super) struct LinearAttention<D: Device> {
    pub(super) shape: GatedDeltaShape,
    pub(super) in_proj_qkv: D::Weight,
    pub(super) in_proj_z: D::Weight,
    pub(super) in_proj_a: D::Weight,
    pub(super) in_proj_b: D::Weight,
    /// `[channels, conv_kernel_dim]`.
    pub(super) conv1d: D::Vector,
    pub(super) conv_kernel_dim: usize,
    pub(super) a_log: D::Vector,
    pub(super) dt_bias: D::Vector,
    /// A plain weight, `[value_dim]`.
    pub(super) norm: D::Vector,
    pub(super) rms_norm_eps: f32,
    pub(super) out_proj: D::Weight,
}

/// Gated causal attention.
pub(super) struct FullAttention<D: Device> {
    pub(super) shape: AttentionShape,
    pub(super) q_proj: D::Weight,
    pub(super) k_proj: D::Weight,
    pub(super) v_proj: D::Weight,
    pub(super) q_norm: D::Vector,
    pub(super) k_norm: D::Vector,
    pub(super) o_proj: D::Weight,
}

/// SwiGLU.
#[allow(clippy::struct_field_names)] // the checkpoint's names
pub(super) struct Mlp<D: Device> {
    pub(super) gate_proj: D::Weight,
    pub(super) up_proj: D::Weight,
    pub(super) down_proj: D::Weight,
}

impl<D: Device> Backbone<D> {
    /// Takes the tensors `backbone.*` out of `parameters`; `embedding` is the table of `backbone.embed_tokens.weight`.
    ///
    /// # Errors
    /// [`ModelError::MissingTensor`] for a tensor that `parameters` does not hold, and what the device says of the table.
    pub(crate) fn build(
        config: &BackboneConfig,
        device: &D,
        parameters: &mut Parameters<D>,
        embedding: Box<dyn RowSource>,
    ) -> Result<Self, ModelError> {
        let embed_tokens = device
            .load_embedding(embedding)
            .map_err(|source| ModelError::LoadTensor { name: "backbone.embed_tokens.weight".to_owned(), source })?;
        let layers = config.layer_types.iter().enumerate();
        Ok(Self {
            vocab_size: config.vocab_size,
            rms_norm_eps: config.rms_norm_eps,
            embed_tokens,
            layers: layers
                .map(|(index, &layer_type)| Layer::build(config, index, layer_type, parameters))
                .collect::<Result<_, _>>()?,
            norm: parameters.vector("backbone.norm.weight")?,
        })
    }
}

impl<D: Device> Layer<D> {
    fn build(
        config: &BackboneConfig,
        index: usize,
        layer_type: LayerType,
        parameters: &mut Parameters<D>,
    ) -> Result<Self, ModelError> {
        let name = |tail: &str| format!("backbone.layers.{index}.{tail}.weight");
        Ok(Self {
            input_layernorm: parameters.vector(&name("input_layernorm"))?,
            mixer: match layer_type {
                LayerType::LinearAttention => {
                    Mixer::LinearAttention(LinearAttention::build(config, index, parameters)?)
                }
                LayerType::FullAttention => Mixer::FullAttention(FullAttention::build(config, index, parameters)?),
            },
            post_attention_layernorm: parameters.vector(&name("post_attention_layernorm"))?,
            mlp: Mlp {
                gate_proj: parameters.linear(&name("mlp.gate_proj"))?,
                up_proj: parameters.linear(&name("mlp.up_proj"))?,
                down_proj: parameters.linear(&name("mlp.down_proj"))?,
            },
        })
    }
}

impl<D: Device> LinearAttention<D> {
    fn build(config: &BackboneConfig, index: usize, parameters: &mut Parameters<D>) -> Result<Self, ModelError> {
        let name = |tail: &str| format!("backbone.layers.{index}.linear_attn.{tail}");
        Ok(Self {
            shape: config.gated_delta_shape(),
            in_proj_qkv: parameters.linear(&name("in_proj_qkv.weight"))?,
            in_proj_z: parameters.linear(&name("in_proj_z.weight"))?,
            in_proj_a: parameters.linear(&name("in_proj_a.weight"))?,
            in_proj_b: parameters.linear(&name("in_proj_b.weight"))?,
            conv1d: parameters.vector(&name("conv1d.weight"))?,
            conv_kernel_dim: config.linear_conv_kernel_dim,
            a_log: parameters.vector(&name("A_log"))?,
            dt_bias: parameters.vector(&name("dt_bias"))?,
            norm: parameters.vector(&name("norm.weight"))?,
            rms_norm_eps: config.rms_norm_eps,
            out_proj: parameters.linear(&name("out_proj.weight"))?,
        })
    }
}

impl<D: Device> FullAttention<D> {
    fn build(config: &BackboneConfig, index: usize, parameters: &mut Parameters<D>) -> Result<Self, ModelError> {
        let name = |tail: &str| format!("backbone.layers.{index}.self_attn.{tail}.weight");
        Ok(Self {
            shape: config.attention_shape(),
            q_proj: parameters.linear(&name("q_proj"))?,
            k_proj: parameters.linear(&name("k_proj"))?,
            v_proj: parameters.linear(&name("v_proj"))?,
            q_norm: parameters.vector(&name("q_norm"))?,
            k_norm: parameters.vector(&name("k_norm"))?,
            o_proj: parameters.linear(&name("o_proj"))?,
        })
    }
}
