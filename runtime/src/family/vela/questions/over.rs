//! Which parts of the state a question reads (spec: vela.md §4, `over`).

use std::collections::HashMap;

use super::fields::given;
use super::{Kind, Problem};
use crate::family::vela::state::{Field, Role, State};
use crate::family::vela::unicode::repr;
use crate::wire::json::{Object, Value};

/// A state's parts and fields by name. Built once per request: a body can hold a million of either's names.
pub(super) struct Parts<'a> {
    /// The roles that the state has, in part order.
    present: Vec<Role>,
    fields: HashMap<&'a str, &'a Field>,
}

impl<'a> Parts<'a> {
    pub(super) fn of(state: &'a State) -> Self {
        let fields = state.parts.iter().flat_map(|part| &part.fields);
        Parts {
            present: state.parts.iter().map(|part| part.role).collect(),
            fields: fields.map(|field| (field.name.as_str(), field)).collect(),
        }
    }

    /// The parts that a question reads, in part order, and the field that a span is clipped to.
    pub(super) fn over(&self, body: &Object, kind: Kind) -> Result<(Vec<Role>, Option<Field>), Problem> {
        let read = || match given(body, "over") {
            None => Ok((self.default_roles(kind), None)),
            Some(Value::Text(name)) => {
                let (role, field) = self.resolve(name)?;
                Ok((vec![role], field.filter(|_| kind == Kind::Span).cloned()))
            }
            Some(Value::Array(names)) if !names.is_empty() => Ok((self.listed_roles(names, kind)?, None)),
            Some(_) => Err(not_names()),
        };
        read().map_err(|problem| problem.at("over"))
    }

    /// Every part; a span reads the answer, else what the user wrote, else what there is.
    fn default_roles(&self, kind: Kind) -> Vec<Role> {
        if kind != Kind::Span {
            return self.present.clone();
        }
        let preferred = [Role::Answer, Role::User].into_iter().find(|role| self.present.contains(role));
        vec![preferred.unwrap_or(self.present[0])]
    }

    fn listed_roles(&self, names: &[Value], kind: Kind) -> Result<Vec<Role>, Problem> {
        let mut wanted = Vec::with_capacity(Role::ALL.len());
        for name in names {
            let (role, _) = self.resolve(name.as_str().ok_or_else(not_names)?)?;
            if !wanted.contains(&role) {
                wanted.push(role);
            }
        }
        wanted.sort_unstable();
        if kind == Kind::Span && wanted.len() > 1 {
            return Err(Problem::new("one_part", "a span reads exactly one part"));
        }
        Ok(wanted)
    }

    /// A name is a field of the state, else one of its parts, else a known key, spelled as in the table, of a part
    /// that the state has.
    fn resolve(&self, name: &str) -> Result<(Role, Option<&'a Field>), Problem> {
        if let Some(&field) = self.fields.get(name) {
            return Ok((field.role, Some(field)));
        }
        let is_named = |role: &Role| role.name() == name;
        let role = self.present.iter().copied().find(is_named).or_else(|| Role::from_key(name));
        role.filter(|role| self.present.contains(role)).map(|role| (role, None)).ok_or_else(|| {
            Problem::new("unknown_part", format!("{} is neither a key nor a part of the state", repr(name)))
        })
    }
}

fn not_names() -> Problem {
    Problem::new("string_type", "must be a name or a non-empty list of names")
}
