//! Whether weight files hold what the config calls for, and what their index says.

use std::collections::BTreeMap;
use std::fmt;

use synod_kernels::DType;

use super::MemberError;
use super::bundle::BACKBONE_PREFIX;
use super::shard::{Shard, StoredTensor};
use crate::model::qwen3_5::config::TensorSpec;

/// What weight files hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TensorCounts {
    /// Tensors of the backbone in BF16 (as released: Linear and conv1d weights) and in F32 (all others).
    pub backbone_bf16: usize,
    pub backbone_f32: usize,
    /// Tensors of the candidate head, `set_bias`, and the span heads.
    pub heads: usize,
    /// Values of the backbone's tensors, and of all of them.
    pub backbone_parameters: usize,
    pub parameters: usize,
}

impl TensorCounts {
    pub(super) fn of(shards: &[Shard]) -> Self {
        let mut counts = Self::default();
        for tensor in shards.iter().flat_map(|shard| &shard.tensors) {
            let values = tensor.shape.iter().product::<usize>();
            counts.parameters += values;
            if !tensor.name.starts_with(BACKBONE_PREFIX) {
                counts.heads += 1;
                continue;
            }
            counts.backbone_parameters += values;
            match tensor.dtype {
                DType::Bf16 => counts.backbone_bf16 += 1,
                DType::F32 => counts.backbone_f32 += 1,
            }
        }
        counts
    }

    /// The same tensors with the whole backbone in BF16.
    #[must_use]
    pub(super) fn rounded(self) -> Self {
        Self { backbone_bf16: self.backbone_bf16 + self.backbone_f32, backbone_f32: 0, ..self }
    }
}

impl fmt::Display for TensorCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { backbone_bf16, backbone_f32, heads, parameters, .. } = self;
        let backbone = backbone_bf16 + backbone_f32;
        write!(
            f,
            "{backbone} backbone tensors ({backbone_bf16} BF16, {backbone_f32} F32), {heads} head tensors, {parameters} parameters"
        )
    }
}

/// Checks that files hold as much as the release that they claim to be; `file` is named if not.
pub(super) fn check_counts(file: &str, expected: TensorCounts, found: TensorCounts) -> Result<(), MemberError> {
    if expected == found { Ok(()) } else { Err(MemberError::tensor(file, "all tensors", expected, found)) }
}

/// Checks that `weight_map`, which stands in the file `index`, names exactly the tensors of `shards`, each in its own file.
pub(super) fn check_index(
    index: &str,
    weight_map: &BTreeMap<String, String>,
    shards: &[Shard],
) -> Result<(), MemberError> {
    // The file that each tensor was found in.
    let mut seen = BTreeMap::new();
    for shard in shards {
        for StoredTensor { name, .. } in &shard.tensors {
            if let Some(other) = seen.insert(name, &shard.name) {
                return Err(MemberError::tensor(
                    &shard.name,
                    name,
                    "it in one file only",
                    format!("it in {other} too"),
                ));
            }
        }
    }
    for (&name, &file) in &seen {
        let found = weight_map.get(name);
        if found != Some(file) {
            return Err(MemberError::tensor(index, name, file, found.map_or("nothing", String::as_str)));
        }
    }
    match weight_map.iter().find(|(name, _)| !seen.contains_key(name)) {
        None => Ok(()),
        Some((name, file)) => Err(MemberError::tensor(file, name, "it, as the index says", "no such tensor")),
    }
}

/// Checks that `shards` together hold the tensors of `inventory` and no others, each once and in its shape. `file` is
/// named when a tensor is in none of them.
pub(super) fn check_inventory(file: &str, inventory: &[TensorSpec], shards: &[&Shard]) -> Result<(), MemberError> {
    let mut missing: BTreeMap<_, _> = inventory.iter().map(|spec| (spec.name.as_str(), spec)).collect();
    for shard in shards {
        for tensor in &shard.tensors {
            let Some(spec) = missing.remove(tensor.name.as_str()) else {
                return Err(MemberError::tensor(&shard.name, &tensor.name, "no such tensor", "one"));
            };
            if !spec.accepts(&tensor.shape) {
                let (expected, found) = (format!("shape {:?}", spec.shape), format!("{:?}", tensor.shape));
                return Err(MemberError::tensor(&shard.name, &tensor.name, expected, found));
            }
        }
    }
    match missing.into_values().next() {
        None => Ok(()),
        Some(spec) => Err(MemberError::tensor(file, &spec.name, format!("a tensor of shape {:?}", spec.shape), "none")),
    }
}

/// Checks that every tensor of `inventory` that is in `shards` is stored as `expected` says of it.
pub(super) fn check_dtypes(
    inventory: &[TensorSpec],
    shards: &[&Shard],
    expected: impl Fn(&TensorSpec) -> DType,
) -> Result<(), MemberError> {
    let specs: BTreeMap<_, _> = inventory.iter().map(|spec| (spec.name.as_str(), spec)).collect();
    for shard in shards {
        for tensor in &shard.tensors {
            let Some(spec) = specs.get(tensor.name.as_str()) else { continue };
            let expected = expected(spec);
            if tensor.dtype != expected {
                let (expected, found) = (format!("dtype {}", expected.name()), tensor.dtype.name());
                return Err(MemberError::tensor(&shard.name, &tensor.name, expected, found));
            }
        }
    }
    Ok(())
}
