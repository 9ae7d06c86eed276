//! The first place where two recordings part, and how far apart their numbers are.
//!
//! Invariant: structure is compared before any number is, and a number that is not finite is never close to anything.

use serde::Serialize;
use serde_json::Value;

use crate::member::Excerpt;

/// A place where what was found is not what was recorded. One line, whatever the values hold.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{}: expected {}, found {}", Excerpt(.at), Excerpt(.expected), Excerpt(.found))]
pub struct Difference {
    /// The place, as `logits.domain, row 0: option 2` or `response.answers.domain.choice`.
    pub at: String,
    pub expected: String,
    pub found: String,
}

impl Difference {
    #[expect(clippy::needless_pass_by_value, reason = "literals, numbers and formatted texts read best by value")]
    pub(super) fn new(at: impl ToString, expected: impl ToString, found: impl ToString) -> Self {
        Self { at: at.to_string(), expected: expected.to_string(), found: found.to_string() }
    }
}

/// Numbers whose structure is equal: the largest distance, and the first one beyond the gate.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Distances {
    pub(crate) largest: f64,
    pub(crate) beyond: Option<Difference>,
}

impl Distances {
    /// Takes a distance into account; `difference` says what to report if it is beyond `gate`.
    pub(super) fn add(&mut self, distance: f64, gate: f64, difference: impl FnOnce() -> Difference) {
        // Written so that a distance that is no number is beyond every gate.
        if !distance.le(&gate) && self.beyond.is_none() {
            self.beyond = Some(difference());
        }
        self.largest = if distance.is_nan() { f64::INFINITY } else { self.largest.max(distance) };
    }
}

/// Compares two values of a recording's format for equality.
///
/// # Errors
/// The first place at which they differ.
pub(super) fn check_equal<T: Serialize + PartialEq>(at: &str, recorded: &T, found: &T) -> Result<(), Difference> {
    if recorded == found {
        return Ok(());
    }
    let json = |value: &T| serde_json::to_value(value).expect("records hold text, counts and lists only");
    compare_json(at, &json(recorded), &json(found), 0.0)?;
    // Equal as JSON and not equal: no record has such a value.
    Err(Difference::new(at, "the recorded value", "another"))
}

/// Compares two JSON values: keys, their order, kinds and texts equal, floats within `gate`.
///
/// # Errors
/// The first place at which anything but a float differs. Floats beyond the gate are in the [`Distances`].
pub(crate) fn compare_json(at: &str, recorded: &Value, found: &Value, gate: f64) -> Result<Distances, Difference> {
    let mut comparison = Comparison { gate, distances: Distances::default() };
    comparison.value(&mut at.to_owned(), recorded, found)?;
    Ok(comparison.distances)
}

struct Comparison {
    gate: f64,
    distances: Distances,
}

impl Comparison {
    /// `at` is the path of the value, and is as it was when this returns without error.
    fn value(&mut self, at: &mut String, recorded: &Value, found: &Value) -> Result<(), Difference> {
        match (recorded, found) {
            (Value::Object(recorded), Value::Object(found)) => {
                check_keys(at, recorded.keys(), found.keys())?;
                for ((key, recorded), found) in recorded.iter().zip(found.values()) {
                    self.below(at, &format!(".{key}"), recorded, found)?;
                }
                Ok(())
            }
            (Value::Array(recorded), Value::Array(found)) => {
                for (index, (recorded, found)) in recorded.iter().zip(found).enumerate() {
                    self.below(at, &format!("[{index}]"), recorded, found)?;
                }
                if recorded.len() == found.len() {
                    return Ok(());
                }
                let items = |items: &[Value]| format!("{} items", items.len());
                Err(Difference::new(at, items(recorded), items(found)))
            }
            (Value::Number(a), Value::Number(b)) if a.is_f64() && b.is_f64() => {
                let (a, b) = (a.as_f64().unwrap_or(f64::NAN), b.as_f64().unwrap_or(f64::NAN));
                let report = || Difference::new(&*at, format!("{a} within {:e}", self.gate), b);
                self.distances.add((a - b).abs(), self.gate, report);
                Ok(())
            }
            _ if recorded == found => Ok(()),
            _ => Err(Difference::new(at, recorded, found)),
        }
    }

    fn below(&mut self, at: &mut String, step: &str, recorded: &Value, found: &Value) -> Result<(), Difference> {
        let len = at.len();
        at.push_str(step);
        self.value(at, recorded, found)?;
        at.truncate(len);
        Ok(())
    }
}

/// Compares the keys of two objects, order included.
fn check_keys<'a>(
    at: &str,
    recorded: impl Iterator<Item = &'a String>,
    mut found: impl Iterator<Item = &'a String>,
) -> Result<(), Difference> {
    let named = |key: &String| format!("key {key:?}");
    for recorded in recorded {
        match found.next() {
            Some(found) if found == recorded => {}
            Some(found) => return Err(Difference::new(at, named(recorded), named(found))),
            None => return Err(Difference::new(at, named(recorded), "no further key")),
        }
    }
    found.next().map_or(Ok(()), |extra| Err(Difference::new(at, "no further key", named(extra))))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn compare(recorded: &Value, found: &Value) -> Result<Distances, String> {
        compare_json("r", recorded, found, 1e-3).map_err(|difference| difference.to_string())
    }

    #[test]
    fn structure_is_compared_before_numbers_are() {
        let recorded = json!({"a": [1, {"b": 0.5}], "c": "x"});
        assert_eq!(compare(&recorded, &recorded), Ok(Distances::default()));
        for (found, expected) in [
            (json!({"c": "x", "a": [1, {"b": 0.5}]}), r#"r: expected key "a", found key "c""#),
            (json!({"a": [1, {"b": 0.5}]}), r#"r: expected key "c", found no further key"#),
            (json!({"a": [1, {"b": 0.5}], "c": "x", "d": 1}), r#"r: expected no further key, found key "d""#),
            (json!({"a": [1], "c": "x"}), "r.a: expected 2 items, found 1 items"),
            (json!({"a": [1, {"b": 0.5}, 2], "c": "x"}), "r.a: expected 2 items, found 3 items"),
            (json!({"a": [1, {"b": null}], "c": "x"}), "r.a[1].b: expected 0.5, found null"),
            (json!({"a": [1, {"b": 1}], "c": "x"}), "r.a[1].b: expected 0.5, found 1"),
            (json!({"a": [1.0, {"b": 0.5}], "c": "x"}), "r.a[0]: expected 1, found 1.0"),
            (json!({"a": [1, {"b": 0.5}], "c": "y\n"}), r#"r.c: expected "x", found "y\n""#),
        ] {
            assert_eq!(compare(&recorded, &found), Err(expected.to_owned()));
        }
    }

    #[test]
    fn the_first_number_beyond_the_gate_is_told_and_the_largest_distance() {
        let distances = compare(&json!([0.5, 0.25, 0.25]), &json!([0.5001, 0.26, 0.5])).unwrap();
        assert_eq!((distances.largest, distances.beyond.unwrap().at.as_str()), (0.25, "r[1]"));
        let distances = compare(&json!([0.5]), &json!([0.5005])).unwrap();
        assert!(distances.beyond.is_none() && distances.largest > 4e-4);
    }

    /// bundle.md, defect 3: an all-NaN array was reduced to a distance of zero.
    #[test]
    fn what_is_no_number_is_beyond_every_gate() {
        let mut distances = Distances::default();
        for distance in [f64::NAN, 0.0] {
            distances.add(distance, f64::INFINITY, || Difference::new("r", "a number", "none"));
        }
        assert!(distances.beyond.is_some() && distances.largest.is_infinite());
    }
}
