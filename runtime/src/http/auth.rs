//! Bearer keys: who may ask, and which members.

use std::sync::Arc;

use actix_web::http::header::{AUTHORIZATION, HeaderMap};
use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};

use super::Problem;

/// The deployment's keys, as digests. Without any, everybody is let in.
#[derive(Debug, Default)]
pub struct Keys(Vec<Key>);

#[derive(Debug)]
struct Key {
    sha256: [u8; 32],
    models: Arc<[String]>,
}

impl Keys {
    /// The keys of a deployment.
    pub fn new(keys: &[synod_config::Key]) -> Self {
        Keys(keys.iter().map(|key| Key { sha256: key.sha256, models: key.models.as_slice().into() }).collect())
    }

    /// The served names that the request's key allows; `None` where no key is asked for.
    ///
    /// # Errors
    /// [`Problem::MissingKey`] or [`Problem::UnknownKey`].
    pub fn check(&self, headers: &HeaderMap) -> Result<Option<Arc<[String]>>, Problem> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = headers.get(AUTHORIZATION).and_then(|value| bearer(value.as_bytes())).ok_or(Problem::MissingKey)?;
        let key = self.find(key).ok_or(Problem::UnknownKey)?;
        Ok(Some(Arc::clone(&key.models)))
    }

    /// Compares with every key, each in constant time: how long it takes says nothing about any of them.
    fn find(&self, key: &[u8]) -> Option<&Key> {
        let digest: [u8; 32] = Sha256::digest(key).into();
        let mut found = u64::MAX;
        for (index, known) in self.0.iter().enumerate() {
            found.conditional_assign(&(index as u64), digest.ct_eq(&known.sha256));
        }
        self.0.get(usize::try_from(found).ok()?)
    }
}

/// The key of `Bearer <key>`; the scheme's case does not matter (RFC 9110 §11.1).
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = value.split_at_checked(b"Bearer ".len())?;
    let key = key.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"Bearer ") && !key.is_empty()).then_some(key)
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::HeaderValue;

    use super::*;

    fn keys() -> Keys {
        let key = |text: &str, model: &str| Key { sha256: Sha256::digest(text).into(), models: [model.into()].into() };
        Keys(vec![key("one", "a"), key("two", "b"), key("three", "c")])
    }

    fn check(value: &str) -> Result<String, Problem> {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
        keys().check(&headers).map(|models| models.unwrap()[0].clone())
    }

    #[test]
    fn every_key_is_found_and_no_other() {
        assert_eq!(check("Bearer one"), Ok("a".into()));
        assert_eq!(check("bearer two"), Ok("b".into()));
        assert_eq!(check("BEARER  three "), Ok("c".into()));
        for unknown in ["Bearer One", "Bearer onetwo", "Bearer on", "Bearer four"] {
            assert_eq!(check(unknown), Err(Problem::UnknownKey), "{unknown}");
        }
    }

    #[test]
    fn other_schemes_bring_no_key() {
        for missing in ["", "Bearer", "Bearer ", "Bearer   ", "Basic b25l", "one", "Bear\u{e9}r one"] {
            assert_eq!(check(missing), Err(Problem::MissingKey), "{missing:?}");
        }
        assert_eq!(keys().check(&HeaderMap::new()), Err(Problem::MissingKey));
    }

    #[test]
    fn without_keys_everybody_is_let_in() {
        assert_eq!(Keys::default().check(&HeaderMap::new()), Ok(None));
    }
}
