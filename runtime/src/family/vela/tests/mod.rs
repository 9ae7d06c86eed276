//! The whole of a family's work against the recorded cases of `tests/fixtures` (made by the oracle), and the rules of
//! `/v1/decisions` against requests without the questions that fail.

mod answers;
mod bounds;
mod decisions;
mod recorded;
mod trees;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value as Json;

use super::*;
use crate::family::{Logits, Pending, Plan, Readout};
use crate::replay;
use crate::wire::json::parse;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures");

/// A recorded case with the member that it was recorded on.
pub(super) struct Case {
    name: String,
    vela: Arc<Vela>,
    /// The file as JSON, for what a replay does not look at.
    recorded: Json,
    replay: replay::Case,
    state: Value,
    questions: Vec<(String, Value)>,
}

impl Case {
    fn recorded(&self, key: &str) -> Option<&Json> {
        self.recorded.get(key)
    }

    fn planned(&self, strictness: Strictness) -> (Plan, Unanswered) {
        planned(&self.vela, &self.state, &self.questions, strictness)
    }

    /// The recorded logits, in the order of the plan.
    fn logits(&self) -> Vec<Vec<Logits>> {
        self.replay.logits().unwrap().to_vec()
    }
}

/// [`Family::render`], with what is pending still open to view.
fn planned(vela: &Vela, state: &Value, questions: &[(String, Value)], strictness: Strictness) -> (Plan, Unanswered) {
    vela.plan(vela.lay_out(state, questions, strictness).unwrap())
}

/// Every recorded case, in order of their paths.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for folder in ["vela", "synth"] {
        for member in entries(&Path::new(FIXTURES).join(folder)) {
            let member_name = member.file_name().unwrap().to_str().unwrap().to_owned();
            if !member.is_dir() || member_name == "requests" {
                continue;
            }
            let vela = vela(folder, &member_name);
            for path in entries(&member).into_iter().filter(|path| !path.ends_with("tensors.sha256.json")) {
                cases.push(case(&path, Arc::clone(&vela)));
            }
        }
    }
    assert_eq!(cases.len(), 85, "a case is missing, or a new one is not counted");
    cases
}

/// The case of a path below `tests/fixtures`.
fn named_case(name: &str) -> Case {
    let [folder, member, _] = name.split('/').collect::<Vec<_>>()[..] else { panic!("{name}") };
    case(&Path::new(FIXTURES).join(name), vela(folder, member))
}

fn case(path: &Path, vela: Arc<Vela>) -> Case {
    let recorded: Json = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let request = parse(recorded["request_text"].as_str().unwrap().as_bytes()).unwrap();
    let name = path.strip_prefix(FIXTURES).unwrap().display().to_string();
    let replay = replay::Case::read(path).unwrap();
    Case { name, vela, recorded, replay, state: request_state(&request), questions: request_questions(&request) }
}

fn request_state(request: &Value) -> Value {
    request.as_object().unwrap().get("state").unwrap().clone()
}

fn request_questions(request: &Value) -> Vec<(String, Value)> {
    let questions = request.as_object().unwrap().get("questions").unwrap().as_object().unwrap();
    questions.iter().map(|(id, body)| (id.to_owned(), body.clone())).collect()
}

/// The member of a folder: synthetic ones borrow the tokenizer and the calibration of `tiny-08b` (synth.md).
fn vela(folder: &str, member: &str) -> Arc<Vela> {
    let is_synthetic = folder == "synth";
    let files = Path::new(FIXTURES).join("members").join(if is_synthetic { "tiny-08b" } else { member });
    let read = |name: &str| fs::read(files.join(name)).unwrap();
    let config: Json = serde_json::from_slice(&read("config.json")).unwrap();
    let of = |value: &Json| value.as_u64().unwrap() as usize;
    let spans = &config["span_layout"];
    let layout = if is_synthetic && member != "tiny" {
        LayoutParameters { max_length: 16_384, hybrid_rmax: 2_048, window: 1_800, stride: 1_536 }
    } else {
        LayoutParameters {
            max_length: of(&config["max_length"]),
            hybrid_rmax: of(&spans["hybrid_rmax"]),
            window: of(&spans["window"]),
            stride: of(&spans["stride"]),
        }
    };
    let vela = Vela::new(VelaFiles {
        tokenizer: &read("tokenizer.json"),
        calibration: &read("calibration.json"),
        layout,
        vocab_size: of(&config["backbone_config"]["vocab_size"]),
        has_broad: files.join("broad_head.safetensors").exists(),
        noul_calibration: false,
        limits: Limits::default(),
    });
    Arc::new(vela.unwrap())
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// Logits of the planned shapes, `fill` giving each value from its tree, its block and its place.
fn logits_of(plan: &Plan, mut fill: impl FnMut(usize, usize, usize) -> f32) -> Vec<Vec<Logits>> {
    let mut block_logits = |tree: usize, block: usize, readout: &Readout| {
        let (rows, columns) = match readout {
            Readout::Candidates { options, .. } => (options.len(), 1),
            Readout::Spans { words, labels, .. } => (words.len(), labels.len()),
        };
        let values = (0..rows * columns).map(|place| fill(tree, block, place)).collect();
        Logits { values, columns }
    };
    let trees = plan.trees.iter().enumerate();
    trees
        .map(|(t, tree)| {
            let blocks = tree.blocks.iter().enumerate();
            blocks.map(|(b, block)| block_logits(t, b, &block.readout)).collect()
        })
        .collect()
}

/// Panics unless `work(8)` takes less than 32 times as long as `work(1)`: in quadratic time it would be 64 times. A
/// busy machine may disturb a try, so the best of five counts.
pub(super) fn assert_linear(name: &str, mut work: impl FnMut(usize)) {
    let mut time = |scale| -> Duration {
        let started = Instant::now();
        work(scale);
        started.elapsed()
    };
    let tries: Vec<_> = (0..5).map(|_| (time(1), time(8))).collect();
    assert!(tries.iter().any(|&(small, large)| large < small * 32), "{name} takes {tries:?}");
}

/// What cannot serve is refused when it is loaded, not when it is asked.
#[test]
fn files_that_do_not_go_together_are_refused() {
    let read = |name: &str| fs::read(Path::new(FIXTURES).join("members").join(name)).unwrap();
    let (tokenizer, calibration) = (read("tiny-router/tokenizer.json"), read("tiny-router/calibration.json"));
    let layout = LayoutParameters { max_length: 4_096, hybrid_rmax: 96, window: 80, stride: 64 };
    let files = VelaFiles {
        tokenizer: &tokenizer,
        calibration: &calibration,
        layout,
        vocab_size: 2_000,
        has_broad: false,
        noul_calibration: false,
        limits: Limits::default(),
    };
    let error = |files: VelaFiles<'_>| Vela::new(files).err();
    assert_eq!(error(files), None);
    assert_eq!(error(VelaFiles { has_broad: true, ..files }), Some(VelaError::NoBroadCalibration));
    let no_stride = LayoutParameters { stride: 0, ..layout };
    assert_eq!(error(VelaFiles { layout: no_stride, ..files }), Some(VelaError::ZeroLayout { key: "stride" }));
    let no_window = LayoutParameters { window: 0, ..layout };
    assert_eq!(error(VelaFiles { layout: no_window, ..files }), Some(VelaError::ZeroLayout { key: "window" }));
    let unrepeated = LayoutParameters { window: 97, ..layout };
    let expected = VelaError::WindowLayout { window: 97, hybrid_rmax: 96 };
    assert_eq!(error(VelaFiles { layout: unrepeated, ..files }), Some(expected));
    let expected = VelaError::Tokenizer(TokenizerError::TokenId { vocab_size: 1_000, found: 1_999 });
    assert_eq!(error(VelaFiles { vocab_size: 1_000, ..files }), Some(expected));
    assert!(matches!(error(VelaFiles { tokenizer: b"{}", ..files }), Some(VelaError::Tokenizer(_))));
    assert!(matches!(error(VelaFiles { calibration: b"[]", ..files }), Some(VelaError::Calibration(_))));
}
