//! Receiving a body: its type and encoding as announced, its bytes bounded, alone and together with all others'.
//!
//! A body is charged as it arrives, and stays charged while anything of its request is under way.

use std::sync::Arc;
use std::time::{Duration, Instant};

use actix_web::HttpRequest;
use actix_web::error::PayloadError;
use actix_web::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap};
use actix_web::web::{Bytes, BytesMut, Payload};
use futures_util::{Stream, StreamExt};
use tokio::time::timeout_at;

use super::Problem;
use crate::admission::{Encoding, Held, HeldBytes, Refused};

/// How long a client may be silent in the middle of a body.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);

/// How bodies are received: bounded, each and all together, in length and in time.
#[derive(Debug)]
pub struct Bodies {
    held: Arc<HeldBytes>,
    /// Of one body, as it is sent.
    max_body_bytes: usize,
    timeout: Duration,
    stall_timeout: Duration,
}

impl Bodies {
    /// Bodies of at most `max_body_bytes`, received within `timeout`. Together, with those that are counted in `held`
    /// already, they may hold 64 of the longest.
    pub fn new(max_body_bytes: usize, timeout: Duration, held: Arc<HeldBytes>) -> Self {
        Bodies { held, max_body_bytes, timeout, stall_timeout: STALL_TIMEOUT }
    }

    /// Receives a body that began to arrive at `received`.
    ///
    /// # Errors
    /// A body that is too long, too slow, or not received whole; [`QueueFull::Bytes`](crate::admission::QueueFull)
    /// when too much is held.
    pub(super) async fn receive(
        &self,
        request: &HttpRequest,
        payload: Payload,
        received: Instant,
    ) -> Result<(Bytes, Held), Problem> {
        if announced_bytes(request.headers()).is_some_and(|bytes| bytes > self.max_body_bytes) {
            return Err(self.too_large());
        }
        self.collect(payload, received + self.timeout).await
    }

    async fn collect(
        &self,
        mut payload: impl Stream<Item = Result<Bytes, PayloadError>> + Unpin,
        deadline: Instant,
    ) -> Result<(Bytes, Held), Problem> {
        let mut body = BytesMut::new();
        let held = self.held.share(self.max_body_bytes.saturating_mul(64));
        loop {
            let until = deadline.min(Instant::now() + self.stall_timeout);
            let chunk = timeout_at(until.into(), payload.next()).await.map_err(|_| Problem::BodyTimeout)?;
            let Some(chunk) = chunk else { return Ok((body.freeze(), held)) };
            let chunk = chunk.map_err(|_| Problem::BodyIncomplete)?;
            if body.len() + chunk.len() > self.max_body_bytes {
                return Err(self.too_large());
            }
            held.add(chunk.len()).map_err(Refused::from)?;
            body.extend_from_slice(&chunk);
        }
    }

    fn too_large(&self) -> Problem {
        Refused::BodyTooLarge { max_bytes: self.max_body_bytes }.into()
    }

    /// What bodies and responses hold, for the bodies of another deployment to be counted with.
    pub fn held(&self) -> &Arc<HeldBytes> {
        &self.held
    }
}

fn announced_bytes(headers: &HeaderMap) -> Option<usize> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Refuses every type but JSON; parameters are the client's to set, a body that is not UTF-8 is refused when read.
pub(super) fn check_content_type(headers: &HeaderMap) -> Result<(), Problem> {
    let value = headers.get(CONTENT_TYPE).ok_or(Problem::ContentType)?.as_bytes();
    let essence = value.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    if essence.eq_ignore_ascii_case(b"application/json") { Ok(()) } else { Err(Problem::ContentType) }
}

/// The one encoding that the body is in.
pub(super) fn encoding(headers: &HeaderMap) -> Result<Encoding, Problem> {
    let mut values = headers.get_all(CONTENT_ENCODING);
    let Some(value) = values.next() else { return Ok(Encoding::Identity) };
    let known = [Encoding::Identity, Encoding::Gzip, Encoding::Zstd];
    let named = |encoding: &Encoding| value.as_bytes().trim_ascii().eq_ignore_ascii_case(encoding.name().as_bytes());
    match (known.into_iter().find(named), values.next()) {
        (Some(encoding), None) => Ok(encoding),
        _ => Err(Problem::UnknownEncoding),
    }
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::{HeaderName, HeaderValue};
    use futures_util::{FutureExt, stream};

    use super::*;

    fn headers(name: &HeaderName, values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(name.clone(), HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn json_is_the_only_content_type() {
        let check = |values: &[&str]| check_content_type(&headers(&CONTENT_TYPE, values));
        for json in ["application/json", "Application/JSON", "application/json; charset=utf-8", "application/json;"] {
            assert_eq!(check(&[json]), Ok(()), "{json}");
        }
        for other in ["", "text/plain", "application/jsonl", "application/json, text/plain", "multipart/form-data"] {
            assert_eq!(check(&[other]), Err(Problem::ContentType), "{other}");
        }
        assert_eq!(check(&[]), Err(Problem::ContentType));
    }

    #[test]
    fn a_body_has_one_known_encoding() {
        let encoding = |values: &[&str]| encoding(&headers(&CONTENT_ENCODING, values));
        assert_eq!(encoding(&[]), Ok(Encoding::Identity));
        assert_eq!(encoding(&["identity"]), Ok(Encoding::Identity));
        assert_eq!(encoding(&["GZIP"]), Ok(Encoding::Gzip));
        assert_eq!(encoding(&["zstd"]), Ok(Encoding::Zstd));
        for other in [&["br"][..], &["gzip, zstd"], &["gzip", "zstd"], &["gzip", "gzip"], &[""]] {
            assert_eq!(encoding(other), Err(Problem::UnknownEncoding), "{other:?}");
        }
    }

    /// Whoever falls silent gives back what it made the server hold, long before its request would be late.
    #[actix::test]
    async fn a_body_that_stalls_is_given_up() {
        let bodies = Bodies {
            stall_timeout: Duration::from_millis(5),
            ..Bodies::new(100, Duration::from_mins(1), Arc::default())
        };
        let chunk = || stream::iter([Ok(Bytes::from_static(b"some"))]);
        let late = || Instant::now() + Duration::from_mins(1);
        let mut stalled = Box::pin(bodies.collect(chunk().chain(stream::pending()), late()));
        assert!((&mut stalled).now_or_never().is_none());
        assert_eq!(bodies.held().bytes(), 4, "what has arrived is counted before the rest has");
        assert_eq!(stalled.await.err(), Some(Problem::BodyTimeout));
        assert_eq!(bodies.held().bytes(), 0);
        let (body, held) = bodies.collect(chunk(), late()).await.unwrap();
        assert_eq!((&body[..], bodies.held().bytes()), (&b"some"[..], 4));
        drop(held);
        assert_eq!(bodies.held().bytes(), 0);
    }
}
