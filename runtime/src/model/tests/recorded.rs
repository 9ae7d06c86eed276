//! Every recorded case with logits: the recorded trees in, the oracle's logits out.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use synod_kernels::cpu::{CpuDevice, Isa};
use synod_kernels::reference::Reference;

use super::{LOGIT_GATE, cpu, distance, fixtures, load};
use crate::family::{Block, Logits, Readout, SpanHead, Tree};
use crate::model::Forward;

#[derive(Deserialize)]
struct Case {
    #[serde(default)]
    trees: Vec<RecordedTree>,
    /// Per question, its logits in every tree that reads it. Absent where the case is an error.
    logits: Option<HashMap<String, Vec<RecordedLogits>>>,
}

#[derive(Deserialize)]
struct RecordedTree {
    row: usize,
    window: Option<[usize; 2]>,
    prefix: Vec<u32>,
    blocks: Vec<RecordedBlock>,
}

#[derive(Deserialize)]
struct RecordedBlock {
    question: String,
    kind: String,
    head: Option<String>,
    replaced_by_windows: bool,
    ids: Vec<u32>,
    /// First token of every option or label.
    starts: Vec<u32>,
    /// The token after the last one of every option or label.
    ends: Vec<u32>,
    /// Index of a word in its part, and its position in the block.
    words: Vec<[u32; 2]>,
}

#[derive(Deserialize)]
struct RecordedLogits {
    row: usize,
    window: Option<[usize; 2]>,
    values: Rows,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Rows {
    Options(Vec<f64>),
    Words(Vec<Vec<f64>>),
}

impl RecordedBlock {
    fn block(&self) -> Block {
        let readout = if self.kind == "span" {
            let head = match self.head.as_deref() {
                Some("router") => SpanHead::Router,
                Some("broad") => SpanHead::Broad,
                other => panic!("unknown span head {other:?}"),
            };
            let labels = self.starts.iter().zip(&self.ends).map(|(&start, &end)| start..end).collect();
            Readout::Spans { head, words: self.words.iter().map(|word| word[1]).collect(), labels }
        } else {
            let options = self.ends.iter().map(|end| end - 1).collect();
            let query = self.ids.len() as u32 - 1;
            Readout::Candidates { options, query, set_bias: self.kind == "set" }
        };
        Block { ids: self.ids.clone(), readout }
    }

    /// Rows and columns that its logits must have.
    fn dimensions(&self) -> (usize, usize) {
        if self.kind == "span" { (self.words.len(), self.ends.len()) } else { (self.ends.len(), 1) }
    }
}

impl RecordedTree {
    fn read(&self) -> impl Iterator<Item = &RecordedBlock> {
        self.blocks.iter().filter(|block| !block.replaced_by_windows)
    }
}

impl Case {
    /// The largest distance of a logit from the recorded one, after every dimension has been compared.
    fn distance(mut self, model: &mut dyn Forward, name: &str) -> f64 {
        let trees: Vec<Tree> = self
            .trees
            .iter()
            .map(|tree| Tree {
                prefix: tree.prefix.as_slice().into(),
                blocks: tree.read().map(RecordedBlock::block).collect(),
            })
            .collect();
        let logits = model.forward(&trees.iter().collect::<Vec<_>>(), &|| true).unwrap();
        let mut recorded = self.logits.take().expect("a case with logits");
        let mut worst = 0.0_f64;
        assert_eq!(logits.len(), self.trees.len());
        for (tree, logits) in self.trees.iter().zip(&logits) {
            assert_eq!(logits.len(), tree.read().count());
            for (block, logits) in tree.read().zip(logits) {
                let of_question = recorded.get_mut(&block.question).expect("logits of the question");
                let place = of_question.iter().position(|of| of.row == tree.row && of.window == tree.window);
                let reference = of_question.swap_remove(place.expect("logits of the tree"));
                let at = format!("{name}: question {}, row {}, window {:?}", block.question, tree.row, tree.window);
                worst = worst.max(compare(logits, &reference.values, block.dimensions(), &at));
            }
        }
        assert!(recorded.values().all(Vec::is_empty), "{name}: every recorded block is read once");
        worst
    }
}

/// The largest distance of a block's logits from their references.
fn compare(logits: &Logits, reference: &Rows, (rows, columns): (usize, usize), at: &str) -> f64 {
    let reference: Vec<f64> = match reference {
        Rows::Options(options) => options.clone(),
        Rows::Words(words) => {
            assert!(words.iter().all(|word| word.len() == columns), "{at}: labels");
            words.concat()
        }
    };
    assert_eq!(logits.columns, columns, "{at}: columns");
    assert_eq!(logits.values.len(), rows * columns, "{at}: values");
    assert_eq!(reference.len(), rows * columns, "{at}: recorded values");
    assert!(logits.is_finite(), "{at}: a logit is not finite");
    let distances = logits.values.iter().zip(&reference).map(|(&found, &reference)| distance(found, reference));
    distances.fold(0.0, f64::max)
}

fn read_case(path: &Path) -> Case {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Checks the cases of `folder` that have logits, `only` those or all, and prints how far they were.
pub(super) fn check_cases(model: &mut dyn Forward, folder: &str, only: Option<&[&str]>) {
    let mut paths: Vec<PathBuf> = match only {
        Some(names) => names.iter().map(|name| fixtures(folder).join(format!("{name}.json"))).collect(),
        None => fs::read_dir(fixtures(folder)).unwrap().map(|entry| entry.unwrap().path()).collect(),
    };
    paths.sort();
    let (mut checked, mut worst) = (0, 0.0_f64);
    for path in paths {
        let case = read_case(&path);
        if case.logits.is_some() {
            let distance = case.distance(model, &path.display().to_string());
            assert!(distance <= LOGIT_GATE, "{}: a logit is {distance:e} from the recorded one", path.display());
            (checked, worst) = (checked + 1, worst.max(distance));
        }
    }
    assert!(checked > 0, "{folder}: no case");
    println!("{folder}: {checked} cases, largest distance of a logit {worst:.2e}, gate {LOGIT_GATE:.0e}");
}

#[test]
fn every_case_of_every_fixture_member() {
    for member in ["tiny-08b", "tiny-4b", "tiny-router", "tiny-short"] {
        check_cases(&mut load(cpu(2), member), &format!("vela/{member}"), None);
    }
}

/// The machine's fastest set is what the other tests run on: the others would only be tried on older machines.
#[test]
fn every_instruction_set_gives_the_recorded_logits() {
    let cores = CpuDevice::available_cores().unwrap();
    for isa in Isa::available() {
        println!("{}", isa.name());
        let device = CpuDevice::with_isa(&cores[..1], isa).unwrap();
        check_cases(&mut load(device, "tiny-08b"), "vela/tiny-08b", Some(&["golden"]));
    }
}

/// Shows that the layers are put together as the spec says even where a device's own errors would hide it.
#[test]
fn the_definition_gives_the_recorded_logits() {
    for member in ["tiny-08b", "tiny-4b", "tiny-router"] {
        check_cases(&mut load(Reference, member), &format!("vela/{member}"), Some(&["golden"]));
    }
}

/// The gate itself: one token less in the prefix, and one position off in a readout, are far outside of it.
#[test]
fn a_spoiled_case_is_outside_the_gate() {
    let mut model = load(Reference, "tiny-router");
    let case = || read_case(&fixtures("vela/tiny-router/candidates-only.json"));
    assert!(case().distance(&mut model, "as recorded") <= LOGIT_GATE);
    let mut shorter = case();
    shorter.trees[0].prefix.pop();
    assert!(shorter.distance(&mut model, "a shorter prefix") > 100.0 * LOGIT_GATE);
    let mut shifted = case();
    shifted.trees[0].blocks[0].ends[0] -= 1;
    assert!(shifted.distance(&mut model, "an option read one token early") > 100.0 * LOGIT_GATE);
}
