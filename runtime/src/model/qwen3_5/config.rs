//! The backbone's dimensions and the tensors that they call for.
//!
//! Owns `backbone_config` of a member's `config.json` and the inventory (name, shape, kind) that follows from it.
//! Invariant of a validated config: every divisibility that the forward relies on holds, and no product of its
//! dimensions overflows. Nothing here opens a file, and no size of a released member is written down: one
//! implementation serves all of them.

use serde::Deserialize;
use synod_kernels::{AttentionShape, DType, GatedDeltaShape};

use crate::member::Excerpt;

/// Bounds far above any member and low enough that every product below fits in 62 bits.
const MAX_VOCABULARY: usize = 1 << 22;
const MAX_WIDTH: usize = 1 << 18;
const MAX_HEADS: usize = 1 << 10;
const MAX_HEAD_DIM: usize = 1 << 12;
pub const MAX_LAYERS: usize = 1 << 10;
const MAX_CONV_TAPS: usize = 64;

/// What mixes tokens in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerType {
    /// Gated `DeltaNet`.
    LinearAttention,
    /// Gated causal attention.
    FullAttention,
}

/// `rope_parameters`. The multimodal sections that stand beside these are equal for text and are not read.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct RopeParameters {
    #[serde(default = "default_rope_type")]
    pub rope_type: String,
    pub rope_theta: f32,
    pub partial_rotary_factor: f64,
}

/// `backbone_config`, in the checkpoint's own names. Other keys have no meaning for a prefill and are ignored.
///
/// Deserialising checks types only; [`BackboneConfig::validate`] checks the values. The one that a member's package
/// hands out is validated.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct BackboneConfig {
    pub model_type: String,
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    pub head_dim: usize,
    pub hidden_act: String,
    pub rms_norm_eps: f32,
    pub attention_bias: bool,
    /// Absent from configs that were written before the gate could be turned off.
    #[serde(default = "default_attn_output_gate")]
    pub attn_output_gate: bool,
    pub linear_conv_kernel_dim: usize,
    pub linear_key_head_dim: usize,
    pub linear_value_head_dim: usize,
    pub linear_num_key_heads: usize,
    pub linear_num_value_heads: usize,
    pub layer_types: Vec<LayerType>,
    pub rope_parameters: RopeParameters,
}

fn default_rope_type() -> String {
    "default".to_owned()
}

fn default_attn_output_gate() -> bool {
    true
}

/// A value of a config that cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: expected {expected}, found {}", Excerpt(found))]
pub struct ConfigError {
    /// Path of the key inside the file, as `backbone_config.head_dim`.
    pub key: String,
    pub expected: String,
    /// As it stands in the file; the message shows it escaped and cut.
    pub found: String,
}

impl ConfigError {
    /// An error at `key`.
    #[expect(clippy::needless_pass_by_value, reason = "literals, numbers and formatted texts read best by value")]
    pub fn new(key: impl Into<String>, expected: impl ToString, found: impl ToString) -> Self {
        Self { key: key.into(), expected: expected.to_string(), found: found.to_string() }
    }

    /// `Ok` if `value` lies in `1..=max`.
    pub fn check_range(key: &str, value: usize, max: usize) -> Result<(), Self> {
        if (1..=max).contains(&value) { Ok(()) } else { Err(Self::new(key, format!("1 to {max}"), value)) }
    }
}

/// What a tensor is, which decides how it is loaded and in which dtype a release stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorKind {
    /// The embedding table `[vocab, hidden]`; its rows stay in the file.
    Embedding,
    /// A Linear weight `[out, in]`.
    Linear,
    /// A depthwise convolution's taps `[channels, 1, taps]`.
    Conv1d,
    /// A norm's weight or bias, over its width.
    Norm,
    /// One value per value head (`A_log`, `dt_bias`).
    PerHead,
    /// A Linear's bias `[out]`.
    Bias,
    /// A table of rows added by index `[slots, hidden]`.
    Slots,
    /// A single value, shape `[]`, or `[1]` as some tools store it.
    Scalar,
}

/// A tensor that a member must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    pub name: String,
    pub shape: Vec<usize>,
    pub kind: TensorKind,
}

impl TensorSpec {
    /// A tensor's name, shape and kind.
    pub fn new(name: impl Into<String>, shape: &[usize], kind: TensorKind) -> Self {
        Self { name: name.into(), shape: shape.to_vec(), kind }
    }

    /// The same tensor under `prefix` + its name.
    #[must_use]
    pub fn prefixed(mut self, prefix: &str) -> Self {
        self.name.insert_str(0, prefix);
        self
    }

    /// Whether a stored tensor of `shape` is this one. A single value has no layout that `[]` and `[1]` could differ in.
    pub fn accepts(&self, shape: &[usize]) -> bool {
        self.shape == shape || (self.kind == TensorKind::Scalar && shape == [1])
    }

    /// The dtype that a release stores it in, if it is of the backbone (spec: vela.md §1).
    pub fn released_dtype(&self) -> DType {
        match self.kind {
            TensorKind::Linear | TensorKind::Conv1d => DType::Bf16,
            _ => DType::F32,
        }
    }

    /// Number of values.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

impl BackboneConfig {
    /// Checks every value that the forward or the inventory relies on.
    ///
    /// # Errors
    /// The first key that is out of bounds, does not divide what it must divide, or asks for a variant of the
    /// architecture that is not implemented.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.validate_variant()?;
        self.validate_sizes()?;
        self.validate_heads()?;
        self.validate_layers()
    }

    fn validate_variant(&self) -> Result<(), ConfigError> {
        for (key, value, expected) in [
            ("backbone_config.model_type", &self.model_type, "qwen3_5_text"),
            ("backbone_config.hidden_act", &self.hidden_act, "silu"),
            ("backbone_config.rope_parameters.rope_type", &self.rope_parameters.rope_type, "default"),
        ] {
            if value != expected {
                return Err(ConfigError::new(key, expected, value));
            }
        }
        if self.attention_bias {
            return Err(ConfigError::new("backbone_config.attention_bias", false, true));
        }
        if !self.attn_output_gate {
            return Err(ConfigError::new("backbone_config.attn_output_gate", true, false));
        }
        for (key, value) in [
            ("backbone_config.rms_norm_eps", self.rms_norm_eps),
            ("backbone_config.rope_parameters.rope_theta", self.rope_parameters.rope_theta),
        ] {
            if !(value.is_finite() && value > 0.0) {
                return Err(ConfigError::new(key, "a positive number", value));
            }
        }
        Ok(())
    }

    fn validate_sizes(&self) -> Result<(), ConfigError> {
        for (key, value, max) in [
            ("backbone_config.vocab_size", self.vocab_size, MAX_VOCABULARY),
            ("backbone_config.hidden_size", self.hidden_size, MAX_WIDTH),
            ("backbone_config.intermediate_size", self.intermediate_size, MAX_WIDTH),
            ("backbone_config.num_hidden_layers", self.num_hidden_layers, MAX_LAYERS),
            ("backbone_config.num_attention_heads", self.num_attention_heads, MAX_HEADS),
            ("backbone_config.num_key_value_heads", self.num_key_value_heads, MAX_HEADS),
            ("backbone_config.head_dim", self.head_dim, MAX_HEAD_DIM),
            ("backbone_config.linear_conv_kernel_dim", self.linear_conv_kernel_dim, MAX_CONV_TAPS),
            ("backbone_config.linear_key_head_dim", self.linear_key_head_dim, MAX_HEAD_DIM),
            ("backbone_config.linear_value_head_dim", self.linear_value_head_dim, MAX_HEAD_DIM),
            ("backbone_config.linear_num_key_heads", self.linear_num_key_heads, MAX_HEADS),
            ("backbone_config.linear_num_value_heads", self.linear_num_value_heads, MAX_HEADS),
        ] {
            ConfigError::check_range(key, value, max)?;
        }
        Ok(())
    }

    fn validate_heads(&self) -> Result<(), ConfigError> {
        for (key, value, divisor_key, divisor) in [
            ("num_attention_heads", self.num_attention_heads, "num_key_value_heads", self.num_key_value_heads),
            ("linear_num_value_heads", self.linear_num_value_heads, "linear_num_key_heads", self.linear_num_key_heads),
        ] {
            if !value.is_multiple_of(divisor) {
                let expected = format!("a multiple of {divisor_key} ({divisor})");
                return Err(ConfigError::new(format!("backbone_config.{key}"), expected, value));
            }
        }
        let factor = self.rope_parameters.partial_rotary_factor;
        let rotary_dim = self.rotary_dim();
        let is_fraction = factor > 0.0 && factor <= 1.0;
        if !is_fraction || rotary_dim == 0 || !rotary_dim.is_multiple_of(2) {
            let expected = format!("a fraction of head_dim ({}) that is an even number of dimensions", self.head_dim);
            return Err(ConfigError::new("backbone_config.rope_parameters.partial_rotary_factor", expected, factor));
        }
        Ok(())
    }

    fn validate_layers(&self) -> Result<(), ConfigError> {
        if self.layer_types.len() != self.num_hidden_layers {
            let expected = format!("{} entries, as num_hidden_layers says", self.num_hidden_layers);
            return Err(ConfigError::new("backbone_config.layer_types", expected, self.layer_types.len()));
        }
        Ok(())
    }

    /// Leading dimensions of an attention head that are rotated.
    pub fn rotary_dim(&self) -> usize {
        (self.head_dim as f64 * self.rope_parameters.partial_rotary_factor) as usize
    }

    /// Shape of the full attention layers.
    pub fn attention_shape(&self) -> AttentionShape {
        AttentionShape {
            num_attention_heads: self.num_attention_heads,
            num_key_value_heads: self.num_key_value_heads,
            head_dim: self.head_dim,
            rotary_dim: self.rotary_dim(),
            rope_theta: self.rope_parameters.rope_theta,
            rms_norm_eps: self.rms_norm_eps,
        }
    }

    /// Shape of the gated delta rule layers.
    pub fn gated_delta_shape(&self) -> GatedDeltaShape {
        GatedDeltaShape {
            key_heads: self.linear_num_key_heads,
            value_heads: self.linear_num_value_heads,
            key_dim: self.linear_key_head_dim,
            value_dim: self.linear_value_head_dim,
        }
    }

    /// Every tensor of the backbone, in the order of the checkpoint's `state_dict` (a release is sharded in this
    /// order), named without the `backbone.` that a package puts in front.
    pub fn inventory(&self) -> Vec<TensorSpec> {
        let mut tensors =
            vec![TensorSpec::new("embed_tokens.weight", &[self.vocab_size, self.hidden_size], TensorKind::Embedding)];
        for (index, layer_type) in self.layer_types.iter().enumerate() {
            let mixer = match layer_type {
                LayerType::LinearAttention => self.linear_attn_tensors(),
                LayerType::FullAttention => self.self_attn_tensors(),
            };
            let prefix = format!("layers.{index}.");
            tensors.extend(mixer.into_iter().chain(self.mlp_and_norm_tensors()).map(|tensor| tensor.prefixed(&prefix)));
        }
        tensors.push(TensorSpec::new("norm.weight", &[self.hidden_size], TensorKind::Norm));
        tensors
    }

    fn linear_attn_tensors(&self) -> Vec<TensorSpec> {
        let shape = self.gated_delta_shape();
        let (hidden, channels, value_heads) = (self.hidden_size, shape.channels(), shape.value_heads);
        let values = value_heads * shape.value_dim;
        vec![
            TensorSpec::new("linear_attn.dt_bias", &[value_heads], TensorKind::PerHead),
            TensorSpec::new("linear_attn.A_log", &[value_heads], TensorKind::PerHead),
            TensorSpec::new(
                "linear_attn.conv1d.weight",
                &[channels, 1, self.linear_conv_kernel_dim],
                TensorKind::Conv1d,
            ),
            TensorSpec::new("linear_attn.norm.weight", &[shape.value_dim], TensorKind::Norm),
            TensorSpec::new("linear_attn.out_proj.weight", &[hidden, values], TensorKind::Linear),
            TensorSpec::new("linear_attn.in_proj_qkv.weight", &[channels, hidden], TensorKind::Linear),
            TensorSpec::new("linear_attn.in_proj_z.weight", &[values, hidden], TensorKind::Linear),
            TensorSpec::new("linear_attn.in_proj_b.weight", &[value_heads, hidden], TensorKind::Linear),
            TensorSpec::new("linear_attn.in_proj_a.weight", &[value_heads, hidden], TensorKind::Linear),
        ]
    }

    fn self_attn_tensors(&self) -> Vec<TensorSpec> {
        let hidden = self.hidden_size;
        let queries = self.num_attention_heads * self.head_dim;
        let keys = self.num_key_value_heads * self.head_dim;
        vec![
            TensorSpec::new("self_attn.q_proj.weight", &[2 * queries, hidden], TensorKind::Linear),
            TensorSpec::new("self_attn.k_proj.weight", &[keys, hidden], TensorKind::Linear),
            TensorSpec::new("self_attn.v_proj.weight", &[keys, hidden], TensorKind::Linear),
            TensorSpec::new("self_attn.o_proj.weight", &[hidden, queries], TensorKind::Linear),
            TensorSpec::new("self_attn.q_norm.weight", &[self.head_dim], TensorKind::Norm),
            TensorSpec::new("self_attn.k_norm.weight", &[self.head_dim], TensorKind::Norm),
        ]
    }

    fn mlp_and_norm_tensors(&self) -> Vec<TensorSpec> {
        let (hidden, intermediate) = (self.hidden_size, self.intermediate_size);
        vec![
            TensorSpec::new("mlp.gate_proj.weight", &[intermediate, hidden], TensorKind::Linear),
            TensorSpec::new("mlp.up_proj.weight", &[intermediate, hidden], TensorKind::Linear),
            TensorSpec::new("mlp.down_proj.weight", &[hidden, intermediate], TensorKind::Linear),
            TensorSpec::new("input_layernorm.weight", &[hidden], TensorKind::Norm),
            TensorSpec::new("post_attention_layernorm.weight", &[hidden], TensorKind::Norm),
        ]
    }
}
