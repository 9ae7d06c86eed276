//! How much memory a member takes on a device: one breakdown, which `check`, `plan` and the supervisor share.
//!
//! Bytes follow from the config, the same tables that loading goes by, and what the kernels say of their own packing and
//! scratch memory. Invariant: a need is what the member can reach, not what it starts with: the workspace grows to the
//! largest pass, so it is counted for the larger of `batch_tokens` and the largest tree that its family lays out.
//!
//! Not counted: the process itself, a member's tokenizer, the text and logits of requests that wait, a page's or an
//! allocator's rounding; and Linear weights of a package that stores them in F32, which no release does. Absent on
//! purpose: what is available, and what to do where it does not suffice (`supervisor`).

use std::fmt;

use synod_config::Profile;
use synod_kernels::DType;
use synod_kernels::cpu::{CpuDemand, Isa};

use super::parameters::Storage;
use super::qwen3_5::config::{BackboneConfig, LayerType, TensorKind, TensorSpec};
use crate::family::TreeBounds;
use crate::member::MemberConfig;

/// Bytes of an embedding row's digest (see [`crate::member::EmbeddingRows`]).
const ROW_DIGEST_BYTES: usize = 16;

/// What a process has on a card before it has allocated anything: the driver's context and the kernels' code.
///
/// Not yet measured here: an assumption of the usual size. What a predecessor measured bounds it: its peak of 2,955 MiB
/// for the 0.8B (spec: numbers.md) has 1,507 MiB beside the parameters, for context, library and activations together.
const CUDA_CONTEXT_BYTES: u64 = 512 << 20;

/// The workspace that cuBLASLt is given. Not yet measured here: the 32 MiB that NVIDIA's documentation of
/// `cublasSetWorkspace` recommends on Hopper, the most of any architecture.
const CUDA_LIBRARY_BYTES: u64 = 32 << 20;

/// What a member computes on.
#[derive(Clone, Copy, Debug)]
pub enum Hardware {
    /// Cores of a host. Weights are packed for the instruction set, and each thread has memory of its own.
    Cpu { isa: Isa, threads: usize },
    /// One card. No build computes on one yet: the workspace holds the forward's matrices in F32, without whatever the
    /// kernels will need for themselves.
    Cuda,
}

/// How a member is asked to compute.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub profile: Profile,
    /// Tokens that a pass holds unless a single tree has more.
    pub batch_tokens: usize,
    /// The largest tree of the member's family.
    pub tree: TreeBounds,
    pub prefix_cache_bytes: u64,
}

/// The bytes of one member on one device, by what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryNeed {
    /// Linear weights of the backbone.
    pub linear: u64,
    /// What else the backbone has, but the embedding.
    pub other: u64,
    /// The embedding table; on a CPU its rows stay in their file.
    pub embedding: u64,
    /// Candidate head and span heads.
    pub heads: u64,
    /// The digests that rows of the embedding's file are compared with.
    pub row_digests: u64,
    /// What the largest pass needs: matrices, and scratch memory of the operations.
    pub workspace: u64,
    /// What the deployment sets aside for prefixes.
    pub prefix_cache: u64,
    /// The device's context.
    pub context: u64,
    /// The workspace of the device's library.
    pub library: u64,
}

impl MemoryNeed {
    /// Names of the parts, in the order of [`MemoryNeed::parts`].
    pub const PARTS: [&str; 9] =
        ["linear", "other", "embedding", "heads", "digests", "workspace", "cache", "context", "library"];

    /// Bytes of each part, in the order of [`MemoryNeed::PARTS`].
    pub fn parts(&self) -> [u64; 9] {
        let Self { linear, other, embedding, heads, row_digests, workspace, prefix_cache, context, library } = *self;
        [linear, other, embedding, heads, row_digests, workspace, prefix_cache, context, library]
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.parts().iter().sum()
    }
}

/// `linear 950 + heads 13 + …` in MiB, without the parts that are nothing.
impl fmt::Display for MemoryNeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (name, bytes) in Self::PARTS.iter().zip(self.parts()).filter(|(_, bytes)| *bytes > 0) {
            write!(f, "{separator}{name} {}", mib(bytes))?;
            separator = " + ";
        }
        Ok(())
    }
}

/// Whole MiB that hold `bytes`.
pub fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

/// What a member takes on a device.
pub fn need(config: &MemberConfig, has_broad_head: bool, setting: &Setting, hardware: Hardware) -> MemoryNeed {
    let pass = Pass::largest(config, setting);
    let mut need = MemoryNeed { prefix_cache: setting.prefix_cache_bytes, ..MemoryNeed::default() };
    let broad = if has_broad_head { config.broad_inventory() } else { Vec::new() };
    for spec in config.inventory().iter().chain(&broad) {
        let bytes = match hardware {
            Hardware::Cpu { isa, .. } => cpu_bytes(spec, isa),
            Hardware::Cuda => spec.elements() * cuda_dtype(spec, setting.profile).bytes(),
        };
        *part_of(spec, &mut need) += bytes as u64;
    }
    match hardware {
        Hardware::Cpu { isa, threads } => {
            need.row_digests = (config.backbone_config.vocab_size * ROW_DIGEST_BYTES) as u64;
            need.workspace = pass.cpu_bytes(isa, threads) as u64;
        }
        Hardware::Cuda => {
            need.workspace = pass.matrix_bytes() as u64;
            (need.context, need.library) = (CUDA_CONTEXT_BYTES, CUDA_LIBRARY_BYTES);
        }
    }
    need
}

/// Floating-point operations that the backbone's parameters take for one token; attention comes on top.
pub fn flops_per_token(config: &MemberConfig) -> u64 {
    let computed = |spec: &&TensorSpec| spec.kind != TensorKind::Embedding;
    2 * config.backbone_config.inventory().iter().filter(computed).map(|spec| spec.elements() as u64).sum::<u64>()
}

fn is_head(spec: &TensorSpec) -> bool {
    !spec.name.starts_with("backbone.")
}

fn part_of<'a>(spec: &TensorSpec, need: &'a mut MemoryNeed) -> &'a mut u64 {
    match spec.kind {
        _ if is_head(spec) => &mut need.heads,
        TensorKind::Embedding => &mut need.embedding,
        TensorKind::Linear => &mut need.linear,
        _ => &mut need.other,
    }
}

/// Bytes of a loaded tensor: Linear weights as they are released, the backbone's in BF16 and the heads' in F32; what an
/// operation reads as a vector widened to F32. Both profiles have the same: BF16 is what the weights are anyway.
fn cpu_bytes(spec: &TensorSpec, isa: Isa) -> usize {
    if spec.kind == TensorKind::Embedding {
        return 0;
    }
    match Storage::of(spec) {
        Storage::Weight => {
            let dtype = if is_head(spec) { DType::F32 } else { DType::Bf16 };
            isa.weight_bytes(dtype, spec.shape[0], spec.shape[1])
        }
        Storage::Vector => spec.elements() * DType::F32.bytes(),
        Storage::Scalar | Storage::None => 0,
    }
}

/// The backbone is uniform in its profile's dtype, the heads are F32 always.
fn cuda_dtype(spec: &TensorSpec, profile: Profile) -> DType {
    match profile {
        Profile::Bf16 if !is_head(spec) => DType::Bf16,
        _ => DType::F32,
    }
}

/// The largest pass of a forward, and the widths of what it computes.
struct Pass<'a> {
    config: &'a BackboneConfig,
    /// Width of the heads' projections.
    head_dim: usize,
    tokens: usize,
    sequences: usize,
    longest_tokens: usize,
    /// Rows of the heads' right side, labels or queries. The left side has up to `tokens`: as many words.
    labels: usize,
    /// Logits of one pass.
    logits: usize,
}

impl<'a> Pass<'a> {
    fn largest(config: &'a MemberConfig, setting: &Setting) -> Self {
        let tree = setting.tree;
        let tokens = setting.batch_tokens.max(tree.tokens);
        Self {
            config: &config.backbone_config,
            head_dim: config.head_dim.max(config.span_head.d),
            tokens,
            // Every prefix has a block that continues it.
            sequences: 2 * tokens / tree.least_block_tokens,
            longest_tokens: tree.tokens,
            labels: tokens / tree.least_label_tokens,
            logits: tokens * tree.max_labels,
        }
    }

    fn has(&self, layer_type: LayerType) -> bool {
        self.config.layer_types.contains(&layer_type)
    }

    /// The matrices of the forward's workspace and of the heads.
    fn matrix_bytes(&self) -> usize {
        let hidden = self.config.hidden_size;
        let (gated_delta, attention) = (self.config.gated_delta_shape(), self.config.attention_shape());
        let of_linear = |width: usize| if self.has(LayerType::LinearAttention) { width } else { 0 };
        let of_full = |width: usize| if self.has(LayerType::FullAttention) { width } else { 0 };
        let keys = of_full(attention.num_key_value_heads * attention.head_dim);
        let value_heads = of_linear(gated_delta.value_heads);
        // `projected` and `mixed` change places in every pass, so both become as wide as either needs.
        let wide = of_linear(gated_delta.channels())
            .max(of_full(2 * attention.num_attention_heads * attention.head_dim))
            .max(self.config.intermediate_size);
        let z = keys.max(value_heads * gated_delta.value_dim);
        let backbone = 3 * hidden + 2 * wide + z + keys.max(value_heads) + value_heads;
        let head = 2 * hidden + 2 * self.head_dim;
        (self.tokens * backbone + (self.tokens + self.labels) * head) * DType::F32.bytes()
    }

    /// All that a pass needs on a CPU.
    fn cpu_bytes(&self, isa: Isa, threads: usize) -> usize {
        let config = self.config;
        let demand = CpuDemand {
            tokens: self.tokens,
            sequences: self.sequences,
            longest_tokens: self.longest_tokens,
            vocab_size: config.vocab_size,
            hidden_size: config.hidden_size,
            linear_inputs: self.linear_inputs(),
            gated_delta: self.has(LayerType::LinearAttention).then(|| config.gated_delta_shape()),
            attention: self.has(LayerType::FullAttention).then(|| config.attention_shape()),
        };
        // Means over labels are taken in F64, after the layers have given their own back.
        let passing = demand.passing_bytes(isa, threads).max(self.labels * config.hidden_size * size_of::<f64>());
        // Scores are kept, and copied into what is answered.
        let logits = 2 * self.logits * DType::F32.bytes();
        self.matrix_bytes() + demand.kept_bytes(isa) + passing + logits
    }

    fn linear_inputs(&self) -> usize {
        let inventory = self.config.inventory();
        let linear = inventory.iter().filter(|spec| spec.kind == TensorKind::Linear);
        linear.map(|spec| spec.shape[1]).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::vela::layout::LayoutParameters;
    use crate::member::synth::{Shape, SynthSpec};

    const TREE: TreeBounds =
        TreeBounds { tokens: 32_768, least_block_tokens: 32, least_label_tokens: 8, max_labels: 255 };

    fn config(shape: Shape) -> MemberConfig {
        SynthSpec { shape, layers: None, vocab: None, seed: 1 }.config().unwrap()
    }

    fn setting(profile: Profile) -> Setting {
        Setting { profile, batch_tokens: 24_576, tree: TREE, prefix_cache_bytes: 0 }
    }

    fn parameters(need: &MemoryNeed) -> u64 {
        need.linear + need.other + need.embedding + need.heads
    }

    const RELEASED: [(Shape, u64, u64); 3] = [
        (Shape::Vela08b, 752_393_024, 755_685_699),
        (Shape::Vela4b, 4_205_751_296, 4_213_980_675),
        (Shape::Vela9b, 7_936_684_544, 7_949_850_627),
    ];

    /// The totals of vela.md §1, and what numbers.md makes of them.
    #[test]
    fn f32_on_a_card_is_the_published_arithmetic() {
        for ((shape, _, total), gib) in RELEASED.into_iter().zip(["2.82", "15.70", "29.62"]) {
            let need = need(&config(shape), true, &setting(Profile::Fp32), Hardware::Cuda);
            assert_eq!(parameters(&need), 4 * total, "{shape}");
            assert_eq!(format!("{:.2}", parameters(&need) as f64 / f64::from(1 << 30)), gib, "{shape}");
        }
    }

    /// Uniform BF16 with F32 heads; without the broad head, one span head less (vela.md §1).
    #[test]
    fn bf16_on_a_card_halves_the_backbone_only() {
        for ((shape, backbone, total), span_head) in RELEASED.into_iter().zip([1_119_745, 2_798_593, 4_477_441]) {
            let config = config(shape);
            let heads = total - backbone;
            let both = need(&config, true, &setting(Profile::Bf16), Hardware::Cuda);
            assert_eq!(parameters(&both), 2 * backbone + 4 * heads, "{shape}");
            let one = need(&config, false, &setting(Profile::Bf16), Hardware::Cuda);
            assert_eq!(parameters(&one), 2 * backbone + 4 * (heads - span_head), "{shape}");
        }
    }

    /// Constants that nobody has measured must at least not contradict who measured the whole (numbers.md).
    #[test]
    fn the_assumed_constants_fit_into_a_predecessors_peaks() {
        for ((shape, ..), peak_mib) in RELEASED.into_iter().zip([2_955, 10_615, 17_975]) {
            let need = need(&config(shape), true, &setting(Profile::Bf16), Hardware::Cuda);
            assert!(mib(parameters(&need) + need.context + need.library) < peak_mib, "{shape}");
        }
    }

    /// On instruction sets whose panels divide every dimension but the value heads, all weights are as released: Linear
    /// BF16, everything else F32, the embedding not at all.
    #[test]
    fn a_cpu_keeps_linear_weights_in_bf16_and_the_embedding_in_its_file() {
        for (shape, backbone, total) in RELEASED {
            let config = config(shape);
            let hardware = Hardware::Cpu { isa: Isa::Portable, threads: 2 };
            let need = need(&config, true, &setting(Profile::Fp32), hardware);
            let elements = |kind: TensorKind| -> u64 {
                let specs = config.backbone_config.inventory().into_iter();
                specs.filter(|spec| spec.kind == kind).map(|spec| spec.elements() as u64).sum()
            };
            let (linear, embedding) = (elements(TensorKind::Linear), elements(TensorKind::Embedding));
            assert_eq!(need.linear, 2 * linear, "{shape}");
            assert_eq!(need.other, 4 * (backbone - linear - embedding), "{shape}");
            assert_eq!((need.embedding, need.row_digests), (0, 248_320 * 16));
            // `o.{weight,bias}` of both span heads and the `set_bias` are not on the device.
            let unused = 2 * (config.backbone_config.hidden_size as u64 + 1) + 1;
            assert_eq!(need.heads, 4 * (total - backbone - unused), "{shape}");
        }
    }

    /// numbers.md: 0.498 G parameters of the 0.8B without its embedding, about 1.0 GFLOP a token.
    #[test]
    fn work_is_two_operations_per_parameter() {
        assert_eq!(flops_per_token(&config(Shape::Vela08b)), 2 * (752_393_024 - 248_320 * 1024));
    }

    /// The figures of docs/deployment.md, in MiB.
    #[test]
    fn cards_need_what_the_documentation_says() {
        for (shape, fp32, bf16) in
            [(Shape::Vela08b, 6_285, 4_850), (Shape::Vela4b, 21_576, 13_554), (Shape::Vela9b, 37_603, 22_465)]
        {
            let total = |profile| {
                let setting = Setting { prefix_cache_bytes: 256 << 20, ..setting(profile) };
                mib(need(&config(shape), true, &setting, Hardware::Cuda).total())
            };
            assert_eq!((total(Profile::Fp32), total(Profile::Bf16)), (fp32, bf16), "{shape}");
        }
    }

    #[test]
    fn the_workspace_is_that_of_the_larger_of_batch_and_tree() {
        let config = config(Shape::Tiny);
        for hardware in [Hardware::Cuda, Hardware::Cpu { isa: Isa::best(), threads: 2 }] {
            let workspace = |batch_tokens| {
                need(&config, true, &Setting { batch_tokens, ..setting(Profile::Fp32) }, hardware).workspace
            };
            assert_eq!(workspace(1), workspace(TREE.tokens));
            assert!(workspace(TREE.tokens + 64) > workspace(TREE.tokens));
        }
    }

    #[test]
    fn a_need_is_written_with_its_parts() {
        let need = MemoryNeed { linear: 5 << 20, workspace: 1, ..MemoryNeed::default() };
        assert_eq!(need.to_string(), "linear 5 + workspace 1");
        assert_eq!(need.total(), (5 << 20) + 1);
    }

    /// The released layout's bounds are those that the tests above count with.
    #[test]
    fn the_released_layout_has_the_bounds_of_these_tests() {
        let parameters = LayoutParameters { max_length: 16_384, hybrid_rmax: 2048, window: 1800, stride: 1536 };
        assert_eq!(parameters.tree_bounds(255), TREE);
    }
}
