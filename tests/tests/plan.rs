//! `synod plan`, what `check` says of memory, and the start that is refused for want of it.

use std::fs;
use std::path::PathBuf;

use synod_tests::deployment::Deployment;
use synod_tests::fixtures;
use synod_tests::server::{Finished, run};

const SYNOD: &str = env!("CARGO_BIN_EXE_synod-tested");

/// A command on a deployment file, with further arguments.
fn on(toml: &str, command: &str, arguments: &[&str]) -> Finished {
    let folder = tempfile::tempdir().expect("there is a place for temporary files");
    fs::write(folder.path().join("deployment.toml"), toml).expect("a temporary folder is writable");
    let arguments: Vec<&str> = [command, "--config", "deployment.toml"].iter().chain(arguments).copied().collect();
    run(SYNOD, &arguments, folder.path(), "")
}

fn deployment(cache_mib: u64) -> String {
    let line = format!("prefix_cache_mib = {cache_mib}");
    Deployment::of(&["tiny-08b"]).member_line(&line).member("tiny-4b", &package("tiny-4b")).member_line(&line).to_toml()
}

fn package(member: &str) -> PathBuf {
    fixtures::path("members").join(member)
}

/// The words of the lines that begin with `name`.
fn rows<'a>(text: &'a str, name: &str) -> Vec<Vec<&'a str>> {
    let rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row.first() == Some(&name)).collect()
}

fn number(word: Option<&&str>) -> u64 {
    word.and_then(|word| word.parse().ok()).expect("the word is a number")
}

#[test]
fn plan_and_check_say_the_same() {
    let toml = deployment(16);
    let (plan, check) = (on(&toml, "plan", &["--host", "64GiB"]), on(&toml, "check", &[]));
    assert_eq!((plan.code, check.code), (Some(0), Some(0)), "{}{}", plan.stderr, check.stderr);
    for member in ["tiny-08b", "tiny-4b"] {
        let planned = rows(&plan.stdout, member);
        let chosen: Vec<_> = planned.iter().filter(|row| row.contains(&"*")).collect();
        assert_eq!((planned.len(), chosen.len()), (2, 1), "both profiles, one of them chosen: {}", plan.stdout);
        // member, profile, *, device, nine parts, total.
        let (row, total) = (chosen[0], number(chosen[0].last()));
        assert_eq!((row[1], row[3], row.len()), ("fp32", "cpu:*", 14));
        assert_eq!(row[10], "16", "the cache that was asked for");
        let parts: u64 = row[4..13].iter().map(|part| number(Some(part))).sum();
        assert!((total..total + 9).contains(&parts), "parts are rounded up, each: {row:?}");
        let checked = rows(&check.stdout, member);
        assert_eq!(number(checked[0].get(4)), total, "{}", check.stdout);
    }
    assert!(
        plan.stdout.contains("\nhost, 65536 MiB: tiny-08b ") && plan.stdout.contains(": fits, "),
        "{}",
        plan.stdout
    );
}

/// What this build does not serve can be planned for: it is about machines that are not here.
#[test]
fn plan_fits_members_on_cards() {
    let toml = deployment(1024)
        .replacen("devices = [\"cpu:*\"]", "devices = [\"cuda:0\", \"cuda:1\"]", 1)
        .replacen("devices = [\"cpu:*\"]", "devices = [\"cuda:1\"]", 1)
        .replacen("profile = \"fp32\"", "profile = \"bf16\"", 1);
    let without = on(&toml, "plan", &[]);
    assert_eq!(without.code, Some(0), "{}", without.stderr);
    assert!(without.stdout.contains("no cards are known") && !without.stdout.contains("fits,"), "{}", without.stdout);
    let large = on(&toml, "plan", &["--cards", "2x24GiB@100TFLOPS"]);
    assert_eq!(large.code, Some(0), "{}", large.stderr);
    assert!(large.stdout.contains("\ncuda:1, 24576 MiB: tiny-08b ") && large.stdout.contains(" + tiny-4b "));
    assert_eq!(large.stdout.matches("an upper bound of ").count(), 3, "{}", large.stdout);

    let small = on(&toml, "plan", &["--cards", "24GiB,2560MiB"]);
    assert_eq!(small.code, Some(1), "{}", small.stdout);
    assert!(small.stderr.ends_with("does not fit: cuda:1\n"), "{}", small.stderr);
    for advice in ["too much", "with prefix_cache_mib = ", "with tiny-4b on cuda:0 instead", "with a card of "] {
        assert!(small.stdout.contains(advice), "{advice} is not in {}", small.stdout);
    }
    let one = on(&toml, "plan", &["--cards", "24GiB"]);
    assert_eq!(one.code, Some(1));
    assert!(one.stderr.contains("tiny-08b on cuda:1, which is not given"), "{}", one.stderr);
}

#[test]
fn plan_says_what_a_host_lacks() {
    let finished = on(&deployment(1024), "plan", &["--host", "2GiB"]);
    assert_eq!(finished.code, Some(1), "{}", finished.stdout);
    assert!(finished.stderr.ends_with("does not fit: host\n"), "{}", finished.stderr);
    assert!(finished.stdout.contains("host, 2048 MiB: ") && finished.stdout.contains("with prefix_cache_mib = "));
}

#[test]
fn plan_refuses_other_sizes_in_one_line() {
    for (option, size) in [("--cards", "4x24GB"), ("--cards", ""), ("--host", "64"), ("--host", "2x64GiB")] {
        let finished = on(&deployment(0), "plan", &[option, size]);
        assert_eq!((finished.code, finished.stdout.as_str()), (Some(1), ""), "{option} {size}");
        assert!(finished.stderr.starts_with(&format!("{option}: expected ")), "{}", finished.stderr);
        assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    }
    let unknown = on(&deployment(0).replacen("prefix_cache_mib", "prefix_cache", 1), "plan", &[]);
    assert_eq!((unknown.code, unknown.stdout.as_str()), (Some(1), ""), "a deployment that check refuses");
}

/// No machine of these tests has a TiB for a cache. Nothing is loaded to find out.
#[test]
fn serve_refuses_what_the_host_has_no_room_for() {
    let finished = on(&deployment(1 << 20), "serve", &[]);
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(1), ""), "{}", finished.stderr);
    let last = finished.stderr.lines().last().unwrap_or_default();
    for part in ["member tiny-08b: cpu:*: memory: expected ", " MiB available (linear ", "cache 1048576", ", found "] {
        assert!(last.contains(part), "{part} is not in {last}");
    }
}
