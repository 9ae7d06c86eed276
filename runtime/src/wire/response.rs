//! Answers and refusals, and their exact text (vela.md §9, system-one.md).

use std::borrow::Cow;

use super::canonical::{KeyOrder, write_array, write_float, write_object, write_text, write_value};
use super::json::Value;

/// Code points of what a client sent that a refusal or a failed question repeats: the longest id that a deployment
/// may allow. Eight megabytes of unknown key need not be sent back.
pub const MAX_ECHO_CHARS: usize = 1024;

/// One state's part of a response: everything but `model`.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// In question order; a Set's label answers stand in its place as `<id>.<label>`.
    pub answers: Vec<(String, Answer)>,
    pub input_tokens: usize,
    pub spans: Vec<(String, Vec<Span>)>,
    /// Empty for a member without a broad head.
    pub span_heads: Vec<(String, &'static str)>,
    pub sets: Vec<(String, SetAnswer)>,
    pub thresholds: Vec<(String, f64)>,
}

/// An answer to one question, or to one label of a Set.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Choice {
        choice: String,
        confidence: f64,
        probabilities: Vec<(String, f64)>,
        abstain_probability: Option<f64>,
    },
    Noul {
        noul: f64,
        abstain_probability: Option<f64>,
    },
    Score {
        score: f64,
        confidence: f64,
        legend: Vec<String>,
        probabilities: Vec<f64>,
    },
    /// `/v1/decisions` only. `kind` is the question's `type` as sent, null if unreadable or longer than [`MAX_ECHO_CHARS`].
    Failed {
        kind: Value,
        error: String,
        message: String,
    },
}

/// A decoded span; offsets are code points of the field or part that the question reads.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    pub label: String,
    pub start: usize,
    pub end: usize,
    pub text: String,
    /// The float32 mean, widened.
    pub probability: f64,
}

/// The `sets` entry of a Set question.
#[derive(Clone, Debug, PartialEq)]
pub struct SetAnswer {
    pub selected: Vec<String>,
    pub probabilities: Vec<(String, f64)>,
}

/// Why a request has no answer. A class, never a status: `http` holds that table.
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    /// One entry per invalid question or field.
    Invalid(Vec<Detail>),
    /// The questions alone do not fit the member's input.
    TooLong { message: String },
    /// A logit is not finite.
    InvalidModelOutput { question: String },
}

/// Why one of several states has no answers.
#[derive(Clone, Debug, PartialEq)]
pub struct StateError {
    /// A stable code of the table in system-one.md.
    pub code: &'static str,
    pub message: String,
}

impl From<Refusal> for StateError {
    fn from(refusal: Refusal) -> Self {
        let (code, message) = match refusal {
            Refusal::Invalid(details) => details
                .into_iter()
                .next()
                .map_or_else(|| ("type", "is invalid".to_owned()), |detail| (detail.code, detail.msg)),
            Refusal::TooLong { message } => ("too_long", message),
            Refusal::InvalidModelOutput { .. } => ("invalid_model_output", "a logit is not finite".to_owned()),
        };
        StateError { code, message }
    }
}

/// One entry of a 422's `detail`.
#[derive(Clone, Debug, PartialEq)]
pub struct Detail {
    pub loc: Vec<Loc>,
    pub msg: String,
    /// A stable code of the table in system-one.md.
    pub code: &'static str,
}

/// A step of a `loc`.
#[derive(Clone, Debug, PartialEq)]
pub enum Loc {
    Key(String),
    Index(usize),
}

/// The body of a 200 (vela.md §9): keys in the specification's order, numbers as Python writes floats. `spans`,
/// `span_heads`, `sets` and `thresholds` stand there only if they have entries.
pub fn write_decision(model: &str, decision: &Decision) -> String {
    let mut out = String::from("{\"model\":");
    write_text(&mut out, model);
    out.push(',');
    write_contents(&mut out, decision);
    out.push('}');
    out
}

/// The body of a 200 to several states (system-one.md): a state that was refused has an error in its place.
pub fn write_decisions(model: &str, states: &[(String, Result<Decision, StateError>)]) -> String {
    let mut out = String::from("{\"model\":");
    write_text(&mut out, model);
    out.push_str(",\"states\":");
    write_object(&mut out, pairs(states), |out, state| match state {
        Ok(decision) => {
            out.push('{');
            write_contents(out, decision);
            out.push('}');
        }
        Err(StateError { code, message }) => {
            out.push_str("{\"error\":");
            write_text(out, code);
            out.push_str(",\"message\":");
            write_text(out, &echo(message));
            out.push('}');
        }
    });
    let answered = states.iter().filter_map(|(_, state)| state.as_ref().ok());
    out.push(',');
    write_usage(&mut out, answered.map(|decision| decision.input_tokens).sum());
    out.push('}');
    out
}

fn write_usage(out: &mut String, input_tokens: usize) {
    out.push_str("\"usage\":{\"input_tokens\":");
    out.push_str(&input_tokens.to_string());
    out.push_str(",\"output_tokens\":0}");
}

/// What a response says of one state, without the braces around it.
fn write_contents(out: &mut String, decision: &Decision) {
    out.push_str("\"answers\":");
    write_object(out, pairs(&decision.answers), write_answer);
    out.push(',');
    write_usage(out, decision.input_tokens);
    if !decision.spans.is_empty() {
        out.push_str(",\"spans\":");
        write_object(out, pairs(&decision.spans), |out, spans| write_array(out, spans, write_span));
    }
    if !decision.span_heads.is_empty() {
        out.push_str(",\"span_heads\":");
        write_object(out, pairs(&decision.span_heads), |out, head| write_text(out, head));
    }
    if !decision.sets.is_empty() {
        out.push_str(",\"sets\":");
        write_object(out, pairs(&decision.sets), write_set);
    }
    if !decision.thresholds.is_empty() {
        out.push_str(",\"thresholds\":");
        write_floats(out, &decision.thresholds);
    }
}

/// The body of a 422. Steps and messages beyond [`MAX_ECHO_CHARS`] are cut.
pub fn write_details(details: &[Detail]) -> String {
    let mut out = String::from("{\"detail\":");
    write_array(&mut out, details, |out, detail| {
        out.push_str("{\"loc\":");
        write_array(out, &detail.loc, |out, step| match step {
            Loc::Key(key) => write_text(out, &echo(key)),
            Loc::Index(index) => out.push_str(&index.to_string()),
        });
        out.push_str(",\"msg\":");
        write_text(out, &echo(&detail.msg));
        out.push_str(",\"type\":");
        write_text(out, detail.code);
        out.push('}');
    });
    out.push('}');
    out
}

/// The body of every other refusal: `{"error":{"code","message"}}`.
pub fn write_error(code: &str, message: &str) -> String {
    let mut out = String::from("{\"error\":{\"code\":");
    write_text(&mut out, code);
    out.push_str(",\"message\":");
    write_text(&mut out, message);
    out.push_str("}}");
    out
}

fn pairs<T>(entries: &[(String, T)]) -> impl Iterator<Item = (&str, &T)> {
    entries.iter().map(|(key, value)| (key.as_str(), value))
}

fn write_answer(out: &mut String, answer: &Answer) {
    match answer {
        Answer::Choice { choice, confidence, probabilities, abstain_probability } => {
            out.push_str("{\"type\":\"choice\",\"choice\":");
            write_text(out, choice);
            out.push_str(",\"confidence\":");
            write_float(out, *confidence);
            out.push_str(",\"probabilities\":");
            write_floats(out, probabilities);
            write_abstain(out, *abstain_probability);
        }
        Answer::Noul { noul, abstain_probability } => {
            out.push_str("{\"type\":\"noul\",\"noul\":");
            write_float(out, *noul);
            write_abstain(out, *abstain_probability);
        }
        Answer::Score { score, confidence, legend, probabilities } => {
            out.push_str("{\"type\":\"score\",\"score\":");
            write_float(out, *score);
            out.push_str(",\"confidence\":");
            write_float(out, *confidence);
            out.push_str(",\"legend\":");
            write_object(out, numbered(legend), |out, text| write_text(out, text));
            out.push_str(",\"probabilities\":");
            write_object(out, numbered(probabilities), |out, p| write_float(out, *p));
        }
        Answer::Failed { kind, error, message } => {
            out.push_str("{\"type\":");
            write_value(out, kind, KeyOrder::Kept);
            out.push_str(",\"error\":");
            write_text(out, error);
            out.push_str(",\"message\":");
            write_text(out, &echo(message));
        }
    }
    out.push('}');
}

/// A text that holds words of the client's, cut where it is too long to repeat.
fn echo(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(MAX_ECHO_CHARS) {
        Some((cut, _)) => format!("{}…", &text[..cut]).into(),
        None => text.into(),
    }
}

fn write_abstain(out: &mut String, abstain_probability: Option<f64>) {
    if let Some(p) = abstain_probability {
        out.push_str(",\"abstain_probability\":");
        write_float(out, p);
    }
}

/// Entries keyed "0", "1", …
fn numbered<T>(entries: &[T]) -> impl Iterator<Item = (String, &T)> {
    entries.iter().enumerate().map(|(i, entry)| (i.to_string(), entry))
}

fn write_floats(out: &mut String, entries: &[(String, f64)]) {
    write_object(out, pairs(entries), |out, x| write_float(out, *x));
}

fn write_span(out: &mut String, span: &Span) {
    out.push_str("{\"label\":");
    write_text(out, &span.label);
    out.push_str(",\"start\":");
    out.push_str(&span.start.to_string());
    out.push_str(",\"end\":");
    out.push_str(&span.end.to_string());
    out.push_str(",\"text\":");
    write_text(out, &span.text);
    out.push_str(",\"probability\":");
    write_float(out, span.probability);
    out.push('}');
}

fn write_set(out: &mut String, set: &SetAnswer) {
    out.push_str("{\"selected\":");
    write_array(out, &set.selected, |out, label| write_text(out, label));
    out.push_str(",\"probabilities\":");
    write_floats(out, &set.probabilities);
    out.push('}');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(abstain_probability: Option<f64>) -> Answer {
        let probabilities = vec![("b".into(), 0.75), ("a\"".into(), 1e-7)];
        Answer::Choice { choice: "b".into(), confidence: 0.5, probabilities, abstain_probability }
    }

    fn decision() -> Decision {
        let span =
            Span { label: "名".into(), start: 4, end: 6, text: "Tö".into(), probability: 0.324_050_277_471_542_36 };
        Decision {
            answers: vec![
                ("z".into(), choice(None)),
                ("a".into(), Answer::Noul { noul: 1.0, abstain_probability: None }),
                (
                    "s".into(),
                    Answer::Score {
                        score: 0.0,
                        confidence: 1.0,
                        legend: vec!["low".into(), "low".into()],
                        probabilities: vec![1.0, 0.0],
                    },
                ),
            ],
            input_tokens: 1238,
            spans: vec![("p".into(), vec![span]), ("q".into(), vec![])],
            span_heads: vec![("p".into(), "router"), ("q".into(), "broad")],
            sets: vec![("t".into(), SetAnswer { selected: vec!["x".into()], probabilities: vec![("x".into(), 0.5)] })],
            thresholds: vec![("t".into(), 0.0), ("p".into(), 1.0)],
        }
    }

    /// The expected text is what the oracle's `wire` (Python's `json.dumps`) prints for the same data.
    #[test]
    fn decisions_have_the_keys_of_the_specification_in_order() {
        assert_eq!(
            write_decision("vela-\"4b\"", &decision()),
            concat!(
                r#"{"model":"vela-\"4b\"","answers":{"z":{"type":"choice","choice":"b","confidence":0.5,"#,
                r#""probabilities":{"b":0.75,"a\"":1e-07}},"a":{"type":"noul","noul":1.0},"#,
                r#""s":{"type":"score","score":0.0,"confidence":1.0,"legend":{"0":"low","1":"low"},"#,
                r#""probabilities":{"0":1.0,"1":0.0}}},"usage":{"input_tokens":1238,"output_tokens":0},"#,
                r#""spans":{"p":[{"label":"名","start":4,"end":6,"text":"Tö","probability":0.32405027747154236}],"q":[]},"#,
                r#""span_heads":{"p":"router","q":"broad"},"#,
                r#""sets":{"t":{"selected":["x"],"probabilities":{"x":0.5}}},"thresholds":{"t":0.0,"p":1.0}}"#
            )
        );
    }

    #[test]
    fn what_has_no_entries_has_no_key() {
        let bare = Decision {
            answers: vec![("n".into(), Answer::Noul { noul: 0.25, abstain_probability: None })],
            input_tokens: 7,
            spans: vec![],
            span_heads: vec![],
            sets: vec![],
            thresholds: vec![],
        };
        assert_eq!(
            write_decision("m", &bare),
            r#"{"model":"m","answers":{"n":{"type":"noul","noul":0.25}},"usage":{"input_tokens":7,"output_tokens":0}}"#
        );
    }

    #[test]
    fn the_abstain_probability_is_the_last_key_of_an_answer() {
        let check = |answer: &Answer, expected: &str| {
            let mut out = String::new();
            write_answer(&mut out, answer);
            assert_eq!(out, expected);
        };
        check(
            &choice(Some(0.125)),
            r#"{"type":"choice","choice":"b","confidence":0.5,"probabilities":{"b":0.75,"a\"":1e-07},"abstain_probability":0.125}"#,
        );
        check(
            &Answer::Noul { noul: 0.5, abstain_probability: Some(0.0) },
            r#"{"type":"noul","noul":0.5,"abstain_probability":0.0}"#,
        );
        check(
            &Answer::Failed { kind: Value::Null, error: "dict_type".into(), message: "must be an object".into() },
            r#"{"type":null,"error":"dict_type","message":"must be an object"}"#,
        );
    }

    #[test]
    fn refusals_are_what_the_sdk_reads() {
        let detail = Detail {
            loc: vec![Loc::Key("body".into()), Loc::Key("a\nb".into()), Loc::Index(3)],
            msg: "is required".into(),
            code: "missing",
        };
        assert_eq!(
            write_details(&[detail.clone(), detail]),
            r#"{"detail":[{"loc":["body","a\nb",3],"msg":"is required","type":"missing"},{"loc":["body","a\nb",3],"msg":"is required","type":"missing"}]}"#
        );
        assert_eq!(write_error("too_long", "say \"x\""), r#"{"error":{"code":"too_long","message":"say \"x\""}}"#);
    }

    /// A body of megabytes in one key made an answer of as many.
    #[test]
    fn what_a_client_sent_is_repeated_up_to_a_length() {
        let details = |text: &str| {
            let loc = vec![Loc::Key("body".into()), Loc::Key(text.into())];
            write_details(&[Detail { loc, msg: text.into(), code: "extra_forbidden" }])
        };
        let longest = "é".repeat(1024);
        assert!(details(&longest).contains(&format!(r#"["body","{longest}"],"msg":"{longest}","#)));
        assert!(details(&format!("{longest}x")).contains(&format!(r#"["body","{longest}…"],"msg":"{longest}…","#)));

        let mut out = String::new();
        let failed = |message| Answer::Failed { kind: Value::Null, error: "unknown_part".into(), message };
        write_answer(&mut out, &failed(format!("{longest}x")));
        assert_eq!(out, format!(r#"{{"type":null,"error":"unknown_part","message":"{longest}…"}}"#));
    }
}
