//! Lies that cost memory: `synod verify` refuses them under a limit of its address space.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::process::Command;

use synod_tests::fixtures;

use super::copy::{Copy, Forged};
use super::{BROAD_HEAD, INDEX, PACKAGE_MANIFEST, SYNOD, judge_line};

/// Address space, in KiB. A sound fixture verifies in less than 100 MiB, code and stacks of two threads included; the largest
/// header is 100 MB, and its longest name may be held once more and cost as much again while it grows. What takes several
/// times its size in the file ends here.
const LIMIT_KIB: u64 = 512 << 10;

/// How many cases there are.
pub(crate) const COUNT: usize = CASES.len();
/// A little less than a header may have.
const HEADER_BYTES: usize = 99_000_000;
/// As much as a small file may have, the tokenizer apart.
const FILE_BYTES: usize = 4 << 20;

struct Attack {
    name: &'static str,
    expected: &'static [&'static str],
    forged: Forged,
    spoil: fn(&mut Copy),
}

/// Fills a text of `size` bytes: `start`, then pieces for 0, 1, 2 and so on, each told from the one before by a comma, `end`.
fn filled(size: usize, start: &str, piece: impl Fn(usize) -> String, end: &str) -> Vec<u8> {
    let mut text = start.as_bytes().to_vec();
    text.reserve_exact(size - text.len());
    for index in 0.. {
        let piece = piece(index);
        if text.len() + piece.len() + 1 + end.len() > size {
            break;
        }
        if index > 0 {
            text.push(b',');
        }
        text.extend_from_slice(piece.as_bytes());
    }
    text.extend_from_slice(end.as_bytes());
    text
}

/// Makes the broad head a file of this header, without data.
fn header(copy: &Copy, header: &[u8]) {
    let file = File::create(copy.path(BROAD_HEAD)).expect("a temporary folder is writable");
    let mut file = BufWriter::new(file);
    file.write_all(&(header.len() as u64).to_le_bytes()).expect("there is room");
    file.write_all(header).expect("there is room");
}

fn tensor(name: &str) -> String {
    format!(r#""{name}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#)
}

/// A text of `size` bytes: `start`, an object of short entries, and two braces.
fn entries(size: usize, start: &str) -> Vec<u8> {
    filled(size, start, |index| format!(r#""{index}":"""#), "}}")
}

/// Makes the package a folder with a bundle's manifest, whose config is a list.
fn bundle_manifest(copy: &Copy, size: usize) {
    copy.remove(PACKAGE_MANIFEST);
    copy.write("manifest.json", filled(size, r#"{"format":"synod-bundle","config":["#, |_| "0".into(), "]}"));
}

const CASES: [Attack; 16] = [
    Attack {
        name: "a header of a million tensors",
        expected: &["broad_head.safetensors: expected a safetensors header, found other content: more than"],
        forged: Forged::Files,
        spoil: |copy| header(copy, &filled(HEADER_BYTES, "{", |index| tensor(&index.to_string()), "}")),
    },
    Attack {
        name: "a header of endless metadata",
        expected: &["broad_head.safetensors: expected a safetensors header, found other content: "],
        forged: Forged::Files,
        spoil: |copy| {
            header(copy, &filled(HEADER_BYTES, r#"{"__metadata__":{"#, |index| format!(r#""{index}":"""#), "}}"));
        },
    },
    Attack {
        name: "a header nested without end",
        expected: &["broad_head.safetensors: expected a safetensors header, found invalid JSON"],
        forged: Forged::Files,
        spoil: |copy| header(copy, &[b"{\"a\":".to_vec(), vec![b'['; HEADER_BYTES]].concat()),
    },
    Attack {
        name: "a header of one endless shape",
        expected: &["broad_head.safetensors: expected a safetensors header, found other content: a: invalid length 9"],
        forged: Forged::Files,
        spoil: |copy| {
            header(
                copy,
                &filled(
                    HEADER_BYTES,
                    r#"{"a":{"dtype":"F32","shape":["#,
                    |_| "0".into(),
                    r#"],"data_offsets":[0,0]}}"#,
                ),
            );
        },
    },
    Attack {
        name: "a header of one endless name",
        expected: &["broad_head.safetensors: xxxx", "expected no such tensor"],
        forged: Forged::Files,
        spoil: |copy| header(copy, format!("{{{}}}", tensor(&"x".repeat(HEADER_BYTES))).as_bytes()),
    },
    Attack {
        name: "a header of one endless name, escaped",
        expected: &["broad_head.safetensors: "],
        forged: Forged::Files,
        spoil: |copy| header(copy, format!("{{{}}}", tensor(&r"\n".repeat(HEADER_BYTES / 2))).as_bytes()),
    },
    Attack {
        name: "a header of zeros, as long as it may be",
        expected: &["broad_head.safetensors: expected a safetensors header, found invalid JSON"],
        forged: Forged::Files,
        spoil: |copy| {
            copy.header_length(BROAD_HEAD, 100_000_000);
            copy.resize(BROAD_HEAD, |_| 100_000_008);
            copy.edit(BROAD_HEAD, |bytes| bytes[8..].fill(0));
        },
    },
    Attack {
        name: "weights of a tebibyte",
        expected: &["broad_head.safetensors: file size: expected 102236, found 1099511627776"],
        forged: Forged::Files,
        spoil: |copy| copy.resize(BROAD_HEAD, |_| 1 << 40),
    },
    Attack {
        name: "a tokenizer of a tebibyte",
        expected: &["tokenizer.json: expected at most"],
        forged: Forged::Files,
        spoil: |copy| copy.resize("tokenizer.json", |_| 1 << 40),
    },
    Attack {
        name: "a huge shape over few bytes",
        expected: &["broad_head.safetensors: a: expected 4398046511104 bytes, as shape [1048576, 1048576] needs"],
        forged: Forged::Files,
        spoil: |copy| header(copy, br#"{"a":{"dtype":"F32","shape":[1048576,1048576],"data_offsets":[0,4]}}"#),
    },
    Attack {
        name: "a manifest of a million files",
        expected: &["MODEL_MANIFEST.json: expected at most 4194304 bytes, found"],
        forged: Forged::Anchor,
        spoil: |copy| copy.write(PACKAGE_MANIFEST, entries(16 * FILE_BYTES, r#"{"files_sha256":{"#)),
    },
    Attack {
        name: "a manifest of as many files as it can hold",
        expected: &["MODEL_MANIFEST.json: expected a package's manifest, found other content: more than 65536 entries"],
        forged: Forged::Anchor,
        spoil: |copy| copy.write(PACKAGE_MANIFEST, entries(FILE_BYTES, r#"{"files_sha256":{"#)),
    },
    Attack {
        name: "an index of as many tensors as it can hold",
        expected: &["model.safetensors.index.json: expected an index of weight files", "more than 65536 entries"],
        forged: Forged::Digests,
        spoil: |copy| copy.write(INDEX, entries(FILE_BYTES, r#"{"weight_map":{"#)),
    },
    Attack {
        name: "a config of as many layers as it can hold",
        expected: &["config.json: expected a member's config, found other content"],
        forged: Forged::Digests,
        spoil: |copy| {
            let start = r#"{"backbone_config":{"layer_types":["#;
            copy.write("config.json", filled(FILE_BYTES, start, |_| "\"full_attention\"".into(), "]}}"));
        },
    },
    Attack {
        name: "a bundle's manifest of endless values",
        expected: &["manifest.json: expected at most 4194304 bytes, found"],
        forged: Forged::Anchor,
        spoil: |copy| bundle_manifest(copy, 16 * FILE_BYTES),
    },
    Attack {
        name: "a bundle's manifest of as many values as it can hold",
        expected: &["manifest.json: expected a bundle's manifest, found other content: missing field"],
        forged: Forged::Anchor,
        spoil: |copy| bundle_manifest(copy, FILE_BYTES),
    },
];

/// `synod verify` under the limit: refused in one line, and not by the allocator.
fn check(attack: &Attack) -> Result<(), String> {
    let mut copy = Copy::of(&fixtures::path("members/tiny-08b"), PACKAGE_MANIFEST);
    (attack.spoil)(&mut copy);
    let bundle = copy.path("manifest.json");
    let anchor = if bundle.exists() {
        format!("sha256:{}", fixtures::sha256(&copy.bytes("manifest.json")))
    } else {
        copy.forge(attack.forged);
        copy.anchor_text()
    };
    let script = format!("ulimit -v {LIMIT_KIB} && exec \"$0\" verify \"$1\" --anchor \"$2\"");
    let output = Command::new("bash").args(["-c", &script, SYNOD]).arg(copy.root()).arg(&anchor).output();
    let output = output.expect("there is a bash");
    let stderr = String::from_utf8_lossy(&output.stderr);
    if output.status.code() != Some(1) || !output.stdout.is_empty() {
        return Err(format!("{}: {stderr}", output.status));
    }
    let line = stderr.strip_suffix('\n').unwrap_or(&stderr);
    let start =
        line.find(attack.expected[0]).ok_or_else(|| format!("expected {:?}\n    found {line}", attack.expected))?;
    judge_line(line, &[&line[..start]])?;
    judge_line(&line[start..], attack.expected)
}

#[test]
fn what_attacks_memory_is_refused_within_a_bound() {
    let failures: Vec<String> = CASES
        .iter()
        .filter_map(|attack| check(attack).err().map(|failure| format!("{}: {failure}", attack.name)))
        .collect();
    assert!(failures.is_empty(), "{} of {COUNT} attacks:\n{}", failures.len(), failures.join("\n"));
}
