//! Which config and which files a synthetic member has.

use std::fmt;
use std::str::FromStr;

use serde_json::{Value, json};

use super::{MemberConfig, SynthError};
use crate::member::registry::{self, Dimensions};
use crate::model::qwen3_5::config::{ConfigError, MAX_LAYERS};

/// The fixture member's `config.json`: what `tiny` is made of.
const TINY_CONFIG: &str = include_str!("../../../assets/synth/config.json");
/// Ids of the embedded tokenizer.
const TOKENIZER_IDS: usize = 2000;

/// The dimensions of a released member, or of the fixture member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Tiny,
    Vela08b,
    Vela4b,
    Vela9b,
}

impl Shape {
    /// Every shape, smallest first.
    pub const ALL: [Shape; 4] = [Shape::Tiny, Shape::Vela08b, Shape::Vela4b, Shape::Vela9b];

    /// Its name on the command line and in a `model_name`.
    pub fn name(self) -> &'static str {
        match self {
            Shape::Tiny => "tiny",
            Shape::Vela08b => "0.8b",
            Shape::Vela4b => "4b",
            Shape::Vela9b => "9b",
        }
    }

    /// Weight files beside the broad head's, as released.
    pub(super) fn shards(self) -> usize {
        match self {
            Shape::Tiny | Shape::Vela08b => 1,
            Shape::Vela4b => 3,
            Shape::Vela9b => 5,
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no shape's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("shape: expected tiny, 0.8b, 4b or 9b, found {found:?}")]
pub struct ShapeError {
    found: String,
}

impl FromStr for Shape {
    type Err = ShapeError;

    fn from_str(name: &str) -> Result<Self, ShapeError> {
        let shape = Shape::ALL.into_iter().find(|shape| shape.name() == name);
        shape.ok_or_else(|| ShapeError { found: name.to_owned() })
    }
}

/// Which synthetic member to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynthSpec {
    pub shape: Shape,
    /// A multiple of four; the shape's own if not given.
    pub layers: Option<usize>,
    /// Rows of the embedding; the shape's own if not given.
    pub vocab: Option<usize>,
    pub seed: u64,
}

/// What follows from a [`SynthSpec`] before any value is made.
pub(super) struct SynthPackage {
    pub(super) shape: Shape,
    pub(super) seed: u64,
    /// `config.json` as it is written.
    pub(super) config_json: Value,
    /// The same, validated.
    pub(super) config: MemberConfig,
}

impl SynthSpec {
    /// The config of the member, without making a value of it.
    ///
    /// # Errors
    /// Those of [`super::write`] that do not concern the place.
    pub fn config(&self) -> Result<MemberConfig, SynthError> {
        self.package().map(|package| package.config)
    }

    /// Resolves defaults and checks the dimensions.
    pub(super) fn package(&self) -> Result<SynthPackage, SynthError> {
        if let Some(found) = self.layers.filter(|&layers| layers == 0 || layers % 4 != 0) {
            return Err(SynthError::Layers { found });
        }
        if let Some(found) = self.vocab.filter(|&vocab| vocab < TOKENIZER_IDS) {
            return Err(SynthError::Vocabulary { minimum: TOKENIZER_IDS, found });
        }
        let mut config_json = match self.shape {
            Shape::Tiny => serde_json::from_str(TINY_CONFIG).expect("the embedded config is the fixture's"),
            Shape::Vela08b => released_config(&registry::VELA_08B.dimensions),
            Shape::Vela4b => released_config(&registry::VELA_4B.dimensions),
            Shape::Vela9b => released_config(&registry::VELA_9B.dimensions),
        };
        let backbone = &mut config_json["backbone_config"];
        if let Some(layers) = self.layers {
            // Before there is an entry per layer.
            ConfigError::check_range("backbone_config.num_hidden_layers", layers, MAX_LAYERS)
                .map_err(|source| SynthError::Config { source })?;
            backbone["num_hidden_layers"] = json!(layers);
            backbone["layer_types"] = layer_types(layers);
        }
        if let Some(vocab) = self.vocab {
            backbone["vocab_size"] = json!(vocab);
        }
        let (layers, vocab) = (&backbone["num_hidden_layers"], &backbone["vocab_size"]);
        config_json["model_name"] = json!(format!("synth/{}-{layers}-{vocab}-{}", self.shape, self.seed));
        let config: MemberConfig =
            serde_json::from_value(config_json.clone()).expect("every key was given a value of its type");
        config.validate().map_err(|source| SynthError::Config { source })?;
        Ok(SynthPackage { shape: self.shape, seed: self.seed, config_json, config })
    }
}

/// Every fourth layer is full attention.
fn layer_types(layers: usize) -> Value {
    (0..layers).map(|index| if index % 4 == 3 { "full_attention" } else { "linear_attention" }).collect()
}

/// `config.json` of a member with `dimensions` (spec: synth.md, "Shapes"); its name is still open.
fn released_config(dimensions: &Dimensions) -> Value {
    json!({
        "model_type": "vela2-decoder",
        "format_version": 1,
        "model_name": null,
        "backbone_config": {
            "model_type": "qwen3_5_text",
            "vocab_size": dimensions.vocab_size,
            "hidden_size": dimensions.hidden_size,
            "intermediate_size": dimensions.intermediate_size,
            "num_hidden_layers": dimensions.num_hidden_layers,
            "num_attention_heads": dimensions.num_attention_heads,
            "num_key_value_heads": dimensions.num_key_value_heads,
            "head_dim": dimensions.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "attention_bias": false,
            "attention_dropout": 0.0,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": dimensions.linear_key_head_dim,
            "linear_value_head_dim": dimensions.linear_value_head_dim,
            "linear_num_key_heads": dimensions.linear_num_key_heads,
            "linear_num_value_heads": dimensions.linear_num_value_heads,
            "layer_types": layer_types(dimensions.num_hidden_layers),
            "max_position_embeddings": 262_144,
            "tie_word_embeddings": true,
            "use_cache": true,
            "pad_token_id": 1992,
            "bos_token_id": null,
            "eos_token_id": 1992,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000_000.0,
                "partial_rotary_factor": 0.25,
                "mrope_interleaved": true,
                "mrope_section": [11, 11, 10],
            },
        },
        "head_dim": dimensions.head_width,
        "span_head": { "d": dimensions.head_width, "slots": dimensions.slots },
        "max_length": dimensions.max_length,
        "span_layout": { "hybrid_rmax": 2048, "window": 1800, "stride": 1536, "window_above": 2048 },
        "pad_token_id": 1992,
    })
}

#[cfg(test)]
mod tests {
    use synod_kernels::DType;

    use super::*;
    use crate::member::TensorCounts;
    use crate::model::qwen3_5::config::TensorSpec;

    fn config(shape: Shape) -> MemberConfig {
        SynthSpec { shape, layers: None, vocab: None, seed: 1 }.package().unwrap().config
    }

    /// The published totals of vela.md §1, which every tensor's shape enters.
    #[test]
    fn released_shapes_have_the_published_inventories() {
        for (shape, release) in [Shape::Vela08b, Shape::Vela4b, Shape::Vela9b].into_iter().zip(registry::RELEASES) {
            let config = config(shape);
            release.check_config(&config).unwrap();
            let backbone = config.backbone_config.inventory();
            let bf16 = backbone.iter().filter(|tensor| tensor.released_dtype() == DType::Bf16).count();
            let heads = config.head_inventory(true);
            let elements = |tensors: &[TensorSpec]| tensors.iter().map(TensorSpec::elements).sum::<usize>();
            let counts = TensorCounts {
                backbone_bf16: bf16,
                backbone_f32: backbone.len() - bf16,
                heads: heads.len(),
                backbone_parameters: elements(&backbone),
                parameters: elements(&backbone) + elements(&heads),
            };
            assert_eq!(counts, release.tensors);
        }
    }

    #[test]
    fn another_shape_is_not_the_released_one() {
        let error = registry::VELA_4B.check_config(&config(Shape::Vela9b)).unwrap_err();
        assert_eq!(error.to_string(), "backbone_config.hidden_size: expected 2560, as released, found 4096");
        let mut shuffled = config(Shape::Vela4b);
        shuffled.backbone_config.layer_types.swap(2, 3);
        assert_eq!(registry::VELA_4B.check_config(&shuffled).unwrap_err().key, "backbone_config.layer_types");
    }

    #[test]
    fn impossible_members_are_refused() {
        let spec = SynthSpec { shape: Shape::Vela4b, layers: None, vocab: None, seed: 1 };
        for layers in [0, 6] {
            assert!(matches!(
                SynthSpec { layers: Some(layers), ..spec }.package(),
                Err(SynthError::Layers { found }) if found == layers
            ));
        }
        // A list of so many layers would not fit in memory.
        let error = SynthSpec { layers: Some(4_000_000_000), ..spec }.package().err().unwrap();
        assert_eq!(
            error.to_string(),
            "backbone_config.num_hidden_layers: expected 1 to 1024, found 4000000000; ask for a smaller member"
        );
        assert!(matches!(SynthSpec { vocab: Some(1999), ..spec }.package(), Err(SynthError::Vocabulary { .. })));
        assert!(matches!(SynthSpec { vocab: Some(1 << 40), ..spec }.package(), Err(SynthError::Config { .. })));
        assert!("5b".parse::<Shape>().is_err());
        assert_eq!("0.8b".parse(), Ok(Shape::Vela08b));
    }
}
