//! From a request's state to at most three parts with named fields (spec: vela.md §3).
//!
//! A [`State`] has at least one part, each at most once and in role order, and no part is blank. Field ranges are code
//! points of the part's text. The JSON it came from is gone: `questions` and `layout` see only text.

use super::unicode::{is_blank, strip};
use crate::family::CharRange;
use crate::wire::canonical::canonical;
use crate::wire::json::{Object, Value, parse_text};

/// A part of the state; parts always come in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    User,
    Context,
    Answer,
}

impl Role {
    /// Every role, in part order.
    pub const ALL: [Role; 3] = [Role::User, Role::Context, Role::Answer];

    /// Its name in prefixes, in `over` and in messages.
    pub fn name(self) -> &'static str {
        match self {
            Role::User => "user",
            Role::Context => "context",
            Role::Answer => "answer",
        }
    }

    /// The part of a known state key, spelled as in the specification's table.
    pub fn from_key(key: &str) -> Option<Role> {
        match key {
            "request" | "user" | "prompt" => Some(Role::User),
            "source" | "context" | "document" | "tools" | "previous_answer" => Some(Role::Context),
            "answer" | "response" => Some(Role::Answer),
            _ => None,
        }
    }

    /// [`Role::from_key`] for a key in any case. No known key has a letter that Python's `lower` makes of a non-ASCII
    /// one (that is `k` alone, of the Kelvin sign), so ASCII case is enough.
    fn from_key_in_any_case(key: &str) -> Option<Role> {
        Role::from_key(&key.to_ascii_lowercase())
    }
}

/// A state key as the caller wrote it, and where its value stands in its part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    pub name: String,
    pub role: Role,
    pub range: CharRange,
}

/// A non-blank text with its fields in request order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub role: Role,
    pub text: String,
    pub fields: Vec<Field>,
}

/// A state that was read: its parts in role order, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    pub parts: Vec<Part>,
}

impl State {
    /// The part of a role, if the state has one.
    pub fn part(&self, role: Role) -> Option<&Part> {
        self.parts.iter().find(|part| part.role == role)
    }

    /// A text that is all of the `user` part, under the key `request`.
    fn of_request(text: String) -> State {
        State { parts: vec![whole_part(Role::User, "request", text)] }
    }
}

/// Why a state cannot be read. Displays as the message that the client gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateProblem {
    #[error("the state must be a string, an object or an array")]
    Type,
    #[error("the state is blank")]
    Blank,
    #[error("the state object has no keys")]
    EmptyObject,
    #[error("the {} part is blank", .role.name())]
    BlankPart { role: Role },
}

impl StateProblem {
    /// The stable code of the table in system-one.md.
    pub fn code(self) -> &'static str {
        match self {
            StateProblem::Type => "type",
            StateProblem::Blank => "blank",
            StateProblem::EmptyObject => "empty_object",
            StateProblem::BlankPart { .. } => "blank_part",
        }
    }
}

/// Reads a state: a string (an object, if it looks and parses like one), an object or an array.
///
/// # Errors
/// [`StateProblem`], the first in the order type, blank, empty object, blank part.
pub fn read_state(value: &Value) -> Result<State, StateProblem> {
    match value {
        Value::Object(object) => from_object(object),
        Value::Array(_) => Ok(State::of_request(canonical(value))),
        Value::Text(text) => from_text(text),
        _ => Err(StateProblem::Type),
    }
}

/// A string as it is, anything else as canonical JSON.
pub(super) fn text_of(value: &Value) -> String {
    match value {
        Value::Text(text) => text.clone(),
        _ => canonical(value),
    }
}

fn from_text(text: &str) -> Result<State, StateProblem> {
    if is_blank(text) {
        return Err(StateProblem::Blank);
    }
    let trimmed = strip(text);
    if trimmed.starts_with('{')
        && let Ok(Value::Object(object)) = parse_text(trimmed)
    {
        return from_object(&object);
    }
    Ok(State::of_request(text.to_owned()))
}

fn from_object(object: &Object) -> Result<State, StateProblem> {
    if object.is_empty() {
        return Err(StateProblem::EmptyObject);
    }
    let mut parts = Vec::new();
    for role in Role::ALL {
        let feeds = |key: &str| Role::from_key_in_any_case(key).unwrap_or(Role::Context) == role;
        let items: Vec<(&str, String)> =
            object.iter().filter(|(key, _)| feeds(key)).map(|(key, value)| (key, text_of(value))).collect();
        if !items.is_empty() {
            parts.push(part_of(role, items));
        }
    }
    match parts.iter().find(|part| is_blank(&part.text)) {
        Some(part) => Err(StateProblem::BlankPart { role: part.role }),
        None => Ok(State { parts }),
    }
}

/// A part from the keys and texts that feed it: the text of a single known key, else one `KEY:\nTEXT` per key with
/// blank lines between.
fn part_of(role: Role, mut items: Vec<(&str, String)>) -> Part {
    if let [(key, text)] = items.as_mut_slice()
        && Role::from_key_in_any_case(key).is_some()
    {
        return whole_part(role, key, std::mem::take(text));
    }
    let mut part = Part { role, text: String::new(), fields: Vec::with_capacity(items.len()) };
    let mut length_chars = 0;
    for (key, text) in items {
        let head = format!("{}{key}:\n", if part.fields.is_empty() { "" } else { "\n\n" });
        let start = length_chars + head.chars().count();
        length_chars = start + text.chars().count();
        part.fields.push(Field { name: key.to_owned(), role, range: CharRange { start, end: length_chars } });
        part.text.push_str(&head);
        part.text.push_str(&text);
    }
    part
}

/// A part that is the value of one key.
fn whole_part(role: Role, key: &str, text: String) -> Part {
    let range = CharRange { start: 0, end: text.chars().count() };
    Part { role, text, fields: vec![Field { name: key.to_owned(), role, range }] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<State, StateProblem> {
        read_state(&parse_text(json).unwrap())
    }

    /// A part: role, text, and its fields with their ranges.
    type Expected<'a> = (Role, &'a str, &'a [(&'a str, usize, usize)]);

    fn check(json: &str, expected: &[Expected<'_>]) {
        let state = read(json).unwrap();
        assert_eq!(state.parts.len(), expected.len(), "{json}");
        for (part, (role, text, fields)) in state.parts.iter().zip(expected) {
            let found: Vec<_> = part.fields.iter().map(|f| (f.name.as_str(), f.range.start, f.range.end)).collect();
            assert_eq!((part.role, part.text.as_str(), found.as_slice()), (*role, *text, *fields), "{json}");
            assert!(part.fields.iter().all(|field| field.role == part.role), "{json}");
            assert_eq!(state.part(*role), Some(part), "{json}");
        }
    }

    #[test]
    fn strings_and_arrays_are_the_request() {
        check(r#"" é🙂 ""#, &[(Role::User, " é🙂 ", &[("request", 0, 4)])]);
        check(r#"[1, {"b": 1e-7, "a": "é"}]"#, &[(Role::User, r#"[1,{"a":"é","b":1e-07}]"#, &[("request", 0, 23)])]);
        check(r#""[1, 2]""#, &[(Role::User, "[1, 2]", &[("request", 0, 6)])]);
        check(r#""{not json}""#, &[(Role::User, "{not json}", &[("request", 0, 10)])]);
        check(r#""{\"a\": NaN}""#, &[(Role::User, r#"{"a": NaN}"#, &[("request", 0, 10)])]);
        check(r#""\u001c{\"Answer\": 1}\u2003""#, &[(Role::Answer, "1", &[("Answer", 0, 1)])]);
    }

    #[test]
    fn keys_feed_parts() {
        check(
            r#"{"response": "R", "PROMPT": "P", "mood": {"b": 2, "a": null}}"#,
            &[
                (Role::User, "P", &[("PROMPT", 0, 1)]),
                (Role::Context, "mood:\n{\"a\":null,\"b\":2}", &[("mood", 6, 22)]),
                (Role::Answer, "R", &[("response", 0, 1)]),
            ],
        );
        check(
            r#"{"source": "é", "Ünknown": "", "tools": [true]}"#,
            &[(
                Role::Context,
                "source:\né\n\nÜnknown:\n\n\ntools:\n[true]",
                &[("source", 8, 9), ("Ünknown", 20, 20), ("tools", 29, 35)],
            )],
        );
        check(r#"{"": ""}"#, &[(Role::Context, ":\n", &[("", 2, 2)])]);
    }

    #[test]
    fn problems_have_the_codes_and_messages_of_the_reference() {
        let check = |json: &str, code: &str, message: &str| {
            let problem = read(json).unwrap_err();
            assert_eq!((problem.code(), problem.to_string().as_str()), (code, message), "{json}");
        };
        for json in ["null", "true", "1", "1.5"] {
            check(json, "type", "the state must be a string, an object or an array");
        }
        check(r#"" \u001c\u3000""#, "blank", "the state is blank");
        check("{}", "empty_object", "the state object has no keys");
        check(r#""{}""#, "empty_object", "the state object has no keys");
        check(r#"{"answer": "", "source": " "}"#, "blank_part", "the context part is blank");
    }
}
