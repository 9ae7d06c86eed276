//! Keys: whom they let in, how often, and whose turn it is.

use sha2::{Digest, Sha256};

use super::*;

fn key(text: &str, weight: u32, rate: Option<f64>) -> synod_config::Key {
    let sha256 = Sha256::digest(text).into();
    synod_config::Key { sha256, name: text.into(), models: vec!["m".into()], weight, rate }
}

fn setup(keys: &[synod_config::Key]) -> Setup {
    Setup { keys: Keys::new(keys, &Keys::default()), admission: bounded(1000, 1_000_000), ..Setup::default() }
}

fn ask_as(key: &str, state: &str) -> TestRequest {
    ask(state).insert_header(("authorization", format!("Bearer {key}")))
}

#[actix::test]
async fn keys_open_their_models_and_no_others() {
    let other = synod_config::Key { models: vec!["other".into()], ..key("two", 1, None) };
    let (harness, _strings) = Harness::start_with(setup(&[key("one", 1, None), other])).await;
    assert_eq!(harness.send(ask_as("one", "x")).await.status, 200);
    assert_eq!(harness.send(ask_as("two", "x")).await.refusal(), (403, "model_not_allowed".into()));
    let unknown = harness.send(ask_as("three", "x")).await;
    assert_eq!(unknown.refusal(), (401, "unknown_key".into()));
    assert_eq!(unknown.header("www-authenticate"), "Bearer");
    assert_eq!(harness.ask("x").await.refusal(), (401, "missing_key".into()));
    assert_eq!(harness.send(get("/v1/models")).await.refusal(), (401, "missing_key".into()));
    for open in ["/health/live", "/health/ready", "/metrics"] {
        assert_eq!(harness.send(get(open)).await.status, 200, "{open}");
    }
}

#[actix::test]
async fn a_key_that_asks_too_often_is_told_when_to_come_again() {
    // A rate at which no machine is so slow that another token comes while this runs.
    let keys = [key("limited", 1, Some(0.001)), key("free", 1, None)];
    let (harness, _strings) = Harness::start_with(setup(&keys)).await;
    assert_eq!(harness.send(ask_as("limited", "x")).await.status, 200);
    for _ in 0..3 {
        let refused = harness.send(ask_as("limited", "x")).await;
        assert_eq!(refused.refusal(), (429, "key_rate".into()));
        let seconds: u64 = refused.header("retry-after").parse().unwrap();
        let milliseconds: u64 = refused.header("retry-after-ms").parse().unwrap();
        assert!((900..=1000).contains(&seconds), "{seconds} s");
        assert_eq!(seconds, milliseconds.div_ceil(1000));
        assert_eq!(harness.send(ask_as("free", "x")).await.status, 200, "another key is not concerned");
    }
    let models = get("/v1/models").insert_header(("authorization", "Bearer limited"));
    assert_eq!(harness.send(models).await.status, 200, "a rate is of decisions");
    assert_eq!(harness.metric(r#"synod_rejected_total{reason="key_rate"}"#), 3);
    assert_eq!((harness.outcome("rejected"), harness.outcome("answered")), (3, 4));
    harness.assert_nothing_is_counted().await;
}

/// Holds the device, queues requests of each key, lets go, and gives the keys in the order in which they were served.
async fn turns(keys: &[synod_config::Key], queued: &[(&'static str, usize)]) -> Vec<&'static str> {
    const OF_EACH: usize = 100;
    let (harness, mut strings) = Harness::start_with(setup(keys)).await;
    let held = until_held(Box::pin(harness.send(ask_as(queued[0].0, "hold"))), &mut strings).await;
    let mut replies = Vec::new();
    for (caller, &(key, count)) in queued.iter().enumerate() {
        for number in 0..count {
            // Each asks something else: equal requests of one caller would be computed once.
            let state = (PLAIN as usize + caller * OF_EACH + number).to_string();
            let mut reply = Box::pin(harness.send(ask_as(key, &state)));
            let waiting = r#"synod_queue_requests{device="cpu:0",member="m"}"#;
            while harness.metric(waiting) <= replies.len() as u64 {
                assert!((&mut reply).now_or_never().is_none());
                actix_web::rt::task::yield_now().await;
            }
            replies.push(reply);
        }
    }
    strings.let_go();
    assert_eq!(held.await.status, 200);
    for reply in replies {
        assert_eq!(reply.await.status, 200);
    }
    harness.assert_nothing_is_counted().await;
    let served = strings.calls().concat();
    served[1..].iter().map(|first| queued[(first - PLAIN) as usize / OF_EACH].0).collect()
}

#[actix::test]
async fn a_greedy_key_does_not_make_a_modest_one_wait() {
    let keys = [key("greedy", 1, None), key("modest", 1, None)];
    let turns = turns(&keys, &[("greedy", 40), ("modest", 2)]).await;
    let modest: Vec<usize> = (0..turns.len()).filter(|turn| turns[*turn] == "modest").collect();
    assert!(turns.len() == 42 && modest.len() == 2 && modest[1] <= 3, "{turns:?}");
}

#[actix::test]
async fn a_busy_queue_is_shared_by_the_weights_of_the_keys() {
    let keys = [key("light", 1, None), key("heavy", 3, None)];
    let turns = turns(&keys, &[("light", 30), ("heavy", 30)]).await;
    let heavy = turns[..32].iter().filter(|key| **key == "heavy").count();
    assert!((23..=25).contains(&heavy), "{heavy} of the first 32: {turns:?}");
}
