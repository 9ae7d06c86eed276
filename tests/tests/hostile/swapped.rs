//! Files that change between being opened and being used: what is used is what was hashed.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;

use synod::member::{MemberError, MemberFiles};
use synod_tests::fixtures;

use super::copy::Copy;
use super::{Exports, SHARD, Sound};

/// The digest of every tensor that reading shows.
fn tensors(files: &MemberFiles) -> Result<BTreeMap<String, String>, MemberError> {
    let mut tensors = BTreeMap::new();
    let rows = files.read_tensors::<MemberError>(&(), &mut |name, tensor| {
        tensors.insert(name.to_owned(), fixtures::sha256(tensor.bytes));
        Ok(())
    });
    rows.map(|_| tensors)
}

fn check(sound: &Sound, exports: &Exports, shard: &str) {
    let (source, manifest) = exports.path(sound);
    let copy = Copy::of(&source, manifest);
    let expected = tensors(&copy.open().expect("it is sound")).expect("it is sound");

    // Another file under the name: the one that was opened is read.
    let files = copy.open().expect("it is sound");
    let mut other = copy.bytes(shard);
    *other.last_mut().expect("data") ^= 1;
    copy.write("../other", &other);
    fs::rename(copy.path("../other"), copy.path(shard)).expect("a file can be renamed");
    copy.write("calibration.json", "{}");
    assert_eq!(tensors(&files).expect("its own files are as they were"), expected);
    assert_ne!(files.calibration(), b"{}", "a small file is read once");
    drop(files);

    // Other bytes in the file that was opened: the tensors may have been shown, but they are not trusted.
    let copy = Copy::of(&source, manifest);
    let files = copy.open().expect("it is sound");
    let file = OpenOptions::new().write(true).open(copy.path(shard)).expect("a file to change");
    file.write_all_at(&other[other.len() - 1..], other.len() as u64 - 1).expect("there is room");
    let refusal = tensors(&files).expect_err("it was changed").to_string();
    assert!(refusal.starts_with(&format!("{shard}: expected SHA-256 ")), "{refusal}");

    // Less than there was.
    file.set_len(other.len() as u64 / 2).expect("a file can be cut");
    let refusal = tensors(&files).expect_err("it was cut").to_string();
    assert!(refusal.starts_with(&format!("{shard}: ")), "{refusal}");
}

#[test]
fn a_file_that_is_swapped_between_hashing_and_use_is_not_used() {
    let exports = Exports::new();
    check(&Sound::OneShard, &exports, SHARD);
    check(&Sound::Bundle, &exports, "model/model-00001-of-00001.safetensors");
    check(&Sound::Bundle, &exports, "heads.safetensors");
}
