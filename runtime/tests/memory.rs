//! What a member is said to take, against what it takes: every byte is counted by the allocator of this process.
//!
//! One test, alone in its process: another one beside it would be counted with it.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use peak_alloc::PeakAlloc;
use synod::family::{Block, Readout, SpanHead, Tree, TreeBounds};
use synod::member::{Anchor, Digest, MemberFiles, Trust};
use synod::model::memory::{Hardware, MemoryNeed, Setting, need};
use synod::model::{Forward, Model};
use synod_config::Profile;
use synod_kernels::cpu::{CpuDevice, Isa};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Small enough to compute in seconds, large enough that a token's bytes outweigh what is not reckoned with.
const TREE: TreeBounds = TreeBounds { tokens: 4096, least_block_tokens: 32, least_label_tokens: 8, max_labels: 255 };
/// Tokens of the fixtures' vocabulary.
const VOCABULARY: u32 = 2000;

/// Less than the prefixes below need: the cache is filled to its bound.
const PREFIX_CACHE_BYTES: u64 = 4 << 20;

/// Names, maps and lists that nobody reckons with: so much more may be taken than foretold.
const MAX_EXCESS: f64 = 0.01;
/// No batch reaches every bound at once: so much less may be taken.
const MAX_SHORTFALL: f64 = 0.03;

fn ids(first: u32, len: usize) -> impl Iterator<Item = u32> {
    (first..).take(len).map(|id| id % VOCABULARY)
}

fn candidates(prefix: Arc<[u32]>, block_tokens: usize) -> Tree {
    let last = block_tokens as u32 - 1;
    let readout = Readout::Candidates { options: (0..last).collect(), query: last, set_bias: true };
    Tree { prefix, blocks: vec![Block { ids: ids(7, block_tokens).collect(), readout }] }
}

/// As many labels as a block may have, of as few tokens as they may, and `words` words at one token.
fn labels(prefix: u32, words: usize) -> Tree {
    let len = TREE.least_label_tokens as u32;
    let labels: Vec<Range<u32>> = (0..TREE.max_labels as u32).map(|label| label * len..(label + 1) * len).collect();
    let tokens = TREE.max_labels * TREE.least_label_tokens;
    let readout = Readout::Spans { head: SpanHead::Router, words: vec![0; words], labels };
    Tree { prefix: Arc::from([prefix]), blocks: vec![Block { ids: ids(0, tokens).collect(), readout }] }
}

/// Trees that between them reach every bound: passes of the most labels and logits, of the longest sequence, and of the
/// most sequences with the emptiest last panels of keys.
fn trees() -> Vec<Tree> {
    let (block, per_tree) = (33, 34);
    // Prefixes that no tree below has, or those would join them.
    let mut trees = vec![labels(1000, TREE.tokens / 2), labels(1001, TREE.tokens / 2)];
    trees.push(candidates(ids(0, TREE.tokens - block).collect(), block));
    trees.extend((0..TREE.tokens / per_tree).map(|tree| candidates(ids(tree as u32, 1).collect(), block)));
    trees
}

fn open(member: &str) -> MemberFiles {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/members").join(member);
    let manifest = fs::read(folder.join("MODEL_MANIFEST.json")).expect("the fixture has a manifest");
    MemberFiles::open(&folder, Trust::Anchored(Anchor(Digest::of(&manifest)))).expect("the fixture is sound")
}

fn assert_foretold(member: &str, what: &str, found: usize, foretold: u64) {
    let excess = found as f64 / foretold as f64 - 1.0;
    println!("{member}: {what}: {found} bytes, foretold {foretold}: {:+.2} %", excess * 100.0);
    assert!((-MAX_SHORTFALL..=MAX_EXCESS).contains(&excess), "{member}: {what}: {found} bytes, foretold {foretold}");
}

/// Loads a member and has it compute the largest passes; compares what is allocated with what is foretold.
fn check(member: &str) {
    let files = open(member);
    let cores = CpuDevice::available_cores().expect("the system names its cores");
    let cores: Vec<usize> = cores.into_iter().cycle().take(2).collect();
    let setting = Setting {
        profile: Profile::Fp32,
        batch_tokens: TREE.tokens,
        tree: TREE,
        prefix_cache_bytes: PREFIX_CACHE_BYTES,
    };
    // What is set aside for prefixes is not taken before there are any.
    let hardware = Hardware::Cpu { isa: Isa::best(), threads: cores.len() };
    let foretold: MemoryNeed = need(files.config(), files.has_broad_head(), &setting, hardware);
    let trees = trees();
    let trees: Vec<&Tree> = trees.iter().collect();
    let device = CpuDevice::new(&cores).expect("the cores are available");

    let before = ALLOCATOR.current_usage();
    let mut model =
        Model::load(device, &files, setting.batch_tokens, setting.prefix_cache_bytes, &()).expect("the fixture loads");
    let loaded = ALLOCATOR.current_usage() - before;
    assert_foretold(member, "loaded", loaded, foretold.total() - foretold.workspace - foretold.prefix_cache);

    // Whatever the first call has left behind, the second one meets.
    for _ in 0..2 {
        ALLOCATOR.reset_peak_usage();
        model.forward(&trees, &|| true).expect("the trees are sound");
    }
    assert_foretold(member, "in a forward", ALLOCATOR.peak_usage() - before, foretold.total());
    let tally = model.tally();
    assert!(tally.prefix_evictions > 0 && tally.prefix_cache_bytes <= PREFIX_CACHE_BYTES, "{member}: {tally:?}");
}

/// On the fastest instruction set of this machine: what the others pack differently, the kernels' own tests hold to the byte.
///
/// A formula that forgets something starts a member where the kernel will kill it; one that counts too much refuses a
/// machine that would do.
#[test]
fn a_member_takes_what_is_foretold() {
    for member in ["tiny-08b", "tiny-4b", "tiny-router"] {
        check(member);
    }
}
