//! Recorded cases at the real head sizes, through synthetic members (spec: synth.md): the fixture members have small
//! heads, and fast paths are written for the real ones.
//!
//! What takes more than a few seconds runs only where `SYNOD_FULL` is `1`, and says so otherwise.

use std::env;
use std::io::{self, Write};

use super::cpu;
use super::recorded::check_cases;
use crate::member::synth::{self, Shape, SynthSpec};
use crate::member::{MemberFiles, Trust};
use crate::model::Model;

const VOCAB: usize = 2000;

/// Checks `cases` of the member of `shape` and `layers`, made for this test.
fn check(shape: Shape, layers: usize, folder: &str, cases: &[&str]) {
    let spec = SynthSpec { shape, layers: Some(layers), vocab: Some(VOCAB), seed: 1 };
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("member");
    let report = synth::write(&spec, &path, &()).unwrap();
    let package = MemberFiles::open(&path, Trust::Anchored(report.anchor)).unwrap();
    let mut model = Model::load(cpu(2), &package, 24_576, 0, &()).unwrap();
    check_cases(&mut model, &format!("synth/{folder}"), Some(cases));
}

/// Whether everything is to run. Says so if not, past the capture that would hide it in a test that passes.
fn is_full(name: &str) -> bool {
    let is_full = env::var_os("SYNOD_FULL").is_some_and(|value| value == "1");
    if !is_full {
        writeln!(io::stderr(), "model::tests::synthetic::{name}: skipped, SYNOD_FULL is not 1").unwrap();
    }
    is_full
}

#[test]
fn tiny() {
    check(Shape::Tiny, 4, "tiny", &["golden", "router"]);
}

#[test]
fn heads_of_the_08b() {
    check(Shape::Vela08b, 4, "0.8b-4", &["golden", "router"]);
}

/// Windows of 1,800 tokens: the longest sequences of any recorded case.
#[test]
fn windows_of_the_08b() {
    if is_full("windows_of_the_08b") {
        check(Shape::Vela08b, 4, "0.8b-4", &["windows"]);
    }
}

#[test]
fn depth_of_the_08b() {
    if is_full("depth_of_the_08b") {
        check(Shape::Vela08b, 24, "0.8b-24", &["golden", "router"]);
    }
}

#[test]
fn heads_of_the_4b() {
    if is_full("heads_of_the_4b") {
        check(Shape::Vela4b, 4, "4b-4", &["golden", "router"]);
    }
}

#[test]
fn heads_of_the_9b() {
    if is_full("heads_of_the_9b") {
        check(Shape::Vela9b, 4, "9b-4", &["golden", "router"]);
    }
}
