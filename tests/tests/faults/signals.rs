//! SIGHUP and SIGTERM while clients ask.

use synod_tests::server::{Server, eventually};

use crate::load::{Work, outcomes, under_load, wait_for_answers};
use crate::{MEMBER, SYNOD, deployment};

/// Every second file keeps the executors, every other replaces them.
#[test]
fn no_request_fails_while_the_deployment_is_loaded_fifty_times() {
    let server = Server::start(SYNOD, &deployment());
    let work = Work::of(&server, MEMBER);
    let loaded = || server.output().matches("the deployment was loaded again").count();
    let seen = under_load(&server, &work, 8, |answered| {
        for turn in 1..=50 {
            let batch_tokens = 20_000 + turn / 2;
            let file =
                deployment().tables(&format!("[queue]\nbatch_tokens = {batch_tokens}")).alias(&format!("a{turn}"));
            server.change(&file.to_toml());
            server.hang_up();
            assert!(eventually(|| loaded() == turn), "not loaded for the {turn}th time");
            wait_for_answers(answered, 1);
        }
        wait_for_answers(answered, 8);
    });
    assert!(seen.refused.is_empty() && seen.unconnected == 0, "{seen:?}");
    let [answered, rejected] = work.outcomes;
    let all = [seen.answered + answered, rejected, 0, 0];
    assert!(eventually(|| outcomes(server.client()) == all), "{all:?}: {:?}", outcomes(server.client()));
}

/// What was accepted is answered; what comes later is told so, or finds nobody.
#[test]
fn sigterm_under_load_loses_nothing_that_was_accepted() {
    let mut server = Server::start(SYNOD, &deployment());
    let work = Work::of(&server, MEMBER);
    let seen = under_load(&server, &work, 8, |answered| {
        wait_for_answers(answered, 50);
        server.terminate();
        assert!(eventually(|| server.output().contains("stopped")), "it does not stop");
    });
    assert!(server.wait().success());
    assert!(seen.refused.keys().all(|code| code == "draining"), "{seen:?}");
    let log = server.output();
    let answered = log.lines().filter(|line| line.contains("answered") && line.contains("status=200"));
    let answered = answered.filter(|line| line.contains("route=\"/v1/systemone\"")).count();
    assert_eq!(answered, seen.answered + work.outcomes[0], "each answer that was given was received");
    let refused = log.lines().filter(|line| line.contains("code=\"draining\"")).count();
    assert_eq!(refused, seen.refused.values().sum::<usize>(), "each refusal was received");
}
