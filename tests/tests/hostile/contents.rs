//! Sizes and digests: files that are not, or not any more, what was listed, anchored or released.

use serde_json::json;

use super::copy::{Copy, Forged};
use super::{BROAD_HEAD, INDEX, PACKAGE_MANIFEST, Rule, SHARD, case};

/// Changes one bit in the middle of a file.
fn flip(copy: &Copy, file: &str) {
    copy.edit(file, |bytes| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
    });
}

fn name_as(copy: &Copy, model_name: &str) {
    copy.json("config.json", |config| config["model_name"] = json!(model_name));
}

pub(crate) const RULES: &[Rule] = &[
    Rule {
        name: "one changed bit of any file is noticed",
        forged: Forged::Files,
        cases: &[
            case("the manifest", &["MODEL_MANIFEST.json: expected SHA-256", "found"], |copy| {
                flip(copy, PACKAGE_MANIFEST);
            }),
            case("the config", &["config.json: expected SHA-256", "found"], |copy| flip(copy, "config.json")),
            case("the calibration", &["calibration.json: expected SHA-256", "found"], |copy| {
                flip(copy, "calibration.json");
            }),
            case("the tokenizer", &["tokenizer.json: expected SHA-256", "found"], |copy| flip(copy, "tokenizer.json")),
            case("the index", &["model.safetensors.index.json: expected SHA-256", "found"], |copy| flip(copy, INDEX)),
            case("the weights", &["model-00001-of-00001.safetensors: expected SHA-256", "found"], |copy| {
                flip(copy, SHARD);
            }),
            case("the broad head", &["broad_head.safetensors: expected SHA-256", "found"], |copy| {
                flip(copy, BROAD_HEAD);
            }),
            case("a space in a header", &["broad_head.safetensors: expected SHA-256", "found"], |copy| {
                copy.header(BROAD_HEAD, |header| header.push(b' '));
            }),
            case("two small files that changed places", &["calibration.json: expected SHA-256", "found"], |copy| {
                let (one, two) = (copy.bytes("calibration.json"), copy.bytes("tokenizer_config.json"));
                copy.write("calibration.json", two);
                copy.write("tokenizer_config.json", one);
            }),
            case("rewritten together with the manifest", &["MODEL_MANIFEST.json: expected SHA-256", "found"], |copy| {
                let anchored = copy.anchor_text();
                copy.replace("calibration.json", "0.", "1.");
                let digest = synod_tests::fixtures::sha256(&copy.bytes("calibration.json"));
                copy.listing(|manifest| manifest["files_sha256"]["calibration.json"] = json!(digest));
                assert_eq!(copy.anchor_text(), anchored);
            }),
        ],
    },
    Rule {
        name: "a file is as long as its content says, and no longer than any member's",
        forged: Forged::Files,
        cases: &[
            case(
                "a manifest of a tebibyte",
                &["MODEL_MANIFEST.json: expected at most", "found 1099511627776"],
                |copy| copy.resize(PACKAGE_MANIFEST, |_| 1 << 40),
            ),
            case("a config of a tebibyte", &["config.json: expected at most", "found 1099511627776"], |copy| {
                copy.resize("config.json", |_| 1 << 40);
            }),
            case(
                "a tokenizer of a tebibyte",
                &["tokenizer.json: expected at most 67108864 bytes, found 1099511627776"],
                |copy| copy.resize("tokenizer.json", |_| 1 << 40),
            ),
            case(
                "an index of a tebibyte",
                &["model.safetensors.index.json: expected at most", "found 1099511627776"],
                |copy| copy.resize(INDEX, |_| 1 << 40),
            ),
            case(
                "weights of a tebibyte",
                &["model-00001-of-00001.safetensors: file size: expected 2532472, found 1099511627776"],
                |copy| copy.resize(SHARD, |_| 1 << 40),
            ),
            case(
                "half the weights",
                &["model-00001-of-00001.safetensors: file size: expected 2532472, found 1266236"],
                |copy| copy.resize(SHARD, |size| size / 2),
            ),
            case("an empty calibration", &["calibration.json: expected SHA-256", "found e3b0c44298fc1c14"], |copy| {
                copy.write("calibration.json", "");
            }),
            case("a grown calibration", &["calibration.json: expected SHA-256", "found"], |copy| {
                copy.edit("calibration.json", |bytes| bytes.push(b'\n'));
            }),
        ],
    },
    Rule {
        name: "a released name has the released files, whatever the anchor",
        forged: Forged::Digests,
        cases: &[
            case(
                "0.8B",
                &[
                    "MODEL_MANIFEST.json: expected SHA-256 a8fb5b188593463209475a7b51ceb97531b58bb1d7445b8b6a2e1a6333fd1ae2, found",
                ],
                |copy| name_as(copy, "vllm-sr/Vela-2.0-0.8B"),
            ),
            case(
                "4B",
                &[
                    "MODEL_MANIFEST.json: expected SHA-256 3e5a26db6dd50cc3939502ec861cdc0e5f6a5de8947815d598d3aea6f4624a0c, found",
                ],
                |copy| name_as(copy, "vllm-sr/Vela-2.0-4B"),
            ),
            case(
                "9B",
                &[
                    "MODEL_MANIFEST.json: expected SHA-256 8ccd2ccb2f91f7b4ee99df2e3bf885cb901f2567cfb0a6b6093778ba14dfc05f, found",
                ],
                |copy| name_as(copy, "vllm-sr/Vela-2.0-9B"),
            ),
        ],
    },
    Rule {
        name: "what is read of the small files is what the runtime serves",
        forged: Forged::Digests,
        cases: &[
            case(
                "a broad head without its calibration",
                &["calibration.json: expected a broad_head block", "found none"],
                |copy| {
                    copy.json("calibration.json", |calibration| {
                        calibration.as_object_mut().expect("an object").remove("broad_head");
                    });
                },
            ),
            case(
                "a config of another architecture",
                &["config.json: model_type: expected vela2-decoder, found vela3-decoder"],
                |copy| {
                    copy.json("config.json", |config| config["model_type"] = json!("vela3-decoder"));
                },
            ),
            case(
                "a config without end",
                &["config.json: backbone_config.vocab_size: expected", "found 1152921504606846976"],
                |copy| {
                    copy.json("config.json", |config| config["backbone_config"]["vocab_size"] = json!(1_u64 << 60));
                },
            ),
            case(
                "a name that writes to the terminal",
                &[r"config.json: model_name: expected a printable name, found \u{1b}[2J"],
                |copy| name_as(copy, "\x1b[2J"),
            ),
            case(
                "a calibration that is a list",
                &["calibration.json: expected a member's calibration, found"],
                |copy| copy.write("calibration.json", "7"),
            ),
        ],
    },
];
