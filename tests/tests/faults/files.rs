//! A member's files vanish, are altered and come back while it is served.

use std::fs;
use std::path::{Path, PathBuf};

use synod_tests::deployment::Deployment;
use synod_tests::fixtures;
use synod_tests::server::{Launch, Server, eventually};
use tempfile::TempDir;

use crate::load::{Work, under_load, wait_for_answers};
use crate::{MEMBER, SYNOD, metric};

const SHARD: &str = "model-00001-of-00001.safetensors";

/// A member of its own, that may be moved and altered.
struct Copy {
    folder: TempDir,
}

impl Copy {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("there is a place for temporary files");
        let copy = Copy { folder };
        fs::create_dir(copy.path()).expect("a temporary folder is writable");
        for entry in fs::read_dir(fixtures::path(&format!("members/{MEMBER}"))).expect("the fixture is there") {
            let entry = entry.expect("the fixture is readable");
            fs::copy(entry.path(), copy.path().join(entry.file_name())).expect("a temporary folder is writable");
        }
        copy
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("member")
    }

    fn away(&self) -> PathBuf {
        self.folder.path().join("away")
    }

    fn shard(&self) -> PathBuf {
        self.path().join(SHARD)
    }

    fn deployment(&self) -> Deployment {
        Deployment::default().member(MEMBER, &self.path()).devices(&["cpu:0", "cpu:1"])
    }
}

fn rename(from: &Path, to: &Path) {
    fs::rename(from, to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
}

/// The states of all executors.
fn states(server: &Server) -> Vec<String> {
    let ready = server.client().get("/health/ready").json();
    let replicas = ready["members"][0]["replicas"].as_array().cloned().unwrap_or_default();
    replicas.iter().filter_map(|replica| replica["state"].as_str().map(str::to_owned)).collect()
}

#[test]
fn a_member_whose_files_vanish_is_served_on_and_loaded_again_when_they_are_back() {
    let copy = Copy::new();
    let server = Server::start(SYNOD, &copy.deployment());
    let work = Work::of(&server, MEMBER);
    let toml = copy.deployment().tables("[queue]\nbatch_tokens = 20000").to_toml();
    let seen = under_load(&server, &work, 4, |answered| {
        rename(&copy.path(), &copy.away());
        wait_for_answers(answered, 20);
        // Executors of another kind cannot be loaded now: those of before go on.
        server.change(&toml);
        server.hang_up();
        assert!(eventually(
            || server.output().contains("could not be loaded") || server.output().contains("not loaded again")
        ));
        wait_for_answers(answered, 20);
        rename(&copy.away(), &copy.path());
        server.hang_up();
        assert!(eventually(|| server.output().contains("the deployment was loaded again")));
        assert!(eventually(|| states(&server) == ["ready", "ready"]), "{:?}", states(&server));
        wait_for_answers(answered, 20);
    });
    assert!(seen.refused.is_empty() && seen.unconnected == 0, "{seen:?}");
}

#[test]
fn a_member_whose_loads_fail_three_times_serves_when_they_succeed() {
    let copy = Copy::new();
    let away = copy.folder.path().join(SHARD);
    let deployment = copy.deployment().devices(&["cpu:0"]);
    rename(&copy.shard(), &away);
    let mut server = Launch::of(SYNOD).without_waiting().start(&deployment);
    let loads = "synod_executor_restarts_total{device=\"cpu:0\",member=\"tiny-08b\",reason=\"load\"}";
    assert!(eventually(|| metric(server.client(), loads).is_some_and(|times| times >= 3.0)), "{}", server.output());
    let reply = server.ask(fixtures::with_model(crate::clients::GOOD, MEMBER));
    assert_eq!((reply.status, reply.error_code().as_deref()), (503, Some("not_ready")), "{}", reply.text());
    assert!(reply.header("retry-after").is_some());
    rename(&away, &copy.shard());
    server.wait_until_ready();
    assert_eq!(server.ask(fixtures::with_model(crate::clients::GOOD, MEMBER)).status, 200);
}

/// Rows of the embedding stay in their file. One that was altered there is noticed before it is used; executors go
/// down with it, and come back with the file.
#[test]
fn a_weight_file_that_is_altered_under_way_never_makes_a_wrong_answer() {
    let copy = Copy::new();
    let server = Server::start(SYNOD, &copy.deployment());
    let work = Work::of(&server, MEMBER);
    let right = fs::read(copy.shard()).expect("the member has a shard");
    let seen = under_load(&server, &work, 4, |answered| {
        wait_for_answers(answered, 20);
        let wrong: Vec<u8> = right.iter().map(|byte| byte ^ 1).collect();
        fs::write(copy.shard(), wrong).expect("a temporary folder is writable");
        assert!(eventually(|| states(&server).iter().all(|state| state != "ready")), "{:?}", states(&server));
        fs::write(copy.shard(), &right).expect("a temporary folder is writable");
        assert!(eventually(|| states(&server) == ["ready", "ready"]), "{}", server.output());
        wait_for_answers(answered, 20);
    });
    let honest = ["not_ready", "internal"];
    assert!(seen.refused.keys().all(|code| honest.contains(&code.as_str())), "{seen:?}");
    assert_eq!(seen.unconnected, 0);
}
