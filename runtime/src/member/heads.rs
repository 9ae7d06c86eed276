//! The tensors of the heads (spec: vela.md §8), which follow from the config alone.

use super::MemberConfig;
use crate::model::qwen3_5::config::{TensorKind, TensorSpec};

impl MemberConfig {
    /// Every tensor of the shards (`backbone.*`, `head.*`, `set_bias`, `span2.*`), in the order of the release.
    pub fn inventory(&self) -> Vec<TensorSpec> {
        let mut tensors: Vec<_> =
            self.backbone_config.inventory().into_iter().map(|tensor| tensor.prefixed("backbone.")).collect();
        tensors.extend(self.candidate_head_tensors().into_iter().map(|tensor| tensor.prefixed("head.")));
        tensors.push(TensorSpec::new("set_bias", &[], TensorKind::Scalar));
        tensors.extend(self.span_head_tensors().into_iter().map(|tensor| tensor.prefixed("span2.")));
        tensors
    }

    /// Every tensor of `broad_head.safetensors` (`span_broad.*`).
    pub fn broad_inventory(&self) -> Vec<TensorSpec> {
        self.span_head_tensors().into_iter().map(|tensor| tensor.prefixed("span_broad.")).collect()
    }

    /// Every tensor of the heads, in the order of a bundle's `heads.safetensors`.
    pub(super) fn head_inventory(&self, has_broad_head: bool) -> Vec<TensorSpec> {
        let mut tensors = self.inventory();
        tensors.retain(|tensor| !tensor.name.starts_with("backbone."));
        if has_broad_head {
            tensors.extend(self.broad_inventory());
        }
        tensors
    }

    fn candidate_head_tensors(&self) -> Vec<TensorSpec> {
        let (hidden, d) = (self.backbone_config.hidden_size, self.head_dim);
        vec![
            TensorSpec::new("candidate_norm.weight", &[hidden], TensorKind::Norm),
            TensorSpec::new("candidate_norm.bias", &[hidden], TensorKind::Norm),
            TensorSpec::new("query_norm.weight", &[hidden], TensorKind::Norm),
            TensorSpec::new("query_norm.bias", &[hidden], TensorKind::Norm),
            TensorSpec::new("key.weight", &[d, hidden], TensorKind::Linear),
            TensorSpec::new("query.weight", &[d, hidden], TensorKind::Linear),
            TensorSpec::new("candidate_mlp.weight", &[d, hidden], TensorKind::Linear),
            TensorSpec::new("candidate_mlp.bias", &[d], TensorKind::Bias),
            TensorSpec::new("query_mlp.weight", &[d, hidden], TensorKind::Linear),
            TensorSpec::new("scalar.weight", &[1, d], TensorKind::Linear),
        ]
    }

    /// `o.*` is shipped with every span head and read by none; it is part of the inventory all the same.
    fn span_head_tensors(&self) -> Vec<TensorSpec> {
        let (hidden, d, slots) = (self.backbone_config.hidden_size, self.span_head.d, self.span_head.slots);
        vec![
            TensorSpec::new("wn.weight", &[hidden], TensorKind::Norm),
            TensorSpec::new("wn.bias", &[hidden], TensorKind::Norm),
            TensorSpec::new("ln.weight", &[hidden], TensorKind::Norm),
            TensorSpec::new("ln.bias", &[hidden], TensorKind::Norm),
            TensorSpec::new("slot.weight", &[slots, hidden], TensorKind::Slots),
            TensorSpec::new("K.weight", &[d, hidden], TensorKind::Linear),
            TensorSpec::new("Q.weight", &[d, hidden], TensorKind::Linear),
            TensorSpec::new("M.weight", &[d, hidden], TensorKind::Linear),
            TensorSpec::new("M.bias", &[d], TensorKind::Bias),
            TensorSpec::new("N.weight", &[d, hidden], TensorKind::Linear),
            TensorSpec::new("v.weight", &[1, d], TensorKind::Linear),
            TensorSpec::new("o.weight", &[1, hidden], TensorKind::Linear),
            TensorSpec::new("o.bias", &[1], TensorKind::Bias),
        ]
    }
}
