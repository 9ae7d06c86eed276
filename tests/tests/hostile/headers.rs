//! What the header of a weight file can say that is not so.

use serde_json::json;

use super::copy::Forged;
use super::{BROAD_HEAD, Rule, SHARD, case};

pub(crate) const RULES: &[Rule] = &[
    Rule {
        name: "a header is as long as it says, at most 100,000,000 bytes, and inside its file",
        forged: Forged::Digests,
        cases: &[
            case(
                "beyond the file",
                &[
                    "model-00001-of-00001.safetensors: header length: expected at most 2532464 bytes, found 72057594037927936",
                ],
                |copy| {
                    copy.header_length(SHARD, 1 << 56);
                },
            ),
            case(
                "the largest number",
                &[
                    "model-00001-of-00001.safetensors: header length: expected at most 2532464 bytes, found 18446744073709551615",
                ],
                |copy| {
                    copy.header_length(SHARD, u64::MAX);
                },
            ),
            case(
                "one more than the file",
                &["model-00001-of-00001.safetensors: header length: expected at most 2532464 bytes, found 2532465"],
                |copy| {
                    copy.header_length(SHARD, 2_532_465);
                },
            ),
            case(
                "beyond the bound",
                &["broad_head.safetensors: header length: expected at most 100000000 bytes, found 100000001"],
                |copy| {
                    copy.header_length(BROAD_HEAD, 100_000_001);
                    copy.resize(BROAD_HEAD, |_| 200_000_000);
                },
            ),
            case("zero", &["broad_head.safetensors: expected a safetensors header, found invalid JSON: EOF"], |copy| {
                copy.header_length(BROAD_HEAD, 0);
            }),
            case(
                "cut inside an entry",
                &["broad_head.safetensors: expected a safetensors header, found invalid JSON: EOF"],
                |copy| {
                    copy.header_length(BROAD_HEAD, 100);
                },
            ),
            case(
                "into the data",
                &["broad_head.safetensors: expected a safetensors header, found invalid JSON"],
                |copy| {
                    let header = u64::from_le_bytes(*copy.bytes(BROAD_HEAD).first_chunk().expect("a length"));
                    copy.header_length(BROAD_HEAD, header + 16);
                },
            ),
            case(
                "no room for a length",
                &["broad_head.safetensors: file size: expected at least 8 bytes, found 7"],
                |copy| {
                    copy.edit(BROAD_HEAD, |bytes| bytes.truncate(7));
                },
            ),
            case("an empty file", &["broad_head.safetensors: file size: expected at least 8 bytes, found 0"], |copy| {
                copy.write(BROAD_HEAD, "");
            }),
        ],
    },
    Rule {
        name: "a header is a JSON object of tensors, each named once",
        forged: Forged::Digests,
        cases: &[
            case("not JSON", &["broad_head.safetensors: expected a safetensors header, found invalid JSON"], |copy| {
                copy.header(BROAD_HEAD, |header| *header = b"tensors".to_vec());
            }),
            case(
                "not UTF-8",
                &["broad_head.safetensors: expected a safetensors header, found invalid JSON: invalid utf-8 sequence"],
                |copy| {
                    copy.header(BROAD_HEAD, |header| *header = b"{\"\xff\":{}}".to_vec());
                },
            ),
            case(
                "a list",
                &["broad_head.safetensors: expected a safetensors header, found other content: invalid type: sequence"],
                |copy| {
                    copy.header(BROAD_HEAD, |header| *header = b"[]".to_vec());
                },
            ),
            case(
                "two objects",
                &["broad_head.safetensors: expected a safetensors header, found invalid JSON: trailing characters"],
                |copy| {
                    copy.header(BROAD_HEAD, |header| header.extend(b"{}"));
                },
            ),
            case(
                "a name twice",
                &["broad_head.safetensors: expected a safetensors header", "\"span_broad.M.bias\" stands twice"],
                |copy| {
                    copy.header_json(BROAD_HEAD, |header| header["x"] = header["span_broad.M.bias"].clone());
                    copy.header(BROAD_HEAD, |header| {
                        let text = String::from_utf8_lossy(header).replace("\"x\":", "\"span_broad.M.bias\":");
                        *header = text.into_bytes();
                    });
                },
            ),
            case(
                "a tensor that is a number",
                &[
                    "broad_head.safetensors: expected a safetensors header",
                    "span_broad.M.bias: invalid type: integer `1`",
                ],
                |copy| {
                    copy.header_json(BROAD_HEAD, |header| header["span_broad.M.bias"] = json!(1));
                },
            ),
            case(
                "a tensor without offsets",
                &[
                    "broad_head.safetensors: expected a safetensors header",
                    "span_broad.M.bias: missing field `data_offsets`",
                ],
                |copy| {
                    copy.header_json(BROAD_HEAD, |header| {
                        header["span_broad.M.bias"].as_object_mut().expect("an entry").remove("data_offsets");
                    });
                },
            ),
            case(
                "metadata that is no object",
                &["broad_head.safetensors: expected a safetensors header", "invalid type: integer"],
                |copy| {
                    copy.header_json(BROAD_HEAD, |header| header["__metadata__"] = json!(7));
                },
            ),
            case(
                "metadata that is no text",
                &["broad_head.safetensors: expected a safetensors header", "invalid type: sequence"],
                |copy| {
                    copy.header_json(BROAD_HEAD, |header| header["__metadata__"] = json!({"format": [1]}));
                },
            ),
        ],
    },
    Rule {
        name: "a tensor has a known dtype and a shape that its bytes fill",
        forged: Forged::Digests,
        cases: &[
            case(
                "an unknown dtype",
                &["broad_head.safetensors: span_broad.M.bias: expected dtype F32 or BF16, found Q4"],
                |copy| {
                    copy.header_json(BROAD_HEAD, |header| header["span_broad.M.bias"]["dtype"] = json!("Q4"));
                },
            ),
            case(
                "a dtype of another size",
                &[
                    "broad_head.safetensors: span_broad.M.bias: expected 64 bytes, as shape [32] needs, found data_offsets",
                ],
                |copy| {
                    copy.header_json(BROAD_HEAD, |header| header["span_broad.M.bias"]["dtype"] = json!("BF16"));
                },
            ),
            case(
                "a dtype that is no text",
                &["broad_head.safetensors: expected a safetensors header", "span_broad.M.bias: invalid type: integer"],
                |copy| {
                    copy.header_json(BROAD_HEAD, |header| header["span_broad.M.bias"]["dtype"] = json!(4));
                },
            ),
            case(
                "a negative size",
                &[
                    "broad_head.safetensors: expected a safetensors header",
                    "span_broad.M.bias: invalid value: integer `-32`",
                ],
                |copy| {
                    copy.header_json(BROAD_HEAD, |header| header["span_broad.M.bias"]["shape"] = json!([-32]));
                },
            ),
            case(
                "a fraction",
                &[
                    "broad_head.safetensors: expected a safetensors header",
                    "span_broad.M.bias: invalid type: floating point",
                ],
                |copy| {
                    copy.header_json(BROAD_HEAD, |header| header["span_broad.M.bias"]["shape"] = json!([31.5]));
                },
            ),
            case(
                "a size that overflows",
                &["broad_head.safetensors: span_broad.M.bias: expected a shape that fits in memory"],
                |copy| {
                    copy.header_json(BROAD_HEAD, |header| {
                        header["span_broad.M.bias"]["shape"] = json!([1_u64 << 32, 1_u64 << 32]);
                    });
                },
            ),
            case(
                "bytes that overflow",
                &["broad_head.safetensors: span_broad.M.bias: expected a shape that fits in memory"],
                |copy| {
                    copy.header_json(BROAD_HEAD, |header| header["span_broad.M.bias"]["shape"] = json!([1_u64 << 62]));
                },
            ),
            case(
                "sizes that overflow to the true one",
                &["broad_head.safetensors: span_broad.M.bias: expected a shape that fits in memory"],
                |copy| {
                    // 2^59 · 32 · 2 · 4 = 2^66, and the rest of a wrapped product is 0; times 0 it would be any size.
                    copy.header_json(BROAD_HEAD, |header| {
                        header["span_broad.M.bias"]["shape"] = json!([1_u64 << 59, 32, 2]);
                    });
                },
            ),
            case(
                "nine dimensions",
                &[
                    "broad_head.safetensors: expected a safetensors header",
                    "span_broad.M.bias: invalid length 9, expected a shape of at most 8 dimensions",
                ],
                |copy| {
                    copy.header_json(BROAD_HEAD, |header| {
                        header["span_broad.M.bias"]["shape"] = json!([32, 1, 1, 1, 1, 1, 1, 1, 1]);
                    });
                },
            ),
            case(
                "a dimension of zero",
                &["broad_head.safetensors: span_broad.M.bias: expected 0 bytes, as shape [0] needs"],
                |copy| {
                    copy.header_json(BROAD_HEAD, |header| header["span_broad.M.bias"]["shape"] = json!([0]));
                },
            ),
            case("an empty tensor more", &["broad_head.safetensors: ghost: expected no such tensor"], |copy| {
                copy.header_json(BROAD_HEAD, |header| {
                    header["ghost"] = json!({ "dtype": "F32", "shape": [0, 5], "data_offsets": [0, 0] });
                });
            }),
        ],
    },
    Rule {
        name: "tensors tile the data section exactly",
        forged: Forged::Digests,
        cases: &[
            case(
                "two at one place",
                &[
                    "model-00001-of-00001.safetensors: backbone.layers.0.input_layernorm.weight: offset: expected 1024000, found 1023488",
                ],
                |copy| {
                    copy.header_json(SHARD, |header| {
                        header["backbone.layers.0.input_layernorm.weight"]["data_offsets"] =
                            json!([1_023_488, 1_024_000]);
                    });
                },
            ),
            case(
                "a hole",
                &[
                    "model-00001-of-00001.safetensors: backbone.layers.0.input_layernorm.weight: offset: expected 1024000, found 1024004",
                ],
                |copy| {
                    copy.header_json(SHARD, |header| {
                        header["backbone.layers.0.input_layernorm.weight"]["data_offsets"] =
                            json!([1_024_004, 1_024_516]);
                    });
                },
            ),
            case(
                "reversed",
                &[
                    "model-00001-of-00001.safetensors: backbone.embed_tokens.weight: expected 1024000 bytes",
                    "found data_offsets [1024000, 0]",
                ],
                |copy| {
                    copy.header_json(SHARD, |header| {
                        header["backbone.embed_tokens.weight"]["data_offsets"] = json!([1_024_000, 0]);
                    });
                },
            ),
            case(
                "not from the start",
                &[
                    "model-00001-of-00001.safetensors: backbone.layers.0.input_layernorm.weight: offset: expected 0, found 1024000",
                ],
                |copy| {
                    copy.header_json(SHARD, |header| {
                        header.as_object_mut().expect("a header").remove("backbone.embed_tokens.weight");
                    });
                },
            ),
            case(
                "before the data",
                &[
                    "model-00001-of-00001.safetensors: expected a safetensors header",
                    "backbone.embed_tokens.weight: invalid value: integer `-8`",
                ],
                |copy| {
                    copy.header_json(SHARD, |header| {
                        header["backbone.embed_tokens.weight"]["data_offsets"] = json!([-8, 1_023_992]);
                    });
                },
            ),
            case(
                "beyond the file",
                &["model-00001-of-00001.safetensors: zz: offset: expected 2524392, found 4611686018427387904"],
                |copy| {
                    copy.header_json(SHARD, |header| {
                        let offsets = json!([1_u64 << 62, (1_u64 << 62) + 4]);
                        header["zz"] = json!({ "dtype": "F32", "shape": [], "data_offsets": offsets });
                    });
                },
            ),
            case(
                "near the largest number",
                &["broad_head.safetensors: span_broad.M.bias: expected 128 bytes", "18446744073709551615"],
                |copy| {
                    copy.header_json(BROAD_HEAD, |header| {
                        header["span_broad.M.bias"]["data_offsets"] = json!([u64::MAX - 128, u64::MAX]);
                    });
                },
            ),
            case(
                "one offset",
                &["broad_head.safetensors: expected a safetensors header", "span_broad.M.bias: invalid length 1"],
                |copy| {
                    copy.header_json(BROAD_HEAD, |header| header["span_broad.M.bias"]["data_offsets"] = json!([0]));
                },
            ),
            case(
                "bytes after the last",
                &["broad_head.safetensors: file size: expected 102236, found 102237"],
                |copy| {
                    copy.edit(BROAD_HEAD, |bytes| bytes.push(0));
                },
            ),
            case("a byte too few", &["broad_head.safetensors: file size: expected 102236, found 102235"], |copy| {
                copy.resize(BROAD_HEAD, |size| size - 1);
            }),
        ],
    },
];
