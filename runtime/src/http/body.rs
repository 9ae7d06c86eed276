//! Receiving a body: its type and encoding as announced, its bytes bounded, alone and together with all others'.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use actix_web::HttpRequest;
use actix_web::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap};
use actix_web::web::{Bytes, BytesMut, Payload};
use futures_util::StreamExt;
use tokio::time::timeout_at;

use super::Problem;
use crate::admission::{Encoding, QueueFull, Refused};

/// The bodies that are held at one time.
#[derive(Debug)]
pub struct Bodies {
    held_bytes: AtomicUsize,
    max_held_bytes: usize,
    /// Of one body, as it is sent.
    max_body_bytes: usize,
    timeout: Duration,
}

/// A body's share of what is held, until it is dropped.
pub(super) struct Held<'a> {
    bodies: &'a Bodies,
    bytes: usize,
}

impl Bodies {
    /// Bodies of at most `max_body_bytes`, received within `timeout`. Together they may hold 64 of the longest.
    pub fn new(max_body_bytes: usize, timeout: Duration) -> Self {
        let max_held_bytes = max_body_bytes.saturating_mul(64);
        Bodies { held_bytes: AtomicUsize::new(0), max_held_bytes, max_body_bytes, timeout }
    }

    /// Receives a body that began to arrive at `received`.
    ///
    /// # Errors
    /// A body that is too long, too slow, or not received whole; [`QueueFull::Bytes`] when too much is held.
    pub(super) async fn receive(
        &self,
        request: &HttpRequest,
        payload: Payload,
        received: Instant,
    ) -> Result<(Bytes, Held<'_>), Problem> {
        if announced_bytes(request.headers()).is_some_and(|bytes| bytes > self.max_body_bytes) {
            return Err(self.too_large());
        }
        let deadline = received + self.timeout;
        timeout_at(deadline.into(), self.collect(payload)).await.map_err(|_| Problem::BodyTimeout)?
    }

    async fn collect(&self, mut payload: Payload) -> Result<(Bytes, Held<'_>), Problem> {
        let mut body = BytesMut::new();
        let mut held = Held { bodies: self, bytes: 0 };
        while let Some(chunk) = payload.next().await {
            let chunk = chunk.map_err(|_| Problem::BodyIncomplete)?;
            if body.len() + chunk.len() > self.max_body_bytes {
                return Err(self.too_large());
            }
            held.add(chunk.len())?;
            body.extend_from_slice(&chunk);
        }
        Ok((body.freeze(), held))
    }

    fn too_large(&self) -> Problem {
        Refused::BodyTooLarge { max_bytes: self.max_body_bytes }.into()
    }

    /// Bytes held now.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes.load(Ordering::Relaxed)
    }
}

impl Held<'_> {
    fn add(&mut self, bytes: usize) -> Result<(), Problem> {
        let max = self.bodies.max_held_bytes;
        let add = |held: usize| (held + bytes <= max).then_some(held + bytes);
        let added = self.bodies.held_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        added.map_err(|_| Refused::from(QueueFull::Bytes))?;
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.bodies.held_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
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

    #[test]
    fn held_bytes_are_bounded_together_and_given_back() {
        let bodies = Bodies::new(1, Duration::ZERO);
        let mut held = Held { bodies: &bodies, bytes: 0 };
        held.add(63).unwrap();
        let mut other = Held { bodies: &bodies, bytes: 0 };
        other.add(1).unwrap();
        assert_eq!(other.add(1), Err(Problem::Refused(QueueFull::Bytes.into())));
        drop(other);
        assert_eq!(bodies.held_bytes(), 63);
        drop(held);
        assert_eq!(bodies.held_bytes(), 0);
    }
}
