//! The released members: what they are and what their files must be, digit for digit (spec: vela.md §1 and §2).
//!
//! One table that reads like the spec's two. A new release is a new entry here; nothing else in the runtime knows a
//! released member by its name. Synthetic members take their dimensions from here too.

use super::{Digest, MemberConfig, TensorCounts};
use crate::model::qwen3_5::config::{ConfigError, LayerType};

/// A published member.
pub(super) struct Release {
    /// `model_name` in its `config.json`, which is also its repository.
    pub(super) model_name: &'static str,
    /// Commits that hold exactly these files: where to fetch it, and another that it has been seen pinned as.
    pub(super) revisions: [&'static str; 2],
    pub(super) dimensions: Dimensions,
    /// With `set_bias` and both span heads.
    pub(super) tensors: TensorCounts,
    /// SHA-256 of every file that is loaded.
    pub(super) files: &'static [(&'static str, &'static str)],
}

/// What the config of a released member says. Every fourth layer is full attention.
#[derive(Clone, Copy)]
pub(super) struct Dimensions {
    pub(super) hidden_size: usize,
    pub(super) intermediate_size: usize,
    pub(super) num_hidden_layers: usize,
    pub(super) num_attention_heads: usize,
    pub(super) num_key_value_heads: usize,
    pub(super) head_dim: usize,
    pub(super) linear_num_key_heads: usize,
    pub(super) linear_num_value_heads: usize,
    pub(super) linear_key_head_dim: usize,
    pub(super) linear_value_head_dim: usize,
    pub(super) vocab_size: usize,
    /// Width of every head.
    pub(super) head_width: usize,
    pub(super) slots: usize,
    pub(super) max_length: usize,
}

impl Release {
    /// The digest that is pinned for `file`, if it is a file that is loaded.
    pub(super) fn pin(&self, file: &str) -> Option<Digest> {
        let (_, hex) = self.files.iter().find(|(name, _)| *name == file)?;
        Some(hex.parse().expect("the table holds SHA-256 digests: a test reads all of them"))
    }

    /// Checks that `config` has the published dimensions.
    ///
    /// # Errors
    /// The first key that has not.
    pub(super) fn check_config(&self, config: &MemberConfig) -> Result<(), ConfigError> {
        let (backbone, expected) = (&config.backbone_config, &self.dimensions);
        for (key, found, expected) in [
            ("backbone_config.hidden_size", backbone.hidden_size, expected.hidden_size),
            ("backbone_config.intermediate_size", backbone.intermediate_size, expected.intermediate_size),
            ("backbone_config.num_hidden_layers", backbone.num_hidden_layers, expected.num_hidden_layers),
            ("backbone_config.num_attention_heads", backbone.num_attention_heads, expected.num_attention_heads),
            ("backbone_config.num_key_value_heads", backbone.num_key_value_heads, expected.num_key_value_heads),
            ("backbone_config.head_dim", backbone.head_dim, expected.head_dim),
            ("backbone_config.linear_num_key_heads", backbone.linear_num_key_heads, expected.linear_num_key_heads),
            (
                "backbone_config.linear_num_value_heads",
                backbone.linear_num_value_heads,
                expected.linear_num_value_heads,
            ),
            ("backbone_config.linear_key_head_dim", backbone.linear_key_head_dim, expected.linear_key_head_dim),
            ("backbone_config.linear_value_head_dim", backbone.linear_value_head_dim, expected.linear_value_head_dim),
            ("backbone_config.vocab_size", backbone.vocab_size, expected.vocab_size),
            ("head_dim", config.head_dim, expected.head_width),
            ("span_head.d", config.span_head.d, expected.head_width),
            ("span_head.slots", config.span_head.slots, expected.slots),
            ("max_length", config.max_length, expected.max_length),
        ] {
            if found != expected {
                return Err(ConfigError::new(key, format!("{expected}, as released"), found));
            }
        }
        let is_as_released =
            |(index, layer): (usize, &LayerType)| (*layer == LayerType::FullAttention) == (index % 4 == 3);
        if backbone.layer_types.iter().enumerate().all(is_as_released) {
            Ok(())
        } else {
            let expected = "every fourth layer full attention, as released";
            Err(ConfigError::new("backbone_config.layer_types", expected, "another order"))
        }
    }
}

/// The release that calls itself `model_name`.
pub(super) fn find(model_name: &str) -> Option<&'static Release> {
    RELEASES.into_iter().find(|release| release.model_name == model_name)
}

/// Every released member, smallest first.
pub(super) const RELEASES: [&Release; 3] = [&VELA_08B, &VELA_4B, &VELA_9B];

/// What all released members have in common; the rest is 0 here.
const SHARED: Dimensions = Dimensions {
    hidden_size: 0,
    intermediate_size: 0,
    num_hidden_layers: 0,
    num_attention_heads: 0,
    num_key_value_heads: 0,
    head_dim: 256,
    linear_num_key_heads: 0,
    linear_num_value_heads: 0,
    linear_key_head_dim: 128,
    linear_value_head_dim: 128,
    vocab_size: 248_320,
    head_width: 256,
    slots: 64,
    max_length: 16_384,
};

pub(super) static VELA_08B: Release = Release {
    model_name: "vllm-sr/Vela-2.0-0.8B",
    revisions: ["a778eb2ae2304cfa72fca7e53a19136dea5be012", "326b01d81f61fff7fd4ae570e54b87a49119e490"],
    dimensions: Dimensions {
        hidden_size: 1024,
        intermediate_size: 3584,
        num_hidden_layers: 24,
        num_attention_heads: 8,
        num_key_value_heads: 2,
        linear_num_key_heads: 16,
        linear_num_value_heads: 16,
        ..SHARED
    },
    tensors: TensorCounts {
        backbone_bf16: 204,
        backbone_f32: 116,
        heads: 37,
        backbone_parameters: 752_393_024,
        parameters: 755_685_699,
    },
    files: &[
        ("MODEL_MANIFEST.json", "a8fb5b188593463209475a7b51ceb97531b58bb1d7445b8b6a2e1a6333fd1ae2"),
        ("broad_head.safetensors", "687d7a435d6de846796274e417b6333f83df3085a6e7c3bca4c01cb4d75a30f0"),
        ("calibration.json", "d96e447962d0dc1d58fa8422dddbae8b99960e21fd75a10ef9b096f700a211f5"),
        ("config.json", "0637ca193b9159b6ece25837913956477164d3392d9b5dd1e6b74b95a484004a"),
        ("model-00001-of-00001.safetensors", "c70237ecd579c60289c177fa9806e71c24840c2fc557b5c76af1395dc3081fa6"),
        ("model.safetensors.index.json", "b53d1c79219677289bdb1541a1373dfe53119884f248b23c94a27aef7338919d"),
        ("tokenizer.json", "06b9509352d2af50381ab2247e083b80d32d5c0aba91c272ca9ff729b6a0e523"),
    ],
};

pub(super) static VELA_4B: Release = Release {
    model_name: "vllm-sr/Vela-2.0-4B",
    revisions: ["c1e64d4f872cb38bc58502e6888340100bab9d55", "d692394127f6f87fc581d8634c9558fe4776efce"],
    dimensions: Dimensions {
        hidden_size: 2560,
        intermediate_size: 9216,
        num_hidden_layers: 32,
        num_attention_heads: 16,
        num_key_value_heads: 4,
        linear_num_key_heads: 16,
        linear_num_value_heads: 32,
        ..SHARED
    },
    tensors: TensorCounts {
        backbone_bf16: 272,
        backbone_f32: 154,
        heads: 37,
        backbone_parameters: 4_205_751_296,
        parameters: 4_213_980_675,
    },
    files: &[
        ("MODEL_MANIFEST.json", "3e5a26db6dd50cc3939502ec861cdc0e5f6a5de8947815d598d3aea6f4624a0c"),
        ("broad_head.safetensors", "45dd5eafa620a5b4d3e060eaf8baadbfeaab4d3086dc3a63a6734068e441e20c"),
        ("calibration.json", "2a3f3cfa2d1cf6fa133d887960261b71c09420899f817f4156677962ac02460f"),
        ("config.json", "c0318849c586fe42f98db289c9d959642a8e2020726f2b3cb4685ccfc9912c40"),
        ("model-00001-of-00003.safetensors", "32a4c236433eb321eed9c8f1b3c538b1e92c9d10434f881f19297ec31df8a3f2"),
        ("model-00002-of-00003.safetensors", "f632598bf50da7f07fca7b6a0588c2b528c05158d03877205450d36dc3ce9662"),
        ("model-00003-of-00003.safetensors", "6f59ab795dc73e0fdb5f25cb0522808537097db2b9b0e147fc4c33f12ff90a80"),
        ("model.safetensors.index.json", "24e5eea6b54282cdf32a7f8d746f9c7b3f8c2ef66bcd57b333fd0022b7c74ca0"),
        ("tokenizer.json", "06b9509352d2af50381ab2247e083b80d32d5c0aba91c272ca9ff729b6a0e523"),
    ],
};

pub(super) static VELA_9B: Release = Release {
    model_name: "vllm-sr/Vela-2.0-9B",
    revisions: ["bc8761637d8788619dfbaf6d8890128efe85fd40", "068425bb145c05884a98b870c219047da22d9aea"],
    dimensions: Dimensions {
        hidden_size: 4096,
        intermediate_size: 12_288,
        num_hidden_layers: 32,
        num_attention_heads: 16,
        num_key_value_heads: 4,
        linear_num_key_heads: 16,
        linear_num_value_heads: 32,
        ..SHARED
    },
    tensors: TensorCounts {
        backbone_bf16: 272,
        backbone_f32: 154,
        heads: 37,
        backbone_parameters: 7_936_684_544,
        parameters: 7_949_850_627,
    },
    files: &[
        ("MODEL_MANIFEST.json", "8ccd2ccb2f91f7b4ee99df2e3bf885cb901f2567cfb0a6b6093778ba14dfc05f"),
        ("broad_head.safetensors", "c376f1668247ff902947d1ffd69c92195c7b74116dedd958aebd31ff5f1b580c"),
        ("calibration.json", "9fa0f31ce1c7b784220fd73320ee64da9b3b789c403755af91bcbefb5740d766"),
        ("config.json", "4770113c223c399500382f07746cfe384465409e16f07b2cea49ced9f2547aa3"),
        ("model-00001-of-00005.safetensors", "444ef8c7f74c5e52639ae39cb692b5f93f9df419f58c1d1ca048046496e702b2"),
        ("model-00002-of-00005.safetensors", "6f11c43ba2f04be71a8102eaa1fce2b73ef9c9afe7cb5c6e6690bdf941427cc7"),
        ("model-00003-of-00005.safetensors", "dc81308a51d4357a7483701a061ebbeee9a90f7fd3a0716a99ff0d58a6330b9d"),
        ("model-00004-of-00005.safetensors", "d08cb842d293fedb05308c299624cd3459c2007ec2b7ad75267f67cb225ace70"),
        ("model-00005-of-00005.safetensors", "1aec88bbd34d725ac0a9c152bc1d10d2db25bca1f9186f5449d7429a4b034a81"),
        ("model.safetensors.index.json", "b8c6ef31bad3b3f55952261553827df322e666e2393f85856e435af70e393c4e"),
        ("tokenizer.json", "06b9509352d2af50381ab2247e083b80d32d5c0aba91c272ca9ff729b6a0e523"),
    ],
};

#[cfg(test)]
mod tests {
    use super::*;

    /// A digit lost in copying would refuse the true file.
    #[test]
    fn every_pin_is_a_digest_and_every_loaded_file_has_one() {
        for (release, shards) in RELEASES.into_iter().zip([1, 3, 5]) {
            let pins = release.files.iter().map(|(file, _)| release.pin(file));
            assert!(pins.into_iter().all(|pin| pin.is_some()));
            for shard in 1..=shards {
                assert!(release.pin(&format!("model-{shard:05}-of-{shards:05}.safetensors")).is_some());
            }
            assert_eq!(release.files.len(), 6 + shards);
            assert!(release.revisions.iter().all(|revision| revision.len() == 40));
        }
        assert!(find("vllm-sr/Vela-2.0-4B").is_some());
        assert!(find("vllm-sr/Vela-2.0-5B").is_none());
    }
}
