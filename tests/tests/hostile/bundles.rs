//! What can be wrong with a bundle that could not be with a package: its manifest vouches for sizes, tensors and a profile,
//! and everything in its folder must be listed.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::{Map, Value, json};
use synod_tests::fixtures;

use super::copy::{Copy, Forged};
use super::{BUNDLE_MANIFEST, Rule, case};

const HEADS: &str = "heads.safetensors";
const MODEL: &str = "model/model-00001-of-00001.safetensors";
const MODEL_INDEX: &str = "model/model.safetensors.index.json";
const CONFIG: &str = "model/config.json";

fn set(copy: &Copy, pointer: &str, value: Value) {
    copy.listing(|manifest| {
        let (parent, key) = pointer.rsplit_once('/').expect("a pointer begins with a slash");
        manifest.pointer_mut(parent).expect("the manifest has it")[key] = value;
    });
}

fn remove(copy: &Copy, pointer: &str, key: &str) {
    copy.listing(|manifest| {
        let object = manifest.pointer_mut(pointer).and_then(Value::as_object_mut);
        object.expect("the manifest has it").shift_remove(key).expect("the key is there");
    });
}

fn tensors<'a>(manifest: &'a mut Value, file: &str) -> &'a mut Map<String, Value> {
    manifest["tensors"][file].as_object_mut().expect("the manifest lists the tensors of its weight files")
}

/// Lists a file as an honest export would, were it allowed to.
fn list(copy: &Copy, name: &str) {
    let entry = json!({ "size_bytes": 1, "sha256": fixtures::sha256(b"x") });
    copy.listing(|manifest| manifest["files"][name] = entry);
}

/// Calls the member a released one, with everything that the pins of its package say.
fn call_released(copy: &Copy, revision: &str) {
    let name = "vllm-sr/Vela-2.0-0.8B";
    copy.listing(|manifest| {
        manifest["config"]["model_name"] = json!(name);
        manifest["member"] = json!({ "model_name": name, "repository": name, "revision": revision });
    });
}

const REVISION: &str = "a778eb2ae2304cfa72fca7e53a19136dea5be012";

/// The pins of the release's package, for a forger who has read them (spec: vela.md §1).
const PINS: [(&str, &str); 7] = [
    ("MODEL_MANIFEST.json", "a8fb5b188593463209475a7b51ceb97531b58bb1d7445b8b6a2e1a6333fd1ae2"),
    ("broad_head.safetensors", "687d7a435d6de846796274e417b6333f83df3085a6e7c3bca4c01cb4d75a30f0"),
    ("calibration.json", "d96e447962d0dc1d58fa8422dddbae8b99960e21fd75a10ef9b096f700a211f5"),
    ("config.json", "0637ca193b9159b6ece25837913956477164d3392d9b5dd1e6b74b95a484004a"),
    ("model-00001-of-00001.safetensors", "c70237ecd579c60289c177fa9806e71c24840c2fc557b5c76af1395dc3081fa6"),
    ("model.safetensors.index.json", "b53d1c79219677289bdb1541a1373dfe53119884f248b23c94a27aef7338919d"),
    ("tokenizer.json", "06b9509352d2af50381ab2247e083b80d32d5c0aba91c272ca9ff729b6a0e523"),
];

fn call_released_with_pins(copy: &Copy) {
    call_released(copy, REVISION);
    copy.listing(|manifest| PINS.iter().for_each(|(name, pin)| manifest["inputs"][name] = json!(pin)));
}

pub(crate) const RULES: &[Rule] = &[
    Rule {
        name: "a bundle is the one that was anchored, byte for byte",
        forged: Forged::Files,
        cases: &[
            case(
                "a file rewritten together with the manifest",
                &["manifest.json: expected SHA-256", "found"],
                |copy| {
                    copy.replace("calibration.json", "0.", "1.");
                    let digest = fixtures::sha256(&copy.bytes("calibration.json"));
                    set(copy, "/files/calibration.json/sha256", json!(digest));
                },
            ),
            case(
                "weights rewritten together with the manifest",
                &["manifest.json: expected SHA-256", "found"],
                |copy| {
                    copy.edit(HEADS, |bytes| *bytes.last_mut().expect("data") ^= 1);
                    set(copy, "/files/heads.safetensors/sha256", json!(fixtures::sha256(&copy.bytes(HEADS))));
                },
            ),
            case("one space more in the manifest", &["manifest.json: expected SHA-256", "found"], |copy| {
                copy.edit(BUNDLE_MANIFEST, |bytes| bytes.push(b' '));
            }),
            case(
                "one bit of the backbone",
                &["model/model-00001-of-00001.safetensors: expected SHA-256", "found"],
                |copy| copy.edit(MODEL, |bytes| *bytes.last_mut().expect("data") ^= 1),
            ),
            case("one bit of the heads", &["heads.safetensors: expected SHA-256", "found"], |copy| {
                copy.edit(HEADS, |bytes| *bytes.last_mut().expect("data") ^= 1);
            }),
            case("one bit of the backbone's config", &["model/config.json: expected SHA-256", "found"], |copy| {
                copy.edit(CONFIG, |bytes| bytes[9] ^= 1);
            }),
            case("one bit of the index", &["model/model.safetensors.index.json: expected SHA-256", "found"], |copy| {
                copy.edit(MODEL_INDEX, |bytes| bytes[9] ^= 1);
            }),
            case("one bit of the calibration", &["calibration.json: expected SHA-256", "found"], |copy| {
                copy.edit("calibration.json", |bytes| bytes[9] ^= 1);
            }),
            case("one bit of the tokenizer", &["tokenizer.json: expected SHA-256", "found"], |copy| {
                copy.edit("tokenizer.json", |bytes| bytes[9] ^= 1);
            }),
        ],
    },
    Rule {
        name: "every file of a bundle is there in its size, and no other is",
        forged: Forged::Files,
        cases: &[
            case("a file more", &["README.md: expected only what manifest.json lists"], |copy| {
                copy.write("README.md", "x");
            }),
            case("a file more, at depth", &["model/a/b/c: expected only what manifest.json lists"], |copy| {
                fs::create_dir_all(copy.path("model/a/b")).expect("a folder can be made");
                copy.write("model/a/b/c", "x");
            }),
            case("a hidden file", &[".hidden: expected only what manifest.json lists"], |copy| {
                copy.write(".hidden", "");
            }),
            case("an empty folder", &["model/empty: expected only what manifest.json lists"], |copy| {
                fs::create_dir(copy.path("model/empty")).expect("a folder can be made");
            }),
            case(
                "a file with a name for terminals",
                &[r"\u{1b}[2J\n: expected only what manifest.json lists"],
                |copy| copy.write("\x1b[2J\n", ""),
            ),
            case(
                "a link in model",
                &["model/link: expected a regular file inside the package, found a symlink"],
                |copy| symlink("config.json", copy.path("model/link")).expect("a link can be made"),
            ),
            case(
                "a linked model folder",
                &["model: expected a regular file inside the package, found a symlink"],
                |copy| {
                    fs::rename(copy.path("model"), copy.path("../model")).expect("a folder can be renamed");
                    symlink("../model", copy.path("model")).expect("a link can be made");
                },
            ),
            case(
                "a link for the heads",
                &["heads.safetensors: expected a regular file inside the package, found a symlink"],
                |copy| {
                    fs::rename(copy.path(HEADS), copy.path("../heads")).expect("a file can be renamed");
                    symlink("../heads", copy.path(HEADS)).expect("a link can be made");
                },
            ),
            case("a folder for the tokenizer", &["tokenizer.json: expected only what manifest.json lists"], |copy| {
                copy.remove("tokenizer.json");
                fs::create_dir(copy.path("tokenizer.json")).expect("a folder can be made");
            }),
            case("no heads", &["heads.safetensors: expected 273140 bytes, found no such file"], |copy| {
                copy.remove(HEADS);
            }),
            case(
                "no file that nobody reads",
                &["tokenizer_config.json: expected 247 bytes, found no such file"],
                |copy| copy.remove("tokenizer_config.json"),
            ),
            case("heads cut", &["heads.safetensors: expected 273140 bytes, found 273139 bytes"], |copy| {
                copy.resize(HEADS, |size| size - 1);
            }),
            case(
                "weights of a tebibyte",
                &["model/model-00001-of-00001.safetensors: expected", "found 1099511627776 bytes"],
                |copy| copy.resize(MODEL, |_| 1 << 40),
            ),
            case("a manifest of a tebibyte", &["manifest.json: expected at most", "found 1099511627776"], |copy| {
                copy.resize(BUNDLE_MANIFEST, |_| 1 << 40);
            }),
        ],
    },
    Rule {
        name: "a manifest's names are confined to the bundle",
        forged: Forged::Anchor,
        cases: &[
            case(
                "the folder above",
                &["manifest.json: expected relative paths inside the package, found \"../outside\""],
                |copy| {
                    copy.write("../outside", "x");
                    list(copy, "../outside");
                },
            ),
            case(
                "an absolute path",
                &["manifest.json: expected relative paths inside the package, found \"/etc/hostname\""],
                |copy| list(copy, "/etc/hostname"),
            ),
            case(
                "a backslash",
                &["manifest.json: expected relative paths inside the package, found \"model\\x\""],
                |copy| list(copy, "model\\x"),
            ),
            case(
                "an empty part",
                &["manifest.json: expected relative paths inside the package, found \"model//x\""],
                |copy| list(copy, "model//x"),
            ),
            case("weights outside", &["manifest.json: "], |copy| {
                copy.listing(|manifest| {
                    let listed = manifest["tensors"][MODEL].clone();
                    manifest["tensors"]["model/../../outside"] = listed;
                });
            }),
            case(
                "weights beside model",
                &["manifest.json: tensors: expected files in model/ and heads.safetensors, found other.safetensors"],
                |copy| {
                    copy.listing(|manifest| manifest["tensors"]["other.safetensors"] = json!({}));
                },
            ),
        ],
    },
    Rule {
        name: "a manifest is of this format, whole, and has no other keys",
        forged: Forged::Anchor,
        cases: &[
            case("another format", &["manifest.json: format: expected synod-bundle, found zip"], |copy| {
                set(copy, "/format", json!("zip"));
            }),
            case("another version", &["manifest.json: format_version: expected 1, found 2"], |copy| {
                set(copy, "/format_version", json!(2));
            }),
            case(
                "an unknown key",
                &["manifest.json: expected a bundle's manifest, found other content: unknown field `note`"],
                |copy| set(copy, "/note", json!("x")),
            ),
            case(
                "an unknown key of the member",
                &["manifest.json: expected a bundle's manifest, found other content: unknown field `note`"],
                |copy| set(copy, "/member/note", json!("x")),
            ),
            case(
                "an unknown key of a file",
                &["manifest.json: expected a bundle's manifest, found other content", "unknown field `mode`"],
                |copy| set(copy, "/files/calibration.json/mode", json!(1)),
            ),
            case(
                "an unknown key of a tensor",
                &["manifest.json: expected a bundle's manifest, found other content", "unknown field `data_offsets`"],
                |copy| {
                    copy.listing(|manifest| tensors(manifest, HEADS)["set_bias"]["data_offsets"] = json!([0, 4]));
                },
            ),
            case(
                "no files",
                &["manifest.json: expected a bundle's manifest, found other content: missing field `files`"],
                |copy| remove(copy, "", "files"),
            ),
            case(
                "a file twice",
                &["manifest.json: expected a bundle's manifest", "\"calibration.json\" stands twice"],
                |copy| {
                    copy.replace(BUNDLE_MANIFEST, "\"tokenizer.json\": {", "\"calibration.json\": {");
                },
            ),
            case(
                "a key twice",
                &["manifest.json: expected a bundle's manifest", "duplicate field `profile`"],
                |copy| {
                    copy.replace(BUNDLE_MANIFEST, "\"contents\"", "\"profile\": \"bf16\",\"contents\"");
                },
            ),
            case(
                "a digest that is none",
                &["manifest.json: expected a bundle's manifest", "expected 64 hexadecimal digits"],
                |copy| set(copy, "/files/calibration.json/sha256", json!("12")),
            ),
            case(
                "a negative size",
                &["manifest.json: expected a bundle's manifest", "invalid value: integer `-1`"],
                |copy| set(copy, "/files/calibration.json/size_bytes", json!(-1)),
            ),
            case("a size that is not so", &["calibration.json: expected 3244 bytes, found 3243 bytes"], |copy| {
                set(copy, "/files/calibration.json/size_bytes", json!(3244));
            }),
            case(
                "the sizes of a large file",
                &["calibration.json: expected 18446744073709551615 bytes, found 3243 bytes"],
                |copy| set(copy, "/files/calibration.json/size_bytes", json!(u64::MAX)),
            ),
            case("no calibration listed", &["calibration.json: expected only what manifest.json lists"], |copy| {
                remove(copy, "/files", "calibration.json");
            }),
            case(
                "another member's name",
                &["manifest.json: member.model_name: expected fixtures/tiny-08b, found fixtures/tiny-4b"],
                |copy| set(copy, "/member/model_name", json!("fixtures/tiny-4b")),
            ),
            case(
                "a config that is none",
                &["manifest.json: config: expected a member's config, found missing field `max_length`"],
                |copy| remove(copy, "/config", "max_length"),
            ),
            case(
                "a config of another backbone",
                &[
                    "manifest.json: config.backbone_config: expected what model/config.json says, found another backbone",
                ],
                |copy| {
                    set(copy, "/config/backbone_config/rms_norm_eps", json!(1e-5));
                },
            ),
        ],
    },
    Rule {
        name: "profile, contents and serves say what the weights are",
        forged: Forged::Anchor,
        cases: &[
            case(
                "an unknown profile",
                &["manifest.json: expected a bundle's manifest", "unknown variant `fp8`"],
                |copy| set(copy, "/profile", json!("fp8")),
            ),
            case(
                "a bf16 bundle that serves fp32",
                &["manifest.json: serves: expected [\"bf16\"], found [\"fp32\", \"bf16\"]"],
                |copy| set(copy, "/profile", json!("bf16")),
            ),
            case(
                "faithful weights called uniform",
                &["model/model-00001-of-00001.safetensors: model.", ".weight: expected dtype BF16, found F32"],
                |copy| {
                    set(copy, "/profile", json!("bf16"));
                    set(copy, "/serves", json!(["bf16"]));
                },
            ),
            case(
                "half a member that serves",
                &["manifest.json: serves: expected [], found [\"fp32\", \"bf16\"]"],
                |copy| set(copy, "/contents", json!(["model"])),
            ),
            case(
                "a half twice",
                &["manifest.json: contents: expected each half once, found [Model, Model, Heads]"],
                |copy| set(copy, "/contents", json!(["model", "model", "heads"])),
            ),
            case("nothing at all", &["manifest.json: serves: expected [], found"], |copy| {
                set(copy, "/contents", json!([]));
            }),
        ],
    },
    Rule {
        name: "the manifest's tensors are those of the headers, by name, dtype and shape",
        forged: Forged::Anchor,
        cases: &[
            case(
                "a tensor more",
                &["heads.safetensors: ghost: expected it, as the manifest lists it, found no such tensor"],
                |copy| {
                    copy.listing(|manifest| {
                        drop(tensors(manifest, HEADS).insert("ghost".into(), json!({ "dtype": "F32", "shape": [] })));
                    });
                },
            ),
            case("a tensor less", &["heads.safetensors: set_bias: expected no such tensor, found F32 []"], |copy| {
                copy.listing(|manifest| drop(tensors(manifest, HEADS).remove("set_bias")));
            }),
            case("another dtype", &["heads.safetensors: set_bias: expected BF16 [], found F32 []"], |copy| {
                copy.listing(|manifest| tensors(manifest, HEADS)["set_bias"]["dtype"] = json!("BF16"));
            }),
            case("another shape", &["heads.safetensors: set_bias: expected F32 [1], found F32 []"], |copy| {
                copy.listing(|manifest| tensors(manifest, HEADS)["set_bias"]["shape"] = json!([1]));
            }),
            case(
                "a file without tensors",
                &["manifest.json: tensors: expected model/model-00001-of-00001.safetensors, found no such file"],
                |copy| {
                    copy.listing(|manifest| {
                        drop(manifest["tensors"].as_object_mut().expect("an object").remove(MODEL));
                    });
                },
            ),
        ],
    },
    Rule {
        name: "no digest helps what is not a bundle's tensors",
        forged: Forged::Digests,
        cases: &[
            case(
                "a tensor under its package's name",
                &["model/model-00001-of-00001.safetensors: backbone.norm.weight: expected no such tensor, found one"],
                |copy| {
                    for file in [MODEL_INDEX, BUNDLE_MANIFEST] {
                        copy.replace(file, "\"model.norm.weight\"", "\"backbone.norm.weight\"");
                    }
                    copy.header(MODEL, |header| {
                        *header = String::from_utf8_lossy(header)
                            .replace("\"model.norm.weight\"", "\"backbone.norm.weight\"")
                            .into_bytes();
                    });
                },
            ),
            case("a header with a hole", &["heads.safetensors: set_bias: offset: expected"], |copy| {
                copy.header_json(HEADS, |header| {
                    let start = header["set_bias"]["data_offsets"][0].as_u64().expect("an offset");
                    header["set_bias"]["data_offsets"] = json!([start + 4, start + 8]);
                });
            }),
            case(
                "an index that sends a tensor elsewhere",
                &[
                    "model/model.safetensors.index.json: model.norm.weight: expected model/model-00001-of-00001.safetensors, found model/heads.safetensors",
                ],
                |copy| {
                    copy.json(MODEL_INDEX, |index| {
                        index["weight_map"]["model.norm.weight"] = json!("heads.safetensors");
                    });
                },
            ),
            case("a calibration without the broad head", &["calibration.json: expected a broad_head block"], |copy| {
                copy.json("calibration.json", |calibration| {
                    drop(calibration.as_object_mut().expect("an object").remove("broad_head"));
                });
            }),
        ],
    },
    Rule {
        name: "a bundle that calls itself released is made of the released package",
        forged: Forged::Anchor,
        cases: &[
            case(
                "another revision",
                &["manifest.json: member.revision: expected a778eb2ae2304cfa72fca7e53a19136dea5be012, found 0123"],
                |copy| call_released(copy, "0123"),
            ),
            case(
                "other inputs",
                &[
                    "manifest.json: inputs: ",
                    "expected a8fb5b188593463209475a7b51ceb97531b58bb1d7445b8b6a2e1a6333fd1ae2, found",
                ],
                |copy| call_released(copy, REVISION),
            ),
            case(
                "another calibration",
                &[
                    "calibration.json: expected SHA-256 d96e447962d0dc1d58fa8422dddbae8b99960e21fd75a10ef9b096f700a211f5, found",
                ],
                |copy| call_released_with_pins(copy),
            ),
            case(
                "another tokenizer",
                &[
                    "tokenizer.json: expected SHA-256 06b9509352d2af50381ab2247e083b80d32d5c0aba91c272ca9ff729b6a0e523, found",
                ],
                |copy| {
                    call_released_with_pins(copy);
                    set(copy, "/files/calibration.json/sha256", json!(PINS[2].1));
                },
            ),
            case(
                "another config",
                &["manifest.json: config: backbone_config.hidden_size: expected 1024, as released, found 128"],
                |copy| {
                    call_released_with_pins(copy);
                    set(copy, "/files/calibration.json/sha256", json!(PINS[2].1));
                    set(copy, "/files/tokenizer.json/sha256", json!(PINS[6].1));
                },
            ),
        ],
    },
];

pub(crate) const NESTED_RULES: &[Rule] = &[Rule {
    name: "a nested bundle is listed as a whole",
    forged: Forged::Files,
    cases: &[
        case("a file more", &["bf16/model/more: expected only what manifest.json lists"], |copy| {
            copy.write("bf16/model/more", "");
        }),
        case("a file less", &["bf16/heads.safetensors: expected 273140 bytes, found no such file"], |copy| {
            copy.remove("bf16/heads.safetensors");
        }),
        case("a link", &["bf16/tokenizer.json: expected a regular file inside the package, found a symlink"], |copy| {
            copy.remove("bf16/tokenizer.json");
            symlink("../tokenizer.json", copy.path("bf16/tokenizer.json")).expect("a link can be made");
        }),
        case("a bundle one deeper", &["bf16/bf16/manifest.json: expected only what manifest.json lists"], |copy| {
            fs::create_dir(copy.path("bf16/bf16")).expect("a folder can be made");
            copy.write("bf16/bf16/manifest.json", "{}");
        }),
    ],
}];

pub(crate) const HALF_RULES: &[Rule] = &[
    Rule {
        name: "half a member is not served",
        forged: Forged::Files,
        cases: &[case("as it is", &["manifest.json: serves: expected a whole member, found no "], |_| {})],
    },
    Rule {
        name: "half a member cannot be called a whole one",
        forged: Forged::Anchor,
        cases: &[case("with both contents", &["manifest.json: "], |copy| {
            set(copy, "/contents", json!(["model", "heads"]));
            set(copy, "/serves", json!(["fp32", "bf16"]));
        })],
    },
];
