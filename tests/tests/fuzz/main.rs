//! Bounded fuzzing of everything that is parsed before it is trusted: headers, manifests, indexes, deployment files.
//!
//! Each target changes sound texts and hands them to the product the way they reach it, sealed again so that what was changed is what is
//! parsed. Whatever they hold, parsing ends soon, does not panic, and refuses in short lines. Each target runs for
//! `SYNOD_FUZZ_SECONDS` (5 by default); input `n` of a run depends on `SYNOD_TEST_SEED` and `n` alone.

mod harness;
mod mutate;
mod targets;

use harness::{Fuzz, fuzz};
use targets::{deployment, header, index, manifest};

fn run(name: &str, target: targets::Target) {
    let targets::Target { seeds, try_input } = target;
    let report =
        fuzz(&Fuzz::from_environment(), &seeds, try_input).unwrap_or_else(|failure| panic!("{name}: {failure}"));
    println!("{name}: {report}");
    assert!(report.inputs > 10, "{name}: hardly anything was tried");
    assert!(report.accepted < report.inputs, "{name}: nothing was refused");
}

#[test]
fn weight_file_headers() {
    run("header", header());
}

#[test]
fn manifests_of_packages_and_bundles() {
    run("manifest", manifest());
}

#[test]
fn indexes_of_packages_and_bundles() {
    run("index", index());
}

#[test]
fn deployment_files() {
    run("deployment", deployment());
}
