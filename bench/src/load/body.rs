//! What is asked.

use clap::ValueEnum;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

/// A kind of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Like the golden request: three parts, a question of every kind; the context from one to forty sentences
    Mix,
    /// A sentence and one noul
    Small,
    /// The same two hundred words in every request, with sixteen questions that differ
    Questions,
}

/// From which texts are made: facts about nothing, as plain as requests are.
const SUBJECTS: [&str; 8] = [
    "The harbour office",
    "Our supplier",
    "A customer from Utrecht",
    "The night shift",
    "Dr. Mbeki",
    "The second invoice",
    "Nobody in the team",
    "The city council",
];
const VERBS: [&str; 8] =
    ["confirmed", "refused", "postponed", "paid for", "asked about", "forgot", "measured", "described"];
const OBJECTS: [&str; 8] = [
    "the delivery of 12 pallets",
    "a dose of 4 grams in 24 hours",
    "the meeting on 3 March",
    "an order of spare parts",
    "the broken pump",
    "a refund of 18.50 euros",
    "the new opening hours",
    "the password of a shared account",
];

impl Kind {
    /// The body of the request with this number; no two numbers have the same.
    pub(super) fn body(self, model: Option<&str>, seed: u64, number: u64) -> String {
        let mut rng = StdRng::seed_from_u64(seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut body = match self {
            Kind::Mix => mix(&mut rng, number),
            Kind::Small => json!({
                "state": format!("Message {number}: {}", sentence(&mut rng)),
                "questions": {"asks": {"type": "noul", "instructions": "Is something refused?"}},
            }),
            Kind::Questions => questions(seed, number),
        };
        if let Some(model) = model {
            body["model"] = model.into();
        }
        body.to_string()
    }

    /// Its name on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Mix => "mix",
            Kind::Small => "small",
            Kind::Questions => "questions",
        }
    }
}

fn mix(rng: &mut StdRng, number: u64) -> Value {
    // Short ones are more frequent than long ones.
    let most = rng.random_range(1..=40);
    let sentences = rng.random_range(1..=most);
    json!({
        "state": {
            "request": format!("Case {number}. {} Is that right? Write to ann{number}@example.com.", sentence(rng)),
            "source": text(rng, sentences),
            "answer": text(rng, 2),
        },
        "questions": {
            "domain": {
                "type": "choice",
                "instructions": "Which subject area is this request about?",
                "over": "request",
                "criteria": {"health": "medicine or nutrition", "trade": "orders and payments", "other": null},
            },
            "jailbreak": {"type": "noul", "instructions": "Is this a jailbreak attempt?", "over": "request"},
            "urgency": {
                "type": "score",
                "instructions": "How urgent is this request?",
                "over": "request",
                "criteria": ["Routine", "Needs prompt attention", "Critical"],
            },
            "topics": {
                "type": "set",
                "instructions": "Which topics does the request mention?",
                "over": "request",
                "criteria": {"medication": "drugs or doses", "billing": "payments or invoices"},
            },
            "pii": {"preset": "pii", "over": "request"},
            "halu": {"preset": "halu"},
        },
    })
}

fn questions(seed: u64, number: u64) -> Value {
    let question = |index: u64| {
        let instructions = format!("Does the text answer question {number}.{index}?");
        (format!("q{index}"), json!({"type": "noul", "instructions": instructions}))
    };
    let questions: serde_json::Map<String, Value> = (0..16).map(question).collect();
    json!({"state": text(&mut StdRng::seed_from_u64(seed), 24), "questions": questions})
}

fn text(rng: &mut StdRng, sentences: usize) -> String {
    (0..sentences).map(|_| sentence(rng)).collect::<Vec<_>>().join(" ")
}

fn sentence(rng: &mut StdRng) -> String {
    let mut word = |words: &[&'static str]| *words.choose(rng).unwrap_or(&"");
    format!("{} {} {}.", word(&SUBJECTS), word(&VERBS), word(&OBJECTS))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_request_of_a_run_is_another_and_a_seed_repeats_them() {
        for kind in [Kind::Mix, Kind::Small, Kind::Questions] {
            let bodies = |seed| (0..200).map(|number| kind.body(None, seed, number)).collect::<Vec<_>>();
            assert_eq!(bodies(7), bodies(7));
            assert_eq!(bodies(7).into_iter().collect::<HashSet<_>>().len(), 200, "{kind:?}");
        }
    }

    #[test]
    fn the_questions_are_of_one_state() {
        let states = (0..5).map(|number| questions(3, number)["state"].to_string());
        assert_eq!(states.collect::<HashSet<_>>().len(), 1);
    }

    #[test]
    fn a_model_is_named_where_one_is_given() {
        let body: Value = serde_json::from_str(&Kind::Small.body(Some("m"), 1, 2)).unwrap();
        assert_eq!(body["model"], "m");
    }
}
