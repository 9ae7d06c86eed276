//! A minute under load: memory stays as it is, latency does not drift, and the counters say what the clients saw.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use synod_tests::server::{Server, eventually};

use crate::load::{Work, outcomes, under_load};
use crate::{MEMBER, SYNOD, deployment, metric};

#[test]
fn a_minute_of_load_leaves_memory_and_latency_as_they_were() {
    let server = Server::start(SYNOD, &deployment());
    let work = Work::of(&server, MEMBER);
    let resident = || metric(server.client(), "process_resident_memory_bytes").expect("a scrape has it");
    // Bytes, and answers in ten seconds.
    let mut stretches: Vec<(f64, usize)> = Vec::new();
    let seen = under_load(&server, &work, 4, |answered| {
        for _ in 0..6 {
            let (since, before) = (Instant::now(), answered.load(Ordering::Relaxed));
            thread::sleep(Duration::from_secs(10));
            let answers = answered.load(Ordering::Relaxed) - before;
            stretches.push((resident(), (answers as f64 * 10.0 / since.elapsed().as_secs_f64()) as usize));
        }
    });
    assert!(seen.refused.is_empty() && seen.unconnected == 0, "{seen:?}");
    let [answered, rejected] = work.outcomes;
    let all = [seen.answered + answered, rejected, 0, 0];
    assert!(eventually(|| outcomes(server.client()) == all), "{all:?}: {:?}", outcomes(server.client()));
    // The first stretches warm allocators and caches up.
    let (settled, last) = (stretches[2].0, stretches[5].0);
    assert!(last < settled * 1.03, "{stretches:?}");
    println!("bytes resident and answers per ten seconds: {stretches:?}");
}
