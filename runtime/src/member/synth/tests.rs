use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::os::unix::fs::symlink;
use std::{env, fs, thread};

use safetensors::SafeTensors;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::files::{header, shard, stream, stream_on};
use super::values::SynthTensor;
use super::*;
use crate::member::{Digest, MemberError, MemberFiles, Trust};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures");

fn spec(shape: Shape) -> SynthSpec {
    SynthSpec { shape, layers: Some(4), vocab: Some(2000), seed: 1 }
}

fn tensors(spec: &SynthSpec) -> Vec<SynthTensor> {
    let package = spec.package().unwrap();
    let inventory = package.config.inventory().into_iter().chain(package.config.broad_inventory());
    inventory.map(|tensor| SynthTensor::new(&package.config, package.seed, &tensor)).collect()
}

/// Digests of every tensor's bytes, as `oracle/synth.py --digests` recorded them.
fn recorded_digests(folder: &str) -> BTreeMap<String, String> {
    let text = fs::read_to_string(format!("{FIXTURES}/synth/{folder}/tensors.sha256.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Compares the stream of every tensor with the recorded digests; nothing is written.
fn check_digests(shape: Shape, folder: &str) {
    let digests: BTreeMap<_, _> = tensors(&spec(shape))
        .into_iter()
        .map(|tensor| {
            let mut hasher = Sha256::new();
            stream(std::slice::from_ref(&tensor), &mut |bytes| {
                hasher.update(bytes);
                Ok(())
            })
            .unwrap();
            (tensor.name, hex::encode(hasher.finalize()))
        })
        .collect();
    assert_eq!(digests, recorded_digests(folder));
}

/// A minute of work in an unoptimised build: for the full run only.
fn is_full(name: &str) -> bool {
    let full = env::var_os("SYNOD_FULL").is_some_and(|value| value == "1");
    if !full {
        // Past the capture of the test harness: a skipped test must be seen.
        let _ = writeln!(io::stderr(), "member::synth::tests::{name}: skipped, SYNOD_FULL is not 1");
    }
    full
}

#[test]
fn tiny_tensors_equal_the_recorded_ones() {
    check_digests(Shape::Tiny, "tiny");
}

#[test]
fn tensors_of_the_08b_shape_equal_the_recorded_ones() {
    check_digests(Shape::Vela08b, "0.8b-4");
}

#[test]
fn tensors_of_the_4b_shape_equal_the_recorded_ones() {
    if is_full("tensors_of_the_4b_shape_equal_the_recorded_ones") {
        check_digests(Shape::Vela4b, "4b-4");
    }
}

#[test]
fn tensors_of_the_9b_shape_equal_the_recorded_ones() {
    if is_full("tensors_of_the_9b_shape_equal_the_recorded_ones") {
        check_digests(Shape::Vela9b, "9b-4");
    }
}

/// A file that only this reader could read would make every test of the package circular.
#[test]
fn a_written_member_opens_and_its_files_hold_the_recorded_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("nested/member");
    let report = write(&spec(Shape::Tiny), &out, &()).unwrap();
    assert_eq!(report.model_name, "synth/tiny-4-2000-1");
    let package = MemberFiles::open(&out, Trust::Anchored(report.anchor)).unwrap();
    assert_eq!(package.model_name(), report.model_name);
    package.read_tensors::<MemberError>(&(), &mut |_, _| Ok(())).unwrap();

    let (mut digests, mut parameters) = (BTreeMap::new(), 0);
    for file in ["model-00001-of-00001.safetensors", "broad_head.safetensors"] {
        let bytes = fs::read(out.join(file)).unwrap();
        for (name, tensor) in SafeTensors::deserialize(&bytes).unwrap().iter() {
            digests.insert(name.to_owned(), Digest::of(tensor.data()).to_string());
            parameters += tensor.shape().iter().product::<usize>() as u64;
        }
    }
    assert_eq!(digests, recorded_digests("tiny"));
    assert_eq!(parameters, report.parameters);
    assert_eq!(fs::read_dir(folder.path().join("nested")).unwrap().count(), 1, "nothing is left beside it");
}

/// The fixture members were written by the oracle; shapes alone decide their headers and their index.
#[test]
fn headers_and_index_are_those_of_the_reference_writer() {
    for (member, count) in [("tiny-08b", 1), ("tiny-router", 2), ("tiny-4b", 3), ("tiny-short", 1)] {
        let folder = format!("{FIXTURES}/members/{member}");
        let config: MemberConfig =
            serde_json::from_str(&fs::read_to_string(format!("{folder}/config.json")).unwrap()).unwrap();
        let tensors = config.inventory().iter().map(|spec| SynthTensor::new(&config, 1, spec)).collect();
        let (index, shards) = shard(tensors, count);
        let expected = fs::read_to_string(format!("{folder}/model.safetensors.index.json")).unwrap();
        assert_eq!(format!("{index:#}\n"), expected);
        for (name, mut tensors) in shards {
            tensors.sort_by(SynthTensor::file_order);
            let (header, file) = (header(&tensors), fs::read(format!("{folder}/{name}")).unwrap());
            assert_eq!(header[8..].escape_ascii().to_string(), file[8..header.len()].escape_ascii().to_string());
            assert_eq!(header[..8], file[..8]);
        }
    }
}

#[test]
fn a_piece_of_a_tensor_is_the_same_by_itself() {
    for tensor in tensors(&spec(Shape::Tiny)).iter().filter(|tensor| tensor.elements > 300) {
        let size = tensor.dtype.bytes();
        let (mut whole, mut pieces) = (vec![0; 300 * size], vec![0; 300 * size]);
        tensor.fill(0, &mut whole);
        for (first, end) in [(0, 1), (1, 256), (256, 300)] {
            tensor.fill(first as u64, &mut pieces[first * size..end * size]);
        }
        assert_eq!(whole, pieces, "{}", tensor.name);
    }
}

#[test]
fn the_seed_decides_every_value_and_the_anchor() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, seed| {
        let out = folder.path().join(name);
        (write(&SynthSpec { seed, ..spec(Shape::Tiny) }, &out, &()).unwrap(), out)
    };
    let (first, second, other) = (write("first", 7), write("second", 7), write("other", 8));
    assert_eq!(first.0, second.0);
    assert_ne!(first.0.anchor, other.0.anchor);
    for entry in fs::read_dir(&first.1).unwrap() {
        let name = entry.unwrap().file_name();
        assert_eq!(fs::read(first.1.join(&name)).unwrap(), fs::read(second.1.join(&name)).unwrap(), "{name:?}");
    }
}

#[test]
fn a_folder_with_files_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    fs::create_dir(&out).unwrap();
    write(&spec(Shape::Tiny), &out, &()).expect("an empty folder is a place");
    let before = fs::read(out.join("MODEL_MANIFEST.json")).unwrap();
    let error = write(&SynthSpec { seed: 2, ..spec(Shape::Tiny) }, &out, &()).unwrap_err();
    assert!(matches!(error, SynthError::Place(PlaceError::NotEmpty { .. })), "{error}");
    assert_eq!(fs::read(out.join("MODEL_MANIFEST.json")).unwrap(), before);
}

/// A rename would fail on each, after all the work.
#[test]
fn a_place_that_cannot_become_a_folder_is_refused_before_the_work() {
    struct Unstarted;
    impl Progress for Unstarted {
        fn start(&self, _total_bytes: u64) {
            panic!("the work must not begin");
        }
        fn advance(&self, _bytes: u64) {}
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("file"), "x").unwrap();
    fs::create_dir(path("empty")).unwrap();
    symlink(path("empty"), path("link")).unwrap();
    symlink(path("absent"), path("dangling")).unwrap();
    for name in ["file", "link", "dangling"] {
        let error = write(&spec(Shape::Tiny), &path(name), &Unstarted).unwrap_err();
        assert!(matches!(error, SynthError::Place(PlaceError::NotAFolder { .. })), "{error}");
    }
    let error = write(&spec(Shape::Tiny), &path("file/nested"), &Unstarted).unwrap_err();
    assert!(matches!(error, SynthError::Place(PlaceError::Io { .. })), "{error}");
    assert_eq!(fs::read(path("file")).unwrap(), b"x");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4, "nothing has come");
}

#[test]
fn a_thread_that_cannot_be_started_is_an_error() {
    // No machine has the address space for such a stack.
    let builder = || thread::Builder::new().stack_size(1 << 60);
    stream_on(builder, &tensors(&spec(Shape::Tiny)), &mut |_| panic!("nothing can have been made")).unwrap_err();
}

/// `config.json` holds what the recorded members were made of; the recorder's own file is not kept.
#[test]
fn the_tiny_config_is_the_fixtures_but_for_its_name() {
    let fixture = fs::read_to_string(format!("{FIXTURES}/members/tiny-08b/config.json")).unwrap();
    let mut fixture: Value = serde_json::from_str(&fixture).unwrap();
    fixture["model_name"] = "synth/tiny-4-2000-1".into();
    let package = SynthSpec { shape: Shape::Tiny, layers: None, vocab: None, seed: 1 }.package().unwrap();
    assert_eq!(package.config_json, fixture);
}
