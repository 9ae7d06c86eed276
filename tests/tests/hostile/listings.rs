//! What the index and the manifest of a package can say that is not so.

use std::fs;

use serde_json::{Value, json};

use super::copy::{Copy, Forged};
use super::{BROAD_HEAD, INDEX, PACKAGE_MANIFEST, Rule, SHARD, case};

const FIRST: &str = "model-00001-of-00003.safetensors";

fn weight_map(copy: &Copy, edit: impl FnOnce(&mut serde_json::Map<String, Value>)) {
    copy.json(INDEX, |index| edit(index["weight_map"].as_object_mut().expect("an index has a weight_map")));
}

fn list(copy: &Copy, name: &str) {
    copy.listing(|manifest| manifest["files_sha256"][name] = json!("0".repeat(64)));
}

pub(crate) const RULES: &[Rule] = &[
    Rule {
        name: "config, index and headers name the same tensors, in the shapes of the config",
        forged: Forged::Digests,
        cases: &[
            case("a tensor more", &["model-00001-of-00001.safetensors: extra: expected no such tensor"], |copy| {
                copy.add_tensor(SHARD, "extra");
                weight_map(copy, |map| drop(map.insert("extra".into(), json!(SHARD))));
            }),
            case(
                "a tensor that the index keeps quiet about",
                &["model.safetensors.index.json: extra: expected model-00001-of-00001.safetensors, found nothing"],
                |copy| {
                    copy.add_tensor(SHARD, "extra");
                },
            ),
            case(
                "a tensor of the index alone",
                &["model-00001-of-00001.safetensors: ghost: expected it, as the index says, found no such tensor"],
                |copy| {
                    weight_map(copy, |map| drop(map.insert("ghost".into(), json!(SHARD))));
                },
            ),
            case(
                "a tensor under another name",
                &["model-00001-of-00001.safetensors: head.key.Weight: expected no such tensor"],
                |copy| {
                    copy.header_json(SHARD, |header| {
                        let entries = header.as_object_mut().expect("a header");
                        let entry = entries.remove("head.key.weight").expect("a head");
                        entries.insert("head.key.Weight".into(), entry);
                    });
                    weight_map(copy, |map| {
                        map.remove("head.key.weight");
                        map.insert("head.key.Weight".into(), json!(SHARD));
                    });
                },
            ),
            case(
                "a name with an escape of the terminal",
                &[r"model-00001-of-00001.safetensors: \u{1b}[2Jx\n: expected no such tensor"],
                |copy| {
                    copy.add_tensor(SHARD, "\x1b[2Jx\n");
                    weight_map(copy, |map| drop(map.insert("\x1b[2Jx\n".into(), json!(SHARD))));
                },
            ),
            case(
                "a tensor missing from the broad head",
                &["broad_head.safetensors: span_broad.", "expected a tensor of shape", "found none"],
                |copy| {
                    copy.header_json(BROAD_HEAD, |header| {
                        let entries = header.as_object_mut().expect("a header");
                        let by_end = |entry: &Value| entry["data_offsets"][1].as_u64().unwrap_or(0);
                        let (last, _) = entries.iter().max_by_key(|(_, entry)| by_end(entry)).expect("a tensor");
                        let last = last.clone();
                        entries.remove(&last);
                    });
                    let header = u64::from_le_bytes(*copy.bytes(BROAD_HEAD).first_chunk().expect("a length"));
                    let text: Value =
                        serde_json::from_slice(&copy.bytes(BROAD_HEAD)[8..8 + header as usize]).expect("JSON");
                    let ends = text
                        .as_object()
                        .expect("a header")
                        .values()
                        .filter_map(|entry| entry["data_offsets"][1].as_u64());
                    let end = 8 + header + ends.max().expect("a tensor");
                    copy.resize(BROAD_HEAD, |_| end);
                },
            ),
            case(
                "a matrix turned",
                &["model-00001-of-00001.safetensors: span2.K.weight: expected shape [32, 128], found [128, 32]"],
                |copy| {
                    copy.header_json(SHARD, |header| header["span2.K.weight"]["shape"] = json!([128, 32]));
                },
            ),
            case(
                "a config of other dimensions",
                &["model-00001-of-00001.safetensors: backbone.layers.", "expected shape"],
                |copy| {
                    copy.json("config.json", |config| config["backbone_config"]["intermediate_size"] = json!(225));
                },
            ),
            case("a config of other layers", &["config.json: backbone_config.layer_types: expected"], |copy| {
                copy.json("config.json", |config| config["backbone_config"]["num_hidden_layers"] = json!(3));
            }),
        ],
    },
    Rule {
        name: "an index is an object that sends each tensor to one file of the package",
        forged: Forged::Digests,
        cases: &[
            case(
                "a tensor twice",
                &["model.safetensors.index.json: expected an index of weight files", "\"a\" stands twice"],
                |copy| {
                    copy.write(INDEX, r#"{"weight_map":{"a":"b","a":"c"}}"#);
                },
            ),
            case(
                "the map twice",
                &["model.safetensors.index.json: expected an index of weight files", "duplicate field `weight_map`"],
                |copy| {
                    copy.write(INDEX, r#"{"weight_map":{},"weight_map":{}}"#);
                },
            ),
            case(
                "no map",
                &["model.safetensors.index.json: expected an index of weight files", "missing field `weight_map`"],
                |copy| {
                    copy.write(INDEX, "{}");
                },
            ),
            case(
                "an empty map",
                &["model.safetensors.index.json: backbone.", "expected a tensor of shape", "found none"],
                |copy| {
                    copy.write(INDEX, r#"{"weight_map":{}}"#);
                },
            ),
            case(
                "nested without end",
                &["model.safetensors.index.json: expected an index of weight files", "found invalid JSON: EOF"],
                |copy| {
                    copy.write(INDEX, format!("{{\"weight_map\":{}", "[".repeat(1 << 20)));
                },
            ),
            case(
                "a number for a file",
                &["model.safetensors.index.json: expected an index of weight files", "set_bias: invalid type: integer"],
                |copy| {
                    weight_map(copy, |map| map["set_bias"] = json!(1));
                },
            ),
            case(
                "a file outside",
                &["model.safetensors.index.json: expected relative paths inside the package, found \"../outside\""],
                |copy| {
                    weight_map(copy, |map| map["set_bias"] = json!("../outside"));
                },
            ),
            case(
                "a file that is not listed",
                &["MODEL_MANIFEST.json: ", "expected a digest for other.safetensors, found none"],
                |copy| {
                    weight_map(copy, |map| map["set_bias"] = json!("other.safetensors"));
                },
            ),
            case("a listed file that is no weight file", &["config.json: header length: expected at most"], |copy| {
                weight_map(copy, |map| map["set_bias"] = json!("config.json"));
            }),
            case(
                "the broad head's file",
                &[
                    "model.safetensors.index.json: set_bias: expected model-00001-of-00001.safetensors, found broad_head.safetensors",
                ],
                |copy| {
                    weight_map(copy, |map| map["set_bias"] = json!(BROAD_HEAD));
                },
            ),
        ],
    },
    Rule {
        name: "a manifest lists files of the package by confined names and whole digests, each once",
        forged: Forged::Anchor,
        cases: &[
            case(
                "the folder above",
                &["MODEL_MANIFEST.json: expected relative paths inside the package, found \"../outside\""],
                |copy| {
                    copy.write("../outside", "x");
                    list(copy, "../outside");
                },
            ),
            case(
                "an absolute path",
                &["MODEL_MANIFEST.json: expected relative paths inside the package, found \"/etc/hostname\""],
                |copy| list(copy, "/etc/hostname"),
            ),
            case(
                "out and in again",
                &["MODEL_MANIFEST.json: expected relative paths inside the package, found \"a/../../b\""],
                |copy| list(copy, "a/../../b"),
            ),
            case(
                "a backslash",
                &["MODEL_MANIFEST.json: expected relative paths inside the package, found \"a\\b\""],
                |copy| list(copy, "a\\b"),
            ),
            case(
                "an empty part",
                &["MODEL_MANIFEST.json: expected relative paths inside the package, found \"a//b\""],
                |copy| list(copy, "a//b"),
            ),
            case(
                "an empty name",
                &["MODEL_MANIFEST.json: expected relative paths inside the package, found \"\""],
                |copy| list(copy, ""),
            ),
            case(
                "a dot",
                &["MODEL_MANIFEST.json: expected relative paths inside the package, found \"./config.json\""],
                |copy| list(copy, "./config.json"),
            ),
            case(
                "a folder",
                &["MODEL_MANIFEST.json: expected relative paths inside the package, found \"model/\""],
                |copy| list(copy, "model/"),
            ),
            case(
                "a NUL",
                &["MODEL_MANIFEST.json: expected relative paths inside the package, found \"config.json\\0\""],
                |copy| list(copy, "config.json\0"),
            ),
            case(
                "a file twice",
                &["MODEL_MANIFEST.json: expected a package's manifest", "\"config.json\" stands twice"],
                |copy| {
                    copy.replace(PACKAGE_MANIFEST, "\"tokenizer.json\"", "\"config.json\"");
                },
            ),
            case(
                "a digit too few",
                &[
                    "MODEL_MANIFEST.json: expected a SHA-256 per file, found other content: config.json: expected 64 hexadecimal digits",
                ],
                |copy| {
                    copy.listing(|manifest| manifest["files_sha256"]["config.json"] = json!("0".repeat(63)));
                },
            ),
            case(
                "a letter that is no digit",
                &[
                    "MODEL_MANIFEST.json: expected a SHA-256 per file, found other content: config.json: expected 64 hexadecimal digits",
                ],
                |copy| {
                    copy.listing(|manifest| manifest["files_sha256"]["config.json"] = json!("g".repeat(64)));
                },
            ),
            case(
                "a digest that is a number",
                &["MODEL_MANIFEST.json: expected a package's manifest", "config.json: invalid type: integer"],
                |copy| {
                    copy.listing(|manifest| manifest["files_sha256"]["config.json"] = json!(0));
                },
            ),
            case("no config", &["MODEL_MANIFEST.json: ", "expected a digest for config.json, found none"], |copy| {
                copy.listing(|manifest| {
                    drop(manifest["files_sha256"].as_object_mut().expect("files").remove("config.json"));
                });
            }),
            case(
                "no tokenizer",
                &["MODEL_MANIFEST.json: ", "expected a digest for tokenizer.json, found none"],
                |copy| {
                    copy.listing(|manifest| {
                        drop(manifest["files_sha256"].as_object_mut().expect("files").remove("tokenizer.json"));
                    });
                },
            ),
            case(
                "no weights",
                &["MODEL_MANIFEST.json: ", "expected a digest for model-00001-of-00001.safetensors, found none"],
                |copy| {
                    copy.listing(|manifest| {
                        drop(manifest["files_sha256"].as_object_mut().expect("files").remove(SHARD));
                    });
                },
            ),
            case("a file that is not there", &["tokenizer.json: No such file"], |copy| copy.remove("tokenizer.json")),
            case("weights that are not there", &["model-00001-of-00001.safetensors: No such file"], |copy| {
                copy.remove(SHARD);
            }),
            case("not JSON", &["MODEL_MANIFEST.json: expected a package's manifest, found invalid JSON"], |copy| {
                copy.write(PACKAGE_MANIFEST, "{");
            }),
            case("a list", &["MODEL_MANIFEST.json: expected a package's manifest, found other content"], |copy| {
                copy.write(PACKAGE_MANIFEST, "[]");
            }),
            case("nothing", &["MODEL_MANIFEST.json: expected a package's manifest, found invalid JSON: EOF"], |copy| {
                copy.write(PACKAGE_MANIFEST, "");
            }),
        ],
    },
];

pub(crate) const SPLIT_RULES: &[Rule] = &[
    Rule {
        name: "a tensor is in one weight file only, the one that the index says",
        forged: Forged::Digests,
        cases: &[
            case(
                "in two files",
                &[
                    "model-00003-of-00003.safetensors: backbone.norm.weight: expected it in one file only, found it in model-00001-of-00003.safetensors too",
                ],
                |copy| {
                    copy.add_tensor(FIRST, "backbone.norm.weight");
                },
            ),
            case(
                "in another file",
                &[
                    "model.safetensors.index.json: backbone.norm.weight: expected model-00003-of-00003.safetensors, found model-00001-of-00003.safetensors",
                ],
                |copy| {
                    weight_map(copy, |map| map["backbone.norm.weight"] = json!(FIRST));
                },
            ),
            case(
                "two files that changed places",
                &["model.safetensors.index.json: backbone.", "expected model-0000", "found model-0000"],
                |copy| {
                    let second = "model-00002-of-00003.safetensors";
                    fs::rename(copy.path(FIRST), copy.path("swap")).expect("a file can be renamed");
                    fs::rename(copy.path(second), copy.path(FIRST)).expect("a file can be renamed");
                    fs::rename(copy.path("swap"), copy.path(second)).expect("a file can be renamed");
                },
            ),
        ],
    },
    Rule {
        name: "a file that changed places with another is not what is listed",
        forged: Forged::Files,
        cases: &[case(
            "two weight files",
            &["model.safetensors.index.json: backbone.", "expected model-0000", "found model-0000"],
            |copy| {
                let second = "model-00002-of-00003.safetensors";
                let (one, two) = (copy.bytes(FIRST), copy.bytes(second));
                copy.write(FIRST, two);
                copy.write(second, one);
            },
        )],
    },
];
