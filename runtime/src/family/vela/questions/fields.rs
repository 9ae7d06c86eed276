//! Single fields of a question. A null optional field is the same as an absent one.

use std::collections::HashSet;
use std::ops::RangeInclusive;

use super::Problem;
use crate::family::SpanHead;
use crate::family::vela::state::text_of;
use crate::family::vela::unicode::is_blank;
use crate::wire::json::{Object, Value};

/// The value of a field that is there and not null.
pub(super) fn given<'a>(body: &'a Object, field: &str) -> Option<&'a Value> {
    body.get(field).filter(|value| !value.is_null())
}

/// Required text: the only field where null is a wrong type, not an absence.
pub(super) fn instructions(body: &Object) -> Result<String, Problem> {
    let value = body.get("instructions").ok_or_else(|| Problem::new("missing", "is required"));
    value.and_then(content).map_err(|problem| problem.at("instructions"))
}

/// `criteria` or its alternative: the name of the one that is given, and its value.
pub(super) fn criteria_or<'a>(
    body: &'a Object,
    alternative: &'static str,
) -> Result<Option<(&'static str, &'a Value)>, Problem> {
    match (given(body, "criteria"), given(body, alternative)) {
        (Some(_), Some(_)) => {
            let msg = format!("give criteria or {alternative}, not both");
            Err(Problem::new("extra_forbidden", msg).at(alternative))
        }
        (Some(value), None) => Ok(Some(("criteria", value))),
        (None, value) => Ok(value.map(|value| (alternative, value))),
    }
}

fn required_criteria_or<'a>(body: &'a Object, alternative: &'static str) -> Result<(&'static str, &'a Value), Problem> {
    criteria_or(body, alternative)?.ok_or_else(|| Problem::new("missing", "is required").at("criteria"))
}

/// Names with descriptions, from `criteria` or its alternative.
pub(super) fn named(
    body: &Object,
    alternative: &'static str,
    counts: RangeInclusive<usize>,
) -> Result<Vec<(String, String)>, Problem> {
    let (field, value) = required_criteria_or(body, alternative)?;
    named_in(field, value, counts)
}

/// Names with descriptions, from an object in `criteria` or a list of `{key, description}` in any other field. Names
/// are unique.
pub(super) fn named_in(
    field: &str,
    value: &Value,
    counts: RangeInclusive<usize>,
) -> Result<Vec<(String, String)>, Problem> {
    let read = || {
        let pairs = match value {
            Value::Object(object) if field == "criteria" => described(object)?,
            Value::Array(items) if field != "criteria" => listed(items)?,
            _ => return Err(Problem::new("dict_type", "must be an object")),
        };
        if pairs.iter().any(|(name, _)| is_blank(name)) {
            return Err(Problem::new("blank", "a name must not be blank"));
        }
        check_count(pairs.len(), counts)?;
        Ok(pairs)
    };
    read().map_err(|problem| problem.at(field))
}

fn described(object: &Object) -> Result<Vec<(String, String)>, Problem> {
    object
        .iter()
        .map(|(name, value)| {
            let text = description(Some(value)).map_err(|problem| problem.at(name))?;
            Ok((name.to_owned(), text))
        })
        .collect()
}

fn listed(items: &[Value]) -> Result<Vec<(String, String)>, Problem> {
    let mut seen = HashSet::new();
    let entries = items.iter().enumerate();
    entries.map(|(index, item)| entry(item, &mut seen).map_err(|problem| problem.at_index(index))).collect()
}

/// One `{key, description}`; `seen` holds the earlier keys.
fn entry<'a>(item: &'a Value, seen: &mut HashSet<&'a str>) -> Result<(String, String), Problem> {
    let with_key = item.as_object().and_then(|item| Some((item, item.get("key")?)));
    let (item, key) = with_key.ok_or_else(|| Problem::new("missing", "must be an object with a key"))?;
    if let Some(unknown) = item.keys().find(|field| !matches!(*field, "key" | "description")) {
        return Err(Problem::new("extra_forbidden", "unknown field").at(unknown));
    }
    let key = key.as_str().ok_or_else(|| Problem::new("string_type", "must be a string").at("key"))?;
    if !seen.insert(key) {
        return Err(Problem::new("duplicate", "repeats an earlier key").at("key"));
    }
    let text = description(item.get("description")).map_err(|problem| problem.at("description"))?;
    Ok((key.to_owned(), text))
}

/// A score's levels as text, from `criteria` or `levels`.
pub(super) fn levels(body: &Object, max_levels: usize) -> Result<Vec<String>, Problem> {
    let (field, value) = required_criteria_or(body, "levels")?;
    let read = || {
        let items = value.as_array().ok_or_else(|| Problem::new("list_type", "must be an array"))?;
        let levels: Vec<String> = items
            .iter()
            .enumerate()
            .map(|(index, level)| content(level).map_err(|problem| problem.at_index(index)))
            .collect::<Result<_, _>>()?;
        check_count(levels.len(), 2..=max_levels)?;
        Ok(levels)
    };
    read().map_err(|problem: Problem| problem.at(field))
}

fn check_count(count: usize, counts: RangeInclusive<usize>) -> Result<(), Problem> {
    if count < *counts.start() {
        return Err(Problem::new("too_short", format!("needs at least {}", counts.start())));
    }
    if count > *counts.end() {
        return Err(Problem::new("too_long", format!("takes at most {}", counts.end())));
    }
    Ok(())
}

/// Text, or an object or array as canonical JSON; not blank.
fn content(value: &Value) -> Result<String, Problem> {
    if !matches!(value, Value::Text(_) | Value::Object(_) | Value::Array(_)) {
        return Err(Problem::new("string_type", "must be text, an object or an array"));
    }
    let text = text_of(value);
    if is_blank(&text) { Err(Problem::new("blank", "must not be blank")) } else { Ok(text) }
}

/// Content, or no text where the description is absent or null.
fn description(value: Option<&Value>) -> Result<String, Problem> {
    value.filter(|value| !value.is_null()).map_or(Ok(String::new()), content)
}

/// A number in [0, 1].
pub(super) fn threshold(body: &Object) -> Result<Option<f64>, Problem> {
    let problem = |code, msg| Err(Problem::new(code, msg).at("threshold"));
    let number = match given(body, "threshold") {
        None => return Ok(None),
        Some(Value::Float(number)) => *number,
        // Rounding does not carry an integer across either bound, and past float64 it becomes infinite.
        Some(Value::Int(digits)) => digits.parse().expect("decimal digits are a number"),
        Some(_) => return problem("float_type", "must be a number"),
    };
    if (0.0..=1.0).contains(&number) { Ok(Some(number)) } else { problem("range", "must lie in [0, 1]") }
}

/// The head that the caller wants.
pub(super) fn head(body: &Object, has_broad: bool) -> Result<Option<SpanHead>, Problem> {
    let problem = |code, msg| Err(Problem::new(code, msg).at("head"));
    match given(body, "head").map(Value::as_str) {
        None => Ok(None),
        Some(Some("router")) => Ok(Some(SpanHead::Router)),
        Some(Some("broad")) if has_broad => Ok(Some(SpanHead::Broad)),
        Some(Some("broad")) => problem("unsupported", "this member has no broad head"),
        Some(_) => problem("literal_error", "must be router or broad"),
    }
}
