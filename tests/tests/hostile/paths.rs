//! What a name can lead to beside a regular file of the package.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::process::Command;

use super::copy::{Copy, Forged};
use super::{INDEX, PACKAGE_MANIFEST, Rule, SHARD, case};

/// Moves a file out of the member and leaves a link to it.
fn link(copy: &Copy, file: &str) {
    fs::rename(copy.path(file), copy.path("../outside")).expect("a file can be renamed");
    symlink(copy.path("../outside"), copy.path(file)).expect("a link can be made");
}

/// Runs a command that puts something in the place of a file.
fn make(copy: &Copy, file: &str, command: &[&str], arguments: &[&str]) {
    copy.remove(file);
    let (program, options) = command.split_first().expect("a program");
    let mut command = Command::new(program);
    let made = command.args(options).arg(copy.path(file)).args(arguments).status();
    assert!(made.is_ok_and(|status| status.success()), "{program} {file}");
}

/// A device, where the tests may make one; elsewhere a folder, so that the case is never one of nothing.
fn device(copy: &Copy) {
    copy.remove("calibration.json");
    let made = Command::new("mknod").arg(copy.path("calibration.json")).args(["c", "1", "5"]).output();
    if !made.is_ok_and(|output| output.status.success()) {
        println!("skipped: a device, which only root can make; a folder in its place");
        fs::create_dir(copy.path("calibration.json")).expect("a folder can be made");
    }
}

/// A file that nobody may read, where that keeps the tests from reading it; elsewhere a folder.
fn unreadable(copy: &Copy) {
    let path = copy.path("calibration.json");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o0)).expect("a file can be closed to all");
    if fs::File::open(&path).is_ok() {
        println!("skipped: a file that cannot be read, as root reads all of them; a folder in its place");
        copy.remove("calibration.json");
        fs::create_dir(path).expect("a folder can be made");
    }
}

/// Lays the member out as the hub's cache does, with one file that leads elsewhere. `Copy` opens `member`, which a snapshot may
/// be behind a link: whoever names it chose it.
fn hub_snapshot(copy: &Copy, file: &str, target: &str) {
    let repository = copy.path("../models--org--name");
    let snapshot = repository.join("snapshots/0123");
    fs::create_dir_all(repository.join("snapshots")).expect("a folder can be made");
    fs::create_dir(repository.join("blobs")).expect("a folder can be made");
    fs::copy(copy.path(file), copy.path("../outside")).expect("a file can be copied");
    fs::rename(copy.path(file), repository.join("blobs/abc")).expect("a file can be renamed");
    symlink(target, copy.path(file)).expect("a link can be made");
    let member = copy.path("../member");
    fs::rename(&member, &snapshot).expect("a folder can be renamed");
    symlink(&snapshot, &member).expect("a link can be made");
}

pub(crate) const RULES: &[Rule] = &[Rule {
    name: "a listed name is a regular file of the package",
    forged: Forged::Files,
    cases: &[
        case(
            "a link for the config",
            &["config.json: expected a regular file inside the package, found a symlink"],
            |copy| link(copy, "config.json"),
        ),
        case(
            "a link for the manifest",
            &["MODEL_MANIFEST.json: expected a regular file inside the package, found a symlink"],
            |copy| link(copy, PACKAGE_MANIFEST),
        ),
        case(
            "a link for the weights",
            &["model-00001-of-00001.safetensors: expected a regular file inside the package, found a symlink"],
            |copy| link(copy, SHARD),
        ),
        case(
            "a link to another file of the package",
            &["tokenizer.json: expected a regular file inside the package, found a symlink"],
            |copy| {
                fs::rename(copy.path("tokenizer.json"), copy.path("real.json")).expect("a file can be renamed");
                symlink("real.json", copy.path("tokenizer.json")).expect("a link can be made");
            },
        ),
        case("a link to itself", &["tokenizer.json: "], |copy| {
            copy.remove("tokenizer.json");
            symlink("tokenizer.json", copy.path("tokenizer.json")).expect("a link can be made");
        }),
        case("a link to nothing", &["tokenizer.json: "], |copy| {
            copy.remove("tokenizer.json");
            symlink("nothing", copy.path("tokenizer.json")).expect("a link can be made");
        }),
        case(
            "a pipe",
            &["calibration.json: expected a regular file inside the package, found a folder, pipe or device"],
            |copy| make(copy, "calibration.json", &["mkfifo"], &[]),
        ),
        case(
            "a pipe for the weights",
            &[
                "model-00001-of-00001.safetensors: expected a regular file inside the package, found a folder, pipe or device",
            ],
            |copy| make(copy, SHARD, &["mkfifo"], &[]),
        ),
        case(
            "a folder",
            &[
                "model.safetensors.index.json: expected a regular file inside the package, found a folder, pipe or device",
            ],
            |copy| make(copy, INDEX, &["mkdir"], &[]),
        ),
        case("a socket", &["calibration.json: "], |copy| {
            copy.remove("calibration.json");
            // The name stays when the listener goes.
            drop(UnixListener::bind(copy.path("calibration.json")).expect("a socket can be made"));
        }),
        case("an unreadable file", &["calibration.json: "], |copy| unreadable(copy)),
        case("a device", &["calibration.json: "], |copy| device(copy)),
    ],
}];

pub(crate) const LINK_RULES: &[Rule] = &[
    Rule {
        name: "a link of a hub snapshot leads into the blobs of its own cache",
        forged: Forged::Files,
        cases: &[
            case(
                "out of the cache",
                &["tokenizer.json: expected a regular file inside the package, found a symlink"],
                |copy| {
                    hub_snapshot(copy, "tokenizer.json", "../../../outside");
                },
            ),
            case(
                "through the blobs and out",
                &["tokenizer.json: expected a regular file inside the package, found a symlink"],
                |copy| {
                    hub_snapshot(copy, "tokenizer.json", "../../blobs/../../outside");
                },
            ),
        ],
    },
    Rule {
        name: "no folder on the way is a link",
        forged: Forged::Digests,
        cases: &[case(
            "a linked folder",
            &["nested: expected a regular file inside the package, found a symlink"],
            |copy| {
                fs::create_dir(copy.path("../elsewhere")).expect("a folder can be made");
                fs::rename(copy.path(SHARD), copy.path("../elsewhere/model.safetensors"))
                    .expect("a file can be renamed");
                symlink("../elsewhere", copy.path("nested")).expect("a link can be made");
                for file in [INDEX, PACKAGE_MANIFEST] {
                    copy.edit(file, |bytes| {
                        *bytes = String::from_utf8_lossy(bytes).replace(SHARD, "nested/model.safetensors").into_bytes();
                    });
                }
            },
        )],
    },
    Rule {
        name: "the walk goes to any depth and refuses links, devices and what it cannot read",
        forged: Forged::Files,
        cases: &[
            case(
                "a link deep down",
                &["a/b/c/link: expected a regular file inside the package, found a symlink"],
                |copy| {
                    fs::create_dir_all(copy.path("a/b/c")).expect("a folder can be made");
                    symlink("/etc", copy.path("a/b/c/link")).expect("a link can be made");
                },
            ),
            case(
                "a pipe deep down",
                &["a/b/pipe: expected a regular file inside the package, found a folder, pipe or device"],
                |copy| {
                    fs::create_dir_all(copy.path("a/b")).expect("a folder can be made");
                    copy.write("a/b/pipe", "");
                    make(copy, "a/b/pipe", &["mkfifo"], &[]);
                },
            ),
        ],
    },
];
