//! Packages as a whole: what opens, and what does not. Fixture members are copied, spoiled, and, where the question
//! lies behind the digests, sealed again with an anchor of their own.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use half::bf16;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use synod_kernels::{DType, KernelError, RowSource};
use tempfile::TempDir;

use super::*;

const MEMBERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/members");
const MANIFEST: &str = "MODEL_MANIFEST.json";
const INDEX: &str = "model.safetensors.index.json";
const SHARD: &str = "model-00001-of-00001.safetensors";
const BROAD_HEAD: &str = "broad_head.safetensors";

/// The anchors that `SHA256SUMS` of the fixtures record.
fn fixture_anchor(member: &str) -> Anchor {
    let sums = fs::read_to_string(format!("{MEMBERS}/{member}/SHA256SUMS")).unwrap();
    let line = sums.lines().find(|line| line.ends_with(MANIFEST)).unwrap();
    Anchor(line[..64].parse().unwrap())
}

pub(super) fn fixture(member: &str) -> MemberFiles {
    MemberFiles::open(&Path::new(MEMBERS).join(member), Trust::Anchored(fixture_anchor(member))).unwrap()
}

/// A copy of a fixture member that may be spoiled.
struct Copy {
    anchor: Anchor,
    folder: TempDir,
}

impl Copy {
    fn new(member: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("package")).unwrap();
        for entry in fs::read_dir(format!("{MEMBERS}/{member}")).unwrap() {
            let entry = entry.unwrap();
            fs::write(folder.path().join("package").join(entry.file_name()), fs::read(entry.path()).unwrap()).unwrap();
        }
        Self { anchor: fixture_anchor(member), folder }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join("package").join(file)
    }

    fn edit(&self, file: &str, edit: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = fs::read(self.path(file)).unwrap();
        edit(&mut bytes);
        fs::write(self.path(file), bytes).unwrap();
    }

    fn edit_json(&self, file: &str, edit: impl FnOnce(&mut Value)) {
        self.edit(file, |bytes| {
            let mut value = serde_json::from_slice(bytes).unwrap();
            edit(&mut value);
            *bytes = serde_json::to_vec(&value).unwrap();
        });
    }

    /// Rewrites the header of a weight file and keeps its data.
    fn edit_header(&self, file: &str, edit: impl FnOnce(&mut Value)) {
        self.edit(file, |bytes| {
            let data_start = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
            let mut header = serde_json::from_slice(&bytes[8..data_start]).unwrap();
            edit(&mut header);
            let header = serde_json::to_vec(&header).unwrap();
            let length = (header.len() as u64).to_le_bytes();
            bytes.splice(..data_start, length.into_iter().chain(header));
        });
    }

    /// Rewrites a weight file with other tensors: name to dtype, shape and bytes.
    fn edit_tensors(&self, file: &str, edit: impl FnOnce(&mut BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>)) {
        self.edit(file, |bytes| {
            let mut tensors = SafeTensors::deserialize(bytes)
                .unwrap()
                .iter()
                .map(|(name, view)| (name.to_owned(), (view.dtype(), view.shape().to_vec(), view.data().to_vec())))
                .collect();
            edit(&mut tensors);
            let views = tensors
                .iter()
                .map(|(name, (dtype, shape, data))| (name, TensorView::new(*dtype, shape.clone(), data).unwrap()));
            *bytes = safetensors::serialize(views, None).unwrap();
        });
    }

    /// Makes the manifest agree with the files again, as whoever rewrites a package would, and anchors that.
    fn seal(&mut self) {
        self.edit_json(MANIFEST, |manifest| {
            for (name, digest) in manifest["files_sha256"].as_object_mut().unwrap() {
                if let Ok(bytes) = fs::read(self.path(name)) {
                    *digest = json!(Digest::of(&bytes).to_string());
                }
            }
        });
        self.anchor = Anchor(Digest::of(&fs::read(self.path(MANIFEST)).unwrap()));
    }

    fn open(&self) -> Result<MemberFiles, MemberError> {
        MemberFiles::open(&self.path(""), Trust::Anchored(self.anchor))
    }

    /// The refusal of opening or else of reading.
    fn refusal(&self) -> String {
        let error = match self.open() {
            Ok(package) => read(&package).err().expect("the package must be refused"),
            Err(error) => error,
        };
        let line = error.to_string();
        assert!(!line.contains(char::is_control) && line.len() < 1000, "{line:?}");
        line
    }
}

fn read(package: &MemberFiles) -> Result<EmbeddingRows, MemberError> {
    package.read_tensors(&(), &mut |_, _| Ok(()))
}

/// The tensors of a fixture's files as the `safetensors` crate reads them.
fn reference_tensors(member: &str) -> BTreeMap<String, (String, Vec<usize>, Vec<u8>)> {
    let mut tensors = BTreeMap::new();
    for entry in fs::read_dir(format!("{MEMBERS}/{member}")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            let bytes = fs::read(path).unwrap();
            for (name, view) in SafeTensors::deserialize(&bytes).unwrap().iter() {
                let tensor = (format!("{:?}", view.dtype()), view.shape().to_vec(), view.data().to_vec());
                tensors.insert(name.to_owned(), tensor);
            }
        }
    }
    tensors
}

#[test]
fn every_fixture_opens_with_its_anchor_and_shows_every_tensor_once() {
    for (member, has_broad_head) in
        [("tiny-08b", true), ("tiny-4b", true), ("tiny-router", false), ("tiny-short", true)]
    {
        let package = fixture(member);
        assert_eq!(package.model_name(), format!("fixtures/{member}"));
        assert_eq!(format!("sha256:{}", package.digest()), fixture_anchor(member).to_string());
        assert_eq!(package.has_broad_head(), has_broad_head);
        assert_eq!(package.tokenizer(), fs::read(format!("{MEMBERS}/{member}/tokenizer.json")).unwrap());
        assert_eq!(package.calibration(), fs::read(format!("{MEMBERS}/{member}/calibration.json")).unwrap());

        let mut expected = reference_tensors(member);
        let (_, shape, embedding) = expected.remove("backbone.embed_tokens.weight").unwrap();
        let rows = package
            .read_tensors::<MemberError>(&(), &mut |name, tensor| {
                let (dtype, shape, bytes) = expected.remove(name).unwrap_or_else(|| panic!("{name} twice or unknown"));
                assert_eq!((tensor.dtype.name(), tensor.shape, tensor.bytes), (dtype.as_str(), &*shape, &*bytes));
                Ok(())
            })
            .unwrap();
        assert!(expected.is_empty(), "not shown: {:?}", expected.keys());

        assert_eq!([rows.rows(), rows.width()], *shape);
        let values: Vec<_> = embedding.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let ids = [0, 1999, 7, 7];
        let mut out = vec![f32::NAN; ids.len() * rows.width()];
        rows.read_rows(&ids, &mut out).unwrap();
        for (&id, row) in ids.iter().zip(out.chunks(rows.width())) {
            assert_eq!(row, &values[id as usize * rows.width()..][..rows.width()]);
        }
    }
}

#[test]
fn an_unanchored_local_member_is_refused_by_its_name_with_the_digest_to_anchor() {
    let error = MemberFiles::open(&Path::new(MEMBERS).join("tiny-4b"), Trust::Released).err().unwrap();
    let anchor = fixture_anchor("tiny-4b");
    assert_eq!(
        error.to_string(),
        format!(
            "config.json: model_name: expected a released member, found \"fixtures/tiny-4b\"; if you trust this copy, \
             give its anchor: {anchor}"
        )
    );
}

#[test]
fn another_members_anchor_is_refused() {
    let anchor = fixture_anchor("tiny-4b");
    let error = MemberFiles::open(&Path::new(MEMBERS).join("tiny-08b"), Trust::Anchored(anchor)).err().unwrap();
    let found = fixture_anchor("tiny-08b").0;
    assert_eq!(
        error.to_string(),
        format!(
            "MODEL_MANIFEST.json: expected SHA-256 {}, found {found}; fetch the file again from where the anchored \
             copy came from",
            anchor.0
        )
    );
}

/// Only the digests can tell most of these from the true file.
#[test]
fn an_altered_byte_of_any_file_is_refused_by_the_files_name() {
    for file in ["config.json", "calibration.json", "tokenizer.json", INDEX, MANIFEST, SHARD, BROAD_HEAD] {
        let copy = Copy::new("tiny-08b");
        let size = fs::metadata(copy.path(file)).unwrap().len() as usize;
        for position in (0..size).step_by(size / 8).chain([size - 1]) {
            copy.edit(file, |bytes| bytes[position] ^= 1);
            let refusal = copy.refusal();
            assert!(refusal.starts_with(&format!("{file}: ")), "byte {position}: {refusal}");
            copy.edit(file, |bytes| bytes[position] ^= 1);
        }
        copy.open().expect("what was altered has been put back");
    }
}

/// bundle.md, defect 4: the manifest's own digests prove nothing, and it could name files outside.
#[test]
fn a_package_rewritten_together_with_its_manifest_is_refused() {
    let mut copy = Copy::new("tiny-08b");
    let anchor = copy.anchor;
    copy.edit_json("calibration.json", |calibration| calibration["temperature"]["choice"] = json!(3.0));
    copy.seal();
    copy.open().expect("it agrees with itself");
    copy.anchor = anchor;
    assert!(copy.refusal().starts_with("MODEL_MANIFEST.json: expected SHA-256"));
}

#[test]
fn a_manifest_or_index_that_names_files_outside_is_refused() {
    for name in ["../outside", "/etc/hostname", "a/../../outside", "a\\b", "a//b", ""] {
        let mut copy = Copy::new("tiny-08b");
        copy.edit_json(MANIFEST, |manifest| manifest["files_sha256"][name] = json!("0".repeat(64)));
        copy.seal();
        let refusal = copy.refusal();
        assert!(refusal.starts_with("MODEL_MANIFEST.json: expected relative paths inside the package"), "{refusal}");

        let mut copy = Copy::new("tiny-08b");
        copy.edit_json(INDEX, |index| index["weight_map"]["set_bias"] = json!(name));
        copy.seal();
        assert!(copy.refusal().starts_with(&format!("{INDEX}: expected relative paths inside the package")));
    }
}

#[test]
fn a_symlink_in_place_of_a_file_is_refused() {
    for file in ["config.json", SHARD, MANIFEST] {
        let copy = Copy::new("tiny-08b");
        let outside = copy.folder.path().join("outside");
        fs::rename(copy.path(file), &outside).unwrap();
        symlink(&outside, copy.path(file)).unwrap();
        let expected = format!("{file}: expected a regular file inside the package, found a symlink");
        assert!(copy.refusal().starts_with(&expected));
    }
}

/// bundle.md, defect 6: nothing of a package is run and nothing is written into it.
#[test]
fn a_package_with_code_opens_and_stays_as_it_was() {
    let mut copy = Copy::new("tiny-08b");
    fs::write(copy.path("vela.py"), "raise SystemExit").unwrap();
    fs::write(copy.path("README.md"), "not listed").unwrap();
    copy.edit_json(MANIFEST, |manifest| manifest["files_sha256"]["vela.py"] = json!(""));
    copy.seal();
    let files = || fs::read_dir(copy.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
    let before = files();
    fs::set_permissions(copy.path(""), fs::Permissions::from_mode(0o555)).unwrap();
    read(&copy.open().unwrap()).unwrap();
    fs::set_permissions(copy.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(files(), before);
    read(&copy.open().unwrap()).unwrap();
}

#[test]
fn a_released_name_must_match_its_pins_even_with_an_anchor() {
    let mut copy = Copy::new("tiny-08b");
    copy.edit_json("config.json", |config| config["model_name"] = json!("vllm-sr/Vela-2.0-4B"));
    copy.seal();
    let refusal = copy.refusal();
    assert!(refusal.starts_with("MODEL_MANIFEST.json: expected SHA-256 3e5a26db6dd50cc3"), "{refusal}");
    assert!(
        refusal.ends_with("fetch the file again from vllm-sr/Vela-2.0-4B at c1e64d4f872cb38bc58502e6888340100bab9d55")
    );
}

#[test]
fn tensors_that_are_not_the_configs_are_refused() {
    type Edit = fn(&Copy);
    let cases: [(&str, Edit); 9] = [
        ("model.safetensors.index.json: head.key.weight: expected a tensor of shape [32, 128], found none", |copy| {
            copy.edit_tensors(SHARD, |tensors| drop(tensors.remove("head.key.weight")));
            copy.edit_json(INDEX, |index| {
                index["weight_map"].as_object_mut().unwrap().remove("head.key.weight");
            });
        }),
        ("model-00001-of-00001.safetensors: extra: expected no such tensor", |copy| {
            copy.edit_tensors(SHARD, |tensors| drop(tensors.insert("extra".into(), (Dtype::F32, vec![], vec![0; 4]))));
            copy.edit_json(INDEX, |index| index["weight_map"]["extra"] = json!(SHARD));
        }),
        ("model.safetensors.index.json: extra: expected model-00001-of-00001.safetensors, found nothing", |copy| {
            copy.edit_tensors(SHARD, |tensors| drop(tensors.insert("extra".into(), (Dtype::F32, vec![], vec![0; 4]))));
        }),
        ("model-00001-of-00001.safetensors: span2.K.weight: expected shape [32, 128], found [128, 32]", |copy| {
            copy.edit_tensors(SHARD, |tensors| tensors.get_mut("span2.K.weight").unwrap().1.reverse());
        }),
        ("model-00001-of-00001.safetensors: head.key.weight: expected dtype F32 or BF16, found F16", |copy| {
            copy.edit_tensors(SHARD, |tensors| {
                let tensor = tensors.get_mut("head.key.weight").unwrap();
                (tensor.0, tensor.1[0]) = (Dtype::F16, 64);
            });
        }),
        ("broad_head.safetensors: span_broad.v.weight: expected a tensor of shape [1, 32], found none", |copy| {
            copy.edit_tensors(BROAD_HEAD, |tensors| drop(tensors.remove("span_broad.v.weight")));
        }),
        ("MODEL_MANIFEST.json: expected a digest for other.safetensors, found none", |copy| {
            copy.edit_json(INDEX, |index| index["weight_map"]["set_bias"] = json!("other.safetensors"));
        }),
        ("model-00001-of-00001.safetensors: ghost: expected it, as the index says, found no such tensor", |copy| {
            copy.edit_json(INDEX, |index| index["weight_map"]["ghost"] = json!(SHARD));
        }),
        ("model-00001-of-00001.safetensors: backbone.layers.0.mlp.down_proj.weight: expected shape", |copy| {
            copy.edit_json("config.json", |config| config["backbone_config"]["intermediate_size"] = json!(225));
        }),
    ];
    for (expected, edit) in cases {
        let mut copy = Copy::new("tiny-08b");
        edit(&copy);
        copy.seal();
        let refusal = copy.refusal();
        assert!(refusal.starts_with(expected), "expected {expected}\n   found {refusal}");
    }
}

#[test]
fn an_index_that_sends_a_tensor_to_another_shard_is_refused() {
    let mut copy = Copy::new("tiny-4b");
    let (first, last) = ("model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors");
    copy.edit_json(INDEX, |index| index["weight_map"]["backbone.norm.weight"] = json!(first));
    copy.seal();
    let expected = format!("{INDEX}: backbone.norm.weight: expected {last}, found {first}");
    assert!(copy.refusal().starts_with(&expected), "{}", copy.refusal());
}

#[test]
fn a_tensor_in_two_shards_is_refused_by_both_files() {
    let mut copy = Copy::new("tiny-4b");
    let (first, last) = ("model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors");
    copy.edit_tensors(first, |tensors| {
        tensors.insert("backbone.norm.weight".into(), (Dtype::F32, vec![], vec![0; 4]));
    });
    copy.seal();
    let expected = format!("{last}: backbone.norm.weight: expected it in one file only, found it in {first} too");
    assert!(copy.refusal().starts_with(&expected), "{}", copy.refusal());
}

/// The fixtures' own has the shape `[]`.
#[test]
fn a_scalar_may_be_stored_with_a_dimension() {
    let mut copy = Copy::new("tiny-08b");
    copy.edit_tensors(SHARD, |tensors| tensors.get_mut("set_bias").unwrap().1 = vec![1]);
    copy.seal();
    let mut shapes = Vec::new();
    copy.open()
        .unwrap()
        .read_tensors::<MemberError>(&(), &mut |name, tensor| {
            shapes.extend((name == "set_bias").then(|| tensor.shape.to_vec()));
            Ok(())
        })
        .unwrap();
    assert_eq!(shapes, [[1]]);
    for (name, shape) in [("set_bias", vec![1, 1]), ("span2.o.bias", vec![])] {
        let mut copy = Copy::new("tiny-08b");
        copy.edit_tensors(SHARD, |tensors| tensors.get_mut(name).unwrap().1 = shape);
        copy.seal();
        assert!(copy.refusal().starts_with(&format!("{SHARD}: {name}: expected shape [")), "{}", copy.refusal());
    }
}

/// Logs are read line by line and terminals obey escapes: a package must not write either.
#[test]
fn text_of_a_package_is_quoted_escaped_and_cut() {
    fn evil() -> String {
        format!("e\n\x1b[2J{}", "x".repeat(10_000))
    }
    const SHOWN: &str = r"e\n\u{1b}[2Jxxx";
    type Edit = fn(&Copy);
    let cases: [(&str, Edit); 15] = [
        ("a name in the manifest", |copy| {
            copy.edit_json(MANIFEST, |manifest| manifest["files_sha256"][evil()] = json!("0".repeat(64)));
        }),
        ("a file in the index", |copy| {
            copy.edit_json(INDEX, |index| index["weight_map"]["set_bias"] = json!(evil()));
        }),
        ("a tensor in the index", |copy| {
            copy.edit_json(INDEX, |index| index["weight_map"][evil()] = json!(SHARD));
        }),
        ("a key twice in the index", |copy| {
            let key = json!(evil());
            copy.edit(INDEX, |bytes| *bytes = format!(r#"{{"weight_map":{{{key}:"a",{key}:"b"}}}}"#).into_bytes());
        }),
        ("a tensor in a shard", |copy| {
            copy.edit_tensors(SHARD, |tensors| drop(tensors.insert(evil(), (Dtype::F32, vec![], vec![0; 4]))));
        }),
        ("a tensor in a shard at a wrong offset", |copy| {
            let entry = json!({ "dtype": "F32", "shape": [], "data_offsets": [1, 5] });
            copy.edit_header(SHARD, |header| header[evil()] = entry);
        }),
        ("a tensor in a shard, without a dtype", |copy| copy.edit_header(SHARD, |header| header[evil()] = json!({}))),
        ("a tensor in the broad head", |copy| {
            copy.edit_tensors(BROAD_HEAD, |tensors| drop(tensors.insert(evil(), (Dtype::F32, vec![], vec![0; 4]))));
        }),
        ("a dtype", |copy| copy.edit_header(SHARD, |header| header["set_bias"]["dtype"] = json!(evil()))),
        ("model_type", |copy| copy.edit_json("config.json", |config| config["model_type"] = json!(evil()))),
        ("model_name", |copy| copy.edit_json("config.json", |config| config["model_name"] = json!(evil()))),
        ("backbone_config.model_type", |copy| {
            copy.edit_json("config.json", |config| config["backbone_config"]["model_type"] = json!(evil()));
        }),
        ("hidden_act", |copy| {
            copy.edit_json("config.json", |config| config["backbone_config"]["hidden_act"] = json!(evil()));
        }),
        ("rope_type", |copy| {
            copy.edit_json("config.json", |config| {
                config["backbone_config"]["rope_parameters"]["rope_type"] = json!(evil());
            });
        }),
        ("layer_types", |copy| {
            copy.edit_json("config.json", |config| config["backbone_config"]["layer_types"][0] = json!(evil()));
        }),
    ];
    for (place, edit) in cases {
        let mut copy = Copy::new("tiny-08b");
        edit(&copy);
        copy.seal();
        let refusal = copy.refusal();
        assert!(refusal.contains(SHOWN), "{place}: {refusal}");
    }
    let mut copy = Copy::new("tiny-08b");
    copy.edit_json("config.json", |config| config["model_name"] = json!(evil()));
    copy.seal();
    let refusal = MemberFiles::open(&copy.path(""), Trust::Released).err().unwrap().to_string();
    assert!(refusal.contains(SHOWN) && !refusal.contains(char::is_control) && refusal.len() < 1000, "{refusal:?}");
}

#[test]
fn files_that_are_not_what_the_runtime_reads_are_refused() {
    type Edit = fn(&Copy);
    let cases: [(&str, Edit); 10] = [
        ("calibration.json: expected a broad_head block", |copy| {
            copy.edit_json("calibration.json", |calibration| calibration["broad_head"] = Value::Null);
        }),
        ("config.json: span_layout.window_above: expected 96, as hybrid_rmax, found 97", |copy| {
            copy.edit_json("config.json", |config| config["span_layout"]["window_above"] = json!(97));
        }),
        ("config.json: expected a member's config, found other content: missing field `max_length`", |copy| {
            copy.edit_json("config.json", |config| {
                config.as_object_mut().unwrap().remove("max_length");
            });
        }),
        ("config.json: expected a member's config, found invalid JSON: EOF while parsing an object", |copy| {
            copy.edit("config.json", |bytes| bytes.truncate(bytes.iter().rposition(|&byte| byte == b'}').unwrap()));
        }),
        (
            "MODEL_MANIFEST.json: expected a SHA-256 per file, found other content: README.md: expected 64 hexadecimal \
             digits; fetch the file again",
            |copy| copy.edit_json(MANIFEST, |manifest| manifest["files_sha256"]["README.md"] = json!("12")),
        ),
        (
            "model.safetensors.index.json: expected an index of weight files, found other content: \"a\" stands twice",
            |copy| {
                copy.edit(INDEX, |bytes| *bytes = br#"{"weight_map":{"a":"b","a":"c"}}"#.to_vec());
            },
        ),
        (
            "model-00001-of-00001.safetensors: header length: expected at most 100000000 bytes, found 100000001",
            |copy| {
                copy.edit(SHARD, |bytes| bytes[..8].copy_from_slice(&100_000_001_u64.to_le_bytes()));
                // Sparse: long enough that only the bound of the format speaks against such a header.
                OpenOptions::new().write(true).open(copy.path(SHARD)).unwrap().set_len(200_000_000).unwrap();
            },
        ),
        (
            "model-00001-of-00001.safetensors: header length: expected at most 2532464 bytes, found 72057594037927936",
            |copy| {
                copy.edit(SHARD, |bytes| bytes[..8].copy_from_slice(&(1_u64 << 56).to_le_bytes()));
            },
        ),
        ("model-00001-of-00001.safetensors: file size: expected at least 8 bytes, found 7", |copy| {
            copy.edit(SHARD, |bytes| bytes.truncate(7));
        }),
        ("model-00001-of-00001.safetensors: file size: expected 2532472, found 2532471", |copy| {
            copy.edit(SHARD, |bytes| bytes.truncate(bytes.len() - 1));
        }),
    ];
    for (expected, edit) in cases {
        let mut copy = Copy::new("tiny-08b");
        edit(&copy);
        copy.seal();
        let refusal = copy.refusal();
        assert!(refusal.starts_with(expected), "expected {expected}\n   found {refusal}");
    }
    for file in ["config.json", "tokenizer.json", SHARD, MANIFEST] {
        let copy = Copy::new("tiny-08b");
        fs::remove_file(copy.path(file)).unwrap();
        // Without its manifest it is no package at all.
        let expected =
            if file == MANIFEST { "MODEL_MANIFEST.json: expected it in a package" } else { ": No such file" };
        assert!(copy.refusal().starts_with(file) && copy.refusal().contains(expected), "{}", copy.refusal());
    }
}

#[test]
fn a_file_beyond_any_members_size_is_not_read_into_memory() {
    let copy = Copy::new("tiny-08b");
    OpenOptions::new().write(true).open(copy.path(MANIFEST)).unwrap().set_len(1 << 40).unwrap();
    let refusal = copy.refusal();
    assert!(refusal.starts_with("MODEL_MANIFEST.json: expected at most 4194304 bytes, found 1099511627776"));
}

/// The header that was parsed must be the one that is hashed, and the bytes that are handed on those of the same file.
#[test]
fn a_weight_file_that_changes_after_opening_is_refused() {
    let copy = Copy::new("tiny-08b");
    let package = copy.open().unwrap();
    let file = OpenOptions::new().write(true).open(copy.path(SHARD)).unwrap();
    let size = file.metadata().unwrap().len();
    let mut last = [0];
    let original = fs::read(copy.path(SHARD)).unwrap();
    last[0] = original[original.len() - 1] ^ 1;
    file.write_all_at(&last, size - 1).unwrap();
    let error = read(&package).err().unwrap();
    assert!(matches!(&error, MemberError::Digest { file, .. } if file == SHARD), "{error}");
    file.set_len(size / 2).unwrap();
    let error = read(&package).err().unwrap();
    assert!(matches!(&error, MemberError::Io { file, .. } if file == SHARD), "{error}");

    // Another file under its name is not the one that was opened.
    fs::remove_file(copy.path(SHARD)).unwrap();
    fs::write(copy.path(SHARD), &original).unwrap();
    assert!(read(&package).is_err());
    read(&copy.open().unwrap()).unwrap();
}

#[test]
fn a_row_that_changes_after_verification_is_noticed() {
    let copy = Copy::new("tiny-08b");
    let rows = read(&copy.open().unwrap()).unwrap();
    let mut out = vec![0.0; rows.width()];
    rows.read_rows(&[5], &mut out).unwrap();

    let bytes = fs::read(copy.path(SHARD)).unwrap();
    let data_start = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap());
    let position = data_start + (5 * rows.width() * 4 + 3) as u64;
    let file = OpenOptions::new().write(true).open(copy.path(SHARD)).unwrap();
    file.write_all_at(&[bytes[position as usize] ^ 0x80], position).unwrap();
    let error = rows.read_rows(&[4, 5], &mut vec![0.0; 2 * rows.width()]).unwrap_err();
    let expected = format!("{SHARD}: row 5: expected the bytes that were verified");
    assert!(error.to_string().contains(&expected), "{error}");
    rows.read_rows(&[4], &mut out).expect("the rows beside it are as they were");

    file.set_len(position).unwrap();
    assert!(matches!(rows.read_rows(&[5], &mut out), Err(KernelError::Rows { .. })));
}

#[test]
fn rows_outside_the_table_and_wrong_lengths_are_errors() {
    let rows = read(&fixture("tiny-08b")).unwrap();
    let mut out = vec![0.0; rows.width()];
    assert!(matches!(rows.read_rows(&[2000], &mut out), Err(KernelError::Index { index: 2000, bound: 2000, .. })));
    assert!(matches!(rows.read_rows(&[0, 1], &mut out), Err(KernelError::Shape { .. })));
    rows.read_rows(&[], &mut []).unwrap();
}

/// Uniform BF16 is a profile of its own, and another tool may have kept Linear weights in F32.
#[test]
fn both_dtypes_are_read_for_every_tensor() {
    let mut copy = Copy::new("tiny-08b");
    let mut expected = Vec::new();
    copy.edit_tensors(SHARD, |tensors| {
        let (dtype, _, bytes) = tensors.get_mut("backbone.embed_tokens.weight").unwrap();
        let narrow = bytes.as_chunks().0.iter().map(|bytes| bf16::from_f32(f32::from_le_bytes(*bytes)));
        (expected, *bytes) = narrow.map(|value| (value.to_f32(), value.to_le_bytes())).fold(
            (Vec::new(), Vec::new()),
            |(mut values, mut bytes), (value, two)| {
                values.push(value);
                bytes.extend(two);
                (values, bytes)
            },
        );
        *dtype = Dtype::BF16;
        let (dtype, _, bytes) = tensors.get_mut("backbone.layers.0.mlp.up_proj.weight").unwrap();
        *bytes =
            bytes.as_chunks().0.iter().flat_map(|bytes| bf16::from_le_bytes(*bytes).to_f32().to_le_bytes()).collect();
        *dtype = Dtype::F32;
    });
    copy.seal();
    let mut dtypes = BTreeMap::new();
    let rows = copy
        .open()
        .unwrap()
        .read_tensors::<MemberError>(&(), &mut |name, tensor| {
            dtypes.insert(name.to_owned(), tensor.dtype);
            Ok(())
        })
        .unwrap();
    assert_eq!(dtypes["backbone.layers.0.mlp.up_proj.weight"], DType::F32);
    assert_eq!(dtypes["backbone.layers.1.mlp.up_proj.weight"], DType::Bf16);
    let mut out = vec![0.0; rows.width()];
    rows.read_rows(&[1999], &mut out).unwrap();
    assert_eq!(out, expected[1999 * rows.width()..]);
}

/// A reader that waited for a visitor that has gone would hang here.
#[test]
fn a_visitors_error_stops_the_reading_and_is_returned() {
    #[derive(Debug)]
    enum Refused {
        ByVisitor(usize),
        ByMember,
    }
    impl From<MemberError> for Refused {
        fn from(_: MemberError) -> Self {
            Refused::ByMember
        }
    }
    let package = fixture("tiny-4b");
    for limit in [1, 2, 50] {
        let mut seen = 0;
        let result = package.read_tensors(&(), &mut |_, _| {
            seen += 1;
            if seen == limit { Err(Refused::ByVisitor(seen)) } else { Ok(()) }
        });
        assert!(matches!(result, Err(Refused::ByVisitor(at)) if at == limit));
        assert_eq!(seen, limit);
    }
    let copy = Copy::new("tiny-4b");
    copy.edit("model-00002-of-00003.safetensors", |bytes| *bytes.last_mut().unwrap() ^= 1);
    let result = copy.open().unwrap().read_tensors(&(), &mut |_, _| Ok(()));
    assert!(matches!(result, Err(Refused::ByMember)));
}

#[test]
fn progress_goes_over_every_byte_of_the_weight_files() {
    #[derive(Default)]
    struct Count {
        total: AtomicU64,
        done: AtomicU64,
    }
    impl Progress for Count {
        fn start(&self, total_bytes: u64) {
            self.total.store(total_bytes, Ordering::Relaxed);
        }
        fn advance(&self, bytes: u64) {
            self.done.fetch_add(bytes, Ordering::Relaxed);
        }
    }
    let count = Count::default();
    fixture("tiny-4b").read_tensors::<MemberError>(&count, &mut |_, _| Ok(())).unwrap();
    let expected: u64 = fs::read_dir(format!("{MEMBERS}/tiny-4b"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "safetensors"))
        .map(|path| fs::metadata(path).unwrap().len())
        .sum();
    assert_eq!(count.total.into_inner(), expected);
    assert_eq!(count.done.into_inner(), expected);
}
