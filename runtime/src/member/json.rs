//! Small JSON files of a package, read strictly.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use super::{Excerpt, MemberError};

/// Reads the whole of `bytes` as a `T`; `expected` says in the refusal what the file should be.
pub(super) fn parse<T: DeserializeOwned>(file: &str, expected: &'static str, bytes: &[u8]) -> Result<T, MemberError> {
    serde_json::from_slice(bytes).map_err(|error| {
        let file = file.to_owned();
        // The error's own class is lost where its key was put in front: only a second look tells whether this is JSON. What
        // it ignores it does not decode, and text that is not UTF-8 is no JSON.
        if let Err(error) = std::str::from_utf8(bytes) {
            return MemberError::Json { file, expected, message: error.to_string() };
        }
        match serde_json::from_slice::<IgnoredAny>(bytes) {
            Ok(_) => MemberError::Content { file, expected, message: error.to_string() },
            Err(error) => MemberError::Json { file, expected, message: error.to_string() },
        }
    })
}

/// Far more entries than any file of a member has in one object.
const MAX_ENTRIES: usize = 1 << 16;

/// A JSON object in which no key stands twice: two readers of a file could otherwise take different ones. It has at most
/// [`MAX_ENTRIES`]: an entry takes many times its bytes in memory, and this is also what free text in a header, of up to
/// 100 MB, is read as.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(super) struct UniqueMap<V>(pub(super) BTreeMap<String, V>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for UniqueMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(UniqueMapVisitor(PhantomData))
    }
}

struct UniqueMapVisitor<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for UniqueMapVisitor<V> {
    type Value = UniqueMap<V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = BTreeMap::new();
        while let Some(key) = map.next_key::<String>()? {
            if entries.len() == MAX_ENTRIES {
                return Err(A::Error::custom(format_args!("more than {MAX_ENTRIES} entries")));
            }
            let value = map.next_value();
            insert_unique(&mut entries, key, value)?;
        }
        Ok(UniqueMap(entries))
    }
}

/// Adds the `value` that was read for `key`.
///
/// # Errors
/// `value`'s own with its key in front, or that the key stands twice.
pub(super) fn insert_unique<V, E: Error>(
    entries: &mut BTreeMap<String, V>,
    key: String,
    value: Result<V, E>,
) -> Result<(), E> {
    let value = value.map_err(|error| E::custom(format_args!("{}: {error}", Excerpt(&key))))?;
    match entries.entry(key) {
        Entry::Vacant(entry) => {
            entry.insert(value);
            Ok(())
        }
        Entry::Occupied(entry) => Err(E::custom(format_args!("\"{}\" stands twice", Excerpt(entry.key())))),
    }
}
