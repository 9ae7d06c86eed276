//! `config.json` of a member's package (spec: vela.md §2).
//!
//! Invariant of a validated config: its dimensions are bounded and fit each other, and it asks for nothing that is not
//! implemented. Keys without a meaning for serving are ignored.

use serde::Deserialize;

use crate::model::qwen3_5::config::{BackboneConfig, ConfigError};

/// A row's longest input that is believed, in tokens.
const MAX_LENGTH_TOKENS: usize = 1 << 20;
const MAX_HEAD_DIM: usize = 1 << 12;
const MAX_SLOTS: usize = 1 << 12;

/// `config.json`. Deserialising checks types only; the config of an open [`super::MemberFiles`] is validated.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct MemberConfig {
    pub model_type: String,
    pub format_version: u64,
    /// The member's own name, as `vllm-sr/Vela-2.0-4B`; not what a deployment serves it as.
    pub model_name: String,
    pub backbone_config: BackboneConfig,
    /// Width of the candidate head.
    pub head_dim: usize,
    pub span_head: SpanHeadConfig,
    /// Longest row, in tokens.
    pub max_length: usize,
    pub span_layout: SpanLayout,
    pub pad_token_id: u32,
}

/// Dimensions that both span heads share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct SpanHeadConfig {
    /// Width.
    pub d: usize,
    /// Rows of the slot table.
    pub slots: usize,
}

/// How long span targets are read (spec: vela.md §6, "Longer span targets"), in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct SpanLayout {
    /// Longest target that is repeated; longer ones are read in windows.
    pub hybrid_rmax: usize,
    pub window: usize,
    pub stride: usize,
    /// Must equal `hybrid_rmax`: no release tells the two apart.
    pub window_above: usize,
}

impl MemberConfig {
    /// Checks every value that rendering, the inventory or the forward relies on.
    ///
    /// # Errors
    /// The first key whose value is out of bounds, contradicts another one, or is not implemented.
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        if self.model_type != "vela2-decoder" {
            return Err(ConfigError::new("model_type", "vela2-decoder", &self.model_type));
        }
        if self.format_version != 1 {
            return Err(ConfigError::new("format_version", 1, self.format_version));
        }
        if self.model_name.is_empty() || self.model_name.chars().any(char::is_control) {
            return Err(ConfigError::new("model_name", "a printable name", &self.model_name));
        }
        self.backbone_config.validate()?;
        ConfigError::check_range("head_dim", self.head_dim, MAX_HEAD_DIM)?;
        ConfigError::check_range("span_head.d", self.span_head.d, MAX_HEAD_DIM)?;
        ConfigError::check_range("span_head.slots", self.span_head.slots, MAX_SLOTS)?;
        ConfigError::check_range("max_length", self.max_length, MAX_LENGTH_TOKENS)?;
        let vocab_size = self.backbone_config.vocab_size;
        if self.pad_token_id as usize >= vocab_size {
            return Err(ConfigError::new("pad_token_id", format!("an id below {vocab_size}"), self.pad_token_id));
        }
        self.span_layout.validate()
    }
}

impl SpanLayout {
    fn validate(self) -> Result<(), ConfigError> {
        ConfigError::check_range("span_layout.hybrid_rmax", self.hybrid_rmax, MAX_LENGTH_TOKENS)?;
        ConfigError::check_range("span_layout.window", self.window, MAX_LENGTH_TOKENS)?;
        ConfigError::check_range("span_layout.stride", self.stride, self.window)?;
        if self.window_above != self.hybrid_rmax {
            let expected = format!("{}, as hybrid_rmax", self.hybrid_rmax);
            return Err(ConfigError::new("span_layout.window_above", expected, self.window_above));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const CONFIG: &str =
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/members/tiny-08b/config.json"));

    fn validate_with(pointer: &str, value: Value) -> Result<(), ConfigError> {
        let mut config: Value = serde_json::from_str(CONFIG).unwrap();
        *config.pointer_mut(pointer).unwrap() = value;
        serde_json::from_value::<MemberConfig>(config).unwrap().validate()
    }

    #[test]
    fn the_fixture_is_valid() {
        serde_json::from_str::<MemberConfig>(CONFIG).unwrap().validate().unwrap();
    }

    /// Each would otherwise be served as if it were the released architecture, or overflow a size.
    #[test]
    fn nonsense_is_refused_by_its_key() {
        for (pointer, value) in [
            ("/model_type", json!("vela3-decoder")),
            ("/format_version", json!(2)),
            ("/model_name", json!("two\nlines")),
            ("/head_dim", json!(0)),
            ("/span_head/d", json!(1_usize << 40)),
            ("/span_head/slots", json!(0)),
            ("/max_length", json!(0)),
            ("/pad_token_id", json!(2000)),
            ("/span_layout/window", json!(0)),
            ("/span_layout/stride", json!(81)),
            ("/span_layout/window_above", json!(97)),
            ("/backbone_config/model_type", json!("qwen3_text")),
            ("/backbone_config/hidden_act", json!("gelu")),
            ("/backbone_config/attention_bias", json!(true)),
            ("/backbone_config/rms_norm_eps", json!(0.0)),
            ("/backbone_config/vocab_size", json!(1_usize << 60)),
            ("/backbone_config/num_hidden_layers", json!(5)),
            ("/backbone_config/num_attention_heads", json!(5)),
            ("/backbone_config/linear_num_value_heads", json!(6)),
            ("/backbone_config/rope_parameters/rope_type", json!("yarn")),
            ("/backbone_config/rope_parameters/rope_theta", json!(-1.0)),
            ("/backbone_config/rope_parameters/partial_rotary_factor", json!(0.1)),
            ("/backbone_config/rope_parameters/partial_rotary_factor", json!(1.5)),
        ] {
            let error = validate_with(pointer, value).expect_err(pointer);
            let key = pointer[1..].replace('/', ".").replace("num_hidden_layers", "layer_types");
            assert_eq!(error.key, key);
        }
    }
}
