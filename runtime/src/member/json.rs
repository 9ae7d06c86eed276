//! Small JSON files of a package, read strictly.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error, MapAccess, Visitor};

use super::MemberError;

/// Reads the whole of `bytes` as a `T`; `expected` says in the refusal what the file should be.
pub(super) fn parse<T: DeserializeOwned>(file: &str, expected: &'static str, bytes: &[u8]) -> Result<T, MemberError> {
    serde_json::from_slice(bytes).map_err(|error| MemberError::Json {
        file: file.to_owned(),
        expected,
        message: error.to_string(),
    })
}

/// A JSON object in which no key stands twice: two readers of a file could otherwise take different ones.
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
            if entries.contains_key(&key) {
                return Err(A::Error::custom(format_args!("{key:?} stands twice")));
            }
            entries.insert(key, map.next_value()?);
        }
        Ok(UniqueMap(entries))
    }
}
