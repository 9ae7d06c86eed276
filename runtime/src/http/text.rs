//! A response's text on its way out.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use actix_web::body::{BodySize, MessageBody};
use actix_web::web::Bytes;

use crate::admission::Held;

/// What is handed to the connection at a time: as much as it buffers.
const PIECE_BYTES: usize = 32 << 10;

/// A text that stays counted as held until its last piece is with the connection, however slowly the client reads.
/// One that does not read at all loses its connection: `server` bounds the time.
pub(super) struct HeldText {
    rest: Bytes,
    _held: Arc<Held>,
}

impl HeldText {
    pub(super) fn new(text: String, held: Arc<Held>) -> Self {
        HeldText { rest: text.into(), _held: held }
    }
}

impl MessageBody for HeldText {
    type Error = Infallible;

    fn size(&self) -> BodySize {
        BodySize::Sized(self.rest.len() as u64)
    }

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, Infallible>>> {
        let piece = self.rest.len().min(PIECE_BYTES);
        Poll::Ready((piece > 0).then(|| Ok(self.rest.split_to(piece))))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;
    use crate::admission::HeldBytes;

    #[actix::test]
    async fn a_text_leaves_whole_and_is_counted_to_its_end() {
        for len in [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES] {
            let text: String = (0..len).map(|i| char::from(b'a' + (i % 26) as u8)).collect();
            let total = Arc::new(HeldBytes::default());
            let held = total.share(0);
            held.becomes(len);
            let mut body = HeldText::new(text.clone(), Arc::new(held));
            assert_eq!(body.size(), BodySize::Sized(len as u64));
            let mut sent = Vec::new();
            while let Some(Ok(piece)) = poll_fn(|cx| Pin::new(&mut body).poll_next(cx)).await {
                assert!(!piece.is_empty() && piece.len() <= PIECE_BYTES);
                assert_eq!(total.bytes(), len);
                sent.extend_from_slice(&piece);
            }
            assert_eq!(sent, text.as_bytes());
            drop(body);
            assert_eq!(total.bytes(), 0);
        }
    }
}
