//! `synod replay` from outside: every recorded case passes, and every way to spoil a recording fails by its name.

mod spoiled;

use std::fs;
use std::path::{Path, PathBuf};

use synod_tests::fixtures;
use synod_tests::server::{Finished, run};
use tempfile::TempDir;

use self::spoiled::{SPOILED, Spoiled};

const SYNOD: &str = env!("CARGO_BIN_EXE_synod-tested");

fn folder() -> TempDir {
    tempfile::tempdir().expect("there is a place for temporary files")
}

/// `synod replay` of the cases in `cases` on a package.
fn replay(package: &Path, cases: &Path, further: &[&str]) -> Finished {
    let text = |path: &Path| path.to_str().expect("the path is UTF-8").to_owned();
    let (member, anchor, cases) = (text(package), fixtures::anchor(package), text(cases));
    let arguments = ["replay", "--member", &member, "--anchor", &anchor, "--fixtures", &cases];
    run(SYNOD, &[arguments.as_slice(), further].concat(), folder().path(), "")
}

fn member(name: &str) -> PathBuf {
    fixtures::path("members").join(name)
}

/// The columns of the report after the case's name: plan, five distances, result.
fn line<'a>(finished: &'a Finished, case: &str) -> Vec<&'a str> {
    let line = finished.stdout.lines().find_map(|line| line.strip_prefix(case)?.strip_prefix("  "));
    let line = line.unwrap_or_else(|| panic!("{case} is not in {}{}", finished.stdout, finished.stderr));
    let mut rest = line;
    let mut columns = Vec::new();
    while columns.len() < 6 {
        let (column, after) = rest.trim_start().split_once(' ').unwrap_or((rest.trim_start(), ""));
        columns.push(column);
        rest = after;
    }
    columns.push(rest.trim());
    columns
}

/// A folder with one file, and what `replay` makes of it.
fn replay_one(name: &str, text: &str, further: &[&str]) -> Finished {
    let cases = folder();
    fs::write(cases.path().join(format!("{name}.json")), text).expect("a temporary folder is writable");
    replay(&member("tiny-08b"), cases.path(), further)
}

#[test]
fn every_recorded_case_of_every_member_passes() {
    for name in fixtures::MEMBERS {
        let finished = replay(&member(name), &fixtures::path("vela").join(name), &[]);
        assert_eq!((finished.code, finished.stderr.as_str()), (Some(0), ""), "{name}: {}", finished.stdout);
        let cases = fixtures::cases_in("vela", name);
        for case in &cases {
            let (_, case) = case.name.split_once('/').expect("a name of two parts");
            assert_eq!(line(&finished, case).last(), Some(&"ok"), "{name}: {}", finished.stdout);
        }
        assert!(finished.stdout.contains(&format!("{0} cases, {0} as recorded", cases.len())), "{}", finished.stdout);
    }
}

/// Rounding moves logits by more than the gate of fp32 and less than that of bf16, and decisions with a margin not at all.
#[test]
fn every_recorded_case_of_every_member_passes_in_bf16() {
    for name in fixtures::MEMBERS {
        let cases = fixtures::path("vela").join(name);
        let finished = replay(&member(name), &cases, &["--profile", "bf16"]);
        assert_eq!((finished.code, finished.stderr.as_str()), (Some(0), ""), "{name}: {}", finished.stdout);
        let count = fixtures::cases_in("vela", name).len();
        assert!(finished.stdout.contains(&format!("{count} cases, {count} as recorded")), "{}", finished.stdout);
        let distance = |case: &str| line(&finished, case)[3].parse::<f64>().ok();
        let names = fixtures::cases_in("vela", name);
        let names = names.iter().filter_map(|case| case.name.split_once('/'));
        let largest = names.filter_map(|(_, case)| distance(case)).fold(0.0, f64::max);
        assert!((1e-4..0.35).contains(&largest), "{name}: {}", finished.stdout);
    }
}

#[test]
fn recorded_head_inputs_are_compared_as_well() {
    let finished = replay(&member("tiny-08b"), &fixtures::path("heads/tiny-08b"), &[]);
    assert_eq!((finished.code, finished.stderr.as_str()), (Some(0), ""), "{}", finished.stdout);
    for case in ["golden", "list-forms", "windows-long-word"] {
        let columns = line(&finished, case);
        let distances: Vec<f64> = columns[1..6].iter().map(|column| column.parse().expect("a distance")).collect();
        let [heads, states, ..] = distances[..] else { panic!("{columns:?}") };
        assert!((1e-9..1e-4).contains(&heads) && (1e-9..1e-3).contains(&states), "{case}: {columns:?}");
    }
}

/// The folder of a synthetic member holds a table of digests beside its cases, which is no case.
#[test]
fn a_synthetic_member_passes() {
    let folder = folder();
    let finished = run(SYNOD, &["synth", "--shape", "tiny", "--seed", "1", "--out", "tiny"], folder.path(), "");
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let finished = replay(&folder.path().join("tiny"), &fixtures::path("synth/tiny"), &[]);
    assert_eq!((finished.code, finished.stderr.as_str()), (Some(0), ""), "{}", finished.stdout);
    assert!(finished.stdout.contains("2 cases, 2 as recorded"), "{}", finished.stdout);
}

/// All in one folder: a bad case fails by itself, and the good one beside it passes.
#[test]
fn every_spoiled_recording_fails_with_its_own_line() {
    let cases = folder();
    let write = |name: &str, text: &str| {
        fs::write(cases.path().join(format!("{name}.json")), text).expect("a temporary folder is writable");
    };
    write("as-recorded", &fixtures::text("heads/tiny-08b/golden.json"));
    for Spoiled { name, base, spoil, .. } in SPOILED {
        let original = fixtures::text(&format!("{base}.json"));
        let text = spoil.apply(&original);
        assert_ne!(text, original, "{name} spoils nothing");
        write(name, &text);
    }
    let finished = replay(&member("tiny-08b"), cases.path(), &[]);
    let count = SPOILED.len();
    assert_eq!(finished.code, Some(1), "{}{}", finished.stdout, finished.stderr);
    assert_eq!(finished.stderr, format!("{count} of {} cases: not as recorded\n", count + 1));
    assert_eq!(line(&finished, "as-recorded").last(), Some(&"ok"));
    let mut wrong = Vec::new();
    for Spoiled { name, expected, .. } in SPOILED {
        let result = line(&finished, name)[6];
        if !result.starts_with(expected) {
            wrong.push(format!("{name}: expected {expected}\n  found {result}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(count >= 40, "{count}");
}

/// Tiny members do not reach the gate of FP32; a tighter one must fail, and name the place.
#[test]
fn a_tighter_gate_fails_where_the_wide_one_passes() {
    let golden = fixtures::text("heads/tiny-08b/golden.json");
    let finished = replay_one("golden", &golden, &["--gate", "1e-4"]);
    assert_eq!((finished.code, finished.stderr.as_str()), (Some(0), ""), "{}", finished.stdout);
    let finished = replay_one("golden", &golden, &["--gate", "1e-9"]);
    assert_eq!(finished.code, Some(1), "{}", finished.stdout);
    let columns = line(&finished, "golden");
    assert!(columns[6].starts_with("logits.domain, row 0: option ") && columns[6].contains(" within "), "{columns:?}");
    // Distances are told all the same, those of the response too.
    assert!(columns[1..6].iter().all(|column| column.parse::<f64>().is_ok()), "{columns:?}");
}

#[test]
fn a_gate_that_would_widen_is_brought_back_with_a_warning() {
    // Far outside the gate of FP32, within what is asked for.
    let spoiled = SPOILED.iter().find(|spoiled| spoiled.name == "logit-beyond-the-gate").expect("a spoiled logit");
    let text = spoiled.spoil.apply(&fixtures::text(&format!("{}.json", spoiled.base)));
    for gate in ["0.5", "inf", "nan", "-1", "0", "wide"] {
        let finished = replay_one("logit", &text, &["--gate", gate]);
        assert_eq!(finished.code, Some(1), "{gate}: {}", finished.stdout);
        assert!(line(&finished, "logit")[6].starts_with(spoiled.expected), "{gate}: {}", finished.stdout);
        let warning = finished.stderr.lines().next().unwrap_or_default();
        assert!(warning.starts_with("--gate: ") && warning.contains("1e-4 is used"), "{gate}: {}", finished.stderr);
        assert_eq!(finished.stderr.lines().count(), 2, "{gate}: {}", finished.stderr);
    }
}

#[test]
fn a_folder_without_cases_fails_in_one_line() {
    let empty = folder();
    let nested = folder();
    fs::create_dir(nested.path().join("inside.json")).expect("a temporary folder is writable");
    let golden = fixtures::text("vela/tiny-08b/golden.json");
    for file in ["inside.json/golden.json", "tensors.sha256.json", "README.md"] {
        fs::write(nested.path().join(file), &golden).expect("a temporary folder is writable");
    }
    for cases in [empty.path(), nested.path(), &empty.path().join("absent")] {
        let finished = replay(&member("tiny-08b"), cases, &[]);
        assert_eq!((finished.code, finished.stdout.as_str()), (Some(1), ""), "{}", finished.stderr);
        assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
        assert!(finished.stderr.starts_with(cases.to_str().expect("UTF-8")), "{}", finished.stderr);
    }
}

#[test]
fn a_case_of_another_member_is_refused() {
    let cases = folder();
    fs::write(cases.path().join("golden.json"), fixtures::text("vela/tiny-4b/golden.json")).expect("writable");
    let finished = replay(&member("tiny-08b"), cases.path(), &[]);
    assert_eq!(finished.code, Some(1), "{}", finished.stdout);
    assert_eq!(
        line(&finished, "golden")[6],
        "member: expected a case of fixtures/tiny-08b, found one of fixtures/tiny-4b"
    );
}
