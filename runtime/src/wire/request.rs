//! A request's envelope: everything outside the state and the questions, which are the family's to read.
//!
//! Reading is all or nothing: either a [`Request`] whose parts have the right JSON types and counts, or one entry per
//! problem, with the questions for the family to look at where they can still be read. Absent on purpose: whether `model` is served (admission knows), and what a state or question means.

use super::json::{Object, Value};
use super::response::{Detail, Loc, Refusal};

/// A question's body as sent; the family reads it.
pub type Question = Value;

/// Unknown keys that are named one by one; a refused body need not make a larger answer.
const MAX_NAMED_KEYS: usize = 256;

/// Whether one bad question spoils the request (`/v1/systemone`) or stands alone (`/v1/decisions`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    AllOrNothing,
    PerQuestion,
}

/// What a request may hold (system-one.md, Limits). The count of questions is the envelope's to check, the rest the
/// family's, question by question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub max_questions: usize,
    /// Of one call that has several.
    pub max_states: usize,
    /// Code points.
    pub max_question_id_chars: usize,
    /// Options, labels or names of one question.
    pub max_options: usize,
    pub max_score_levels: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_questions: 256, max_states: 64, max_question_id_chars: 256, max_options: 255, max_score_levels: 10 }
    }
}

/// The body of a `POST` to `/v1/systemone` or `/v1/decisions`.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// A served name or alias; the deployment's default if absent.
    pub model: Option<String>,
    pub state: Value,
    /// In request order, at least one; ids are unique.
    pub questions: Vec<(String, Question)>,
    /// Milliseconds that the caller gives the whole call, above 0.
    pub deadline_ms: Option<u64>,
}

/// The body of a `POST` to `/v1/decisions` that has several states.
#[derive(Clone, Debug, PartialEq)]
pub struct States {
    /// As a [`Request`]'s.
    pub model: Option<String>,
    /// In request order, at least one; names are unique.
    pub states: Vec<(String, State)>,
    pub deadline_ms: Option<u64>,
}

/// One of several states, and what is asked of it.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    pub state: Value,
    /// In request order, at least one; ids are unique.
    pub questions: Vec<(String, Question)>,
}

/// A body that is no [`Request`].
#[derive(Clone, Debug, PartialEq)]
pub struct Malformed {
    /// One per problem of the envelope.
    details: Vec<Detail>,
    /// What stands in the envelope, if `state` and `questions` can be read all the same.
    contents: Option<Box<Request>>,
}

impl Malformed {
    /// Every entry of the 422: the envelope's, then those of whoever reads what is in it, if it can be read.
    pub fn into_details(self, read: impl FnOnce(&Request) -> Option<Refusal>) -> Vec<Detail> {
        let Malformed { mut details, contents } = self;
        if let Some(Refusal::Invalid(further)) = contents.and_then(|request| read(&request)) {
            details.extend(further);
        }
        details
    }
}

impl Request {
    /// Reads a body.
    ///
    /// # Errors
    /// [`Malformed`], with one [`Detail`] per problem: unknown keys in request order, then `state`, `questions`,
    /// `model`, `options`. A model that is no text leaves the questions to the deployment's default. A
    /// null `model`, `options` or `deadline_ms` is an absent one. Any id names a question, also a blank one, as in the
    /// oracle; how long it may be is checked with the question, so that one id need not spoil the others.
    pub fn read(body: Value, limits: &Limits) -> Result<Request, Malformed> {
        let Value::Object(body) = body else {
            let details = vec![problem(&[], "dict_type", "must be an object")];
            return Err(Malformed { details, contents: None });
        };
        let mut problems = Problems::default();
        problems.unknown_keys(&[], &body, &["model", "state", "questions", "options"]);
        let mut fields = Fields::take(body);
        if fields.state.is_none() {
            problems.add(&["state"], "missing", "is required");
        }
        let questions = read_questions(fields.questions.take(), &["questions"], limits, &mut problems);
        let model = read_model(fields.model.take(), &mut problems);
        let deadline_ms = read_deadline(fields.options.take(), &mut problems);
        let request =
            fields.state.zip(questions).map(|(state, questions)| Request { model, state, questions, deadline_ms });
        match request {
            Some(request) if problems.found.is_empty() => Ok(request),
            request => Err(Malformed { details: problems.found, contents: request.map(Box::new) }),
        }
    }
}

impl States {
    /// Whether `body` has several states, rightly or not.
    pub fn are_in(body: &Value) -> bool {
        matches!(body, Value::Object(body) if body.get("states").is_some())
    }

    /// Reads a body that [has several states](Self::are_in).
    ///
    /// # Errors
    /// As [`Request::read`]; what is wrong with one state's envelope refuses the call, what its state or its questions
    /// mean is not looked at here.
    pub fn read(body: Value, limits: &Limits) -> Result<States, Malformed> {
        let mut problems = Problems::default();
        let Value::Object(body) = body else {
            problems.add(&[], "dict_type", "must be an object");
            return Err(Malformed { details: problems.found, contents: None });
        };
        problems.unknown_keys(&[], &body, &["model", "states", "options"]);
        let (mut model, mut states, mut options) = (None, None, None);
        for (key, value) in body {
            match key.as_str() {
                "model" => model = Some(value),
                "states" => states = Some(value),
                "options" => options = Some(value),
                _ => {}
            }
        }
        let states = read_states(states, limits, &mut problems);
        let model = read_model(model, &mut problems);
        let deadline_ms = read_deadline(options, &mut problems);
        match states {
            Some(states) if problems.found.is_empty() => Ok(States { model, states, deadline_ms }),
            _ => Err(Malformed { details: problems.found, contents: None }),
        }
    }
}

/// The states, if they are an object of a number of them that is allowed; each that can be read.
fn read_states(value: Option<Value>, limits: &Limits, problems: &mut Problems) -> Option<Vec<(String, State)>> {
    let Some(Value::Object(states)) = value else {
        problems.add(&["states"], "dict_type", "must be an object");
        return None;
    };
    let problem = match states.len() {
        0 => ("too_short", "needs at least 1".to_owned()),
        len if len > limits.max_states => ("too_long", format!("takes at most {}", limits.max_states)),
        _ => {
            let read =
                |(name, value): (String, Value)| Some((name.clone(), read_state(&name, value, limits, problems)?));
            return Some(states.into_iter().filter_map(read).collect());
        }
    };
    problems.add(&["states"], problem.0, problem.1);
    None
}

fn read_state(name: &str, value: Value, limits: &Limits, problems: &mut Problems) -> Option<State> {
    let loc = &["states", name];
    let Value::Object(fields) = value else {
        problems.add(loc, "dict_type", "must be an object");
        return None;
    };
    if name.chars().count() > limits.max_question_id_chars {
        problems.add(loc, "too_long", format!("a name takes at most {} characters", limits.max_question_id_chars));
        return None;
    }
    problems.unknown_keys(loc, &fields, &["state", "questions"]);
    let (mut state, mut questions) = (None, None);
    for (key, value) in fields {
        match key.as_str() {
            "state" => state = Some(value),
            "questions" => questions = Some(value),
            _ => {}
        }
    }
    if state.is_none() {
        problems.add(&[loc, &["state"][..]].concat(), "missing", "is required");
    }
    let questions = read_questions(questions, &[loc, &["questions"][..]].concat(), limits, problems);
    state.zip(questions).map(|(state, questions)| State { state, questions })
}

/// The known keys of a body.
#[derive(Default)]
struct Fields {
    model: Option<Value>,
    state: Option<Value>,
    questions: Option<Value>,
    options: Option<Value>,
}

impl Fields {
    fn take(body: Object) -> Self {
        let mut fields = Self::default();
        for (key, value) in body {
            match key.as_str() {
                "model" => fields.model = Some(value),
                "state" => fields.state = Some(value),
                "questions" => fields.questions = Some(value),
                "options" => fields.options = Some(value),
                _ => {}
            }
        }
        fields
    }
}

#[derive(Default)]
struct Problems {
    found: Vec<Detail>,
}

impl Problems {
    fn add(&mut self, loc: &[&str], code: &'static str, msg: impl Into<String>) {
        self.found.push(problem(loc, code, msg));
    }

    fn unknown_keys(&mut self, loc: &[&str], object: &Object, known: &[&str]) {
        for key in object.keys().filter(|key| !known.contains(key)).take(MAX_NAMED_KEYS) {
            let msg = match (loc, key) {
                ([], "states") => "several states in one call are for /v1/decisions; send state and questions",
                ([], "state" | "questions") => "belongs to each of the states",
                _ => "unknown field",
            };
            self.add(&[loc, &[key]].concat(), "extra_forbidden", msg);
        }
    }
}

/// `loc` is inside the body.
fn problem(loc: &[&str], code: &'static str, msg: impl Into<String>) -> Detail {
    let loc = std::iter::once(&"body").chain(loc).map(|&step| Loc::Key(step.to_owned())).collect();
    Detail { loc, msg: msg.into(), code }
}

/// The questions, if they are an object of a number of them that is allowed.
fn read_questions(
    value: Option<Value>,
    loc: &[&str],
    limits: &Limits,
    problems: &mut Problems,
) -> Option<Vec<(String, Question)>> {
    let questions = match value {
        Some(Value::Object(questions)) => questions,
        Some(_) => {
            problems.add(loc, "dict_type", "must be an object");
            return None;
        }
        None => {
            problems.add(loc, "missing", "is required");
            return None;
        }
    };
    if questions.is_empty() {
        problems.add(loc, "too_short", "needs at least 1");
        return None;
    }
    if questions.len() > limits.max_questions {
        problems.add(loc, "too_long", format!("takes at most {}", limits.max_questions));
        return None;
    }
    Some(questions.into_iter().collect())
}

fn read_model(value: Option<Value>, problems: &mut Problems) -> Option<String> {
    match value {
        None | Some(Value::Null) => None,
        Some(Value::Text(model)) => Some(model),
        Some(_) => {
            problems.add(&["model"], "string_type", "must be a string");
            None
        }
    }
}

fn read_deadline(options: Option<Value>, problems: &mut Problems) -> Option<u64> {
    let options = match options {
        None | Some(Value::Null) => return None,
        Some(Value::Object(options)) => options,
        Some(_) => {
            problems.add(&["options"], "dict_type", "must be an object");
            return None;
        }
    };
    problems.unknown_keys(&["options"], &options, &["deadline_ms"]);
    let loc = &["options", "deadline_ms"];
    let deadline_ms = match options.get("deadline_ms") {
        None | Some(Value::Null) => return None,
        // Beyond u64 is beyond any clock: the largest value means the same.
        Some(Value::Int(digits)) if !digits.starts_with('-') => digits.parse().unwrap_or(u64::MAX),
        Some(Value::Int(_)) => 0,
        Some(Value::Float(ms)) => ms.ceil() as u64,
        Some(_) => {
            problems.add(loc, "float_type", "must be a number");
            return None;
        }
    };
    if deadline_ms == 0 {
        problems.add(loc, "range", "must be above 0");
        return None;
    }
    Some(deadline_ms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::json;
    use crate::wire::response::write_details;

    fn read(body: &str) -> Result<Request, Malformed> {
        Request::read(json::parse_text(body).unwrap(), &Limits::default())
    }

    fn refused(body: &str, expected: &[(&str, &str)]) {
        let details = read(body).unwrap_err().details;
        let found: Vec<_> = details.iter().map(|detail| (loc(detail), detail.code)).collect();
        let expected: Vec<_> = expected.iter().map(|&(loc, code)| (loc.to_owned(), code)).collect();
        assert_eq!(found, expected, "{}", write_details(&details));
    }

    fn loc(detail: &Detail) -> String {
        let step = |step: &Loc| match step {
            Loc::Key(key) => key.clone(),
            Loc::Index(index) => index.to_string(),
        };
        detail.loc.iter().map(step).collect::<Vec<_>>().join("/")
    }

    #[test]
    fn a_full_body_is_read() {
        let request = read(
            r#"{"questions": {"b": 1, "a": {}, " ": null}, "state": null, "model": "m", "options": {"deadline_ms": 1.5}}"#,
        )
        .unwrap();
        assert_eq!(request.model.as_deref(), Some("m"));
        assert_eq!(request.state, Value::Null);
        assert_eq!(request.questions.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>(), ["b", "a", " "]);
        assert_eq!(request.questions[0].1, Value::Int("1".into()));
        assert_eq!(request.deadline_ms, Some(2));
    }

    #[test]
    fn nulls_outside_state_and_questions_are_absent() {
        let request = read(r#"{"state": "", "questions": {"a": 1}, "model": null, "options": null}"#).unwrap();
        assert_eq!((request.model, request.deadline_ms), (None, None));
        let request = read(r#"{"state": "", "questions": {"a": 1}, "options": {"deadline_ms": null}}"#).unwrap();
        assert_eq!(request.deadline_ms, None);
    }

    #[test]
    fn bodies_that_are_no_object_are_one_problem() {
        for body in ["null", "[]", "\"x\"", "1", "true", "[{\"state\":1}]"] {
            refused(body, &[("body", "dict_type")]);
        }
    }

    #[test]
    fn every_problem_of_the_envelope_is_named() {
        refused("{}", &[("body/state", "missing"), ("body/questions", "missing")]);
        refused(r#"{"state":1,"questions":{}}"#, &[("body/questions", "too_short")]);
        refused(r#"{"state":1,"questions":null}"#, &[("body/questions", "dict_type")]);
        refused(r#"{"state":1,"questions":[1]}"#, &[("body/questions", "dict_type")]);
        refused(
            r#"{"z":1,"state":1,"model":7,"a":1,"questions":{"q":1},"options":{"y":1,"deadline_ms":"5"}}"#,
            &[
                ("body/z", "extra_forbidden"),
                ("body/a", "extra_forbidden"),
                ("body/model", "string_type"),
                ("body/options/y", "extra_forbidden"),
                ("body/options/deadline_ms", "float_type"),
            ],
        );
        refused(r#"{"state":1,"questions":{"q":1},"options":[]}"#, &[("body/options", "dict_type")]);
        for deadline in ["0", "-1", "-0.5", "0.0", "-1e300"] {
            let body = format!(r#"{{"state":1,"questions":{{"q":1}},"options":{{"deadline_ms":{deadline}}}}}"#);
            refused(&body, &[("body/options/deadline_ms", "range")]);
        }
        refused(
            r#"{"states":{"a":{}}}"#,
            &[("body/states", "extra_forbidden"), ("body/state", "missing"), ("body/questions", "missing")],
        );
    }

    #[test]
    fn questions_are_counted() {
        let body = |count: usize| {
            let questions: Vec<_> = (0..count).map(|i| format!("\"{i}\":1")).collect();
            format!(r#"{{"state":1,"questions":{{{}}}}}"#, questions.join(","))
        };
        assert_eq!(read(&body(256)).unwrap().questions.len(), 256);
        refused(&body(257), &[("body/questions", "too_long")]);
    }

    /// An unknown key beside the questions must not hide what is wrong with them.
    #[test]
    fn the_questions_of_a_broken_envelope_are_read_if_they_can_be() {
        let invalid = |request: &Request| {
            let (id, _) = &request.questions[0];
            Some(Refusal::Invalid(vec![problem(&["questions", id], "dict_type", "must be an object")]))
        };
        let check = |body: &str, expected: &[&str]| {
            let details = read(body).unwrap_err().into_details(invalid);
            assert_eq!(details.iter().map(loc).collect::<Vec<_>>(), expected, "{body}");
        };
        check(r#"{"state":1,"questions":{"q":1},"model":7,"x":1}"#, &["body/x", "body/model", "body/questions/q"]);
        check(r#"{"state":1,"questions":{"q":1},"options":[]}"#, &["body/options", "body/questions/q"]);
        check(r#"{"questions":{"q":1}}"#, &["body/state"]);
        check(r#"{"state":1,"questions":[]}"#, &["body/questions"]);
        check(r#"{"state":1,"questions":{},"x":1}"#, &["body/x", "body/questions"]);
        let too_long = |_: &Request| Some(Refusal::TooLong { message: "too long".to_owned() });
        let malformed = read(r#"{"state":1,"questions":{"q":1},"x":1}"#).unwrap_err();
        assert_eq!(malformed.into_details(too_long).len(), 1);
    }

    #[test]
    fn deadlines_of_any_size_are_read() {
        for (digits, expected) in [("1", 1), ("18446744073709551616", u64::MAX), ("1e300", u64::MAX), ("0.2", 1)] {
            let body = format!(r#"{{"state":1,"questions":{{"q":1}},"options":{{"deadline_ms":{digits}}}}}"#);
            assert_eq!(read(&body).unwrap().deadline_ms, Some(expected));
        }
    }

    #[test]
    fn a_flood_of_unknown_keys_makes_a_small_answer() {
        let keys: Vec<_> = (0..10_000).map(|i| format!("\"{i}\":0")).collect();
        let details = read(&format!("{{{}}}", keys.join(","))).unwrap_err().details;
        assert_eq!(details.len(), MAX_NAMED_KEYS + 2);
    }
}
