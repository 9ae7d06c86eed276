//! Every recorded case of the four fixture members over HTTP, through one process that serves them all.
//!
//! The body goes out byte for byte as recorded, with `"model"` in front. What comes back equals the recorded text token
//! by token, `model` apart; a float may differ by 2e-5. That a spoiled response fails is shown beside the comparison,
//! in `src/json_text.rs`.

use synod_tests::deployment::Deployment;
use synod_tests::fixtures::{self, Case, Outcome};
use synod_tests::json_text;
use synod_tests::server::Server;

const SYNOD: &str = env!("CARGO_BIN_EXE_synod-tested");
/// vela.md §10: FP32, every number.
const TOLERANCE: f64 = 2e-5;

/// What went wrong with a case, or its largest difference.
fn check(server: &Server, case: &Case) -> Result<f64, String> {
    let reply = server.ask(case.request_for(&case.member));
    match &case.outcome {
        Outcome::Answered(recorded) => {
            if reply.status != 200 {
                return Err(format!("expected 200, found {}: {}", reply.status, reply.text()));
            }
            let expected = served_as(recorded, &case.member);
            json_text::compare(&expected, reply.text(), TOLERANCE)
                .map(|observed| observed.largest)
                .map_err(|difference| difference.to_string())
        }
        Outcome::Refused { status, body } => {
            let (found, expected) = (reply.json().to_string(), body.to_string());
            if (reply.status, &found) == (*status, &expected) {
                Ok(0.0)
            } else {
                Err(format!("expected {status} {expected}\n  found    {} {found}", reply.status))
            }
        }
    }
}

/// The recorded response under the name by which the member is served.
fn served_as(recorded: &str, name: &str) -> String {
    let model = json_text::value_at(recorded, &["model"]).expect("a recorded response has a model");
    recorded.replacen(&format!("\"model\":{model}"), &format!("\"model\":\"{name}\""), 1)
}

#[test]
fn every_recorded_case_is_answered_as_recorded() {
    let server = Server::start(SYNOD, &Deployment::of(&fixtures::MEMBERS));
    let cases = fixtures::vela_cases();
    let mut failures = Vec::new();
    let (mut answered, mut largest) = (0, (0.0, String::new()));
    for case in &cases {
        match check(&server, case) {
            Ok(difference) => {
                answered += usize::from(matches!(case.outcome, Outcome::Answered(_)));
                if difference > largest.0 {
                    largest = (difference, case.name.clone());
                }
            }
            Err(failure) => failures.push(format!("{}: {failure}", case.name)),
        }
    }
    println!("{} cases, {answered} answered, largest difference {:e} ({})", cases.len(), largest.0, largest.1);
    assert!(failures.is_empty(), "{} of {} cases differ:\n{}", failures.len(), cases.len(), failures.join("\n"));
}
