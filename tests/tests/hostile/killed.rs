//! Exports that are killed: whatever the moment, there is no partial bundle, and the next run succeeds.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use synod::member::{Anchor, MemberError, MemberFiles, Trust};
use synod_tests::fixtures;
use synod_tests::server::run;

use super::SYNOD;

const MOMENTS: usize = 20;

/// An export that can be run again and again.
struct Export {
    package: PathBuf,
    anchor: String,
    /// Of the bundle, which every run makes alike.
    bundle_anchor: Anchor,
    out: PathBuf,
}

impl Export {
    /// Of a new package of thirty megabytes, run once to see what it makes.
    fn prepare(folder: &Path) -> Self {
        let synth = ["synth", "--shape", "tiny", "--vocab", "60000", "--seed", "1", "--out", "package"];
        let finished = run(SYNOD, &synth, folder, "");
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
        let (package, out) = (folder.join("package"), folder.join("place/bundle"));
        let anchor = fixtures::anchor(&package);
        let mut export = Self { package, anchor, bundle_anchor: Anchor([0; 32].into()), out };
        export.succeeds();
        let manifest = fs::read(export.out.join("manifest.json")).expect("a bundle has a manifest");
        let digest = format!("sha256:{}", fixtures::sha256(&manifest));
        export.bundle_anchor = digest.parse().expect("a digest makes an anchor");
        export
    }

    fn start(&self) -> Child {
        let mut command = Command::new(SYNOD);
        command.args(["export", "vela", "--anchor", &self.anchor]).arg("--package").arg(&self.package);
        command.arg("--out").arg(&self.out).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().expect("the tested binary can be started")
    }

    fn succeeds(&self) {
        let status = self.start().wait().expect("a child can be waited for");
        assert!(status.success(), "{status}");
    }

    /// Starts an export and kills it as soon as it has written so many bytes; how it ended.
    fn killed_after(&self, written_bytes: u64) -> ExitStatus {
        let mut child = self.start();
        loop {
            if let Some(status) = child.try_wait().expect("a child can be asked for its status") {
                return status;
            }
            if self.staged().is_some_and(|staged| size_bytes(&staged) >= written_bytes) {
                child.kill().expect("a child can be killed");
                return child.wait().expect("a child can be waited for");
            }
            thread::yield_now();
        }
    }

    /// What stands beside the bundle, which nothing but an export's staging does.
    fn staged(&self) -> Option<PathBuf> {
        let place = self.out.parent().expect("the bundle has a folder");
        let entries = fs::read_dir(place).expect("the place can be listed");
        entries.filter_map(|entry| Some(entry.ok()?.path())).find(|path| *path != self.out)
    }

    fn verify(&self) {
        let bundle = MemberFiles::open(&self.out, Trust::Anchored(self.bundle_anchor));
        let bundle = bundle.unwrap_or_else(|error| panic!("a partial bundle: {error}"));
        bundle.read_tensors::<MemberError>(&(), &mut |_, _| Ok(())).expect("its weights are whole");
    }

    /// Verifies the bundle if there is one, and makes its place free again.
    fn take(&self) -> bool {
        if !self.out.exists() {
            return false;
        }
        self.verify();
        fs::remove_dir_all(&self.out).expect("a bundle can be removed");
        true
    }
}

/// Of all files in a folder that may be changing: what is gone counts nothing.
fn size_bytes(path: &Path) -> u64 {
    let Ok(metadata) = fs::symlink_metadata(path) else { return 0 };
    if !metadata.is_dir() {
        return metadata.len();
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| size_bytes(&entry.path())).sum()
}

#[test]
fn an_export_that_is_killed_leaves_no_partial_bundle_and_the_next_succeeds() {
    let given = std::env::var("SYNOD_TEST_SEED").ok();
    let seed: u64 = given.map_or_else(rand::random, |seed| seed.parse().expect("a whole number"));
    println!("SYNOD_TEST_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let folder = tempfile::tempdir().expect("there is a place for temporary files");
    let export = Export::prepare(folder.path());
    let total_bytes = size_bytes(&export.out);
    assert!(export.take());

    let (mut killed, mut leftovers) = (0, 0);
    for moment in 0..MOMENTS {
        // One in every twentieth of the bytes, so that early and late moments both come.
        let part = |index: usize| total_bytes * index as u64 / MOMENTS as u64;
        // Before the first byte there may be an empty folder, which the next run leaves to whoever is about to lock it.
        let written_bytes = random.random_range(part(moment).max(1)..=part(moment + 1));
        let status = export.killed_after(written_bytes);
        killed += usize::from(!status.success());
        let is_complete = export.take();
        assert!(is_complete || !status.success(), "an export that succeeded has made a bundle");
        let leftover = export.staged();
        leftovers += usize::from(leftover.is_some());

        export.succeeds();
        assert!(export.take(), "seed {seed}, {written_bytes} bytes: no bundle");
        assert_eq!(export.staged(), None, "seed {seed}, {written_bytes} bytes: a leftover that nobody removes");
    }
    println!("{killed} of {MOMENTS} killed within {total_bytes} bytes, {leftovers} with leftovers");
    assert!(killed >= MOMENTS / 2 && leftovers >= MOMENTS / 2, "{killed} killed, {leftovers} leftovers");
}
