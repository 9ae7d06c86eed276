//! Export, and what serves afterwards: a bundle answers as its package does, and half a member or a rounded one says so.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use synod_tests::deployment::Deployment;
use synod_tests::fixtures::{self, Outcome};
use synod_tests::server::{Finished, Server, run};
use tempfile::TempDir;

const SYNOD: &str = env!("CARGO_BIN_EXE_synod-tested");

fn folder() -> TempDir {
    tempfile::tempdir().expect("there is a place for temporary files")
}

/// A command in a folder of its own, which the harness writes to.
fn synod(arguments: &[&str], stdin: &str) -> Finished {
    run(SYNOD, arguments, folder().path(), stdin)
}

fn package(member: &str) -> PathBuf {
    fixtures::path("members").join(member)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are UTF-8")
}

/// `synod export vela` of a fixture member into `out`.
fn export(member: &str, out: &Path, options: &[&str]) -> Finished {
    let package = package(member);
    let anchor = fixtures::anchor(&package);
    let mut arguments = vec!["export", "vela", "--package", text(&package), "--out", text(out), "--anchor", &anchor];
    arguments.extend(options);
    synod(&arguments, "")
}

fn exported(member: &str, out: &Path, options: &[&str]) -> String {
    let finished = export(member, out, options);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    finished.stdout
}

fn verify(path: &Path, anchor: &str) -> Finished {
    synod(&["verify", text(path), "--anchor", anchor], "")
}

/// One line on stderr that has `parts`, nothing on stdout, and a code above zero.
fn fails_in_one_line(finished: &Finished, parts: &[&str]) {
    assert!(finished.code.is_some_and(|code| code > 0), "ended with {:?}: {}", finished.code, finished.stderr);
    assert_eq!((finished.stdout.as_str(), finished.stderr.trim_end().lines().count()), ("", 1), "{}", finished.stderr);
    for part in parts {
        assert!(finished.stderr.contains(part), "{part} is not in: {}", finished.stderr);
    }
}

/// Name to dtype, shape and bytes of every tensor of the weight files in a folder.
fn tensors(folder: &Path) -> BTreeMap<String, (safetensors::Dtype, Vec<usize>, Vec<u8>)> {
    let mut tensors = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("the folder can be read") {
        let path = entry.expect("the folder can be read").path();
        if path.extension().is_none_or(|extension| extension != "safetensors") {
            continue;
        }
        let bytes = fs::read(&path).expect("the file can be read");
        let file = safetensors::SafeTensors::deserialize(&bytes).expect("the crate reads what was written");
        for (name, view) in file.iter() {
            let tensor = (view.dtype(), view.shape().to_vec(), view.data().to_vec());
            assert!(tensors.insert(name.to_owned(), tensor).is_none(), "{name} twice");
        }
    }
    tensors
}

fn names(folder: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<fs::DirEntry>| {
        entry.expect("the folder can be read").file_name().to_string_lossy().into_owned()
    };
    let mut names: Vec<_> = fs::read_dir(folder).expect("the folder can be read").map(name).collect();
    names.sort();
    names
}

/// Every recorded request of the member, to the package and to its bundle: the same bytes.
#[test]
fn a_faithful_bundle_answers_as_its_package_bit_for_bit() {
    let folder = folder();
    for member in ["tiny-4b", "tiny-router"] {
        let bundle = folder.path().join(member);
        let account = exported(member, &bundle, &[]);
        assert!(account.contains(&fixtures::anchor(&bundle)), "{account}");
        let deployment = Deployment::default().member("package", &package(member)).member("bundle", &bundle);
        let server = Server::start(SYNOD, &deployment);
        let mut answered = 0;
        for case in fixtures::cases_in("vela", member) {
            if matches!(case.outcome, Outcome::Answered(_)) {
                let of_package = server.ask(case.request_for("package"));
                let of_bundle = server.ask(case.request_for("bundle"));
                let expected = of_package.text().replacen("\"model\":\"package\"", "\"model\":\"bundle\"", 1);
                assert_eq!(of_bundle.text(), expected, "{}", case.name);
                answered += 1;
            }
        }
        assert!(answered > 2, "{member}: {answered} cases");
    }
}

#[test]
fn both_profiles_come_of_one_run_with_every_value_where_it_belongs() {
    let folder = folder();
    let out = folder.path().join("bundle");
    exported("tiny-4b", &out, &["--profile", "both"]);
    let mut released = tensors(&package("tiny-4b"));
    let faithful = tensors(&out.join("model"));
    let rounded = tensors(&out.join("bf16/model"));
    assert_eq!(faithful.keys().collect::<Vec<_>>(), rounded.keys().collect::<Vec<_>>());
    for (name, stored) in &faithful {
        let name_in_package = name.replacen("model.", "backbone.", 1);
        let original = released.remove(&name_in_package).expect("every tensor of the bundle is of the package");
        assert_eq!(*stored, original, "{name}");
        let (dtype, shape, bytes) = &rounded[name];
        assert_eq!((*dtype, shape), (safetensors::Dtype::BF16, &original.1), "{name}");
        let expected: Vec<u8> = if original.0 == safetensors::Dtype::BF16 {
            original.2
        } else {
            original.2.as_chunks().0.iter().flat_map(|value| nearest_bf16(*value)).collect()
        };
        assert_eq!(*bytes, expected, "{name}");
    }
    for heads in [tensors(&out), tensors(&out.join("bf16"))] {
        assert_eq!(heads.len(), 37);
        assert_eq!(heads, released);
    }
    for bundle in [&out, &out.join("bf16")] {
        for file in ["calibration.json", "tokenizer.json", "tokenizer_config.json"] {
            assert_eq!(fs::read(bundle.join(file)).unwrap(), fs::read(package("tiny-4b").join(file)).unwrap());
        }
        let finished = verify(bundle, &fixtures::anchor(bundle));
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    }
    assert_eq!(names(folder.path()), ["bundle"], "nothing is left beside it");
}

/// Round to nearest, ties to even, on the bits: the definition, apart from the crate that the export uses.
fn nearest_bf16(value: [u8; 4]) -> [u8; 2] {
    let bits = u32::from_le_bytes(value);
    let rounded = bits + 0x7fff + (bits >> 16 & 1);
    ((rounded >> 16) as u16).to_le_bytes()
}

#[test]
fn the_config_of_the_backbone_stands_at_the_root_and_the_manifest_lists_everything() {
    let folder = folder();
    let out = folder.path().join("bundle");
    exported("tiny-router", &out, &["--profile", "both"]);
    let read = |path: PathBuf| -> Value { serde_json::from_slice(&fs::read(path).unwrap()).unwrap() };
    let config = read(package("tiny-router").join("config.json"));
    assert_eq!(read(out.join("model/config.json")), config["backbone_config"]);
    let manifest = read(out.join("manifest.json"));
    assert_eq!(manifest["serves"], serde_json::json!(["fp32", "bf16"]));
    assert_eq!(read(out.join("bf16/manifest.json"))["serves"], serde_json::json!(["bf16"]));
    for (name, entry) in manifest["files"].as_object().expect("files are listed") {
        let bytes = fs::read(out.join(name)).expect("every listed file is there");
        assert_eq!(entry["size_bytes"], bytes.len(), "{name}");
        assert_eq!(entry["sha256"], fixtures::sha256(&bytes), "{name}");
    }
    assert!(manifest["files"].get("bf16/heads.safetensors").is_some());
    for (name, digest) in manifest["inputs"].as_object().expect("inputs are listed") {
        assert_eq!(*digest, fixtures::sha256(&fs::read(package("tiny-router").join(name)).unwrap()), "{name}");
    }
}

#[test]
fn half_a_member_and_a_rounded_one_are_verified_and_not_served_exactly() {
    let folder = folder();
    let request = r#"{"state":"a","questions":{"q":{"type":"noul","instructions":"b"}}}"#;
    for (name, options, part) in [
        ("executor", ["--executor-only"].as_slice(), "expected a whole member, found no heads"),
        ("heads", &["--heads-only"], "expected a whole member, found no backbone"),
        ("rounded", &["--profile", "bf16"], "serves: expected fp32, found bf16"),
    ] {
        let out = folder.path().join(name);
        exported("tiny-08b", &out, options);
        let anchor = fixtures::anchor(&out);
        let finished = verify(&out, &anchor);
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
        let ask = synod(&["ask", "--member", text(&out), "--anchor", &anchor, "-"], request);
        fails_in_one_line(&ask, &["manifest.json: ", part]);
    }
    assert!(!folder.path().join("executor/heads.safetensors").exists());
    assert!(!folder.path().join("heads/model").exists());
}

#[test]
fn a_place_that_cannot_take_a_bundle_is_refused_and_left_as_it_was() {
    let folder = folder();
    let full = folder.path().join("full");
    fs::create_dir(&full).unwrap();
    fs::write(full.join("notes.txt"), "mine").unwrap();
    fails_in_one_line(&export("tiny-router", &full, &[]), &["full: expected an absent or empty folder"]);
    assert_eq!(names(&full), ["notes.txt"]);

    let inside = package("tiny-router").join("bundle");
    fails_in_one_line(&export("tiny-router", &inside, &[]), &["expected a folder outside the package"]);
    assert!(!inside.exists());

    let bundle = folder.path().join("bundle");
    exported("tiny-router", &bundle, &[]);
    let anchor = fixtures::anchor(&bundle);
    let out = folder.path().join("again");
    let arguments = ["export", "vela", "--package", text(&bundle), "--out", text(&out), "--anchor", &anchor];
    fails_in_one_line(&synod(&arguments, ""), &["bundle: expected a package, found a bundle"]);
    assert_eq!(names(folder.path()), ["bundle", "full"]);
}

/// A folder that does not exist yet hides where `..` leads.
#[test]
fn a_way_back_into_the_package_is_refused_before_anything_is_made() {
    let folder = folder();
    let copy = folder.path().join("package");
    fs::create_dir(&copy).unwrap();
    for name in names(&package("tiny-router")) {
        fs::copy(package("tiny-router").join(&name), copy.join(&name)).unwrap();
    }
    let before = names(&copy);
    let (anchor, out) = (fixtures::anchor(&copy), folder.path().join("missing/../package/bundle"));
    let arguments = ["export", "vela", "--package", text(&copy), "--out", text(&out), "--anchor", &anchor];
    fails_in_one_line(&synod(&arguments, ""), &["expected a path without .., found one"]);
    assert_eq!((names(&copy), names(folder.path())), (before, vec!["package".to_owned()]));
}

/// Whoever loads a half again would find out; whoever only verifies it must, too.
#[test]
fn what_a_half_says_of_itself_is_verified() {
    type Edit = fn(&mut Value);
    let folder = folder();
    let cases: [(&str, &str, Edit); 3] = [
        ("--heads-only", "contents: expected model, heads or both, found neither", |manifest| {
            manifest["contents"] = serde_json::json!([]);
        }),
        ("--heads-only", "tensors: expected files of the contents, found model/ghost.safetensors", |manifest| {
            manifest["tensors"]["model/ghost.safetensors"] = serde_json::json!({});
        }),
        ("--executor-only", "expected model/model-00001-of-00001.safetensors, found no such file", |manifest| {
            let tensors = manifest["tensors"].as_object_mut().expect("tensors are listed");
            tensors.remove("model/model-00001-of-00001.safetensors").expect("the weight file is listed");
        }),
    ];
    for (number, (option, expected, edit)) in cases.into_iter().enumerate() {
        let out = folder.path().join(number.to_string());
        exported("tiny-08b", &out, &[option]);
        let path = out.join("manifest.json");
        let mut manifest: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        edit(&mut manifest);
        fs::write(&path, manifest.to_string()).unwrap();
        fails_in_one_line(&verify(&out, &fixtures::anchor(&out)), &["manifest.json: ", expected]);
    }
}

#[test]
fn an_altered_byte_of_a_file_that_nobody_interprets_is_refused_at_load() {
    let folder = folder();
    let out = folder.path().join("bundle");
    exported("tiny-router", &out, &[]);
    let path = out.join("tokenizer_config.json");
    let mut bytes = fs::read(&path).unwrap();
    bytes[0] ^= 1;
    fs::write(&path, bytes).unwrap();
    let request = r#"{"state":"a","questions":{"q":{"type":"noul","instructions":"b"}}}"#;
    let ask = synod(&["ask", "--member", text(&out), "--anchor", &fixtures::anchor(&out), "-"], request);
    fails_in_one_line(&ask, &["tokenizer_config.json: expected SHA-256"]);
}

#[test]
fn verify_says_what_it_compared_and_names_what_nobody_vouches_for() {
    let folder = folder();
    let copy = folder.path().join("package");
    fs::create_dir(&copy).unwrap();
    for name in names(&package("tiny-router")) {
        fs::copy(package("tiny-router").join(&name), copy.join(&name)).unwrap();
    }
    fs::write(copy.join("README.md"), "hello").unwrap();
    let anchor = fixtures::anchor(&copy);
    let finished = verify(&copy, &anchor);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    for part in [
        "README.md: not listed, not used",
        "verified package of fixtures/tiny-router by its anchor: 8 files",
        "24 head tensors",
    ] {
        assert!(finished.stdout.contains(part), "{part} is not in: {}", finished.stdout);
    }
    let manifest = finished.stdout.lines().find(|line| line.starts_with("MODEL_MANIFEST.json"));
    assert!(manifest.is_some_and(|line| line.ends_with("anchor")), "{}", finished.stdout);
    let unanchored = synod(&["verify", text(&copy)], "");
    fails_in_one_line(&unanchored, &["model_name: expected a released member", &anchor]);

    let bundle = folder.path().join("bundle");
    exported("tiny-router", &bundle, &[]);
    let unanchored = synod(&["verify", text(&bundle)], "");
    fails_in_one_line(&unanchored, &["expected an anchor for this bundle", &fixtures::anchor(&bundle)]);
}
