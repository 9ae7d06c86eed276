//! The wall clock jumps; nothing that Synod promises depends on it.

use std::fs;
use std::path::Path;

use synod_tests::server::{Launch, eventually};

use crate::load::{Work, under_load, wait_for_answers};
use crate::{MEMBER, SYNOD, deployment, metric};

/// Where Debian puts it.
const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

#[test]
fn a_clock_that_jumps_by_days_changes_no_answer_and_no_deadline() {
    if !Path::new(LIBRARY).exists() {
        eprintln!("skipped: {LIBRARY} is not there (Debian: faketime)");
        return;
    }
    let folder = tempfile::tempdir().expect("there is a place for temporary files");
    let offset = folder.path().join("offset");
    let jump = |to: &str| fs::write(&offset, to).expect("a temporary folder is writable");
    jump("+0");
    // The monotonic clock of a machine does not jump with its wall clock.
    let server = Launch::of(SYNOD)
        .environment("LD_PRELOAD", LIBRARY)
        .environment("FAKETIME_TIMESTAMP_FILE", offset.to_str().expect("a temporary path is UTF-8"))
        .environment("FAKETIME_NO_CACHE", "1")
        .environment("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        .start(&deployment());
    let work = Work::of(&server, MEMBER);
    let date = || server.client().get("/health/live").header("date").map(str::to_owned).unwrap_or_default();
    let seen = under_load(&server, &work, 4, |answered| {
        for to in ["-3d", "+400d", "-1d", "+0"] {
            let before = date();
            jump(to);
            // Proof that the process sees the jump; the day is the first thing that a date says.
            assert!(eventually(|| date()[..16] != before[..16]), "the clock did not jump: {before}");
            wait_for_answers(answered, 20);
        }
    });
    assert!(seen.refused.is_empty() && seen.unconnected == 0, "{seen:?}");
    let seconds = metric(server.client(), "synod_request_seconds_sum").unwrap_or(f64::MAX);
    assert!(seconds < 3600.0, "no time was counted that a clock jumped over: {seconds}");
}
