//! Bearer keys: who asks, which members it may ask, how often, and its share of a busy queue.
//!
//! Invariant: a key is known by its digest only, and neither is ever written anywhere: [`Keys`] has no `Debug`.

use std::sync::Arc;
use std::time::Instant;

use actix_web::http::header::{AUTHORIZATION, HeaderMap};
use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};

use super::Problem;
use super::bucket::Bucket;
use crate::executor::Lane;

/// The deployment's keys, as digests. Without any, everybody is let in.
#[derive(Default)]
pub struct Keys(Vec<Key>);

struct Key {
    sha256: [u8; 32],
    caller: Caller,
}

/// Who sent a request.
#[derive(Clone, Default)]
pub(super) struct Caller {
    /// Whose queued work it waits with.
    pub(super) lane: Lane,
    /// What the log calls it; none where no key is asked for.
    pub(super) name: Option<Arc<str>>,
    /// The served names that it may ask; all without a list.
    pub(super) models: Option<Arc<[String]>>,
    /// Requests per second.
    rate: Option<f64>,
    /// Shared with the key's callers under the deployments before and after this one.
    bucket: Arc<Bucket>,
}

impl Caller {
    /// Counts a request that began at `now`.
    ///
    /// # Errors
    /// [`Problem::KeyRate`] if there were more of them lately than the key allows.
    pub(super) fn spend(&self, now: Instant) -> Result<(), Problem> {
        let taken = self.rate.map_or(Ok(()), |rate| self.bucket.take(rate, now));
        taken.map_err(|retry_after| Problem::KeyRate { retry_after })
    }
}

impl Keys {
    /// The keys of a deployment. What a key has spent of its rate under `before`, the keys that were served until now,
    /// stays spent.
    pub fn new(keys: &[synod_config::Key], before: &Keys) -> Self {
        let key = |key: &synod_config::Key| {
            let known = before.0.iter().find(|known| known.sha256 == key.sha256);
            let caller = Caller {
                lane: Lane { caller: number(&key.sha256), weight: key.weight },
                name: Some(key.name.as_str().into()),
                models: Some(key.models.as_slice().into()),
                rate: key.rate,
                bucket: known.map_or_else(Arc::default, |known| Arc::clone(&known.caller.bucket)),
            };
            Key { sha256: key.sha256, caller }
        };
        Keys(keys.iter().map(key).collect())
    }

    /// Whose request it is. Without keys all are one caller's.
    ///
    /// # Errors
    /// [`Problem::MissingKey`] or [`Problem::UnknownKey`].
    pub(super) fn check(&self, headers: &HeaderMap) -> Result<Caller, Problem> {
        if self.0.is_empty() {
            return Ok(Caller::default());
        }
        let key = headers.get(AUTHORIZATION).and_then(|value| bearer(value.as_bytes())).ok_or(Problem::MissingKey)?;
        self.find(key).map(|key| key.caller.clone()).ok_or(Problem::UnknownKey)
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

/// A key's number among callers: the first eight bytes of its digest, which no two keys share by chance.
fn number(sha256: &[u8; 32]) -> u64 {
    u64::from_be_bytes(std::array::from_fn(|index| sha256[index]))
}

/// The key of `Bearer <key>`; the scheme's case does not matter (RFC 9110 §11.1).
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = value.split_at_checked(b"Bearer ".len())?;
    let key = key.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"Bearer ") && !key.is_empty()).then_some(key)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use actix_web::http::header::HeaderValue;

    use super::*;

    fn config(text: &str, weight: u32, rate: Option<f64>) -> synod_config::Key {
        let (sha256, name) = (Sha256::digest(text).into(), format!("key {text}"));
        synod_config::Key { sha256, name, models: vec![format!("model {text}")], weight, rate }
    }

    fn keys() -> Keys {
        let configs = [config("one", 1, None), config("two", 4, None), config("three", 1, None)];
        Keys::new(&configs, &Keys::default())
    }

    fn headers(value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
        headers
    }

    fn check(value: &str) -> Result<String, Problem> {
        keys().check(&headers(value)).map(|caller| caller.models.unwrap()[0].clone())
    }

    #[test]
    fn every_key_is_found_and_no_other() {
        assert_eq!(check("Bearer one"), Ok("model one".into()));
        assert_eq!(check("bearer two"), Ok("model two".into()));
        assert_eq!(check("BEARER  three "), Ok("model three".into()));
        for unknown in ["Bearer One", "Bearer onetwo", "Bearer on", "Bearer four"] {
            assert_eq!(check(unknown), Err(Problem::UnknownKey), "{unknown}");
        }
    }

    #[test]
    fn other_schemes_bring_no_key() {
        for missing in ["", "Bearer", "Bearer ", "Bearer   ", "Basic b25l", "one", "Bear\u{e9}r one"] {
            assert_eq!(check(missing), Err(Problem::MissingKey), "{missing:?}");
        }
        assert_eq!(keys().check(&HeaderMap::new()).err(), Some(Problem::MissingKey));
    }

    #[test]
    fn without_keys_everybody_is_let_in_and_is_one_caller() {
        for headers in [HeaderMap::new(), headers("Bearer any")] {
            let caller = Keys::default().check(&headers).unwrap();
            assert_eq!(caller.spend(Instant::now()), Ok(()));
            assert_eq!((caller.lane, caller.models), (Lane::default(), None));
        }
    }

    #[test]
    fn every_key_has_a_lane_of_its_own_with_its_weight() {
        let lane = |key: &str| keys().check(&headers(&format!("Bearer {key}"))).unwrap().lane;
        // `printf %s two | sha256sum` begins with 3fc4ccfe745870e2.
        assert_eq!(lane("two"), Lane { caller: 0x3fc4_ccfe_7458_70e2, weight: 4 });
        assert_eq!(lane("one").weight, 1);
        assert_ne!(lane("one").caller, lane("three").caller);
    }

    fn spend(keys: &Keys, key: &str, now: Instant) -> Result<(), Problem> {
        keys.check(&headers(&format!("Bearer {key}")))?.spend(now)
    }

    #[test]
    fn a_key_is_held_to_its_own_rate() {
        let keys = Keys::new(&[config("slow", 1, Some(2.0)), config("free", 1, None)], &Keys::default());
        let now = Instant::now();
        for _ in 0..10 {
            assert_eq!(spend(&keys, "free", now), Ok(()));
        }
        assert_eq!(spend(&keys, "slow", now), Ok(()));
        assert_eq!(spend(&keys, "slow", now), Ok(()));
        let retry_after = Duration::from_millis(500);
        assert_eq!(spend(&keys, "slow", now), Err(Problem::KeyRate { retry_after }));
        assert_eq!(spend(&keys, "slow", now + retry_after), Ok(()));
    }

    /// Otherwise every reload would be a new burst.
    #[test]
    fn what_is_spent_stays_spent_when_the_deployment_changes() {
        let now = Instant::now();
        let old = Keys::new(&[config("a", 1, Some(1.0)), config("b", 1, Some(1.0))], &Keys::default());
        assert_eq!((spend(&old, "a", now), spend(&old, "b", now)), (Ok(()), Ok(())));
        let renamed = synod_config::Key { name: "another".into(), ..config("a", 9, Some(4.0)) };
        let new = Keys::new(&[config("c", 1, Some(1.0)), renamed], &old);
        let retry_after = Duration::from_millis(250);
        assert_eq!(spend(&new, "a", now), Err(Problem::KeyRate { retry_after }));
        assert_eq!(spend(&new, "b", now), Err(Problem::UnknownKey));
        assert_eq!(spend(&new, "c", now), Ok(()));
        assert_eq!(new.check(&headers("Bearer a")).unwrap().lane.weight, 9);
    }
}
